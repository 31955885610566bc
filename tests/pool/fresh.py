"""Fresh clusters, for tests of how a cluster starts and ends."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path

from tests.pool import processes
from tests.pool.environment import Start
from tests.pool.environment import base_environment
from tests.pool.environment import free_addresses
from tests.pool.environment import horovodrun
from tests.pool.environment import rank_environment
from tests.pool.environment import tf_config
from tests.pool.messages import PerRank
from tests.pool.messages import check_per_rank
from tests.pool.messages import for_rank

TIMEOUT = 120.0


@dataclasses.dataclass(frozen=True)
class Finished:
    """How a process ended.

    Attributes:
        returncode: its exit status, negative for a signal.
        stdout: what it wrote.
        stderr: what it wrote there, with the stacks of a Python process that
            was killed at the deadline.
        timed_out: whether it was killed at the deadline.
    """

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool = False


class FreshCluster:
    """Starts a command in processes of its own and waits for them."""

    def __call__(
        self,
        size: int,
        argv: Sequence[str | PerRank],
        *,
        start: Start = "tf_config",
        env: Mapping[str, str | PerRank] | None = None,
        ranks: Sequence[int] | None = None,
        timeout: float = TIMEOUT,
        cwd: Path | None = None,
    ) -> list[Finished]:
        """Runs a command as a cluster.

        Args:
            size: the number of workers.
            argv: the command; a `PerRank` is replaced by its rank's item.
            start: `"tf_config"` starts one process a rank; `"horovodrun"`
                starts horovodrun with the command.
            env: variables to add to the workers' environment, likewise.
            ranks: the ranks that are started at all, all by default.
            timeout: seconds until those that still run are killed.
            cwd: the folder they run in.

        Returns:
            How each started rank ended, in the order of `ranks`; with
            horovodrun how horovodrun itself did, alone.
        """
        with tempfile.TemporaryDirectory(prefix="fresh-") as name:
            folder = Path(name)
            commands = _commands(size, argv, start, env or {}, ranks, folder)
            return _run(commands, folder, start, timeout, cwd)


def _commands(
    size: int,
    argv: Sequence[str | PerRank],
    start: Start,
    env: Mapping[str, str | PerRank],
    ranks: Sequence[int] | None,
    folder: Path,
) -> list[tuple[list[str], dict[str, str]]]:
    """The command and the environment of each process to start."""
    for value in (*argv, *env.values()):
        check_per_rank(value, size)
    if start == "horovodrun":
        if ranks is not None or any(
            isinstance(value, PerRank) for value in (*argv, *env.values())
        ):
            raise ValueError("horovodrun starts all ranks with one command.")
        environment = base_environment() | {"KERAS_HOME": str(folder / "keras")}
        return [(horovodrun(size, [*argv]), environment | {**env})]
    addresses = free_addresses(size)
    return [
        (
            [for_rank(value, rank) for value in argv],
            base_environment()
            | rank_environment(rank, folder)
            | tf_config(addresses, rank)
            | {key: for_rank(value, rank) for key, value in env.items()},
        )
        for rank in (range(size) if ranks is None else ranks)
    ]


def _run(
    commands: Sequence[tuple[list[str], dict[str, str]]],
    folder: Path,
    start: Start,
    timeout: float,
    cwd: Path | None,
) -> list[Finished]:
    """Starts all, waits for all, and kills what is left of their groups."""
    launched = start == "horovodrun"
    grace = processes.LAUNCHER_GRACE if launched else 0.0
    children: list[processes.Child] = []
    with contextlib.ExitStack() as stack:
        leaders = []
        for number, (argv, environment) in enumerate(commands):
            out, err = _files(folder, number)
            child = processes.spawn(argv, environment, out, err, cwd)
            stack.callback(processes.kill_tree, child, grace)
            leader = processes.Leader(child.pid)
            stack.callback(leader.close)
            children.append(child)
            leaders.append(leader)
        hung = processes.wait_ended(leaders, timeout)
        for child, leader in zip(children, leaders, strict=True):
            if leader in hung:
                variable = "HOROVOD_RANK" if launched else None
                processes.abort_tree(child, variable)
    finished = []
    for number, (child, leader) in enumerate(
        zip(children, leaders, strict=True)
    ):
        stdout, stderr = _files(folder, number)
        finished.append(
            Finished(
                returncode=child.returncode,
                stdout=stdout.read_text(errors="replace"),
                stderr=stderr.read_text(errors="replace"),
                timed_out=leader in hung,
            )
        )
    return finished


def _files(folder: Path, number: int) -> tuple[Path, Path]:
    return folder / f"{number}.out", folder / f"{number}.err"
