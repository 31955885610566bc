"""Collectives on NumPy arrays and Python values."""

import math
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_mwms import world
from keras_mwms.collectives import AloneCollectives
from keras_mwms.collectives import base
from tests.pool import Clusters
from tests.pool import PerRank

BIG = 2**53 + 1  # no float64
SETTINGS = types.SimpleNamespace(rate=0.5, names={"a", "é"}, shape=(1, None))


def ring() -> Any:
    return world.join().ring


def same(found: np.ndarray, expected: np.ndarray) -> None:
    """Same dtype, shape and bytes."""
    assert isinstance(found, np.ndarray)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "arrays",
    [
        pytest.param([np.array(BIG)], id="int64"),
        pytest.param([np.array([0.1, 1e-300, 2.0**60])], id="float64"),
        pytest.param([np.float32([[0.1], [2]]), np.int8([3, -4])], id="mixed"),
        pytest.param([np.array(1.5, np.float16)], id="float16 scalar"),
        pytest.param([np.zeros((0, 3)), np.ones(1, np.uint64)], id="empty"),
        pytest.param([np.arange(6.0).reshape(2, 3).T[:, ::-1]], id="strided"),
        pytest.param([np.array([True, False])], id="bool"),
        pytest.param([], id="none"),
    ],
)
def test_sum_arrays(
    cluster: Clusters, size: int, arrays: list[np.ndarray]
) -> None:
    def of_rank(rank: int) -> list[np.ndarray]:
        return [np.asarray(a * (rank + 1), a.dtype) for a in arrays]

    def check() -> None:
        found = ring().sum_arrays(of_rank(ring().rank))
        for total, *parts in zip(
            found, *map(of_rank, range(size)), strict=True
        ):
            expected = np.zeros_like(parts[0], order="C")
            for part in parts:
                expected = np.asarray(expected + part, part.dtype)
            same(total, np.ascontiguousarray(expected).reshape(total.shape))

    cluster(size).run(check)


def test_sums_add_in_rank_order(cluster: Clusters) -> None:
    # (1 + 1e16) - 1e16 is 0; in another order it is 1.
    mine = PerRank([np.array([v]) for v in (1.0, 1e16, -1e16)])
    found = cluster(3).run(lambda a: ring().sum_arrays([a])[0], mine)
    for total in found:
        same(total, np.array([0.0]))


EVERYTHING = {
    "nan with payload": np.array(
        [0x7FF8000000000123, 0xFFF0000000000001], np.uint64
    ).view(np.float64),
    "-0.0": np.array([-0.0, 0.0, 5e-324]),
    "int64": np.array([BIG, -BIG]),
    "uint64": np.array(2**64 - 1, np.uint64),
    "float16": np.arange(3, dtype=np.float16),
    "complex": np.array([1 + 2j]),
    "bool": np.array([[True], [False]]),
    "unicode": np.array(["Größe", "", "\U0001f600"]),
    "bytes": np.array([b"\x00a", b"\xff"]),
    "dates": np.array(["2020-02-29"], "datetime64[D]"),
    "big-endian": np.array([1, 2], ">i4"),
    "no rows": np.zeros((0, 4), np.float32),
    "scalar": np.array(3.5),
    "strided": np.arange(12).reshape(3, 4).T[::-1, ::2],
}


def test_broadcast_arrays_bit_for_bit(cluster: Clusters, size: int) -> None:
    root = size - 1
    arrays = list(EVERYTHING.values())

    def check() -> None:
        rank = ring().rank
        mine = arrays if rank == root else [np.zeros_like(a) for a in arrays]
        found = ring().broadcast_arrays(mine, root)
        for one, expected in zip(found, arrays, strict=True):
            same(one, expected)
            # They are new arrays that can be written.
            assert not any(np.shares_memory(one, other) for other in mine)
            assert one.flags.writeable

    cluster(size).run(check)


@pytest.mark.parametrize("pack_bytes", [1, 7, 64, 100])
def test_broadcast_arrays_in_packs(cluster: Clusters, pack_bytes: int) -> None:
    arrays = [
        np.arange(9.0),
        np.zeros((0, 2)),
        np.array("x"),
        np.arange(12, dtype=np.int16).reshape(3, 4),
    ]

    def check() -> list[int]:
        sizes = []
        joined = ring()
        original, before = joined._broadcast_bytes, base.PACK_BYTES

        def broadcast(data: np.ndarray, *args: Any) -> np.ndarray:
            sizes.append(data.size)
            return original(data, *args)

        base.PACK_BYTES = pack_bytes
        joined._broadcast_bytes = broadcast
        try:
            mine = arrays if joined.rank else [np.zeros_like(a) for a in arrays]
            found = joined.broadcast_arrays(mine, 1)
        finally:
            base.PACK_BYTES = before
            del joined._broadcast_bytes
        for one, expected in zip(found, arrays, strict=True):
            same(one, expected)
        return sizes

    whole, rest = divmod(9 * 8 + 4 + 12 * 2, pack_bytes)
    expected = [pack_bytes] * whole + [rest] * (rest > 0)
    assert cluster(2).run(check) == [expected] * 2


def test_broadcast_no_arrays(cluster: Clusters) -> None:
    assert cluster(2).run(lambda: ring().broadcast_arrays([])) == [[], []]


