"""The step that a replica is in: its share, and names for its operations."""

import collections
import contextlib
import contextvars
from collections.abc import Iterator
from collections.abc import Sequence
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
        self._link: Any = None

    def all_reduce(
        self, tensors: Sequence[Any], base: str, *, in_branch: bool = False
    ) -> list[Any]:
        """Sums tensors over the replicas, within the step.

        Args:
            tensors: as `Collectives.all_reduce` takes them.
            base: what the operation is for. The name on the wire is new in
                this step and the same on every replica.
            in_branch: whether this is traced into a branch of a condition.

        Returns:
            The sums.
        """
        self._used[base] += 1
        name = f"{base}.{self._used[base]}"
        if not self.ring.needs_order:
            return self.ring.all_reduce(tensors, name)
        # Two operations that do not depend on each other may be run in
        # another order by another replica, which would wait for ever: one
        # element of each goes into the next.
        link = keras.ops.zeros((1,)) if self._link is None else self._link
        *sums, link = self.ring.all_reduce([*tensors, link], name)
        if not in_branch:
            self._link = link
        return sums


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
    step = Step(ring, None, False)
    rows = keras.ops.cast(_rows_of(batch), "float32")
    (total,) = step.all_reduce([rows + 0.0], "step.rows")
    step.share = keras.ops.divide_no_nan(rows, total)
    return batch, step


def _rows_of(batch: Any) -> Any:
    leaves = [x for x in keras.tree.flatten(batch) if x is not None]
    return keras.ops.convert_to_tensor(
        keras.ops.shape(keras.ops.convert_to_tensor(leaves[0]))[0]
    )
