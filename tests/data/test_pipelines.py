"""Readers, shuffles and operations of `tf.data`: every row once an epoch."""

import itertools

import numpy as np
import pytest

from tests.data import pipelines
from tests.data.pipelines import BATCH
from tests.data.pipelines import ROWS
from tests.data.pipelines import flat
from tests.data.pipelines import joined
from tests.pool import PerRank

pytestmark = pytest.mark.needs("tensorflow")


# Pipelines of files ---------------------------------------------------------


def tfrecord(folder):
    return pipelines.records(folder)


def tfrecord_gzip(folder):
    import tensorflow as tf

    paths = pipelines.write(folder, "tfrecord.gz")
    return tf.data.TFRecordDataset(paths, compression_type="GZIP")


def parallel_reads(folder):
    return pipelines.records(folder, num_parallel_reads=2)


def text(folder):
    import tensorflow as tf

    return tf.data.TextLineDataset(pipelines.write(folder, "txt"))


def text_gzip(folder):
    import tensorflow as tf

    paths = pipelines.write(folder, "txt.gz")
    return tf.data.TextLineDataset(paths, compression_type="GZIP")


def fixed_length(folder):
    import tensorflow as tf

    paths = pipelines.write(folder, "fixed")
    return tf.data.FixedLengthRecordDataset(paths, 4)


def interleave(folder):
    import tensorflow as tf

    return pipelines.names(folder).interleave(
        tf.data.TFRecordDataset, cycle_length=2
    )


def interleave_in_any_order(folder):
    import tensorflow as tf

    return pipelines.names(folder).interleave(
        tf.data.TFRecordDataset,
        cycle_length=3,
        num_parallel_calls=2,
        deterministic=False,
    )


def flat_map(folder):
    import tensorflow as tf

    return pipelines.names(folder).flat_map(tf.data.TFRecordDataset)


def list_files(folder):
    import tensorflow as tf

    pipelines.write(folder, "tfrecord")
    return tf.data.Dataset.list_files(
        f"{folder}/*.tfrecord", shuffle=False
    ).interleave(tf.data.TFRecordDataset)


def mapped_in_any_order(folder):
    import tensorflow as tf

    return pipelines.records(folder).map(
        lambda text: text,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    )


FILES = [
    tfrecord,
    tfrecord_gzip,
    parallel_reads,
    text,
    text_gzip,
    fixed_length,
    interleave,
    interleave_in_any_order,
    flat_map,
    list_files,
    mapped_in_any_order,
]


def by_policies(make, folder):
    """What this replica gets by FILE, by DATA and by AUTO."""
    import keras_mwms.data

    return [
        pipelines.epochs_of(
            pipelines.parsed(make(folder)).batch(BATCH),
            policy=keras_mwms.data.policy_of(policy),
        )[0]
        for policy in ("FILE", "DATA", "AUTO")
    ]


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("make", FILES, ids=lambda make: make.__name__)
def test_files_of_a_kind(cluster, tmp_path_factory, make, replicas):
    folders = [str(tmp_path_factory.mktemp("f")) for _ in range(replicas)]
    by_file, by_data, by_auto = zip(
        *cluster(replicas).run(by_policies, make, PerRank(folders)),
        strict=True,
    )
    rows, first = list(range(ROWS)), 0
    starts = np.cumsum((0, *pipelines.COUNTS)).tolist()
    files = [rows[a:b] for a, b in itertools.pairwise(starts)]
    for rank in range(replicas):
        own = sorted(row for file in files[rank::replicas] for row in file)
        assert sorted(flat(by_file[rank])) == own
        assert sorted(flat(by_auto[rank])) == own
    assert len({len(steps) for steps in by_file}) == 1
    batches = joined(by_data)
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert sorted(flat(batches)) == rows
    if "any_order" not in make.__name__ and "list" not in make.__name__:
        assert batches[0][0] == first


# Shuffles that are not alike ------------------------------------------------


def of_arrays(folder):
    return pipelines.rows_of_arrays().shuffle(ROWS)


