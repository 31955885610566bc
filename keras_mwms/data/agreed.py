"""Steps that the replicas agree on, one ahead of the one that is taken."""

import warnings
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_mwms.collectives import Collectives
from keras_mwms.data import leaves
from keras_mwms.data import transport
from keras_mwms.data.ahead import Task
from keras_mwms.data.source import Part

# What replicas tell each other of a step: their own rows or how they ended,
# the rows of the global batch, its checksum, whether they hold any row.
_OWN, _TOTAL, _CODE, _HOLDS = range(4)
_ENDED, _FAILED = -1, -2
_NOT_SEEN = -1

Step = tuple[Any, np.ndarray]


class AgreedSteps:
    """Iterates over `(data, rows)`, the same number of times on every replica.

    As long as one replica has rows all go on. The next step is agreed on
    while the caller works on the last one, on a thread: its wait is hidden
    unless the data are slower than the steps.

    Args:
        ring: the collectives; every replica iterates alike.
        channel: name of the exchanges, of these steps alone.
        parts: this replica's parts of the steps.
        goes_on: asked before each step is handed out: whether another one
            will be taken.
        generator: the generator that the parts come from, if it is one.
    """

    def __init__(
        self,
        ring: Collectives,
        channel: str,
        parts: Iterator[Part],
        goes_on: Callable[[], bool],
        generator: Generator[Any, Any, Any] | None = None,
    ):
        self._ring = ring
        self._channel = channel
        self._parts = parts
        self._goes_on = goes_on
        self._generator = generator
        self._filler: Any = None
        self._is_first = True
        self._next: Task[Step | None] | None = None

    def __iter__(self) -> "AgreedSteps":
        return self

    def __next__(self) -> Step:
        step = (self._next or self._begin()).result()
        self._next = None
        if step is None:
            raise StopIteration
        if self._goes_on():
            self._next = self._begin()
        return step

    def _begin(self) -> Task[Step | None]:
        name = f"keras_mwms {self._channel}"
        return Task(self._agree, name, self._generator)

    def _agree(self) -> Step | None:
        """The next step, `None` at the end."""
        while True:
            part = self._read()
            told = self._tell(part)
            if (told[:, _OWN] == _ENDED).all():
                return None
            _check(told)
            if self._is_first:
                _warn_of_difference(self._ring, told)
            self._is_first = False
            data = self._data_of(part, told)
            rows = np.maximum(told[:, _OWN], 0).astype(np.int32)
            if rows.any():
                return data, rows

    def _read(self) -> Part | None:
        """This replica's next part. A failure is told to the others."""
        try:
            return next(self._parts, None)
        except Exception:
            self._gather([_FAILED, _NOT_SEEN, 0, 0])
            raise

    def _tell(self, part: Part | None) -> np.ndarray:
        if part is None:
            holds = self._filler is not None
            return self._gather([_ENDED, _NOT_SEEN, 0, holds])
        return self._gather(_words(part))

    def _gather(self, words: list[int]) -> np.ndarray:
        return _gather(self._ring, self._channel, words)

    def _data_of(self, part: Part | None, told: np.ndarray) -> Any:
        """The replica's rows, or a row that stands in for them."""
        mine = self._filler if part is None else part.data
        if not told[:, _HOLDS].all():
            giver = int(np.argmax(told[:, _HOLDS]))
            row = b""
            if self._ring.rank == giver:
                row = transport.packed(leaves.take(mine, slice(0, 1)))
            of_all = self._ring.gather_bytes(row, f"{self._channel}.row")
            if mine is None:
                mine = transport.unpacked(of_all[giver])
        if part is None:
            self._filler = mine
        else:
            self._filler = leaves.take(mine, slice(0, 1))
        return mine


def check_first(ring: Collectives, channel: str, part: Part) -> None:
    """Compares the first global batch between the replicas.

    Args:
        ring: the collectives; every replica calls.
        channel: name of the exchange.
        part: this replica's first part.

    Raises:
        ValueError: on every replica, if they have unlike numbers of rows.
    """
    told = _gather(ring, channel, _words(part))
    _check(told)
    _warn_of_difference(ring, told)


def _words(part: Part) -> list[int]:
    total = _NOT_SEEN if part.total is None else part.total
    return [part.own, total, part.code, True]


def _gather(ring: Collectives, channel: str, words: list[int]) -> np.ndarray:
    mine = np.array(words, np.int64)
    return np.stack([a for (a,) in ring.gather_arrays([mine], channel)])


def _check(told: np.ndarray) -> None:
    """Raises, on every replica, if the data of one failed or differ."""
    failed = np.flatnonzero(told[:, _OWN] == _FAILED)
    if failed.size:
        raise RuntimeError(
            "Reading the data failed on another replica: see the error in "
            f"its output. Received: a failure on rank {int(failed[0])}"
        )
    totals = told[:, _TOTAL]
    if (totals != _NOT_SEEN).any() and len(set(totals.tolist())) > 1:
        words = [
            "no more batch" if total == _NOT_SEEN else f"{total} rows"
            for total in totals.tolist()
        ]
        raise ValueError(
            "Each replica takes its slice of every batch, so all must make "
            "the same batches. Give them the same data in the same order "
            "(seed what shuffles), or pass auto_shard_policy='OFF' to "
            "distribute() if each replica has data of its own. Received, in "
            f"rank order: a batch of {', '.join(words)}"
        )


def _warn_of_difference(ring: Collectives, told: np.ndarray) -> None:
    seen = told[told[:, _TOTAL] != _NOT_SEEN]
    if ring.rank == 0 and len(set(seen[:, _CODE].tolist())) > 1:
        warnings.warn(
            "The first batch is not the same on all replicas, and each takes "
            "its slice of it. That is right if only the values of rows are "
            "changed at random. Else seed what shuffles, or pass "
            "auto_shard_policy='OFF' to distribute() if each replica has data "
            "of its own.",
            stacklevel=2,
        )
