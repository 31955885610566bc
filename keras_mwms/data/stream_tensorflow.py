"""A replica's steps for Keras's TensorFlow trainer."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_mwms.data import leaves
from keras_mwms.data.batches import SparseShard


class Executions:
    """Iterates over steps, of which Keras takes a few at a time.

    Keras takes what is no iterator of `tf.data` with a `for` loop over the
    steps of an execution. It needs `OutOfRangeError` where an execution has no
    step at all, and the end of the loop where it has fewer.

    Args:
        steps: the steps of an epoch.
        steps_per_execution: how many Keras takes at a time.
    """

    def __init__(self, steps: Iterator[Any], steps_per_execution: int):
        self._steps = steps
        self._size = steps_per_execution
        self._taken = 0

    def __iter__(self) -> "Executions":
        return self

    def __next__(self) -> Any:
        try:
            step = next(self._steps)
        except StopIteration:
            if self._taken % self._size:
                # The next execution starts, and finds nothing.
                self._taken = 0
                raise
            raise tf.errors.OutOfRangeError(
                None, None, "End of the data"
            ) from None
        self._taken += 1
        return _marked(step)


def _marked(step: Any) -> Any:
    """Tells steps of arrays with other numbers of axes apart.

    TensorFlow would trace one graph for both, with axes that nobody knows.
    """
    if not isinstance(step, SparseShard):
        return step
    axes = tuple(len(leaf.shape) for leaf in leaves.leaves_of(step.data))
    return step._replace(mark=axes)
