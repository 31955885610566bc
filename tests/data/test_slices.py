"""Which rows of a global batch belong to which replica."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_mwms.data.slices import leaves_someone_empty
from keras_mwms.data.slices import rows_of
from keras_mwms.data.slices import slice_of


def steps(rows, batch_size, replica, replicas):
    """The rows that a replica takes in each step of an epoch."""
    return [
        list(batch[slice_of(len(batch), replicas, replica)])
        for start in range(0, rows, batch_size)
        for batch in [range(start, min(start + batch_size, rows))]
    ]


@pytest.mark.parametrize(
    ("rows", "batch_size", "expected"),
    [
        (
            12,
            4,
            [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]],
        ),
        (10, 4, [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]),
        (9, 4, [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], []]]),
        (10, 5, [[[0, 1, 2], [5, 6, 7]], [[3, 4], [8, 9]]]),
    ],
)
def test_two_replicas(rows, batch_size, expected):
    got = [steps(rows, batch_size, replica, 2) for replica in range(2)]
    assert got == expected


@pytest.mark.parametrize(
    ("batch_size", "replicas", "expected"),
    [
        (7, 3, [3, 3, 1]),
        (4, 3, [2, 2, 0]),
        (1, 2, [1, 0]),
        (3, 4, [1, 1, 1, 0]),
        (5, 1, [5]),
        (0, 2, [0, 0]),
    ],
)
def test_sizes(batch_size, replicas, expected):
    parts = [slice_of(batch_size, replicas, r) for r in range(replicas)]
    assert [part.stop - part.start for part in parts] == expected


@given(rows=st.integers(0, 10_000), replicas=st.integers(1, 300))
def test_slices_partition_the_batch_in_order(rows, replicas):
    parts = [slice_of(rows, replicas, r) for r in range(replicas)]
    joined = [i for part in parts for i in range(rows)[part]]
    assert joined == list(range(rows))
    assert all(0 <= part.start <= part.stop <= rows for part in parts)
    sizes = [part.stop - part.start for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == math.ceil(rows / replicas)


@given(
    rows=st.integers(1, 60),
    batch_size=st.integers(1, 60),
    replicas=st.integers(1, 9),
)
def test_whether_someone_is_left_without_rows(rows, batch_size, replicas):
    empty = any(
        not taken
        for replica in range(replicas)
        for taken in steps(rows, batch_size, replica, replicas)
    )
    assert leaves_someone_empty(rows, batch_size, replicas) == empty


@given(st.integers(1, 300), st.integers(1, 40))
def test_numbers_of_rows_are_those_of_the_slices(rows, replicas):
    slices = [range(rows)[slice_of(rows, replicas, r)] for r in range(replicas)]
    got = rows_of(rows, replicas)
    assert got.tolist() == [len(part) for part in slices]
    assert got.dtype == "int32"
