"""Where a replica stands among those of its host."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_mwms.cluster.spec import Placement
from keras_mwms.cluster.spec import place

HOSTS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("hosts", "placements"),
    [
        ("a", [(0, 1, 0, 1)]),
        ("ab", [(0, 1, 0, 2), (0, 1, 1, 2)]),
        (
            "aabb",
            [(0, 2, 0, 2), (1, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2)],
        ),
        (
            "abab",
            [(0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 0, 2), (1, 2, 1, 2)],
        ),
        ("baab", [(0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 0, 2), (1, 2, 1, 2)]),
        # Host a has no second replica: that of b is alone at its number.
        ("abb", [(0, 1, 0, 2), (0, 2, 1, 2), (1, 2, 0, 1)]),
    ],
)
def test_place(hosts, placements):
    found = [place(tuple(hosts), rank) for rank in range(len(hosts))]
    assert found == [Placement(*placement) for placement in placements]


@given(HOSTS)
def test_local_ranks_count_up_on_every_host(hosts):
    placements = [place(tuple(hosts), rank) for rank in range(len(hosts))]
    for host in set(hosts):
        here = [p for p, h in zip(placements, hosts, strict=True) if h == host]
        assert [p.local_rank for p in here] == list(range(len(here)))
        assert {p.local_size for p in here} == {len(here)}


@given(HOSTS)
def test_cross_ranks_count_up_over_the_hosts(hosts):
    placements = [place(tuple(hosts), rank) for rank in range(len(hosts))]
    for local_rank in {p.local_rank for p in placements}:
        row = [p for p in placements if p.local_rank == local_rank]
        having = sum(hosts.count(h) > local_rank for h in set(hosts))
        assert [p.cross_rank for p in row] == list(range(having))
        assert {p.cross_size for p in row} == {having}


def test_a_large_cluster_is_placed_in_linear_time():
    hosts = tuple(f"host{i // 8}" for i in range(100_000))
    start = time.process_time()
    assert place(hosts, 99_999) == Placement(7, 8, 12_499, 12_500)
    assert time.process_time() - start < 5  # seconds; quadratic: minutes
