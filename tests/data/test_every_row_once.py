"""Each policy of `tf.data` with 1, 2 and 3 replicas: each row is used once."""

import pytest

from tests.data import kinds
from tests.data import pipelines
from tests.data.pipelines import flat
from tests.data.pipelines import joined
from tests.pool import PerRank

pytestmark = pytest.mark.needs("tensorflow")

# Rows of each file, and the global batch size: what divides by every number of
# replicas, what does not, and fewer rows than replicas.
CASES = (((6, 6, 6), 6), ((4, 4, 4, 4), 12), ((5, 3, 7), 4), ((1, 0, 1), 4))
POLICIES = ("FILE", "AUTO", "DATA", "HINT", "OFF")


def read(folder):
    """What a replica reads in each case, by each policy."""
    from keras_mwms import world
    from keras_mwms.data import policy_of

    ring = world.join().ring
    results = []
    for counts, size in CASES:
        for policy in POLICIES:
            data = kinds.tf_records(folder, counts, size)
            if policy in ("HINT", "OFF"):
                rows = pipelines.records(folder, counts)
                is_hint = policy == "HINT"
                rows = pipelines.with_hint(rows) if is_hint else own(rows, ring)
                data = pipelines.parsed(rows).batch(size)
            results.append(kinds.recorded(data, policy=policy_of(policy)))
    return results


def own(rows, ring):
    """The part of a replica that sees to it itself."""
    return rows.shard(ring.size, ring.rank)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_each_row_once_in_as_many_steps(cluster, tmp_path_factory, replicas):
    folders = [str(tmp_path_factory.mktemp("files")) for _ in range(replicas)]
    results = zip(*cluster(replicas).run(read, PerRank(folders)), strict=True)
    cases = [(*case, policy) for case in CASES for policy in POLICIES]
    for (counts, size, policy), of_replicas in zip(cases, results, strict=True):
        case = counts, size, policy
        total = sum(counts)
        assert len({len(steps) for steps in of_replicas}) == 1, case
        steps = joined(of_replicas)
        assert sorted(flat(steps)) == list(range(total)), case
        # No step has more rows than one of one process, and none has none.
        assert all(0 < len(step) <= size for step in steps), case
        if policy == "DATA" or replicas == 1:
            assert steps == pipelines.one_process(total, size), case
        if policy == "FILE":
            assert_by_file(of_replicas, counts)


def assert_by_file(of_replicas, counts):
    """Replica r of n reads the files r, r + n, ... in their order."""
    starts = [sum(counts[:i]) for i in range(len(counts))]
    files = [
        list(range(start, start + count))
        for start, count in zip(starts, counts, strict=True)
    ]
    for rank, steps in enumerate(of_replicas):
        expected = [row for f in files[rank :: len(of_replicas)] for row in f]
        assert flat(steps) == expected, counts


def of_unknown_size():
    """A replica's own batch of five rows, whose size is not known before."""
    import tensorflow as tf

    from keras_mwms.data import policy_of

    def batches():
        yield kinds.rows_xy(5)

    shapes = tf.TensorSpec((None, 2)), tf.TensorSpec((None,))
    data = tf.data.Dataset.from_generator(batches, output_signature=shapes)
    return kinds.recorded(data, policy=policy_of("OFF"))


def test_batches_of_unknown_size_are_cut_in_turn(cluster):
    # Together five rows in each step, as many as a batch has.
    assert cluster(3).run(of_unknown_size) == [
        [[0, 1], [2, 3], [4]],
        [[0, 1], [2], [3, 4]],
        [[0], [1, 2], [3, 4]],
    ]
