"""The step that a replica is in: its share, and names for its operations."""

import collections
import contextlib
import contextvars
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mwms import _keras
from keras_mwms.collectives import Collectives
from keras_mwms.data.batches import Shard
from keras_mwms.data.batches import SparseShard
from keras_mwms.data.batches import StaticShard


class Step:
    """One training or evaluation step, while it runs or is traced.

    Args:
        ring: the collectives.
        rows: how many rows of the step each replica has, in rank order:
            integers of shape `(replicas,)`. Numbers of the host where they
            are known while a step is traced.
        may_be_empty: whether this replica may have none.
        is_sliced: whether the replicas have slices of one batch, so that
            their arrays differ in axis 0 only.
        after: an array that came out of an operation of this step.

    Attributes:
        share: this replica's rows by the rows of the step, a scalar.
        inverse_share: 1 by the share, 0 where the share is 0.
        reductions: how often gradients were reduced so far.
    """

    def __init__(
        self,
        ring: Collectives,
        rows: Any,
        *,
        may_be_empty: bool,
        is_sliced: bool = True,
        after: Any = None,
    ):
        self.ring = ring
        self.rows = rows
        self.is_sliced = is_sliced
        self.reductions = 0
        own, total = rows[ring.rank], sum(rows[r] for r in range(ring.size))
        if _is_known(rows):
            self.may_be_empty = own == 0
            self.share: Any = float(own / total)
            self.inverse_share: Any = float(total / own) if own else 0.0
        else:
            self.may_be_empty = may_be_empty
            own, total = ops.cast(own, "float32"), ops.cast(total, "float32")
            self.share = ops.divide_no_nan(own, total)
            self.inverse_share = ops.divide_no_nan(total, own)
        self._used: collections.Counter[str] = collections.Counter()
        # One element of each operation goes into the next, where the ring
        # needs an order.
        self._first: Any = None
        if ring.needs_order:
            start = ops.zeros((1,)) if after is None else after[:1]
            self._first = ops.cast(start, "float32")
        self.link = self._first

    @property
    def can_gather(self) -> bool:
        """Whether `gather` works: on JAX it needs to know all numbers."""
        return _is_known(self.rows) or not self.ring.static_shapes

    def all_reduce(
        self,
        tensors: Sequence[Any],
        base: str,
        *,
        in_branch: bool = False,
        may_overwrite: bool = False,
    ) -> list[Any]:
        """Sums tensors over the replicas, within the step.

        Args:
            tensors: as `Collectives.all_reduce` takes them.
            base: what the operation is for. The name on the wire is new in
                this step and the same on every replica.
            in_branch: whether this is traced into a branch of a condition.
            may_overwrite: whether the tensors are not needed any more.

        Returns:
            The sums.
        """
        name = self.new_name(base)
        if not self.ring.needs_order:
            if may_overwrite:
                return self.ring.start_all_reduce(tensors, name).wait()
            return self.ring.all_reduce(tensors, name)
        # Two operations that do not depend on each other may be run in
        # another order by another replica, which would wait for ever.
        *sums, link = self.ring.all_reduce([*tensors, self.link], name)
        if not in_branch:
            self.follow(link, name)
        return sums

    def gather(self, tensors: Sequence[Any], base: str) -> list[Any]:
        """Joins the rows of all replicas, in rank order.

        Gradients flow to this replica's own rows only: summed over the
        replicas they are those of the joined rows. Filler rows are left out.

        Args:
            tensors: tensors of shape `(own rows, ...)`.
            base: what the operation is for.

        Returns:
            Tensors of shape `(rows of all, ...)`.
        """
        rank = self.ring.rank
        before = _sum(self.rows, 0, rank)
        after = _sum(self.rows, rank + 1, self.ring.size)
        own = [tensor[: self.rows[rank]] for tensor in tensors]
        placed = [
            _between_zeros(ops.stop_gradient(tensor), before, after)
            for tensor in own
        ]
        return [
            ops.concatenate(
                [joined[:before], mine, joined[before + self.rows[rank] :]]
            )
            for joined, mine in zip(
                self.all_reduce(placed, base), own, strict=True
            )
        ]

    def all_gather(self, tensor: Any, name: str, link: Any) -> tuple[Any, Any]:
        """Stacks tensors of one shape on a new first axis, in rank order.

        The step does not change: `follow` the new link. So this can stand in
        a function that JAX calls or traces again as it likes.

        Args:
            tensor: a tensor of the same static shape on every replica.
            name: the name on the wire, see `new_name`.
            link: the step's link, or the one that stands for it.

        Returns:
            `(stacked, link)`: of shape `(replicas, ...)`, and the new link.
        """
        shape = (self.ring.size, *tensor.shape)
        if not self.ring.needs_order:
            row = ops.expand_dims(tensor, 0)
            stacked = self.ring.all_gather(row, name)
            return ops.reshape(stacked, shape), link
        row = ops.concatenate(
            [
                ops.reshape(tensor, (-1,)),
                ops.cast(link, tensor.dtype),
            ]
        )
        rows = ops.reshape(
            self.ring.all_gather(row, name), (self.ring.size, -1)
        )
        stacked = ops.reshape(rows[:, :-1], shape)
        return stacked, ops.cast(rows[0, -1:], link.dtype)

    def new_name(self, base: str) -> str:
        """A name that is new in this step and the same on every replica."""
        self._used[base] += 1
        return f"{base}.{self._used[base]}"

    def follow(self, link: Any, name: str) -> None:
        """Makes the next operation of the step depend on the last one.

        Args:
            link: what came out of the last one.
            name: its name.

        Raises:
            NotImplementedError: on JAX, if it is not in the program of the
                step itself.
        """
        if not self.ring.in_one_program(link, self._first):
            raise NotImplementedError(
                "Replicas cannot exchange values inside a function that JAX "
                "traces by itself (jax.checkpoint, keras.RematScope, scan, "
                "vmap, jit, a derivative of a derivative): nothing would keep "
                "these exchanges in one order on all replicas. Take the layer "
                "or loss that needs them out of it; for BatchNormalization, "
                "synchronized=False needs none in training. "
                f"Received: the exchange {name!r} inside of such a function."
            )
        self.link = link


