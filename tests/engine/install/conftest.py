import os
import pathlib
import shutil

import pytest

from keras_mwms.engine.install import source
from keras_mwms.engine.install.cache import WheelCache
from keras_mwms.engine.install.cache import cache_folder


@pytest.fixture(scope="session")
def archive() -> pathlib.Path:
    """Horovod's source distribution, fetched as the product does."""
    cache = WheelCache(cache_folder(os.environ))
    return source.fetch(cache.sources, timeout=120.0)


@pytest.fixture(scope="session")
def released(
    archive: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> pathlib.Path:
    """Horovod's sources as released, not to be changed."""
    return source.unpack(archive, tmp_path_factory.mktemp("released"))


@pytest.fixture
def tree(released: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of Horovod's own sources, without third parties."""
    return shutil.copytree(
        released,
        tmp_path / "tree",
        ignore=shutil.ignore_patterns("third_party"),
    )
