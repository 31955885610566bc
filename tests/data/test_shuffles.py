"""Shuffles of `tf.data`: one order for all replicas, a new one each epoch."""

import numpy as np
import pytest

from tests.data import pipelines
from tests.data.pipelines import BATCH
from tests.data.pipelines import ROWS
from tests.data.pipelines import flat
from tests.data.pipelines import joined
from tests.pool import PerRank

pytestmark = pytest.mark.needs("tensorflow")


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


def seeded_unlike_inside(folder):
    import tensorflow as tf

    from keras_mwms import world

    seed = world.join().ring.rank + 1
    return pipelines.parsed(
        pipelines.names(folder, [ROWS]).flat_map(
            lambda name: tf.data.TFRecordDataset(name).shuffle(ROWS, seed)
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
    seeded_unlike_inside,
    beside_a_python_function,
    beside_a_generator,
    beside_variables,
]


def three_epochs(make, folder):
    from keras_mwms.data import policy_of

    pipelines.without_a_global_seed()
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
