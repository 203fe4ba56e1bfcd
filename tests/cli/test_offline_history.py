"""What commands say of what is over: from the daemon, and from the history while there is none."""

from __future__ import annotations

import datetime
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import click
import pytest

from gpushare import offline_history
from gpushare.cli.moment import moment
from gpushare.errors import UsageError
from gpushare.history import EVENTS, JOBS
from gpushare.paths import SYSTEM_DIR, history_dir

UUID = "GPU-00000000-0000-0000-0000-00000000000{}"
GIB = 2**30
KILLED = {
    **{"code": "reclaim", "claim": "x", "owner": "day", "owner_user": "bob", "asked": GIB, "got": GIB, "loan": 3 * GIB},
    **{"usage": 4 * GIB, "request": GIB, "grace": 5.0, "reason": "it is wanted", "time": 5.0},
}
OUTCOME = {
    **{"exit_code": None, "signal": 9, "killed": KILLED, "peak": {UUID.format(0): 5 * GIB}, "refusals": 0},
    **{"duration": 75.0, "ended": 1000.0, "seen": True},
}
GPU = {
    **{
        "uuid": UUID.format(0),
        "index": 0,
        "name": "G",
        "total": 16 * GIB,
        "request": GIB,
        "limit": 8 * GIB,
        "usage": 0,
    },
    **{"accounted": 0, "overhead": 0, "loan": 0, "credit": 0, "peak": 5 * GIB, "grantable": 0, "health": "ok"},
}


def job(id: str, name: str, outcome: Any = OUTCOME) -> dict[str, Any]:
    return {
        **{"id": id, "name": name, "user": "alice", "uid": 1001, "command": ["python", "x.py"], "state": "ended"},
        **{"since": 925.0, "priority": 0, "lend": True, "grace": None, "on_reclaim": ["kill"], "request_source": None},
        **{"limit_source": None, "gpus": [GPU], "processes": [], "outcome": outcome},
    }


def record(moment: float, text: str, job: str | None = None, name: str | None = None) -> dict[str, Any]:
    return {"time": moment, "event": "e", "gpu": None, "job": job, "name": name, "text": text, "facts": {}}


def write(directory: Path, kind: str, *lines: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"1001.{kind}").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def history(environ) -> Path:
    """No daemon, and what one has left behind."""
    if SYSTEM_DIR.exists() or offline_history.SYSTEM_HISTORY.exists():
        pytest.skip("this machine has a daemon of its own")
    directory = history_dir("sim", environ)
    assert directory is not None
    ended = [job("a1b2000000000001", "night"), job("a1b2000000000002", "night"), job("c3d4000000000003", "other")]
    write(directory, JOBS, *({"time": 1000.0 + n, "job": one} for n, one in enumerate(ended)))
    write(
        directory,
        EVENTS,
        record(10.0, "long ago", "a1b2000000000001", "night"),
        record(2000.0, "two", "a1b2000000000002", "night"),
        record(3000.0, "three", "c3d4000000000003", "other"),
    )
    return directory


def columns(table: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in table.splitlines()]


NOTE = "gpushare: no daemon runs on this node: this is what the last one has written down\n"


def test_ps_of_the_past(gpushare, history):
    code, out, err = gpushare("ps", "-a")
    assert (code, err) == (0, NOTE)
    head, *rows = columns(out)
    assert head[9:13] == ["STATE", "ID", "ENDED", "WHY"]
    assert [row[1] for row in rows] == ["night", "night", "other"]
    assert rows[0][4:9] == ["1m15s", "5.0 GiB", "1.0 GiB", "8.0 GiB", "-"]
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1000.0))
    assert rows[0][9:13] == ["reclaimed", "a1b2000000000001", when, "1.0 GiB owed to day (bob)"]
    assert gpushare("ps", "-a", "--user", "nobody")[1] == ""
    assert len(columns(gpushare("ps", "-a", "--gpu", "0")[1])) == 4
    assert gpushare("ps", "-a", "--gpu", "1")[:2] == (0, "")
    wide = columns(gpushare("ps", "-a", "-o", "wide")[1])
    assert wide[0][9:13] == ["STATE", "ENDED", "WHY", "ID"] and wide[1][12] == "a1b2000000000001"
    found = json.loads(gpushare("ps", "-a", "--json")[1])
    assert found["jobs"][0] == job("a1b2000000000001", "night") and found["reservations"] == []


def test_only_with_a(gpushare, history):
    code, out, err = gpushare("ps")
    assert (code, out) == (3, "") and "no daemon runs on this node" in err and "hint: `gpushare run` starts one" in err


