"""The pool itself: that what tests run in their workers can be trusted."""

import atexit
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.pool import Clusters
from tests.pool import FreshCluster
from tests.pool import PerRank
from tests.pool import Pool
from tests.pool import WorkerError
from tests.pool.environment import ROOT
from tests.pool.processes import Leader
from tests.pool.processes import wait_ended

HOROVODRUN = Path(sys.executable).with_name("horovodrun")
needs_horovodrun = pytest.mark.skipif(
    not HOROVODRUN.exists(), reason="horovodrun is not installed"
)

# A pool that is replaced without need says so.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

OFFSET = 40


class Point:
    """A class that only this module has."""

    def __init__(self, x: int) -> None:
        self.x = x


def rank() -> int:
    return int(os.environ["TESTS_POOL_RANK"])


def shift(point: Point) -> Point:
    return Point(point.x + OFFSET + rank())


def hang_here() -> None:
    threading.Event().wait()


def fail_on(ranks: list[int], others_hang: bool = False) -> int:
    print("printed before it failed")
    if rank() in ranks:
        raise ValueError(f"no luck on {rank()}")
    if others_hang:
        hang_here()
    return rank()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pool]:
    """A pool of two that tests may break without disturbing the session."""
    pool = Pool(2)
    yield pool
    pool.stop()


def test_results_come_in_rank_order(pair: Pool) -> None:
    assert pair.run(rank) == [0, 1]


def test_arguments_differ_where_they_are_per_rank(pair: Pool) -> None:
    def join(a: str, b: str, *, c: str) -> str:
        return a + b + c

    values = pair.run(join, PerRank(["p", "q"]), "=", c=PerRank(["0", "1"]))
    assert values == ["p=0", "q=1"]


def test_a_per_rank_argument_needs_one_item_a_rank(pair: Pool) -> None:
    with pytest.raises(ValueError, match=r"Received: PerRank\(items=\[1\]\)"):
        pair.run(abs, PerRank([1]))


def test_closures_and_classes_of_test_modules_travel(pair: Pool) -> None:
    factor = np.arange(3)
    arrays = pair.run(lambda: factor * (rank() + 1))
    np.testing.assert_array_equal(arrays, [[0, 1, 2], [0, 2, 4]])

    points = pair.run(shift, Point(2))
    assert [point.x for point in points] == [42, 43]
    assert all(isinstance(point, Point) for point in points)


def test_test_modules_travel_as_they_are_now(
    pair: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "OFFSET", 100)
    assert [point.x for point in pair.run(shift, Point(0))] == [100, 101]


def test_the_source_of_functions_can_be_read(pair: Pool) -> None:
    # Asked for by AutoGraph.
    sources = pair.run(lambda: inspect.getsource(hang_here))
    assert sources == [inspect.getsource(hang_here)] * 2


def test_functions_run_in_the_main_threads_of_lasting_processes(
    pair: Pool,
) -> None:
    def where() -> tuple[int, bool]:
        return os.getpid(), threading.current_thread().name == "MainThread"

    first = pair.run(where)
    assert first == [(pid, True) for pid in pair.pids()]
    assert pair.run(where) == first


def test_warnings_do_not_depend_on_earlier_calls(pair: Pool) -> None:
    def seen() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.warn("again", UserWarning, stacklevel=1)
        warnings.simplefilter("ignore")
        return [str(warning.message) for warning in caught]

    assert pair.run(seen) == pair.run(seen) == [["again"]] * 2


def test_environment_of_the_ranks(pair: Pool, backend: str) -> None:
    first, second = pair.run(lambda: dict(os.environ))
    configs = [json.loads(e["TF_CONFIG"]) for e in (first, second)]

    assert [c["task"] for c in configs] == [
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
    ]
    assert configs[0]["cluster"] == configs[1]["cluster"]
    addresses = configs[0]["cluster"]["worker"]
    assert len(set(addresses)) == 2
    assert all(address.startswith("127.0.0.1:") for address in addresses)
    for name in ("PYTHONHASHSEED", "KERAS_HOME"):
        assert first[name] != second[name]
    assert first["KERAS_BACKEND"] == second["KERAS_BACKEND"] == backend
    assert first["PYTHONPATH"] == str(ROOT)


