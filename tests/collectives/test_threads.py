"""Operations of several threads at once."""

import concurrent.futures
import threading
from typing import Any

import numpy as np
import pytest

from keras_mwms import world
from tests.collectives import tensors
from tests.pool import Clusters

TURNS = 20


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
