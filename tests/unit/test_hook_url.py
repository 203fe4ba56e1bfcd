"""A hook that is a URL: what may be named, and what a failure tells."""

from __future__ import annotations

import io
import json
import runpy
import sys
import threading
import time
import urllib.error
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from gpushare import hook_url
from gpushare.engine_hooks import Call, engine_of
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


# ---- what each engine is asked --------------------------------------------------------------------------------


class Engine:
    """Answers of a server, by path; the last one again and again. An error is raised. Time passes in pauses alone."""

    def __init__(self, monkeypatch, answers=None) -> None:
        self.answers = {path: list(some) for path, some in (answers or {}).items()}
        self.asked: list[tuple[object, ...]] = []
        self.now = 100.0
        monkeypatch.setattr(hook_url, "_request", self.request)
        monkeypatch.setattr(hook_url, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 6)

    def request(self, address, call, body, until):
        assert (address, until) == ("http://x:1", 102.0)
        self.asked.append((call.method, call.path, body if body is None else dict(body)))
        left = self.answers.get(call.path, [{}])
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer).encode()


ASLEEP, AWAKE, BUSY = {"is_sleeping": True}, {"is_sleeping": False}, Failed("busy")
UNLOAD = {"keep_alive": 0, "stream": False}
LOADED = [{"models": [{"model": "a"}, {"model": "b"}]}, {"models": [{"model": "b"}]}, {"models": []}]


@pytest.mark.parametrize(
    ("url", "hook", "answers", "asked", "pauses"),
    [
        ("http://x:1", "relief", {}, [("POST", "", None)], 0),
        ("http://x:1", "resume", {}, [("POST", "", None)], 0),
        (
            "vllm+http://x:1/",
            "relief",
            {"/is_sleeping": [AWAKE, AWAKE, ASLEEP]},
            [("POST", "/sleep?level=1", None), *[("GET", "/is_sleeping", None)] * 3],
            2,
        ),
        (
            "VLLM+http://x:1",
            "resume",
            {"/is_sleeping": [ASLEEP, AWAKE]},
            [("POST", "/wake_up", None), *[("GET", "/is_sleeping", None)] * 2],
            1,
        ),
        (
            "sglang+http://x:1",
            "relief",
            {"/flush_cache": [BUSY, BUSY, {}]},
            [*[("POST", "/flush_cache", None)] * 3, ("POST", "/release_memory_occupation", {})],
            2,
        ),
        ("sglang+http://x:1", "resume", {}, [("POST", "/resume_memory_occupation", {})], 0),
        (
            "ollama+http://x:1",
            "relief",
            {"/api/ps": LOADED},
            [
                ("GET", "/api/ps", None),
                ("POST", "/api/generate", {"model": "a", **UNLOAD}),
                ("POST", "/api/generate", {"model": "b", **UNLOAD}),
                *[("GET", "/api/ps", None)] * 2,
            ],
            1,
        ),
        ("ollama+http://x:1", "relief", {"/api/ps": [{"models": None}]}, [("GET", "/api/ps", None)] * 2, 0),
        ("ollama+http://x:1", "resume", {}, [], 0),
    ],
)
def test_each_engine_is_asked_as_it_documents(monkeypatch, url, hook, answers, asked, pauses):
    engine = Engine(monkeypatch, answers)
    make_calls(url, hook, 2.0)
    assert engine.asked == asked
    assert engine.now == pytest.approx(100.0 + 0.1 * pauses), "ten times a second"


@pytest.mark.parametrize(
    ("url", "path", "answer", "said", "times"),
    [
        ("vllm+http://x:1", "/is_sleeping", AWAKE, "GET /is_sleeping: is_sleeping is not true in time", 20),
        ("sglang+http://x:1", "/flush_cache", BUSY, "busy", 20),
        ("vllm+http://x:1", "/sleep?level=1", Failed("no such path"), "no such path", 1),
        ("sglang+http://x:1", "/release_memory_occupation", BUSY, "busy", 1),
    ],
)
def test_it_is_asked_again_until_its_time_is_over_where_that_helps(monkeypatch, url, path, answer, said, times):
    engine = Engine(monkeypatch, {path: [answer]})
    with pytest.raises(Failed) as caught:
        make_calls(url, "relief", 2.0)
    assert str(caught.value) == said and 100.0 <= engine.now < 102.0
    assert sum(one[1] == path for one in engine.asked) == times


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("vlm+http://x:1", "did you mean vllm?"),
        ("nothing+http://x:1", "engines: vllm, sglang, ollama; for others write the URL to POST to"),
        ("ftp://x/free", "write http://localhost:9000/free, or vllm+http://localhost:8000"),
        ("http://:80/free", "write http://localhost:9000/free, or vllm+http://localhost:8000"),
        ("http://x:0/free", "write http://localhost:9000/free, or vllm+http://localhost:8000"),
        ("http://x:99999/free", "write http://localhost:9000/free, or vllm+http://localhost:8000"),
        ("vllm+x:8000", "write http://localhost:9000/free, or vllm+http://localhost:8000"),
    ],
)
def test_what_is_no_url_is_refused_with_one(url, hint):
    with pytest.raises(UsageError) as caught:
        engine_of(url)
    assert caught.value.hint == hint and caught.value.code == "bad_url" and repr(url) in caught.value.message


