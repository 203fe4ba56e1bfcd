"""The documentation in the terminal: `gpushare docs`, and `gpushare explain` of codes and of messages."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.message_catalog import meanings

DOCS = Path(__file__).resolve().parents[2] / "docs"
MESSAGE = """epoch 1
gpushare: cannot allocate 1.0 GiB on GPU 0: over this job's limit
  limit   2.0 GiB   from --request
  in use  1.3 GiB   python[1585] 1.3 GiB
hint: raise it while it runs: `gpushare set b --limit 2348Mi`
RuntimeError: CUDA out of memory
"""


def explain(*arguments: str, text: str | bytes) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "gpushare", "explain", "-", *arguments]
    given = text.encode() if isinstance(text, str) else text
    done = subprocess.run(command, input=given, capture_output=True)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def nowhere(environ, monkeypatch, tmp_path):
    """No daemon at all."""
    monkeypatch.setattr("gpushare.locate.SYSTEM_DIR", tmp_path / "nowhere")


# ---- docs ------------------------------------------------------------------------------------------


def test_topics_are_listed_with_what_they_are_about(gpushare):
    code, out, _ = gpushare("docs")
    assert code == 0
    rows = dict(line.split(maxsplit=1) for line in out.splitlines()[1:])
    assert set(rows) == {path.stem for path in DOCS.glob("*.md")} >= {"overview", "reasons", "security", "deploy"}
    assert rows["security"] == "What gpushare protects from whom"


@pytest.mark.parametrize("topic", [path.stem for path in DOCS.glob("*.md")])
def test_piped_a_topic_is_its_file(gpushare, topic):
    assert gpushare("docs", topic) == (0, (DOCS / f"{topic}.md").read_text(), "")


def test_the_beginning_of_a_topic_is_enough_if_it_is_no_others(gpushare):
    assert gpushare("docs", "sec")[1].startswith("# What gpushare protects")
    code, _, err = gpushare("docs", "re")
    assert code == 2 and "topics: api, changes," in err and "reasons" in err


@pytest.mark.parametrize(("columns", "longest"), [(60, 60), (300, 100)])
def test_on_a_terminal_it_is_paged_and_fits_and_stays_readable(environ, monkeypatch, tmp_path, columns, longest):
    monkeypatch.setenv("PAGER", f"tee {tmp_path}/paged")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "gpushare", "docs", "restart"])
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    paged = (tmp_path / "paged").read_text()
    assert "## " not in paged and "The daemon is killed" in paged
    assert max(map(len, paged.splitlines())) == longest


def test_a_terminal_is_told_what_to_do_and_a_pipe_is_not(environ):
    assert explain(text=MESSAGE)[2] == ""
    controller, terminal = pty.openpty()
    try:
        command = [sys.executable, "-m", "gpushare", "explain", "-"]
        with subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stderr.readline() == b"paste the messages, then Ctrl-D\n"
            os.write(controller, MESSAGE.encode() + b"\x04")
            out, err = process.communicate(timeout=60)
        assert process.returncode == 0 and b"over this job's limit" in out and err == b""
    finally:
        os.close(controller)
        os.close(terminal)


# ---- explain ---------------------------------------------------------------------------------------


def test_a_message_is_explained_with_its_numbers(nowhere):
    code, out, err = explain(text=MESSAGE)
    assert (code, err) == (0, "")
    head, limit, use, empty, *rest = out.splitlines()
    assert head == "over_limit: cannot allocate 1.0 GiB on GPU 0: over this job's limit"
    assert (limit, empty) == ("  limit   2.0 GiB   from --request", "")
    assert use == "  in use  1.3 GiB   python[1585] 1.3 GiB"
    assert any(line.startswith("What to do: raise the limit") for line in rest)
    assert rest[-1] == "hint: raise it while it runs: `gpushare set b --limit 2348Mi`"
    assert "out_of_memory" not in out


def test_messages_as_json(nowhere):
    code, out, _ = explain("-o", "json", text=MESSAGE + "gpushare: no daemon runs on this node\n" + MESSAGE)
    found = json.loads(out)
    assert (code, found["schema"]) == (0, "gpushare.messages/1")
    first, second = found["messages"]
    assert (first["code"], first["count"], first["facts"][0]) == (
        "over_limit",
        2,
        ["limit", "2.0 GiB   from --request"],
    )
    assert (second["code"], second["facts"], second["hint"]) == ("no_daemon", [], None)
    assert first["remedy"] == meanings()["over_limit"].remedy


RECLAIM = """gpushare: borrowed memory of GPU 0 is wanted back by its owner
  owed  2.0 GiB to serve
gpushare: killed: its grace of 4 s is over, and its loan of 2.0 GiB is not back
gpushare: job train was stopped to return borrowed memory (exit 137)
"""


@pytest.mark.parametrize(("times", "says"), [(1, ""), (3, " (3 times; the last has these numbers)")])
def test_one_reclaim_is_counted_once_though_it_has_several_messages(nowhere, times, says):
    out = explain(text=RECLAIM * times)[1]
    assert out.splitlines()[0] == "reclaim: job train was stopped to return borrowed memory (exit 137)" + says


@pytest.mark.parametrize("text", ["", "all is well\n", b"\xff\xfe\x00" * 1000])
def test_nothing_to_explain_is_a_failure(nowhere, text):
    code, out, err = explain(text=text)
    assert (code, out) == (1, "") and err.startswith("gpushare: there is no message of gpushare in that")


def test_a_code_is_explained_without_a_daemon(gpushare, nowhere):
    code, out, err = gpushare("explain", "not_free")
    assert (code, err) == (0, "")
    assert out.startswith("not_free: messages with these words\n  …: it is above this job's request, and only … free\n")
    assert "What to do: raise `--request`" in out
    found = json.loads(gpushare("explain", "not_free", "-o", "json")[1])
    assert (found["schema"], found["code"]) == ("gpushare.meaning/1", "not_free")


def test_a_job_comes_before_a_code(gpushare, fake):
    assert gpushare("explain", "policy")[1].startswith("policy: messages with these words\n")
    body = {"gpus": 1, "priority": 0, "lend": True, "grace": None, "request_source": "", "limit_source": ""}
    body |= {"name": "policy", "command": ["x"], "request": "1Gi", "limit": "1Gi"}
    fake.handle("POST", "/v1/jobs", body)
    assert gpushare("explain", "policy")[1].startswith("job policy (")


def test_what_is_neither_is_still_an_unknown_job(gpushare, fake, nowhere):
    code, _, err = gpushare("explain", "nothing-like-that")
    assert code == 5 and "no job nothing-like-that" in err
