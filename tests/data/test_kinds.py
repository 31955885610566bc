"""Every kind of data, by every policy: who reads which rows."""

import pytest

from tests.data import kinds

SIZES = ((12, 4), (10, 4), (9, 4), (10, 5), (3, 4), (7, 3), (1, 2))


def sliced(kind):
    return [
        kinds.recorded(getattr(kinds, kind)(rows, size)) for rows, size in SIZES
    ]


def joined(of_replicas):
    """The global batches, from each replica's part of each step."""
    return [
        [row for part in parts for row in part]
        for parts in zip(*of_replicas, strict=True)
    ]


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("kind", kinds.ALL)
def test_a_step_has_the_rows_of_one_process(cluster, kind, replicas):
    from keras_mwms.data import slices

    of_replicas = cluster(replicas).run(sliced, kind)
    for case, (rows, size) in enumerate(SIZES):
        steps = [each[case] for each in of_replicas]
        expected = [
            list(range(start, min(start + size, rows)))
            for start in range(0, rows, size)
        ]
        assert joined(steps) == expected
        for step, batch in enumerate(expected):
            for rank in range(replicas):
                own = slices.slice_of(len(batch), replicas, rank)
                assert steps[rank][step] == batch[own]
