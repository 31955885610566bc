"""Rows are taken as Keras would have given them, and no others."""

import numpy as np
import pytest

from tests.data import memory
from tests.data.test_arrays import batches_of
from tests.data.test_arrays import epoch_of
from tests.data.test_arrays import sharded

ROWS = 7


def tensor(array):
    """A tensor of the backend, of the array's own dtype."""
    import keras

    return keras.ops.convert_to_tensor(array, dtype=str(array.dtype))


def frame(array):
    import pandas as pd

    return pd.DataFrame(array, columns=["a", "b"])


def mixed_frame(array):
    return frame(array).astype({"a": "float64", "b": "int64"})


def series(array):
    import pandas as pd

    return pd.Series(array[:, 0], index=np.arange(ROWS)[::-1])


def scipy_sparse(array):
    from scipy import sparse

    return sparse.coo_matrix(array * (array > 3))


def objects(array):
    return array.astype(object)


KINDS = {
    "array": lambda array: array,
    "tensor": tensor,
    "frame": frame,
    "mixed frame": mixed_frame,
    "series": series,
    "sparse": scipy_sparse,
}


def numbers(dtype):
    return np.arange(2 * ROWS).reshape(ROWS, 2).astype(dtype)


def of_keras(x, backend, read=None):
    from keras_mwms import _keras

    plain = _keras.array_adapter(x, batch_size=3)
    return [(read or dense)(batch) for batch in batches_of(plain, backend)]


def dense(tensor):
    """The kind of tensor, its dtype, and its values."""
    import keras

    kind = type(tensor).__name__
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if hasattr(tensor, "todense"):
        tensor = tensor.todense()
    return kind, dtype, keras.ops.convert_to_numpy(tensor)


def assert_as_keras(x, backend):
    """Two replicas' rows of each batch are those that Keras would give."""
    expected = of_keras(x, backend)
    steps = zip(
        *(
            [dense(shard.data) for shard in batches_of(adapter, backend)]
            for adapter in sharded(2, x, batch_size=3)
        ),
        strict=True,
    )
    last = len(expected) - 1
    for number, (step, (kind, dtype, whole)) in enumerate(
        zip(steps, expected, strict=True)
    ):
        # The last step has one row: the second replica gets a filler.
        own = step[:1] if number == last else step
        joined = np.concatenate([values for _, _, values in own])
        np.testing.assert_array_equal(joined, whole)
        assert {each[:2] for each in step} == {(kind, dtype)}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_as_keras_gives_them(backend, kind):
    dtypes = ["float64", "int64"]
    if kind in ("array", "tensor"):
        dtypes += ["float32", "float16", "uint8", "bool"]
    if backend == "jax" and kind == "tensor":
        # JAX itself has no 64 bits.
        dtypes = ["float32", "float16", "int32"]
    for dtype in dtypes:
        x = KINDS[kind](numbers(dtype))
        assert_as_keras(x, backend)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_that_keras_holds_out(backend, kind):
    from keras_mwms import _keras
    from keras_mwms.data import taking

    data = (KINDS[kind](numbers("float64")), {"y": numbers("int32")}, None)
    for got, expected in zip(
        taking.split(data, 0.3),
        _keras.train_validation_split(data, validation_split=0.3),
        strict=True,
    ):
        assert got[2] is None
        assert expected[2] is None
        np.testing.assert_array_equal(got[1]["y"], expected[1]["y"])
        for one, other in zip(
            of_keras(got[0], backend),
            of_keras(expected[0], backend),
            strict=True,
        ):
            assert one[:2] == other[:2]
            np.testing.assert_array_equal(one[2], other[2])
    with pytest.raises(ValueError, match="not sufficient to split"):
        taking.split(data, 0.9)
    with pytest.raises(ValueError, match="only supported"):
        taking.split((iter([]),), 0.3)


@pytest.mark.backend("tensorflow")
def test_tensors_of_tensorflow_stay_what_they_are(backend):
    import tensorflow as tf

    ragged = tf.ragged.constant([[1.0], [], [2, 3, 4], [5], [], [6, 7], [8]])
    plain = of_keras(ragged, backend, lambda batch: batch.to_list())
    first, second = (
        [shard.data for shard in batches_of(adapter, backend)]
        for adapter in sharded(2, ragged, batch_size=3)
    )
    # In the last step the second replica gets a filler.
    joined = [
        a.to_list() + b.to_list() for a, b in zip(first, second, strict=True)
    ]
    assert joined == [*plain[:2], plain[2] * 2]
    assert_as_keras(tf.sparse.from_dense(numbers("float32")), backend)
    texts = np.array(["a", "bc", "", "d", "e", "f", "g"], object)
    assert_as_keras(texts, backend)
    assert_as_keras(tf.constant(texts), backend)


@pytest.mark.backend("torch", "jax")
@pytest.mark.needs("tensorflow")
def test_ragged_tensors_are_refused_elsewhere(backend):
    import tensorflow as tf

    from keras_mwms.data import taking

    with pytest.raises(TypeError, match=r"ragged.to_tensor\(\)"):
        taking.takers((tf.ragged.constant([[1], []]), None), backend)


@pytest.mark.backend("torch")
def test_a_step_may_change_its_batch(backend):
    import torch

    x = torch.zeros((ROWS, 2))
    for adapter in sharded(2, x, batch_size=3):
        for shard in batches_of(adapter, backend):
            shard.data.add_(1)
    assert not x.any()


def mapped(path, dtype, megabytes=200):
    """A file with holes, in rows of half a megabyte."""
    with open(path, "wb") as file:
        file.truncate(megabytes * 2**20)
    flat = np.memmap(path, dtype, mode="r")
    return flat.reshape(2 * megabytes, -1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint8"])
def test_a_mapped_file_is_not_copied(backend, tmp_path, dtype):
    from keras_mwms.data import taking

    x = mapped(tmp_path / "rows.bin", dtype)
    y = np.arange(len(x)) % 2
    with memory.peak() as growth:
        (x, y, _), held_out = taking.split((x, y, None), 0.5)
        options = {"shuffle": "batch", "class_weight": {0: 1.0, 1: 2.0}}
        adapters = [
            *sharded(2, x, y, batch_size=8, **options)[:1],
            *sharded(2, *held_out[:2], batch_size=8)[1:],
        ]
        rows = 0
        for adapter in adapters:
            for shard in epoch_of(adapter, backend):
                rows += len(shard.data[1])
    assert rows == 200
    assert growth[0] < 60
