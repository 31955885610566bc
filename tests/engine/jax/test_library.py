"""Finding the shared library, and what is said when it cannot be used."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

import jax

from keras_mwms.engine.jax import compat
from keras_mwms.engine.jax import library
from keras_mwms.errors import HorovodMissingError

pytestmark = pytest.mark.backend("jax")


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder, the only place that packages are found in."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "horovod", raising=False)
    return tmp_path


def test_no_horovod(only: Path) -> None:
    with pytest.raises(
        HorovodMissingError,
        match=r"Received: no Horovod .*Run: keras-mwms install-horovod",
    ):
        library.path()


def test_horovod_for_another_backend(only: Path) -> None:
    (only / "horovod" / "torch").mkdir(parents=True)
    (only / "horovod" / "__init__.py").write_text("raise AssertionError")
    with pytest.raises(
        HorovodMissingError, match="Received: Horovod without JAX"
    ):
        library.path()


def test_a_library_that_does_not_load(only: Path) -> None:
    folder = only / "horovod" / "jax"
    folder.mkdir(parents=True)
    (only / "horovod" / "__init__.py").touch()
    (folder / "mpi_lib.so").write_text("not a library")
    assert library.path() == folder / "mpi_lib.so"
    with pytest.raises(
        HorovodMissingError, match=r"Received: .*mpi_lib.so.*install-horovod"
    ):
        library.load.__wrapped__()


def test_accelerators_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # There is none on the machines that test this.
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(
        NotImplementedError,
        match=r"Received: jax.default_backend\(\)='gpu'. Set JAX_PLATFORMS=cpu",
    ):
        compat.require_cpu()
