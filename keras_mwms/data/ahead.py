"""Lets the replicas agree on a step while the step before it runs."""

import threading
import weakref
from collections.abc import Callable
from collections.abc import Generator
from typing import Any
from typing import Generic
from typing import TypeVar

Result = TypeVar("Result")


_reading: weakref.WeakKeyDictionary[
    Generator[Any, Any, Any], threading.Event
] = weakref.WeakKeyDictionary()


def wait_for(generator: Generator[Any, Any, Any]) -> None:
    """Returns when no task reads a generator any more.

    Python raises where two threads are in a generator. Training that was
    stopped has left a task that reads a batch which nobody takes.

    Args:
        generator: the user's generator.
    """
    done = _reading.get(generator)
    if done is not None:
        done.wait()


class Task(Generic[Result]):
    """Runs a function on a thread of its own, at once.

    The thread does not keep a process from ending: what it waits for may
    never come.

    Args:
        work: the function.
        name: of the thread.
        generator: the generator that the function reads, if it does.
    """

    def __init__(
        self,
        work: Callable[[], Result],
        name: str,
        generator: Generator[Any, Any, Any] | None = None,
    ):
        self._result: Any = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        if generator is not None:
            _reading[generator] = self._done
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
