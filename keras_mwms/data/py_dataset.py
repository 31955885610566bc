"""`keras.utils.PyDataset`: batches by their numbers, made by user code."""

import random
from collections.abc import Iterator
from typing import Any

import keras

from keras_mwms import _keras
from keras_mwms.collectives import Collectives
from keras_mwms.data.source import Batches


class PyDatasetBatches(Batches):
    """The batches of a `PyDataset`, in the order that the chief draws.

    Args:
        ring: the collectives, of which every replica makes one of these;
            `None` if each replica has a dataset of its own.
        dataset: the user's dataset.
        shuffle: whether the order of the batches is drawn.
        class_weight: as `fit` takes it.
    """

    def __init__(
        self,
        ring: Collectives | None,
        dataset: Any,
        shuffle: bool,
        class_weight: dict[int, float] | None,
    ):
        self._ring = ring
        self.num_batches = dataset.num_batches
        self.is_endless = self.num_batches is None
        self._shuffle = bool(shuffle) and not self.is_endless
        self._ordered = _Ordered(dataset)
        self._adapter = _keras.PyDatasetAdapter(
            self._ordered, class_weight=class_weight
        )

    def start(self) -> Iterator[Any]:
        """Starts a pass, when its first batch is asked for."""
        if self._adapter.enqueuer is None:
            self._draw()
        yield from _keras.raw_batches(self._adapter)

    def example(self) -> Any:
        """The first batch."""
        return _keras.standardized(self._adapter, self._ordered.dataset[0])

    def on_epoch_begin(self) -> None:
        """Tells the dataset, and its workers what to make in which order."""
        if self._adapter.enqueuer is not None:
            self._draw()
        self._adapter.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Tells the dataset."""
        self._adapter.on_epoch_end()

    def _draw(self) -> None:
        """Draws an order as Keras does."""
        if not self._shuffle:
            return
        order = list(range(self._ordered.dataset.num_batches))
        if self._ring is None:
            random.shuffle(order)
        else:
            if self._ring.rank == 0:
                random.shuffle(order)
            order = self._ring.broadcast_object(order)
        self._ordered.order = order


class _Ordered(keras.utils.PyDataset):  # type: ignore[misc]
    """A dataset whose batches come in another order.

    Keras sends it to the processes that make batches, at each epoch.
    """

    def __init__(self, dataset: Any):
        super().__init__(
            workers=dataset.workers,
            use_multiprocessing=dataset.use_multiprocessing,
            max_queue_size=dataset.max_queue_size,
        )
        self.dataset = dataset
        self.order: list[int] | None = None

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index if self.order is None else self.order[index]]

    @property
    def num_batches(self) -> int | None:
        number: int | None = self.dataset.num_batches
        return number

    def on_epoch_begin(self) -> None:
        self.dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self.dataset.on_epoch_end()