def test_hash_seeds_differ(pair: Pool) -> None:
    first, second = pair.run(lambda: hash("layer"))
    assert first != second


def test_one_alone_has_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TF_CONFIG", "HOROVOD_RANK"):
        monkeypatch.setenv(name, "from outside")
    alone = Pool(1)
    (environment,) = alone.run(lambda: dict(os.environ))
    alone.stop()
    assert "TF_CONFIG" not in environment
    assert "HOROVOD_RANK" not in environment


def test_a_worker_imports_no_framework(pair: Pool) -> None:
    heavy = {"keras", "tensorflow", "torch", "jax", "keras_mwms", "horovod"}
    pair.stop()
    assert pair.run(lambda: sorted(heavy & set(sys.modules))) == [[], []]


def test_pools_are_kept_by_size_and_start(cluster: Clusters) -> None:
    assert cluster(2) is cluster(2)
    assert cluster(2) is not cluster(3)
    assert cluster(2) is not cluster(2, start="horovodrun")


def test_an_error_has_the_traceback_of_every_rank_that_failed(
    pair: Pool,
) -> None:
    with pytest.raises(WorkerError, match=r"fail_on failed on .*\[0, 1\]") as e:
        pair.run(fail_on, [0, 1])
    for number, outcome in enumerate(e.value.outcomes):
        assert outcome.error_type == "ValueError"
        assert outcome.error_text == f"no luck on {number}"
        assert "in fail_on" in outcome.details
        assert 'raise ValueError(f"no luck on {rank()}")' in outcome.details
        assert "printed before it failed" in outcome.details
        assert outcome.details in str(e.value)


