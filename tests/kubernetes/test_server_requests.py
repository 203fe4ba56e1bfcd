"""How requests go to the API server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from gpushare.kubernetes.access import Access
from gpushare.kubernetes.server import Server, Unanswered

STOP = b"stop"
WATCH = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Listener:
    """Answers each piece of bytes as if it were a whole request."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.answer = ANSWER
        self.connections = 0
        self.most = 100
        """Answers on a connection, which is closed then."""
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while True:
            connection, _ = self.socket.accept()
            self.connections += 1
            with connection:
                for _ in range(self.most):
                    piece = connection.recv(2**16)
                    if piece == STOP:
                        return
                    if not piece:
                        break
                    self.pieces.append(piece)
                    connection.sendall(self.answer)

    def close(self) -> None:
        with socket.create_connection(self.socket.getsockname()) as last:
            last.sendall(STOP)
            self.thread.join(10.0)
        self.socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


def test_a_request_is_one_piece_and_connections_are_kept(listener: Listener) -> None:
    server = Server(Access(listener.url, lambda: "token"))
    assert [server.ask("PATCH", "/api/v1/nodes/n1", {"spec": {"at": number}}) for number in range(3)] == [{}, {}, {}]
    server.close()
    assert [piece.rpartition(b"\r\n\r\n")[2] for piece in listener.pieces] == [
        b'{"spec":{"at":%d}}' % number for number in range(3)
    ]
    assert all(piece.startswith(b"PATCH /api/v1/nodes/n1 HTTP/1.1\r\n") for piece in listener.pieces)


def test_the_server_may_be_below_a_path_of_a_host(listener: Listener) -> None:
    server = Server(Access(f"{listener.url}/k8s/clusters/c-1", lambda: None))
    server.ask("GET", "/api/v1/nodes?limit=5")
    server.close()
    assert [piece.split(b"\r\n")[0] for piece in listener.pieces] == [
        b"GET /k8s/clusters/c-1/api/v1/nodes?limit=5 HTTP/1.1"
    ]


def test_a_connection_that_the_server_has_closed_is_not_used_again(listener: Listener) -> None:
    listener.most = 2
    server = Server(Access(listener.url))
    for _ in range(6):
        assert server.ask("GET", "/version") == {}
        if len(listener.pieces) % 2 == 0:
            time.sleep(0.05)  # until it is closed
    server.close()
    assert listener.connections == 3


def test_who_waits_for_an_event_hears_that_the_watch_is_ended(listener: Listener) -> None:
    listener.answer = WATCH
    stream = Server(Access(listener.url)).stream("/api/v1/pods?watch=1", 60.0)
    objects = stream.objects()
    assert next(objects) == {}
    ending = threading.Timer(0.1, stream.end)
    ending.start()
    began = time.monotonic()
    with pytest.raises(Unanswered, match="watch ended"):
        next(objects)
    assert time.monotonic() - began < 10.0
    ending.join()
    stream.end()  # that it is over already does not matter


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", b"\r\n"]
)
def test_half_an_answer_and_none_are_no_answer(listener: Listener, answer: bytes) -> None:
    listener.answer, listener.most = answer, 1
    server = Server(Access(listener.url))
    with pytest.raises(Unanswered, match="does not answer"):
        server.ask("GET", "/version")
    assert server.answered == {("GET", "none"): 1}
    listener.answer = ANSWER
    assert server.ask("GET", "/version") == {}
    server.close()


def test_what_a_path_may_not_have_is_written_otherwise(listener: Listener) -> None:
    server = Server(Access(listener.url))
    server.ask("GET", "/api/v1/pods/\u00e4 b\r\nX: y?fieldSelector=spec.schedulerName=a,spec.nodeName!=")
    server.close()
    line = b"GET /api/v1/pods/%C3%A4%20b%0D%0AX:%20y?fieldSelector=spec.schedulerName=a,spec.nodeName!= HTTP/1.1"
    assert listener.pieces[0].split(b"\r\n")[0] == line
