"""`gpushare dashboard`: where it listens, what it prints, how the browser gets the address, how it ends."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import stat
import webbrowser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlparse

import pytest

from gpushare.cli import dashboard
from gpushare.dashboard import server
from gpushare.errors import UsageError

URL = "http://127.0.0.1:7777/#token=x"


@pytest.fixture
def served(monkeypatch, environ):
    """A server that is none: `served.ends` is sent as soon as its address is asked for, so that the command ends."""
    one = SimpleNamespace(made=[], asked=[], cleaned=0, ends=signal.SIGINT, error=None)

    async def cleanup():
        one.cleaned += 1

    async def listen(made, port):
        one.asked.append(port)
        if one.error is not None:
            raise one.error
        return SimpleNamespace(cleanup=cleanup), port or 7777

    def url(port):
        os.kill(os.getpid(), one.ends)
        return f"http://127.0.0.1:{port}/#token=x"

    def make(find, find_service, *, read_only):
        one.made.append(read_only)
        return SimpleNamespace(url=url)

    monkeypatch.setattr(server, "Server", make)
    monkeypatch.setattr(server, "listen", listen)
    return one


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_serves_until_it_is_interrupted(served, gpushare, number):
    served.ends = number
    code, out, err = gpushare("dashboard")
    assert (code, out) == (0, f"{URL}\n")
    assert err == (
        "gpushare: keep this address to yourself: its page acts with your rights; from another machine: "
        f"ssh -L 7777:127.0.0.1:7777 {os.uname().nodename}; Ctrl-C ends it\n"
    )
    assert (served.asked, served.made, served.cleaned) == ([0], [False], 1)


def test_its_options_reach_the_server(served, gpushare):
    assert gpushare("dashboard", "--port", "8001", "--read-only")[1] == "http://127.0.0.1:8001/#token=x\n"
    assert (served.asked, served.made) == ([8001], [True])


@pytest.mark.parametrize(
    ("port", "error", "said"),
    [
        (8001, OSError(errno.EADDRINUSE, "x"), "127.0.0.1:8001: Address already in use\n\nhint: leave --port out"),
        (0, OSError(errno.EADDRINUSE, "x"), "127.0.0.1:0: Address already in use\n"),
        (8001, OSError("odd"), "127.0.0.1:8001: odd\n\nhint: leave --port out"),
    ],
)
def test_a_port_that_is_taken_is_said(served, gpushare, port, error, said):
    served.error = error
    code, out, err = gpushare("dashboard", *(["--port", str(port)] if port else []))
    assert (code, out) == (1, "")
    assert err.startswith(f"gpushare: cannot listen on {said}")
    assert ("hint" in err) == bool(port)


@pytest.mark.parametrize("how", ["opens", "refuses", "fails"])
def test_the_browser_reads_the_address_from_a_file_that_is_private(served, gpushare, monkeypatch, how):
    seen = []

    def browse(address):
        path = Path(urlparse(address).path)
        seen.append((path, stat.S_IMODE(path.stat().st_mode), path.read_text()))
        if how == "fails":
            raise webbrowser.Error("none")
        return how == "opens"

    monkeypatch.setattr(webbrowser, "open", browse)
    code, out, err = gpushare("dashboard", "--open")
    assert (code, out) == (0, f"{URL}\n")
    ((path, mode, text),) = seen
    assert (mode, str(path.parent)) == (0o600, os.environ["XDG_RUNTIME_DIR"]) and f"url={URL}" in text
    assert not path.exists(), "it is gone with the command"
    assert ("no browser found here: open the address yourself" in err) == (how != "opens")
    seen.clear()
    gpushare("dashboard")
    assert not seen


@pytest.mark.parametrize("option", [["--port", "8001"], ["--open"], ["--read-only"]])
def test_the_administrators_page_is_the_daemons(served, gpushare, monkeypatch, option):
    code, out, err = gpushare("dashboard", "--admin", *option)
    assert (code, out) == (2, "") and "--admin goes with no other option" in err
    monkeypatch.setattr(dashboard, "_find", lambda: Path("/run/x"))
    monkeypatch.setattr(dashboard, "Client", lambda path: SimpleNamespace(dashboard=lambda: f"http://of{path}"))
    assert gpushare("dashboard", "--admin") == (0, "http://of/run/x\n", "")
    assert not served.asked


def test_it_serves_until_then(served, gpushare, monkeypatch):
    order = []

    async def cleanup():
        order.append("cleaned")

    async def listen(made, port):
        return SimpleNamespace(cleanup=cleanup), 7777

    def interrupt():
        order.append("interrupted")
        os.kill(os.getpid(), signal.SIGINT)

    def url(port):
        asyncio.get_running_loop().call_soon(interrupt)
        return URL

    monkeypatch.setattr(server, "listen", listen)
    monkeypatch.setattr(server, "Server", lambda *_, **__: SimpleNamespace(url=url))
    assert gpushare("dashboard")[:2] == (0, f"{URL}\n")
    assert order == ["interrupted", "cleaned"]


def test_settings_with_a_mistake_are_told_before_it_serves(served, gpushare, monkeypatch):
    def wrong():
        raise UsageError("config.toml: port: 'x' is no number")

    monkeypatch.setattr(dashboard, "load_settings", wrong)
    code, out, err = gpushare("dashboard")
    assert (code, out, served.asked) == (2, "", []) and "'x' is no number" in err
