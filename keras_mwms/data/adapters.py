"""Data adapters of users, and arrays that each replica has of its own."""

from collections.abc import Iterator
from typing import Any

import keras

from keras_mwms.data.source import Batches

_STARTS = {
    "jax": "get_jax_iterator",
    "tensorflow": "get_tf_dataset",
    "torch": "get_torch_dataloader",
}


class AdapterBatches(Batches):
    """The batches of a Keras data adapter.

    Args:
        adapter: the adapter.
    """

    def __init__(self, adapter: Any):
        self._adapter = adapter
        self.num_batches = adapter.num_batches
        self.batch_size = adapter.batch_size
        self._start = getattr(adapter, _STARTS[keras.backend.backend()])

    def start(self) -> Iterator[Any]:
        """Starts a pass, as the trainer of the backend would."""
        return iter(self._start())

    def example(self) -> Any:
        """The first batch of a pass."""
        return next(self.start())

    def on_epoch_begin(self) -> None:
        """Tells the adapter."""
        self._adapter.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Tells the adapter."""
        self._adapter.on_epoch_end()
