"""Why did my run die last night? Real programs, a daemon that ends, and no daemon, or a later one, to be asked."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from integration.node import GIB, Node, Puppet, gone, wait_for


def reclaimed(node: Node) -> dict[str, Any]:
    """A borrower is stopped for an owner; both are over. The borrower as the daemon showed it last."""
    night = node.puppet("night", "--request", "none", "--limit", "14Gi")
    night.alloc(13 * GIB)
    day = node.puppet("day", "--request", "8Gi")
    day.alloc(6 * GIB)
    assert night.wait() == 128 + signal.SIGKILL
    assert day.end() == 0
    wait_for(lambda: node.job("night").get("state") == "ended", "the end of the job")
    (job,) = [one for one in node.api("GET", "/v1/jobs?ended=1")["jobs"] if one["name"] == "night"]
    return dict(job)


def end_daemon(node: Node, how: signal.Signals) -> None:
    pid = node.daemon_pid()
    wait_for(lambda: written(node, "jobs").count('"outcome": {') == 2, "the history")
    os.kill(pid, how)
    wait_for(lambda: gone(pid), "the end of the daemon")


def written(node: Node, kind: str) -> str:
    (host,) = (node.directory / "state" / "gpushare" / "history-sim").iterdir()
    assert host.name == os.uname().nodename
    return (host / f"{os.getuid()}.{kind}").read_text()


def check(node: Node, shown: dict[str, Any]) -> None:
    """What commands say of it is what they said while its daemon ran."""
    told = node.gpushare("explain", "night")
    assert told.returncode == 0, told.stderr
    assert f"job night ({shown['id']}) of {shown['user']}: ended" in told.stdout
    assert "to return borrowed memory" in told.stdout and "owed to day" in told.stdout
    assert "used 13.3 GiB at most" in told.stdout and "limit 14.0 GiB" in told.stdout
    for said in ("admitted on GPU 0", "asked with SIGTERM to give back: day wants 6.0 GiB", "the job is over"):
        assert said in told.stdout
    story = json.loads(node.gpushare("explain", shown["id"][:6], "-o", "json").stdout)
    assert story["job"] == shown
    assert {"admitted", "ended"} <= {one["event"] for one in story["story"]}
    assert {one["job"] for one in story["story"]} == {shown["id"]}
    (found,) = [one for one in json.loads(node.gpushare("ps", "-a", "--json").stdout)["jobs"] if one["name"] == "night"]
    assert found == shown
    table = node.gpushare("ps", "-a").stdout.splitlines()
    (row,) = [line for line in table if " night " in line]
    for cell in (shown["id"], "reclaimed", "6.0 GiB owed to day", "13.3 GiB", "14.0 GiB"):
        assert cell in row
    recent = json.loads(node.gpushare("events", "--since", "1h", "-o", "json").stdout)["records"]
    assert [one["event"] for one in recent if one["job"] == shown["id"]] == [one["event"] for one in story["story"]]
    assert json.loads(node.gpushare("events", "--since", "2000-01-01", "-n", "1", "-o", "json").stdout)["records"]
    tomorrow = node.gpushare("events", "--since", "2200-01-01", "-o", "json")
    assert json.loads(tomorrow.stdout)["records"] == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_why_a_run_died_is_known_without_its_daemon_and_to_the_next(node: Node, how: signal.Signals) -> None:
    node.start_daemon_of_user()
    shown = reclaimed(node)
    end_daemon(node, how)
    assert "no daemon runs on this node: this is what" in node.gpushare("ps", "-a").stderr
    check(node, shown)
    # Another day: a daemon starts with the next run, and knows what was before it.
    other = node.puppet("other", "--request", "1Gi")
    assert "no daemon runs" not in node.gpushare("ps", "-a").stderr
    check(node, shown)
    assert other.end() == 0


def test_a_report_of_a_job_after_its_daemon_has_ended(node: Node, tmp_path: Path) -> None:
    node.start_daemon_of_user()
    night = node.puppet("night", "--limit", "14Gi")
    night.alloc(13 * GIB)
    id, since = (node.job("night")[key] for key in ("id", "since"))
    wait_for(lambda: time.time() > since + 3, "some values of the job")
    assert night.end() == 0
    pid = node.daemon_pid()
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: gone(pid), "the end of the daemon")
    file = tmp_path / "night.csv"
    told = node.gpushare("report", "night", "--step", "1s", "-o", file)
    assert (told.returncode, told.stderr) == (0, "")
    assert f"report of job night ({id})" in told.stdout
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert {row["job"] for row in rows} == {id}
    assert max(int(row["usage_highest"]) for row in rows) > 13 * GIB
    assert node.api("GET", "/v1/version"), "it asks a daemon, which ends by itself"


def test_without_a_history_it_is_said_that_no_daemon_runs(node: Node) -> None:
    for words in (["ps", "-a"], ["explain", "night"], ["events", "--since", "1h"], ["report", "-o", "x.csv"]):
        told = node.gpushare(*words)
        assert (told.returncode, told.stdout) == (3, "")
        assert "no daemon runs on this node" in told.stderr
    assert node.gpushare("ps").returncode == 3


def test_a_job_whose_end_nobody_saw(node: Node) -> None:
    """The daemon and then the program are killed, as with a node that loses its power."""
    node.start_daemon_of_user()
    night = node.run("--name", "night", "--exec", "sleep", "1000")
    wait_for(lambda: node.job("night").get("state") == "running", "the job")
    wait_for(lambda: '"name": "night"' in written(node, "jobs"), "the history")
    node.kill_daemon()
    night.kill()
    night.wait()
    told = node.gpushare("explain", "night")
    assert "its end was not seen" in told.stdout
    node.start_daemon_of_user()
    assert "its end was not seen" in node.gpushare("explain", "night").stdout
    (row,) = [line for line in node.gpushare("ps", "-a").stdout.splitlines() if " night " in line]
    assert "not seen" in row


def told_to_end(node: Node) -> tuple[Puppet, Puppet]:
    """A borrower that has its grace, and does nothing with it; and who wants its memory."""
    node.start_daemon_of_user("[reclaim]\ngrace = '20s'\n")
    night = node.puppet("night", "--request", "none", "--limit", "14Gi")
    night.alloc(13 * GIB)
    night.do("term ignore")
    day = node.puppet("day", "--request", "8Gi")
    day.send(f"alloc {6 * GIB}")
    wait_for(lambda: '"stop": {' in written(node, "jobs"), "the history")
    return night, day


def test_a_job_that_its_daemon_stopped_and_did_not_see_end(node: Node) -> None:
    """It has its grace when the daemon is killed; nobody starts another one."""
    night, day = told_to_end(node)
    everybody = [node.daemon_pid(), *(pid for one in (day, night) for pid in (one.wrapper.pid, one.pid()))]
    for pid in everybody:
        os.kill(pid, signal.SIGKILL)
    told = node.gpushare("explain", "night").stdout
    assert "stopped to return borrowed memory: 6.0 GiB owed to day" in told and "its end was not seen" in told
    node.start_daemon_of_user()
    assert node.gpushare("explain", "night").stdout == told
    (row,) = [line for line in node.gpushare("ps", "-a").stdout.splitlines() if " night " in line]
    assert "not seen" in row and "6.0 GiB owed to day" in row


def test_a_program_that_dies_of_an_earlier_daemons_signal_is_told_why(node: Node) -> None:
    """It takes its time to end. By then nobody claims memory any more."""
    night, day = told_to_end(node)
    first = node.daemon_pid()
    for pid in (day.wrapper.pid, day.pid(), first):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: node.api("GET", "/v1/version").get("pid", first) != first, "the next daemon to answer")
    wait_for(lambda: node.job("night").get("state") == "borrowing", "the next daemon to know the job")
    night.do("term default")
    os.kill(night.pid(), signal.SIGTERM)
    assert night.wait() == 128 + signal.SIGKILL
    said = night.errors()
    assert "was stopped to return borrowed memory" in said and "6.0 GiB to day" in said.split("was stopped")[1], said


def test_a_home_that_is_full_or_closed_costs_the_history_only(node: Node) -> None:
    (node.directory / "state").write_text("this is no directory")
    node.start_daemon_of_user()
    program = node.puppet("a", "--request", "1Gi")
    program.alloc(GIB // 2)
    assert program.end() == 0
    assert "exit 0" in node.gpushare("ps", "-a").stdout
    wait_for(lambda: "the history cannot be written" in node.log(), "the log")
    assert node.log().count("the history cannot be written") == 1


def test_the_log_names_job_and_user(node: Node) -> None:
    """Who reads it later should not have to look an id up."""
    node.start_daemon_of_user()
    reclaimed(node)
    lines = [line for line in node.log().splitlines() if " job=" in line]
    assert lines
    user = node.api("GET", "/v1/jobs?ended=1")["jobs"][0]["user"]
    for line in lines:
        assert f"user={user}" in line and ("name=night" in line or "name=day" in line), line
    node.gpushare("reserve", "1Gi", "--name", "kept")
    assert any(f"user={user}" in line for line in node.log().splitlines() if "event=reserved" in line)


def test_a_stream_begins_with_the_past_and_says_nothing_twice(node: Node) -> None:
    node.start_daemon_of_user()
    node.gpushare("reserve", "1Gi", "--name", "before")
    stream = node.spawn([sys.executable, "-m", "gpushare", "events", "-f", "--since", "1h", "-o", "jsonl"])
    assert stream.stdout is not None
    texts = []
    while not texts or "before" not in texts[-1]:
        texts.append(json.loads(stream.stdout.readline())["text"])
    node.gpushare("reserve", "1Gi", "--name", "later")
    texts.append(json.loads(stream.stdout.readline())["text"])
    assert "later" in texts[-1]
    assert sum("before" in text for text in texts) == 1


def test_files_are_for_their_user_alone(node: Node) -> None:
    node.start_daemon_of_user()
    assert node.puppet("a").end() == 0
    wait_for(lambda: "ended" in written(node, "events"), "the history")
    (host,) = (node.directory / "state" / "gpushare" / "history-sim").iterdir()
    assert host.stat().st_mode & 0o777 == 0o700
    for path in host.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, Path(path)