def test_a_failure_gives_the_others_a_short_grace(
    pair: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.pool.pool.GRACE", 0.5)
    begin = time.monotonic()
    with pytest.raises(WorkerError, match="no luck on 1") as e:
        pair.run(fail_on, [1], others_hang=True, timeout=20)
    assert time.monotonic() - begin < 20
    hung = e.value.outcomes[0]
    assert hung.error_type == "WorkerHung"
    assert "in hang_here" in hung.details
    assert pair.run(rank) == [0, 1]


def test_a_hang_ends_with_the_stacks_of_all_threads(pair: Pool) -> None:
    def hang_in_two_threads() -> None:
        threading.Thread(target=hang_here).start()
        threading.Event().wait()

    pids = pair.pids()
    with pytest.raises(WorkerError) as e:
        pair.run(hang_in_two_threads, timeout=1)
    for outcome in e.value.outcomes:
        assert outcome.error_type == "WorkerHung"
        assert "in hang_in_two_threads" in outcome.details
        assert "in hang_here" in outcome.details
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert pair.run(rank) == [0, 1]


def test_a_worker_that_dies_is_named(pair: Pool) -> None:
    def die() -> None:
        if rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    first, second = pair.run_outcomes(die, timeout=10)
    assert first.error_type is None
    assert second.error_type == "WorkerDied"
    assert "SIGKILL" in second.error_text
    assert pair.run(rank) == [0, 1]


def test_a_crash_shows_its_stacks(pair: Pool) -> None:
    def crash() -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    with pytest.raises(WorkerError, match=r"SIGSEGV(.|\n)*in crash"):
        pair.run(crash)


def test_a_worker_that_died_between_calls_is_replaced(pair: Pool) -> None:
    victim = Leader(pair.pids()[1])
    victim.signal(signal.SIGKILL)
    assert wait_ended([victim], timeout=5) == []
    victim.close()
    with pytest.warns(RuntimeWarning, match=r"Ranks \[1\] .* died unused"):
        assert pair.run(rank) == [0, 1]


def test_expected_failures_are_outcomes_and_cost_no_restart(
    pair: Pool,
) -> None:
    pids = pair.pids()
    first, second = pair.run_outcomes(fail_on, [1])
    assert (first.rank, first.value, first.error_type) == (0, 0, None)
    assert (second.rank, second.value) == (1, None)
    assert (second.error_type, second.error_text) == (
        "ValueError",
        "no luck on 1",
    )
    assert pair.pids() == pids


def test_a_result_that_cannot_travel_is_a_failure(pair: Pool) -> None:
    outcomes = pair.run_outcomes(threading.Lock)
    assert [outcome.error_type for outcome in outcomes] == ["TypeError"] * 2
    assert "pickle" in outcomes[0].error_text


def end_soon(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=5)
    return not alive


def test_stopping_leaves_nothing_behind() -> None:
    def start_child() -> str:
        subprocess.Popen(["sleep", "100"])
        return os.environ["TESTS_POOL_FOLDER"]

    others = psutil.Process().children(recursive=True)
    pool = Pool(2)
    folder, _ = pool.run(start_child)
    started = set(psutil.Process().children(recursive=True)) - set(others)
    assert len(started) == 4
    pool.stop()
    assert end_soon([*started])
    assert not Path(folder).exists()


def test_a_hang_at_exit_is_told(
    pair: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.pool.crew.END_TIMEOUT", 0.5)

    def hang_at_exit() -> None:
        atexit.register(hang_here)

    pair.run(hang_at_exit)
    with pytest.warns(RuntimeWarning, match="in hang_here"):
        pair.stop()


def test_workers_end_with_the_session(fresh_cluster: FreshCluster) -> None:
    session = """
import os, threading
from tests.pool import Pool

def hang():
    threading.Event().wait()

pool = Pool(2)
print(pool.run(os.getenv, "TESTS_POOL_FOLDER")[0])
print(*pool.pids(), flush=True)
threading.Timer(0.5, os._exit, [7]).start()
pool.run(hang)
"""
    (ended,) = fresh_cluster(1, [sys.executable, "-c", session], timeout=30)
    assert ended.returncode == 7, ended.stderr
    folder, pids = ended.stdout.splitlines()
    assert end_soon(
        [p for p in psutil.process_iter() if str(p.pid) in pids.split()]
    )
    shutil.rmtree(folder)


def test_a_pool_that_cannot_start_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    argv = (sys.executable, "-c", "raise SystemExit('no such module')")
    monkeypatch.setattr("tests.pool.crew._ARGV", argv)
    with pytest.raises(RuntimeError, match=r"a process ended(.|\n)*no such"):
        Pool(2).run(rank)


@needs_horovodrun
def test_horovodrun_starts_the_same_workers(backend: str) -> None:
    others = psutil.Process().children(recursive=True)
    pool = Pool(2, start="horovodrun")
    environments = pool.run(lambda: dict(os.environ))
    assert pool.run(rank) == [0, 1]
    hashes = pool.run(lambda: hash("layer"))
    started = set(psutil.Process().children(recursive=True)) - set(others)
    outcomes = pool.run_outcomes(hang_here, timeout=0.5)

    assert end_soon([*started])
    assert len(started) > 2
    for number, environment in enumerate(environments):
        assert environment["HOROVOD_RANK"] == str(number)
        assert environment["HOROVOD_SIZE"] == "2"
        assert environment["KERAS_BACKEND"] == backend
        assert "TF_CONFIG" not in environment
    assert len({e["KERAS_HOME"] for e in environments}) == 2
    assert len(set(hashes)) == 2
    for outcome in outcomes:
        assert outcome.error_type == "WorkerHung"
        assert "in hang_here" in outcome.details


@needs_horovodrun
def test_horovodrun_workers_end_when_asked() -> None:
    others = psutil.Process().children(recursive=True)
    pool = Pool(1, start="horovodrun")
    assert pool.run(rank) == [0]
    started = set(psutil.Process().children(recursive=True)) - set(others)
    pool.stop()
    assert end_soon([*started])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.backend(name))
        for name in ("tensorflow", "torch", "jax")
    ],
)
def test_marked_tests_run_on_their_backend_only(
    backend: str, name: str
) -> None:
    assert backend == name == os.environ["KERAS_BACKEND"]
