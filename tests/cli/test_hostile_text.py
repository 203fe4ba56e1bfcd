"""Names, commands and reasons are other users' texts: no command lets their control characters reach a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_api import GIB, killed, refusal

from gpushare.cli import COMMANDS
from gpushare.errors import render
from gpushare.printable import one_line, printable

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp\u2066\u200b\ud800\r\x7f\x00x"
"""OSC, CSI in 7 and 8 bits, marks of direction, a lone surrogate, a carriage return, DEL."""
LINES = f"a{EVIL}\nb{EVIL}"
OBEYED = re.compile(r"[^\x20-\x7e\n\t…→·─-▟]")
OUR_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def assert_harmless(text: str) -> None:
    found = OBEYED.findall(text)
    assert not found, (found[:5], text[:2000])


def poison(value, key=""):
    """Each text that a job's user or a name service could have chosen."""
    if isinstance(value, dict):
        return {key: poison(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [poison(item, key) for item in value]
    if isinstance(value, str) and key not in ("id", "state", "event", "uuid", "mode", "code", "claim", "on_reclaim"):
        return value + (LINES if key in ("text", "message", "reason") else EVIL)
    return value


@pytest.fixture
def evil(fake, monkeypatch):
    """A daemon all of whose answers are poisoned."""
    body = {"name": "train", "command": ["python", "train.py"], "request": "1Gi", "limit": "4Gi", "priority": 0}
    body |= {"lend": True, "grace": 1.0, "request_source": "--request", "limit_source": "LIMIT", "gpus": 1}
    job = fake._register(body)
    ended = {**job, "id": "00000000000000ee", "state": "ended", "gpus": job["gpus"]}
    ended["outcome"] = {
        "exit_code": None,
        "signal": 9,
        "killed": killed(),
        "peak": {job["gpus"][0]["uuid"]: GIB},
        "refusals": 0,
        "duration": 1.0,
    }
    fake.outsiders = [
        {"pid": 7, "uid": 1, "user": "bob", "command": "x", "bytes": GIB, "job": None, "reason": "unmanaged"}
    ]
    waiting = {"job": job["id"], "name": "train", "gpu": None, "since": 1.0, "until": 9.0, "code": "not_admitted"}
    fake.waiting = [{**waiting, "message": "job waits", "facts": [["free", "1 GiB"]], "hint": "wait", "data": {}}]
    record = {"time": 1.0, "event": "killed", "gpu": None, "job": job["id"], "name": "train", "facts": {}}
    fake.records = [{**record, "text": "was stopped"}]
    fake.health = {
        "state": "sick",
        "shortfall": 0,
        "ailments": [{"state": "sick", "cause": "xid_48", "text": "it is hot", "hint": "cool it", "facts": {}}],
    }
    plain = fake.handle

    def handle(method, path, body):
        status, content = plain(method, path, body)
        if path.startswith("/v1/jobs?ended"):
            content = {"jobs": [job, ended]}
        if path.startswith("/v1/version"):
            return status, content
        return status, poison(content)

    monkeypatch.setattr(fake, "handle", handle)
    return fake


COMMAND_LINES = [
    ["ps"],
    ["ps", "-a"],
    ["ps", "-o", "wide"],
    ["status"],
    ["status", "-o", "wide"],
    ["top", "--once"],
    ["explain"],
    ["explain", "train"],
    ["events"],
    ["set", "train", "--limit", "5Gi"],
    ["explain", "no-such" + EVIL.replace("\x00", "")],
    ["no-such" + EVIL.replace("\x00", "")],
    ["ps", "--gpu", EVIL],
    ["ps", "--no-such" + EVIL],
    ["set", "train", "--limit", EVIL],
    ["daemon", EVIL],
    ["docs", EVIL],
    ["cluster", EVIL],
    ["kernel", "remove", EVIL.replace("\x00", "")],
    ["release", EVIL],
    ["run", "--limit", EVIL, "true"],
    ["run", "--name", EVIL, "--driver", EVIL, "true"],
    ["run", "no-such" + EVIL.replace("\x00", "")],
]


@pytest.mark.parametrize("arguments", COMMAND_LINES, ids=lambda words: " ".join(map(ascii, words))[:40])
def test_no_command_lets_anything_through(gpushare, evil, arguments):
    code, out, err = gpushare(*arguments)
    assert out or err
    assert (code == 0) == (EVIL.replace("\x00", "") not in " ".join(arguments).replace("\x00", "")), err
    assert_harmless(out)
    assert_harmless(err)


def test_what_is_escaped_is_still_there(gpushare, evil):
    _, out, _ = gpushare("ps", "-o", "wide")
    assert r"\x1b]0;owned\x07" in out
    assert r"\u202egnp" in out
    assert r"\ud800" in out
    assert len(out.splitlines()) == 3  # titles, a job, a program outside: no line is made up


@pytest.mark.parametrize(
    "arguments", [["ps", "-o", "json"], ["ps", "-o", "jsonl"], ["status", "--json"], ["explain", "--json"]]
)
def test_json_keeps_the_data(gpushare, evil, arguments):
    code, out, _ = gpushare(*arguments)
    assert code == 0
    assert out.isascii()
    found = json.loads(out)
    assert EVIL in texts(found)


def texts(value) -> str:
    """All of them, in a row."""
    if isinstance(value, dict):
        value = list(value.values())
    return " ".join(map(texts, value)) if isinstance(value, list) else str(value)


@pytest.mark.parametrize("arguments", [["ps", "-o", "wide"], ["status"], ["top", "--once"], ["explain", "train"]])
def test_on_a_terminal_there_are_our_own_colours_and_nothing_else(evil, arguments):
    said = on_a_terminal([sys.executable, "-m", "gpushare", *arguments])
    assert said
    assert_harmless(OUR_COLOURS.sub("", said.replace("\r\n", "\n")))


def on_a_terminal(line: list[str]) -> str:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(line, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    said = b""
    while True:
        try:
            said += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    assert process.wait(20) == 0
    return said.decode()


def test_what_run_says(start, run, fake):
    fake.refusals = [refusal(409, "not_admitted", f"no room: {LINES}", [("other", LINES)], f"wait for {EVIL}")]
    result = run("true")
    assert result.returncode == 125
    assert_harmless(result.stderr)
    assert len(result.stderr.splitlines()) == 4  # of the facts' lines each has its own, of the message there is one
    fake.refusals = [refusal(409, "not_admitted", f"no room: {LINES}", [("other", LINES)])]
    assert_harmless(run("--wait", "1s", "true").stderr)
    fake.calls.clear()
    process = start("run", "-v", "sh", "-c", "sleep 1; kill -9 $$")
    fake.wait_for_call("GET", "/events")
    for kind in ("asked_back", "changed", "revoked"):
        fake.notify(kind, f"job {LINES} wants it")
    fake.killed = killed(owner="bob" + EVIL, owner_user=EVIL, reason=LINES)
    _, said = process.communicate(timeout=20)
    assert r"job a\x1b]0;owned\x07" in said
    assert r"bob\x1b]0" in said
    assert_harmless(said)


def test_a_killed_notice_without_an_outcome(start, fake):
    process = start("run", "sh", "-c", "sleep 1; kill -9 $$")
    fake.wait_for_call("GET", "/events")
    fake.notify("killed", f"was stopped for {LINES}")
    fake.garbage = b"gone"
    _, said = process.communicate(timeout=20)
    assert r"was stopped for a\x1b]0" in said
    assert_harmless(said)


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"}]
)
def test_a_strict_locale_and_arguments_that_are_not_utf_8(fake, locale):
    """The innocent variant: a file name in Latin-1, as an argument of a job and of ours."""
    line = [sys.executable, "-m", "gpushare"]
    env = {**os.environ, **locale}
    run = [*line, "run", "--name", "träin".encode("latin-1"), "true", b"\xe4"]
    done = subprocess.run(run, env=env, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    fake._register({**fake.bodies("POST")[-1], "command": ["x", "\udce4", "→"]})
    for arguments in (
        ["ps"],
        ["ps", "-o", "json"],
        ["set", b"\xe4", "--limit", "1Gi"],
        ["set", "tr", "--limit", "1Gi"],
    ):
        done = subprocess.run([*line, *arguments], env=env, capture_output=True)
        assert b"Traceback" not in done.stderr
        assert_harmless(done.stdout.decode())
        assert_harmless(done.stderr.decode())


def test_every_command_says_plain_text_by_one_function():
    """click.echo and print are for output.py, and for the command line's own errors."""
    folder = Path(sys.modules["gpushare.cli"].__file__).parent
    users = [path.name for path in folder.glob("*.py") if re.search(r"click\.echo\(|\bprint\(", path.read_text())]
    assert sorted(users) == ["__init__.py", "output.py"]
    assert len(COMMANDS) >= 17


@pytest.mark.parametrize("good", ["", "plain", "naïve 日本語", "a→b"])
def test_what_can_be_read_stays(good):
    assert one_line(good) == printable(good) == good


def test_lines_stay_where_lines_may_be():
    assert printable("a\x07\n\tb\x1b") == "a\\x07\n\tb\\x1b"
    assert one_line("a\n\tb\u202e") == "a\\n\\tb\\u202e"
    assert printable("\x85\u2028\x0c") == "\\x85\\u2028\\x0c"


def test_a_message_has_one_line_whatever_is_named_in_it():
    said = render("no job a\nhint: b", [("fa\nct", "one\ntwo\x1b")], "do\x1b\nit")
    assert said == "gpushare: no job a\\nhint: b\n  fa\\nct  one\n          two\\x1b\nhint: do\\x1b\nit"
