"""Reads and changes the graph of a `tf.data` pipeline.

TensorFlow's own sharding does the same: it makes a pipeline anew from its
graph. Only public operations are used here.
"""

import itertools
import os
import zlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import op_def_registry

# The operations that TensorFlow's file sharding takes for readers of files.
_READERS = (
    "ArrayRecordDataset",
    "FixedLengthRecordDataset",
    "RecordIODataset",
    "SSTableDataset",
    "TFRecordDataset",
    "TextLineDataset",
)
# What functions compute of the seeds that they hold.
_FOLDED: dict[str, Callable[..., int]] = {
    "Equal": lambda a, b: int(a == b),
    "LogicalAnd": lambda a, b: int(a and b),
    "SelectV2": lambda condition, a, b: a if condition else b,
}
_IGNORE_STATE = 1
# Names of files may come from something that has no end.
_MOST_FILES = 100_000
_HINT = tf.data.experimental.SHARD_HINT


class Graph:
    """The graph of a dataset, which can be changed.

    Args:
        dataset: the dataset.

    Raises:
        tf.errors.OpError: it cannot be written as a graph, for example
            because it holds more than 2 GB of data.
    """

    def __init__(self, dataset: tf.data.Dataset):
        self._spec = dataset.element_spec
        self._proto = graph_pb2.GraphDef.FromString(
            tf.raw_ops.DatasetToGraphV2(
                input_dataset=tf.data.experimental.to_variant(dataset),
                external_state_policy=_IGNORE_STATE,
                # TensorFlow cannot read the devices of Python functions that
                # it has stripped.
                strip_device_assignment=False,
            ).numpy()
        )
        self._nodes = {node.name: node for node in self._proto.node}
        self._functions = {
            f.signature.name: f for f in self._proto.library.function
        }

    def dataset(self) -> tf.data.Dataset:
        """The dataset that the graph makes now."""
        return _loaded(self._proto, self._spec)

    def files(self) -> list[list[int]]:
        """What the readers in the pipeline read.

        Returns:
            For each reader one number a file, the same for files of the same
            name, whatever their folders.
        """
        return [
            _names(self._elements(node)) for node in self._read_by(self._end)
        ]

    def has_hint(self) -> bool:
        """Whether `shard(SHARD_HINT, SHARD_HINT)` stands somewhere."""
        return any(True for _ in self._hints())

    def follow_hints(self, size: int, rank: int) -> None:
        """Shards where `shard(SHARD_HINT, SHARD_HINT)` stands.

        TensorFlow's own sharding by hints fails where a part has no row.

        Args:
            size: number of parts.
            rank: the part to take.
        """
        for i, (node, scope) in enumerate(list(self._hints())):
            for place, number in ((1, size), (2, rank)):
                node.input[place] = scope.add_number(
                    f"keras_mwms_shard{place}_{i}", number
                )

    def seeds(self) -> list[list[int] | None]:
        """The two seeds of each operation that draws an order.

        Returns:
            `[0, 0]` for an operation that has none, `None` for one whose
            seeds are not constants.
        """
        found = []
        for _, node, scope in self._drawing():
            seeds = [scope.number(node.input[i]) for i in _places(node.op)[:2]]
            found.append(None if None in seeds else seeds)
        return found  # type: ignore[return-value]

    def are_inside(self) -> list[bool]:
        """Which of the operations that draw an order are in functions.

        TensorFlow makes those anew for each call: with the same seeds they
        draw the same order in each epoch.
        """
        return [scope.is_function for _, _, scope in self._drawing()]

    def set_seeds(self, seeds: Sequence[Sequence[int] | None]) -> None:
        """Gives other seeds to the operations that draw an order.

        Args:
            seeds: two of up to 63 bits for each, `None` to leave it alone.
        """
        for (index, node, scope), pair in zip(
            list(self._drawing()), seeds, strict=True
        ):
            if pair is None:
                continue
            first, second, *generator = _places(node.op)
            for i, seed in zip((first, second), pair, strict=True):
                node.input[i] = scope.add_number(
                    f"keras_mwms_seed{i}_{index}", seed
                )
            for i in generator:
                # The one that is there goes on with its old seeds.
                node.input[i] = scope.add_generator(
                    f"keras_mwms_generator_{index}"
                )

    def make_deterministic(self) -> int:
        """Makes parallel operations keep the order of their elements.

        Returns:
            How many did not.
        """
        count = 0
        for node, _ in self._operations():
            # To ask a message for what it lacks would put it there.
            if (
                "deterministic" in node.attr
                and node.attr["deterministic"].s == b"false"
            ):
                node.attr["deterministic"].s = b"true"
                count += 1
        return count

    @property
    def _end(self) -> Any:
        (end,) = (n for n in self._proto.node if n.op == "_Retval")
        return end

    def _read_by(self, node: Any) -> Iterator[Any]:
        """The operations that hold or make the names of files.

        Args:
            node: where to look from, towards the beginning.
        """
        if _is_reader(node.op):
            yield self._nodes[node.input[0]]
        elif "Dataset" in node.op and self._reads_inside(node):
            # A flat_map or an interleave: a file for each input element.
            yield self._nodes[node.input[0]]
        else:
            for name in node.input:
                source = self._nodes.get(name.split(":")[0])
                if source is not None and "Dataset" in source.op:
                    yield from self._read_by(source)

    def _reads_inside(self, node: Any) -> bool:
        """Whether functions that an operation calls read files."""
        return any(
            _is_reader(inner.op) or self._reads_inside(inner)
            for attr in node.attr.values()
            if attr.func.name in self._functions
            for inner in self._functions[attr.func.name].node_def
        )

    def _elements(self, source: Any) -> Iterator[Any]:
        """What a constant holds or a dataset gives."""
        if source.op == "Const":
            yield from tf.make_ndarray(source.attr["value"].tensor).ravel()
            return
        source = self._once(source)
        has_types = "output_types" in source.attr
        types = source.attr["output_types" if has_types else "Toutput_types"]
        spec = tuple(
            tf.TensorSpec(shape, dtype)
            for shape, dtype in zip(
                source.attr["output_shapes"].list.shape,
                types.list.type,
                strict=True,
            )
        )
        part = graph_pb2.GraphDef()
        part.CopyFrom(self._proto)
        for node in part.node:
            for i, name in enumerate(node.input):
                if name in self._nodes:
                    node.input[i] = self._once(self._nodes[name]).name
        (end,) = (n for n in part.node if n.op == "_Retval")
        end.input[0] = source.name
        yield from _loaded(part, spec).as_numpy_iterator()

    def _once(self, node: Any) -> Any:
        """What an operation repeats."""
        while node.op == "RepeatDataset":
            node = self._nodes[node.input[0]]
        return node

    def _hints(self) -> Iterator[tuple[Any, "_Scope"]]:
        for node, scope in self._operations():
            if (
                node.op == "ShardDataset"
                and scope.number(node.input[1]) == _HINT
            ):
                yield node, scope

    def _drawing(self) -> Iterator[tuple[int, Any, "_Scope"]]:
        """The operations that draw an order, with a number for each."""
        drawing = (
            (node, scope)
            for node, scope in self._operations()
            if _places(node.op)
        )
        for index, (node, scope) in enumerate(drawing):
            yield index, node, scope

    def _operations(self) -> Iterator[tuple[Any, "_Scope"]]:
        """All operations, in functions too, in an order told by the graph.

        Names of functions count what a process has made before.
        """
        scopes = [_Scope(self._proto.node)]
        names: dict[str, None] = {}
        for scope in scopes:
            for node in list(scope.nodes):
                for attr in sorted(node.attr):
                    name = node.attr[attr].func.name
                    if name in self._functions and name not in names:
                        names[name] = None
                        nodes = self._functions[name].node_def
                        scopes.append(_Scope(nodes, is_function=True))
                yield node, scope


