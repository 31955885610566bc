"""Lets the replicas agree on a step while the step before it runs."""

import threading
from collections.abc import Callable
from typing import Any
from typing import Generic
from typing import TypeVar

Result = TypeVar("Result")


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