@pytest.mark.parametrize(
    ("change", "state", "why"),
    [
        ({"killed": {**KILLED, "code": "breach"}}, "over limit", "used 4.0 GiB"),
        ({"killed": {**KILLED, "code": "suspend_stuck"}}, "stuck", "could not be brought back"),
        ({"killed": {**KILLED, "owner": None, "owner_user": None}}, "reclaimed", "1.0 GiB owed to its owner"),
        ({"killed": None, "signal": None, "exit_code": 3}, "exit 3", "-"),
        ({"killed": None, "ended": None}, "SIGKILL", "-"),
        ({"seen": False, "killed": None}, "not seen", "-"),
    ],
)
def test_how_a_job_ended(gpushare, history, change, state, why):
    write(history, JOBS, {"time": 1.0, "job": job("a1", "night", OUTCOME | change)})
    row = columns(gpushare("ps", "-a")[1])[1]
    assert (row[9], row[12]) == (state, why)
    assert (row[11] == "-") == (change.get("ended", 1) is None)
    assert (row[4] == "-") == (state == "not seen")
    told = gpushare("explain", "night")[1]
    assert (" owed to " in told) == (state == "reclaimed")
    assert ("its end was not seen" in told) == (state == "not seen")
    assert (", at 1970-01-01 " in told) == (change.get("ended", 1) is not None and state != "not seen")


def test_explain_of_the_past(gpushare, history):
    code, out, err = gpushare("explain", "night")
    assert (code, err) == (0, NOTE)
    assert "job night (a1b2000000000002) of alice: ended" in out, "the latest of that name"
    assert "stopped after 1m15s to return borrowed memory: 1.0 GiB owed to day (bob), 1.0 GiB returned" in out
    assert "two" in out and "three" not in out and "long ago" not in out
    assert "other (c3d4000000000003)" in gpushare("explain", "C3d4")[1]
    assert "(a1b2000000000001)" in gpushare("explain", "a1b2000000000001")[1]
    code, _, err = gpushare("explain", "a1b2")
    assert code == 2 and "'a1b2' fits 2 jobs" in err and "a1b2000000000001  night" in err
    code, _, err = gpushare("explain", "nigth")
    assert code == 5 and "no job 'nigth' in the history" in err and "did you mean night?" in err
    assert gpushare("explain", "zzz")[0] == 5
    assert "over_limit" in gpushare("explain", "over_limit")[1], "a code is one without a daemon, too"


def test_a_name_is_looked_for_as_a_daemon_keeps_it(gpushare, environ, history):
    write(history_dir("sim", environ), JOBS, {"time": 1.0, "job": job("e5f6000000000004", "red?[31m")})
    assert "red?[31m (e5f6000000000004)" in gpushare("explain", "red\x1b[31m")[1]


def test_events_of_the_past(gpushare, history):
    code, out, err = gpushare("events")
    assert (code, err) == (0, NOTE)
    assert [line.split()[-1] for line in out.splitlines()] == ["ago", "two", "three"]

    def texts(*words: str) -> list[str]:
        return [one["text"] for one in json.loads(gpushare("events", "-o", "json", *words)[1])["records"]]

    def at(moment: float) -> str:
        return datetime.datetime.fromtimestamp(moment).isoformat()

    assert texts("--since", at(2500)) == ["three"]
    assert texts("--since", at(1500)) == ["two", "three"]
    assert texts("--since", at(1500), "-n", "1") == ["three"]
    assert texts("--since", at(10), "--job", "night") == ["long ago", "two"]
    assert texts("-n", "0") == []
    assert texts("--job", "other") == ["three"]
    assert json.loads(gpushare("events", "--json")[1])["schema"] == "gpushare.events/1"
    lines = gpushare("events", "-o", "jsonl")[1].splitlines()
    assert json.loads(lines[0]) == {
        "schema": "gpushare.event/1",
        **record(10.0, "long ago", "a1b2000000000001", "night"),
    }
    assert gpushare("events", "-f")[0] == 3, "nothing can be followed"


def test_all_since_a_time_and_not_the_last_twenty(gpushare, fake):
    fake.records = [record(float(moment), f"r{moment}") for moment in range(100, 150)]
    assert len(gpushare("events", "--since", "1970-01-01T00:00:00+00:00")[1].splitlines()) == 50
    assert len(gpushare("events")[1].splitlines()) == 20
    late = datetime.datetime.fromtimestamp(140).isoformat()
    assert len(gpushare("events", "--since", late)[1].splitlines()) == 10
    assert len(gpushare("events", "--since", late, "-n", "3")[1].splitlines()) == 3


def test_a_followed_stream_is_no_document(gpushare, fake):
    code, _, err = gpushare("events", "-f", "-o", "json")
    assert code == 2 and "use -o jsonl" in err


NOON = datetime.datetime(2026, 11, 22, 12, 0, 0).timestamp()


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        *(("8h", 8 * 3600), ("2d", 2 * 86400), ("90s", 90), ("11:00", 3600), ("12:00", 0), ("11:59:30", 30)),
        *(("13:00", 23 * 3600), ("2026-11-22", 12 * 3600), ("2026-11-21 22:30", 13.5 * 3600)),
    ],
)
def test_a_moment(text, ago):
    assert NOON - moment(text, NOON, "--since") == ago


