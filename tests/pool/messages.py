"""What the session and its workers share: their words and files."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = "TESTS_POOL_FOLDER"
RANK = "TESTS_POOL_RANK"

SOCKET = "socket"
AUTHKEY = "authkey"

END = b"end"


def log_path(folder: Path, rank: int) -> Path:
    """The file that a worker's stdout and stderr go to."""
    return folder / f"rank-{rank}.log"


def stacks_path(folder: Path, rank: int) -> Path:
    """The file that a worker's stacks go to when it is ended by a signal."""
    return folder / f"rank-{rank}.stacks"


@dataclasses.dataclass(frozen=True)
class PerRank:
    """Stands for another value on every rank: the item of that rank."""

    items: Sequence[Any]


def for_rank(value: Any, rank: int) -> Any:
    """The value that `rank` gets where `value` was written."""
    return value.items[rank] if isinstance(value, PerRank) else value


def check_per_rank(value: Any, size: int) -> None:
    """Raises ValueError where a `PerRank` has not one item a rank."""
    if isinstance(value, PerRank) and len(value.items) != size:
        raise ValueError(
            f"A PerRank needs one item for each of {size} ranks. "
            f"Received: {value}"
        )


@dataclasses.dataclass(frozen=True)
class Hello:
    """A worker's first words."""

    rank: int
    pid: int


@dataclasses.dataclass(frozen=True)
class Failure:
    """An exception, in words: it may not survive pickling itself."""

    error_type: str
    error_text: str
    traceback: str


@dataclasses.dataclass(frozen=True)
class Answer:
    """A worker's answer to a call: the pickled value, or what failed."""

    value: bytes = b""
    failure: Failure | None = None
