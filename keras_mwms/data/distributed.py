"""Data that are split between the replicas, for `fit` and for custom loops."""

import itertools
import types
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras

from keras_mwms import _keras
from keras_mwms.collectives import AloneCollectives
from keras_mwms.collectives import Collectives
from keras_mwms.data import ahead
from keras_mwms.data import choose
from keras_mwms.data import leaves
from keras_mwms.data import sources
from keras_mwms.data import specs
from keras_mwms.data.generators import never_returns
from keras_mwms.data.given import Given
from keras_mwms.data.given import Once
from keras_mwms.data.policy import AutoShardPolicy
from keras_mwms.data.stream import ShardedStream

_STARTS = {
    "jax": "get_jax_iterator",
    "tensorflow": "get_numpy_iterator",
    "torch": "get_torch_dataloader",
}


class DistributedDataset(Given, _keras.DataAdapter):  # type: ignore[misc]
    """A replica's part of the data, step by step.

    `fit`, `evaluate` and `predict` of a distributed model take it as `x` or
    as `validation_data`, in a world of one those of any model.

    A loop of your own iterates over it, once for each epoch. Each replica
    gets its own rows of each step as tensors of its backend, in the form in
    which a `train_step` gets them. All replicas take the same number of
    steps; one that has no rows in a step gets a batch of 0 rows. On
    TensorFlow, `next(iterator)` works inside of a `tf.function`, too.

    All replicas must iterate alike. The next step is made ready while you
    work on one. There may be several iterators at once, but not over one
    `PyDataset`, which knows when an epoch begins. A generator of yours goes
    on at each pass where the last one ended, also if that was broken off.

    Args:
        ring: the collectives; every replica makes its datasets in the same
            order.
        data: data as `fit` takes them: `x`, or a tuple `(x, y)` or
            `(x, y, sample_weight)`. Arrays come in batches of 32 rows.
        is_own: as in `Given`.
    """

    def __init__(self, ring: Collectives, data: Any, *, is_own: bool):
        self.is_own = is_own or ring.size == 1
        self._ring = ring
        self._peeked: list[Any] | None = None
        self._cached: dict[str, Any] = {}
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if isinstance(x, types.GeneratorType):
            # A generator gives a batch once: what was looked at comes first.
            self._peeked = list(itertools.islice(x, specs.EXAMPLES))
            rest = itertools.chain(list(self._peeked), x)
            x = (_endless if never_returns(x) else _resumed)(rest)
        elif _keras.is_tf_dataset(x):
            from keras_mwms.data import tf_data

            tf_data.check_batched(x)
        self.data = x, y, sample_weight

    @property
    def rank(self) -> int:
        """This replica's number."""
        return self._ring.rank

    @property
    def is_alone(self) -> bool:
        """Whether there is no other replica."""
        return self._ring.size == 1

    @property
    def element_spec(self) -> Any:
        """The types of this replica's part of a step, of any number of rows.

        On TensorFlow a structure of `tf.TypeSpec`, so that
        `tf.function(input_signature=[dataset.element_spec])` works; on other
        backends one of `keras.KerasTensor`. What is no `tf.data.Dataset` is
        judged by its first two batches. Asks no other replica.

        Raises:
            ValueError: there is no batch.
        """
        if "spec" not in self._cached:
            self._cached["spec"] = self._spec()
        return self._cached["spec"]

    def __iter__(self) -> Iterator[Any]:
        """Starts a pass. Every replica calls."""
        if keras.backend.backend() == "tensorflow":
            from keras_mwms.data import distributed_tensorflow

            return distributed_tensorflow.iterator(self)
        return self.start()()

    def start(self) -> Callable[[], Iterator[Any]]:
        """Prepares a pass; the replicas agree on how.

        Returns:
            A function that starts it.
        """
        if self.is_alone:
            return self._pass_alone
        if self._peeked is not None:
            # A loop that broke off has left a task that reads a batch.
            ahead.wait_for(self.data[0])
        adapter = self.adapter()
        if isinstance(adapter, ShardedStream):
            adapter = adapter.on_channel(choose.new_channel(self._ring))
        return lambda: self._pass(adapter)

    def adapter(self) -> Any:
        """What makes this replica's parts. Every replica calls."""
        if "adapter" not in self._cached:
            x, y, sample_weight = self.data
            if self._peeked is not None:
                x = Once(x)
            self._cached["adapter"] = choose.shard(
                self._ring,
                x,
                y,
                sample_weight,
                policy=self.policy,
                is_given=self.is_own,
                needs_end=False,
            )
        return self._cached["adapter"]

    def spec_of_all(self) -> Any:
        """Like `element_spec`, also where this replica has no batch.

        Every replica calls.
        """
        if "spec_of_all" not in self._cached:
            has_none = not self._is_tf_data and not self._examples()
            mine = None if has_none else self.element_spec
            self._cached["spec_of_all"] = specs.of_any(self._ring, mine)
        return self._cached["spec_of_all"]

    def own_rows(self, shard: Any) -> Any:
        """The replica's rows of what an adapter gives for a step."""
        batch = shard.data
        if not int(shard.rows[self.rank]):
            batch = leaves.take(batch, slice(0, 0))
        return specs.as_tensors(batch)

    def _pass(self, adapter: Any) -> Iterator[Any]:
        start = getattr(adapter, _STARTS[keras.backend.backend()])
        adapter.on_epoch_begin()
        try:
            for shard in start():
                yield self.own_rows(shard)
        finally:
            adapter.on_epoch_end()

    def _pass_alone(self) -> Iterator[Any]:
        if "source" not in self._cached:
            self._cached["source"] = self._own_source()
        source = self._cached["source"]
        source.on_epoch_begin()
        try:
            for part in source.start():
                yield specs.as_tensors(part.data)
        finally:
            source.on_epoch_end()

    def _own_source(self) -> Any:
        """All batches of this process, without a word to the others."""
        x, y, sample_weight = self.data
        return sources.source_of(
            AloneCollectives(),
            x if self._peeked is None else Once(x),
            y,
            sample_weight,
            policy=AutoShardPolicy.OFF,
            is_given=True,
            steps=None,
            in_order=False,
        )[0]

    @property
    def _is_tf_data(self) -> bool:
        return _keras.is_tf_dataset(self.data[0])

    def _spec(self) -> Any:
        if self._is_tf_data:
            return specs.of_tf_data(self.data[0])
        examples = self._examples()
        if not examples:
            raise ValueError(
                "The data have no batch that could tell what their elements "
                f"are. Received: an empty {type(self.data[0]).__name__}"
            )
        return specs.of_examples([specs.as_tensors(each) for each in examples])

    def _examples(self) -> list[Any]:
        """The first batches; none is lost."""
        x = self.data[0]
        if self._peeked is not None:
            return self._peeked
        if isinstance(x, keras.utils.PyDataset):
            adapter = _keras.data_adapter(x)
            number = x.num_batches
            if number is None or number > specs.EXAMPLES:
                number = specs.EXAMPLES
            return [_keras.standardized(adapter, x[i]) for i in range(number)]
        parts = itertools.islice(self._own_source().start(), specs.EXAMPLES)
        return [part.data for part in parts]

    # What plain Keras asks, which trains in a world of one.

    @property
    def num_batches(self) -> int | None:
        """Number of batches, `None` if it is not known."""
        number: int | None = self._for_keras().num_batches
        return number

    @property
    def batch_size(self) -> int | None:
        """Rows of a batch, `None` if it is not known."""
        size: int | None = self._for_keras().batch_size
        return size

    @property
    def has_partial_batch(self) -> bool | None:
        """Whether the last batch is smaller, `None` if it is not known."""
        partial: bool | None = self._for_keras().has_partial_batch
        return partial

    @property
    def partial_batch_size(self) -> int | None:
        """Rows of the last batch if it is known to be smaller."""
        size: int | None = self._for_keras().partial_batch_size
        return size

    def get_numpy_iterator(self) -> Any:
        """Starts an epoch of NumPy batches."""
        return self._for_keras().get_numpy_iterator()

    def get_jax_iterator(self) -> Any:
        """Starts an epoch of batches that JAX takes."""
        return self._for_keras().get_jax_iterator()

    def get_torch_dataloader(self) -> Any:
        """Epochs of batches of PyTorch tensors."""
        return self._for_keras().get_torch_dataloader()

    def get_tf_dataset(self) -> Any:
        """Epochs of batches as `tf.data` iterators."""
        return self._for_keras().get_tf_dataset()

    def on_epoch_begin(self) -> None:
        """Tells the user's data."""
        self._for_keras().on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Tells the user's data."""
        self._for_keras().on_epoch_end()

    def _for_keras(self) -> Any:
        if not self.is_alone:
            raise RuntimeError(
                "A distributed dataset is for models that are distributed. "
                "Call keras_mwms.distribute(model) first. Received: a model "
                f"that is not, in a world of {self._ring.size} replicas"
            )
        if "for_keras" not in self._cached:
            self._cached["for_keras"] = _keras.data_adapter(*self.data)
        return self._cached["for_keras"]


def _resumed(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _endless(batches: Iterator[Any]) -> Iterator[Any]:
    # Its code cannot return either, which is how it is known.
    while True:
        yield next(batches)
