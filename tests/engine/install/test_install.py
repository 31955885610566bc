"""The whole command, on real environments.

Building Horovod takes minutes, so the environments here get a small wheel
of the same name from the cache, or a compiler that fails.
"""

import dataclasses
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

from keras_mwms.engine.install import frameworks
from keras_mwms.engine.install import install
from keras_mwms.engine.install import source
from keras_mwms.engine.install.errors import InstallError
from keras_mwms.engine.install.frameworks import Framework

COMMAND = ("-m", "keras_mwms.engine.install")
ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(scope="module")
def framework() -> str:
    """A framework of this environment."""
    return next(
        known.name
        for known in frameworks.FRAMEWORKS
        if frameworks.is_installed(known)
    )


@pytest.fixture
def cache(tmp_path, monkeypatch) -> pathlib.Path:
    """An empty cache, used by this process and those it starts.

    With a variable that no other build has, so that no Horovod that is
    installed in this environment fits.
    """
    folder = tmp_path / "cache"
    monkeypatch.setenv("CXXFLAGS", "-DKERAS_MWMS_TEST")
    monkeypatch.setenv("KERAS_MWMS_CACHE", str(folder))
    return folder


def run(*arguments, python=sys.executable, **variables):
    return subprocess.run(
        [str(python), *COMMAND, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


@dataclasses.dataclass(frozen=True)
class Sandbox:
    """An environment with the packages of this one and its own Horovod."""

    python: pathlib.Path

    def run(self, *arguments):
        return run(*arguments, python=self.python)


@pytest.fixture
def sandbox(tmp_path) -> Sandbox:
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = sysconfig.get_path(
        "purelib", vars={"base": str(folder), "platbase": str(folder)}
    )
    parents = "\n".join({sysconfig.get_path(k) for k in ("purelib", "platlib")})
    pathlib.Path(site, "parent.pth").write_text(f"{parents}\n")
    return Sandbox(python)


def children_seconds() -> float:
    """The processor time of children, which other load does not stretch."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def small_wheel(cache, key, framework, content):
    """A wheel called horovod in the cache, whose binding is `content`."""
    folder = cache / "wheels" / key
    folder.mkdir(parents=True)
    info = f"horovod-{source.VERSION}.dist-info"
    files = {
        "horovod/__init__.py": "",
        f"horovod/{framework}/__init__.py": content,
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: horovod\nVersion: {source.VERSION}\n"
        ),
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
            "Tag: py3-none-any\n"
        ),
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    wheel = folder / f"horovod-{source.VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return wheel


def test_from_the_cache_and_then_nothing_to_do(cache, framework, sandbox):
    plan = install.make_plan([framework])
    wheel = small_wheel(cache, plan.key, framework, "init = None")

    first = sandbox.run("--framework", framework)
    assert first.returncode == 0, first.stderr
    assert f"Horovod for {framework} is installed and loads" in first.stdout
    assert "from the cache" in first.stdout

    wheel.unlink()
    start = children_seconds()
    second = sandbox.run("--framework", framework)
    assert children_seconds() - start < 3
    assert second.returncode == 0, second.stderr
    assert "is installed already; nothing to do" in second.stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("raise ImportError('bad symbol')", "bad symbol"),
        # As Horovod for PyTorch is when its library is not there.
        ("", "cannot import name 'init'"),
    ],
)
def test_a_wheel_that_does_not_load_is_not_kept(
    content, message, cache, framework, sandbox
):
    plan = install.make_plan([framework])
    wheel = small_wheel(cache, plan.key, framework, content)
    done = sandbox.run("--framework", framework)
    assert done.returncode == 1
    assert f"loading Horovod for {framework}" in done.stderr
    assert message in done.stderr
    assert not wheel.exists()


@pytest.fixture
def failing_compiler(tmp_path) -> str:
    script = tmp_path / "failing-compiler"
    script.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "cc 1.0" && exit 0\nexit 1\n'
    )
    script.chmod(0o755)
    return str(script)


def test_failing_build(archive, cache, framework, failing_compiler, tmp_path):
    (cache / "sources").mkdir(parents=True)
    shutil.copy(archive, cache / "sources")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = run(
        *("--framework", framework),
        CXX=failing_compiler,
        TMPDIR=str(scratch),
    )
    assert done.returncode == 1
    (log,) = (cache / "logs").iterdir()
    assert f"All of it: {log}" in done.stderr
    assert "CMake Error" in done.stderr
    assert failing_compiler in log.read_text()
    assert list(cache.rglob("*.whl")) == []
    assert [file for file in scratch.iterdir() if "keras" in file.name] == []


def test_unknown_framework(cache):
    done = run("--framework", "mxnet")
    assert done.returncode == 1
    assert "Received: 'mxnet'" in done.stderr
    assert not cache.exists()


def test_key_follows_the_environment(framework):
    def key(**variables):
        environ = {**os.environ, **variables}
        return install.make_plan([framework], environ=environ).key

    assert key() == key(HOROVOD_CYCLE_TIME="1")
    keys = {
        key(),
        key(HOROVOD_WITH_MPI="1"),
        key(HOROVOD_GPU_OPERATIONS="NCCL"),
        key(CXXFLAGS="-g"),
    }
    assert len(keys) == 4


def test_key_follows_the_binding(tmp_path):
    pytest.importorskip("jax")
    (tmp_path / "CMakeLists.txt").write_text("return()\n")

    def key():
        return install.make_plan(["jax"], binding_sources=tmp_path).key

    before = key()
    (tmp_path / "CMakeLists.txt").write_text("# other\n")
    assert before != key() != install.make_plan(["jax"]).key


def test_making_a_plan_writes_nothing(cache, framework):
    install.make_plan([framework])
    assert not cache.exists()


@pytest.mark.parametrize(
    ("noted", "matches"),
    [
        ('{"url": "file:///c/wheels/the%20key/h.whl"}', True),
        ('{"url": "file:///c/wheels/other/h.whl"}', False),
        ('{"url": "https://example.org/the%20key.whl"}', False),
        (None, False),
    ],
)
def test_installed_wheel(noted, matches, tmp_path, monkeypatch):
    info = tmp_path / "horovod-0.28.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: horovod\nVersion: 0.28.1\n")
    if noted is not None:
        (info / "direct_url.json").write_text(noted)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    expected = pathlib.Path("/c/wheels/the key/h.whl") if matches else None
    assert install.installed_wheel("the key") == expected


def test_nothing_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert install.installed_wheel("the key") is None


def test_verify_names_what_does_not_load():
    absent = Framework("no_such_binding", "X", ("x",))
    with pytest.raises(InstallError, match="Horovod for no_such_binding"):
        install.verify([absent])


def test_horovod_of_this_environment_is_found_quickly(framework):
    plan = install.make_plan()
    if install.installed_wheel(plan.key) is None:
        pytest.skip("Horovod was not installed here by the command")
    start = children_seconds()
    done = run()
    assert children_seconds() - start < 3
    assert "nothing to do" in done.stdout
