import threading

import pytest

from keras_mwms.engine import peers
from keras_mwms.engine.network import parse_ip
from keras_mwms.engine.peers import Peers

# From the blocks that are kept for documentation.
HERE, THERE = "192.0.2.1", "192.0.2.2"


def ips(*texts):
    return frozenset(map(parse_ip, texts))


@pytest.mark.parametrize(
    ("peer", "members", "local", "expected"),
    [
        (THERE, [HERE, THERE], [HERE], True),
        ("192.0.2.3", [HERE, THERE], [HERE], False),
        (f"::ffff:{THERE}", [HERE, THERE], [HERE], True),
        ("127.0.0.1", [HERE, THERE], [HERE], True),
        ("127.0.0.2", [HERE, THERE], [HERE], True),
        ("::1", [HERE, THERE], [HERE], True),
        ("127.0.0.1", ["127.0.1.1", THERE], [HERE], True),
        ("127.0.0.1", [THERE], [HERE], False),
        ("::1", [THERE], [HERE], False),
        ("2001:db8::2%eth0", ["2001:db8::2"], [], True),
        ("2001:db8::3", ["2001:db8::2"], [], False),
        (HERE, [THERE], [HERE], False),
    ],
)
def test_members_hosts_are_admitted(peer, members, local, expected):
    admitted = peers.admits(parse_ip(peer), ips(*members), ips(*local))
    assert admitted is expected


def test_an_address_can_always_be_admitted():
    assert Peers([THERE], always=ips(HERE)).admit(HERE)
    assert not Peers([THERE]).admit(HERE)


class Names:
    """A name server that learns names and counts what it is asked."""

    def __init__(self) -> None:
        self.known = {}
        self.asked = 0
        self.answered = threading.Event()

    def __call__(self, host):
        self.asked += 1
        self.answered.set()
        if host not in self.known:
            raise OSError("no such name")
        return self.known[host]


@pytest.fixture
def names():
    return Names()


def test_a_name_that_appears_later_is_admitted(names, monkeypatch):
    monkeypatch.setattr(peers, "REFRESH_SECONDS", 0.0)
    admitting = Peers(["pod-1"], resolve=names)
    names.known["pod-1"] = ips(THERE)
    names.answered.clear()
    assert not admitting.admit(THERE)
    assert names.answered.wait(10)
    assert retry(lambda: admitting.admit(THERE))


def test_strangers_do_not_keep_the_resolver_busy(names):
    admitting = Peers(["pod-1"], resolve=names)
    for _ in range(20):
        assert not admitting.admit(THERE)
    assert names.asked == 1


def test_what_resolved_once_stays(names, monkeypatch):
    monkeypatch.setattr(peers, "REFRESH_SECONDS", 0.0)
    names.known["pod-1"] = ips(THERE)
    admitting = Peers(["pod-1"], resolve=names)
    names.known.clear()
    names.answered.clear()
    assert not admitting.admit(HERE)
    assert names.answered.wait(10)
    assert admitting.admit(THERE)


def retry(check, times=1000):
    """Asks until it is so: the refresh runs in the background."""
    ticks = threading.Event()
    return any(check() or ticks.wait(0.01) for _ in range(times))
