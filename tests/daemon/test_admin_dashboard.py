"""The page that the daemon serves for administrators: who gets its address, who gets an answer, and that neither daemon
nor page suffers from the other's end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import Subprocess, until
from other_user import ALICE, as_user, needs_root

from dashboard.conftest import Dashboard
from gpushare.client import Client
from gpushare.dashboard import __main__ as server
from gpushare.dashboard.access import Sessions
from gpushare.errors import Refused
from gpushared import config

JOB = {"name": "train", "command": ["train.py"], "request": "4Gi", "limit": "14Gi"}
NOBODYS = "0" * 16


class Served(Dashboard):
    """A browser at the address that the daemon gives."""

    def __init__(self, url: str) -> None:
        self.address, _, self.known_token = url.partition("/#token=")
        self.port = int(self.address.rpartition(":")[2])
        self.cookie = self.key = ""

    @property
    def token(self) -> str:
        return self.known_token


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@pytest.fixture
def node(directory: Path) -> Iterator[Subprocess]:
    """A user's daemon with a page."""
    own = directory / "gpushare-sim"
    own.mkdir(0o700)
    one = Subprocess(
        own,
        {"XDG_RUNTIME_DIR": str(directory), "GPUSHARE_DRIVER": "sim", "GPUSHARE_SIM": f"pool={directory}/pool"},
        fixed=False,
    )
    settings = directory / "settings.toml"
    settings.write_text(f'[dashboard]\nport = {free_port()}\n[daemon]\nidle_exit = "1h"\n')
    one.command += ["--config", str(settings)]
    yield one.start()
    if one.process.poll() is None:
        one.stop()


def address(client: Client) -> str:
    found: list[str] = []

    def given() -> bool:
        try:
            found.append(client.dashboard())
        except Refused:
            return False
        return True

    until(given, 20.0)
    return found[0]


def server_of(daemon: int) -> int | None:
    for child in Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split():
        if b"gpushare.dashboard" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    return None


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_the_page_is_that_of_the_command_with_the_daemons_rights(node):
    page = Served(address(node.client)).log_in()
    job = node.client.register(JOB)["id"]
    assert page.ask("GET", "/", Cookie=None, X_Gpushare_Key=None).status == 200
    assert page.ask("GET", f"/v1/jobs/{job}").json["command"] == ["train.py"]
    assert page.ask("PATCH", f"/v1/jobs/{job}", {"limit": "8Gi"}).status == 200
    messages = page.live()
    assert [one["id"] for one in next(data for kind, data in messages if kind == "state")["jobs"]] == [job]
    messages.close()


def test_the_command_prints_the_address(node):
    url = address(node.client)
    command = [sys.executable, "-m", "gpushare", "dashboard", "--admin"]
    done = subprocess.run(command, env=node.environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{url}\n"), done.stderr
    done = subprocess.run([*command, "--open"], env=node.environment, capture_output=True, text=True)
    assert done.returncode == 2 and "goes with no other option" in done.stderr


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Host": "evil.example"}, 421, "foreign_host"),
        ({"Host": "127.0.0.1.evil.example:80"}, 421, "foreign_host"),
        ({"Sec_Fetch_Site": "cross-site"}, 403, "cross_site"),
        ({"Sec_Fetch_Site": "same-site"}, 403, "cross_site"),
        ({"Origin": "http://evil.example"}, 403, "cross_site"),
        ({"Cookie": None}, 401, "no_session"),
        ({"X_Gpushare_Key": None}, 401, "no_session"),
    ],
)
def test_others_get_no_answer(node, headers, status, code):
    page = Served(address(node.client)).log_in()
    for method, path in (("GET", "/v1/status"), ("POST", f"/v1/jobs/{NOBODYS}/stop")):
        answer = page.ask(method, path, None if method == "GET" else {}, **headers)
        assert (answer.status, answer.code) == (status, code)
    wrong = page.ask("POST", "/session", {"token": page.token[:-1]})
    assert (wrong.status, wrong.code) == (403, "wrong_token")


def test_the_token_is_nowhere_but_in_the_answer_and_in_a_file_of_the_daemons_user(node):
    page = Served(address(node.client)).log_in()
    page.ask("POST", f"/session?token={page.token}", b"{")
    secret = node.directory / "dashboard.secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    child = server_of(node.process.pid)
    seen = [node.log.read_bytes(), *(Path(f"/proc/{child}/{name}").read_bytes() for name in ("cmdline", "environ"))]
    for text in seen:
        assert page.token.encode() not in text and secret.read_bytes() not in text


def test_its_server_has_no_rights_beyond_its_user(node):
    address(node.client)
    status = Path(f"/proc/{server_of(node.process.pid)}/status").read_text()
    held = {line.split()[0]: int(line.split()[1], 16) for line in status.splitlines() if line.startswith("Cap")}
    assert held["CapPrm:"] == held["CapEff:"] == held["CapAmb:"] == held["CapInh:"] == 0


