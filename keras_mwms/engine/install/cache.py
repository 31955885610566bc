"""Where built wheels are kept, and under which key."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from keras_mwms.engine.install.errors import InstallError

_POLL_SECONDS = 0.1


def cache_folder(environ: Mapping[str, str]) -> pathlib.Path:
    """The folder for wheels, sources and logs.

    Args:
        environ: the environment.

    Returns:
        `$KERAS_MWMS_CACHE`, else `$XDG_CACHE_HOME/keras-mwms`, else
        `~/.cache/keras-mwms`.
    """
    if chosen := environ.get("KERAS_MWMS_CACHE"):
        return pathlib.Path(chosen).expanduser().absolute()
    if xdg := environ.get("XDG_CACHE_HOME"):
        return pathlib.Path(xdg, "keras-mwms").absolute()
    return pathlib.Path.home() / ".cache" / "keras-mwms"


@dataclasses.dataclass(frozen=True)
class Ingredients:
    """All that decides what a wheel holds.

    Attributes:
        horovod: the digest of Horovod's sources.
        frameworks: name and versions of each framework built for.
        python: the binary interface of this Python.
        platform: system, architecture and the instructions it can run.
        substitutions: the changes made to the sources.
        binding: digest of the JAX binding, empty when it is not built.
        variables: the environment variables that change the build.
        compiler: what the compiler says about itself.
    """

    horovod: str
    frameworks: tuple[tuple[str, str], ...]
    python: str
    platform: str
    substitutions: tuple[Any, ...]
    binding: str
    variables: tuple[tuple[str, str], ...]
    compiler: str

    def key(self) -> str:
        """The name of the wheel's folder: a digest of everything."""
        text = json.dumps(dataclasses.asdict(self))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def instruction_sets() -> str:
    """The optional instructions that Horovod's build uses where they exist.

    A cache can be shared by machines with different processors.
    """
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ""
    return " ".join(sorted({"avx", "f16c", "fma"} & set(text.split())))


@dataclasses.dataclass(frozen=True)
class WheelCache:
    """Wheels, logs, sources and locks below one folder."""

    folder: pathlib.Path

    @property
    def sources(self) -> pathlib.Path:
        """Where source distributions are."""
        return self.folder / "sources"

    def log(self, key: str) -> pathlib.Path:
        """The file for the output of the last build of `key`."""
        return self.folder / "logs" / f"{key}.log"

    def find(self, key: str) -> pathlib.Path | None:
        """The wheel that was stored under `key`, if any."""
        return next((self.folder / "wheels" / key).glob("*.whl"), None)

    def store(self, key: str, wheel: pathlib.Path) -> pathlib.Path:
        """Copies a wheel into the cache, whole or not at all.

        Args:
            key: the key of its ingredients.
            wheel: the file.

        Returns:
            The file in the cache.
        """
        folder = self.folder / "wheels" / key
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".store-") as new:
            copy = pathlib.Path(shutil.copy(wheel, new))
            return copy.rename(folder / wheel.name)

    def discard(self, key: str) -> None:
        """Forgets the wheel of `key`."""
        if wheel := self.find(key):
            wheel.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self, name: str, *, timeout: float) -> Iterator[None]:
        """Holds a lock that other processes respect.

        Args:
            name: what is locked.
            timeout: seconds to wait for it.

        Yields:
            Nothing.

        Raises:
            InstallError: another process held it for too long.
        """
        file = self.folder / "locks" / name
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            stream = file.open("w")
        except OSError as error:
            raise InstallError(
                f"Cannot write to the cache folder: {error}. Set "
                "KERAS_MWMS_CACHE to a folder that you may write to."
            ) from error
        with stream:
            _lock(stream.fileno(), file, time.monotonic() + timeout)
            yield


def _lock(descriptor: int, file: pathlib.Path, deadline: float) -> None:
    # flock has no deadline of its own.
    never = threading.Event()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise InstallError(
                    "Another installation of Horovod is still running. Wait "
                    f"for it, or end it. Received: the lock {file}"
                ) from None
        except OSError as error:
            raise InstallError(
                f"Cannot lock {file}: {error}. Set KERAS_MWMS_CACHE to a "
                "folder on a file system that has locks, such as a local one."
            ) from error
        never.wait(_POLL_SECONDS)


def environment_lock(prefix: str) -> str:
    """The name of the lock of a Python environment."""
    return f"environment-{hashlib.sha256(os.fsencode(prefix)).hexdigest()[:16]}"