@pytest.mark.parametrize("call", ["broadcast_arrays", "broadcast_object"])
@pytest.mark.parametrize("root", [2, -1])
def test_a_root_that_is_no_replica(
    cluster: Clusters, call: str, root: int
) -> None:
    for outcome in cluster(2).run_outcomes(
        lambda: getattr(ring(), call)([np.ones(1)], root)
    ):
        assert outcome.error_type == "ValueError"
        assert f"Received: root={root}" in outcome.error_text


@pytest.mark.parametrize("rows", [(1, 2, 3), (0, 3, 0), (0, 0, 0)])
def test_gather_array(
    cluster: Clusters, size: int, rows: tuple[int, ...]
) -> None:
    each = [np.atleast_1d(a)[:1] for a in EVERYTHING.values() if a.size]
    each.append(np.zeros((1, 0, 2)))

    def check() -> None:
        for row in each:
            mine = np.repeat(row, rows[ring().rank], axis=0)
            found = ring().gather_array(mine)
            same(found, np.repeat(row, sum(rows[:size]), axis=0))
            assert found.flags.writeable

    cluster(size).run(check)


def test_gather_array_in_rank_order(cluster: Clusters, size: int) -> None:
    def check() -> np.ndarray:
        rank = ring().rank
        return ring().gather_array(np.full((rank + 1, 2), rank))

    expected = np.array([[r, r] for r in range(size) for _ in range(r + 1)])
    for found in cluster(size).run(check):
        same(found, expected)


def test_gather_bytes(cluster: Clusters, size: int) -> None:
    every = [b"", b"\x00\xff" * 100_000, b"x"][:size]
    found = cluster(size).run(
        lambda data: ring().gather_bytes(data), PerRank(every)
    )
    assert found == [every] * size


def test_gather_values(cluster: Clusters, size: int) -> None:
    every = ["Größe \U0001f600 \x00", {"é": [1, None, 2.5]}, BIG][:size]
    found = cluster(size).run(
        lambda value: ring().gather_values(value), PerRank(every)
    )
    assert found == [every] * size


def test_gather_values_that_are_not_finite(cluster: Clusters) -> None:
    found = cluster(2).run(
        lambda v: ring().gather_values(v), PerRank([math.nan, -math.inf])
    )
    assert [math.isnan(a) and b == -math.inf for a, b in found] == [True, True]


@pytest.mark.parametrize("root", [0, 1])
def test_broadcast_object(cluster: Clusters, size: int, root: int) -> None:
    def check() -> tuple[Any, bool]:
        rank = ring().rank
        # What is not the root's need not be fit for pickling.
        mine = SETTINGS if rank == root else (lambda: None)
        found = ring().broadcast_object(mine, root)
        return found, found is mine

    for rank, (found, is_mine) in enumerate(cluster(size).run(check)):
        assert found == SETTINGS
        assert is_mine == (rank == root)


def test_an_object_that_cannot_be_pickled(cluster: Clusters) -> None:
    first, second = cluster(2).run_outcomes(
        lambda: ring().broadcast_object(lambda: None, 1)
    )
    assert first.error_type == "ValueError"
    assert "rank 1 cannot be pickled" in first.error_text
    assert second.error_type in ("PicklingError", "AttributeError")
    assert "lambda" in second.error_text


def test_barrier_waits(cluster: Clusters, tmp_path: Path) -> None:
    def check() -> list[bool]:
        seen = []
        for turn in range(20):
            last = turn % 3
            file = tmp_path / str(turn)
            if ring().rank == last:
                file.write_text("here")
            ring().barrier()
            seen.append(file.exists())
        return seen

    assert cluster(3).run(check) == [[True] * 20] * 3


def alone() -> AloneCollectives:
    return AloneCollectives()


def test_alone_has_rank_0_of_1() -> None:
    assert (alone().rank, alone().size) == (0, 1)


@pytest.mark.parametrize("name", EVERYTHING)
def test_arrays_alone(name: str) -> None:
    array = EVERYTHING[name]
    (found,) = alone().broadcast_arrays([array])
    same(found, array)
    same(alone().gather_array(array), np.ascontiguousarray(array))
    if array.dtype.kind in "fiucb":
        (total,) = alone().sum_arrays([array])
        same(total, array)
        assert not np.shares_memory(total, array)


def test_values_alone() -> None:
    thing = object()
    assert alone().gather_bytes(b"\x00a") == [b"\x00a"]
    assert alone().gather_values({"é": [1]}) == [{"é": [1]}]
    assert alone().broadcast_object(SETTINGS) is SETTINGS
    alone().barrier()
    with pytest.raises(ValueError, match="root=1"):
        alone().broadcast_object(thing, 1)


def test_tensors_alone() -> None:
    from keras import ops

    given = [ops.ones((2, 3)), ops.zeros((), "int32")]
    assert alone().start_all_reduce(given, "n").wait() == given
    assert alone().all_reduce(given, "n")[0] is given[0]
    assert alone().broadcast(given, "n")[1] is given[1]
    assert alone().all_gather(given[0], "n") is given[0]
    assert tuple(alone().all_gather(given[1], "n").shape) == (1,)
