import socket

import pytest

from keras_mwms.engine import network
from keras_mwms.engine.network import parse_ip
from keras_mwms.errors import StartError
from tests.engine.clusters import make_cluster

LOOPBACK = network.local_interfaces()[parse_ip("127.0.0.1")]


def outward() -> str | None:
    """The address of this machine on a network, if it has one."""
    for ip in network.local_interfaces():
        if ip.version == 4 and not ip.is_loopback:
            return str(ip)
    return None


@pytest.fixture(autouse=True)
def _no_user_choice(monkeypatch):
    monkeypatch.delenv("HOROVOD_GLOO_IFACE", raising=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
    ],
)
def test_addresses_are_read_as_sockets_write_them(text, expected):
    assert str(parse_ip(text)) == expected


def test_localhost_resolves():
    assert parse_ip("127.0.0.1") in network.resolve("localhost")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70, ".."])
def test_a_name_that_does_not_resolve(host):
    with pytest.raises(OSError, match=r".+"):
        network.resolve(host)
    assert not network.is_here(host, [])


def test_an_address_of_version_6_alone_is_refused():
    with pytest.raises(StartError, match=r"'::1' has no IPv4 address"):
        network.resolve_v4("::1")


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.0.1.1", True),
        ("::1", True),
        ("203.0.113.7", False),
    ],
)
def test_is_here(host, here):
    assert network.is_here(host, network.local_interfaces()) is here


def test_all_on_this_machine_use_loopback():
    cluster = make_cluster(["127.0.0.1", "localhost", "127.0.1.1"], rank=1)
    assert network.choose_interface(cluster) == LOOPBACK


def test_this_machines_own_address_counts_as_this_machine():
    own = outward() or "127.0.0.1"
    cluster = make_cluster([own, "127.0.0.1"])
    assert network.choose_interface(cluster) == LOOPBACK


@pytest.mark.skipif(outward() is None, reason="no network but loopback")
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("chief", ["own", "127.0.1.1"])
def test_members_elsewhere_need_the_outward_interface(rank, chief):
    own = outward()
    hosts = [own if chief == "own" else chief, "203.0.113.7"]
    interfaces = network.local_interfaces()
    source = network.source_toward(parse_ip(own))
    if chief != "own":
        try:
            source = network.source_toward(parse_ip("203.0.113.7"))
        except OSError:
            pytest.skip("no route to other networks")
    chosen = network.choose_interface(make_cluster(hosts, rank))
    assert chosen == interfaces[source] != LOOPBACK


def test_the_users_choice_wins(monkeypatch):
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "ib0")
    assert network.choose_interface(make_cluster(["127.0.0.1"] * 2)) == "ib0"


def test_version_6_addresses_have_interfaces():
    for ip, name in network.local_interfaces().items():
        assert name in dict(map(reversed, socket.if_nameindex()))
        if ip.is_loopback:
            assert name == LOOPBACK
