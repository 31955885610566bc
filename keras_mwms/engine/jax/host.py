"""Collectives on NumPy arrays in host memory, without JAX.

They block the calling thread alone, with Python's lock released: threads may
call them while others run programs of JAX. Horovod pairs operations by name:
all replicas give an operation the same name, and no name twice at a time.
"""

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_mwms.engine.jax import library


def all_gather(rows: np.ndarray, name: str) -> np.ndarray:
    """Joins the rows of all replicas, in rank order.

    Args:
        rows: an array of uint8 of shape `(rows, ...)`, where only the number
            of rows may differ between replicas, and may be 0.
        name: the name of the operation.

    Returns:
        A new array of uint8 of shape `(sum of rows, ...)`.

    Raises:
        RuntimeError: it failed; Horovod's reason stands in the text.

    Example:
        >>> all_gather(np.full(rank() + 1, rank(), np.uint8), "ragged")
        array([0, 1, 1], dtype=uint8)
    """
    loaded = library.load()
    rows = _bytes(rows)
    count, *rest = rows.shape
    joined, total = ctypes.c_void_p(), ctypes.c_int64()
    _check(
        loaded,
        loaded.horovod_jax_host_allgather(
            name.encode(),
            rows.ctypes.data,
            count,
            math.prod(rest),
            ctypes.byref(joined),
            ctypes.byref(total),
        ),
    )
    shape = (total.value, *rest)
    return np.asarray(
        _Memory(joined.value, shape, loaded.horovod_jax_host_free)
    )


def broadcast(data: np.ndarray, name: str, root: int) -> np.ndarray:
    """Returns the bytes of one replica.

    Args:
        data: an array of uint8, of the same shape on every replica.
        name: the name of the operation.
        root: the rank whose bytes all get.

    Returns:
        A new array of uint8 like `data`.

    Raises:
        RuntimeError: it failed; Horovod's reason stands in the text.

    Example:
        >>> broadcast(np.array([rank()], np.uint8), "rank", root=1)
        array([1], dtype=uint8)
    """
    loaded = library.load()
    received = np.array(_bytes(data), order="C")
    _check(
        loaded,
        loaded.horovod_jax_host_broadcast(
            name.encode(), received.ctypes.data, received.size, root
        ),
    )
    return received


class _Memory:
    """What the library has allocated, freed with the last array on it."""

    def __init__(
        self,
        address: int | None,
        shape: tuple[int, ...],
        free: Callable[[int | None], None],
    ):
        self._address = address
        self._free = free
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": shape,
            "data": (address, False),
        }

    def __del__(self) -> None:
        self._free(self._address)


def _bytes(array: np.ndarray) -> np.ndarray:
    if array.dtype != np.uint8:
        raise TypeError(
            "The collectives on host memory move bytes. Received: "
            f"dtype={array.dtype}. Take a view of the array as uint8."
        )
    return np.ascontiguousarray(array)


def _check(loaded: Any, error: int | None) -> None:
    """Raises the error whose text the library has returned."""
    if error is None:
        return
    try:
        text = ctypes.string_at(error).decode(errors="replace")
    finally:
        loaded.horovod_jax_host_free(error)
    raise RuntimeError(text)
