"""How much memory batches take, and whose it is."""

import numpy as np
import pytest


def sizes():
    import keras
    import pandas
    import scipy.sparse

    from keras_mwms.data import leaves

    of_backend = keras.ops.zeros((3, 2), "float32")
    batch = {
        "numpy": np.zeros((3, 5), "int16"),
        "none": None,
        "backend": (of_backend,),
    }
    sparse = scipy.sparse.csr_matrix(np.eye(3, dtype="float32"))
    frame = pandas.DataFrame({"a": np.zeros(3), "b": np.zeros(3)})
    return tuple(map(leaves.bytes_in, (batch, sparse, frame)))


def test_bytes_of_arrays(cluster):
    assert cluster(1).run(sizes) == [(3 * 5 * 2 + 3 * 2 * 4, 3 * 4, 3 * 16)]


def sizes_of_composites():
    import tensorflow as tf

    from keras_mwms.data import leaves

    ragged = tf.RaggedTensor.from_row_lengths(
        tf.zeros(5, tf.float16), tf.constant([2, 3], tf.int64)
    )
    return leaves.bytes_in(ragged), leaves.bytes_in(tf.sparse.eye(2, 3))


@pytest.mark.needs("tensorflow")
def test_bytes_of_composites(cluster):
    ragged = 5 * 2 + 3 * 8
    sparse = 2 * 2 * 8 + 2 * 4 + 2 * 8
    assert cluster(1).run(sizes_of_composites) == [(ragged, sparse)]


def copies():
    import keras

    from keras_mwms.data import leaves

    row = np.zeros(4)
    tensor = keras.ops.zeros(4)
    batch = leaves.copied({"row": row[1:3], "none": None, "tensor": tensor})
    row[:] = 1
    if keras.backend.backend() == "torch":
        tensor.fill_(1)
    return batch["row"], batch["none"], np.asarray(batch["tensor"])


def test_copies_share_no_memory(cluster):
    ((row, none, tensor),) = cluster(1).run(copies)
    assert row.tolist() == [0, 0]
    assert none is None
    assert tensor.tolist() == [0] * 4
