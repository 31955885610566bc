"""Takes rows out of arrays, and leaves the rest of them alone.

Keras casts arrays of other floats than `floatx` as a whole before it takes
rows of them. Of a memory map that would read and copy the whole file.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_mwms import _keras

Rows = np.ndarray | slice
Convert = Callable[[Any, Any], Any]


class LazyRows:
    """Rows of a dense array, which Keras converts once they are taken.

    Args:
        array: a NumPy array, a tensor, or a pandas frame or series.
        target: the name of the library for which Keras converts.
    """

    def __init__(self, array: Any, target: str):
        self._array = array
        self._target = target

    def take(self, rows: Rows, convert: Convert) -> Any:
        """Converts some rows.

        Args:
            rows: row numbers or a slice.
            convert: how, see `to_numpy`.

        Returns:
            What `convert` makes of them.
        """
        part = rows_of(self._array, rows)
        if isinstance(rows, slice) and _keras.is_torch_tensor(part):
            # A step may change its batch in place, but not the user's data.
            part = part.clone()
        converted = _keras.sliceables(part, self._target)
        return convert(converted, _keras.all_rows_of(converted))


class CastRows:
    """Rows of what Keras has cast already.

    Args:
        sliceable: Keras's wrapper of the whole array.
    """

    def __init__(self, sliceable: Any):
        self._sliceable = sliceable

    def take(self, rows: Rows, convert: Convert) -> Any:
        """As `LazyRows.take`."""
        return convert(self._sliceable, self._sliceable[rows])


def to_numpy(sliceable: Any, part: Any) -> Any:
    """Makes NumPy arrays of rows, also of sparse and ragged ones."""
    return sliceable.convert_to_numpy(part)


def to_jax(sliceable: Any, part: Any) -> Any:
    """Makes of rows what JAX takes."""
    return sliceable.convert_to_jax_compatible(part)


def to_torch(sliceable: Any, part: Any) -> Any:
    """Makes PyTorch tensors of rows."""
    return keras.ops.convert_to_tensor(
        sliceable.convert_to_torch_compatible(part)
    )


def takers(arrays: Any, backend: str) -> Any:
    """Wraps arrays for `wrapped.take(rows, convert)`.

    Args:
        arrays: a structure of what Keras takes for arrays, and None.
        backend: the Keras backend.

    Returns:
        The same structure; None stays.

    Raises:
        TypeError: a ragged tensor on another backend than TensorFlow.
    """
    target = "numpy" if backend == "tensorflow" else backend

    def wrap(array: Any) -> Any:
        if array is None:
            return None
        is_ragged = _keras.is_tf_composite(array) and not _keras.is_tf_sparse(
            array
        )
        if is_ragged and backend != "tensorflow":
            # Each replica would fill up its rows to another length.
            raise TypeError(
                "Ragged tensors are taken on the TensorFlow backend only. "
                "Pass a dense tensor: ragged.to_tensor(). "
                f"Received: a RaggedTensor on the backend {backend!r}"
            )
        if is_lazy(array):
            return LazyRows(array, target)
        return CastRows(_keras.sliceables(array, target))

    return keras.tree.map_structure(wrap, arrays)


def split(arrays: Any, validation_split: float) -> tuple[Any, Any]:
    """Splits arrays as Keras does, without a copy of dense ones.

    Args:
        arrays: a structure of arrays and None.
        validation_split: the part of the rows, the last ones, to hold out.

    Returns:
        `(train, held_out)`: two such structures. What Keras would have cast
        is cast when it is taken.

    Raises:
        ValueError: as Keras does: something is not an array, or there are too
            few rows.
    """

    def stand_in(array: Any) -> Any:
        # Of the same length, without memory.
        is_dense = is_lazy(array)
        return np.broadcast_to(False, len(array)) if is_dense else array

    train, held_out = _keras.train_validation_split(
        keras.tree.map_structure(stand_in, arrays),
        validation_split=validation_split,
    )

    def first(array: Any, part: Any) -> Any:
        if not is_lazy(array):
            return part
        return rows_of(array, slice(0, len(part)))

    def last(array: Any, before: Any, part: Any) -> Any:
        if not is_lazy(array):
            return part
        start = len(before)
        return rows_of(array, slice(start, start + len(part)))

    map_structure = keras.tree.map_structure
    return (
        map_structure(first, arrays, train),
        map_structure(last, arrays, train, held_out),
    )


def is_lazy(array: Any) -> bool:
    """Whether Keras treats rows of an array as it treats the whole.

    Not so NumPy's arrays of objects, which may be text or not, and sparse and
    ragged tensors, which Keras brings into a form with rows first.
    """
    if isinstance(array, np.ndarray):
        return bool(array.dtype != object)
    if _keras.is_tf_tensor(array):
        return not _keras.is_tf_composite(array)
    return hasattr(array, "iloc") or bool(_keras.is_torch_tensor(array))


def rows_of(array: Any, rows: Rows) -> Any:
    """Rows of a dense array.

    Args:
        array: an array for which `is_lazy` holds.
        rows: row numbers or a slice, which views where the library can.

    Returns:
        An array of the same kind.
    """
    if hasattr(array, "iloc"):
        return array.iloc[rows]
    if isinstance(rows, np.ndarray) and _keras.is_tf_tensor(array):
        import tensorflow as tf

        return tf.gather(array, rows)
    return array[rows]
