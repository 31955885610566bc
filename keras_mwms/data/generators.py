"""Python generators and Grain datasets: batches that come one by one."""

import dis
from collections.abc import Generator
from collections.abc import Iterator
from typing import Any

from keras_mwms import _keras
from keras_mwms.data.source import Batches


class GeneratorBatches(Batches):
    """The batches of a Python generator.

    Args:
        generator: the user's generator.
        adapter: Keras's adapter for it.
    """

    def __init__(self, generator: Generator[Any, Any, Any], adapter: Any):
        self.is_endless = never_returns(generator)
        self._adapter = adapter
        if isinstance(adapter, _keras.GeneratorAdapter):
            self.at_hand = len(_keras.peeked_batches(adapter))

    def start(self) -> Iterator[Any]:
        """Goes on where the generator is, as Keras does."""
        return _keras.raw_batches(self._adapter)

    def example(self) -> Any:
        """The first batch, which Keras has looked at."""
        return _keras.peeked_batches(self._adapter)[0]


class GrainBatches(Batches):
    """The batches of a Grain dataset or data loader.

    Args:
        dataset: the user's object.
        adapter: Keras's adapter for it.
    """

    def __init__(self, dataset: Any, adapter: Any):
        self.batch_size = adapter.batch_size
        self._adapter = adapter
        self.is_endless = _is_endless(dataset)

    def start(self) -> Iterator[Any]:
        """Starts a pass."""
        return iter(self._adapter.get_numpy_iterator())

    def example(self) -> Any:
        """The first batch."""
        return next(self.start())


def _is_endless(dataset: Any) -> bool:
    """Whether a Grain object is surely without end."""
    if hasattr(dataset, "__len__"):
        # Grain gives a repeated dataset the largest length there is.
        return len(dataset) >= 2**62
    if hasattr(dataset, "parents"):
        # What ends an endless one is of this class.
        ends = type(dataset).__name__ == "LimitIterDataset"
        return not ends and any(map(_is_endless, dataset.parents))
    # A loader, by its sampler: the numbers of epochs of others are not known.
    return getattr(dataset._sampler, "_num_epochs", 1) is None


def never_returns(generator: Generator[Any, Any, Any]) -> bool:
    """Whether a generator surely has no end: its code cannot return.

    So it is for `while True: yield ...`. What calls something endless, as
    `yield from itertools.count()` does, is not seen.

    Args:
        generator: a generator that has not ended.

    Returns:
        True if it can only go on or fail.

    Example:
        >>> def ones():
        ...     while True:
        ...         yield 1
        >>> never_returns(ones())
        True
        >>> never_returns(x for x in [1])
        False
    """
    return not any(
        step.opname in ("RETURN_VALUE", "RETURN_CONST")
        for step in dis.get_instructions(generator.gi_code)  # type: ignore[attr-defined]
    )
