"""What launchers say in the environment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_mwms.cluster import Cluster
from keras_mwms.cluster.horovod_env import launched_cluster
from keras_mwms.cluster.spec import Origin
from keras_mwms.cluster.spec import Placement
from keras_mwms.errors import ClusterConfigError

HOROVODRUN = {
    "HOROVOD_HOSTNAME": "host2",
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "5",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "2",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "5",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MPICH = {
    "PMI_RANK": "3",
    "PMI_SIZE": "5",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
}


def launched(rank, size, *placement):
    return Cluster(Origin.LAUNCHER, rank, size, Placement(*placement))


@pytest.mark.parametrize(
    ("environ", "cluster"),
    [
        (HOROVODRUN, launched(3, 5, 1, 2, 0, 2)),
        (OPEN_MPI, launched(3, 5, 1, 2, 1, 3)),
        (MPICH, launched(3, 5, 1, 2, 1, 3)),
        # horovodrun under another launcher: its own variables count.
        ({**MPICH, **OPEN_MPI, "PMI_RANK": "0"}, launched(3, 5, 1, 2, 1, 3)),
        ({**OPEN_MPI, **HOROVODRUN}, launched(3, 5, 1, 2, 0, 2)),
        # srun --mpi=pmi2 sets these two alone, also for a single process.
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, launched(0, 1, 0, 1, 0, 1)),
    ],
)
def test_launched_cluster(environ, cluster):
    assert launched_cluster(environ) == cluster
    assert not cluster.is_chief or cluster.rank == 0


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TF_CONFIG": "{}", "PATH": "/bin"},
        {"HOROVOD_CYCLE_TIME": "1", "HOROVOD_HOSTNAME": "host1"},
        {"OMPI_MCA_btl": "tcp", "SLURM_NTASKS": "4"},
    ],
)
def test_no_launcher(environ):
    assert launched_cluster(environ) is None


def wrong(environ):
    with pytest.raises(ClusterConfigError) as caught:
        launched_cluster(environ)
    return str(caught.value)


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        (environ, variable)
        for environ in (HOROVODRUN, OPEN_MPI, MPICH)
        for variable in environ
        if variable != "HOROVOD_HOSTNAME"
    ],
)
def test_incomplete(environ, variable):
    rest = {k: v for k, v in environ.items() if k != variable}
    message = wrong(rest)
    assert f"{variable} is missing. Received: " in message
    assert f"{variable}=" not in message


@pytest.mark.parametrize(
    "value", ["", "x", "-1", "1.0", " 1", "0x1", "\u0661", "9" * 5000]
)
@pytest.mark.parametrize("variable", sorted(HOROVODRUN.keys()))
def test_not_a_number(variable, value):
    environ = {**HOROVODRUN, variable: value}
    if variable == "HOROVOD_HOSTNAME":
        assert launched_cluster(environ) == launched_cluster(HOROVODRUN)
        return
    message = wrong(environ)
    assert f"{variable} is not a whole number. Received: " in message
    assert f"{variable}={value!r}"[:60] in message
    assert len(message) < 1000


@pytest.mark.parametrize(
    ("environ", "change", "reason"),
    [
        (HOROVODRUN, {"HOROVOD_RANK": "5"}, "RANK is not below HOROVOD_SIZE"),
        (HOROVODRUN, {"HOROVOD_SIZE": "0"}, "RANK is not below HOROVOD_SIZE"),
        (
            HOROVODRUN,
            {"HOROVOD_LOCAL_RANK": "2"},
            "HOROVOD_LOCAL_RANK is not below HOROVOD_LOCAL_SIZE",
        ),
        (
            HOROVODRUN,
            {"HOROVOD_LOCAL_SIZE": "6"},
            "HOROVOD_LOCAL_SIZE is above HOROVOD_SIZE",
        ),
        (
            HOROVODRUN,
            {"HOROVOD_CROSS_RANK": "2"},
            "HOROVOD_CROSS_RANK is not below HOROVOD_CROSS_SIZE",
        ),
        (
            HOROVODRUN,
            {"HOROVOD_CROSS_SIZE": "6"},
            "HOROVOD_CROSS_SIZE is above HOROVOD_SIZE",
        ),
        (
            OPEN_MPI,
            {"OMPI_COMM_WORLD_RANK": "9"},
            "OMPI_COMM_WORLD_RANK is not below OMPI_COMM_WORLD_SIZE",
        ),
        (MPICH, {"PMI_RANK": "9"}, "PMI_RANK is not below PMI_SIZE"),
        (
            MPICH,
            {"MPI_LOCALNRANKS": "6"},
            "MPI_LOCALNRANKS is above PMI_SIZE",
        ),
        (
            MPICH,
            {"PMI_RANK": "0", "PMI_SIZE": "1"},
            "MPI_LOCALNRANKS is above PMI_SIZE",
        ),
    ],
)
def test_inconsistent(environ, change, reason):
    message = wrong({**environ, **change})
    assert reason in message
    for variable, value in change.items():
        assert f"{variable}={value!r}" in message


def test_only_the_size_of_slurm_is_an_error_with_more_processes():
    message = wrong({"PMI_RANK": "0", "PMI_SIZE": "4"})
    assert "MPI_LOCALRANKID is missing" in message
    assert "Received: PMI_RANK='0', PMI_SIZE='4'." in message
    assert "give a cluster resolver" in message


VALUES = st.integers(-1, 6).map(str) | st.text(max_size=3)


@given(
    st.sampled_from([HOROVODRUN, OPEN_MPI, MPICH]).flatmap(
        lambda environ: st.fixed_dictionaries(
            {}, optional=dict.fromkeys(environ, VALUES)
        )
    )
)
def test_any_values_are_a_sound_cluster_or_the_error(environ):
    try:
        cluster = launched_cluster(environ)
    except ClusterConfigError:
        return
    if cluster is None:
        assert set(environ) <= {"HOROVOD_HOSTNAME"}
        return
    place = cluster.placement
    assert 0 <= cluster.rank < cluster.size
    assert 0 <= place.local_rank < place.local_size <= cluster.size
    assert 0 <= place.cross_rank < place.cross_size <= cluster.size
