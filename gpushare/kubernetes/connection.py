"""Connections to the API server: HTTP of the standard library, one request at a time.

A scheduler that starts 200 pods a second sends 600 requests. urllib3 would be one more layer above the same library, of
0.15 ms of CPU time for each of them.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import weakref
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

from gpushare.kubernetes.access import Access

__all__ = ["FAILURES", "Connection", "Connections"]

CONNECT, ANSWER = 3.0, 10.0
"""Seconds."""
FAILURES = (OSError, HTTPException)
"""What a request may raise."""
UNCHANGED = "%/:=&?~#+!$,;'@()*[]"
"""Of a path, beside letters and digits."""


class _Plain(HTTPConnection):
    """Head and body of a request go out in one piece: written one after the other, they wake the server twice."""

    _pieces: list[Any] | None = None

    def request(self, *args: Any, **more: Any) -> None:
        pieces: list[Any] = []
        self._pieces = pieces
        try:
            super().request(*args, **more)
        finally:
            self._pieces = None
        super().send(b"".join(pieces))

    def send(self, data: Any) -> None:
        if self._pieces is None:
            super().send(data)
        else:
            self._pieces.append(data)


class _Tls(_Plain, HTTPSConnection):
    pass


class Connection:
    """One request at a time, each answered whole before the next. end() may be called by another thread."""

    def __init__(self, access: Access) -> None:
        """Raises OSError."""
        url = urlsplit(access.url)
        host = url.hostname or ""
        self._path = url.path
        self._http = (
            _Tls(host, url.port, timeout=CONNECT, context=_context(access.tls))
            if url.scheme == "https"
            else _Plain(host, url.port, timeout=CONNECT)
        )
        self._http.connect()
        self._socket: socket.socket = self._http.sock
        self._idle = select.poll()
        self._idle.register(self._socket, select.POLLIN)

    def ask(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], silence: float = ANSWER
    ) -> HTTPResponse:
        """The head of its answer; the body is read from it. `silence`: seconds after which it counts as none. Raises
        FAILURES."""
        self._socket.settimeout(silence)
        self._http.request(method, quote(self._path + path, UNCHANGED), body, headers)
        return self._http.getresponse()

    @property
    def is_open(self) -> bool:
        """Nothing has come unasked: the server closes what is not used for long."""
        return self._http.sock is not None and not self._idle.poll(0)

    def end(self) -> None:
        """Who waits for an answer hears at once that there is none."""
        with contextlib.suppress(OSError):  # it is over already
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # that of TLS would change it for who reads

    def close(self) -> None:
        self._http.close()
        self._socket.close()


class Connections:
    """Those to one server, kept open between requests. May be used by several threads."""

    def __init__(self, access: Access, most: int) -> None:
        """`most`: how many are kept."""
        self._access = access
        self._most = most
        self._kept: list[Connection] = []
        weakref.finalize(self, _close, self._kept)

    @contextlib.contextmanager
    def one(self) -> Iterator[Connection]:
        """That nobody else uses meanwhile. It is closed after an exception. Raises OSError."""
        found = self._open() or Connection(self._access)
        try:
            yield found
        except BaseException:
            found.close()
            raise
        if len(self._kept) < self._most:
            self._kept.append(found)
        else:
            found.close()

    def _open(self) -> Connection | None:
        with contextlib.suppress(IndexError):  # none is left
            while True:
                found = self._kept.pop()
                if found.is_open:
                    return found
                found.close()
        return None

    def close(self) -> None:
        _close(self._kept)


def _close(kept: list[Connection]) -> None:
    while kept:
        kept.pop().close()


def _context(tls: Mapping[str, Any]) -> ssl.SSLContext:
    """Made for each connection, since files of certificates change. Raises OSError."""
    context = ssl.create_default_context(cafile=tls.get("ca_certs"))
    if tls.get("insecure"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if "cert_file" in tls:
        context.load_cert_chain(tls["cert_file"], tls.get("key_file"))
    return context
