"""The tools that Horovod's build needs, checked before anything starts."""

import dataclasses
import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from collections.abc import Mapping

from keras_mwms.engine.install.errors import MissingToolsError

OLDEST_CMAKE = (3, 13)
_ANSWER_SECONDS = 60.0
_PYTHON_MODULES = ("pip", "setuptools", "wheel", "packaging")


@dataclasses.dataclass(frozen=True)
class Tools:
    """The tools of a build.

    Attributes:
        compiler: the command of the C++ compiler.
        compiler_version: what it says about itself.
        cmake: the path of CMake.
    """

    compiler: str
    compiler_version: str
    cmake: str


def find_tools(
    environ: Mapping[str, str], *, python_headers: bool = False
) -> Tools:
    """Finds the tools, or says which are missing.

    Args:
        environ: the environment, of which `CXX`, `HOROVOD_CMAKE` and `PATH`
            count.
        python_headers: whether the build includes `Python.h`.

    Returns:
        The `Tools`.

    Raises:
        MissingToolsError: names all that is missing, a line each, with what
            to install.
    """
    missing = []
    compiler = _find_compiler(environ)
    if compiler is None:
        missing.append(_no_compiler(environ))
    cmake, seen = _find_cmake(environ)
    if cmake is None:
        missing.append(_no_cmake(environ, seen))
    if shutil.which("make", path=environ.get("PATH", "")) is None:
        missing.append("make: apt install make")
    missing += [
        f"the Python package {module}: "
        + (
            "python -m ensurepip"
            if module == "pip"
            else f"pip install {module}"
        )
        for module in _PYTHON_MODULES
        if importlib.util.find_spec(module) is None
    ]
    if python_headers and not _has_python_headers():
        missing.append(
            "the header Python.h of this Python: apt install python3-dev"
        )
    if missing or compiler is None or cmake is None:
        lines = "".join(f"\n  - {line}" for line in missing)
        raise MissingToolsError(
            "Horovod cannot be built here. Missing, and how to install it:"
            + lines
        )
    return Tools(compiler, _first_line(shlex.split(compiler), environ), cmake)


def _find_compiler(environ: Mapping[str, str]) -> str | None:
    path = environ.get("PATH", "")
    if chosen := environ.get("CXX"):
        # CXX may hold a launcher or options, such as "ccache g++".
        words = shlex.split(chosen)
        return chosen if shutil.which(words[0], path=path) else None
    for name in ("c++", "g++"):
        if found := shutil.which(name, path=path):
            return found
    return None


def _no_compiler(environ: Mapping[str, str]) -> str:
    if chosen := environ.get("CXX"):
        return (
            f"the C++ compiler that CXX names ({chosen!r} is not a program): "
            "correct or unset CXX"
        )
    return "a C++ compiler (c++ or g++; CXX may name one): apt install g++"


def _find_cmake(environ: Mapping[str, str]) -> tuple[str | None, str]:
    """The first CMake that is new enough, and what was seen otherwise."""
    seen = []
    for candidate in _cmake_candidates(environ):
        line = _first_line([candidate], environ)
        match = re.search(r"version (\d+)\.(\d+)\S*", line)
        if match and (int(match[1]), int(match[2])) >= OLDEST_CMAKE:
            return candidate, ""
        is_what = match[0] if match else "not a working CMake"
        seen.append(f"{candidate} is {is_what}")
    return None, "; ".join(seen)


def _cmake_candidates(environ: Mapping[str, str]) -> Iterator[str]:
    path = environ.get("PATH", "")
    if chosen := environ.get("HOROVOD_CMAKE"):
        yield shutil.which(chosen, path=path) or chosen
        return
    if found := shutil.which("cmake", path=path):
        yield found
    # The package from PyPI, also in an environment that is not activated.
    spec = importlib.util.find_spec("cmake")
    for folder in (spec and spec.submodule_search_locations) or ():
        binary = pathlib.Path(folder, "data", "bin", "cmake")
        if binary.is_file():
            yield str(binary)


def _no_cmake(environ: Mapping[str, str], seen: str) -> str:
    wanted = "cmake {}.{} or newer".format(*OLDEST_CMAKE)
    found = f" ({seen})" if seen else ""
    if environ.get("HOROVOD_CMAKE"):
        return f"{wanted}{found}: correct or unset HOROVOD_CMAKE"
    return f"{wanted}{found}: pip install cmake (or apt install cmake)"


def _first_line(command: list[str], environ: Mapping[str, str]) -> str:
    """The first line of `command --version`, empty when it cannot run."""
    try:
        answer = subprocess.run(
            [*command, "--version"],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = answer.stdout.splitlines()
    return lines[0].strip() if answer.returncode == 0 and lines else ""


def _has_python_headers() -> bool:
    return os.path.isfile(
        os.path.join(sysconfig.get_path("include"), "Python.h")
    )
