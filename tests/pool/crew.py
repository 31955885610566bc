"""The processes of a pool, from their start to their end."""

import contextlib
import dataclasses
import pickle
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from multiprocessing import connection
from pathlib import Path

from tests.pool import processes
from tests.pool.environment import Start
from tests.pool.environment import base_environment
from tests.pool.environment import free_addresses
from tests.pool.environment import horovodrun
from tests.pool.environment import rank_environment
from tests.pool.environment import tf_config
from tests.pool.messages import AUTHKEY
from tests.pool.messages import END
from tests.pool.messages import FOLDER
from tests.pool.messages import RANK
from tests.pool.messages import SOCKET
from tests.pool.messages import Answer
from tests.pool.messages import Hello
from tests.pool.messages import log_path
from tests.pool.messages import stacks_path

START_TIMEOUT = 60.0
END_TIMEOUT = 15.0
TAIL = 4000  # characters of output that an error shows

_ARGV = (sys.executable, "-m", "tests.pool.worker")


@dataclasses.dataclass(frozen=True)
class Worker:
    """A worker that has said hello."""

    rank: int
    leader: processes.Leader
    channel: connection.Connection


class Crew:
    """Workers that run together, once: an ended crew never comes back.

    Args:
        size: the number of workers.
        start: how they are started.

    Raises:
        RuntimeError: a worker ended, or did not say hello in time. The output
            of all is in the message, and none is left.
    """

    def __init__(self, size: int, start: Start) -> None:
        self.size = size
        # Short: the path of a socket has at most 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="pool-"))
        self._workers: dict[int, Worker] = {}
        self._children: list[processes.Child] = []
        launched = start == "horovodrun"
        self._child_grace = processes.LAUNCHER_GRACE if launched else 0.0
        started = False
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(self.folder / SOCKET))
                server.listen(size)
                authkey = secrets.token_bytes(32)
                # horovodrun puts the environment on a command line, which
                # everyone can read; the folder is private.
                (self.folder / AUTHKEY).write_bytes(authkey)
                self._spawn(start)
                self._greet(server, authkey)
            started = True
        finally:
            if not started:
                self.kill()

    def _spawn(self, start: Start) -> None:
        shared = base_environment() | {FOLDER: str(self.folder)}
        if start == "horovodrun":
            argv = horovodrun(self.size, _ARGV)
            self._children = [processes.spawn(argv, shared, self._launcher_log)]
            return
        addresses = free_addresses(self.size)
        for rank in range(self.size):
            environment = (
                shared
                | rank_environment(rank, self.folder)
                | tf_config(addresses, rank)
                | {RANK: str(rank)}
            )
            log = log_path(self.folder, rank)
            self._children.append(processes.spawn(_ARGV, environment, log))

    def _greet(self, server: socket.socket, authkey: bytes) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        with contextlib.ExitStack() as stack:
            children = [processes.Leader(c.pid) for c in self._children]
            for child in children:
                stack.callback(child.close)
            while len(self._workers) < self.size:
                left = max(0.0, deadline - time.monotonic())
                ended = [child.fileno() for child in children]
                ready = connection.wait([server, *ended], left)
                if server not in ready:
                    raise RuntimeError(self._start_failure(ended=bool(ready)))
                worker = _accept(server, authkey)
                self._workers[worker.rank] = worker

    def _start_failure(self, ended: bool) -> str:
        missing = sorted(set(range(self.size)) - set(self._workers))
        why = "a process ended" if ended else f"waited {START_TIMEOUT:.0f} s"
        parts = [f"The workers of ranks {missing} did not start ({why})."]
        parts += [self.output(rank) for rank in range(self.size)]
        return "\n".join(part for part in parts if part)

    @property
    def _launcher_log(self) -> Path:
        return self.folder / "launcher.log"

    def pids(self) -> list[int]:
        """The process ids, in rank order."""
        return [self._workers[rank].leader.pid for rank in range(self.size)]

    def dead(self) -> list[int]:
        """The ranks whose processes have ended."""
        return [
            rank
            for rank, worker in sorted(self._workers.items())
            if not processes.wait_ended([worker.leader], 0)
        ]

    def log_sizes(self) -> Mapping[int, int]:
        """Where the output of each rank stands now."""
        paths = {rank: log_path(self.folder, rank) for rank in self._workers}
        return {rank: path.stat().st_size for rank, path in paths.items()}

    def send(self, rank: int, payload: bytes) -> None:
        """Sends a pickled call; one who is gone is found out in `receive`."""
        with contextlib.suppress(OSError):
            self._workers[rank].channel.send_bytes(payload)

    def receive(
        self, ranks: Iterable[int], timeout: float
    ) -> Mapping[int, Answer | None]:
        """Waits for the next answers.

        Args:
            ranks: who has not answered yet.
            timeout: seconds to wait.

        Returns:
            The answers that came, `None` from a worker whose process has
            ended; nothing when the time is up.
        """
        channels = {self._workers[rank].channel: rank for rank in ranks}
        ready = connection.wait(list(channels), max(0.0, timeout))
        return {
            rank: _receive(channel)
            for channel, rank in channels.items()
            if channel in ready
        }

    def status(self, rank: int) -> str:
        """How a rank that hung up has ended, in words."""
        leader = self._workers[rank].leader
        processes.wait_ended([leader], processes.STACKS_TIMEOUT)
        return leader.status()

    def stacks(self, ranks: Sequence[int]) -> Mapping[int, str]:
        """Aborts workers.

        Args:
            ranks: whose stacks are wanted.

        Returns:
            The stacks of all their threads.
        """
        processes.abort([self._workers[rank].leader for rank in ranks])
        return {rank: self.dump(rank) for rank in ranks}

    def dump(self, rank: int) -> str:
        """What faulthandler has written of a rank, nothing if it lives."""
        text = stacks_path(self.folder, rank).read_text(errors="replace")
        lines = text.splitlines()
        return "\n".join(
            line for line in lines if not line.startswith("Extension modules")
        )

    def output(self, rank: int, since: int = 0) -> str:
        """The end of what a rank (or else its launcher) has written."""
        path = log_path(self.folder, rank)
        if not path.exists():
            path = self._launcher_log
        if not path.exists():
            return ""
        with path.open("rb") as file:
            file.seek(since)
            text = file.read().decode(errors="replace").strip()
        return f"-- output of rank {rank} --\n{text[-TAIL:]}" if text else ""

    def end(self) -> Mapping[int, str]:
        """Asks all to end, waits, and kills the rest.

        Returns:
            The stacks of those that did not end by themselves, by rank.
        """
        for rank in self._workers:
            self.send(rank, END)
        leaders = {w.leader: rank for rank, w in self._workers.items()}
        running = processes.wait_ended(leaders, END_TIMEOUT)
        stacks = self.stacks([leaders[leader] for leader in running])
        self.kill()
        return stacks

    def kill(self) -> None:
        """Kills whatever is left, and removes the folder."""
        for worker in self._workers.values():
            worker.leader.kill_group()
        processes.wait_ended(
            [worker.leader for worker in self._workers.values()],
            processes.KILL_TIMEOUT,
        )
        for child in self._children:
            processes.kill_tree(child, self._child_grace)
        for worker in self._workers.values():
            worker.leader.close()
            worker.channel.close()
        self._workers.clear()
        self._children.clear()
        shutil.rmtree(self.folder)


def _accept(server: socket.socket, authkey: bytes) -> Worker:
    accepted, _ = server.accept()
    channel = connection.Connection(accepted.detach())
    connection.deliver_challenge(channel, authkey)
    connection.answer_challenge(channel, authkey)
    hello: Hello = pickle.loads(channel.recv_bytes())
    return Worker(hello.rank, processes.Leader(hello.pid), channel)


def _receive(channel: connection.Connection) -> Answer | None:
    try:
        answer: Answer = pickle.loads(channel.recv_bytes())
    except (EOFError, OSError):
        return None
    return answer
