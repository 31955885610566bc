"""The shared library: Horovod's core, Gloo and the handlers for XLA."""

import atexit
import ctypes
import functools
import importlib.machinery
import importlib.util
import pathlib

from keras_mwms.engine.jax import compat
from keras_mwms.errors import HorovodMissingError
from keras_mwms.errors import StartError

ALLREDUCE = "horovod_jax_allreduce"
BROADCAST = "horovod_jax_broadcast"
ALLGATHER = "horovod_jax_allgather"
_HANDLERS = (ALLREDUCE, BROADCAST, ALLGATHER)
_QUERIES = (
    "horovod_is_initialized",
    "horovod_rank",
    "horovod_size",
    "horovod_local_rank",
    "horovod_local_size",
)


def path() -> pathlib.Path:
    """Finds the library in the installed Horovod.

    Nothing of Horovod is imported: its package loads its launcher.

    Returns:
        The path of the library's file.

    Raises:
        HorovodMissingError: Horovod is not installed, or not for JAX.
    """
    spec = importlib.util.find_spec("horovod")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or []:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            file = pathlib.Path(folder, "jax", f"mpi_lib{suffix}")
            if file.is_file():
                return file
    found = "Horovod without JAX" if folders else "no Horovod"
    raise HorovodMissingError(
        "Horovod is not installed for JAX. "
        f"Received: {found} in this environment. "
        "Run: keras-mwms install-horovod"
    )


@functools.cache
def load() -> ctypes.CDLL:
    """Loads the library and registers its handlers, once a process.

    Returns:
        The library, with the types of the functions used here.

    Raises:
        HorovodMissingError: the library is absent or does not load.
        NotImplementedError: JAX does not run on the CPU.
    """
    compat.require_cpu()
    file = path()
    try:
        library = ctypes.CDLL(str(file))
        handlers = {name: getattr(library, name) for name in _HANDLERS}
        _declare(library)
    except (OSError, AttributeError) as error:
        raise HorovodMissingError(
            "The installed Horovod for JAX does not load. "
            f"Received: {file}: {error}. "
            "Build it again: keras-mwms install-horovod"
        ) from error
    for name, handler in handlers.items():
        compat.register_target(name, handler)
    compat.allow_recomputation()
    return library


def _declare(library: ctypes.CDLL) -> None:
    ranks = ctypes.POINTER(ctypes.c_int)
    library.horovod_init.argtypes = [
        ranks,
        ctypes.c_int,
        ranks,
        ranks,
        ctypes.c_int,
    ]
    library.horovod_init.restype = ctypes.c_bool
    library.horovod_shutdown.argtypes = []
    library.horovod_shutdown.restype = None
    for name in _QUERIES:
        query = getattr(library, name)
        query.argtypes = []
        query.restype = ctypes.c_int
    # On host memory; `host` calls them. Their results are texts to be freed,
    # which `c_char_p` would copy and forget.
    library.horovod_jax_host_allgather.argtypes = [
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_int64),
    ]
    library.horovod_jax_host_allgather.restype = ctypes.c_void_p
    library.horovod_jax_host_broadcast.argtypes = [
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int,
    ]
    library.horovod_jax_host_broadcast.restype = ctypes.c_void_p
    library.horovod_jax_host_free.argtypes = [ctypes.c_void_p]
    library.horovod_jax_host_free.restype = None


def init() -> None:
    """Joins the ring that the `HOROVOD_*` variables describe.

    Again after `init` it does nothing; after `shutdown` it joins anew.

    Raises:
        HorovodMissingError: the library is absent or does not load.
        NotImplementedError: JAX does not run on the CPU.
        StartError: Horovod did not start.
    """
    # All ranks, no process sets.
    if not load().horovod_init(None, 0, None, None, 0):
        raise StartError(
            "Horovod did not start. Its reason stands on standard error."
        )
    # What is pending at exit would otherwise be waited for without end.
    atexit.unregister(shutdown)
    atexit.register(shutdown)


def shutdown() -> None:
    """Leaves the ring. Pending operations of all replicas fail."""
    load().horovod_shutdown()


def is_initialized() -> bool:
    """Whether this process is a member of a ring."""
    return bool(load().horovod_is_initialized())


def rank() -> int:
    """This replica's number."""
    return _ask("horovod_rank")


def size() -> int:
    """The number of replicas."""
    return _ask("horovod_size")


def local_rank() -> int:
    """This replica's number on its host."""
    return _ask("horovod_local_rank")


def local_size() -> int:
    """The number of replicas on this host."""
    return _ask("horovod_local_size")


def _ask(name: str) -> int:
    answer = int(getattr(load(), name)())
    if answer < 0:
        raise RuntimeError(
            f"Horovod for JAX is not initialized. Received: {name}() = "
            f"{answer}. Call keras_mwms.engine.jax.library.init() first."
        )
    return answer
