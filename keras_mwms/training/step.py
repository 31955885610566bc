"""The step that a replica is in: its share, and names for its operations."""

import collections
import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import keras

from keras_mwms.collectives import Collectives
from keras_mwms.data.batches import Shard
from keras_mwms.data.batches import SparseShard


class Step:
    """One training or evaluation step, while it runs or is traced.

    Attributes:
        ring: the collectives.
        share: this replica's rows by the rows of the global batch, a scalar.
        may_be_empty: whether the share can be 0.
        reductions: how often gradients were reduced so far.
    """

    def __init__(self, ring: Collectives, share: Any, may_be_empty: bool):
        self.ring = ring
        self.share = share
        self.may_be_empty = may_be_empty
        self.reductions = 0
        self._used: collections.Counter[str] = collections.Counter()

    def name(self, base: str) -> str:
        """A name that is new in this step and the same on every replica."""
        self._used[base] += 1
        return f"{base}.{self._used[base]}"


_ACTIVE: contextvars.ContextVar[Step | None] = contextvars.ContextVar(
    "keras_mwms_step", default=None
)


def current() -> Step | None:
    """The step that runs or is traced now."""
    return _ACTIVE.get()


@contextlib.contextmanager
def entered(step: Step) -> Iterator[Step]:
    """Makes `step` the current one."""
    token = _ACTIVE.set(step)
    try:
        yield step
    finally:
        _ACTIVE.reset(token)


def opened(ring: Collectives, batch: Any) -> tuple[Any, Step]:
    """Takes apart what a step was called with.

    Args:
        ring: the collectives.
        batch: a `Shard` from an adapter of this package, or a plain batch
            from `train_on_batch` or a user's own loop: then the replicas
            tell each other how many rows they have.

    Returns:
        `(data, step)`: the plain batch and the step.
    """
    if isinstance(batch, Shard | SparseShard):
        step = Step(ring, batch.share, isinstance(batch, SparseShard))
        return batch.data, step
    rows = keras.ops.cast(_rows_of(batch), "float32")
    (total,) = ring.all_reduce([rows], "step.rows")
    return batch, Step(ring, keras.ops.divide_no_nan(rows, total), False)


def _rows_of(batch: Any) -> Any:
    leaves = [x for x in keras.tree.flatten(batch) if x is not None]
    return keras.ops.convert_to_tensor(
        keras.ops.shape(keras.ops.convert_to_tensor(leaves[0]))[0]
    )
