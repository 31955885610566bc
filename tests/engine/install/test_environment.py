import os

import pytest

from keras_mwms.engine.install.environment import build_environment
from keras_mwms.engine.install.environment import build_variables
from keras_mwms.engine.install.frameworks import JAX
from keras_mwms.engine.install.frameworks import TORCH
from keras_mwms.engine.install.tools import Tools

TOOLS = Tools("/usr/bin/c++", "c++ 12", "/opt/cmake")


def horovod(env):
    return {name: env[name] for name in env if name.startswith("HOROVOD_")}


def test_without_variables_of_the_user():
    env = build_environment({"HOME": "/h"}, [TORCH], TOOLS)
    assert horovod(env) == {
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_JAX": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_CMAKE": "/opt/cmake",
    }
    assert env["HOME"] == "/h"
    assert env["CXX"] == "/usr/bin/c++"
    assert env["CMAKE_POLICY_VERSION_MINIMUM"] == "3.5"
    assert env["MAKEFLAGS"] == f"-j{len(os.sched_getaffinity(0))}"


@pytest.mark.parametrize(
    ("given", "absent"),
    [
        ({"HOROVOD_WITH_MPI": "1"}, "HOROVOD_WITHOUT_MPI"),
        ({"HOROVOD_WITHOUT_GLOO": "1"}, "HOROVOD_WITH_GLOO"),
        ({"HOROVOD_WITH_MXNET": "1"}, "HOROVOD_WITHOUT_MXNET"),
    ],
)
def test_switches_of_the_user_win(given, absent):
    env = build_environment(given, [TORCH], TOOLS)
    assert given.items() <= env.items()
    assert absent not in env


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOROVOD_GPU_OPERATIONS", "NCCL"),
        ("HOROVOD_CUDA_HOME", "/opt/cuda"),
        ("HOROVOD_NCCL_HOME", "/opt/nccl"),
        ("HOROVOD_WITH_NVTX", "1"),
        ("MAKEFLAGS", "-j1"),
        ("CMAKE_POLICY_VERSION_MINIMUM", "3.10"),
        ("CXXFLAGS", "-march=native"),
    ],
)
def test_the_users_variables_pass_through(name, value):
    assert build_environment({name: value}, [JAX], TOOLS)[name] == value


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("HOROVOD_GPU_OPERATIONS", True),
        ("HOROVOD_GPU_ALLREDUCE", True),
        ("HOROVOD_GPU", True),
        ("HOROVOD_WITH_MPI", True),
        ("HOROVOD_WITHOUT_JAX", True),
        ("HOROVOD_CUDA_HOME", True),
        ("HOROVOD_NCCL_LINK", True),
        ("HOROVOD_BUILD_ARCH_FLAGS", True),
        ("HOROVOD_BUILD_CUDA_CC_LIST", True),
        ("HOROVOD_DEBUG", True),
        ("CXX", True),
        ("CXXFLAGS", True),
        ("CMAKE_PREFIX_PATH", True),
        ("HOROVOD_CYCLE_TIME", False),
        ("HOROVOD_RANK", False),
        ("HOROVOD_CMAKE", False),
        ("MAKEFLAGS", False),
        ("HOME", False),
        ("CXX_OTHER", False),
    ],
)
def test_which_variables_shape_the_build(name, counts):
    assert build_variables({name: "1"}) == ({name: "1"} if counts else {})


def test_variables_do_not_depend_on_their_order():
    assert list(build_variables({"CXX": "g++", "CC": "gcc"})) == ["CC", "CXX"]
