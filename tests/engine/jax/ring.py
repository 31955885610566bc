"""Rings of real processes, joined by Horovod's own rendezvous."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.pool.environment import base_environment

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Ended:
    """How one rank ended; `code` is `None` when it had to be killed."""

    code: int | None
    output: str


def run(
    script: str, *arguments: str, size: int = 2, timeout: float = 60.0
) -> list[Ended]:
    """Runs `script`, a file beside this one, as a ring of `size` ranks.

    Args:
        script: the file's name.
        *arguments: what all ranks get on their command line.
        size: number of ranks.
        timeout: seconds after which all that still runs is killed.

    Returns:
        How each rank ended, in rank order.
    """
    deadline = time.monotonic() + timeout
    with _rendezvous(size) as port, contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(HERE / script), *arguments],
                    env=_environment(rank, size, port),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for rank in range(size)
        ]
        return [_wait(process, deadline) for process in ranks]


def _wait(process: subprocess.Popen[str], deadline: float) -> Ended:
    try:
        left = max(deadline - time.monotonic(), 0.1)
        output, _ = process.communicate(timeout=left)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        return Ended(None, output)
    return Ended(process.returncode, output)


@contextlib.contextmanager
def _rendezvous(size: int) -> Iterator[int]:
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer(verbose=0)
    port = server.start()
    try:
        server.init(
            [SlotInfo("127.0.0.1", r, r, 0, size, size, 1) for r in range(size)]
        )
        yield port
    finally:
        server.stop()


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    return base_environment() | {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_CYCLE_TIME": "1",
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "20",
        "HOROVOD_HOSTNAME": "127.0.0.1",
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(size),
        "HOROVOD_LOG_LEVEL": "fatal",
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "JAX_PLATFORMS": "cpu",
        # Threads for what should overlap: the session's own flags allow one.
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }
