"""Which description of the cluster counts."""

import pytest

from keras_mwms.cluster import Cluster
from keras_mwms.cluster import HorovodClusterResolver
from keras_mwms.cluster import TFConfigClusterResolver
from keras_mwms.cluster import choose_cluster
from keras_mwms.cluster.horovod_env import launched_cluster
from keras_mwms.cluster.spec import Origin
from keras_mwms.cluster.tf_config import parse_tf_config
from keras_mwms.errors import ClusterConfigError
from tests.cluster.configs import tf_config


def launcher(rank, size):
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
    }


def described(size, task_type="worker", index=0):
    cluster = {"worker": [f"a:{i + 1}" for i in range(size)], "ps": ["p:1"]}
    return {"TF_CONFIG": tf_config(cluster, task_type, index)}


NO_CLUSTER = {"TF_CONFIG": '{"environment": "cloud"}'}


@pytest.mark.parametrize(
    ("environ", "origin", "size"),
    [
        ({}, Origin.ALONE, 1),
        (NO_CLUSTER, Origin.ALONE, 1),
        (described(3), Origin.TF_CONFIG, 3),
        (described(1), Origin.TF_CONFIG, 1),
        (launcher(1, 2), Origin.LAUNCHER, 2),
        ({**launcher(1, 2), **NO_CLUSTER}, Origin.LAUNCHER, 2),
        ({**launcher(1, 2), **described(2)}, Origin.LAUNCHER, 2),
        (launcher(0, 1), Origin.LAUNCHER, 1),
        ({**launcher(0, 1), **NO_CLUSTER}, Origin.LAUNCHER, 1),
        ({**launcher(0, 1), **described(1)}, Origin.LAUNCHER, 1),
    ],
)
def test_order_without_a_resolver(environ, origin, size):
    found = choose_cluster(environ=environ)
    assert (found.origin, found.size) == (origin, size)
    if origin is Origin.LAUNCHER:
        assert found == launched_cluster(environ)
    if origin is Origin.TF_CONFIG:
        assert found == parse_tf_config(environ["TF_CONFIG"])


def test_an_explicit_resolver_counts_first():
    environ = {**launcher(1, 2), **described(3)}
    described_here = TFConfigClusterResolver(described(4, index=2))
    assert choose_cluster(described_here, environ).rank == 2
    launched_here = HorovodClusterResolver({})
    assert choose_cluster(launched_here, environ) == Cluster(Origin.ALONE)


@pytest.mark.parametrize(
    ("launched", "tf_config_size"), [(2, 3), (3, 2), (2, 1), (1, 2)]
)
def test_launcher_and_tf_config_must_agree(launched, tf_config_size):
    environ = {**launcher(0, launched), **described(tf_config_size)}
    with pytest.raises(
        ClusterConfigError,
        match=f"launcher size={launched}, TF_CONFIG size={tf_config_size} ",
    ):
        choose_cluster(environ=environ)


@pytest.mark.parametrize("task_type", ["ps", "evaluator"])
def test_a_task_outside_the_ring_beside_a_launcher(task_type):
    outside = described(2, task_type)
    with pytest.raises(
        ClusterConfigError,
        match=f"TF_CONFIG size=1 for task type='{task_type}'",
    ):
        choose_cluster(environ={**launcher(0, 2), **outside})
    found = choose_cluster(environ={**launcher(0, 1), **outside})
    assert found == parse_tf_config(outside["TF_CONFIG"])


@pytest.mark.parametrize(
    "environ",
    [
        {**launcher(0, 2), "TF_CONFIG": "{"},
        {**launcher(2, 2), **described(2)},
        {"TF_CONFIG": "{"},
    ],
)
def test_a_wrong_description_is_never_passed_over(environ):
    with pytest.raises(ClusterConfigError):
        choose_cluster(environ=environ)


def test_the_environment_of_the_process_is_the_default(monkeypatch):
    for variable, value in launcher(1, 2).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert choose_cluster() == launched_cluster(launcher(1, 2))
