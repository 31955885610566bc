"""How a member reports to the chief and learns the verdict."""

import http.client
import socket
import time

from keras_mwms.cluster.spec import Member
from keras_mwms.engine import network
from keras_mwms.engine.board import POLL_SECONDS
from keras_mwms.engine.board import Answer
from keras_mwms.engine.board import State
from keras_mwms.engine.board import never_started
from keras_mwms.engine.rendezvous import HELLO
from keras_mwms.engine.rendezvous import MAGIC
from keras_mwms.engine.rendezvous import SCOPE
from keras_mwms.engine.views import View
from keras_mwms.errors import StartError
from keras_mwms.errors import StartTimeoutError

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = POLL_SECONDS + 3.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_LONGEST_ANSWER = 1 << 20


class _TroubleError(Exception):
    """The chief cannot be talked to right now; later perhaps."""


class _UnreachableError(_TroubleError):
    """Nothing listens at the chief's address."""


class _StrangerError(_TroubleError):
    """Something listens there that is not this package's rendezvous."""


class _NotAdmittedError(_TroubleError):
    """The chief does not know this machine's address."""


def check_in(view: View, chief: Member, seconds: float) -> str:
    """Reports to the chief and waits until all members have arrived.

    Args:
        view: what this member believes the cluster to be.
        chief: the chief and its address.
        seconds: how long to wait at most. Looking up a name may add what
            the system's resolver takes.

    Returns:
        The IPv4 address over which the chief was reached.

    Raises:
        StartError: the members do not fit together, or what answers at
            the chief's address is not this cluster's chief.
        StartTimeoutError: the chief or another member did not arrive.
    """
    deadline = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    visit = _Visit(view, chief)
    while True:
        trouble: _TroubleError | None = None
        answer = None
        try:
            answer = visit.ask()
        except _TroubleError as error:
            trouble = error
        if answer and answer.state is State.GO:
            return visit.address
        if answer and answer.state is State.REFUSED:
            raise StartError(answer.text)
        if answer and answer.state is State.TIMED_OUT:
            raise StartTimeoutError(answer.text)
        left = deadline - time.monotonic()
        if left <= 0:
            visit.leave()
            raise _too_late(chief, seconds, answer, trouble)
        if answer and answer.state is State.WAITING:
            # The chief held the question open: no pause needed.
            pause = _FIRST_PAUSE
            continue
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)


def leave(view: View, address: str, port: int) -> None:
    """Tells the chief that this process has left the ring, if it listens.

    Args:
        view: the view that was reported.
        address: the chief's address, as `check_in` returned it.
        port: the chief's port.
    """
    try:
        _request(address, port, "DELETE", view.process)
    except _TroubleError:
        # The chief has ended too. Nobody is left to be told.
        return


def is_rendezvous(address: str, port: int) -> bool:
    """Whether a rendezvous of this package listens there.

    Args:
        address: an IPv4 address.
        port: the port.

    Raises:
        StartError: one of another version does.
    """
    try:
        _request(address, port, "GET", HELLO)
    except _NotAdmittedError:
        return True
    except _TroubleError:
        return False
    return True


class _Visit:
    """One member's conversation with the chief."""

    def __init__(self, view: View, chief: Member) -> None:
        self.address = ""
        self._view = view
        self._chief = chief.address
        self._registered = False

    def ask(self) -> Answer | None:
        """One question. `None` when the chief has forgotten this member."""
        if self._registered:
            body = self._send("GET", self._view.process)
        else:
            # Without a body first: one that has no right to send it would
            # not see the answer.
            self.address = _resolve(self._chief.host)
            self._send("GET", HELLO)
            body = self._send("PUT", self._view.process, self._view.to_json())
        self._registered = body is not None
        return None if body is None else _read(body)

    def leave(self) -> None:
        """Withdraws, so that a later start of this task is no duplicate."""
        if self._registered:
            leave(self._view, self.address, self._chief.port)

    def _send(self, method: str, key: str, body: bytes = b"") -> bytes | None:
        return _request(self.address, self._chief.port, method, key, body)


def _resolve(host: str) -> str:
    try:
        return str(network.resolve_v4(host)[0])
    except OSError as error:
        raise _UnreachableError(
            f"its name does not resolve: {error}"
        ) from error


def _read(body: bytes) -> Answer:
    try:
        return Answer.from_json(body)
    except ValueError as error:
        raise _StrangerError(f"the answer {body[:80]!r}") from error


def _request(
    address: str, port: int, method: str, key: str, body: bytes = b""
) -> bytes | None:
    """One request to the chief: the answer's body, `None` for a 404."""
    connection = http.client.HTTPConnection(address, port)
    try:
        connection.sock = _connect(address, port)
        connection.request(method, f"/{SCOPE}/{key}", body or None)
        response = connection.getresponse()
        data = response.read(_LONGEST_ANSWER)
    except (http.client.HTTPException, OSError) as error:
        raise _StrangerError(f"no answer to HTTP ({error!r})") from error
    finally:
        connection.close()
    _check_magic(response.getheader("Server", ""))
    if response.status == http.client.FORBIDDEN:
        raise _NotAdmittedError
    if response.status == http.client.NOT_FOUND:
        return None
    if response.status == http.client.OK:
        return data
    raise _StrangerError(f"HTTP status {response.status} {data[:200]!r}")


def _connect(address: str, port: int) -> socket.socket:
    try:
        link = socket.create_connection((address, port), _CONNECT_SECONDS)
    except OSError as error:
        raise _UnreachableError(str(error)) from error
    if link.getsockname() == link.getpeername():
        # Where nothing listens on this machine, TCP can meet itself.
        link.close()
        raise _UnreachableError("connection refused")
    link.settimeout(_ANSWER_SECONDS)
    return link


def _check_magic(server: str) -> None:
    if server == MAGIC:
        return
    name = MAGIC.partition("/")[0]
    if server.startswith(f"{name}/"):
        raise StartError(
            "The chief runs another version of keras_mwms: install the same "
            f"on all members. Received: {server} at the chief, {MAGIC} here."
        )
    raise _StrangerError(f"an HTTP server that calls itself {server!r}")


def _too_late(
    chief: Member,
    seconds: float,
    answer: Answer | None,
    trouble: _TroubleError | None,
) -> Exception:
    """The error at the deadline, from what happened last."""
    if isinstance(trouble, _StrangerError):
        return StartError(
            f"Another program answers at the address of the chief, {chief}. "
            "Stop it, or give the chief another port in the cluster. "
            f"Received: {trouble}."
        )
    if isinstance(trouble, _NotAdmittedError):
        return StartError(
            f"The chief, {chief}, turned this machine away: its address is "
            "none of the cluster's. Give this member the address that the "
            "chief sees its connections come from."
        )
    if answer and answer.state is State.BUSY:
        return StartError(
            f"An earlier run of this cluster still goes on at {chief}. "
            "Wait until it has ended, or end it, then start again."
        )
    if answer and answer.missing:
        return StartTimeoutError(never_started(answer.missing, seconds))
    return StartTimeoutError(
        f"The chief, {chief}, did not answer within {seconds:g} seconds. "
        "Start it, see that this machine can reach it, or allow more time "
        "with KERAS_MWMS_START_TIMEOUT (seconds). "
        f"Received: {trouble or 'no verdict'}."
    )
