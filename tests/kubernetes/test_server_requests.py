"""How requests go to the API server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from gpushare.kubernetes.access import Access
from gpushare.kubernetes.server import Server

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Listener:
    """Answers each piece of bytes as if it were a whole request."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        connection, _ = self.socket.accept()
        with connection:
            while piece := connection.recv(2**16):
                self.pieces.append(piece)
                connection.sendall(ANSWER)

    def close(self) -> None:
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
