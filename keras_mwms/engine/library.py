"""The Horovod library of a backend, as the rest of the package sees it."""

import dataclasses
import importlib
import importlib.util
from types import ModuleType
from typing import Protocol

from keras_mwms.errors import HorovodMissingError

_MODULES = {
    "tensorflow": "horovod.tensorflow",
    "torch": "horovod.torch",
    "jax": "keras_mwms.engine.jax.library",
}
_INSTALL = "keras-mwms install-horovod"


class HorovodLibrary(Protocol):
    """What starts and ends the ring of one backend."""

    @property
    def name(self) -> str:
        """The Keras backend."""

    def init(self) -> None:
        """Starts Horovod. Reads the environment."""

    def shutdown(self) -> None:
        """Ends Horovod on all members. May be called twice."""

    def is_initialized(self) -> bool:
        """Whether Horovod runs."""

    def rank(self) -> int:
        """This replica's number."""

    def size(self) -> int:
        """The number of replicas."""

    def local_rank(self) -> int:
        """This replica's number on its host."""

    def local_size(self) -> int:
        """The number of replicas on this host."""


@dataclasses.dataclass(frozen=True)
class _ModuleLibrary:
    """A library that is a module with these functions."""

    name: str
    module: ModuleType

    def init(self) -> None:
        self.module.init()

    def shutdown(self) -> None:
        self.module.shutdown()

    def is_initialized(self) -> bool:
        return bool(self.module.is_initialized())

    def rank(self) -> int:
        return int(self.module.rank())

    def size(self) -> int:
        return int(self.module.size())

    def local_rank(self) -> int:
        return int(self.module.local_rank())

    def local_size(self) -> int:
        return int(self.module.local_size())


def load(backend: str) -> HorovodLibrary:
    """Imports Horovod for a Keras backend.

    Args:
        backend: `"tensorflow"`, `"torch"` or `"jax"`.

    Returns:
        The library. It is not started.

    Raises:
        HorovodMissingError: it is not installed, was built for other
            frameworks alone, or cannot be imported. The message says which
            and holds the command that installs it.
        ValueError: the backend is none of the three.
    """
    if backend not in _MODULES:
        raise ValueError(
            "Horovod runs on the Keras backends "
            f"{', '.join(sorted(_MODULES))}. Received: {backend!r}"
        )
    if importlib.util.find_spec("horovod") is None:
        raise HorovodMissingError(
            "Training on several workers needs Horovod, which is not "
            f"installed here. Install it with: {_INSTALL}"
        )
    try:
        module = importlib.import_module(_MODULES[backend])
        if backend == "jax":
            # This one loads its shared library when it is first used.
            module.load()
    except HorovodMissingError:
        raise
    except (ImportError, OSError) as error:
        raise HorovodMissingError(
            f"Horovod is installed, but cannot be used with {backend}: "
            f"{error}\nIt was built for another framework, or for another "
            f"version of it. Build it for this one with: {_INSTALL}"
        ) from error
    return _ModuleLibrary(backend, module)
