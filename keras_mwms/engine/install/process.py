"""Short commands, run with a deadline and told about when they fail."""

import re
import subprocess
from collections.abc import Mapping
from collections.abc import Sequence

from keras_mwms.engine.install.errors import InstallError

_LAST_LINES = 15
_ERROR_LINES = 8
_LINE_WIDTH = 300
_LOOKS_LIKE_ERROR = re.compile(
    r"\berror:|CMake Error|No space left|Killed signal", re.IGNORECASE
)


def run(
    command: Sequence[str],
    *,
    what: str,
    timeout: float,
    env: Mapping[str, str] | None = None,
) -> str:
    """Runs a command.

    Args:
        command: the program and its arguments.
        what: what it does, for the error.
        timeout: seconds that it may take.
        env: its environment, `None` for this process's own.

    Returns:
        Its standard output.

    Raises:
        InstallError: it cannot start, fails, or takes too long.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=env,
        )
    except subprocess.TimeoutExpired:
        raise InstallError(
            f"Failed at {what}: no end after {timeout:.0f} seconds. "
            f"Received: {' '.join(command)}"
        ) from None
    except OSError as error:
        raise InstallError(f"Failed at {what}: {error}") from error
    if done.returncode != 0:
        raise InstallError(
            f"Failed at {what} (exit status {done.returncode}):\n"
            + excerpt(done.stdout + done.stderr)
        )
    return done.stdout


def excerpt(output: str) -> str:
    """The part of a long output that says what went wrong.

    Args:
        output: all lines.

    Returns:
        The first lines that look like an error and the last lines of all,
        indented and cut to a width that fits on a screen.
    """
    lines = [line for line in output.splitlines() if line.strip()]
    tail = lines[-_LAST_LINES:]
    head = [
        line for line in lines[:-_LAST_LINES] if _LOOKS_LIKE_ERROR.search(line)
    ][:_ERROR_LINES]
    shown = [*head, "...", *tail] if head else tail
    return "\n".join(f"  {line.strip()[:_LINE_WIDTH]}" for line in shown)
