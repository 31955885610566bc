"""`keras.utils.PyDataset`: batches by their numbers, made by user code."""

import random
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_mwms import _keras
from keras_mwms.collectives import Collectives
from keras_mwms.data.source import Batches


class PyDatasetBatches(Batches):
    """The batches of a `PyDataset`, in the order that the chief draws.

    What `on_epoch_begin` and `on_epoch_end` draw from the global generators
    of Python and NumPy is what they draw on the chief.

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
        self._dataset = dataset
        self._class_weight = class_weight
        self.num_batches = dataset.num_batches
        self.is_endless = self.num_batches is None
        self._shuffle = bool(shuffle) and not self.is_endless

    def start(self) -> Iterator[Any]:
        """Starts a pass, and its workers, when its first batch is asked for.

        The workers of Keras end with an epoch and keep what they have made
        until then, be it much or little, for the next. Here they go on to the
        end of the pass: else replicas would have unlike batches.
        """
        adapter = self._adapter(self._drawn_order())
        try:
            yield from _keras.raw_batches(adapter)
        finally:
            if adapter.enqueuer is not None:
                adapter.enqueuer.stop()

    def example(self) -> Any:
        """The first batch."""
        return _keras.standardized(self._adapter(None), self._dataset[0])

    def on_epoch_begin(self) -> None:
        """Tells the dataset."""
        if _overrides(self._dataset, "on_epoch_begin"):
            self._draw_as_chief()
        self._dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Tells the dataset."""
        if _overrides(self._dataset, "on_epoch_end"):
            self._draw_as_chief()
        self._dataset.on_epoch_end()

    def _adapter(self, order: list[int] | None) -> _keras.DataAdapter:
        return _keras.PyDatasetAdapter(
            _Ordered(self._dataset, order), class_weight=self._class_weight
        )

    def _drawn_order(self) -> list[int] | None:
        """Draws an order as Keras does."""
        if not self._shuffle:
            return None
        self._draw_as_chief()
        order = list(range(self._dataset.num_batches))
        random.shuffle(order)
        return order

    def _draw_as_chief(self) -> None:
        """Goes on with the random numbers of the chief."""
        if self._ring is None or self._ring.size == 1:
            return
        state = self._ring.broadcast_object(
            (random.getstate(), np.random.get_state())
        )
        if self._ring.rank:
            random.setstate(state[0])
            np.random.set_state(state[1])


def _overrides(dataset: Any, method: str) -> bool:
    return getattr(type(dataset), method) is not getattr(
        keras.utils.PyDataset, method
    )


class _Ordered(keras.utils.PyDataset):  # type: ignore[misc]
    """A dataset whose batches come in another order.

    Args:
        dataset: the user's dataset.
        order: numbers of its batches, `None` for as they are.
    """

    def __init__(self, dataset: Any, order: list[int] | None):
        super().__init__(
            workers=dataset.workers,
            use_multiprocessing=dataset.use_multiprocessing,
            max_queue_size=dataset.max_queue_size,
        )
        self.dataset = dataset
        self.order = order

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index if self.order is None else self.order[index]]

    @property
    def num_batches(self) -> int | None:
        number: int | None = self.dataset.num_batches
        return number