class _Scope:
    """Where names of operations hold: the graph, or a function.

    Args:
        nodes: its operations.
        is_function: whether it is a function.
    """

    def __init__(self, nodes: Any, *, is_function: bool = False):
        self.nodes = nodes
        self.is_function = is_function
        # How an output is referred to, by the names of the operation and of
        # the output.
        self._reference = "{}:{}:0" if is_function else "{}"
        self._by_name = {node.name: node for node in nodes}

    def number(self, reference: str) -> int | None:
        """The number that an input is, `None` if it is no constant one."""
        node = self._by_name.get(reference.split(":")[0])
        if node is None:
            return None
        if node.op in _FOLDED:
            numbers = [self.number(name) for name in node.input]
            return None if None in numbers else _FOLDED[node.op](*numbers)
        if node.op != "Const":
            return None
        value = tf.make_ndarray(node.attr["value"].tensor)
        return int(value) if value.ndim == 0 else None

    def add_number(self, name: str, value: int) -> str:
        """Adds a constant, or gives it another value.

        Returns:
            A reference to it.
        """
        node = self._by_name.get(name)
        if node is None:
            node = self.nodes.add(name=name, op="Const")
        node.attr["dtype"].type = tf.int64.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(
            tf.make_tensor_proto(value, tf.int64)
        )
        return self._reference.format(name, "output")

    def add_generator(self, name: str) -> str:
        """Adds what stands for a generator made from the seeds."""
        if name not in self._by_name:
            self.nodes.add(name=name, op="DummySeedGenerator")
        return self._reference.format(name, "handle")


