"""What the JAX binding does when replicas are lost: exceptions, no hang."""

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("jax")

from keras_mwms.engine.jax import library
from keras_mwms.errors import HorovodMissingError
from tests.engine.jax import ring

pytestmark = pytest.mark.backend("jax")


@pytest.fixture(autouse=True)
def _needs_the_library() -> None:
    try:
        library.path()
    except HorovodMissingError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("fault", "codes", "exceptions"),
    [
        # Rank 1 is killed: rank 0 gets an exception now and ever after.
        ("killed_while_others_wait", [0, -signal.SIGKILL], [2, 0]),
        ("killed_while_others_wait_on_the_host", [0, -signal.SIGKILL], [2, 0]),
        ("peer_left", [0, 0], [2, 0]),
        ("peer_left_the_host", [0, 0], [2, 0]),
        ("before_the_start_and_after_the_end", [0, 0], [2, 2]),
        ("exit_with_pending_operations", [0, 0], [0, 0]),
        ("exit_with_a_pending_host_operation", [0, 0], [0, 0]),
    ],
)
def test_faults_end_in_exceptions(
    fault: str, codes: list[int], exceptions: list[int], tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    ranks = ring.run("faults.py", fault, str(fifo), timeout=120)
    assert [ended.code for ended in ranks] == codes, ranks
    seen = [ended.output.count("as expected") for ended in ranks]
    assert seen == exceptions, ranks
