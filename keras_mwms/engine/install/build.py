"""Builds a wheel from prepared sources, with a log and a deadline."""

import contextlib
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import IO

from keras_mwms.engine.install import process
from keras_mwms.engine.install.errors import BuildError

_END_SECONDS = 10.0
_CHUNK = 1 << 16


def build_wheel(
    tree: pathlib.Path,
    *,
    env: Mapping[str, str],
    log: pathlib.Path,
    timeout: float,
    on_line: Callable[[str], None],
) -> pathlib.Path:
    """Builds the wheel of a source tree.

    Args:
        tree: the root of the sources. The wheel is made beside it.
        env: the environment of the build.
        log: the file that gets all output.
        timeout: seconds that the build may take.
        on_line: called with every line of the output.

    Returns:
        The wheel.

    Raises:
        BuildError: the build failed or took too long.
    """
    wheels = tree.parent / "wheels"
    command = [
        *(sys.executable, "-m", "pip", "wheel", "--verbose"),
        *("--no-build-isolation", "--no-deps", "--no-index"),
        *("--wheel-dir", str(wheels), str(tree)),
    ]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as sink, _started(command, env) as child:
        in_time = _follow(child, sink, timeout, on_line)
    if not in_time:
        raise BuildError(
            f"The build of Horovod did not end within {timeout / 60:.0f} "
            f"minutes; --timeout gives it more. Its output: {log}"
        )
    found = sorted(wheels.glob("*.whl"))
    if child.returncode != 0 or len(found) != 1:
        raise BuildError(
            f"The build of Horovod failed (exit status {child.returncode}). "
            f"From its output:\n"
            f"{process.excerpt(log.read_text(errors='replace'))}\n"
            f"All of it: {log}"
        )
    return found[0]


@contextlib.contextmanager
def _started(
    command: list[str], env: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A child in a group of its own, of which nothing is left at the end."""
    child = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    with child:
        try:
            yield child
        finally:
            # Compilers outlive a pip that is ended, so the whole group ends.
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)


def _follow(
    child: subprocess.Popen[bytes],
    sink: IO[bytes],
    timeout: float,
    on_line: Callable[[str], None],
) -> bool:
    """Passes the output on until it ends; whether it ended in time."""
    assert child.stdout is not None
    deadline = time.monotonic() + timeout
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            chunk = os.read(child.stdout.fileno(), _CHUNK)
            if not chunk:
                return _ends(child)
            sink.write(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                on_line(line.decode(errors="replace"))
    return False


def _ends(child: subprocess.Popen[bytes]) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_END_SECONDS)
    return child.returncode is not None
