import subprocess
import sys

import pytest

from keras_mwms.engine.install import frameworks
from keras_mwms.engine.install.errors import InstallError
from keras_mwms.engine.install.frameworks import FRAMEWORKS
from keras_mwms.engine.install.frameworks import JAX
from keras_mwms.engine.install.frameworks import TENSORFLOW
from keras_mwms.engine.install.frameworks import TORCH
from keras_mwms.engine.install.frameworks import Framework


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"HOROVOD_WITH_MPI": "1"}, True),
        ({"HOROVOD_WITHOUT_MPI": "1"}, False),
        ({"HOROVOD_WITH_MPI": "1", "HOROVOD_WITHOUT_MPI": "1"}, False),
        ({"HOROVOD_WITH_MPI": "0"}, None),
        ({"HOROVOD_WITHOUT_MPI": "0"}, None),
        ({"HOROVOD_WITH_GLOO": "1"}, None),
    ],
)
def test_switch(environ, expected):
    assert frameworks.switch(environ, "MPI") is expected


@pytest.mark.parametrize(
    ("requested", "environ", "installed", "expected"),
    [
        (None, {}, [TORCH], (TORCH,)),
        (None, {}, [JAX, TENSORFLOW], (TENSORFLOW, JAX)),
        (["jax"], {}, FRAMEWORKS, (JAX,)),
        (["jax", "torch"], {}, FRAMEWORKS, (TORCH, JAX)),
        (None, {"HOROVOD_WITHOUT_PYTORCH": "1"}, FRAMEWORKS, (TENSORFLOW, JAX)),
        (["jax"], {"HOROVOD_WITH_PYTORCH": "1"}, FRAMEWORKS, (TORCH, JAX)),
        (["jax"], {"HOROVOD_WITHOUT_PYTORCH": "1"}, FRAMEWORKS, (JAX,)),
    ],
)
def test_select(requested, environ, installed, expected):
    assert frameworks.select(requested, environ, installed) == expected


@pytest.mark.parametrize(
    ("requested", "environ", "installed", "message"),
    [
        (None, {}, [], "No framework to build Horovod for"),
        (None, {"HOROVOD_WITHOUT_JAX": "1"}, [JAX], "No framework"),
        (["mxnet"], {}, FRAMEWORKS, "Received: 'mxnet'"),
        (["torch"], {}, [JAX], "torch is asked for but is not installed"),
        (None, {"HOROVOD_WITH_JAX": "1"}, [TORCH], "jax is asked for"),
        (
            ["jax"],
            {"HOROVOD_WITHOUT_JAX": "1"},
            [JAX],
            "Received: HOROVOD_WITHOUT_JAX=1",
        ),
    ],
)
def test_select_refuses(requested, environ, installed, message):
    with pytest.raises(InstallError, match=message):
        frameworks.select(requested, environ, installed)


def test_finds_without_importing():
    script = (
        "import sys\n"
        "from keras_mwms.engine.install import frameworks as f\n"
        "here = [k for k in f.FRAMEWORKS if f.is_installed(k)]\n"
        "assert here and all(f.describe_version(k) for k in here)\n"
        "loaded = {'tensorflow', 'torch', 'jax', 'keras'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_version_names_all_parts():
    pytest.importorskip("jax")
    version = frameworks.describe_version(JAX)
    assert [part.split()[0] for part in version.split(", ")] == [
        "jax",
        "jaxlib",
    ]


def test_a_folder_is_not_a_framework(tmp_path, monkeypatch):
    (tmp_path / "only_a_folder").mkdir()
    (tmp_path / "a_module.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    installed = {
        name: frameworks.is_installed(Framework(name, "X", (name,)))
        for name in ("only_a_folder", "a_module", "absent_module")
    }
    assert installed == {
        "only_a_folder": False,
        "a_module": True,
        "absent_module": False,
    }
