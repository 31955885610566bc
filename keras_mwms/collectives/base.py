"""What every backend's collectives offer."""

import abc
import json
import pickle
import threading
from collections.abc import Sequence
from typing import Any
from typing import Protocol

import numpy as np

# Arrays are packed into buffers of this many bytes: few rounds on the wire,
# little memory beside the arrays.
PACK_BYTES = 64 * 2**20


class Pending(Protocol):
    """A reduction that is under way."""

    def wait(self) -> list[Any]:
        """Returns the reduced tensors once they are there."""


class Done:
    """A `Pending` whose result needs no wait (a graph waits by itself)."""

    def __init__(self, tensors: list[Any]):
        self._tensors = tensors

    def wait(self) -> list[Any]:
        """Returns the tensors."""
        return self._tensors


class Collectives(abc.ABC):
    """Operations in which every replica of the ring takes part.

    The first group works on the backend's tensors, eagerly and inside
    `tf.function` or `jit`. Every replica calls with the same `name`, which is
    unique among the operations in flight: Horovod pairs by name. The second
    group works on NumPy arrays and Python values, eagerly only, one at a time.

    Attributes:
        rank: this replica's number, chief 0.
        size: the number of replicas.
        needs_order: operations traced into one program must depend on each
            other, so that all replicas run them in the same order.
    """

    rank: int
    size: int
    needs_order = False

    def __init__(self) -> None:
        self._host_lock = threading.Lock()

    @abc.abstractmethod
    def start_all_reduce(self, tensors: Sequence[Any], name: str) -> Pending:
        """Begins to sum each tensor over all replicas, as one group.

        Args:
            tensors: tensors of any shapes and numeric dtypes, the same on
                every replica. Their memory may be used for the result.
            name: base of the names of the operations.

        Returns:
            The `Pending` sums. bfloat16, which Horovod lacks, is summed in
            float32 and comes back as bfloat16.
        """

    @abc.abstractmethod
    def broadcast(
        self, tensors: Sequence[Any], name: str, root: int = 0
    ) -> list[Any]:
        """Returns the tensors of replica `root`.

        Args:
            tensors: tensors of the same shapes and dtypes on every replica.
            name: base of the names of the operations.
            root: the rank whose values all get.

        Returns:
            A list of tensors like `tensors`.
        """

    @abc.abstractmethod
    def all_gather(self, tensor: Any, name: str) -> Any:
        """Joins the tensors of all replicas, in rank order, on axis 0.

        Args:
            tensor: a tensor of shape `(rows, ...)`. The number of rows may
                differ between replicas (on JAX: not inside `jit`, where
                shapes are static).
            name: the name of the operation.

        Returns:
            A tensor of shape `(sum of rows, ...)`.
        """

    @abc.abstractmethod
    def to_host(self, tensor: Any) -> np.ndarray:
        """Returns the tensor as a NumPy array."""

    @abc.abstractmethod
    def from_host(self, array: np.ndarray) -> Any:
        """Returns the array as a tensor of the backend, on the CPU."""

    def all_reduce(self, tensors: Sequence[Any], name: str) -> list[Any]:
        """Sums each tensor over all replicas, see `start_all_reduce`."""
        return self.start_all_reduce(tensors, name).wait()

    def sum_arrays(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Sums each array over all replicas, in rank order, in its own dtype.

        For small arrays: every replica receives those of all.

        Args:
            arrays: arrays of the same shapes and dtypes on every replica.

        Returns:
            The sums, the same to the last bit on every replica.
        """
        arrays = [np.asarray(a) for a in arrays]
        if not arrays:
            return []
        flat = np.concatenate([_as_bytes(a) for a in arrays])
        with self._host_lock:
            joined = self._gather_array(flat, "sum")
        of_replicas = [
            _unpack(part, arrays) for part in joined.reshape(self.size, -1)
        ]
        return [
            np.sum(parts, axis=0, dtype=parts[0].dtype)
            for parts in zip(*of_replicas, strict=True)
        ]

    def broadcast_arrays(
        self, arrays: Sequence[np.ndarray], root: int = 0
    ) -> list[np.ndarray]:
        """Returns the arrays of replica `root`, bit for bit.

        Args:
            arrays: arrays of any dtype without Python objects, of the same
                shapes and dtypes on every replica.
            root: the rank whose values all get.

        Returns:
            New arrays like `arrays`.
        """
        received: list[np.ndarray] = []
        for pack in _packs(arrays):
            flat = np.concatenate([_as_bytes(a) for a in pack])
            with self._host_lock:
                (got,) = self.broadcast(
                    [self.from_host(flat)], "host.broadcast", root
                )
            received += _unpack(self.to_host(got), pack)
        return received

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Returns the bytes of every replica, in rank order."""
        payload = np.frombuffer(data, np.uint8)
        with self._host_lock:
            sizes = self._gather_array(np.array([len(data)], np.int64), "sizes")
            joined = self._gather_array(payload, "bytes")
        ends = np.cumsum(sizes)
        starts = ends - sizes
        return [
            joined[start:end].tobytes()
            for start, end in zip(starts, ends, strict=True)
        ]

    def gather_array(self, array: np.ndarray) -> np.ndarray:
        """Joins the arrays of all replicas, in rank order, on axis 0.

        Args:
            array: an array of shape `(rows, ...)` of any dtype without
                Python objects; the number of rows may differ.

        Returns:
            An array of shape `(sum of rows, ...)`.
        """
        array = np.ascontiguousarray(array)
        row = array.shape[1:]
        width = int(np.prod(row, dtype=np.int64)) * array.dtype.itemsize
        flat = _as_bytes(array).reshape(len(array), width)
        with self._host_lock:
            joined = self._gather_array(flat, "array")
        return np.frombuffer(joined.tobytes(), array.dtype).reshape(-1, *row)

    def gather_values(self, value: Any) -> list[Any]:
        """Returns every replica's value, in rank order.

        Args:
            value: anything JSON can hold. Nothing is unpickled.

        Returns:
            A list with one value a replica.
        """
        return [
            json.loads(text)
            for text in self.gather_bytes(json.dumps(value).encode())
        ]

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Returns the object of replica `root`, which is pickled.

        Args:
            value: any object that can be pickled; only the one of `root`
                matters.
            root: the rank whose object all get.

        Returns:
            On `root` the object itself, elsewhere a copy of it.
        """
        mine = pickle.dumps(value) if self.rank == root else b""
        data = self.gather_bytes(mine)[root]
        return value if self.rank == root else pickle.loads(data)  # noqa: S301

    def barrier(self) -> None:
        """Returns when every replica has called it."""
        self.gather_bytes(b"")

    def _gather_array(self, array: np.ndarray, name: str) -> np.ndarray:
        joined = self.all_gather(self.from_host(array), f"host.gather.{name}")
        return self.to_host(joined)


def _as_bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _packs(arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Groups arrays, in order, into packs of about `PACK_BYTES`."""
    packs: list[list[np.ndarray]] = []
    room = 0
    for array in map(np.asarray, arrays):
        if not packs or array.nbytes > room:
            packs.append([])
            room = PACK_BYTES
        packs[-1].append(array)
        room -= array.nbytes
    return packs


def _unpack(flat: np.ndarray, like: Sequence[np.ndarray]) -> list[np.ndarray]:
    arrays = []
    start = 0
    for array in like:
        end = start + array.nbytes
        part = np.frombuffer(flat[start:end].tobytes(), array.dtype)
        arrays.append(part.reshape(array.shape).copy())
        start = end
    return arrays
