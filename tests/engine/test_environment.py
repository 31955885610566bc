import os
import re
import subprocess
import sys

import pytest

from keras_mwms.cluster.spec import Address
from keras_mwms.engine import environment
from keras_mwms.engine.settings import Settings
from tests.engine.clusters import make_cluster

RENDEZVOUS = Address("192.0.2.1", 5000)


def member(hosts, rank, user=None):
    return environment.for_member(
        make_cluster(hosts, rank), RENDEZVOUS, "eth7", Settings(), user or {}
    )


def test_a_member_is_told_who_it_is():
    found = member(["a", "b", "a", "b", "c"], 3)
    assert found == {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "eth7",
        "HOROVOD_HOSTNAME": "b-1",
        "HOROVOD_RANK": "3",
        "HOROVOD_SIZE": "5",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "2",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "192.0.2.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "5000",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "600",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "50",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "450",
    }


def test_host_names_are_safe_in_urls_and_their_own():
    hosts = ["2001:db8::1", "2001:db8:::1", "node_1", "node 1", "2001:db8::1"]
    names = [member(hosts, r)["HOROVOD_HOSTNAME"] for r in range(5)]
    assert all(re.fullmatch(r"[A-Za-z0-9.-]+", name) for name in names)
    assert len(set(names)) == 4
    assert names[0] == names[4]


@pytest.mark.parametrize(
    ("name", "value", "wins"),
    [
        ("HOROVOD_GLOO_IFACE", "ib0", True),
        ("HOROVOD_CONTROLLER", "mpi", True),
        ("HOROVOD_GLOO_TIMEOUT_SECONDS", "5", True),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0", True),
        ("HOROVOD_RANK", "9", False),
        ("HOROVOD_SIZE", "9", False),
        ("HOROVOD_GLOO_RENDEZVOUS_PORT", "9", False),
    ],
)
def test_what_the_user_set_wins_except_who_is_who(name, value, wins):
    assert (member(["a", "b"], 1, {name: value})[name] == value) is wins


@pytest.mark.parametrize(
    ("timeout", "user", "gloo", "check", "shutdown"),
    [
        (600.0, {}, "600", "50", "450"),
        (7200.0, {}, "7200", "60", "7020"),
        (5.5, {}, "6", "1", "3"),
        (2.5, {}, "3", "1", "1"),
        (0.1, {}, "1", "1", "1"),
        (30.0, {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5"}, "30", "5", "15"),
        (30.0, {"HOROVOD_STALL_CHECK_TIME_SECONDS": "90"}, "30", "90", "90"),
        (30.0, {"HOROVOD_STALL_CHECK_TIME_SECONDS": ""}, "30", "2", "24"),
    ],
)
def test_deadlines_are_whole_seconds_that_horovod_heeds(
    timeout, user, gloo, check, shutdown
):
    found = environment.for_launcher(Settings(timeout=timeout), user)
    assert found == {
        "HOROVOD_GLOO_TIMEOUT_SECONDS": gloo,
        "HOROVOD_STALL_CHECK_TIME_SECONDS": check,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": shutdown,
    }


def test_variables_are_set_for_a_while(monkeypatch):
    monkeypatch.setenv("HOROVOD_OLD", "before")
    monkeypatch.delenv("HOROVOD_NEW", raising=False)
    with environment.applied({"HOROVOD_OLD": "now", "HOROVOD_NEW": "now"}):
        assert os.environ["HOROVOD_OLD"] == "now"
        assert os.environ["HOROVOD_NEW"] == "now"
    assert os.environ["HOROVOD_OLD"] == "before"
    assert "HOROVOD_NEW" not in os.environ


def test_c_sees_what_is_set():
    program = (
        "import ctypes\n"
        "from keras_mwms.engine import environment\n"
        "getenv = ctypes.CDLL(None).getenv\n"
        "getenv.restype = ctypes.c_char_p\n"
        "with environment.applied({'HOROVOD_RANK': '3'}):\n"
        "    print(getenv(b'HOROVOD_RANK'))\n"
        "print(getenv(b'HOROVOD_RANK'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["b'3'", "None"]
