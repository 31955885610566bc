"""Checks of the collectives on host memory."""

import gc

import numpy as np
import pytest

from keras_mwms.engine.jax import host
from tests.engine.jax.registry import SIZE
from tests.engine.jax.registry import check
from tests.engine.jax.values import same


def _rows(rank: int, count: int, width: int = 3) -> np.ndarray:
    return np.arange(count * width, dtype=np.uint8).reshape(count, width) + rank


@check
def host_gathers_any_number_of_rows(rank: int) -> None:
    for counts in ((1, 1, 1), (0, 2, 5), (0, 0, 0), (70_000, 0, 1)):
        for width in (3, 0):
            parts = [_rows(r, n, width) for r, n in enumerate(counts)]
            got = host.all_gather(parts[rank], "rows")
            same(got, np.concatenate(parts))
    vector = host.all_gather(np.full(rank, rank, np.uint8), "vector")
    same(vector, np.array([1, 2, 2], np.uint8))


@check
def host_results_outlive_the_call_and_can_be_written(rank: int) -> None:
    part = host.all_gather(np.full((4, 1000), rank, np.uint8), "kept")[4:8]
    gc.collect()
    for i in range(20):
        host.all_gather(np.full((4, 1000), 100 + i, np.uint8), "kept")
    same(part, np.full((4, 1000), 1, np.uint8))
    part[...] = 7
    same(part, np.full((4, 1000), 7, np.uint8))


@check
def host_takes_arrays_in_any_order_in_memory(rank: int) -> None:
    strided = _rows(rank, 6)[::-2].T
    wanted = [_rows(r, 6)[::-2].T for r in range(SIZE)]
    same(host.all_gather(strided, "strided"), np.concatenate(wanted))
    same(host.broadcast(strided, "strided", 2), wanted[2])


@check
def host_broadcasts_and_leaves_the_argument_alone(rank: int) -> None:
    for root in range(SIZE):
        for count in (1, 0, 70_000):
            given = _rows(rank, count)
            got = host.broadcast(given, "sent", root)
            same(got, _rows(root, count))
            same(given, _rows(rank, count))
            assert not np.shares_memory(got, given)


@check
def host_refuses_what_differs_between_ranks(rank: int) -> None:
    with pytest.raises(
        RuntimeError,
        match="Horovod all-gather of 'bad' failed: Mismatched ALLGATHER",
    ):
        host.all_gather(_rows(rank, 1, 2 + rank % 2), "bad")
    with pytest.raises(
        RuntimeError,
        match="Horovod broadcast of 'bad' failed: Mismatched BROADCAST",
    ):
        host.broadcast(_rows(rank, 1 + rank % 2), "bad", 0)
    with pytest.raises(RuntimeError, match="root rank"):
        host.broadcast(_rows(rank, 1), "bad", rank)
    # The same name works again.
    same(host.broadcast(_rows(rank, 1), "bad", 1), _rows(1, 1))


@check
def host_refuses_more_than_horovod_counts(rank: int) -> None:
    # Zeros that nobody reads take no memory. First of one rank, then of all.
    for count in (2**31, 2**30):
        zeros = np.zeros((count, 1), np.uint8)
        reason = r"of 'big' failed: .*cannot send \d+ bytes.*2\*\*31 - 1"
        with pytest.raises(RuntimeError, match=reason):
            host.all_gather(zeros, "big")
    with pytest.raises(RuntimeError, match=r"2147483648 bytes.*2\*\*31 - 1"):
        host.broadcast(np.zeros(2**31, np.uint8), "big", 0)
    same(host.broadcast(_rows(rank, 1), "big", 1), _rows(1, 1))


@check
def host_moves_bytes_only(rank: int) -> None:
    for call in (host.all_gather, lambda x, n: host.broadcast(x, n, 0)):
        with pytest.raises(TypeError, match="Received: dtype=float32"):
            call(np.ones((1, 1), np.float32), "floats")