def of_records(folder):
    return pipelines.parsed(pipelines.records(folder).shuffle(ROWS))


def of_batches(folder):
    return pipelines.rows_of_arrays().batch(1).shuffle(ROWS).unbatch()


def of_file_names(folder):
    import tensorflow as tf

    pipelines.write(folder, "tfrecord", [1] * ROWS)
    return pipelines.parsed(
        tf.data.Dataset.list_files(f"{folder}/*").flat_map(
            tf.data.TFRecordDataset
        )
    )


def inside_of_interleave(folder):
    import tensorflow as tf

    return pipelines.parsed(
        pipelines.names(folder, [ROWS]).interleave(
            lambda name: tf.data.TFRecordDataset(name).shuffle(ROWS)
        )
    )


def sampled(folder):
    import tensorflow as tf

    rows = pipelines.rows_of_arrays()
    return tf.data.Dataset.sample_from_datasets(
        [rows.shard(5, i) for i in range(5)], rerandomize_each_iteration=True
    )


def seeded_unlike(folder):
    from keras_mwms import world

    seed = world.join().ring.rank + 1
    return pipelines.rows_of_arrays().shuffle(ROWS, seed=seed)


def beside_a_python_function(folder):
    import tensorflow as tf

    def same(x, y):
        y = tf.py_function(lambda y: y, [y], tf.float32)
        return x, tf.ensure_shape(y, ())

    return pipelines.rows_of_arrays().shuffle(ROWS).map(same)


def beside_a_generator(folder):
    import tensorflow as tf

    def numbers():
        for row in range(ROWS):
            yield np.full(2, row, "float32"), np.float32(row)

    spec = (tf.TensorSpec((2,)), tf.TensorSpec(()))
    return tf.data.Dataset.from_generator(
        numbers, output_signature=spec
    ).shuffle(ROWS)


def beside_variables(folder):
    import tensorflow as tf

    zero = tf.Variable(0.0)
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a"], [0.0]), 1.0
    )
    return (
        pipelines.rows_of_arrays()
        .shuffle(ROWS)
        .map(lambda x, y: (x + zero, y + table.lookup(tf.constant("a"))))
    )


SHUFFLED = [
    of_arrays,
    of_records,
    of_batches,
    of_file_names,
    inside_of_interleave,
    sampled,
    seeded_unlike,
    beside_a_python_function,
    beside_a_generator,
    beside_variables,
]


def three_epochs(make, folder):
    from keras_mwms.data import policy_of

    return pipelines.told_by(
        lambda: pipelines.epochs_of(
            make(folder).batch(BATCH), epochs=3, policy=policy_of("DATA")
        )
    )


@pytest.mark.parametrize("make", SHUFFLED, ids=lambda make: make.__name__)
def test_a_shuffle_is_made_common(cluster, tmp_path_factory, make):
    folders = [str(tmp_path_factory.mktemp("f")) for _ in range(2)]
    of_replicas, told = zip(
        *cluster(2).run(three_epochs, make, PerRank(folders)),
        strict=True,
    )
    orders = [flat(joined(steps)) for steps in zip(*of_replicas, strict=True)]
    for order in orders:
        assert sorted(order) == list(range(ROWS))
    assert not orders[0] == orders[1] == orders[2]
    assert ["common" in text for text in told[0]] == [True]
    assert told[1] == []


def alike(folder):
    """Two epochs of shuffles that are seeded alike, and a plain process's."""
    return pipelines.told_by(
        lambda: pipelines.epochs_of(
            pipelines.rows_of_arrays().shuffle(ROWS, seed=3).batch(BATCH), 2
        )
    ), [
        [[int(y) for y in batch] for _, batch in dataset.as_numpy_iterator()]
        for dataset in [
            pipelines.rows_of_arrays().shuffle(ROWS, seed=3).batch(BATCH)
        ]
        for _ in range(2)
    ]


def test_a_seeded_shuffle_is_left_alone(cluster):
    of_replicas = cluster(2).run(alike, "")
    (first, told), plain = of_replicas[0]
    (second, _), _ = of_replicas[1]
    assert not any("common" in text for text in told)
    assert [joined(steps) for steps in zip(first, second, strict=True)] == plain


