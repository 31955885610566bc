"""What the ranks send, and what must come of it."""

import numpy as np


def mine(dtype: str, rank: int, shape: tuple[int, ...] = (2, 3)) -> np.ndarray:
    """An array that differs between ranks; its sums are exact in `dtype`."""
    count = int(np.prod(shape))
    if dtype == "bool":
        # Element 0 is true nowhere, the others on one rank of three.
        numbers = np.arange(count) == rank + 1
    else:
        numbers = (np.arange(count) + 1) * (rank + 1)
    return numbers.reshape(shape).astype(np.dtype(dtype))


def summed(
    dtype: str, size: int, shape: tuple[int, ...] = (2, 3)
) -> np.ndarray:
    """The sum of `mine` over all ranks; of booleans, whether any is true."""
    arrays = [mine(dtype, rank, shape) for rank in range(size)]
    if dtype == "bool":
        return np.any(arrays, axis=0)
    return np.sum(arrays, axis=0, dtype=np.float64).astype(np.dtype(dtype))


def joined(
    dtype: str, size: int, shape: tuple[int, ...] = (2, 3)
) -> np.ndarray:
    """What all ranks get when they gather `mine`."""
    arrays = [np.atleast_1d(mine(dtype, r, shape)) for r in range(size)]
    return np.concatenate(arrays)


def same(got: object, wanted: np.ndarray) -> None:
    """Fails unless dtype, shape and all values are equal."""
    array = np.asarray(got)
    assert array.dtype == wanted.dtype, (array.dtype, wanted.dtype)
    assert array.shape == wanted.shape, (array.shape, wanted.shape)
    np.testing.assert_array_equal(array, wanted)