_ACTIVE: contextvars.ContextVar[Step | None] = contextvars.ContextVar(
    "keras_mwms_step", default=None
)


def current() -> Step | None:
    """The step that runs or is traced now."""
    return _ACTIVE.get()


@contextlib.contextmanager
def entered(step: Step | None) -> Iterator[None]:
    """Makes `step` the current one; with None, there is none."""
    token = _ACTIVE.set(step)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def opened(ring: Collectives, batch: Any) -> tuple[Any, Step]:
    """Takes apart what a step was called with.

    Args:
        ring: the collectives.
        batch: a `Shard` or one of its kin from an adapter of this package,
            or a plain batch from `train_on_batch` or a user's own loop: then
            the replicas tell each other how many rows they have.

    Returns:
        `(data, step)`: the plain batch and the step.
    """
    if isinstance(batch, Shard | SparseShard | StaticShard):
        may_be_empty = isinstance(batch, SparseShard)
        return batch.data, Step(ring, batch.rows, may_be_empty=may_be_empty)
    own = _rows_of(batch)
    may_be_empty = not isinstance(own, int) or own == 0
    mine = ops.one_hot(ring.rank, ring.size, dtype="int32") * own
    (rows,) = ring.all_reduce([mine], "step.rows")
    after = rows
    if not ring.traces:
        rows = ring.to_host(rows)
    if may_be_empty:
        batch = _with_filler(batch, own)
    return batch, Step(
        ring, rows, may_be_empty=may_be_empty, is_sliced=False, after=after
    )


def _is_known(rows: Any) -> bool:
    return isinstance(rows, tuple | np.ndarray)


def _sum(rows: Any, start: int, stop: int) -> Any:
    return sum((rows[r] for r in range(start, stop)), 0)


def _between_zeros(tensor: Any, before: Any, after: Any) -> Any:
    shape = ops.shape(tensor)[1:]
    return ops.concatenate(
        [
            ops.zeros((before, *shape), tensor.dtype),
            tensor,
            ops.zeros((after, *shape), tensor.dtype),
        ]
    )


def _with_filler(batch: Any, own: Any) -> Any:
    """A batch in which a row of zeros stands in where there is none.

    Not in one of sparse or ragged tensors of TensorFlow.
    """
    if any(map(_keras.is_tf_composite, keras.tree.flatten(batch))):
        return batch
    is_known = isinstance(own, int)
    count = 1 if is_known else ops.cast(ops.equal(own, 0), "int32")

    def filled(leaf: Any) -> Any:
        leaf = ops.convert_to_tensor(leaf)
        row = ops.zeros((count, *ops.shape(leaf)[1:]), leaf.dtype)
        return ops.concatenate([leaf, row])

    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else filled(leaf), batch
    )


def _rows_of(batch: Any) -> Any:
    leaves = [x for x in keras.tree.flatten(batch) if x is not None]
    return ops.shape(ops.convert_to_tensor(leaves[0]))[0]
