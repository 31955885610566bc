"""What an adapter hands to a step: a replica's rows, and how many all have.

The numbers of rows travel as data, so that a compiled step needs no new trace
when they change. Whether a replica can be without rows is told by the type,
so that only steps of such data pay for it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np


class Shard(NamedTuple):
    """A replica's rows of a global batch; every replica has some.

    Attributes:
        data: the batch as `train_step` gets it: `(x,)`, `(x, y)` or
            `(x, y, sample_weight)`.
        rows: how many rows of the global batch each replica has, in rank
            order, int32 of shape `(replicas,)`.
    """

    data: Any
    rows: Any


class SparseShard(NamedTuple):
    """Like `Shard`, of data where a replica may have no rows in a step.

    Such a replica gets the first row of the global batch as a filler: it
    takes part in the step and leaves no trace.

    Attributes:
        data: as in `Shard`.
        rows: as in `Shard`.
        mark: numbers that are the same for steps of one graph. TensorFlow
            takes a graph that it traced for a `Shard` for one of this, unless
            they differ in length.
    """

    data: Any
    rows: Any
    mark: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class StaticShard:
    """Like `Shard` on JAX: `jit` compiles for each combination of numbers.

    It compiles for each shape of the replica's own data anyway. Knowing the
    rows of the others too, a step can join the rows of all replicas.

    Attributes:
        data: the batch as `train_step` gets it.
        rows: how many rows of the global batch each replica has, in rank
            order.
    """

    data: Any
    rows: tuple[int, ...]


def maker(backend: str, may_be_empty: bool) -> Callable[[Any, np.ndarray], Any]:
    """Makes what a step of a backend gets from its data and the numbers.

    Args:
        backend: the Keras backend.
        may_be_empty: whether a replica may have no rows in a step.

    Returns:
        A function from `(data, rows)` to a `Shard`, a `SparseShard` or, on
        JAX, a `StaticShard`.
    """
    if backend == "jax":
        from keras_mwms.data import batches_jax

        batches_jax.register()
        return lambda data, rows: StaticShard(data, tuple(rows.tolist()))
    return SparseShard if may_be_empty else Shard
