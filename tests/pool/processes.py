"""Processes in groups of their own: started, watched and ended."""

import contextlib
import os
import resource
import secrets
import signal
import subprocess
import time
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

import psutil

STACKS_TIMEOUT = 5.0
KILL_TIMEOUT = 10.0
# horovodrun tidies up (semaphores) when it may.
LAUNCHER_GRACE = 10.0


class Child(subprocess.Popen[bytes]):
    """A command in a process group of its own, and all that it starts.

    A launcher's processes make groups of their own and may lose their parents,
    so they are known by a variable that all inherit.
    """

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], **options: Any
    ) -> None:
        self._mark = f"TESTS_POOL_TREE_{secrets.token_hex(8)}"
        super().__init__(
            argv,
            env={**env, self._mark: "1"},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **options,
        )

    def tree(self) -> list[psutil.Process]:
        """The processes that live now: itself and what it started."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if self._mark in process.environ():
                    found.append(process)
        return found


def spawn(
    argv: Sequence[str],
    environment: Mapping[str, str],
    stdout: Path,
    stderr: Path | None = None,
    cwd: Path | None = None,
) -> Child:
    """Starts a command in a process group of its own.

    Args:
        argv: the command.
        environment: its whole environment.
        stdout: the file that its output is appended to.
        stderr: the file that its errors are appended to; `stdout` if not set.
        cwd: the folder it runs in; this process's if not set.

    Returns:
        The process.
    """
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(stdout.open("ab"))
        err = stack.enter_context(stderr.open("ab")) if stderr else out
        process = Child(argv, environment, stdout=out, stderr=err, cwd=cwd)
    # It may be ended by SIGABRT, and its memory is of no use to anyone.
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
    return process


class Leader:
    """The leader of a process group that this session started.

    Can be waited for with `multiprocessing.connection.wait`: it is ready when
    the process has ended. It need not be a child of this process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._descriptor

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def status(self) -> str:
        """How it ended, in words, as far as its parent can tell."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            result = os.waitid(os.P_PIDFD, self._descriptor, flags)
        except ChildProcessError:
            return "status unknown"
        if result is None:
            return "still running"
        if result.si_code == os.CLD_EXITED:
            return f"exit status {result.si_status}"
        return signal.Signals(result.si_status).name

    def kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        os.close(self._descriptor)


def wait_ended(leaders: Iterable[Leader], timeout: float) -> list[Leader]:
    """Waits until all have ended.

    Args:
        leaders: the processes.
        timeout: seconds to wait.

    Returns:
        Those that still run when the time is up.
    """
    deadline = time.monotonic() + timeout
    running = {leader.fileno(): leader for leader in leaders}
    while running:
        left = max(0.0, deadline - time.monotonic())
        ended = connection.wait(list(running), left)
        if not ended:
            break
        running = {fd: who for fd, who in running.items() if fd not in ended}
    return list(running.values())


def abort(leaders: Iterable[Leader]) -> None:
    """Ends processes so that faulthandler writes the stacks of all threads.

    The end of a process tells that its stacks are complete. One that does not
    end is killed.
    """
    leaders = list(leaders)
    for leader in leaders:
        leader.signal(signal.SIGABRT)
    for leader in wait_ended(leaders, STACKS_TIMEOUT):
        leader.signal(signal.SIGKILL)


def abort_tree(child: Child, variable: str | None) -> None:
    """Aborts a child and all that it started.

    Args:
        child: the child.
        variable: spares those that have not this environment variable, if
            set: a launcher's own processes.
    """
    with contextlib.ExitStack() as stack:
        leaders = []
        for found in child.tree():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if variable is None or variable in found.environ():
                    leader = Leader(found.pid)
                    stack.callback(leader.close)
                    leaders.append(leader)
        abort(leaders)


def kill_tree(child: Child, grace: float = 0.0) -> None:
    """Kills a child with its group and all that it started.

    Args:
        child: the child.
        grace: seconds it has to end by itself, the second half of them after
            SIGTERM.

    Raises:
        TimeoutError: some of it cannot be killed.
    """
    if grace:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace / 2)
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace / 2)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait(KILL_TIMEOUT)
    # What is killed may just have started another.
    deadline = time.monotonic() + KILL_TIMEOUT
    while left := child.tree():
        if time.monotonic() > deadline:
            raise TimeoutError(f"These cannot be killed: {left}")
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)
