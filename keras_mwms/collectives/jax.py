"""Collectives on JAX arrays, by the binding in `keras_mwms.engine.jax`."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_mwms.collectives.base import Collectives
from keras_mwms.collectives.base import Done
from keras_mwms.engine.jax import compat
from keras_mwms.engine.jax import host
from keras_mwms.engine.jax import library
from keras_mwms.engine.jax import ops


class JaxCollectives(Collectives):
    """The ring seen from JAX; Horovod is initialized already."""

    static_shapes = True
    needs_order = True

    def __init__(self) -> None:
        super().__init__()
        self.rank = library.rank()
        self.size = library.size()

    def start_all_reduce(self, tensors: Sequence[Any], name: str) -> Done:
        """Begins to sum each array over all replicas.

        All arrays go as one operation: XLA on the CPU runs small programs
        one operation after the other, so that many would wait for each other
        (measured: 60 scalars 390 ms apart, 2 ms together).
        """
        names = [f"{name}.{i}" for i in range(len(tensors))]
        sums = ops.allreduce([_as_pairs(t) for t in tensors], names)
        return Done(
            [_from_pairs(s, t) for s, t in zip(sums, tensors, strict=True)]
        )

    def broadcast(
        self, tensors: Sequence[Any], name: str, root: int = 0
    ) -> list[Any]:
        """Returns the arrays of replica `root`."""
        names = [f"{name}.{i}" for i in range(len(tensors))]
        return list(ops.broadcast(tensors, names, root_rank=root))

    def all_gather(self, tensor: Any, name: str) -> Any:
        """Joins the arrays of all replicas on axis 0."""
        if compat.is_traced(tensor):
            return ops.allgather(tensor, name)
        return ops.allgather_v(tensor, name)

    def in_one_program(self, tensor: Any, other: Any) -> bool:
        """Whether two arrays are values of one program."""
        return compat.have_one_trace(tensor, other)

    def to_host(self, tensor: Any) -> np.ndarray:
        """Returns the array as a NumPy array."""
        return np.asarray(tensor)

    def from_host(self, array: np.ndarray) -> Any:
        """Returns the array as a JAX array."""
        return jnp.asarray(array)

    # XLA may run programs in another order on another replica, so that those
    # of two threads would wait for each other: none here.
    def _all_gather_bytes(self, data: np.ndarray, name: str) -> np.ndarray:
        return host.all_gather(data, name)

    def _broadcast_bytes(
        self, data: np.ndarray, name: str, root: int
    ) -> np.ndarray:
        return host.broadcast(data, name, root)


def _as_pairs(tensor: Any) -> Any:
    """Complex numbers as pairs of real ones: Horovod sums no others."""
    if not jnp.iscomplexobj(tensor):
        return tensor
    return jnp.stack([jnp.real(tensor), jnp.imag(tensor)])


def _from_pairs(total: Any, like: Any) -> Any:
    return jax.lax.complex(*total) if jnp.iscomplexobj(like) else total
