"""This process's place among the replicas, and the start of the ring."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pool import Clusters
from tests.pool import Finished
from tests.pool import FreshCluster
from tests.pool import PerRank

needs_horovodrun = pytest.mark.skipif(
    not Path(sys.executable).with_name("horovodrun").exists(),
    reason="Horovod is not installed in this environment.",
)
STARTS = [
    "tf_config",
    pytest.param("horovodrun", marks=needs_horovodrun),
]


def place() -> dict[str, Any]:
    import keras_mwms

    return {
        "rank": keras_mwms.rank(),
        "size": keras_mwms.world_size(),
        "local": keras_mwms.local_rank(),
        "chief": keras_mwms.is_chief(),
    }


def worker(index: int, *hosts: str, task: str = "worker") -> str:
    jobs = {"worker": [f"{host}:{i + 1}" for i, host in enumerate(hosts)]}
    if task != "worker":
        jobs[task] = ["d:1"]
    return json.dumps({"cluster": jobs, "task": {"type": task, "index": index}})


ALONE = {"rank": 0, "size": 1, "local": 0, "chief": True}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("", ALONE),
        (
            worker(0, "a", "b"),
            {"rank": 0, "size": 2, "local": 0, "chief": True},
        ),
        (
            worker(2, "a", "b", "a"),
            {"rank": 2, "size": 3, "local": 1, "chief": False},
        ),
        (worker(0, "a", "b", task="evaluator"), ALONE),
    ],
)
def test_place_follows_tf_config(
    monkeypatch: pytest.MonkeyPatch, config: str, expected: dict[str, Any]
) -> None:
    # The package is imported already; the variable counts when asked.
    assert place() == ALONE
    monkeypatch.setenv("TF_CONFIG", config)
    assert place() == expected


def run_python(
    fresh_cluster: FreshCluster, size: int, text: str, **kwargs: Any
) -> list[Finished]:
    return fresh_cluster(size, [sys.executable, "-c", text], **kwargs)


@pytest.mark.parametrize(("size", "local"), [(1, 0), (3, 2)])
def test_place_starts_nothing(
    fresh_cluster: FreshCluster, size: int, local: int
) -> None:
    text = """
import sys, threading
import keras_mwms
import keras
before = threading.active_count()
print(
    keras_mwms.rank(), keras_mwms.world_size(), keras_mwms.local_rank(),
    keras_mwms.is_chief(),
)
assert not [m for m in sys.modules if m.split(".")[0] == "horovod"]
assert threading.active_count() == before
"""
    # The others of the cluster never come.
    (ended,) = run_python(fresh_cluster, size, text, ranks=[size - 1])
    assert ended.returncode == 0, ended.stderr
    expected = f"{size - 1} {size} {local} {size == 1}"
    assert ended.stdout.splitlines()[-1] == expected


@pytest.mark.parametrize("start", STARTS)
def test_join_gives_one_world(cluster: Clusters, start: Any) -> None:
    def check() -> tuple[Any, ...]:
        import keras_mwms
        from keras_mwms import world

        joined = world.join()
        found = (
            joined.ring.rank,
            joined.ring.size,
            world.join() is joined,
            world.cluster() is joined.cluster,
            keras_mwms.broadcast_object(keras_mwms.rank(), root=1),
        )
        keras_mwms.barrier()
        return found, place()

    for rank, (found, where) in enumerate(cluster(2, start=start).run(check)):
        assert found == (rank, 2, True, True, 1)
        assert where == {
            "rank": rank,
            "size": 2,
            "local": rank,
            "chief": rank == 0,
        }


def test_a_running_ring_counts_more_than_the_environment(
    cluster: Clusters,
) -> None:
    def check() -> tuple[bool, int]:
        import os

        from keras_mwms import world

        joined = world.join()
        config = os.environ.pop("TF_CONFIG")
        try:
            return world.join() is joined, world.world_size()
        finally:
            os.environ["TF_CONFIG"] = config

    assert cluster(2).run(check) == [(True, 2)] * 2


def test_another_cluster_than_the_running_one(cluster: Clusters) -> None:
    class Other:
        def cluster(self) -> Any:
            from keras_mwms.cluster.spec import Cluster
            from keras_mwms.cluster.spec import Origin

            return Cluster(Origin.RESOLVER, 0, 3)

    def check() -> None:
        from keras_mwms import world

        world.join()
        world.join(Other())

    for outcome in cluster(2).run_outcomes(check):
        assert outcome.error_type == "StartError"
        assert "a member of a ring already" in outcome.error_text


def test_join_alone_needs_no_horovod(fresh_cluster: FreshCluster) -> None:
    text = """
import sys
sys.modules["horovod"] = None
import keras_mwms
from keras_mwms import world
ring = world.join().ring
print(ring.rank, ring.size, keras_mwms.broadcast_object({"é": 1}))
keras_mwms.barrier()
"""
    (ended,) = run_python(fresh_cluster, 1, text)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "0 1 {'é': 1}"


CAUGHT = """
import os, sys
import keras_mwms
from keras_mwms import world
{before}
try:
    world.join()
except Exception as error:
    print(f"{{os.environ.get('HOROVOD_RANK', '')}}{{type(error).__name__}}")
    print(error)
"""


@pytest.mark.parametrize("hidden", ["horovod", "its binding"])
def test_horovod_is_missing(
    fresh_cluster: FreshCluster, backend: str, hidden: str
) -> None:
    module = "horovod" if hidden == "horovod" else f"horovod.{backend}"
    if backend == "jax" and hidden != "horovod":
        pytest.skip("Horovod has no module of its own for JAX.")
    before = f"sys.modules[{module!r}] = None"
    # At once, whether or not the others are there.
    (ended,) = run_python(
        fresh_cluster, 2, CAUGHT.format(before=before), ranks=[1], timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert "HorovodMissingError" in lines
    assert "keras-mwms install-horovod" in lines[-1]


def test_a_parameter_server_takes_no_part(fresh_cluster: FreshCluster) -> None:
    config = worker(0, "a", "b", task="ps")
    (ended,) = run_python(
        fresh_cluster, 1, CAUGHT.format(before=""), env={"TF_CONFIG": config}
    )
    assert ended.returncode == 0, ended.stderr
    assert "ClusterConfigError" in ended.stdout
    assert "task type='ps'" in ended.stdout


@pytest.mark.parametrize("start", STARTS)
def test_versions_that_differ(fresh_cluster: FreshCluster, start: Any) -> None:
    before = """
rank = os.environ.get("HOROVOD_RANK") or os.environ["RANK"]
if rank == "1":
    world.__version__ = "0.0.0.other"
"""
    kwargs = {} if start == "horovodrun" else {"env": {"RANK": PerRank("01")}}
    ended = run_python(
        fresh_cluster, 2, CAUGHT.format(before=before), start=start, **kwargs
    )
    assert [e.returncode for e in ended] == [0] * len(ended), ended
    output = "".join(e.stdout for e in ended)
    assert output.count("StartError") == 2
    assert output.count("keras_mwms differs") == 2
    assert output.count("0.0.0.other on ") == 2
