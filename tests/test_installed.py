"""The environment is what it says, and the wheel holds what is tested."""

import importlib.metadata
import importlib.util
import json
import os
from pathlib import Path

import pytest

from tests.conftest import BACKENDS
from tests.pool.environment import ROOT

PACKAGE = "keras_mwms"


def from_wheel():
    """The files of the installed wheel, or a skip when none is installed."""
    try:
        wheel = importlib.metadata.distribution("keras-mwms")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed")
    origin = json.loads(wheel.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        pytest.skip("the package is installed in editable mode")
    return {
        str(file): Path(wheel.locate_file(file)).read_bytes()
        for file in wheel.files
        if file.parts[0] == PACKAGE and file.suffix != ".pyc"
    }


@pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="for tox")
def test_no_other_framework_is_installed(backend):
    assert [b for b in BACKENDS if importlib.util.find_spec(b)] == [backend]


def test_the_wheel_holds_the_files_of_the_checkout():
    assert from_wheel() == {
        str(file.relative_to(ROOT)): file.read_bytes()
        for file in (ROOT / PACKAGE).rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    }
