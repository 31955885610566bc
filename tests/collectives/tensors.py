"""The backend's tensors in the workers, with values that sum exactly."""

from collections.abc import Callable
from typing import Any

import numpy as np

FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = (*FLOATS, "int8", "int32", "int64", "uint8", "bool")

# A scalar, no rows, a vector, a cube, and 5 MB of float32.
SHAPES = ((), (0, 3), (5,), (2, 3, 4), (1_250_000,))


def values(dtype: str, shape: tuple[int, ...], rank: int) -> np.ndarray:
    """Small integers that differ by place and rank; -2 to 21 on rank 2."""
    base = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 8
    if dtype == "bool":
        return (base + rank) % 3 == 0
    if not dtype.startswith("u"):
        base = base - 2
    return (base * (rank + 1) + rank).astype(np.float64)


def total(dtype: str, shape: tuple[int, ...], size: int) -> np.ndarray:
    """What the values of all ranks sum to; of booleans whether any holds."""
    every = [values(dtype, shape, rank) for rank in range(size)]
    return np.any(every, axis=0) if dtype == "bool" else sum(every)


def tensor(array: np.ndarray, dtype: str) -> Any:
    """A tensor of the backend. JAX makes 32 bits of 64 by default."""
    import keras

    return keras.ops.convert_to_tensor(array, dtype=dtype)


def host(value: Any) -> np.ndarray:
    """A tensor's values, which float32 can hold."""
    import keras

    assert not isinstance(value, np.ndarray)
    # NumPy cannot read a scalar of bfloat16 from TensorFlow.
    return keras.ops.convert_to_numpy(keras.ops.cast(value, "float32"))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one program of the backend."""
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False)
    import jax

    return jax.jit(function)


def assert_like(result: Any, given: Any, expected: np.ndarray) -> None:
    """The values are these, the dtype that of the tensor given."""
    assert result.dtype == given.dtype
    assert tuple(result.shape) == expected.shape
    np.testing.assert_array_equal(host(result), expected)
