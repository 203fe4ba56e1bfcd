"""A hook that is a URL: what may be named, and what a failure tells."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gpushare.engine_hooks import engine_of
from gpushare.errors import UsageError
from gpushare.hook_url import Failed, make_calls


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://localhost:9000/free now",
        "http://localhost/\r\nX: y",
        "http://localhost/frü",
        "file:///etc",
    ],
)
def test_what_can_never_be_called_is_refused_at_once(url):
    with pytest.raises(UsageError, match="is no URL that can be called"):
        engine_of(url)


def test_a_password_in_a_url_is_refused_and_not_repeated():
    with pytest.raises(UsageError) as caught:
        engine_of("http://me:secret@localhost:9000/free")
    assert "secret" not in str(caught.value) and "--relief-cmd" in str(caught.value.hint)


class Elsewhere(BaseHTTPRequestHandler):
    def do_POST(self) -> None:  # the base class names it
        self.send_response(302)
        self.send_header("Location", f"http://127.0.0.1:{self.server.server_address[1]}/other")
        self.end_headers()

    def do_GET(self) -> None:
        self.server.followed = True
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Elsewhere) as made:
        made.followed = False
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_another_address_is_not_called(server):
    with pytest.raises(Failed, match="HTTP 302"):
        make_calls(f"http://127.0.0.1:{server.server_address[1]}/free", "relief", 5.0)
    assert not server.followed


def test_a_failure_does_not_tell_what_may_be_a_secret(server):
    with pytest.raises(Failed) as caught:
        make_calls(f"http://127.0.0.1:{server.server_address[1]}/free?token=secret", "relief", 5.0)
    assert "/free: HTTP 302" in str(caught.value) and "secret" not in str(caught.value)


class Ollama(BaseHTTPRequestHandler):
    """It unloads a model a moment after it was asked to."""

    def do_GET(self) -> None:
        self.server.calls.append(self.path)
        models = [{"model": name} for name in self.server.loaded]
        if self.server.unloading:
            self.server.loaded.remove(self.server.unloading.pop())
        self._answer({"models": models})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append((self.path, asked["model"], asked["keep_alive"]))
        self.server.unloading.append(asked["model"])
        self._answer({"done": True})

    def _answer(self, value: object) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


def test_ollama_is_asked_to_unload_each_model_and_waited_for(server):
    server.RequestHandlerClass = Ollama
    server.loaded, server.unloading, server.calls = ["one", "two"], [], []
    make_calls(f"ollama+http://127.0.0.1:{server.server_address[1]}", "relief", 20.0)
    assert server.loaded == []
    unload = [("/api/generate", name, 0) for name in ("one", "two")]
    assert server.calls == ["/api/ps", *unload, "/api/ps", "/api/ps", "/api/ps"]


class Odd(BaseHTTPRequestHandler):
    """A server that is not what its user takes it for."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        if self.server.answers is not None:
            self.wfile.write(self.server.answers)
            return
        self.server.sent = 0
        try:
            while self.server.sent < 100 * 2**20:
                self.server.sent += self.wfile.write(b"x" * 2**16)
        except OSError:
            pass

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("engine", "answers", "why"),
    [
        ("vllm", b'{"is_sleeping": "maybe"}', "is_sleeping is 'maybe'"),
        ("vllm", b'{"is_sleeping": 1}', "is_sleeping is 1"),
        ("vllm", b"{}", "the answer has no is_sleeping: {}"),
        ("vllm", b"[1, 2]", "the answer has no is_sleeping: [1, 2]"),
        ("vllm", b"asleep", "the answer has no is_sleeping: asleep"),
        ("vllm", b"[" * 200_000, "the answer has no is_sleeping: [[["),
        ("vllm", b"\xff" * 3000, "the answer has no is_sleeping: "),
        ("ollama", b'{"models": 7}', "models is 7"),
        ("ollama", b'{"models": ["a"]}', "models is ['a']"),
        ("ollama", b'{"models": [{"name": "a"}]}', "models is [{'name': 'a'}]"),
        ("ollama", b"{}", "the answer has no models: {}"),
    ],
)
def test_an_answer_of_another_kind_is_told_at_once(server, engine, answers, why):
    """It counts neither as asleep nor as awake."""
    server.RequestHandlerClass, server.answers = Odd, answers
    began = time.monotonic()
    with pytest.raises(Failed) as caught:
        make_calls(f"{engine}+http://127.0.0.1:{server.server_address[1]}", "relief", 20.0)
    assert why in str(caught.value) and len(str(caught.value)) < 300, caught.value
    assert str(caught.value).startswith("GET /is_sleeping: " if engine == "vllm" else "GET /api/ps: ")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("url", ["http://127.0.0.1:{}/free", "sglang+http://127.0.0.1:{}"])
def test_an_endless_answer_is_a_failure(server, url):
    server.RequestHandlerClass, server.answers = Odd, None
    with pytest.raises(Failed, match=r"POST \S*/[a-z_]+: its answer is longer than 1.0 MiB"):
        make_calls(url.format(server.server_address[1]), "relief", 5.0)
    assert server.sent < 50 * 2**20


def test_a_generic_server_may_answer_what_it_likes(server):
    server.RequestHandlerClass = Odd
    for server.answers in (b"", b"done", b"[" * 200_000):
        make_calls(f"http://127.0.0.1:{server.server_address[1]}/free", "relief", 5.0)


def test_no_models_may_be_null(server):
    server.RequestHandlerClass, server.answers = Odd, b'{"models": null}'
    make_calls(f"ollama+http://127.0.0.1:{server.server_address[1]}", "relief", 5.0)
