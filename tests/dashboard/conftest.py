"""The dashboard's server on a thread, before a daemon whose GPUs are of the test's making."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "daemon"))

from daemon_harness import Subprocess

from gpushare.dashboard.access import KEY_HEADER
from gpushare.dashboard.server import Server, listen
from gpushare.errors import DaemonUnreachable


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class Dashboard:
    """The server, and a browser's requests to it. Without `within` a request has all that our page would send."""

    def __init__(self, socket: Path, *, service: Path | None = None, read_only: bool = False) -> None:
        self.socket = socket
        self.service = service
        self.read_only = read_only
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.cookie = self.key = ""

    def _find(self) -> Path:
        if not self.socket.exists():
            raise DaemonUnreachable("no daemon runs on this node", code="no_daemon", hint="start one")
        return self.socket

    def _find_service(self) -> Path:
        if self.service is None:
            raise DaemonUnreachable("no service runs jobs here", code="no_service", hint="start one")
        return self.service

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = Server(self._find, self._find_service, read_only=self.read_only)
        runner, self.port = await listen(self.server, 0)
        self.addresses = runner.addresses
        self._stop = asyncio.Event()
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    def start(self) -> Dashboard:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    @property
    def token(self) -> str:
        return self.server.url(self.port).partition("#token=")[2]

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def open(
        self, method: str, path: str, headers: dict[str, str | None], body: object = None
    ) -> Iterator[http.client.HTTPResponse]:
        """The answer, to be read. Headers that are None are not sent."""
        sent: dict[str, str | None] = {
            "Host": self.host,
            "Cookie": self.cookie,
            KEY_HEADER: self.key,
            "Sec-Fetch-Site": "same-origin",
            "Origin": None if method == "GET" else f"http://{self.host}",
        } | headers
        text = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(text)))
            connection.endheaders(text)
            with connection.getresponse() as response:
                yield response

    def ask(self, method: str, path: str, body: object = None, **headers: str | None) -> Answer:
        """Names of headers are written with _ for -."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with self.open(method, path, named, body) as response:
            return Answer(response.status, dict(response.getheaders()), response.read())

    def log_in(self) -> Dashboard:
        answer = self.ask("POST", "/session", {"token": self.token})
        assert answer.status == 200, answer
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
        self.key = answer.json["key"]
        return self

    def live(self) -> Iterator[tuple[str, Any]]:
        """What a page is told, as it comes; comments are left out."""
        with self.open("GET", "/live", {}) as response:
            assert response.status == 200
            kind = ""
            for line in response:
                name, _, text = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = text
                elif name == "data":
                    yield kind, json.loads(text)


def told(messages: Iterator[tuple[str, Any]], wanted: Callable[[str, Any], bool]) -> Any:
    """The data of the first message like this."""
    return next(data for kind, data in messages if wanted(kind, data))


@contextlib.contextmanager
def daemon_process() -> Iterator[Subprocess]:
    """A daemon in a directory with a short name."""
    with tempfile.TemporaryDirectory(prefix="gs-") as made:
        one = Subprocess(Path(made), {}, fixed=True).start()
        try:
            yield one
        finally:
            if one.process is not None and one.process.poll() is None:
                one.kill()


@pytest.fixture
def node() -> Iterator[Subprocess]:
    """A daemon that can be killed."""
    with daemon_process() as one:
        yield one


@pytest.fixture
def make_dashboard(tmp_path: Path) -> Iterator[Callable[..., Dashboard]]:
    made: list[Dashboard] = []

    def make(socket: Path | None = None, **options: bool) -> Dashboard:
        made.append(Dashboard(socket or tmp_path / "nobody.sock", **options).start())
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def dashboard(make_dashboard: Callable[..., Dashboard]) -> Dashboard:
    """Without a daemon."""
    return make_dashboard()


@pytest.fixture
def gpushare_error(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command that fails writes to standard error."""

    def run(*arguments: str) -> str:
        from gpushare.cli import main

        assert main(list(arguments)) == 1
        return capsys.readouterr().err

    return run
