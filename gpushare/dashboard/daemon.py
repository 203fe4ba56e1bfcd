"""The dashboard's connection to the node daemon, or to the cluster's service: over its Unix socket, so with the rights
of the user who runs this.

Each call opens a connection, as in client.py, because the daemon may restart between two calls. After a failure it
looks for the socket again (gpushare/locate.py), because another daemon may answer then.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from gpushare import unixhttp
from gpushare.errors import DaemonUnreachable

__all__ = ["Daemon"]

ANSWERS_WITHIN = 15.0
"""Seconds."""
SILENT_FOR = 40.0
"""Seconds without a line after which a stream counts as broken: the daemon sends an empty line every 15."""
MOST_OF_A_LINE = 2**20


class Daemon:
    """Asks the daemon. Raises DaemonUnreachable if none answers."""

    def __init__(self, find: Callable[[], Path]) -> None:
        """`find` says where the daemon's api.sock is. It may block, and raises DaemonUnreachable."""
        self._find = find
        self._socket: Path | None = None

    async def call(self, method: str, target: str, body: bytes | None = None) -> tuple[int, bytes]:
        """The status and the body of the answer, whatever they are."""
        async with self._request(method, target, body, ANSWERS_WITHIN) as answer:
            return answer.status, await answer.read()

    async def get(self, target: str) -> Any:
        """The JSON of a GET that cannot fail but with the daemon."""
        status, text = await self.call("GET", target)
        if status != 200:
            raise DaemonUnreachable(f"the daemon answers {target} with status {status}", code="garbage")
        try:
            return json.loads(text)
        except ValueError:
            raise unixhttp.garbage(text) from None

    async def lines(self, target: str) -> AsyncIterator[Any]:
        """The JSON lines of a stream, until the daemon ends it."""
        async with self._request("GET", target, None, None) as answer:
            if answer.status != 200:
                raise DaemonUnreachable(f"the daemon answers {target} with status {answer.status}", code="garbage")
            rest = b""
            while True:
                async with asyncio.timeout(SILENT_FOR):
                    data = await answer.content.readany()
                if not data:
                    return
                *whole, rest = (rest + data).split(b"\n")
                if len(rest) > MOST_OF_A_LINE:
                    raise unixhttp.garbage(rest)
                for line in filter(None, whole):
                    yield json.loads(line)

    @asynccontextmanager
    async def _request(
        self, method: str, target: str, body: bytes | None, within: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._socket is None:
            self._socket = await asyncio.to_thread(self._find)
        path = self._socket
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.UnixConnector(str(path)),
                    timeout=aiohttp.ClientTimeout(total=within, sock_connect=ANSWERS_WITHIN),
                ) as session,
                session.request(method, f"http://gpushare{target}", data=body, headers=headers) as answer,
            ):
                yield answer
        except (OSError, aiohttp.ClientError, TimeoutError, ValueError) as error:
            self._socket = None
            raise _unreachable(path, error) from error


def _unreachable(path: Path, error: Exception) -> DaemonUnreachable:
    cause = error.os_error if isinstance(error, aiohttp.ClientOSError) and hasattr(error, "os_error") else error
    if isinstance(cause, OSError):
        return unixhttp.unreachable(path, cause)
    return DaemonUnreachable(f"the daemon at {path} hung up in the middle of its answer", code="hung_up")
