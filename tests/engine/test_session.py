"""The whole life of a ring, with the Horovod of this environment."""

import json
import os
import re
import sys

import pytest

from keras_mwms.cluster.spec import Cluster
from keras_mwms.cluster.spec import Origin
from keras_mwms.engine import library
from keras_mwms.engine import session
from keras_mwms.errors import HorovodMissingError
from tests.engine.test_start import config
from tests.pool.environment import free_addresses
from tests.pool.messages import PerRank

REPLICA = [sys.executable, "-m", "tests.engine.replica"]


@pytest.fixture
def _horovod(backend):
    try:
        library.load(backend)
    except HorovodMissingError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("_horovod")
def test_a_ring_runs_and_another_right_after(fresh_cluster):
    # Two hosts by name, whose ranks alternate.
    addresses = free_addresses(3)
    addresses[1] = addresses[1].replace("127.0.0.1", "127.0.0.2")
    # The first job stops by itself, the second by the end of its processes.
    for stops in ("1", ""):
        finished = fresh_cluster(
            3,
            REPLICA,
            env={
                "TF_CONFIG": PerRank([config(addresses, r) for r in range(3)]),
                "REPLICA_STOPS": stops,
            },
            timeout=60,
        )
        for rank, replica in enumerate(finished):
            assert replica.returncode == 0, replica.stderr
            expected = {
                "rank": rank,
                "local": [[0, 2], [0, 1], [1, 2]][rank],
                "total": 111.0,
                "current": True,
                "environment": True,
            }
            if stops:
                expected |= {"stopped": True, "initialized": False}
            assert json.loads(replica.stdout) == expected


@pytest.mark.usefixtures("_horovod")
def test_a_ring_of_a_launcher(fresh_cluster):
    (launcher,) = fresh_cluster(2, REPLICA, start="horovodrun", timeout=60)
    assert launcher.returncode == 0, launcher.stderr
    found = [json.loads(x) for x in re.findall(r"\{.*\}", launcher.stdout)]
    assert sorted(replica["rank"] for replica in found) == [0, 1]
    assert all(replica["total"] == 11.0 for replica in found)
    assert all(replica["environment"] for replica in found)


class Untouched:
    """A library that must not be used."""

    def __getattr__(self, name):
        raise AssertionError(name)


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(Origin.ALONE),
        Cluster(Origin.LAUNCHER),
        Cluster(Origin.TF_CONFIG, task_type="evaluator", task_id=0),
    ],
)
def test_a_world_of_one_needs_no_horovod(cluster):
    before = dict(os.environ)
    session.start(cluster, Untouched(), {})
    assert session.current() is None
    session.stop()
    assert dict(os.environ) == before
