"""Rows of batches, whatever their arrays are made of."""

import zlib
from typing import Any

import keras
import numpy as np

from keras_mwms import _keras


def leaves_of(batch: Any) -> list[Any]:
    """The arrays of a batch, without the places that hold none."""
    return [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]


def rows_in(batch: Any) -> int:
    """How many rows a batch has.

    Args:
        batch: a structure of arrays of shape `(rows, ...)`.

    Returns:
        The number.

    Raises:
        ValueError: there is no array, or one without rows, or they differ.
    """
    counts = {_rows_of(leaf) for leaf in leaves_of(batch)}
    if len(counts) != 1 or None in counts:
        shapes = [getattr(leaf, "shape", leaf) for leaf in leaves_of(batch)]
        raise ValueError(
            "A batch must be of arrays with the same number of rows, on "
            "their first axis. Batch the data by the global batch size. "
            f"Received: arrays of shapes {shapes}"
        )
    return int(counts.pop())  # type: ignore[arg-type]


def take(batch: Any, rows: slice) -> Any:
    """Some consecutive rows of a batch.

    Args:
        batch: a structure of arrays, dense, sparse or ragged.
        rows: a slice with a start and a stop.

    Returns:
        A structure like `batch`. Its arrays may be views.
    """
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else _take(leaf, rows), batch
    )


def checksum(batch: Any) -> int:
    """A number that differs between batches of different values."""
    code = 0
    for leaf in leaves_of(batch):
        array = _dense(leaf)
        data = (
            repr(array.tolist()).encode()
            if array.dtype.hasobject
            else np.ascontiguousarray(array).tobytes()
        )
        code = zlib.crc32(data, code)
    return code


def copied(batch: Any) -> Any:
    """A batch that shares no memory with others.

    Args:
        batch: a structure of arrays. Those of NumPy and PyTorch may be views
            of a larger batch, or what the user's code writes the next one to.

    Returns:
        A structure like it.
    """
    return keras.tree.map_structure(_copied, batch)


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    return leaf.clone() if _keras.is_torch_tensor(leaf) else leaf


def bytes_in(batch: Any) -> int:
    """How much memory the arrays of a batch take; of text, the references."""
    return sum(map(_bytes_of, leaves_of(batch)))


def _bytes_of(leaf: Any) -> int:
    if _keras.is_tf_composite(leaf):
        import tensorflow as tf

        parts = tf.nest.flatten(leaf, expand_composites=True)
        return sum(map(_bytes_of, parts))
    if _keras.is_scipy_sparse(leaf) or _keras.is_jax_sparse(leaf):
        return int(leaf.data.nbytes)
    if _keras.is_tf_tensor(leaf):
        return int(np.prod(leaf.shape)) * int(leaf.dtype.size)
    # Those of pandas have none.
    nbytes = getattr(leaf, "nbytes", None)
    return int(np.asarray(leaf).nbytes if nbytes is None else nbytes)


def _rows_of(leaf: Any) -> int | None:
    shape = getattr(leaf, "shape", None)
    if shape is None:
        shape = np.shape(leaf)
    return int(shape[0]) if len(shape) else None


def _take(leaf: Any, rows: slice) -> Any:
    if _keras.is_tf_sparse(leaf):
        import tensorflow as tf

        begin = [rows.start, *[0] * (len(leaf.shape) - 1)]
        size = [rows.stop - rows.start, *leaf.shape[1:]]
        return tf.sparse.slice(leaf, begin, size)
    if _keras.is_scipy_sparse(leaf):
        leaf = leaf.tocsr()
    elif not hasattr(leaf, "shape"):
        leaf = np.asarray(leaf)
    return leaf[rows.start : rows.stop]


def _dense(leaf: Any) -> np.ndarray:
    if _keras.is_scipy_sparse(leaf):
        return np.asarray(leaf.todense())
    if _keras.is_jax_sparse(leaf):
        return np.asarray(leaf.todense())
    if _keras.is_tf_tensor(leaf):
        return np.asarray(_keras.tf_to_numpy(leaf))
    if _keras.is_torch_tensor(leaf):
        return np.asarray(leaf.detach().cpu())
    return np.asarray(leaf)