# Operations (A38) -----------------------------------------------------------


def through_python(rows):
    import tensorflow as tf

    return rows.batch(BATCH).map(
        lambda x, y: tf.py_function(
            lambda x, y: (x, y), [x, y], [tf.float32, tf.float32]
        )
    )


def cached(rows):
    return rows.batch(BATCH).prefetch(2).cache()


def batched_again(rows):
    return rows.batch(3).unbatch().batch(BATCH)


def padded(rows):
    import tensorflow as tf

    return rows.map(
        lambda x, y: (tf.repeat(y, tf.cast(y, tf.int32) + 1), y)
    ).padded_batch(BATCH)


def bucketed(rows):
    import tensorflow as tf

    # Rows of two lengths, in buckets of two batch sizes.
    return rows.map(
        lambda x, y: (tf.fill([1 + tf.cast(y, tf.int32) % 2], y), y)
    ).bucket_by_sequence_length(
        lambda x, y: tf.shape(x)[0],
        bucket_boundaries=[2],
        bucket_batch_sizes=[4, 2],
    )


def repeated(rows):
    return rows.repeat(2).batch(BATCH)


def taken(rows):
    return rows.skip(3).take(5).batch(BATCH)


def filtered(rows):
    return rows.filter(lambda x, y: y != 4).batch(BATCH)


def drop_remainder(rows):
    return rows.batch(BATCH, drop_remainder=True)


OPERATIONS = [
    through_python,
    cached,
    batched_again,
    padded,
    bucketed,
    repeated,
    taken,
    filtered,
    drop_remainder,
]


def of_operations():
    """What this replica gets of each, and what one process reads."""
    rows = pipelines.rows_of_arrays()
    return [
        (
            pipelines.epochs_of(make(rows), epochs=2),
            [[int(y) for y in ys] for _, ys in make(rows).as_numpy_iterator()],
        )
        for make in OPERATIONS
    ]


@pytest.mark.parametrize("replicas", [2, 3])
def test_a38_batches_whatever_made_them(cluster, replicas):
    of_replicas = cluster(replicas).run(of_operations)
    for case, make in enumerate(OPERATIONS):
        alone = of_replicas[0][case][1]
        for epoch in range(2):
            steps = [each[case][0][epoch] for each in of_replicas]
            assert joined(steps) == alone, make.__name__


def of_what_cannot_be_split():
    """Errors for data that are no batches or have no end; rows with steps."""
    rows = pipelines.rows_of_arrays()
    endless = rows.batch(BATCH).repeat()
    unlike = rows.batch(BATCH).map(lambda x, y: (x, y[:1]))
    return (
        pipelines.error_or(pipelines.epochs_of, rows),
        pipelines.error_or(pipelines.epochs_of, endless),
        first_steps(endless, 4),
        pipelines.error_or(
            pipelines.epochs_of, unlike, errors=(ValueError, tf_error())
        ),
    )


def first_steps(dataset, steps):
    """The own rows in the first steps of data without end."""
    import keras_mwms.data
    from keras_mwms import world

    ring = world.join().ring
    adapter = keras_mwms.data.shard(ring, dataset, steps=steps)
    some = itertools.islice(pipelines.batches_of(adapter), steps)
    return [
        np.asarray(batch.data[1])[: int(np.asarray(batch.rows)[ring.rank])]
        .astype(int)
        .tolist()
        for batch in some
    ]


def tf_error():
    import tensorflow as tf

    return tf.errors.InvalidArgumentError


def test_a38_what_cannot_be_split(cluster):
    of_replicas = cluster(2).run(of_what_cannot_be_split)
    for unbatched, endless, _, unlike in of_replicas:
        assert "not batched" in unbatched
        assert "global batch size" in unbatched
        assert "no end" in endless
        assert "steps_per_epoch" in endless
        assert "same number of rows" in unlike
    steps = [each[2] for each in of_replicas]
    assert joined(steps) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]