def test_an_open_page_goes_on_after_the_daemon_was_killed(node):
    page = Served(address(node.client)).log_in()
    child = server_of(node.process.pid)
    node.kill()
    until(lambda: not listens(page.port), 10.0)
    ended = Path(f"/proc/{child}/cmdline")
    until(lambda: child is not None and not (ended.exists() and ended.read_bytes()), 5.0)
    node.start()
    assert address(node.client) == f"{page.address}/#token={page.token}"
    assert page.ask("GET", "/v1/version").json["pid"] == node.process.pid, "its session still counts"


def test_a_server_that_ends_is_started_again(node):
    page = Served(address(node.client)).log_in()
    os.kill(server_of(node.process.pid), signal.SIGKILL)
    until(lambda: "the dashboard's server has ended" in node.log.read_text(), 10.0)
    address(node.client)
    assert page.ask("GET", "/v1/version").status == 200


def test_it_ends_with_the_daemon(node):
    page = Served(address(node.client))
    assert node.stop() == 0
    assert not listens(page.port)


def test_a_port_that_is_taken_costs_the_page_alone(directory, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        node = Subprocess(directory, {}, fixed=False)
        settings = directory / "settings.toml"
        settings.write_text(f"[dashboard]\nport = {taken.getsockname()[1]}\n")
        node.command += ["--config", str(settings)]
        node.start()
        with pytest.raises(Refused, match="does not run"):
            node.client.dashboard()
        assert node.client.register(JOB)["id"]
        until(lambda: "Address already in use" in node.log.read_text(), 30.0)
        assert "the dashboard is served" not in node.log.read_text()
        assert node.stop() == 0


def test_by_default_there_is_none(daemon):
    with pytest.raises(Refused) as caught:
        daemon.client.dashboard()
    assert caught.value.code == "no_dashboard" and "[dashboard]" in str(caught.value.hint)
    assert not list(daemon.directory.glob("dashboard*"))


@needs_root
def test_only_administrators_are_given_the_address(make_daemon):
    daemon = make_daemon(system=True, dashboard_port=free_port(), dashboard_read_only=True)
    page = Served(address(daemon.client)).log_in()
    code, text = as_user(ALICE, lambda: Client(daemon.directory / "api.sock").dashboard())
    assert code == "not_permitted" and "for administrators" in text and page.token not in text

    def look() -> Any:
        try:
            (daemon.directory / "dashboard.secret").read_text()
        except PermissionError:
            return "denied"

    assert as_user(ALICE, look) == "denied"
    assert page.ask("POST", f"/v1/jobs/{NOBODYS}/stop", {}).code == "read_only"


def serve(directory: Path, port: int) -> subprocess.Popen[str]:
    """A server of its own, which begins to try for its port once it has a secret."""
    words = ["--port", str(port), "--socket", str(directory / "api.sock"), "--secret", str(directory / "secret")]
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "gpushare.dashboard", *words]
    made = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    until((directory / "secret").exists, 30.0)
    return made


def test_a_port_that_is_taken_a_moment_longer_is_waited_for(tmp_path):
    """The server of a daemon that was killed still has it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        made = serve(tmp_path, port)
        time.sleep(1.5)
    assert made.stdout is not None and made.stdout.readline().startswith(f"http://127.0.0.1:{port}/#token=")
    said = made.communicate("", timeout=30)
    assert (made.returncode, *said) == (0, "", ""), "it ends with its standard input"


def test_a_server_that_cannot_serve_says_why(tmp_path):
    (tmp_path / "secret").write_text("s" * 50)
    (tmp_path / "secret").chmod(0o644)
    made = serve(tmp_path, free_port())
    out, err = made.communicate(timeout=30)
    assert (made.returncode, out) == (1, "")
    assert err == f"{tmp_path}/secret is not a file of this user's alone\n"


def test_the_server_names_what_it_was_not_told():
    done = subprocess.run([sys.executable, "-m", "gpushare.dashboard"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--port, --socket, --secret" in done.stderr


# ---- the secret, and the settings --------------------------------------------------------------------


def test_a_secret_lasts(tmp_path):
    file = tmp_path / "secret"
    assert server.lasting_secret(file) == server.lasting_secret(file)
    file.write_text("short: its writer was killed")
    assert len(server.lasting_secret(file)) > 40


def test_a_file_that_others_could_have_written_is_no_secret(tmp_path):
    file = tmp_path / "secret"
    server.lasting_secret(file)
    file.chmod(0o644)
    with pytest.raises(PermissionError):
        server.lasting_secret(file)
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(OSError, match="symbolic"):
        server.lasting_secret(tmp_path / "link")


def test_a_session_is_of_its_secret():
    first, again, other = Sessions("a" * 43), Sessions("a" * 43), Sessions("b" * 43)
    session = first.open(first.token, None)
    again.check(session.cookie, session.key)
    assert first.cookie_name == again.cookie_name != other.cookie_name
    with pytest.raises(Exception, match="open the page"):
        other.check(session.cookie, session.key)
    assert "a" * 43 not in (first.token, session.cookie, session.key)


@pytest.mark.parametrize("value", ["-1", "65536", "true", '"127.0.0.1:80"', "1.5"])
def test_a_port_is_a_port_of_localhost(tmp_path, value):
    file = tmp_path / "settings.toml"
    file.write_text(f"[dashboard]\nport = {value}\n")
    with pytest.raises(Exception, match="not accepted"):
        config.load(file)
