"""Turns a replica's rows into what the trainer of a backend takes."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_mwms import _keras


def converter(backend: str) -> Callable[[Any], Any]:
    """The conversion for a backend, the same as Keras's own adapters do.

    Args:
        backend: the Keras backend.

    Returns:
        A function from a batch, a structure of arrays of any framework, to
        one of arrays that a step of the backend takes.
    """
    convert = {"jax": _for_jax, "torch": _for_torch, "tensorflow": _for_tf}
    leaf_of = convert[backend]
    return lambda batch: keras.tree.map_structure(
        lambda leaf: None if leaf is None else leaf_of(leaf), batch
    )


def to_numpy(batch: Any) -> Any:
    """A batch of NumPy arrays; what is sparse, ragged or symbolic stays."""
    return keras.tree.map_structure(
        lambda leaf: leaf if _is_left(leaf) else _host(leaf), batch
    )


def _is_left(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, keras.KerasTensor)


def _host(leaf: Any) -> Any:
    """Arrays of other frameworks as NumPy's."""
    if _keras.is_torch_tensor(leaf):
        return leaf.detach().cpu().numpy()
    if _keras.is_tf_composite(leaf) or _keras.is_scipy_sparse(leaf):
        return leaf
    if _keras.is_tf_tensor(leaf):
        return leaf.numpy()
    if _keras.is_jax_sparse(leaf):
        return leaf
    return np.asarray(leaf)


def _for_jax(leaf: Any) -> Any:
    import jax

    if isinstance(leaf, jax.Array):
        # It stays on its device.
        return leaf
    leaf = _host(leaf)
    if _keras.is_tf_sparse(leaf):
        return _keras.tf_sparse_to_jax(leaf)
    if _keras.is_tf_composite(leaf):
        return _keras.tf_to_numpy(leaf)
    if _keras.is_scipy_sparse(leaf):
        return _keras.scipy_to_jax(leaf)
    return leaf


def _for_torch(leaf: Any) -> Any:
    if _keras.is_torch_tensor(leaf):
        return keras.ops.convert_to_tensor(leaf)
    leaf = _host(leaf)
    if _keras.is_tf_composite(leaf):
        leaf = _keras.tf_to_numpy(leaf)
    elif _keras.is_scipy_sparse(leaf):
        leaf = leaf.toarray()
    elif isinstance(leaf, np.ndarray) and not leaf.flags.writeable:
        # PyTorch warns of memory that it must not write to.
        leaf = leaf.copy()
    return keras.ops.convert_to_tensor(leaf)


def _for_tf(leaf: Any) -> Any:
    if _keras.is_tf_tensor(leaf) or _keras.is_tf_composite(leaf):
        return leaf
    leaf = _host(leaf)
    if _keras.is_scipy_sparse(leaf):
        return _keras.scipy_to_tf(leaf)
    if _keras.is_jax_sparse(leaf):
        return _keras.jax_sparse_to_tf(leaf)
    return leaf
