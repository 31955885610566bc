"""Puts the JAX binding into Horovod's sources, as a third one."""

import hashlib
import importlib.metadata
import pathlib
import shutil
import sys

from keras_mwms.engine.install import process
from keras_mwms.engine.install.errors import InstallError

DEFAULT_SOURCES = pathlib.Path(__file__).parents[1] / "jax" / "csrc"
_IMPORT_SECONDS = 300.0

# What horovodrun and the process sets ask of a binding.
_PACKAGE = '''\
"""Horovod for JAX, added by keras-mwms: the basics of the binding."""

from horovod.common.basics import HorovodBasics
from horovod.common.process_sets import _setup
from horovod.common.util import check_extension

check_extension("horovod.jax", "HOROVOD_WITH_JAX", __file__, "mpi_lib")

_basics = HorovodBasics(__file__, "mpi_lib")
_setup(_basics)

init = _basics.init
shutdown = _basics.shutdown
is_initialized = _basics.is_initialized
size = _basics.size
local_size = _basics.local_size
cross_size = _basics.cross_size
rank = _basics.rank
local_rank = _basics.local_rank
cross_rank = _basics.cross_rank
mpi_enabled = _basics.mpi_enabled
mpi_built = _basics.mpi_built
gloo_enabled = _basics.gloo_enabled
gloo_built = _basics.gloo_built
nccl_built = _basics.nccl_built
ddl_built = _basics.ddl_built
ccl_built = _basics.ccl_built
cuda_built = _basics.cuda_built
rocm_built = _basics.rocm_built
'''


def source_files(sources: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """The files of the binding.

    Args:
        sources: the folder that holds them.

    Returns:
        The files, sorted by name.

    Raises:
        InstallError: there is no `CMakeLists.txt` among them.
    """
    if not (sources / "CMakeLists.txt").is_file():
        raise InstallError(
            "The sources of the JAX binding are not complete: no "
            f"CMakeLists.txt. Received: {sources}. Install keras-mwms again."
        )
    return tuple(sorted(file for file in sources.iterdir() if file.is_file()))


def digest(sources: pathlib.Path) -> str:
    """A digest of all that the binding adds to Horovod's sources."""
    total = hashlib.sha256(_PACKAGE.encode())
    for file in source_files(sources):
        content = file.read_bytes()
        total.update(f"\0{file.name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def add(sources: pathlib.Path, tree: pathlib.Path) -> None:
    """Copies the binding to `horovod/jax` in Horovod's sources.

    Args:
        sources: the folder with the binding's sources.
        tree: the root of Horovod's sources.
    """
    folder = tree / "horovod" / "jax"
    folder.mkdir()
    for file in source_files(sources):
        shutil.copyfile(file, folder / file.name)
    (folder / "__init__.py").write_text(_PACKAGE, encoding="utf-8")


def build_variables() -> dict[str, str]:
    """What the binding's `CMakeLists.txt` reads from the environment."""
    return {
        "HOROVOD_JAX_INCLUDE_DIR": _ffi_headers(),
        "HOROVOD_JAX_VERSION": importlib.metadata.version("jax"),
    }


def _ffi_headers() -> str:
    """The folder with the headers of XLA's foreign function interface."""
    answer = process.run(
        [
            sys.executable,
            "-P",
            "-c",
            "import jax.ffi; print(jax.ffi.include_dir())",
        ],
        what="asking JAX where its headers are",
        timeout=_IMPORT_SECONDS,
    )
    return answer.strip().splitlines()[-1]
