"""What every backend's collectives offer."""

import abc
import contextlib
import json
import math
import pickle
import threading
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import Protocol

import numpy as np

# Arrays travel in buffers of this many bytes: few rounds on the wire, little
# memory beside the arrays.
PACK_BYTES = 64 * 2**20

# Bytes travel behind their number, which is a little-endian integer this long.
_COUNT_BYTES = 8


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
    unique among the operations in flight: Horovod pairs by name.

    The second group works on NumPy arrays and Python values, eagerly only.
    Threads may call different ones of these at once, in any order, also while
    another thread runs steps with operations of the first group. Calls of the
    same one pair in the order in which each replica makes them.

    Attributes:
        rank: this replica's number, chief 0.
        size: the number of replicas.
        traces: a step may be traced into a program.
        static_shapes: what is traced has shapes that are known then.
        needs_order: operations traced into one program must depend on each
            other, so that all replicas run them in the same order.
    """

    rank: int
    size: int
    traces = True
    static_shapes = False
    needs_order = False

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}

    @abc.abstractmethod
    def start_all_reduce(self, tensors: Sequence[Any], name: str) -> Pending:
        """Begins to sum each tensor over all replicas, as one group.

        Args:
            tensors: tensors of any shapes, the same on every replica, of
                floating or complex dtypes, integers of up to 32 bits, int64
                or bool.
                Their memory may be used for the result: read the result
                only, or use `all_reduce`.
            name: base of the names of the operations.

        Returns:
            The `Pending` sums, like `tensors`. What Horovod cannot sum goes
            as float32 (bfloat16), a wider integer or pairs of real numbers;
            of booleans the result says whether any replica has it true.
        """

    @abc.abstractmethod
    def broadcast(
        self, tensors: Sequence[Any], name: str, root: int = 0
    ) -> list[Any]:
        """Returns the tensors of replica `root`, bit for bit.

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
            tensor: a tensor of shape `(rows, ...)`; a scalar counts as one
                row. The number of rows may differ between replicas (on JAX:
                not inside `jit`, where shapes are static).
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
        """Sums each tensor over all replicas and leaves `tensors` alone.

        Otherwise as `start_all_reduce`.
        """
        return self.start_all_reduce(tensors, name).wait()

    def in_one_program(self, tensor: Any, other: Any) -> bool:
        """Whether two tensors are values of one program.

        Only there can operations be put in an order by what they depend on.
        False on JAX alone, if one of them is inside of a function that is
        traced by itself.
        """
        return True

    def gather_arrays(
        self, arrays: Sequence[np.ndarray], channel: str = "arrays"
    ) -> list[list[np.ndarray]]:
        """Returns the arrays of every replica, in rank order.

        For small arrays: every replica receives those of all.

        Args:
            arrays: arrays of any dtype without Python objects, of the same
                shapes and dtypes on every replica.
            channel: calls pair with those of the same channel.

        Returns:
            For each replica a list of new arrays like `arrays`.
        """
        mine = _copies(arrays)
        if not mine:
            return [[] for _ in range(self.size)]
        with self._one_at_a_time(channel):
            joined = self._gather(
                np.concatenate([_bytes_of(array) for array in mine]), channel
            )
        of_all = []
        for data in joined.reshape(self.size, -1):
            parts = [np.empty_like(array) for array in mine]
            _fill([_bytes_of(part) for part in parts], data)
            of_all.append(parts)
        return of_all

    def sum_arrays(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Sums each array over all replicas, in rank order, in its own dtype.

        Args:
            arrays: as `gather_arrays` takes them.

        Returns:
            The sums, the same to the last bit on every replica.
        """
        totals, *others = self.gather_arrays(arrays)
        for parts in others:
            for total, part in zip(totals, parts, strict=True):
                np.add(total, part, out=total)
        return totals

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

        Raises:
            ValueError: no replica has the rank `root`.
        """
        self._check_root(root)
        copies = _copies(arrays)
        with self._one_at_a_time("broadcast"):
            for pack in _packs([_bytes_of(copy) for copy in copies]):
                got = self._broadcast_bytes(
                    np.concatenate(pack), "host.broadcast", root
                )
                if self.rank != root:
                    _fill(pack, got)
        return copies

    def gather_bytes(self, data: bytes, channel: str = "bytes") -> list[bytes]:
        """Returns the bytes of every replica, in rank order.

        Args:
            data: bytes, as many as this replica likes.
            channel: calls pair with those of the same channel.

        Returns:
            The bytes, one value a replica.
        """
        return self._gather_bytes(data, channel)

    def gather_array(self, array: np.ndarray) -> np.ndarray:
        """Joins the arrays of all replicas, in rank order, on axis 0.

        Args:
            array: an array of shape `(rows, ...)` of any dtype without
                Python objects; the number of rows may differ.

        Returns:
            An array of shape `(sum of rows, ...)`.
        """
        array = np.ascontiguousarray(array)
        width = math.prod(array.shape[1:]) * array.dtype.itemsize
        rows = _bytes_of(array).reshape(len(array), width)
        with self._one_at_a_time("array"):
            joined = self._gather(rows, "array")
        joined = np.require(joined, requirements=["C", "W"])
        return joined.view(array.dtype).reshape(len(joined), *array.shape[1:])

    def gather_values(self, value: Any) -> list[Any]:
        """Returns every replica's value, in rank order.

        Args:
            value: anything JSON can hold. Nothing is unpickled.

        Returns:
            A list with one value a replica.
        """
        texts = self._gather_bytes(json.dumps(value).encode(), "values")
        return [json.loads(text) for text in texts]

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Returns the object of replica `root`, which is pickled.

        Args:
            value: any object that can be pickled; only the one of `root`
                matters.
            root: the rank whose object all get.

        Returns:
            On `root` the object itself, elsewhere a copy of it.

        Raises:
            ValueError: no replica has the rank `root`, or the object cannot
                be pickled; `root` itself raises pickle's error.
        """
        self._check_root(root)
        mine, failure = b"", None
        if self.rank == root:
            try:
                mine = pickle.dumps(value)
            except Exception as error:  # noqa: BLE001  raised below
                failure = error
        # Without the failed pickle the others would wait for it.
        data = self._gather_bytes(mine, "object")[root]
        if failure is not None:
            raise failure
        if not data:
            raise ValueError(
                f"The object of rank {root} cannot be pickled, see the error "
                "there."
            )
        return value if self.rank == root else pickle.loads(data)

    def barrier(self) -> None:
        """Returns when every replica has called it."""
        with self._one_at_a_time("barrier"):
            self._gather(np.zeros(1, np.uint8), "barrier")

    def _gather_bytes(self, data: bytes, kind: str) -> list[bytes]:
        count = len(data).to_bytes(_COUNT_BYTES, "little")
        mine = np.frombuffer(count + data, np.uint8)
        with self._one_at_a_time(kind):
            joined = self._gather(mine, kind).tobytes()
        parts, end = [], 0
        for _ in range(self.size):
            start = end + _COUNT_BYTES
            end = start + int.from_bytes(joined[end:start], "little")
            parts.append(joined[start:end])
        return parts

    def _gather(self, data: np.ndarray, kind: str) -> np.ndarray:
        return self._all_gather_bytes(data, f"host.gather.{kind}")

    def _all_gather_bytes(self, data: np.ndarray, name: str) -> np.ndarray:
        """Joins arrays of uint8 on axis 0, of any numbers of rows."""
        return self.to_host(self.all_gather(self.from_host(data), name))

    def _broadcast_bytes(
        self, data: np.ndarray, name: str, root: int
    ) -> np.ndarray:
        """Returns the vector of uint8 of replica `root`."""
        (got,) = self.broadcast([self.from_host(data)], name, root)
        return self.to_host(got)

    @contextlib.contextmanager
    def _one_at_a_time(self, kind: str) -> Iterator[None]:
        """Keeps a name from being used twice at once in this process.

        One lock a kind: with a single one, replicas whose threads come in
        another order would wait for each other for ever.
        """
        with self._locks.setdefault(kind, threading.Lock()):
            yield

    def _check_root(self, root: int) -> None:
        if not 0 <= root < self.size:
            raise ValueError(
                f"The root must be one of {self.size} replicas. "
                f"Received: root={root}"
            )


def _copies(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.array(array, order="C") for array in arrays]


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """The memory of an array in C order, as a vector of uint8."""
    return array.reshape(-1).view(np.uint8)


def _packs(vectors: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Cuts vectors of bytes, in order, into packs of `PACK_BYTES`."""
    pack: list[np.ndarray] = []
    room = PACK_BYTES
    for vector in vectors:
        while vector.size:
            pack.append(vector[:room])
            vector = vector[room:]
            room -= pack[-1].size
            if not room:
                yield pack
                pack, room = [], PACK_BYTES
    if pack:
        yield pack


def _fill(vectors: Sequence[np.ndarray], data: np.ndarray) -> None:
    """Writes what `np.concatenate(vectors)` had been on another replica."""
    start = 0
    for vector in vectors:
        end = start + vector.size
        vector[...] = data[start:end]
        start = end
