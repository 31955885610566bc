"""The operations of the JAX binding on three real ranks."""

import json

import pytest

pytest.importorskip("jax")

from keras_mwms.engine.jax import library
from keras_mwms.errors import HorovodMissingError
from tests.engine.jax import checks
from tests.engine.jax import ring
from tests.engine.jax.registry import SIZE

pytestmark = pytest.mark.backend("jax")


@pytest.fixture(scope="module")
def ranks() -> list[ring.Ended]:
    try:
        library.path()
    except HorovodMissingError as error:
        pytest.skip(str(error))
    return ring.run("checks.py", size=SIZE, timeout=180)


@pytest.mark.parametrize("name", checks.CHECKS)
def test_check(ranks: list[ring.Ended], name: str) -> None:
    for rank, ended in enumerate(ranks):
        assert ended.code == 0, f"rank {rank}: {ended}"
        failures = json.loads(ended.output.splitlines()[-1])
        assert name not in failures, f"rank {rank}: {failures[name]}"
