"""The chief's HTTP server, where the members and their Horovod meet.

Horovod's own client speaks it: `GET`, `PUT` and `DELETE` of `/scope/key`,
404 for what is not there. Members check in under a scope of their own.
"""

import contextlib
import logging
import os
import socket
import threading
import time
import weakref
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from http.server import HTTPServer
from socketserver import TCPServer
from socketserver import ThreadingMixIn
from typing import Any

from keras_mwms.engine.board import POLL_SECONDS
from keras_mwms.engine.board import Answer
from keras_mwms.engine.board import Board
from keras_mwms.engine.board import BoardFullError
from keras_mwms.engine.board import State
from keras_mwms.engine.peers import Peers
from keras_mwms.engine.store import Store
from keras_mwms.engine.store import StoreFullError
from keras_mwms.engine.views import PROTOCOL
from keras_mwms.engine.views import ProtocolError
from keras_mwms.engine.views import View

SCOPE = "keras_mwms"
HELLO = "hello"
# Stands in the `Server` header of every answer.
MAGIC = f"keras-mwms-rendezvous/{PROTOCOL}"

_REQUEST_SECONDS = 15.0
# How long those that are being answered are waited for at the end.
_LAST_SECONDS = 2.0
_LONGEST_PATH = 512

_log = logging.getLogger(__name__)


class Rendezvous:
    """A rendezvous that serves until it is closed.

    Args:
        host: the IPv4 address to listen on, `""` for all interfaces.
        port: the port.
        board: where members check in.
        peers: whom to answer.
        store: what Horovod's members write and read.
        most_connections: how many requests to serve at once.

    Raises:
        OSError: the address cannot be listened on.
    """

    def __init__(
        self,
        host: str,
        port: int,
        board: Board,
        peers: Peers,
        store: Store,
        most_connections: int,
    ) -> None:
        self._server = _Server(
            (host, port), board, peers, store, most_connections
        )
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            name="keras_mwms rendezvous",
            daemon=True,
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that the rendezvous listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stops serving and frees the port. May be called twice.

        Answers that are on their way are sent: the process may end next, and
        a member that misses the verdict would ask until its deadline.
        """
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self._server.wait_for_answers(_LAST_SECONDS)


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    # The next job may listen right after this one.
    allow_reuse_address = True
    # Horovod's clients come all at once, a connection for every request,
    # and give up after three refusals.
    request_queue_size = 1024

    def __init__(
        self,
        address: tuple[str, int],
        board: Board,
        peers: Peers,
        store: Store,
        most_connections: int,
    ) -> None:
        self.board = board
        self.store = store
        self._peers = peers
        self._most_connections = most_connections
        self._lock = threading.Condition()
        self._until: dict[socket.socket, float] = {}
        super().__init__(address, _Handler)
        _servers.add(self)

    def server_bind(self) -> None:
        # Not HTTPServer's, which looks up the host's name: that can take long.
        TCPServer.server_bind(self)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        if not self._peers.admit(client_address[0]):
            _decline(request, HTTPStatus.FORBIDDEN)
            _log.debug("Turned away %s, no member.", client_address[0])
            return False
        with self._lock:
            if len(self._until) < self._most_connections:
                self._until[request] = time.monotonic() + _REQUEST_SECONDS
                return True
        _decline(request, HTTPStatus.SERVICE_UNAVAILABLE)
        return False

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._lock:
            self._until.pop(request, None)
            self._lock.notify_all()

    def wait_for_answers(self, seconds: float) -> None:
        """Returns when no request is being answered, or after so long."""
        with self._lock:
            self._lock.wait_for(lambda: not self._until, timeout=seconds)

    def service_actions(self) -> None:
        """Ends requests that take too long. Called twice a second."""
        now = time.monotonic()
        with self._lock:
            late = [s for s, until in self._until.items() if until < now]
            for request in late:
                # Wakes its thread, which then closes it.
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A peer that went away, or sent nonsense: its own problem.
        _log.debug("Request of %s failed.", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """One request. HTTP/1.0: the connection ends with it."""

    server: _Server
    # For one read; the server bounds the whole request.
    timeout = 5
    # Else the answer to an unreadable request line has no status.
    default_request_version = "HTTP/1.0"

    def do_GET(self) -> None:
        scope, key = self._path()
        if not key:
            self._answer(HTTPStatus.BAD_REQUEST)
        elif scope != SCOPE:
            self._answer_value(self.server.store.get(scope, key))
        elif key == HELLO:
            self._answer(HTTPStatus.OK)
        else:
            answer = self.server.board.poll(key, POLL_SECONDS)
            self._answer_value(answer.to_json() if answer else None)

    def do_PUT(self) -> None:
        scope, key = self._path()
        body = self._body() if key else None
        if body is None:
            self._answer(HTTPStatus.BAD_REQUEST)
            return
        try:
            if scope == SCOPE:
                self._answer(HTTPStatus.OK, self._register(body))
            else:
                self.server.store.put(scope, key, body)
                self._answer(HTTPStatus.OK)
        except (StoreFullError, BoardFullError):
            self._answer(HTTPStatus.INSUFFICIENT_STORAGE)
        except ValueError as error:
            self._answer(HTTPStatus.BAD_REQUEST, str(error).encode())

    def do_DELETE(self) -> None:
        scope, key = self._path()
        if not key:
            self._answer(HTTPStatus.BAD_REQUEST)
            return
        if scope == SCOPE:
            self.server.board.withdraw(key)
        else:
            self.server.store.delete(scope, key)
        self._answer(HTTPStatus.OK)

    def _register(self, body: bytes) -> bytes:
        try:
            view = View.from_json(body)
        except ProtocolError as error:
            # Both sides learn of it: the chief too would wait in vain.
            self.server.board.refuse(str(error))
            return Answer(State.REFUSED, str(error)).to_json()
        return self.server.board.register(view).to_json()

    def _path(self) -> tuple[str, str]:
        """Scope and key; both empty when the path is not `/scope/key`."""
        parts = self.path.split("/")
        if len(parts) != 3 or parts[0] or len(self.path) > _LONGEST_PATH:
            return "", ""
        return (parts[1], parts[2]) if parts[1] else ("", "")

    def _body(self) -> bytes | None:
        """The whole body, `None` when it is not there or too large."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 10):
            return None
        if int(length) > self.server.store.most_bytes:
            return None
        body = self.rfile.read(int(length))
        return body if len(body) == int(length) else None

    def _answer_value(self, value: bytes | None) -> None:
        if value is None:
            self._answer(HTTPStatus.NOT_FOUND)
        else:
            self._answer(HTTPStatus.OK, value)

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_error(
        self,
        code: int,
        message: str | None = None,
        explain: str | None = None,
    ) -> None:
        # What the base class finds wrong with a request.
        self._answer(HTTPStatus(code))

    def version_string(self) -> str:
        return MAGIC

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)


def _decline(request: socket.socket, status: HTTPStatus) -> None:
    """Answers without reading anything; never waits for the peer."""
    head = (
        f"HTTP/1.0 {status.value} {status.phrase}\r\nServer: {MAGIC}\r\n"
        "Content-Length: 0\r\n\r\n"
    )
    with contextlib.suppress(OSError):
        request.setblocking(False)
        request.send(head.encode())


_servers: weakref.WeakSet[_Server] = weakref.WeakSet()


def _close_in_child() -> None:
    """Lets go of the port in forked children, which may outlive the chief."""
    for server in _servers:
        server.socket.close()


os.register_at_fork(after_in_child=_close_in_child)
