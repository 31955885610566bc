"""Readers and operations of `tf.data`: every row once an epoch."""

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
