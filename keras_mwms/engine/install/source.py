"""Horovod's source distribution: fetched, verified, unpacked."""

import hashlib
import os
import pathlib
import sys
import tarfile
import tempfile

from keras_mwms.engine.install import process
from keras_mwms.engine.install.errors import InstallError

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
ARCHIVE = f"horovod-{VERSION}.tar.gz"


def fetch(folder: pathlib.Path, *, timeout: float) -> pathlib.Path:
    """Downloads the source distribution with pip, unless it is there.

    Args:
        folder: where to keep it. A file that is already there is used when
            its digest is right, so that it can be put there by hand.
        timeout: seconds that the download may take.

    Returns:
        The verified archive.

    Raises:
        InstallError: the download failed or brought something else.
    """
    archive = folder / ARCHIVE
    if archive.is_file() and _sha256(archive) == SHA256:
        return archive
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        fetched = pathlib.Path(scratch, ARCHIVE)
        _download(pathlib.Path(scratch), archive, timeout)
        if not fetched.is_file() or _sha256(fetched) != SHA256:
            raise InstallError(
                f"pip did not bring {ARCHIVE} with sha256 {SHA256}. "
                f"Received: {sorted(os.listdir(scratch))}"
            )
        os.replace(fetched, archive)
    return archive


def _download(
    scratch: pathlib.Path, archive: pathlib.Path, timeout: float
) -> None:
    # The digest stands in a requirements file so that pip checks it before
    # it runs the archive's setup.py for the metadata.
    requirements = scratch / "requirements.txt"
    requirements.write_text(
        f"horovod=={VERSION} --hash=sha256:{SHA256}\n", encoding="utf-8"
    )
    command = [
        *(sys.executable, "-m", "pip", "download", "--require-hashes"),
        *("--no-deps", "--no-build-isolation", "--no-binary", "horovod"),
        *("--dest", str(scratch), "--requirement", str(requirements)),
    ]
    try:
        process.run(
            command, what="downloading Horovod's sources", timeout=timeout
        )
    except InstallError as error:
        raise InstallError(
            f"{error}\nWithout a network, put {ARCHIVE} from PyPI here: "
            f"{archive}"
        ) from error


def unpack(archive: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Unpacks a source distribution of Horovod.

    Args:
        archive: the archive.
        folder: where to unpack it.

    Returns:
        The root of the sources.
    """
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / f"horovod-{VERSION}"


def _sha256(file: pathlib.Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
