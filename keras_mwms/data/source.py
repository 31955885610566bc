"""What the user's data give to one replica, before the replicas agree."""

import abc
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_mwms.data import leaves
from keras_mwms.data import slices
from keras_mwms.data.plan import Plan


class Part(NamedTuple):
    """A replica's part of one step.

    Attributes:
        data: its rows; another row of the data where it has none.
        own: how many of the rows are its own.
        total: rows of the global batch, where the replica has seen it.
        code: a checksum of the global batch, of the first one only.
    """

    data: Any
    own: int
    total: int | None = None
    code: int = 0


class Source(abc.ABC):
    """Batches of one replica.

    Attributes:
        num_batches: number of steps that Keras is told, `None` if not known.
        is_known: whether every replica knows the number of steps of a pass
            and the rows of each without asking the others.
        is_endless: whether a pass has no end.
        batch_size: rows of the global batch, `None` if not known.
        tail: rows of the last global batch of a pass if that is smaller,
            `None` if there is none or it is not known.
        plan: the steps of this replica, where the rows of each are sure.
        at_hand: how many batches of a pass need not be read any more.
    """

    num_batches: int | None = None
    is_known = False
    is_endless = False
    batch_size: int | None = None
    tail: int | None = None
    plan: Plan | None = None
    at_hand = 0

    @abc.abstractmethod
    def start(self) -> Iterator[Part]:
        """Starts a pass over the data."""

    @abc.abstractmethod
    def example(self) -> Any:
        """A batch to build a model with; no row is lost by it."""

    def peek(self) -> Any:
        """Like `example`, where Keras would start an epoch to see a batch.

        What it would draw from random generators is drawn.
        """
        return self.example()

    def on_tensorflow(self) -> None:  # noqa: B027
        """Called where Keras, on TensorFlow, looks at the data beforehand."""

    def on_epoch_begin(self) -> None:  # noqa: B027
        """Called before each epoch."""

    def on_epoch_end(self) -> None:  # noqa: B027
        """Called after each epoch."""


class Batches(abc.ABC):
    """The batches that the user's data make on this replica.

    Attributes:
        num_batches: as in `Source`.
        is_endless: as in `Source`.
        batch_size: as in `Source`.
        fixed_rows: rows of every batch, where that is sure.
        at_hand: as in `Source`.
    """

    num_batches: int | None = None
    is_endless = False
    batch_size: int | None = None
    fixed_rows: int | None = None
    at_hand = 0

    @abc.abstractmethod
    def start(self) -> Iterator[Any]:
        """Starts a pass over the batches."""

    @abc.abstractmethod
    def example(self) -> Any:
        """As in `Source`."""

    def on_epoch_begin(self) -> None:  # noqa: B027
        """Called before each epoch."""

    def on_epoch_end(self) -> None:  # noqa: B027
        """Called after each epoch."""


class _OfBatches(Source):
    """A source that cuts batches."""

    def __init__(self, batches: Batches):
        self.batches = batches
        self.num_batches = batches.num_batches
        self.is_endless = batches.is_endless
        self.batch_size = batches.batch_size
        self.at_hand = batches.at_hand

    def example(self) -> Any:
        """The rows of an example that some replica gets."""
        return self.batches.example()

    def on_epoch_begin(self) -> None:
        """Tells the user's data."""
        self.batches.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Tells the user's data."""
        self.batches.on_epoch_end()


class Sliced(_OfBatches):
    """Every replica makes the global batches and takes its slice of each.

    Args:
        batches: the global batches.
        size: number of replicas.
        rank: this replica.
        steps: steps of an epoch if the user says so.
    """

    def __init__(
        self, batches: Batches, size: int, rank: int, steps: int | None
    ):
        super().__init__(batches)
        self._size, self._rank = size, rank
        self.is_known = batches.num_batches is not None or (
            batches.is_endless and steps is not None
        )

    def peek(self) -> Any:
        """The first rows of an epoch that is not gone on with.

        Its end is told by Keras, which does so before it trains.
        """
        self.on_epoch_begin()
        part = next(self.start(), None)
        return self.example() if part is None else part.data

    def start(self) -> Iterator[Part]:
        """Starts a pass."""
        code = None
        for batch in self.batches.start():
            total = leaves.rows_in(batch)
            if code is None:
                code = leaves.checksum(batch)
            own = slices.slice_of(total, self._size, self._rank)
            count = own.stop - own.start
            data = leaves.take(batch, own if count else slice(0, 1))
            yield Part(data, count, total, code)
            code = 0


class Own(_OfBatches):
    """Each replica has batches of its own, which make up its part.

    Args:
        batches: the replica's batches.
        sizes: how many rows each step takes at most, again and again;
            `None` takes each batch as it is.
        pieces: in how many parts each batch is cut where `sizes` is `None`.
        first: with which of the pieces each batch begins.
    """

    def __init__(
        self,
        batches: Batches,
        sizes: list[int] | None = None,
        pieces: int = 1,
        first: int = 0,
    ):
        super().__init__(batches)
        if sizes is not None or pieces > 1:
            self.num_batches = None
        self._sizes = sizes
        self._pieces = pieces
        self._first = first
        number, rows = batches.num_batches, batches.fixed_rows
        if number is not None and rows is not None:
            self.plan = Plan(number, rows, sizes or self._parts_of(rows))

    def start(self) -> Iterator[Part]:
        """Starts a pass."""
        step = 0
        for batch in self.batches.start():
            rows, start = leaves.rows_in(batch), 0
            sizes = self._sizes or self._parts_of(rows)
            while start < rows:
                stop = min(start + sizes[step % len(sizes)], rows)
                # Where it takes none in a step, its next row stands in.
                piece = slice(start, max(stop, start + 1))
                yield Part(leaves.take(batch, piece), stop - start)
                start = stop
                step += 1

    def _parts_of(self, rows: int) -> list[int]:
        """Sizes that differ by one at most, the larger ones first."""
        parts = np.full(self._pieces, rows // self._pieces)
        parts[: rows % self._pieces] += 1
        return [int(part) for part in np.roll(parts, -self._first)]
