"""What a shell is told when it asks what may stand on the command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete
from fake_api import UUID, make_job

from gpushare.cli import cli, complete
from gpushare.cli import completion as script
from gpushare.env import BY_NAME
from gpushare.message_catalog import meanings

HOOKS = ["--relief-cmd", "--relief-url", "--resume-cmd", "--resume-url"]
OPTIONS_WITH_RE = ["--request", *HOOKS, "--reservation", "--report", "--require-daemon"]


def offered(line: str) -> list[str]:
    """The completions of the last word, which may be empty; a file is what the shell completes itself."""
    *before, last = line.split(" ")
    found = BashComplete(cli, {}, "gpushare", "_GPUSHARE_COMPLETE").get_completions(before[1:], last)
    return ["<file>" if item.type == "file" else item.value for item in found]


@pytest.fixture
def busy(fake):
    base = {"gpus": 1, "priority": 0, "lend": True, "grace": None, "request_source": "", "limit_source": ""}
    base |= {"command": ["x"], "request": "1Gi", "limit": "1Gi"}
    names = {"a1a1a1a1a1a1a1a1": "train", "b2b2b2b2b2b2b2b2": "twin", "c3c3c3c3c3c3c3c3": "twin"}
    fake.jobs = {identity: make_job(identity, {**base, "name": name}) for identity, name in names.items()}
    return fake


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gpushare expl", ["explain"]),
        ("gpushare run --re", OPTIONS_WITH_RE),
        ("gpushare set --limit 4Gi ", ["train", "b2b2b2b2b2b2b2b2", "c3c3c3c3c3c3c3c3"]),
        ("gpushare set tr", ["train"]),
        ("gpushare explain tr", ["train"]),
        ("gpushare explain not_f", ["not_free", "not_found"]),
        ("gpushare events --job b", ["b2b2b2b2b2b2b2b2"]),
        ("gpushare docs sec", ["security"]),
        ("gpushare daemon st", ["status", "stop"]),
        ("gpushare ps --gpu ", ["0"]),
        ("gpushare run --gpu GPU-", [UUID.format(0)]),
        ("gpushare run --mode ", list(BY_NAME["GPUSHARE_MODE"].choices)),
        ("gpushare run --report ", ["<file>"]),
        ("gpushare run --limit 4Gi ", ["<file>"]),
        ("gpushare run ./tr", ["<file>"]),
        ("gpushare run python tr", ["<file>"]),
        ("gpushare run python --mode ", ["<file>"]),
        ("gpushare run python --re", []),
    ],
)
def test_words(busy, line, words):
    assert offered(line) == words


def test_every_code_can_be_completed(busy):
    for code in meanings():
        assert code in offered(f"gpushare explain {code[:-1]}")


def test_a_line_that_is_being_typed_is_not_warned_of(busy, capfd):
    assert offered("gpushare run true --limit 1Gi ") == ["<file>"]
    assert capfd.readouterr() == ("", "")


def test_programs_of_the_path(busy, monkeypatch, tmp_path):
    (tmp_path / "my-trainer").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:/nowhere:")
    assert offered("gpushare run my-") == ["my-trainer"]
    assert offered("gpushare run none-such") == ["<file>"]


class Service:
    """What the service of the queue has."""

    timeout = 10.0

    def jobs(self, **asked: str) -> list[dict]:
        assert set(asked) == {"user"} and self.timeout == 1.0, "the shell waits"
        rows = [("7", "train", "running", None), ("8", "", "held", None), ("12_0", "sweep", "pending", "12")]
        rows += [("12_1", "sweep", "held", "12"), ("71", "", "pending", None)]
        return [dict(zip(("id", "name", "state", "array"), row, strict=True)) for row in rows]

    def queues(self) -> dict:
        return {"queues": [{"queue": {"name": name}} for name in ("vision", "speech")]}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gpushare cancel ", ["7", "8", "12", "71"]),
        ("gpushare cancel 7", ["7", "71"]),
        ("gpushare cancel 8 12_", ["12_0", "12_1"]),
        ("gpushare wait 1", ["12"]),
        ("gpushare hold tr", ["train"]),
        ("gpushare attach s", ["sweep"]),
        ("gpushare logs -f 71", ["71"]),
        ("gpushare release ", ["8", "12"]),
        ("gpushare submit --after 7", ["7", "71"]),
        ("gpushare submit --queue v", ["vision"]),
        ("gpushare queue -q ", ["vision", "speech"]),
    ],
)
def test_jobs_of_the_queue(environ, monkeypatch, line, words):
    monkeypatch.setattr("gpushare.cluster.client.find", Service)
    monkeypatch.setattr("gpushare.locate.SYSTEM_DIR", Path("/nowhere"))
    assert offered(line) == words


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("gpushare cancel ", {"7": "train", "8": "held", "12": "sweep", "71": "pending"}),
        ("gpushare cancel s", {"sweep": "pending"}),
        ("gpushare queue -q ", {"vision": None, "speech": None}),
    ],
)
def test_beside_a_word_is_what_it_stands_for(environ, monkeypatch, line, told):
    """None: a shell shows no empty column."""
    monkeypatch.setattr("gpushare.cluster.client.find", Service)
    *before, last = line.split(" ")
    found = BashComplete(cli, {}, "gpushare", "_GPUSHARE_COMPLETE").get_completions(before[1:], last)
    assert {item.value: item.help for item in found} == told


def test_without_a_service_nothing_is_offered_and_nothing_said(environ, monkeypatch, capfd):
    monkeypatch.setattr("gpushare.cluster.client.find", lambda: None)
    assert offered("gpushare cancel ") == offered("gpushare queue -q ") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("line", ["gpushare set ", "gpushare run --gpu ", "gpushare release ", "gpushare ps --gpu "])
def test_without_a_daemon_nothing_is_offered_and_nothing_said(environ, monkeypatch, capfd, line):
    monkeypatch.setattr("gpushare.locate.SYSTEM_DIR", Path("/nowhere"))
    assert offered(line) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_takes_the_script(environ, shell, tmp_path):
    """And, for bash, asks through it."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    gpushare = tmp_path / "gpushare"
    gpushare.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpushare "$@"\n')
    gpushare.chmod(0o755)
    path = tmp_path / "script"
    path.write_text(subprocess.run([gpushare, "completion", shell], capture_output=True, text=True, check=True).stdout)
    assert subprocess.run([shell, "-n", path], capture_output=True).stderr == b""
    if shell != "bash":
        return
    ask = 'COMP_WORDS=(gpushare run --re) COMP_CWORD=2; _gpushare_completion gpushare; printf "%s\\n" "${COMPREPLY[@]}"'
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", f". {path}; {ask}"], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == OPTIONS_WITH_RE, done.stderr


def test_the_script_is_for_the_shells_that_it_says():
    assert script.command.params[0].type.choices == ("bash", "zsh", "fish")


def test_a_job_without_a_name_is_offered_by_its_id(busy):
    busy.jobs["a1a1a1a1a1a1a1a1"]["name"] = "-"
    assert offered("gpushare set ") == ["a1a1a1a1a1a1a1a1", "b2b2b2b2b2b2b2b2", "c3c3c3c3c3c3c3c3"]


def test_reservations_are_offered_with_their_users(environ, monkeypatch):
    monkeypatch.setattr(complete, "_ask", lambda _question: [{"name": "night", "user": "ada"}])
    monkeypatch.setattr(complete, "_ask_service", lambda _question: None)
    for line in ("gpushare release ", "gpushare run --reservation n"):
        assert offered(line) == ["night"]
    assert [one.help for one in complete.reservations(None, None, "")] == ["ada"]  # type: ignore[arg-type]
