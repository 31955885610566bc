"""What is relied on of how TensorFlow writes pipelines as graphs."""

import gc

import numpy as np
import pytest

pytestmark = pytest.mark.needs("tensorflow")


def rows(number=6):
    import tensorflow as tf

    return tf.data.Dataset.range(number)


def graph_of(dataset):
    from keras_mwms.data import tf_graph

    return tf_graph.Graph(dataset)


def ints(dataset):
    return [int(x) for x in dataset.as_numpy_iterator()]


def of_arrays():
    """Pipelines without files, each with one or two shuffles."""
    import tensorflow as tf

    arrays = tf.data.Dataset.from_tensor_slices(np.arange(6))
    return {
        "arrays": arrays.shuffle(6),
        "seeded": arrays.shuffle(6, seed=3),
        "again": arrays.shuffle(6, seed=3).repeat(2).shuffle(4),
        "batches": arrays.batch(2).cache().shuffle(3).prefetch(1),
        "parallel": arrays.shuffle(6).map(lambda x: x, num_parallel_calls=2),
        "padded": arrays.shuffle(6).padded_batch(2),
        "parallel batch": arrays.shuffle(6).batch(2, num_parallel_calls=2),
        "joined": tf.data.Dataset.zip(arrays, arrays.shuffle(6, seed=1))
        .map(lambda x, y: y)
        .concatenate(arrays.shuffle(6)),
        "chosen": arrays.shuffle(6)
        .filter(lambda x: x > 1)
        .take_while(lambda x: x < 9)
        .skip(1)
        .take(3)
        .batch(2)
        .unbatch(),
        "with options": arrays.shuffle(6).with_options(tf.data.Options()),
        "one": tf.data.Dataset.from_tensors(1).shuffle(2),
        "numbers": rows().shuffle(6),
    }


def test_shuffles_over_arrays_are_found_by_both_ways():
    from keras_mwms.data import tf_pipeline

    for name, dataset in of_arrays().items():
        seeds = tf_pipeline.seeds_of_arrays(dataset)
        assert seeds is not None, name
        assert seeds == graph_of(dataset).seeds(), name
        assert not any(graph_of(dataset).are_inside()), name


def test_what_is_not_known_to_be_arrays_needs_the_graph():
    import tensorflow as tf

    from keras_mwms.data import tf_pipeline

    read = tf.data.TFRecordDataset(["a"])
    any_order = rows().map(
        lambda x: x, num_parallel_calls=2, deterministic=False
    )
    hint = tf.data.experimental.SHARD_HINT
    for dataset in (
        read,
        read.shuffle(3).batch(2),
        tf.data.Dataset.zip(rows(), read),
        rows().flat_map(lambda x: tf.data.Dataset.from_tensors(x)),
        rows().shard(hint, hint),
        any_order,
        any_order.batch(2),
    ):
        assert tf_pipeline.seeds_of_arrays(dataset) is None
    assert graph_of(any_order).make_deterministic() == 1


def test_seeds_are_set_outside_and_inside_of_functions():
    dataset = rows(2).flat_map(lambda x: rows().shuffle(6)).shuffle(6)
    graph = graph_of(dataset)
    assert graph.seeds() == [[0, 0], [0, 0]]
    assert graph.are_inside() == [False, True]

    def orders(seeds):
        graph.set_seeds(seeds)
        changed = graph.dataset()
        return ints(changed), ints(changed)

    first, second = orders([[1, 2], [3, 4]])
    assert first != second
    assert orders([[1, 2], [3, 4]]) == (first, second)
    assert orders([[1, 2], [3, 5]]) != (first, second)
    assert orders([[1, 3], None]) != orders([[1, 2], None])
    # The user's own is as it was.
    assert graph_of(dataset).seeds() == [[0, 0], [0, 0]]


def test_functions_are_counted_as_they_stand_in_the_pipeline():
    import tensorflow as tf

    def inside(seed):
        return rows(2).flat_map(lambda x: rows().shuffle(6, seed=seed))

    first, second = inside(1), inside(2)
    there = graph_of(tf.data.Dataset.zip(first, second)).seeds()
    back = graph_of(tf.data.Dataset.zip(second, first)).seeds()
    assert there == back[::-1]
    assert [pair[1] for pair in there] == [1, 2]


def test_a_hint_can_be_followed_and_left_out():
    import tensorflow as tf

    hint = tf.data.experimental.SHARD_HINT
    for size, rank, expected in (
        (2, 1, [1, 3, 5]),
        (7, 6, []),
        (1, 0, [0, 1, 2, 3, 4, 5]),
    ):
        graph = graph_of(rows().shard(hint, hint))
        assert graph.has_hint()
        graph.follow_hints(size, rank)
        assert not graph.has_hint()
        assert ints(graph.dataset()) == expected
    assert not graph_of(rows().shard(2, 1)).has_hint()


def test_python_functions_work_in_what_is_made_anew():
    import tensorflow as tf

    def numbers():
        yield from range(3)

    spec = tf.TensorSpec((), tf.int64)
    made = tf.data.Dataset.from_generator(numbers, output_signature=spec)
    made = made.map(lambda x: tf.py_function(lambda y: y + 1, [x], tf.int64))
    made = made.map(lambda x: tf.numpy_function(np.negative, [x], tf.int64))
    again = graph_of(made).dataset()
    gc.collect()
    assert ints(again) == [-1, -2, -3]


def test_files_are_counted_before_they_repeat(tmp_path):
    import tensorflow as tf

    paths = [str(tmp_path / name) for name in ("a", "b", "c")]
    names = tf.data.Dataset.from_tensor_slices(paths)
    read = tf.data.TFRecordDataset
    mapped = names.map(lambda name: name + "").shuffle(3, seed=1)

    def counts(dataset):
        return [len(files) for files in graph_of(dataset).files()]

    assert counts(read(paths)) == [3]
    assert counts(read("a")) == [1]
    assert counts(read(paths, num_parallel_reads=2).batch(2)) == [3]
    assert counts(names.repeat().interleave(read)) == [3]
    assert counts(names.repeat(2).repeat().flat_map(read).repeat()) == [3]
    assert counts(mapped.interleave(read, num_parallel_calls=2)) == [3]
    assert counts(tf.data.Dataset.zip(read(paths), read(paths[:2]))) == [3, 2]
    assert counts(rows()) == []
    assert counts(names.map(tf.io.read_file)) == []
    # Only names are compared: folders of replicas differ.
    (there,) = graph_of(read(["x/a", "x/b"])).files()
    (here,) = graph_of(read(["y/z/a", "y/z/b"])).files()
    (other,) = graph_of(read(["x/b", "x/a"])).files()
    assert there == here == other[::-1]
    assert there[0] != there[1]
