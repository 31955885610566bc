import subprocess
import sys

import pytest

from keras_mwms.engine import library
from keras_mwms.errors import HorovodMissingError
from tests.pool.environment import ROOT


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="'mxnet'"):
        library.load("mxnet")


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_no_horovod(monkeypatch, backend):
    monkeypatch.setitem(sys.modules, "horovod", None)
    with pytest.raises(HorovodMissingError) as raised:
        library.load(backend)
    assert "not installed" in str(raised.value)
    assert "keras-mwms install-horovod" in str(raised.value)


@pytest.mark.parametrize("error", ["ImportError", "OSError"])
def test_a_horovod_that_does_not_load_tells_why(tmp_path, error):
    package = tmp_path / "horovod"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "torch.py").write_text(f"raise {error}('undefined symbol: x')")
    program = (
        "from keras_mwms.engine import library\n"
        "try:\n"
        "    library.load('torch')\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("HorovodMissingError")
    assert "undefined symbol: x" in done.stdout
    assert "keras-mwms install-horovod" in done.stdout
    assert "not installed" not in done.stdout


def test_the_installed_horovod_loads(backend):
    try:
        found = library.load(backend)
    except HorovodMissingError as error:
        pytest.skip(str(error))
    assert found.name == backend
    assert not found.is_initialized()
