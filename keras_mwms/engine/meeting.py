"""Where the members of a ring meet before Horovod starts.

A rendezvous that fails inside Horovod ends the process without a Python
exception. So everything that can be known before is checked here.
"""

import dataclasses
import errno
import logging
import socket
import time
from collections.abc import Mapping

from keras_mwms.cluster.spec import Address
from keras_mwms.cluster.spec import Cluster
from keras_mwms.engine import checkin
from keras_mwms.engine import network
from keras_mwms.engine.board import Board
from keras_mwms.engine.board import State
from keras_mwms.engine.peers import Peers
from keras_mwms.engine.rendezvous import Rendezvous
from keras_mwms.engine.settings import Settings
from keras_mwms.engine.store import Store
from keras_mwms.engine.views import View
from keras_mwms.errors import StartError
from keras_mwms.errors import StartTimeoutError

# A port may be taken for a moment: by the end of the job before, or by an
# outgoing connection that the system gave this number.
_PORT_SECONDS = 5.0
_PORT_PAUSE = 0.1

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Meeting:
    """A meeting to which all members came.

    Attributes:
        view: what this member reported.
        address: the rendezvous as this member reaches it.
        server: the rendezvous itself, on the chief.
    """

    view: View
    address: Address
    server: Rendezvous | None = None

    def leave(self) -> None:
        """Ends the rendezvous (chief), or tells it that this member left."""
        if self.server:
            self.server.close()
        else:
            checkin.leave(self.view, self.address.host, self.address.port)


def meet(
    cluster: Cluster, versions: Mapping[str, str], settings: Settings
) -> Meeting:
    """Waits until all members have come and agree.

    Args:
        cluster: the cluster, with the addresses of its members.
        versions: what must be the same on all members.
        settings: the deadlines.

    Returns:
        The meeting, which lasts until it is left.

    Raises:
        StartError: the members do not fit together, or the chief's port is
            taken.
        StartTimeoutError: a member did not come.
    """
    view = View.of(cluster, versions)
    if cluster.is_chief:
        return _lead(cluster, view, settings.start_timeout)
    chief = cluster.members[0]
    host = checkin.check_in(view, chief, settings.start_timeout)
    return Meeting(view, Address(host, chief.address.port))


def _lead(cluster: Cluster, view: View, seconds: float) -> Meeting:
    deadline = time.monotonic() + seconds
    board = Board(view)
    host = _listening_host(cluster)
    own = host or "127.0.0.1"
    peers = Peers(
        (member.address.host for member in cluster.members),
        always=[network.parse_ip(own)],
    )
    server = _listen(cluster, host, own, board, peers)
    try:
        verdict = board.settle(max(0.0, deadline - time.monotonic()))
        if verdict.state is State.TIMED_OUT:
            raise StartTimeoutError(verdict.text)
        if verdict.state is not State.GO:
            raise StartError(verdict.text)
    except BaseException:
        server.close()
        raise
    return Meeting(view, Address(own, server.port), server)


def _listen(
    cluster: Cluster, host: str, own: str, board: Board, peers: Peers
) -> Rendezvous:
    port = cluster.members[0].address.port
    deadline = time.monotonic() + _PORT_SECONDS
    while True:
        try:
            return Rendezvous(
                host,
                port,
                board,
                peers,
                Store.for_members(cluster.size),
                most_connections=4 * cluster.size + 32,
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _cannot_listen(cluster, error) from error
            if _listens(own, port):
                raise _port_taken(cluster, board.own, own, error) from error
            if time.monotonic() >= deadline:
                raise _cannot_listen(cluster, error) from error
        time.sleep(_PORT_PAUSE)


def _listening_host(cluster: Cluster) -> str:
    """The address to listen on, `""` for all interfaces.

    All interfaces, when the chief's name stands for none of this machine's
    addresses (behind address translation), or for a loopback address
    (as Debian's 127.0.1.1) that the members on other hosts cannot reach.
    """
    hosts = [member.address.host for member in cluster.members]
    local = network.local_interfaces()
    try:
        found = network.resolve_v4(hosts[0])
    except OSError as error:
        found = ()
        _log.warning("The chief's name does not resolve here: %s", error)
    for ip in found:
        if ip.is_loopback and not all(
            network.is_here(host, local) for host in hosts
        ):
            return ""
        if ip.is_loopback or ip in local:
            return str(ip)
    _log.warning(
        "The chief's host %r is none of this machine's addresses. The "
        "rendezvous listens on all interfaces; it answers members alone.",
        hosts[0],
    )
    return ""


def _listens(host: str, port: int) -> bool:
    """Whether a program listens there."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _port_taken(
    cluster: Cluster, view: View, host: str, error: OSError
) -> StartError | StartTimeoutError:
    """The error for a port on which someone else listens."""
    chief = cluster.members[0]
    if checkin.is_rendezvous(host, chief.address.port):
        try:
            # The same task, most likely: both processes must learn of it.
            checkin.check_in(view, chief, _PORT_SECONDS)
        except (StartError, StartTimeoutError) as found:
            return found
    return _cannot_listen(cluster, error)


def _cannot_listen(cluster: Cluster, error: OSError) -> StartError:
    chief = cluster.members[0]
    return StartError(
        f"Port {chief.address.port} of the chief, {chief}, cannot be "
        "listened on. Stop the program that uses it (or whose right it is), "
        "or give the chief another port in the cluster of every member. "
        f"Received: {error}."
    )