@pytest.mark.parametrize(
    ("url", "resumes"),
    [
        ("http://x:1/free", False),
        ("https://x/free?a=b+c", False),
        ("vllm+https://x", True),
        ("sglang+http://x:30000", True),
        ("ollama+http://x", False),
    ],
)
def test_whether_an_engine_can_be_asked_to_take_its_memory_again(url, resumes):
    assert bool(engine_of(url).resume) is resumes and engine_of(url).relief


# ---- as a program ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reachable", [True, False])
def test_as_a_program_it_ends_with_the_reason_of_a_failure(server, monkeypatch, reachable):
    server.RequestHandlerClass, server.answers = Odd, b"done"
    url = f"http://127.0.0.1:{server.server_address[1] if reachable else 1}/free"
    for name, text in (("", "relief"), ("_URL", url), ("_SECONDS", "5.0")):
        monkeypatch.setenv(f"GPUSHARE_HOOK{name}", text)
    monkeypatch.delitem(sys.modules, "gpushare.hook_url")
    if reachable:
        runpy.run_module("gpushare.hook_url", run_name="__main__")
        return
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("gpushare.hook_url", run_name="__main__")
    assert str(caught.value.code).startswith("POST http://127.0.0.1:1/free: ")


# ---- one request ----------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch):
    """What is asked of the network; `answer`: bytes, or an error that is raised."""
    one = SimpleNamespace(requests=[], answer=b"done")

    def open_(request, timeout):
        one.requests.append((request, timeout))
        if isinstance(one.answer, Exception):
            raise one.answer
        return io.BytesIO(one.answer)

    monkeypatch.setattr(hook_url.urllib.request, "build_opener", lambda *_: SimpleNamespace(open=open_))
    monkeypatch.setattr(hook_url, "time", SimpleNamespace(monotonic=lambda: 100.0))
    return one


@pytest.mark.parametrize(
    ("call", "body", "method", "data", "headers", "until", "timeout"),
    [
        (Call("/a"), None, "POST", b"", {}, 105.0, 5.0),
        (Call("/a"), {"b": 1}, "POST", b'{"b": 1}', {"Content-type": "application/json"}, 102.5, 2.5),
        (Call("/a"), {}, "POST", b"{}", {"Content-type": "application/json"}, 102.0, 2.0),
        (Call("/a", method="GET"), None, "GET", None, {}, 99.0, 0.1),
    ],
)
def test_a_request_has_its_body_and_the_time_that_is_left(opened, call, body, method, data, headers, until, timeout):
    assert hook_url._request("http://x:1", call, body, until) == b"done"
    ((request, waited),) = opened.requests
    assert (request.full_url, request.get_method(), request.data) == ("http://x:1/a", method, data)
    assert dict(request.headers) == headers and waited == timeout


@pytest.mark.parametrize(
    ("body", "said"),
    [(b"", ""), (b" no room\nand more", ", no room"), (b"\xff", ", \ufffd"), (b"x" * 300, f", {'x' * 200}")],
)
def test_what_a_server_says_of_an_error_is_told_up_to_its_first_line(opened, body, said):
    opened.answer = urllib.error.HTTPError("http://x:1/a", 503, "Busy", None, io.BytesIO(body))
    with pytest.raises(Failed) as caught:
        hook_url._request("http://x:1", Call("/a"), None, 105.0)
    assert str(caught.value) == f"POST /a: HTTP 503{said}"


@pytest.mark.parametrize("more", [0, 1])
def test_an_answer_has_a_megabyte_at_most(opened, more):
    opened.answer = b"x" * (2**20 + more)
    if not more:
        assert len(hook_url._request("http://x:1", Call("/a"), None, 105.0)) == 2**20
        return
    with pytest.raises(Failed, match=r"^POST /a: its answer is longer than 1\.0 MiB$"):
        hook_url._request("http://x:1", Call("/a"), None, 105.0)


@pytest.mark.parametrize(("size", "end"), [(100, ""), (101, "...")])
def test_a_long_answer_is_quoted_up_to_a_hundred_characters(size, end):
    with pytest.raises(Failed) as caught:
        hook_url._value(Call("/a"), b"x" * size, "key")
    assert str(caught.value) == f"POST /a: the answer has no key: {'x' * 100}{end}"
