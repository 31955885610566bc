import contextlib
import json
import os
import signal
import socket
import threading

import pytest

from keras_mwms.engine import rendezvous
from keras_mwms.engine.board import Board
from keras_mwms.engine.peers import Peers
from keras_mwms.engine.rendezvous import MAGIC
from keras_mwms.engine.rendezvous import Rendezvous
from keras_mwms.engine.store import Store
from tests.engine.clusters import make_view

TIMEOUT = 20.0


@contextlib.contextmanager
def serving(members=("127.0.0.1",), most_connections=8, port=0, board=None):
    server = Rendezvous(
        "127.0.0.1",
        port,
        board or Board(make_view(0)),
        Peers(members),
        Store(most_keys=3, most_bytes=1000),
        most_connections,
    )
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def server():
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def tried_server():
    """One server for all that tries to break it."""
    with serving() as server:
        yield server


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), TIMEOUT)


def read(link):
    """What comes until the other side closes; resets end it too."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := link.recv(65536):
            data += piece
    return data


def send(server, request):
    with connect(server) as link:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            link.sendall(request)
        return read(link)


def ask(server, method, path, body=b""):
    """As Horovod's client: HTTP/1.1, always with a length."""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    answer = send(server, head.encode() + body)
    headers, _, content = answer.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(content)}".encode() in headers
    assert f"Server: {MAGIC}".encode() in headers
    return int(headers.split()[1]), content


def test_values_as_horovod_uses_them(server):
    value = bytes(range(256))
    assert ask(server, "GET", "/global/0") == (404, b"")
    assert ask(server, "PUT", "/global/0", value) == (200, b"")
    assert ask(server, "PUT", "/global/1") == (200, b"")
    assert ask(server, "GET", "/global/0") == (200, value)
    assert ask(server, "GET", "/global/1") == (200, b"")
    assert ask(server, "DELETE", "/global/0") == (200, b"")
    assert ask(server, "GET", "/global/0") == (404, b"")


def test_a_member_checks_in(server):
    view = make_view(1)
    path = f"/keras_mwms/{view.process}"
    status, answer = ask(server, "PUT", path, view.to_json())
    assert status == 200
    assert json.loads(answer)["missing"] == ["worker 2 (c:3)"]
    assert ask(server, "DELETE", path)[0] == 200
    assert ask(server, "GET", path)[0] == 404


class SlowBoard(Board):
    """Answers a question when it is let, and notes it."""

    def __init__(self, view, events):
        super().__init__(view)
        self.events = events
        self.asked, self.let = threading.Event(), threading.Event()

    def poll(self, process, seconds):
        self.asked.set()
        assert self.let.wait(TIMEOUT)
        self.events.append("answered")


def test_the_last_answers_are_sent_before_it_closes():
    events = []
    board = SlowBoard(make_view(0), events)
    with serving(board=board) as server:
        link = connect(server)
        link.sendall(b"GET /keras_mwms/x HTTP/1.0\r\n\r\n")
        assert board.asked.wait(TIMEOUT)
        closing = threading.Thread(target=server.close)
        closing.start()
        while True:
            # Until nobody listens any more.
            try:
                connect(server).close()
            except OSError:
                break
        board.let.set()
        closing.join(TIMEOUT)
        events.append("closed")
        # Without a word of the thread that answers: it need not live on.
        link.setblocking(False)
        assert link.recv(100).startswith(b"HTTP/1.0 404")
        link.close()
    assert events == ["answered", "closed"]


def test_another_protocol_ends_the_start_on_both_sides(server):
    data = json.loads(make_view(1).to_json()) | {"protocol": 7}
    path = "/keras_mwms/x"
    answer = ask(server, "PUT", path, json.dumps(data).encode())[1]
    assert json.loads(answer)["state"] == "refused"
    view = make_view(2)
    answer = ask(server, "PUT", path, view.to_json())[1]
    assert "protocol 7" in json.loads(answer)["text"]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\r\n", b""),
        (b"\0\xff\xfe\r\n\r\n", b"400"),
        (b"GET\r\n\r\n", b"400"),
        (b"GET /global/0 HTTP/9.9.9\r\n\r\n", b"400"),
        (b"BREW /global/0 HTTP/1.1\r\n\r\n", b"501"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /global HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /a/b/c HTTP/1.1\r\n\r\n", b"400"),
        (b"GET //0 HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /a/" + b"k" * 600 + b" HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET /a/b HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"431"),
        (b"DELETE /a HTTP/1.1\r\n\r\n", b"400"),
        (b"PUT /a/b HTTP/1.1\r\n\r\nxyz", b"400"),
        (b"PUT /a/b HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"PUT /a/b HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n", b"400"),
        (b"PUT /a/b HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", b"400"),
        (b"PUT /a/b HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"400"),
        (
            b"PUT /a/b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"400",
        ),
        (
            b"PUT /keras_mwms/x HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
            b"400",
        ),
    ],
)
def test_nonsense_is_answered_and_survived(tried_server, request_bytes, status):
    answer = send(tried_server, request_bytes)
    assert answer.split(b" ")[1:2] == ([status] if status else [])
    assert ask(tried_server, "PUT", "/global/0", b"still here")[0] == 200


def test_a_body_that_breaks_off_is_not_stored(server):
    with connect(server) as link:
        link.sendall(b"PUT /a/b HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc")
        link.shutdown(socket.SHUT_WR)
        assert read(link).split()[1] == b"400"
    assert ask(server, "GET", "/a/b")[0] == 404


def test_too_many_keys_are_refused(server):
    statuses = [ask(server, "PUT", f"/a/{n}", b"x")[0] for n in range(5)]
    assert statuses == [200, 200, 200, 507, 507]
    assert ask(server, "GET", "/a/0") == (200, b"x")


def test_too_many_connections_are_refused():
    with serving(most_connections=2) as server, contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(connect(server))
        # Those two have said nothing yet and hold their places.
        answer = send(server, b"GET /a/b HTTP/1.1\r\n\r\n")
        assert answer.split()[1] == b"503"


def test_a_slow_request_is_ended(monkeypatch):
    monkeypatch.setattr(rendezvous, "_REQUEST_SECONDS", 0.1)
    # As if it sent a byte now and then.
    monkeypatch.setattr(rendezvous._Handler, "timeout", None)
    with serving() as server, connect(server) as link:
        link.sendall(b"GET /a/b HTTP/1.1\r\nX: ")
        assert b" 200 " not in read(link)


def test_strangers_are_turned_away_unread():
    with serving(members=["192.0.2.1"]) as server:
        with connect(server) as link:
            # Not a byte was sent.
            assert read(link).split()[1] == b"403"
        request = b"GET /keras_mwms/hello HTTP/1.1\r\n\r\n"
        assert send(server, request).split()[1] == b"403"


def test_the_port_is_free_right_after():
    with serving() as server:
        ask(server, "PUT", "/a/b", b"old")
        with connect(server) as lingering:
            port = server.port
            server.close()
            with serving(port=port) as again:
                assert again.port == port
                assert ask(again, "GET", "/a/b")[0] == 404
            assert lingering.fileno() > 0


def test_forked_children_let_go_of_the_port():
    with serving() as server:
        port = server.port
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            # Outlives the server; the parent ends it.
            os.write(write_end, b"x")
            signal.pause()
            os._exit(0)
        try:
            assert os.read(read_end, 1) == b"x"
            server.close()
            with serving(port=port) as again:
                assert again.port == port
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read_end)
            os.close(write_end)
