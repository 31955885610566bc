"""The example of TFRecord files: each worker reads its own, and all learn."""

import re
import sys

import pytest

from tests.pool.environment import ROOT

pytestmark = pytest.mark.needs("tensorflow", "sklearn")

SCRIPT = ROOT / "examples" / "tfrecords.py"
# Of 1437 rows the first five of eight files have 180.
OF_FILES = [180] * 5 + [179] * 3


@pytest.mark.parametrize("size", [1, 3])
def test_each_worker_reads_its_own_files(fresh_cluster, tmp_path, size):
    finished = fresh_cluster(
        size,
        [sys.executable, str(SCRIPT), "--epochs", "6"],
        timeout=400.0,
        cwd=tmp_path,
    )
    for process in finished:
        assert process.returncode == 0, process.stderr
    assert len(list((tmp_path / "digits").glob("*.tfrecord"))) == 8
    printed = "".join(process.stdout for process in finished)
    read = re.findall(r"^Worker (\d) read (\d+) rows", printed, re.M)
    assert read == [
        (str(rank), str(sum(OF_FILES[rank::size]))) for rank in range(size)
    ]
    (accuracy,) = re.findall(r"^Validation accuracy ([\d.]+)$", printed, re.M)
    assert float(accuracy) > 0.9
