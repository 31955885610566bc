"""Rows of arrays as a dataset, without TensorFlow."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_mwms import _keras
from keras_mwms import world
from keras_mwms.data import feeding
from keras_mwms.data import leaves


class Rows:
    """A dataset of rows, which `batch` makes one of batches.

    Args:
        arrays: as `experimental_make_numpy_dataset` takes them.
        seed: of a shuffle, None for none.
    """

    def __init__(self, arrays: Any, *, seed: int | None = None):
        self._arrays = _arrays_of(arrays)
        self._seed = seed
        self._count = leaves.rows_in(self._arrays)

    def __len__(self) -> int:
        return self._count

    def shuffle(self, buffer_size: int | None = None, seed: Any = None) -> Any:
        """Shuffles all rows, in a new order each time, alike on all replicas.

        Args:
            buffer_size: as `tf.data` takes it; all rows are in memory, so
                that they are always shuffled as one.
            seed: an integer; None draws one from NumPy's generator on the
                chief, for all: then every replica must call.

        Returns:
            A dataset of rows.
        """
        del buffer_size
        if seed is None:
            seed = int(np.random.randint(2**31))
            seed = world.join().ring.broadcast_object(seed)
        return Rows(self._arrays, seed=seed)

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Any:
        """Makes batches of rows.

        Args:
            batch_size: rows of a batch; to be distributed, of all replicas.
            drop_remainder: whether a smaller batch at the end is left out.

        Returns:
            Batches that `fit` and `experimental_distribute_dataset` take.

        Raises:
            ValueError: the size is not positive.
        """
        if batch_size < 1:
            raise ValueError(
                "batch_size must be a positive number of rows. "
                f"Received: batch_size={batch_size}"
            )
        count = self._count
        if drop_remainder:
            count -= count % batch_size
        return RowBatches(self, batch_size, count)

    def order(self, number: int) -> np.ndarray:
        """The order of the rows in a pass of this number."""
        if self._seed is None:
            return np.arange(self._count)
        generator = np.random.default_rng([self._seed, number])
        return generator.permutation(self._count)

    def take(self, rows: np.ndarray) -> Any:
        """Rows by their numbers."""
        return keras.tree.map_structure(lambda a: a[rows], self._arrays)


class RowBatches(_keras.DataAdapter):  # type: ignore[misc]
    """Batches of `Rows`, for `fit` as they are or distributed.

    Args:
        rows: the rows.
        batch_size: rows of a batch.
        count: how many rows are used.
    """

    def __init__(self, rows: Rows, batch_size: int, count: int):
        self._rows = rows
        self._batch_size = batch_size
        self._count = count
        self._passes = 0

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return -(-self._count // self._batch_size)

    @property
    def batch_size(self) -> int:
        """Rows of a batch."""
        return self._batch_size

    @property
    def has_partial_batch(self) -> bool:
        """Whether the last batch is smaller."""
        return self._count % self._batch_size > 0

    @property
    def partial_batch_size(self) -> int | None:
        """Rows of the last batch if it is smaller."""
        return self._count % self._batch_size or None

    def __iter__(self) -> Iterator[Any]:
        """Starts a pass over NumPy batches."""
        order = self._rows.order(self._passes)[: self._count]
        self._passes += 1
        for start in range(0, self._count, self._batch_size):
            yield self._rows.take(order[start : start + self._batch_size])

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Starts a pass over NumPy batches."""
        return iter(self)

    def get_jax_iterator(self) -> Iterator[Any]:
        """Starts a pass over batches that JAX takes."""
        return iter(self)

    def get_torch_dataloader(self) -> Iterator[Any]:
        """Starts a pass over batches of PyTorch tensors."""
        convert = feeding.converter("torch")
        return (convert(batch) for batch in self)


def _arrays_of(structure: Any) -> Any:
    """Arrays in tuples and dictionaries; a list is one array."""
    if isinstance(structure, dict):
        return {key: _arrays_of(value) for key, value in structure.items()}
    if isinstance(structure, tuple):
        return tuple(map(_arrays_of, structure))
    return np.asarray(structure)
