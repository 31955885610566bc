"""How a ring starts and how it fails to, in processes of its own."""

import http.server
import json
import socket
import sys
import threading

import pytest

from tests.pool.environment import free_addresses
from tests.pool.messages import PerRank

MEMBER = [sys.executable, "-m", "tests.engine.member"]
# Seconds after which a test is hopeless.
KILL = 40.0


def config(addresses, rank):
    return json.dumps(
        {
            "cluster": {"worker": list(addresses)},
            "task": {"type": "worker", "index": rank},
        }
    )


@pytest.fixture
def addresses():
    return free_addresses(3)


@pytest.fixture
def members(fresh_cluster):
    """Runs members and gives what each one printed."""

    def run(configs, ranks=None, seconds=3, **env):
        env = {name: PerRank(values) for name, values in env.items()}
        finished = fresh_cluster(
            len(configs),
            MEMBER,
            env={
                "TF_CONFIG": PerRank(configs),
                "KERAS_MWMS_START_TIMEOUT": str(seconds),
                **env,
            },
            ranks=ranks,
            timeout=KILL,
        )
        for member in finished:
            assert not member.timed_out, member.stderr
            assert member.stdout, member.stderr
        return [json.loads(member.stdout) for member in finished]

    return run


def check(found, error, *words):
    """Every member raised this error, with these words."""
    for member in found:
        assert member.get("error") == error, member
        for word in words:
            assert word in member["text"]


def test_a_ring_starts_twice_on_the_same_ports(members, addresses):
    configs = [config(addresses, rank) for rank in range(3)]
    for _ in range(2):
        assert members(configs, seconds=30) == [
            {"rank": rank, "size": 3, "left": []} for rank in range(3)
        ]


def test_a_member_that_never_starts_is_named(members, addresses):
    configs = [config(addresses, rank) for rank in range(3)]
    found = members(configs, ranks=[0, 1])
    check(found, "StartTimeoutError", f"worker 2 ({addresses[2]})", "3 seconds")
    assert not any("worker 1" in member["text"] for member in found)


def test_a_chief_that_never_starts_is_named(members, addresses):
    configs = [config(addresses, rank) for rank in range(3)]
    found = members(configs, ranks=[1, 2], seconds=2)
    check(found, "StartTimeoutError", f"chief, worker 0 ({addresses[0]})")


@pytest.mark.parametrize("task", [0, 1])
def test_a_task_started_twice_is_told_to_all(members, addresses, task):
    configs = [config(addresses, rank) for rank in range(3)]
    found = members(configs, ranks=[0, 1, task], seconds=20)
    check(
        found,
        "StartError",
        f"worker {task} ({addresses[task]}) was started twice",
        socket.gethostname(),
    )


def test_wrong_size_is_told_on_both_sides(members, addresses):
    configs = [config(addresses[:2], 0), config(addresses, 1)]
    found = members(configs, seconds=20)
    check(
        found,
        "StartError",
        f"2 on worker 0 ({addresses[0]})",
        f"3 on worker 1 ({addresses[1]})",
    )


def test_another_cluster_is_told_on_both_sides(members, addresses):
    other = [addresses[0], addresses[2]]
    found = members([config(addresses[:2], 0), config(other, 1)], seconds=20)
    check(
        found,
        "StartError",
        f"worker 1 ({addresses[1]}) on worker 0",
        f"worker 1 ({addresses[2]}) on worker 1",
    )


def test_differing_versions_are_told_to_all(members, addresses):
    found = members(
        [config(addresses, rank) for rank in range(3)],
        seconds=20,
        MEMBER_VERSIONS=['{"keras": "3.15.1"}'] * 2 + ['{"keras": "3.16.0"}'],
    )
    check(
        found,
        "StartError",
        f"keras differs: install the same everywhere. Received: 3.15.1 on "
        f"worker 0 ({addresses[0]}), 3.16.0 on worker 2 ({addresses[2]})",
    )


def test_a_chief_without_an_ipv4_address_is_refused(members, addresses):
    ports = [address.split(":")[1] for address in addresses[:2]]
    version_6 = [f"[::1]:{port}" for port in ports]
    found = members([config(version_6, rank) for rank in range(2)], seconds=20)
    check(found, "StartError", "'::1' has no IPv4 address")


class OtherProgram(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(404)

    def log_message(self, format, *args):
        pass


@pytest.fixture(params=["silent", "http"])
def taken(request, addresses):
    """Another program at the chief's address."""
    host, port = addresses[0].split(":")
    if request.param == "silent":
        with socket.create_server((host, int(port))):
            yield
        return
    with http.server.ThreadingHTTPServer(
        (host, int(port)), OtherProgram
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("taken")
def test_a_port_that_is_taken_is_named(members, addresses):
    configs = [config(addresses, rank) for rank in range(2)]
    chief, worker = members(configs, seconds=2)
    port = addresses[0].split(":")[1]
    check(
        [chief],
        "StartError",
        f"Port {port} of the chief, worker 0 ({addresses[0]})",
        "give the chief another port",
    )
    check(
        [worker],
        "StartError",
        f"Another program answers at the address of the chief, worker 0 "
        f"({addresses[0]})",
    )
