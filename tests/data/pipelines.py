"""`tf.data` pipelines of rows 0, 1, 2, ..., and what replicas get of them.

Row i has the features `[i, i]` and the target `i`. TensorFlow is imported by
the functions: these tests are collected where it is not installed, too.
"""

import gzip
import itertools
import pathlib
import warnings

import numpy as np

ROWS, BATCH = 10, 4
# Rows of each file: ROWS in all.
COUNTS = (3, 2, 4, 1)


def write(folder, suffix, counts=COUNTS):
    """Writes files of numbered rows, returns their paths."""
    import tensorflow as tf

    numbers = itertools.count()
    paths = []
    for i, count in enumerate(counts):
        rows = list(itertools.islice(numbers, count))
        path = pathlib.Path(folder) / f"{i:02}.{suffix}"
        paths.append(str(path))
        if suffix.startswith("tfrecord"):
            kind = "GZIP" if suffix.endswith("gz") else ""
            with tf.io.TFRecordWriter(paths[-1], kind) as file:
                for row in rows:
                    file.write(str(row).encode())
            continue
        end = "" if suffix.startswith("fixed") else "\n"
        text = "".join(f"{row:04}{end}" for row in rows).encode()
        path.write_bytes(gzip.compress(text) if ".gz" in path.name else text)
    return paths


def parsed(lines):
    """Rows of x and y from their numbers in words."""
    import tensorflow as tf

    def parse(text):
        y = tf.strings.to_number(text)
        return tf.stack([y, y]), y

    return lines.map(parse)


def records(folder, counts=COUNTS, **options):
    import tensorflow as tf

    paths = write(folder, "tfrecord", counts)
    return tf.data.TFRecordDataset(paths, **options)


def names(folder, counts=COUNTS):
    import tensorflow as tf

    paths = write(folder, "tfrecord", counts)
    return tf.data.Dataset.from_tensor_slices(paths)


def rows_of_arrays(rows=ROWS):
    import tensorflow as tf

    y = np.arange(rows, dtype="float32")
    return tf.data.Dataset.from_tensor_slices((np.stack([y, y], 1), y))


def with_hint(rows):
    import tensorflow as tf

    hint = tf.data.experimental.SHARD_HINT
    return rows.shard(hint, hint)


def without_a_global_seed():
    """Another test of this process may have set one."""
    import tensorflow as tf

    tf.random.set_seed(None)


def told_by(function, *args):
    """What a function returns, and what it warns of."""
    from keras_mwms.data import notes

    # Another test may have heard it in this process.
    notes._told.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*args)
    told = [str(w.message) for w in caught]
    return result, [text for text in told if "tf.data" in text]


def epochs_of(dataset, epochs=1, **options):
    """The own rows of this replica, by epoch and by step.

    Args:
        dataset: batches; their last leaf numbers the rows.
        epochs: how many passes.
        **options: for `data.shard`.
    """
    from keras_mwms import data
    from keras_mwms import world

    ring = world.join().ring
    adapter = data.shard(ring, dataset, epochs=epochs, **options)
    return [own_rows(adapter, ring.rank) for _ in range(epochs)]


def own_rows(adapter, rank):
    import keras

    steps = []
    for batch in batches_of(adapter):
        own = int(np.asarray(batch.rows)[rank])
        leaf = keras.tree.flatten(batch.data)[-1]
        y = np.asarray(keras.ops.convert_to_numpy(leaf)).reshape(-1)
        assert len(y) == max(own, 1)
        steps.append([int(i) for i in y[:own]])
    return steps


def batches_of(adapter):
    """A pass over what an adapter feeds."""
    import keras

    start = {
        "jax": "get_jax_iterator",
        "tensorflow": "get_tf_dataset",
        "torch": "get_torch_dataloader",
    }[keras.backend.backend()]
    iterator = iter(getattr(adapter, start)())
    while True:
        try:
            yield next(iterator)
        except Exception as error:
            # So a stream tells Keras's TensorFlow trainer.
            if isinstance(error, StopIteration) or "End of" in str(error):
                return
            raise


def error_or(function, *args, errors=ValueError, **options):
    """What a function returns, or the words of its error."""
    try:
        return function(*args, **options)
    except errors as error:
        return str(error)


def flat(steps):
    return [row for step in steps for row in step]


def joined(of_replicas):
    """The global batches of an epoch, from each replica's steps."""
    return [flat(parts) for parts in zip(*of_replicas, strict=True)]


def one_process(rows=ROWS, batch=BATCH):
    """The batches of rows in their order."""
    return [
        list(range(start, min(start + batch, rows)))
        for start in range(0, rows, batch)
    ]
