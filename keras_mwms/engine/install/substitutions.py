"""The changes that make Horovod 0.28.1 build against current frameworks.

Every change names the public issue it answers and fails loudly when the
sources are not what it expects.
"""

import dataclasses
import pathlib
from collections.abc import Iterable

from keras_mwms.engine.install.errors import SubstitutionError


@dataclasses.dataclass(frozen=True)
class Substitution:
    """One change to one file of Horovod's sources.

    Attributes:
        name: how messages call it.
        answers: the public issues it answers.
        path: the file, relative to the root of the sources.
        old: the text to replace.
        new: the text to put there.
        why: what goes wrong without it.
        count: how often `old` must be there, exactly.
    """

    name: str
    answers: str
    path: str
    old: str
    new: str
    why: str
    count: int = 1

    def apply(self, tree: pathlib.Path) -> None:
        """Changes the file below `tree`.

        Args:
            tree: the root of the sources.

        Raises:
            SubstitutionError: the file is missing or holds `old` another
                number of times than `count`.
        """
        file = tree / self.path
        if not file.is_file():
            raise SubstitutionError(
                f"Substitution {self.name!r} changes a file that Horovod's "
                f"sources do not have. Received: {self.path}"
            )
        text = file.read_text(encoding="utf-8")
        found = text.count(self.old)
        if found != self.count:
            raise SubstitutionError(
                f"Substitution {self.name!r} ({self.answers}) expects to "
                f"change {self.path} in {self.count} place(s). Received: a "
                f"file with {found} place(s) that read {self.old!r}"
            )
        file.write_text(text.replace(self.old, self.new), encoding="utf-8")


_CXX17 = "horovod issues 3996, 4014, 3941"

COMMON = (
    Substitution(
        name="core in C++17",
        answers=_CXX17,
        path="CMakeLists.txt",
        old="set(CMAKE_CXX_STANDARD 14)",
        new="set(CMAKE_CXX_STANDARD 17)",
        why="The headers of TensorFlow, PyTorch and XLA are C++17.",
    ),
    Substitution(
        name="PyTorch binding in C++17",
        answers=_CXX17,
        path="horovod/torch/CMakeLists.txt",
        old="set(CMAKE_CXX_STANDARD 14)",
        new="set(CMAKE_CXX_STANDARD 17)",
        why="The headers of PyTorch 2.1 and newer are C++17.",
    ),
    Substitution(
        name="TensorFlow binding without XLA operations",
        answers="horovod issue 4290",
        path="horovod/tensorflow/CMakeLists.txt",
        old=(
            "list(APPEND TF_SOURCES "
            '"${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n'
        ),
        new="",
        why=(
            "It includes XLA headers that moved or are not shipped. Nothing "
            "else refers to it: its operations register themselves."
        ),
    ),
    Substitution(
        name="stalls seen with Gloo",
        answers="no public issue; seen by running",
        path="horovod/common/gloo/gloo_controller.cc",
        old="global_ranks_.reserve(size_);",
        new="global_ranks_.resize(size_);",
        why=(
            "The list of ranks stays empty, so that the stall inspector "
            "never finds a rank missing, and a replica that goes mute is "
            "waited for without end."
        ),
    ),
    Substitution(
        name="PyTorch binding without distutils",
        answers="setuptools issue 4655",
        path="horovod/torch/CMakeLists.txt",
        old=(
            "from distutils.sysconfig import get_python_inc; "
            "print(get_python_inc())"
        ),
        new="import sysconfig; print(sysconfig.get_path('include'))",
        why="Python 3.12 has no distutils.",
    ),
    Substitution(
        name="horovodrun without distutils",
        answers="setuptools issue 4655",
        path="horovod/runner/js_run.py",
        old="from distutils.spawn import find_executable\n",
        new="from shutil import which as find_executable\n",
        why="Python 3.12 has no distutils; horovodrun imports this module.",
    ),
)

JAX_BINDING = (
    Substitution(
        name="JAX binding in the build",
        answers="horovod issue 3293",
        path="CMakeLists.txt",
        old="add_subdirectory(horovod/mxnet)\n",
        new=(
            "add_subdirectory(horovod/mxnet)\n# JAX\n"
            "add_subdirectory(horovod/jax)\n"
        ),
        why="Horovod has no binding for JAX.",
    ),
    Substitution(
        name="JAX binding as an extension",
        answers="horovod issue 3293",
        path="setup.py",
        old="def is_build_action():\n",
        new=(
            "jax_mpi_lib = CMakeExtension('horovod.jax.mpi_lib',\n"
            "                             cmake_lists_dir='.', sources=[])\n\n"
            "def is_build_action():\n"
        ),
        why="Horovod has no binding for JAX.",
    ),
    Substitution(
        name="JAX binding in the wheel",
        answers="horovod issue 3293",
        path="setup.py",
        old="ext_modules=[tensorflow_mpi_lib, torch_mpi_lib_v2, mxnet_mpi_lib]",
        new=(
            "ext_modules=[tensorflow_mpi_lib, torch_mpi_lib_v2, mxnet_mpi_lib,"
            " jax_mpi_lib]"
        ),
        why="Horovod has no binding for JAX.",
    ),
    Substitution(
        name="JAX binding known to horovodrun",
        answers="horovod issue 3293",
        path="horovod/common/util.py",
        old="EXTENSIONS = ['tensorflow', 'torch', 'mxnet']",
        new="EXTENSIONS = ['tensorflow', 'torch', 'mxnet', 'jax']",
        why="horovodrun asks these whether Gloo was built.",
    ),
)


def apply_all(
    substitutions: Iterable[Substitution], tree: pathlib.Path
) -> None:
    """Applies substitutions, in order.

    Args:
        substitutions: what to change.
        tree: the root of the sources.

    Raises:
        SubstitutionError: one of them does not fit.
    """
    for substitution in substitutions:
        substitution.apply(tree)