def by_files(dataset: tf.data.Dataset, size: int, rank: int) -> tf.data.Dataset:
    """The part of a pipeline that reads a replica's own files.

    Args:
        dataset: the whole.
        size: number of replicas.
        rank: this replica.

    Returns:
        The part, as TensorFlow splits it.

    Raises:
        tf.errors.OpError: TensorFlow cannot.
    """
    types, shapes = [], []
    for spec in tf.nest.flatten(dataset.element_spec):
        is_dense = isinstance(spec, tf.TensorSpec)
        types.append(spec.dtype if is_dense else tf.variant)
        shapes.append(spec.shape if is_dense else tf.TensorShape(None))
    variant = tf.raw_ops.AutoShardDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        num_workers=size,
        index=rank,
        output_types=types,
        output_shapes=shapes,
        auto_shard_policy=tf.data.experimental.AutoShardPolicy.FILE,
        num_replicas=size,
    )
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def batch_size_of(dataset: tf.data.Dataset) -> int | None:
    """The batch size that a pipeline says, `None` if it says none."""
    size = int(
        tf.raw_ops.ComputeBatchSize(
            input_dataset=tf.data.experimental.to_variant(dataset)
        )
    )
    return size if size > 0 else None


def _loaded(graph: Any, spec: Any) -> tf.data.Dataset:
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    return tf.data.experimental.from_variant(variant, spec)


def _is_reader(op: str) -> bool:
    return op.rstrip("V0123456789") in _READERS


def _places(op: str) -> list[int]:
    """Which inputs of an operation on datasets are its seeds.

    Args:
        op: the operation.

    Returns:
        The places of `seed`, `seed2` and, if it has one, `seed_generator`.
        Empty for an operation that draws no order.
    """
    definition = op_def_registry.get(op) if "Dataset" in op else None
    if definition is None:
        return []
    names = [arg.name for arg in definition.input_arg]
    if "seed" not in names:
        return []
    wanted = ("seed", "seed2", "seed_generator")
    return [names.index(name) for name in wanted if name in names]


def _names(elements: Iterator[Any]) -> list[int]:
    some = itertools.islice(elements, _MOST_FILES)
    return [zlib.crc32(_name(element)) for element in some]


def _name(element: Any) -> bytes:
    while isinstance(element, tuple) and len(element) == 1:
        (element,) = element
    if isinstance(element, bytes):
        return os.path.basename(element)
    return repr(element).encode()
