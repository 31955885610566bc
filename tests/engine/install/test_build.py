import contextlib
import os
import pathlib
import time

import psutil
import pytest

from keras_mwms.engine.install.build import build_wheel
from keras_mwms.engine.install.errors import BuildError


def project(folder: pathlib.Path, setup: str) -> pathlib.Path:
    tree = folder / "tree"
    tree.mkdir()
    (tree / "setup.py").write_text(setup)
    (tree / "one_module.py").touch()
    return tree


def build(tree, lines, timeout=60.0):
    return build_wheel(
        tree,
        env=os.environ,
        log=tree.parent / "logs" / "log",
        timeout=timeout,
        on_line=lines.append,
    )


def test_success(tmp_path):
    tree = project(
        tmp_path,
        "from setuptools import setup\n"
        "print('[ 50%] half', flush=True)\n"
        "setup(name='one', version='1.2', py_modules=['one_module'])\n",
    )
    lines = []
    wheel = build(tree, lines)
    assert wheel.name == "one-1.2-py3-none-any.whl"
    assert wheel.is_file()
    assert any("[ 50%] half" in line for line in lines)
    assert (tmp_path / "logs" / "log").read_text().splitlines() == lines


def test_failure_names_the_log_and_shows_its_end(tmp_path):
    tree = project(tmp_path, "raise SystemExit('the reason')\n")
    log = tmp_path / "logs" / "log"
    with pytest.raises(BuildError) as caught:
        build(tree, [])
    assert "the reason" in str(caught.value)
    assert str(log) in str(caught.value)
    assert "the reason" in log.read_text()


def test_deadline_ends_the_whole_build(tmp_path):
    pid = tmp_path / "pid"
    tree = project(
        tmp_path,
        "import os, pathlib, signal\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n"
        "signal.pause()\n",
    )
    start = time.monotonic()
    with pytest.raises(BuildError, match="did not end within"):
        build(tree, [], timeout=5.0)
    assert time.monotonic() - start < 20
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(pid.read_text())).wait(timeout=10)
