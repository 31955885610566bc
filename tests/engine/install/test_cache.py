import contextlib
import dataclasses
import pathlib
import subprocess
import sys
import time

import pytest

from keras_mwms.engine.install import substitutions
from keras_mwms.engine.install.cache import Ingredients
from keras_mwms.engine.install.cache import WheelCache
from keras_mwms.engine.install.cache import cache_folder
from keras_mwms.engine.install.cache import environment_lock
from keras_mwms.engine.install.errors import InstallError

INGREDIENTS = Ingredients(
    horovod="aa",
    frameworks=(("torch", "torch 2.13.0"),),
    python=".cpython-311.so",
    platform="linux-x86_64 avx",
    substitutions=substitutions.COMMON,
    binding="bb",
    variables=(("HOROVOD_WITH_GLOO", "1"),),
    compiler="g++ 12.2.0",
)
NAME = "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"KERAS_MWMS_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/keras-mwms"),
        ({}, "/home/me/.cache/keras-mwms"),
        ({"KERAS_MWMS_CACHE": "~/c"}, "/home/me/c"),
        ({"KERAS_MWMS_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/keras-mwms"),
    ],
)
def test_cache_folder(environ, expected, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder(environ) == pathlib.Path(expected)


def test_key_is_the_same_for_the_same_ingredients():
    assert dataclasses.replace(INGREDIENTS).key() == INGREDIENTS.key()
    assert len(INGREDIENTS.key()) == 32


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("horovod", "other"),
        ("frameworks", (("torch", "torch 2.13.1"),)),
        ("python", ".cpython-312.so"),
        ("platform", "linux-x86_64"),
        ("substitutions", substitutions.COMMON[1:]),
        (
            "substitutions",
            (
                dataclasses.replace(substitutions.COMMON[0], new="other"),
                *substitutions.COMMON[1:],
            ),
        ),
        ("binding", ""),
        ("variables", (("HOROVOD_WITH_GLOO", "0"),)),
        ("compiler", "g++ 13.1.0"),
    ],
)
def test_key_changes_with_every_ingredient(field, value):
    other = dataclasses.replace(INGREDIENTS, **{field: value})
    assert other.key() != INGREDIENTS.key()


def test_every_ingredient_has_such_a_test():
    (mark,) = test_key_changes_with_every_ingredient.pytestmark
    tested = {field for field, _ in mark.args[1]}
    assert tested == {f.name for f in dataclasses.fields(Ingredients)}


def test_store_find_replace_discard(tmp_path):
    cache = WheelCache(tmp_path / "cache")
    assert cache.find("k") is None
    wheel = tmp_path / NAME
    for content in (b"first", b"second"):
        wheel.write_bytes(content)
        stored = cache.store("k", wheel)
        assert stored == cache.find("k")
        assert stored.read_bytes() == content
        # Nothing else is left there, and the name, which pip reads, is kept.
        assert [file.name for file in stored.parent.iterdir()] == [NAME]
    assert cache.find("other") is None
    cache.discard("k")
    assert cache.find("k") is None
    cache.discard("k")


@contextlib.contextmanager
def other_process_holds(cache, name):
    script = (
        "import pathlib, sys\n"
        "from keras_mwms.engine.install.cache import WheelCache\n"
        "cache = WheelCache(pathlib.Path(sys.argv[1]))\n"
        "with cache.locked(sys.argv[2], timeout=30):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(cache.folder), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        try:
            assert child.stdout.readline() == b"held\n"
            yield child
        finally:
            child.kill()


def test_lock_has_a_deadline(tmp_path):
    cache = WheelCache(tmp_path)
    with other_process_holds(cache, "k"):
        start = time.monotonic()
        with (
            pytest.raises(InstallError, match="Another installation"),
            cache.locked("k", timeout=0.3),
        ):
            pass
        assert 0.3 <= time.monotonic() - start < 10
        with cache.locked("another", timeout=0):
            pass


def test_lock_is_free_when_its_holder_dies(tmp_path):
    cache = WheelCache(tmp_path)
    with other_process_holds(cache, "k") as child:
        child.kill()
        with cache.locked("k", timeout=30):
            pass


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    cache = WheelCache(tmp_path / "file")
    with (
        pytest.raises(InstallError, match="Set KERAS_MWMS_CACHE"),
        cache.locked("k", timeout=0),
    ):
        pass


def test_environments_have_different_locks():
    assert environment_lock("/a") == environment_lock("/a")
    assert environment_lock("/a") != environment_lock("/b")
