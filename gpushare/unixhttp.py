"""HTTP/1.1 over a Unix socket: the part that gpushare's daemon speaks.

Why not http.client: it imports the email package, which takes 12 ms of the 60 that `gpushare run` may add to a program,
and one cannot wait for its buffered reader and a child process together. `Parser` takes bytes and knows no socket, so
requests and the stream of events share it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

from gpushare.errors import DaemonUnreachable

__all__ = ["Parser", "connect", "exchange", "request_bytes"]

MAX_HEAD = 64 * 1024
MAX_BODY = 256 * 1024 * 1024
READ = 64 * 1024


class Parser:
    """One answer: feed it bytes, read `status` and the body."""

    def __init__(self) -> None:
        self.status = 0
        self.complete = False
        self._pending = bytearray()
        self._in_body = False
        self._chunked = False
        self._left: int | None = None  # of the body, or of this chunk; None: until the connection ends

    def feed(self, data: bytes) -> bytes:
        """Take the bytes that arrived. Returns what they add to the body."""
        self._pending += data
        if not self._in_body and not self._read_head():
            return b""
        return self._read_chunks() if self._chunked else self._read_plain()

    def end(self) -> None:
        """The connection ended. That is correct only for a body without a length."""
        if self._in_body and self._left is None and not self._chunked:
            self.complete = True

    def _read_head(self) -> bool:
        end = self._pending.find(b"\r\n\r\n")
        if end < 0:
            if len(self._pending) > MAX_HEAD or not b"HTTP/1.".startswith(self._pending[:7]):
                raise garbage(bytes(self._pending))
            return False
        lines = bytes(self._pending[:end]).split(b"\r\n")
        del self._pending[: end + 4]
        self.status = self._status(lines[0])
        headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(b":") for x in lines[1:])}
        self._chunked = headers.get(b"transfer-encoding", b"").lower() == b"chunked"
        if not self._chunked:
            self._left = self._length(headers.get(b"content-length"))
        self._in_body = True
        return True

    def _status(self, line: bytes) -> int:
        words = line.split()
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise garbage(line)
        return int(words[1])

    def _length(self, value: bytes | None) -> int | None:
        if self.status == 204:
            return 0
        if value is None:
            return None
        if not value.isdigit() or int(value) > MAX_BODY:
            raise garbage(value)
        return int(value)

    def _read_plain(self) -> bytes:
        taken = bytes(self._pending if self._left is None else self._pending[: self._left])
        del self._pending[: len(taken)]
        if self._left is not None:
            self._left -= len(taken)
            self.complete = self._left == 0
        return taken

    def _read_chunks(self) -> bytes:
        body = bytearray()
        while not self.complete:
            if self._left is None and not self._read_chunk_size():
                break
            if self._left == 0:
                self.complete = True  # the daemon sends no trailers, and the connection is not used again
                break
            assert self._left is not None
            taken = self._pending[: self._left]
            body += taken
            del self._pending[: len(taken)]
            self._left -= len(taken)
            if self._left:
                break
            self._left = None
        return bytes(body)

    def _read_chunk_size(self) -> bool:
        if self._pending.startswith(b"\r\n"):  # the end of the previous chunk
            del self._pending[:2]
        end = self._pending.find(b"\r\n")
        if end < 0:
            if len(self._pending) > MAX_HEAD:
                raise garbage(bytes(self._pending))
            return False
        size = bytes(self._pending[:end]).partition(b";")[0].strip()
        del self._pending[: end + 2]
        if not size or size.strip(b"0123456789abcdefABCDEF") or len(size) > 8:
            raise garbage(size)
        self._left = int(size, 16)
        return True


def connect(path: Path, timeout: float | None) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    # No settimeout() yet: with it, connect fails at once if the daemon's queue is full. SO_SNDTIMEO waits.
    limit = struct.pack("ll", *divmod(int(min(timeout or 0.0, 3600.0) * 1e6), 10**6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    try:
        connection.connect(str(path))
        connection.settimeout(timeout)
    except OSError as error:
        connection.close()
        raise unreachable(path, error) from error
    return connection


def request_bytes(method: str, target: str, body: bytes | None) -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: gpushare\r\nAccept: application/json\r\nConnection: close\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode("ascii") + b"\r\n" + (body or b"")


def exchange(path: Path, method: str, target: str, body: bytes | None, timeout: float | None) -> tuple[int, bytes]:
    """Send one request on a new connection. Returns the answer's status and body."""
    with connect(path, timeout) as connection:
        parser, answer = Parser(), bytearray()
        try:
            with contextlib.suppress(BrokenPipeError):  # it may answer before it has read all
                connection.sendall(request_bytes(method, target, body))
            while not parser.complete:
                data = connection.recv(READ)
                if not data:
                    parser.end()
                    break
                answer += parser.feed(data)
                if len(answer) > MAX_BODY:
                    raise garbage(bytes(answer[:40]))
        except OSError as error:
            raise unreachable(path, error) from error
    if not parser.complete:
        raise DaemonUnreachable(f"the daemon at {path} hung up in the middle of its answer", code="hung_up")
    return parser.status, bytes(answer)


def unreachable(path: Path, error: OSError) -> DaemonUnreachable:
    if isinstance(error, (TimeoutError, BlockingIOError)):  # the latter: SO_SNDTIMEO has ended the wait of connect()
        return DaemonUnreachable(f"the daemon at {path} does not answer", code="timed_out")
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
        return DaemonUnreachable(f"no daemon listens at {path}", code="no_daemon")
    why = error.strerror or str(error)
    return DaemonUnreachable(f"cannot talk to the daemon at {path}: {why}", code="cannot_connect")


def garbage(data: bytes) -> DaemonUnreachable:
    shown = data[:40].decode("utf-8", "backslashreplace")
    return DaemonUnreachable(
        f"what answers at the daemon's socket is no gpushare daemon: {shown!r}",
        code="garbage",
        hint="does GPUSHARE_SOCKET name the api.sock?",
    )
