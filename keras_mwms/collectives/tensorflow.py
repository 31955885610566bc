"""Collectives on TensorFlow tensors, by Horovod's TensorFlow binding."""

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow import mpi_ops

from keras_mwms.collectives.base import Collectives
from keras_mwms.collectives.base import Done


class TensorFlowCollectives(Collectives):
    """The ring seen from TensorFlow; Horovod is initialized already."""

    def __init__(self) -> None:
        super().__init__()
        self.rank = hvd.rank()
        self.size = hvd.size()

    def start_all_reduce(self, tensors: Sequence[Any], name: str) -> Done:
        """Begins to sum each tensor over all replicas.

        One operation a tensor: in a graph each starts as soon as its tensor
        is there, and Horovod joins what waits together. A `tf.IndexedSlices`
        is summed by joining the rows of all replicas.
        """
        return Done(
            [self._sum(t, f"{name}.{i}") for i, t in enumerate(tensors)]
        )

    def broadcast(
        self, tensors: Sequence[Any], name: str, root: int = 0
    ) -> list[Any]:
        """Returns the tensors of replica `root`."""
        return [
            tf.cast(
                hvd.broadcast(
                    _wire(t), root, f"{name}.{i}", ignore_name_scope=True
                ),
                t.dtype,
            )
            for i, t in enumerate(tensors)
        ]

    def all_gather(self, tensor: Any, name: str) -> Any:
        """Joins the tensors of all replicas on axis 0."""
        joined = hvd.allgather(_wire(tensor), name, ignore_name_scope=True)
        return tf.cast(joined, tensor.dtype)

    def to_host(self, tensor: Any) -> np.ndarray:
        """Returns the tensor as a NumPy array."""
        return np.asarray(tensor.numpy())

    def from_host(self, array: np.ndarray) -> Any:
        """Returns the array as a tensor on the CPU."""
        with tf.device("CPU:0"):
            return tf.constant(array)

    def _sum(self, tensor: Any, name: str) -> Any:
        if isinstance(tensor, tf.IndexedSlices):
            return tf.IndexedSlices(
                self.all_gather(tensor.values, f"{name}.values"),
                self.all_gather(tensor.indices, f"{name}.indices"),
                tensor.dense_shape,
            )
        # The public `hvd.allreduce` averages in ways of its own; the
        # operation below is the plain sum.
        total = mpi_ops._allreduce(
            _wire(tensor), name, op=hvd.Sum, ignore_name_scope=True
        )
        return tf.cast(total, tensor.dtype)


def _wire(tensor: Any) -> Any:
    """The tensor in a dtype that Horovod takes."""
    if tensor.dtype == tf.bfloat16:
        return tf.cast(tensor, tf.float32)
    return tensor
