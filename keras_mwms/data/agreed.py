"""Steps that the replicas agree on, ahead of the one that is taken."""

import collections
import warnings
import weakref
from typing import Any

import numpy as np

from keras_mwms.collectives import Collectives
from keras_mwms.data import leaves
from keras_mwms.data import transport
from keras_mwms.data.ahead import MOST_PARTS
from keras_mwms.data.ahead import Item
from keras_mwms.data.ahead import Reader
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

    As long as one replica has rows all go on. In one exchange the replicas
    agree on as many steps as all of them have read, on one at least. It runs
    on a thread while the caller works on the last step that is agreed on: its
    wait is hidden unless the data are slower than the steps.

    Args:
        ring: the collectives; every replica iterates alike.
        channel: name of the exchanges, of these steps alone.
        reader: reads this replica's parts of the steps, as many as steps will
            be taken.
        most: how many steps will be taken, `None` for all there are. It is
            right to take more, but those are not begun ahead.
    """

    def __init__(
        self,
        ring: Collectives,
        channel: str,
        reader: Reader,
        most: int | None = None,
    ):
        self._ring = ring
        self._channel = channel
        self._reader = reader
        self._most = most
        self._taken = 0
        self._filler: Any = None
        self._all_hold = False
        self._is_first = True
        # For each step that is agreed on and not taken: this replica's item,
        # and what all have told.
        self._agreed: collections.deque[tuple[Item, np.ndarray]] = (
            collections.deque()
        )
        self._next: Task[list[tuple[Item, np.ndarray]]] | None = None
        # Steps that nobody takes are not read either.
        weakref.finalize(self, reader.stop)

    def __iter__(self) -> "AgreedSteps":
        return self

    def __next__(self) -> Step:
        if self._has_all:
            # Several steps an execution may be more than were said.
            self._reader.one_more()
        step = self._step()
        while step is None:
            self._reader.one_more()
            step = self._step()
        self._taken += 1
        if not self._agreed and not self._has_all:
            self._next = self._begin()
        return step

    @property
    def _has_all(self) -> bool:
        """Whether as many steps are taken as were said."""
        return self._most is not None and self._taken >= self._most

    def _step(self) -> Step | None:
        """The next step, `None` if no replica has a row in it."""
        if not self._agreed:
            self._agreed.extend((self._next or self._begin()).result())
            self._next = None
        item, told = self._agreed.popleft()
        if item.error is not None:
            raise item.error
        if (told[:, _OWN] == _ENDED).all():
            # All there will ever be.
            self._agreed.append((item, told))
            raise StopIteration
        _check(told)
        if self._is_first:
            _warn_of_difference(self._ring, told)
        self._is_first = False
        data = self._data_of(item.part, told)
        self._reader.used()
        rows = np.maximum(told[:, _OWN], 0).astype(np.int32)
        return (data, rows) if rows.any() else None

    def _begin(self) -> Task[list[tuple[Item, np.ndarray]]]:
        return Task(self._agree, f"keras_mwms {self._channel}")

    def _agree(self) -> list[tuple[Item, np.ndarray]]:
        """Steps for which every replica knows what it has."""
        items = self._reader.ready()
        known = len(items)
        if items[-1].is_last:
            known = MOST_PARTS
            items += [items[-1]] * (known - len(items))
        words = np.zeros((MOST_PARTS + 1, 4), np.int64)
        words[-1] = known
        holds = self._filler is not None
        for step, item in enumerate(items):
            holds = holds or item.part is not None
            words[step] = _words(item, holds)
        of_all = _gather(self._ring, self._channel, words)
        agreed = int(of_all[:, -1, 0].min())
        return [(items[i], of_all[:, i]) for i in range(agreed)]

    def _data_of(self, part: Part | None, told: np.ndarray) -> Any:
        """The replica's rows, or a row that stands in for them."""
        mine = self._filler if part is None else part.data
        if not (self._all_hold or told[:, _HOLDS].all()):
            giver = int(np.argmax(told[:, _HOLDS]))
            row = b""
            if self._ring.rank == giver:
                row = transport.packed(leaves.take(mine, slice(0, 1)))
            of_all = self._ring.gather_bytes(row, f"{self._channel}.row")
            if mine is None:
                mine = transport.unpacked(of_all[giver])
        self._all_hold = True
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
    words = np.array(_words(Item(part), holds=True), np.int64)
    told = _gather(ring, channel, words)
    _check(told)
    _warn_of_difference(ring, told)


def _words(item: Item, holds: bool) -> list[int]:
    part = item.part
    if part is None:
        state = _ENDED if item.error is None else _FAILED
        return [state, _NOT_SEEN, 0, holds]
    total = _NOT_SEEN if part.total is None else part.total
    return [part.own, total, part.code, holds]


def _gather(ring: Collectives, channel: str, words: np.ndarray) -> np.ndarray:
    return np.stack([a for (a,) in ring.gather_arrays([words], channel)])


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
