"""What batches are, for loops of the user's own."""

import pickle
from typing import Any

import keras
import numpy as np

from keras_mwms import _keras
from keras_mwms.collectives import Collectives
from keras_mwms.data import feeding

# Axes along which so many batches differ have no size of their own.
EXAMPLES = 2


def as_tensors(batch: Any) -> Any:
    """A batch as tensors of the backend; JAX's text stays NumPy's.

    Args:
        batch: a structure of arrays of any framework.

    Returns:
        A structure like it, with tuples for lists.
    """
    batch = feeding.converter(keras.backend.backend())(batch)
    return keras.tree.map_structure(
        lambda leaf: _tensor(leaf) if isinstance(leaf, np.ndarray) else leaf,
        keras.tree.lists_to_tuples(batch),
    )


def of_examples(batches: list[Any]) -> Any:
    """The type of batches, of any number of rows.

    Args:
        batches: at least one, as `as_tensors` makes them.

    Returns:
        As `DistributedDataset.element_spec`.
    """
    if keras.backend.backend() == "tensorflow":
        from keras_mwms.data import distributed_tensorflow

        return distributed_tensorflow.spec_of(batches)
    return keras.tree.map_structure(
        lambda *leaves: None if leaves[0] is None else _symbol(leaves),
        *batches,
    )


def of_tf_data(dataset: Any) -> Any:
    """The type of the batches of a `tf.data.Dataset`, likewise."""
    if keras.backend.backend() == "tensorflow":
        from keras_mwms.data import distributed_tensorflow

        return distributed_tensorflow.any_rows(dataset.element_spec)
    return keras.tree.map_structure(
        lambda spec: keras.KerasTensor(
            (None, *spec.shape[1:]),
            _dtype_of(as_tensors(np.empty(0, spec.dtype.as_numpy_dtype))),
        ),
        dataset.element_spec,
    )


def of_any(ring: Collectives, spec: Any) -> Any:
    """The chief's type of batches, or that of the first who has any.

    Args:
        ring: the collectives; every replica calls.
        spec: this replica's, None if it has no batch.

    Returns:
        A type.

    Raises:
        ValueError: no replica has a batch.
    """
    mine = b"" if spec is None else pickle.dumps(spec)
    for text in ring.gather_bytes(mine):
        if text:
            return pickle.loads(text)
    raise ValueError(
        "The data have no batch that could tell what their elements are. "
        f"Received: empty data on all of {ring.size} replicas"
    )


def _tensor(array: np.ndarray) -> Any:
    is_text = array.dtype.kind in "OSU"
    if is_text and keras.backend.backend() != "tensorflow":
        return array
    return keras.ops.convert_to_tensor(array)


def _symbol(tensors: tuple[Any, ...]) -> keras.KerasTensor:
    shapes = [tuple(tensor.shape)[1:] for tensor in tensors]
    sizes = [
        sizes[0] if len(set(sizes)) == 1 else None
        for sizes in zip(*shapes, strict=True)
    ]
    return keras.KerasTensor(
        (None, *sizes),
        _dtype_of(tensors[0]),
        sparse=bool(_keras.is_jax_sparse(tensors[0])),
    )


def _dtype_of(tensor: Any) -> str:
    if isinstance(tensor, np.ndarray) and tensor.dtype.kind in "OSU":
        return "string"
    return str(keras.backend.standardize_dtype(tensor.dtype))
