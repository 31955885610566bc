"""Every kind of data, by every policy: who reads which rows."""

import importlib.util

import pytest

from tests.data import kinds

SIZES = ((12, 4), (10, 4), (9, 4), (10, 5), (3, 4), (7, 3), (1, 2))


def sliced(kind):
    """What a replica reads, by each policy that slices global batches."""
    from keras_mwms.data import policy_of

    return [
        [
            kinds.recorded(
                getattr(kinds, kind)(rows, size), policy=policy_of(policy)
            )
            for rows, size in SIZES
        ]
        for policy in ("AUTO", "DATA")
    ]


def joined(of_replicas):
    """The global batches, from each replica's part of each step."""
    return [
        [row for part in parts for row in part]
        for parts in zip(*of_replicas, strict=True)
    ]


def flat(steps):
    return [row for step in steps for row in step]


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("kind", kinds.ALL)
def test_a_step_has_the_rows_of_one_process(cluster, kind, replicas):
    from keras_mwms.data import slices

    for of_policy in zip(*cluster(replicas).run(sliced, kind), strict=True):
        for case, (rows, size) in enumerate(SIZES):
            steps = [each[case] for each in of_policy]
            expected = in_batches(rows, size)
            assert joined(steps) == expected
            for step, batch in enumerate(expected):
                for rank in range(replicas):
                    own = slices.slice_of(len(batch), replicas, rank)
                    assert steps[rank][step] == batch[own]


def in_batches(rows, size):
    return [
        list(range(start, min(start + size, rows)))
        for start in range(0, rows, size)
    ]


class Hinted:
    """Data that shard themselves, into parts of unlike lengths."""

    def __init__(self, kind, rows, size):
        self.kind, self.rows, self.size = kind, rows, size

    def shard(self, num_shards, index):
        rows = own_rows(self.rows, index)
        return getattr(kinds, self.kind)(rows, self.size)


def own_rows(rows, rank):
    """Rows of a replica that has data of its own."""
    return max(rows - 4 * rank, 1)


def as_given(kind):
    """What a replica reads of data of its own, by both policies for that."""
    from keras_mwms import world
    from keras_mwms.data import policy_of

    rank = world.join().ring.rank
    steps = []
    for rows, size in SIZES:
        own = getattr(kinds, kind)(own_rows(rows, rank), size)
        steps.append(kinds.recorded(own, policy=policy_of("OFF")))
        hinted = Hinted(kind, rows, size)
        steps.append(kinds.recorded(hinted, policy=policy_of("HINT")))
    return steps


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("kind", kinds.GIVEN_AS_THEY_ARE)
def test_data_of_a_replicas_own_are_used_as_given(cluster, kind, replicas):
    of_replicas = cluster(replicas).run(as_given, kind)
    for case, (rows, size) in enumerate(SIZES):
        for rank, steps in enumerate(of_replicas):
            expected = in_batches(own_rows(rows, rank), size)
            # Until the last replica has ended.
            expected += [[]] * (-(-rows // size) - len(expected))
            assert steps[2 * case] == steps[2 * case + 1] == expected


def own_arrays():
    from keras_mwms import world
    from keras_mwms.data import policy_of

    rank = world.join().ring.rank
    return kinds.recorded(
        *kinds.rows_xy(own_rows(9, rank)),
        batch_size=4,
        policy=policy_of("OFF"),
    )


def test_arrays_of_a_replicas_own(cluster):
    assert cluster(3).run(own_arrays) == [
        [[0, 1, 2, 3], [4, 5, 6, 7], [8]],
        [[0, 1, 2, 3], [4], []],
        [[0], [], []],
    ]


def unlike():
    """The errors where replicas are given different data, or wrong ones."""
    from keras_mwms import data
    from keras_mwms import world
    from keras_mwms.data import policy_of

    ring = world.join().ring
    arrays = {"x": kinds.rows_xy(6)[0]}
    py_dataset = kinds.py_dataset
    cases = [
        ({"x": kinds.generator(8, 4)}, {"x": py_dataset(8, 4)}),
        (arrays, {"x": kinds.generator(8, 4)}),
        ({"x": py_dataset(12, 4)}, {"x": py_dataset(8, 4)}),
        (arrays, {"x": kinds.rows_xy(50)[0]}),
    ]
    if importlib.util.find_spec("tensorflow"):
        cases += [
            (arrays, {"x": kinds.tf_data(8, 4)}),
            ({"x": kinds.tf_data(8, 4)}, {"x": kinds.generator(8, 4)}),
        ]
    errors = []
    for case in cases:
        with pytest.raises(ValueError, match="given the same data") as raised:
            data.shard(ring, **case[ring.rank])
        errors.append(str(raised.value).partition("order: ")[2])
    with pytest.raises(ValueError, match="Received: an object without it"):
        data.shard(ring, kinds.generator(8, 4), policy=policy_of("HINT"))
    with pytest.raises(ValueError, match="cannot be split by the policy FILE"):
        data.shard(ring, kinds.generator(8, 4), policy=policy_of("FILE"))
    return errors


def test_unlike_data_are_named_on_all_replicas(cluster):
    chief, other = cluster(2).run(unlike)
    assert chief == other
    assert chief[:4] == [
        "a generator; a PyDataset of 2 batches",
        "arrays in 1 batches of 32; a generator",
        "a PyDataset of 3 batches; a PyDataset of 2 batches",
        "arrays in 1 batches of 32; arrays in 2 batches of 32",
    ]
    assert chief[4:] in (
        [],
        ["arrays; a tf.data.Dataset", "a tf.data.Dataset; a generator"],
    )
