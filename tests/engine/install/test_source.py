import hashlib
import shutil
import tarfile

import pytest

from keras_mwms.engine.install import source
from keras_mwms.engine.install.errors import InstallError


def test_fetched_archive_is_the_release(archive):
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert digest == source.SHA256
    assert archive.name == "horovod-0.28.1.tar.gz"


def test_an_archive_put_there_by_hand_needs_no_network(
    archive, tmp_path, monkeypatch
):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    shutil.copy(archive, tmp_path)
    fetched = source.fetch(tmp_path, timeout=30)
    assert fetched == tmp_path / source.ARCHIVE


def test_a_damaged_archive_is_not_used(archive, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    damaged = tmp_path / source.ARCHIVE
    damaged.write_bytes(archive.read_bytes()[:-1])
    with pytest.raises(InstallError, match=f"put .* here: {damaged}"):
        source.fetch(tmp_path, timeout=30)
    assert [file.name for file in tmp_path.iterdir()] == [source.ARCHIVE]


def test_unpacks_nothing_outside(tmp_path):
    (tmp_path / "file").touch()
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "file", arcname="../escaped")
    with pytest.raises(tarfile.OutsideDestinationError):
        source.unpack(tmp_path / "bad.tar.gz", tmp_path / "into")
    assert not (tmp_path / "escaped").exists()


def test_unpacks_the_tree(released):
    assert (released / "setup.py").is_file()
    assert (released / "third_party" / "gloo" / "CMakeLists.txt").is_file()