def test_nothing_is_before_the_beginning_of_time():
    assert moment("99999d", NOON, "--since") == 0.0


@pytest.mark.parametrize("text", ["yesterday", "8 o'clock", "", "2026-13-01", "25:00"])
def test_no_moment(text):
    with pytest.raises(UsageError) as caught:
        moment(text, NOON, "--since")
    assert caught.value.message == f"--since: {text!r} is not a time"


def test_a_history_that_is_closed_is_named(gpushare, environ, tmp_path, monkeypatch):
    """As another user than root finds it when the node's daemon is not running."""
    closed = tmp_path / "closed"
    closed.mkdir()
    monkeypatch.setattr(offline_history, "SYSTEM_HISTORY", closed)
    if SYSTEM_DIR.exists():
        pytest.skip("this machine has a daemon of its own")
    listed = Path.iterdir

    def shut(path: Path) -> Any:
        if path == closed:
            raise PermissionError
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", shut)
    code, out, err = gpushare("ps", "-a")
    assert (code, out) == (3, "")
    assert f"what the node's daemon has written down is in {closed}, for root only" in err
    own = history_dir("sim", environ)
    assert own is not None
    write(own, JOBS, {"time": 1.0, "job": job("a1", "night")})
    code, out, err = gpushare("ps", "-a")
    assert code == 0 and "night" in out and err.startswith(NOTE) and str(closed) in err


def test_the_history_of_a_daemon_that_is_named(gpushare, environ, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUSHARE_SOCKET", str(tmp_path / "d" / "api.sock"))
    write(tmp_path / "d" / "history", JOBS, {"time": 1.0, "job": job("a1", "night")})
    code, out, err = gpushare("ps", "-a")
    assert code == 0 and "night" in out and err == NOTE


def test_where_a_history_lies():
    host = os.uname().nodename
    assert history_dir("sim", {"XDG_STATE_HOME": "/s"}) == Path(f"/s/gpushare/history-sim/{host}")
    assert history_dir("nvidia", {"HOME": "/h"}) == Path(f"/h/.local/state/gpushare/history/{host}")
    assert history_dir("nvidia", {"XDG_STATE_HOME": "s", "HOME": "/h"}) == Path(
        f"/h/.local/state/gpushare/history/{host}"
    )
    assert history_dir("nvidia", {}) is None
    assert history_dir("nvidia", {"HOME": "h"}) is None


KEPT = {
    **{"id": "e5f6000000000001", "name": "mine", "user": "alice", "uid": 1001, "since": 0.0, "until": None, "jobs": []},
    "gpus": [{"uuid": UUID.format(0), "index": 0, "amount": 4 * GIB, "remainder": 4 * GIB}],
}


def test_reservations_are_in_ps_and_status(gpushare, fake):
    fake.reserved = [KEPT | {"since": time.time() - 75}]
    row = columns(gpushare("ps")[1])[1]
    assert row[:10] == ["0", "mine", "alice", "-", "1m15s", "-", "4.0 GiB", "-", "-", "reserved"]
    assert columns(gpushare("ps", "-a")[1])[1][9:13] == ["reserved", "e5f6000000000001", "-", "-"]
    assert columns(gpushare("ps", "-a", "-o", "wide")[1])[1][9:13] == ["reserved", "-", "-", "e5f6000000000001"]
    assert columns(gpushare("ps", "-o", "wide")[1])[1][9:11] == ["reserved", "e5f6000000000001"]
    assert json.loads(gpushare("ps", "--json")[1])["reservations"] == fake.reserved
    assert "mine" in gpushare("ps", "--gpu", "0", "--user", "alice")[1]
    assert "mine" not in gpushare("ps", "--gpu", "1")[1]
    assert "mine" not in gpushare("ps", "--user", "bob")[1]
    assert "reserved: 4.0 GiB on GPU 0 as mine (alice), until it is released\n" in gpushare("status")[1]
    fake.reserved = [KEPT | {"until": 1000.0}]
    assert ", until 1970-01-01 " in gpushare("status")[1]
    assert json.loads(gpushare("status", "--json")[1])["reservations"] == fake.reserved


READ = ["status", "ps", "explain", "events", "doctor", "reserve", "daemon", "kernel list", "cluster explain"]


@pytest.mark.parametrize("words", READ)
def test_what_reads_takes_json(words):
    from gpushare.cli import cli

    command: Any = cli
    for word in words.split():
        context = click.Context(command)
        command = command.get_command(context, word)
    (output,) = [one for one in command.params if one.name == "output" and "-o" in one.opts]
    assert "json" in output.type.choices
