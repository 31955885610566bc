"""What goes on beside a step: reading batches, and agreeing on the next one."""

import collections
import itertools
import threading
import weakref
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterator
from typing import Any
from typing import Generic
from typing import NamedTuple
from typing import TypeVar

from keras_mwms.data import leaves
from keras_mwms.data.source import Part

Result = TypeVar("Result")

# How much is read that no step needs yet: parts, and bytes in them.
MOST_PARTS = 8
_MOST_BYTES = 2**26

_readers: weakref.WeakKeyDictionary[Generator[Any, Any, Any], "Reader"] = (
    weakref.WeakKeyDictionary()
)


class Task(Generic[Result]):
    """Runs a function on a thread of its own, at once.

    The thread does not keep a process from ending: what it waits for may
    never come.

    Args:
        work: the function.
        name: of the thread.
    """

    def __init__(self, work: Callable[[], Result], name: str):
        self._result: Any = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        threading.Thread(
            target=self._run, args=(work,), name=name, daemon=True
        ).start()

    def result(self) -> Result:
        """Waits for what the function returns, or raises what it raised."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[no-any-return]

    def _run(self, work: Callable[[], Result]) -> None:
        try:
            self._result = work()
        except BaseException as error:  # noqa: BLE001  raised by `result`
            self._error = error
        finally:
            self._done.set()


class Item(NamedTuple):
    """What was read: a part, an error, or neither at the end of the data.

    Attributes:
        part: the part.
        error: what its reading raised.
        size: bytes in the part.
    """

    part: Part | None = None
    error: Exception | None = None
    size: int = 0

    @property
    def is_last(self) -> bool:
        """Whether nothing comes after it."""
        return self.part is None


class Reader:
    """Reads parts ahead of the steps, on a thread of its own.

    Args:
        parts: the parts of one pass.
        most: how many to read, `None` for all there are.
        name: of the thread.
    """

    def __init__(self, parts: Iterator[Part], most: int | None, name: str):
        self._items: collections.deque[Item] = collections.deque()
        self._changed = threading.Condition()
        self._most = most
        self._is_stopped = self._is_reading = False
        self._kind = ""
        self._name = name
        self._parts = parts
        self._has_started = False

    def go_on(
        self, generator: Generator[Any, Any, Any], kind: str, at_hand: int
    ) -> None:
        """Begins with what another reader has read of a generator in vain.

        Args:
            generator: the generator that the parts come from.
            kind: how parts are made of batches, one of each.
            at_hand: how many of the parts come from batches that were read of
                the generator by now. They would be lost if this reader were
                stopped before it comes to them.

        Raises:
            ValueError: the parts are of another kind.
        """
        before = _readers.pop(generator, None)
        _readers[generator] = self
        self._kind = kind
        unused = [] if before is None else before.unused()
        if not unused:
            return
        if before is not None and before._kind != kind:
            raise ValueError(
                "A generator whose training was stopped was read ahead. It "
                "can only be used again in the way in which it was used. Make "
                f"a new generator. Received: {kind} after {before._kind}"
            )
        for item in unused:
            self._add(item)
        for _ in range(at_hand):
            self._add(self._next())

    def ready(self) -> list[Item]:
        """What is there, at most `MOST_PARTS`; waits for one at least.

        Where it was stopped before it had any, an end, which no step uses:
        the other replicas wait for this one in an exchange.
        """
        self._start()
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._items or (self._is_stopped and not self._is_reading)
                )
            )
            items = list(itertools.islice(self._items, MOST_PARTS))
        return items or [Item()]

    def used(self) -> None:
        """Lets go of the first item. The last one stays."""
        with self._changed:
            if not self._items[0].is_last:
                self._items.popleft()
                self._changed.notify_all()

    def one_more(self) -> None:
        """Reads one part more than was said: one was of no use."""
        with self._changed:
            if self._most is not None:
                self._most += 1
                self._changed.notify_all()

    def stop(self) -> None:
        """Reads no more than what is being read."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
            if not self._has_started:
                self._parts = iter(())

    def unused(self) -> list[Item]:
        """Stops, and waits for what is being read; what no step has used."""
        self.stop()
        with self._changed:
            self._changed.wait_for(lambda: not self._is_reading)
            return [item for item in self._items if item.part is not None]

    def _start(self) -> None:
        if not self._has_started:
            self._has_started = True
            threading.Thread(
                target=self._read, name=self._name, daemon=True
            ).start()

    def _read(self) -> None:
        self._read_all()
        # They may hold the generator, which is to be forgotten with its user.
        self._parts = iter(())

    def _read_all(self) -> None:
        while self._begins():
            item = self._next()
            with self._changed:
                self._add(item)
                self._is_reading = False
                self._changed.notify_all()
            if item.is_last:
                return

    def _next(self) -> Item:
        try:
            part = next(self._parts, None)
            if part is None:
                return Item()
            data = leaves.copied(part.data)
            size = leaves.bytes_in(data)
            return Item(part._replace(data=data), size=size)
        except Exception as error:  # noqa: BLE001  raised by who takes it
            return Item(error=error)

    def _add(self, item: Item) -> None:
        self._items.append(item)
        if self._most is not None:
            self._most -= 1

    def _begins(self) -> bool:
        """Waits until there is room for a part; false if none is to come."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or self._has_room())
            ended = self._items and self._items[-1].is_last
            if self._is_stopped or ended:
                return False
            self._is_reading = True
            return True

    def _has_room(self) -> bool:
        return (
            (self._most is None or self._most > 0)
            and len(self._items) < MOST_PARTS
            and sum(item.size for item in self._items) < _MOST_BYTES
        )


def wait_for(generator: Generator[Any, Any, Any]) -> None:
    """Returns when no reader is in a generator any more.

    Python raises where two threads are in one. Training that was stopped has
    left a reader that reads a batch which nobody takes.

    Args:
        generator: the user's generator.
    """
    reader = _readers.get(generator)
    if reader is not None:
        reader.unused()
