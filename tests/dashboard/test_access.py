"""Who gets an answer: the token, the session, the names of hosts, the pages that ask."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.cli import dashboard as command
from gpushare.dashboard import access
from gpushare.dashboard.access import Refusal, Sessions, check_host

ROOT = Path(__file__).resolve().parents[2]


# ---- the token -------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "guess", None, 7, ["x"], "\udc80"])
def test_a_wrong_token_opens_no_session(dashboard, token):
    answer = dashboard.ask("POST", "/session", {"token": token})
    assert (answer.status, answer.code) == (403, "wrong_token")
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("body", [b"", b"[]", b'"x"', b"{", b"[" * 4000])
def test_what_is_no_login_is_refused(dashboard, body):
    assert dashboard.ask("POST", "/session", body).status in (400, 403)


def test_part_of_the_token_and_more_than_it_are_wrong(dashboard):
    for token in (dashboard.token[:-1], dashboard.token + "x"):
        assert dashboard.ask("POST", "/session", {"token": token}).status == 403


def test_the_token_is_long_and_another_each_time():
    first, second = Sessions(), Sessions()
    assert len(first.token) >= 43  # 256 bits
    assert first.token != second.token
    assert first.cookie_name != second.cookie_name


def test_secrets_are_compared_in_constant_time(monkeypatch):
    compared = []

    def compare(given, expected):
        compared.append(expected)
        return given == expected

    monkeypatch.setattr(access.hmac, "compare_digest", compare)
    sessions = Sessions()
    session = sessions.open(sessions.token, None)
    sessions.check(session.cookie, session.key)
    proof = session.cookie.partition(".")[2]
    assert compared == [sessions.token.encode(), proof.encode(), session.key.encode()]


def test_a_session_does_not_show_its_secrets():
    session = Sessions()
    opened = session.open(session.token, None)
    assert opened.cookie not in repr(opened) and opened.key not in repr(opened)


def test_the_command_prints_the_token_once_and_logs_none(tmp_path):
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "GPUSHARE_DRIVER": "sim", "PYTHONUNBUFFERED": "1"}
    line = [sys.executable, "-m", "gpushare", "dashboard"]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, env=environ, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        url = process.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#token=(\S+)", url)
        assert found, url
        host = f"127.0.0.1:{found[1]}"
        for path, body in (("/session", f'{{"token":"{found[2]}"}}'), (f"/session?token={found[2]}", "{"), ("/x", "")):
            asked = [*("curl", "-s", "-H", f"Origin: http://{host}"), *("-d", body), f"http://{host}{path}"]
            subprocess.run(asked, check=False, capture_output=True)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=10)
    assert process.returncode == 0
    assert rest == "" and "Traceback" not in errors
    assert found[2] not in errors


@pytest.mark.parametrize("found", [True, False])
def test_the_browser_is_started_without_the_token_in_its_arguments(tmp_path, monkeypatch, capsys, found):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    opened = []

    def start(address: str) -> bool:
        path = Path(address.removeprefix("file://"))
        opened.append((address, path.stat().st_mode & 0o777, path.read_text()))
        return found

    monkeypatch.setattr("webbrowser.open", start)
    url = "http://127.0.0.1:1/#token=secret"
    with command._opened(url, wanted=True):
        ((address, mode, text),) = opened
        assert "secret" not in address and mode == 0o600 and url in text
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == [], "the file goes with the command"
    assert ("open the address yourself" in capsys.readouterr().err) is not found
    with command._opened(url, wanted=False):
        assert len(opened) == 1


def test_only_the_command_itself_waits_for_aiohttp():
    script = "import sys; from gpushare.cli import cli, dashboard; print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_port_that_is_taken_is_said(dashboard, gpushare_error):
    text = gpushare_error("dashboard", "--port", str(dashboard.port))
    assert f"cannot listen on 127.0.0.1:{dashboard.port}: Address already in use" in text
    assert "leave --port out" in text


# ---- the session -----------------------------------------------------------------------------------


def test_the_cookie_is_for_our_own_page_alone(dashboard):
    answer = dashboard.ask("POST", "/session", {"token": dashboard.token})
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie
    assert answer.json["key"] not in cookie


def test_a_request_needs_both_halves_of_a_session(dashboard):
    dashboard.log_in()
    assert dashboard.ask("GET", "/v1/version").status == 503  # no daemon, but let in
    for headers in ({"Cookie": None}, {"X_Gpushare_Key": None}, {"Cookie": None, "X_Gpushare_Key": None}):
        for path in ("/v1/version", "/live"):
            answer = dashboard.ask("GET", path, **headers)
            assert (answer.status, answer.code) == (401, "no_session"), headers


def test_halves_of_two_sessions_are_none(dashboard):
    dashboard.log_in()
    first = dashboard.key
    dashboard.cookie = ""
    dashboard.log_in()
    assert dashboard.key != first
    assert dashboard.ask("GET", "/v1/version", X_Gpushare_Key=first).status == 401


def test_the_token_is_no_key_and_no_cookie(dashboard):
    dashboard.log_in()
    assert dashboard.ask("GET", "/v1/version", X_Gpushare_Key=dashboard.token).status == 401
    name = dashboard.cookie.partition("=")[0]
    assert dashboard.ask("GET", "/v1/version", Cookie=f"{name}={dashboard.token}").status == 401


def test_another_tab_of_a_browser_has_the_same_session(dashboard):
    dashboard.log_in()
    key = dashboard.key
    assert dashboard.log_in().key == key


def test_sessions_cost_the_server_nothing_and_none_can_be_made_up():
    sessions = Sessions()
    before = dict(vars(sessions))
    opened = [sessions.open(sessions.token, None) for _ in range(1000)]
    assert vars(sessions) == before and len({one.cookie for one in opened}) == 1000
    for one in opened:
        sessions.check(one.cookie, one.key)
    nonce = opened[0].cookie.partition(".")[0]
    for cookie in (nonce, f"{nonce}.", f"x.{opened[0].cookie.partition('.')[2]}", f"{opened[0].cookie}x", "", "."):
        with pytest.raises(Refusal):
            sessions.check(cookie, opened[0].key)


def test_a_cookie_that_another_server_has_set_opens_no_session_of_its_name():
    sessions = Sessions()
    assert sessions.open(sessions.token, "theirs.made-up").cookie.partition(".")[0] != "theirs"


# ---- the names of hosts, and other pages -----------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil", "", None]
)
@pytest.mark.parametrize("path", ["/", "/app.js", "/v1/version", "/live"])
def test_a_name_that_was_bound_to_this_host_is_refused(dashboard, host, path):
    dashboard.log_in()
    answer = dashboard.ask("GET", path, Host=host)
    assert answer.status in (400, 421)  # aiohttp itself refuses a request without any
    assert b"app.js" not in answer.body


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost:1", "LOCALHOST:8000", "[::1]:8000"])
def test_any_port_of_this_host_is_right(host):
    check_host(host)


@pytest.mark.parametrize(
    "host", ["127.0.0.2:80", "::1", "0.0.0.0:80", "localhost:", "localhost:80:80", "user@localhost"]
)
def test_other_addresses_are_not(host):
    with pytest.raises(Refusal):
        check_host(host)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none"])
def test_other_pages_do_not_read(dashboard, site):
    """A page on another port of 127.0.0.1 is same-site, and the browser sends our cookie for it."""
    dashboard.log_in()
    for path in ("/v1/version", "/live"):
        assert dashboard.ask("GET", path, Sec_Fetch_Site=site).code == "cross_site"
    assert dashboard.ask("POST", "/session", {"token": dashboard.token}, Sec_Fetch_Site=site).code == "cross_site"


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "null", "https://{host}", None])
def test_other_pages_do_not_write(dashboard, origin):
    dashboard.log_in()
    origin = origin and origin.replace("{host}", dashboard.host)
    answer = dashboard.ask("POST", f"/v1/jobs/{'0' * 16}/stop", {}, Origin=origin, Sec_Fetch_Site=None)
    assert (answer.status, answer.code) == (403, "cross_site")


def test_a_read_with_a_foreign_origin_is_refused(dashboard):
    dashboard.log_in()
    answer = dashboard.ask("GET", "/v1/version", Origin="http://127.0.0.1:1", Sec_Fetch_Site=None)
    assert answer.code == "cross_site"


def test_a_link_from_anywhere_opens_the_page(dashboard):
    answer = dashboard.ask("GET", "/", Sec_Fetch_Site="cross-site", Cookie=None, X_Gpushare_Key=None)
    assert answer.status == 200 and b"/app.js" in answer.body


# ---- what the browser is told ----------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("GET", "/app.js"), ("GET", "/v1/version"), ("PUT", "/x")])
def test_each_answer_forbids_foreign_content(dashboard, method, path):
    headers = dashboard.ask(method, path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy.pop("default-src") == "'none'"
    assert policy.pop("frame-ancestors") == policy.pop("base-uri") == policy.pop("form-action") == "'none'"
    assert set(policy.values()) == {"'self'"}
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-store"


def test_it_listens_on_this_host_alone(dashboard):
    assert [address[0] for address in dashboard.addresses] == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/app.js", "text/javascript"), ("/app.css", "text/css"), ("/icon.svg", "image/svg+xml")],
)
def test_the_page_has_its_types(dashboard, path, kind):
    answer = dashboard.ask("GET", path)
    assert answer.status == 200 and answer.headers["Content-Type"] == f"{kind}; charset=utf-8"


@pytest.mark.parametrize("path", ["/LICENSES.txt", "/../server.py", "/%2e%2e/server.py", "/static/app.js"])
def test_nothing_else_is_a_file(dashboard, path):
    dashboard.log_in()
    answer = dashboard.ask("GET", path)
    assert (answer.status, answer.code) == (404, "http_404")
    assert answer.json["error"]["message"] == "not found"
