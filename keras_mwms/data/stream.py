"""Feeds a model from data that come batch by batch, on all replicas alike."""

import copy
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_mwms import _keras
from keras_mwms.collectives import Collectives
from keras_mwms.data import batches
from keras_mwms.data import feeding
from keras_mwms.data import leaves
from keras_mwms.data import slices
from keras_mwms.data import transport
from keras_mwms.data.agreed import AgreedSteps
from keras_mwms.data.agreed import Step
from keras_mwms.data.agreed import check_first
from keras_mwms.data.ahead import Reader
from keras_mwms.data.plan import Plan
from keras_mwms.data.plan import rows_of_steps
from keras_mwms.data.source import Part
from keras_mwms.data.source import Source


class ShardedStream(_keras.DataAdapter):  # type: ignore[misc]
    """Feeds `fit`, `evaluate` and `predict` with this replica's rows.

    Every replica makes its streams in the same order and takes the same
    number of steps from each.

    Args:
        ring: the collectives.
        channel: name of the exchanges of this stream alone.
        source: this replica's part of the data.
        num_batches: number of steps of an epoch that Keras is told, `None` if
            it is not known.
        with_share: whether batches come as `Shard` or one of its kin;
            `predict` takes them plain.
        limit: how many steps will be taken, `None` if that depends on the
            data. Nothing is read beyond.
        spans_passes: whether the limit counts the steps of all passes.
        steps_per_execution: how many steps Keras takes at a time.
        someone_has_none: whether some replica has no batch at all.
        generator: the generator that the data come from, if it is one.
        plans: the steps of each replica, where those of all are sure.
    """

    def __init__(
        self,
        ring: Collectives,
        channel: str,
        source: Source,
        *,
        num_batches: int | None = None,
        with_share: bool = True,
        limit: int | None = None,
        spans_passes: bool = False,
        steps_per_execution: int = 1,
        someone_has_none: bool = False,
        generator: Generator[Any, Any, Any] | None = None,
        plans: list[Plan] | None = None,
    ):
        self._ring = ring
        self._source = source
        self._channel = channel
        self._num_batches = num_batches
        self._limit = limit
        self._spans_passes = spans_passes
        self._taken = 0
        self._steps_per_execution = steps_per_execution
        self._with_share = with_share
        self._someone_has_none = someone_has_none
        self._generator = generator
        self._plans = plans
        backend = keras.backend.backend()
        self._convert = feeding.converter(backend)
        self._shard = batches.maker(backend, may_be_empty=True)
        self._is_checked = False
        self._fed: list[np.ndarray] = []

    @property
    def num_batches(self) -> int | None:
        """Number of steps of an epoch, `None` if it is not known."""
        return self._num_batches

    @property
    def batch_size(self) -> int | None:
        """The global batch size, `None` if it is not known."""
        return self._source.batch_size

    @property
    def has_partial_batch(self) -> bool | None:
        """Whether the last global batch is smaller, `None`: not known."""
        return self._source.tail is not None or None

    @property
    def partial_batch_size(self) -> int | None:
        """Rows of the last global batch if it is known to be smaller."""
        return self._source.tail

    def on_channel(self, channel: str) -> "ShardedStream":
        """The same data, with exchanges for another pass at the same time."""
        stream = copy.copy(self)
        stream._channel = channel
        return stream

    def on_epoch_begin(self) -> None:
        """Tells the user's data."""
        self._source.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Tells the user's data."""
        self._source.on_epoch_end()

    def sample(self) -> Any:
        """A batch to build a model with."""
        return feeding.to_numpy(self._example(self._source.example))

    def peek(self) -> Any:
        """A batch to build a model with, where Keras would start an epoch."""
        return feeding.to_numpy(self._example(self._source.peek))

    def fed_rows(self, steps: int | None = None) -> list[np.ndarray]:
        """The rows of every replica in each step of the last pass."""
        return self._fed[:steps]

    def get_jax_iterator(self) -> Iterator[Any]:
        """Starts an epoch of batches that JAX takes."""
        return self._epoch()

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Starts an epoch of batches of the backend's kind."""
        return self._epoch()

    def get_torch_dataloader(self) -> "Epochs":
        """Epochs of batches of PyTorch tensors."""
        return Epochs(self._epoch)

    def get_tf_dataset(self) -> Any:
        """Epochs of batches, which Keras iterates over like a dataset."""
        from keras_mwms.data import stream_tensorflow

        self._source.on_tensorflow()
        return Epochs(
            lambda: stream_tensorflow.Executions(
                self._epoch(), self._steps_per_execution
            )
        )

    def _example(self, make: Callable[[], Any]) -> Any:
        """What this replica makes, or another one if it has no batch."""
        if not self._someone_has_none:
            return make()
        mine = make() if self._source.num_batches else None
        of_all = self._ring.gather_bytes(
            b"" if mine is None else transport.packed(mine),
            f"{self._channel}.example",
        )
        if not any(of_all):
            raise ValueError(
                "There are no data to train with. Received: data of 0 batches "
                "on every replica"
            )
        return transport.unpacked(next(filter(None, of_all)))

    def _epoch(self) -> Iterator[Any]:
        return self._batches(self._source.start())

    def _batches(self, parts: Iterator[Part]) -> Iterator[Any]:
        # Keras starts epochs that it never reads: nothing begins before the
        # first batch is asked for.
        self._fed = []
        if not self._spans_passes:
            self._taken = 0
        for data, rows in self._steps(parts):
            self._taken += 1
            self._fed.append(rows)
            data = self._convert(data)
            yield self._shard(data, rows) if self._with_share else data

    def _steps(self, parts: Iterator[Part]) -> Iterator[Step]:
        if self._source.is_known:
            return self._known(parts)
        if self._plans is not None:
            return self._planned(parts, self._plans)
        return self._agreed(parts)

    def _known(self, parts: Iterator[Part]) -> Iterator[Step]:
        for part in parts:
            if not self._is_checked:
                self._is_checked = True
                check_first(self._ring, self._channel, part)
            yield part.data, slices.rows_of(part.total or 0, self._ring.size)

    def _planned(
        self, parts: Iterator[Part], plans: list[Plan]
    ) -> Iterator[Step]:
        data: Any = None
        for rows in rows_of_steps(plans):
            part = next(parts, None)
            own = 0 if part is None else part.own
            if own != rows[self._ring.rank]:
                raise ValueError(
                    "The data have other batches than they say. Received: "
                    f"{own} rows where {rows[self._ring.rank]} should be"
                )
            # At the end one of its rows stands in.
            data = leaves.take(data, slice(0, 1)) if part is None else part.data
            yield data, np.array(rows, np.int32)

    def _agreed(self, parts: Iterator[Part]) -> Iterator[Step]:
        most = None if self._limit is None else self._limit - self._taken
        reader = Reader(parts, most, f"keras_mwms {self._channel} reader")
        if self._generator is not None:
            source = self._source
            kind = type(source).__name__
            reader.go_on(self._generator, kind, source.at_hand)
        return AgreedSteps(self._ring, self._channel, reader, most)


class Epochs:
    """Something to iterate over, again for each epoch."""

    def __init__(self, start: Callable[[], Iterator[Any]]):
        self._start = start

    def __iter__(self) -> Iterator[Any]:
        return self._start()
