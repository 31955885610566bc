"""The environment variables of a build: the user's first, ours after."""

import os
import re
from collections.abc import Collection
from collections.abc import Mapping

from keras_mwms.engine.install.frameworks import FRAMEWORKS
from keras_mwms.engine.install.frameworks import Framework
from keras_mwms.engine.install.frameworks import switch
from keras_mwms.engine.install.tools import Tools

# The variables that change what is built. The other HOROVOD_* ones, such as
# HOROVOD_CYCLE_TIME, are read when Horovod runs.
_SHAPES_THE_BUILD = re.compile(
    r"""
    HOROVOD_(WITH|WITHOUT|GPU|CUDA|NCCL|ROCM|NVTX|BUILD)(_.*)?
    | HOROVOD_(ALLOW_MIXED_GPU_IMPL|CPU_OPERATIONS|DEBUG|SKIP_COMPILE)
    | HOROVOD_(LOCAL_VERSION|MPICXX_SHOW)
    | (C|CXX|LD|CUDA)FLAGS | CC | CXX | CUDACXX | AR
    | (CUDA|CUDAToolkit|MPI|CCL)_(HOME|PATH|ROOT|CONFIGURATION)
    | CMAKE_.*
    """,
    re.VERBOSE,
)


def build_environment(
    environ: Mapping[str, str],
    frameworks: Collection[Framework],
    tools: Tools,
) -> dict[str, str]:
    """The environment to build Horovod in.

    Whatever the user has set wins, and all other variables pass through.

    Args:
        environ: the user's environment.
        frameworks: what to build for.
        tools: the tools to build with.

    Returns:
        All environment variables of the build.
    """
    wanted = {known.feature: known in frameworks for known in FRAMEWORKS}
    wanted |= {"MXNET": False, "GLOO": True, "MPI": False}
    switches = {
        f"HOROVOD_{'WITH' if on else 'WITHOUT'}_{feature}": "1"
        for feature, on in wanted.items()
        if switch(environ, feature) is None
    }
    defaults = {
        "CXX": tools.compiler,
        # CMake 4 refuses the bundled Gloo, which asks for less.
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
    }
    fixed = {
        "HOROVOD_CMAKE": tools.cmake,
        # Horovod's setup.py passes arguments that only make understands.
        "CMAKE_GENERATOR": "Unix Makefiles",
    }
    return {**defaults, **environ, **switches, **fixed}


def build_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The part of a build's environment that changes what is built.

    Args:
        env: what `build_environment` returned.

    Returns:
        The variables, sorted by name.
    """
    return {
        name: env[name]
        for name in sorted(env)
        if _SHAPES_THE_BUILD.fullmatch(name)
    }
