"""Whom the chief's rendezvous answers: the hosts of the cluster alone."""

import contextlib
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable

from keras_mwms.engine import network
from keras_mwms.engine.network import IP

# An unknown peer makes the chief look up its members' names again, but not
# more often than this: strangers must not keep the resolver busy.
REFRESH_SECONDS = 5.0


def admits(peer: IP, members: frozenset[IP], local: frozenset[IP]) -> bool:
    """Whether a peer is one of the members' hosts.

    Args:
        peer: where a connection comes from.
        members: the addresses of all members' hosts.
        local: the addresses of this machine.

    Returns:
        `True` for a member's address; also for a loopback address when
        some member is on this machine.
    """
    if peer in members:
        return True
    return peer.is_loopback and any(
        member.is_loopback or member in local for member in members
    )


class Peers:
    """The hosts that may talk to the rendezvous.

    Names are resolved at the start, and again (in the background) after an
    unknown peer came: in a container cluster names appear with their
    containers.

    Args:
        hosts: the hosts of all members.
        always: addresses to admit whatever the names say, such as the one
            over which the chief talks to itself.
        resolve: how to look up a host.
    """

    def __init__(
        self,
        hosts: Iterable[str],
        always: Iterable[IP] = (),
        resolve: Callable[[str], Iterable[IP]] = network.resolve,
    ) -> None:
        self._hosts = tuple(dict.fromkeys(hosts))
        self._always = frozenset(always)
        self._resolve = resolve
        self._local = frozenset(network.local_interfaces())
        self._refreshing = threading.Lock()
        self._members: frozenset[IP] = frozenset()
        self._look_up()

    def admit(self, peer: str) -> bool:
        """Whether to answer a peer. Never waits for a name server.

        Args:
            peer: the address that its connection comes from.
        """
        ip = network.parse_ip(peer)
        if ip in self._always or admits(ip, self._members, self._local):
            return True
        self._refresh()
        return False

    def _refresh(self) -> None:
        recent = time.monotonic() - self._looked_up < REFRESH_SECONDS
        if not recent and self._refreshing.acquire(blocking=False):
            threading.Thread(target=self._look_up_once, daemon=True).start()

    def _look_up_once(self) -> None:
        try:
            self._look_up()
        finally:
            self._refreshing.release()

    def _look_up(self) -> None:
        found: set[IP] = set()
        for host in self._hosts:
            # A name that is not there yet may come with its container.
            with contextlib.suppress(OSError):
                found.update(self._resolve(host))
        # What resolved once stays: a name server may fail for a moment.
        self._members |= found
        self._looked_up = time.monotonic()
