"""Arrays: each replica reads its own rows of every global batch."""

import math
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_mwms import _keras
from keras_mwms.collectives import Collectives
from keras_mwms.data import batches
from keras_mwms.data import slices
from keras_mwms.data import taking


class ShardedArrays(_keras.DataAdapter):  # type: ignore[misc]
    """Feeds `fit`, `evaluate` and `predict` with this replica's rows.

    A step consumes the same global batch as one process would, in the same
    order, shuffled or not: the chief draws the order of an epoch as Keras
    does, and tells it to the others.

    A replica reads its own rows only. Arrays are neither copied nor cast as a
    whole: beside a memory map a process needs memory for a few batches and,
    where it shuffles, for the order of the rows. What it has read of the file
    may stay mapped, as pages that the system takes back when it needs them.

    Args:
        collectives: the ring.
        x: arrays as `fit` takes them, of shape `(rows, ...)`, or a structure
            of such arrays.
        y: targets likewise.
        sample_weight: weights likewise.
        batch_size: the global batch size; `None` means 32, as in Keras.
        steps: number of steps from which Keras derives a batch size when
            none is given.
        shuffle: as `fit` takes it: `False`, `True` or `"batch"`.
        class_weight: as `fit` takes it.
        with_share: whether batches come as `Shard` or one of its kin;
            `predict` takes them plain.
    """

    def __init__(
        self,
        collectives: Collectives,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
        shuffle: bool | str = False,
        class_weight: dict[int, float] | None = None,
        with_share: bool = True,
    ):
        checked = _keras.array_adapter(
            x,
            y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps=steps,
            class_weight=class_weight,
        )
        self._ring = collectives
        inputs = _keras.inputs_of(checked)
        self._batch_size = _keras.batch_size_of(checked)
        self._arrays = taking.takers(inputs, keras.backend.backend())
        leaves = [a for a in keras.tree.flatten(inputs) if a is not None]
        self._rows = int(leaves[0].shape[0])
        self._shuffle = shuffle
        self._order: Callable[[], Iterator[np.ndarray]] = _keras.index_pipeline(
            self._rows,
            self._batch_size if shuffle == "batch" else self._rows,
            shuffle,
        )
        self._with_share = with_share
        self._shard = batches.maker(
            keras.backend.backend(),
            slices.leaves_someone_empty(
                self._rows, self._batch_size, collectives.size
            ),
        )

    @property
    def num_batches(self) -> int:
        """Number of global batches of an epoch."""
        return math.ceil(self._rows / self._batch_size)

    @property
    def batch_size(self) -> int:
        """The global batch size."""
        return self._batch_size

    @property
    def first_batch(self) -> int:
        """Rows of the first global batch."""
        return min(self._batch_size, self._rows)

    @property
    def has_partial_batch(self) -> bool:
        """Whether the last global batch is smaller."""
        return self._rows % self._batch_size > 0

    @property
    def partial_batch_size(self) -> int | None:
        """Rows of the last global batch if it is smaller."""
        return self._rows % self._batch_size or None

    def fed_rows(self, steps: int | None = None) -> list[np.ndarray]:
        """How many rows each replica is fed in an unshuffled epoch.

        Args:
            steps: number of global batches, `None` for all.

        Returns:
            For each step the own rows of every replica, int32. A replica
            without one is fed a filler row.
        """
        return [
            slices.rows_of(len(batch), self._ring.size)
            for batch in self._global_batches(np.arange(self._rows))
        ][:steps]

    def sample(self) -> Any:
        """The first rows, as plain NumPy, to build a model with.

        As many as this replica gets in a step; no random order is drawn.
        """
        first = slices.slice_of(self.first_batch, self._ring.size, 0)
        return self._take(first, taking.to_numpy)

    def peek(self) -> Any:
        """Like `sample`, where Keras would start an epoch to see a batch.

        What it would draw from the random generators is drawn.
        """
        next(self.start_epoch())
        return self.sample()

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Starts an epoch of NumPy batches."""
        return self._epoch(taking.to_numpy)

    def get_jax_iterator(self) -> Iterator[Any]:
        """Starts an epoch of batches that JAX takes."""
        return self._epoch(taking.to_jax)

    def get_torch_dataloader(self) -> "Epochs":
        """Epochs of batches of PyTorch tensors."""
        return Epochs(lambda: self._epoch(taking.to_torch))

    def get_tf_dataset(self) -> Any:
        """Epochs of batches as `tf.data` iterators."""
        from keras_mwms.data import arrays_tensorflow

        return arrays_tensorflow.EpochDatasets(self)

    def start_epoch(self) -> Iterator[np.ndarray]:
        """Starts an epoch of global batches.

        Keras starts epochs that it never reads; so the order is drawn, and
        agreed on by all replicas, when the first batch is asked for. What is
        taken from the global random generator at once, and what then, is as
        in one process.

        Returns:
            An iterator over the row numbers of the global batches.
        """
        return self._agreed_batches(self._order())

    def _agreed_batches(
        self, drawn: Iterator[np.ndarray]
    ) -> Iterator[np.ndarray]:
        order = np.arange(self._rows)
        if self._shuffle:
            if self._ring.rank == 0:
                order = np.concatenate(list(drawn)).astype(order.dtype)
            (order,) = self._ring.broadcast_arrays([order])
        yield from self._global_batches(order)

    def local_batch(self, batch: np.ndarray, convert: taking.Convert) -> Any:
        """This replica's part of a global batch.

        Args:
            batch: row numbers of the global batch.
            convert: what makes the result of the rows, see `taking.to_numpy`.

        Returns:
            A `Shard` or one of its kin, or the plain batch for `predict`.
        """
        size, rank = self._ring.size, self._ring.rank
        own = batch[slices.slice_of(len(batch), size, rank)]
        data = self._take(own if len(own) else batch[:1], convert)
        if not self._with_share:
            return data
        return self._shard(data, slices.rows_of(len(batch), size))

    def _epoch(self, convert: taking.Convert) -> Iterator[Any]:
        batches = self.start_epoch()
        return (self.local_batch(batch, convert) for batch in batches)

    def _global_batches(self, order: np.ndarray) -> Iterator[np.ndarray]:
        for start in range(0, self._rows, self._batch_size):
            yield order[start : start + self._batch_size]

    def _take(self, rows: taking.Rows, convert: taking.Convert) -> Any:
        rows = _as_slice(rows)
        return keras.tree.map_structure(
            lambda a: None if a is None else a.take(rows, convert),
            self._arrays,
        )


class Epochs:
    """Something to iterate over, again for each epoch."""

    def __init__(self, start: Callable[[], Iterator[Any]]):
        self._start = start

    def __iter__(self) -> Iterator[Any]:
        return self._start()


def _as_slice(rows: np.ndarray | slice) -> np.ndarray | slice:
    """Consecutive row numbers as a slice, which views instead of copying."""
    if isinstance(rows, slice) or len(rows) == 0:
        return rows
    start, stop = int(rows[0]), int(rows[-1]) + 1
    if stop - start == len(rows) and bool(np.all(np.diff(rows) == 1)):
        return slice(start, stop)
    return rows
