"""Data of every kind with the same rows, and what each replica reads.

Row i has the features `[i, i]` and the target `i`.
"""

import itertools
import pathlib

import numpy as np
import pytest


def _needs(kind, *modules):
    return pytest.param(kind, marks=pytest.mark.needs(*modules))


ALL = [
    "generator",
    "py_dataset",
    "adapter",
    _needs("loader", "torch"),
    _needs("grain", "grain"),
    _needs("tf_data", "tensorflow"),
    _needs("unknown", "tensorflow"),
]

# By OFF and HINT, each replica's batches are its part of a step. Those of
# `tf.data` are cut, as `tf.distribute` does.
GIVEN_AS_THEY_ARE = [
    "generator",
    "py_dataset",
    "adapter",
    _needs("loader", "torch"),
    _needs("grain", "grain"),
]


def rows_xy(rows):
    x = np.repeat(np.arange(rows, dtype="float32")[:, None], 2, axis=1)
    return x, np.arange(rows, dtype="float32")


def batches(rows, size):
    return rows_in_batches(range(rows), size)


def rows_in_batches(rows, size):
    """A generator of batches of these rows."""
    y = np.array(rows, "float32")
    x = np.repeat(y[:, None], 2, axis=1)
    for start in range(0, len(y), size):
        yield x[start : start + size], y[start : start + size]


def generator(rows, size):
    return batches(rows, size)


def py_dataset(rows, size, **options):
    import keras

    class Data(keras.utils.PyDataset):
        def __init__(self):
            super().__init__(**options)
            self.batches = list(batches(rows, size))

        def __len__(self):
            return len(self.batches)

        def __getitem__(self, index):
            return self.batches[index]

    return Data()


def adapter(rows, size):
    """A user's own, of NumPy arrays or what the backend takes."""
    import keras
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter

    class Own(DataAdapter):
        num_batches = -(-rows // size)
        batch_size = size
        has_partial_batch = rows % size > 0
        partial_batch_size = rows % size or None

        def get_jax_iterator(self):
            return batches(rows, size)

        def get_tf_dataset(self):
            return tf_data(rows, size)

        def get_torch_dataloader(self):
            return (
                tuple(map(keras.ops.convert_to_tensor, batch))
                for batch in batches(rows, size)
            )

    return Own()


def loader(rows, size, **options):
    import torch

    x, y = map(torch.from_numpy, rows_xy(rows))
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=size, **options
    )


def grain(rows, size):
    import grain

    x, y = rows_xy(rows)
    return grain.MapDataset.range(rows).map(lambda i: (x[i], y[i])).batch(size)


def tf_data(rows, size):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(rows_xy(rows)).batch(size)


def numpy_rows(rows, size):
    import keras_mwms

    return keras_mwms.experimental_make_numpy_dataset(rows_xy(rows)).batch(size)


def unknown(rows, size):
    """A pipeline whose length TensorFlow does not know."""
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(rows_xy(rows))
    return data.filter(lambda x, y: True).batch(size)


def tf_records(folder, counts, size):
    """Files of so many rows each, numbered on through all files."""
    import tensorflow as tf

    folder = pathlib.Path(folder)
    numbers = itertools.count()
    paths = []
    for i, count in enumerate(counts):
        paths.append(str(folder / f"{i}.tfrecord"))
        with tf.io.TFRecordWriter(paths[-1]) as file:
            for number in itertools.islice(numbers, count):
                file.write(str(number).encode())

    def parse(text):
        y = tf.strings.to_number(text)
        return tf.stack([y, y]), y

    return tf.data.TFRecordDataset(paths).map(parse).batch(size)


def recorded(x, y=None, **options):
    """The own rows of this replica, step by step, of one pass.

    Returns:
        A list with a list of row numbers for each step.
    """
    from keras_mwms import data
    from keras_mwms import world

    ring = world.join().ring
    adapter = data.shard(ring, x, y, **options)
    return rows_of_pass(adapter, ring.rank)


def rows_of_pass(adapter, rank, limit=None):
    """The own rows of a replica, step by step, of a pass of an adapter."""
    import keras

    start = {
        "jax": "get_jax_iterator",
        "tensorflow": "get_tf_dataset",
        "torch": "get_torch_dataloader",
    }[keras.backend.backend()]
    steps = []
    try:
        started = iter(getattr(adapter, start)())
        for batch in itertools.islice(started, limit):
            own = int(np.asarray(batch.rows)[rank])
            y = np.asarray(batch.data[1])
            assert len(y) == max(own, 1)
            assert np.array_equal(np.asarray(batch.data[0])[:, 0], y)
            steps.append([int(i) for i in y[:own]])
    except Exception as error:
        if "End of the data" not in str(error):
            raise
    return steps
