"""Operations of several threads at once."""

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from keras_mwms import world
from tests.collectives import tensors
from tests.pool import Clusters

TURNS = 20
STEPS = 200


def ring() -> Any:
    return world.join().ring


def sums() -> Any:
    return ring().sum_arrays([np.arange(3)])[0].tolist()


def broadcasts() -> Any:
    return ring().broadcast_arrays([np.full(4, ring().rank)], 1)[0].tolist()


def gathers() -> Any:
    return ring().gather_array(np.array([ring().rank])).tolist()


def values() -> Any:
    return ring().gather_values({"rank": ring().rank})


def objects() -> Any:
    return ring().broadcast_object([ring().rank], 1)


def waits() -> Any:
    return ring().barrier()


EXPECTED = {
    sums: [0, 2, 4],
    broadcasts: [1] * 4,
    gathers: [0, 1],
    values: [{"rank": 0}, {"rank": 1}],
    objects: [1],
    waits: None,
}


def test_different_host_operations_in_any_order(cluster: Clusters) -> None:
    """Each rank begins with another operation: a common lock would hang."""

    def turns(call: Any, start: threading.Barrier) -> list[Any]:
        start.wait(10)
        return [call() for _ in range(TURNS)]

    def check() -> list[Any]:
        world.join()
        calls = list(EXPECTED)
        if ring().rank:
            calls.reverse()
        start = threading.Barrier(len(calls))
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as threads:
            futures = {c: threads.submit(turns, c, start) for c in calls}
        return [futures[call].result() for call in EXPECTED]

    expected = [[value] * TURNS for value in EXPECTED.values()]
    assert cluster(2).run(check) == [expected] * 2


@pytest.mark.parametrize("first", [0, 1])
def test_operations_pair_by_name(cluster: Clusters, first: int) -> None:
    """One rank has begun another operation than the other one."""

    def check() -> None:
        rank = ring().rank
        names = ["a", "b"] if rank == first else ["b", "a"]
        begun = threading.Barrier(2)

        def run(name: str, turn: int) -> Any:
            # What begins second waits for the first to be under way.
            if turn:
                begun.wait(10)
            value = {"a": 1.0, "b": 10.0}[name] + rank
            given = tensors.tensor(np.full(3, value), "float32")
            if not turn:
                begun.wait(10)
            return tensors.host(ring().all_reduce([given], f"named.{name}")[0])

        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            results = dict(
                zip(names, threads.map(run, names, range(2)), strict=True)
            )
        np.testing.assert_array_equal(results["a"], 3.0)
        np.testing.assert_array_equal(results["b"], 21.0)

    for _ in range(3):
        cluster(2).run(check)


def test_training_goes_on_beside_a_host_operation(cluster: Clusters) -> None:
    """One rank is at a barrier in a thread while both go on to sum."""

    def check() -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            early = threads.submit(ring().barrier) if ring().rank else None
            for turn in range(TURNS):
                given = tensors.tensor(np.full(2, float(turn)), "float32")
                (total,) = ring().all_reduce([given], "step")
                np.testing.assert_array_equal(tensors.host(total), 2.0 * turn)
            late = early or threads.submit(ring().barrier)
            late.result()

    cluster(2).run(check)


def test_host_operations_beside_steps(
    cluster: Clusters, wrap: Callable[..., Any]
) -> None:
    """A thread exchanges values for each step while the steps run."""

    def steps() -> np.ndarray:
        def step(x: Any) -> Any:
            for i in range(3):
                (total,) = ring().all_reduce([x], f"step.{i}")
                x = total / 2
            return x + 1

        run, x = wrap(step), tensors.tensor(np.zeros(64), "float32")
        for _ in range(STEPS):
            x = run(x)
        return tensors.host(x)

    def exchanges() -> list[Any]:
        rank, seen = ring().rank, []
        for turn in range(STEPS):
            arrays = ring().gather_arrays([np.array([turn, rank])])
            (sent,) = ring().broadcast_arrays([np.array(turn + rank)], 1)
            values = ring().gather_values(turn * rank)
            seen.append(([a.tolist() for (a,) in arrays], int(sent), values))
        return seen

    def check() -> list[Any]:
        world.join()
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            beside = threads.submit(exchanges)
            np.testing.assert_array_equal(steps(), float(STEPS))
            return beside.result()

    expected = [
        ([[turn, 0], [turn, 1]], turn + 1, [0, turn]) for turn in range(STEPS)
    ]
    assert cluster(2).run(check) == [expected] * 2


@pytest.mark.backend("jax")
def test_host_operations_run_no_programs(cluster: Clusters) -> None:
    """XLA may order the programs of two threads as it likes."""

    def check() -> list[Any]:
        import jax

        # Nothing can become an argument of a program.
        with jax.transfer_guard("disallow_explicit"):
            return [call() for call in EXPECTED]

    assert cluster(2).run(check) == [list(EXPECTED.values())] * 2
