import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from keras_mwms.engine.install.errors import MissingToolsError
from keras_mwms.engine.install.tools import find_tools


def program(file: pathlib.Path, says: str) -> str:
    file.write_text(f"#!/bin/sh\necho {says}\n")
    file.chmod(0o755)
    return str(file)


@pytest.fixture
def path(tmp_path):
    """A PATH on which all tools are."""
    program(tmp_path / "c++", "c++ 99.1")
    program(tmp_path / "cmake", "cmake version 3.13.4")
    program(tmp_path / "make", "make 4")
    return tmp_path


def test_finds_all(path):
    tools = find_tools({"PATH": str(path)})
    assert tools.compiler == str(path / "c++")
    assert tools.compiler_version == "c++ 99.1"
    assert tools.cmake == str(path / "cmake")


def test_cxx_is_honoured(path, tmp_path):
    program(tmp_path / "clang++", "clang 7")
    tools = find_tools({"PATH": str(path), "CXX": "clang++ -v"})
    assert tools.compiler == "clang++ -v"
    assert tools.compiler_version == "clang 7"


def test_horovod_cmake_is_honoured(path, tmp_path):
    other = program(tmp_path / "other", "cmake version 4.1.0")
    tools = find_tools({"PATH": str(path), "HOROVOD_CMAKE": other})
    assert tools.cmake == other


@pytest.mark.parametrize(
    ("tool", "line"),
    [
        ("c++", r"a C\+\+ compiler .*: apt install g\+\+"),
        ("make", "make: apt install make"),
    ],
)
def test_names_what_is_missing(path, tool, line):
    (path / tool).unlink()
    with pytest.raises(MissingToolsError) as caught:
        find_tools({"PATH": str(path)})
    assert re.fullmatch(rf"[^\n]*:\n  - {line}", str(caught.value))


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"CXX": "no-such-cc"}, "CXX names .'no-such-cc' is not a program"),
        ({"HOROVOD_CMAKE": "/nowhere"}, "/nowhere is not a working CMake"),
    ],
)
def test_names_a_wrong_variable(path, variables, line):
    with pytest.raises(MissingToolsError, match=line):
        find_tools({"PATH": str(path), **variables})


def test_old_cmake(path):
    old = program(path / "cmake", "cmake version 3.10.2")
    with pytest.raises(
        MissingToolsError,
        match=f"cmake 3.13 or newer .{old} is version 3.10.2.: ",
    ):
        find_tools({"PATH": str(path), "HOROVOD_CMAKE": old})


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell")
def test_command_reports_all_at_once_and_downloads_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    cache = tmp_path / "cache"
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CXX", "HOROVOD_CMAKE")
    }
    done = subprocess.run(
        [sys.executable, "-m", "keras_mwms.engine.install"],
        env={
            **kept,
            "PATH": str(tmp_path / "empty"),
            "KERAS_MWMS_CACHE": str(cache),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    bullets = [
        line for line in done.stderr.splitlines() if line.startswith("  - ")
    ]
    assert [line.split(":")[0] for line in bullets][:1] == [
        "  - a C++ compiler (c++ or g++; CXX may name one)"
    ]
    assert "  - make: apt install make" in bullets
    assert not cache.exists()
