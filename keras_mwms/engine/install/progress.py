"""Shows how far a build is, on a terminal and elsewhere."""

import re
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn
from rich.progress import Progress
from rich.progress import TaskProgressColumn
from rich.progress import TextColumn
from rich.progress import TimeElapsedColumn

_MAKE_LINE = re.compile(r"^\s*\[\s*(\d+)%\] (.*)$")
_TARGET = re.compile(
    r"(?:Building \w+ object|Linking .* library) (?:\S+/)?(\S+?)(?:\.o)?$"
)
PLAIN_SECONDS = 15.0


def parse_line(line: str) -> tuple[int, str] | None:
    """Reads a progress line of CMake's makefiles.

    Args:
        line: a line of the build's output.

    Returns:
        The percentage and what is done, `None` for any other line.

    Example:
    >>> parse_line("  [ 42%] Building CXX object a/b.dir/ring.cc.o")
    (42, 'ring.cc')
    """
    match = _MAKE_LINE.match(line)
    if match is None:
        return None
    built = _TARGET.match(match[2])
    return int(match[1]), built[1] if built else match[2]


class BuildProgress:
    """A bar on a terminal; elsewhere a line every now and then.

    Args:
        console: where to show it.
        title: what is built.
    """

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._start = self._shown = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[doing]}", style="dim", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=100, doing="preparing")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def line(self, text: str) -> None:
        """Takes a line of the build's output."""
        step = parse_line(text)
        if step is None:
            return
        percent, doing = step
        self._bar.update(self._task, completed=percent, doing=doing)
        now = time.monotonic()
        if self._bar.disable and now - self._shown >= PLAIN_SECONDS:
            self._shown = now
            self._console.print(
                f"{self._title}: {percent}% after {now - self._start:.0f} s, "
                f"{doing}",
                markup=False,
                highlight=False,
            )
