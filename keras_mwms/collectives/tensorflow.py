"""Collectives on TensorFlow tensors, by Horovod's TensorFlow binding."""

import functools
import re
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow import mpi_ops
from tensorflow.core.framework import attr_value_pb2

from keras_mwms.collectives.base import Collectives
from keras_mwms.collectives.base import Done

# What Horovod cannot sum is summed in a wider dtype,
_SUMMED_AS = {
    tf.bfloat16: tf.float32,
    tf.bool: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}
# and what it cannot move is moved as other bits.
_MOVED_AS = {
    tf.bfloat16: tf.float16,
    tf.uint32: tf.int32,
    tf.uint64: tf.int64,
    tf.complex64: tf.int64,
}
# Tensors with more elements are never constants here.
_MAX_HIDDEN = 2**16


class TensorFlowCollectives(Collectives):
    """The ring seen from TensorFlow; Horovod is initialized already."""

    def __init__(self) -> None:
        super().__init__()
        self.rank = hvd.rank()
        self.size = hvd.size()
        self._graphs: dict[tuple[str, str], Any] = {}
        self._true = tf.Variable(True, trainable=False)

    def start_all_reduce(self, tensors: Sequence[Any], name: str) -> Done:
        """Begins to sum each tensor over all replicas.

        One operation a tensor: in a graph each starts as soon as its tensor
        is there, and Horovod joins what waits together. A `tf.IndexedSlices`
        is summed by joining the rows of all replicas.
        """
        return Done(self._in_graph(_sum_all, name, tensors))

    def broadcast(
        self, tensors: Sequence[Any], name: str, root: int = 0
    ) -> list[Any]:
        """Returns the tensors of replica `root`."""
        return self._in_graph(_broadcast_all, name, tensors, root)

    def all_gather(self, tensor: Any, name: str) -> Any:
        """Joins the tensors of all replicas on axis 0."""
        rows = tf.convert_to_tensor(tensor)
        if rows.shape.rank == 0:
            rows = tf.reshape(rows, [1])
        (joined,) = self._in_graph(_gather_all, name, [rows])
        return joined

    def to_host(self, tensor: Any) -> np.ndarray:
        """Returns the tensor as a NumPy array."""
        return np.asarray(tensor.numpy())

    def from_host(self, array: np.ndarray) -> Any:
        """Returns the array as a tensor on the CPU."""
        with tf.device("CPU:0"):
            return tf.constant(array)

    def _in_graph(
        self,
        operation: Callable[..., list[Any]],
        name: str,
        tensors: Sequence[Any],
        *args: Any,
    ) -> list[Any]:
        """Runs an operation in the graph being traced, or in one of its own.

        Eager operations have no names: Horovod would know all of a kind by
        one, mix up those of two threads, and do one tensor after the other.
        """
        tensors = [_converted(tensor) for tensor in tensors]
        if not tf.executing_eagerly():
            is_so = self._true.read_value()
            hidden = [_hidden(tensor, is_so) for tensor in tensors]
            return operation(name, hidden, *args)
        key = (operation.__name__, name)
        graph = self._graphs.get(key)
        if graph is None:
            graph = tf.function(
                functools.partial(operation, name),
                autograph=False,
                reduce_retracing=True,
            )
            self._graphs[key] = graph
        results: list[Any] = graph(tensors, *args)
        return results


def _converted(tensor: Any) -> Any:
    if isinstance(tensor, tf.IndexedSlices):
        return tensor
    return tf.convert_to_tensor(tensor)


def _hidden(tensor: Any, is_so: Any) -> Any:
    """The tensor, of which a graph does not know its value beforehand.

    Horovod's operations do not count as stateful: TensorFlow's graph
    optimizer would run one on a constant once, while it folds constants, and
    never again, and other replicas would wait from the next call on. (Were
    they stateful, `tf.function` would run them one after the other.)

    Args:
        tensor: a tensor or `tf.IndexedSlices`.
        is_so: a boolean that is true, which the graph does not know.

    Returns:
        The same. Large tensors, of which it costs a copy, are as they were:
        they are gradients, which depend on weights.
    """
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(
            _hidden(tensor.values, is_so),
            _hidden(tensor.indices, is_so),
            tensor.dense_shape,
        )
    size = tensor.shape.num_elements()
    if size is not None and size > _MAX_HIDDEN:
        return tensor
    return tf.where(is_so, tensor, tf.zeros_like(tensor))


def _sum_all(name: str, tensors: Sequence[Any]) -> list[Any]:
    return [_sum(t, f"{name}.{i}") for i, t in enumerate(tensors)]


def _sum(tensor: Any, name: str) -> Any:
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(
            _gather(tensor.values, f"{name}.values"),
            tf.cast(
                _gather(tf.cast(tensor.indices, tf.int64), f"{name}.indices"),
                tensor.indices.dtype,
            ),
            tensor.dense_shape,
        )
    if tensor.dtype.is_complex:
        return tf.complex(
            _sum(tf.math.real(tensor), f"{name}.real"),
            _sum(tf.math.imag(tensor), f"{name}.imag"),
        )
    wire = tf.cast(tensor, _SUMMED_AS.get(tensor.dtype, tensor.dtype))
    # The public `hvd.allreduce` averages in ways of its own; the operation
    # below is the plain sum.
    total = mpi_ops._allreduce(
        wire, _node_name(name), op=hvd.Sum, ignore_name_scope=True
    )
    return tf.cast(_told_apart(total, name), tensor.dtype)


def _broadcast_all(name: str, tensors: Sequence[Any], root: int) -> list[Any]:
    return [
        _broadcast(tensor, f"{name}.{i}", root)
        for i, tensor in enumerate(tensors)
    ]


def _broadcast(tensor: Any, name: str, root: int) -> Any:
    received = hvd.broadcast(
        _to_wire(tensor), root, _node_name(name), ignore_name_scope=True
    )
    return _from_wire(_told_apart(received, name), tensor.dtype)


def _gather_all(name: str, tensors: Sequence[Any]) -> list[Any]:
    return [_gather(tensor, name) for tensor in tensors]


def _gather(tensor: Any, name: str) -> Any:
    joined = hvd.allgather(
        _to_wire(tensor), _node_name(name), ignore_name_scope=True
    )
    return _from_wire(_told_apart(joined, name), tensor.dtype)


def _node_name(name: str) -> str:
    """The name as TensorFlow takes it, without a scope.

    Horovod drops all up to the last slash: that is the scope of the caller.
    """
    return re.sub(r"[^A-Za-z0-9_.-]", "_", f"mwms.{name}")


def _told_apart(result: Any, name: str) -> Any:
    """Keeps TensorFlow from merging operations with equal inputs.

    Horovod's operations do not count as stateful. Where one replica has the
    same zeros twice, its graph optimizer would send them once, and the others
    would wait for the second: so each operation gets an attribute of its own.
    """
    value = attr_value_pb2.AttrValue(s=name.encode())
    result.op._set_attr("_keras_mwms_name", value)
    return result


def _to_wire(tensor: Any) -> Any:
    moved_as = _MOVED_AS.get(tensor.dtype)
    return tensor if moved_as is None else tf.bitcast(tensor, moved_as)


def _from_wire(tensor: Any, dtype: Any) -> Any:
    return tensor if tensor.dtype == dtype else tf.bitcast(tensor, dtype)
