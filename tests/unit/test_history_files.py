"""The files of a node's history: what is read of them, what is left out, and mentions on their way to disk and back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpushare import history
from gpushare.history import EVENTS, JOBS, OLD, History, JobLine, Stop, file_name, told, written
from gpushare.reasons import Mention, Text

GPU = {
    **{"uuid": "GPU-0", "index": 0, "name": "G", "total": 16, "request": 1, "limit": 8, "usage": 0},
    **{"accounted": 0, "overhead": 0, "loan": 0, "credit": 0, "peak": 5, "grantable": 0, "health": "ok"},
}
KILLED = {
    **{"code": "reclaim", "claim": "x", "owner": "day", "owner_user": "bob", "asked": 1, "got": 1, "loan": 3},
    **{"usage": 4, "request": 1, "grace": 5.0, "reason": "it is wanted", "time": 5.0},
}
OUTCOME = {"exit_code": 0, "signal": None, "killed": None, "peak": {}, "refusals": 0, "duration": 1.0}


def job(id: str, **changes: Any) -> dict[str, Any]:
    return {
        **{"id": id, "name": id, "user": "ada", "uid": 1, "command": ["x"], "state": "running", "since": 1.0},
        **{"priority": 0, "lend": True, "grace": None, "on_reclaim": ["kill"], "request_source": None},
        **{"limit_source": None, "gpus": [GPU], "processes": [], "outcome": None},
        **changes,
    }


def record(time: float, text: Any = "x", **changes: Any) -> dict[str, Any]:
    return {"time": time, "event": "e", "gpu": None, "job": None, "name": None, "text": text, "facts": {}, **changes}


def put(directory: Path, name: str, *lines: Any) -> None:
    text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
    (directory / name).write_text(text)


# ---- records ----------------------------------------------------------------------------------------------


def times(found: history.Found) -> list[float]:
    return [one["time"] for one in found.records]


@pytest.fixture
def files(tmp_path):
    put(tmp_path, file_name(1, EVENTS), record(5, job="a1"), record(1, job="a2"))
    put(tmp_path, file_name(2, EVENTS), record(4, job="a1"), record(2))
    put(tmp_path, file_name(None, EVENTS), record(3))
    put(tmp_path, file_name(1, EVENTS) + OLD, record(0.5))
    put(tmp_path, file_name(1, JOBS), {"time": 9, "job": job("a1")})
    put(tmp_path, "1.other", record(7))
    put(tmp_path, "x.events", record(8))
    return History(tmp_path)


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ({}, [0.5, 1, 2, 3, 4, 5]),
        ({"since": 2}, [2, 3, 4, 5]),
        ({"since": 2.001}, [3, 4, 5]),
        ({"job": "a1"}, [4, 5]),
        ({"job": "a"}, []),
        ({"users": {1}}, [0.5, 1, 3, 5]),
        ({"users": {2}}, [2, 3, 4]),
        ({"users": set()}, [3]),
        ({"users": {1}, "job": "a1"}, [5]),
        ({"since": 6}, []),
    ],
)
def test_records_in_the_order_of_time(files, how, found):
    assert times(files.records(**how)) == found and not files.records(**how).cut


def test_a_record_has_its_user(files):
    assert [one["uid"] for one in files.records().records] == [1, 1, 2, None, 2, 1]


@pytest.mark.parametrize(("most", "found", "cut"), [(6, 6, False), (5, 5, True), (1, 1, True), (7, 6, False)])
def test_of_many_records_the_latest(files, most, found, cut):
    answer = files.records(most=most)
    assert times(answer) == [0.5, 1, 2, 3, 4, 5][-found:] and answer.cut is cut


def test_of_long_files_the_end_and_whether_that_leaves_something_out(tmp_path, monkeypatch):
    lines = [json.dumps(record(float(number))) for number in range(10)]
    put(tmp_path, file_name(1, EVENTS), *lines)
    size = len(lines[0]) + 1
    one = History(tmp_path)
    monkeypatch.setattr(history, "READ_AT_MOST", 4 * size - 1)
    assert times(one.records()) == [7, 8, 9] and one.records().cut
    assert one.records(since=7).cut is False, "all since then is there"
    assert one.records(since=6.5).cut is True
    put(tmp_path, file_name(2, EVENTS), record(20.0))
    monkeypatch.setattr(history, "READ_AT_MOST", 8 * size - 2)
    assert times(one.records()) == [7, 8, 9, 20], "each file has its part"
    monkeypatch.setattr(history, "READ_AT_MOST", 10**6)
    assert len(one.records().records) == 11 and not one.records().cut


@pytest.mark.parametrize(
    "line",
    [
        "",
        "no json",
        "[1]",
        '{"time": 5',
        '{"time": x}',
        json.dumps(record(1e18)),
        json.dumps(record(5.0))[:-1] + ', "time": "noon"}',
        json.dumps(record(253_402_300_800.0)),
        json.dumps(record(5.0, event=7)),
        json.dumps(record(5.0, gpu=7)),
        json.dumps(record(5.0, job=7)),
        json.dumps(record(5.0, name=7)),
        json.dumps(record(5.0, text=7)),
        json.dumps(record(5.0, facts=[])),
        json.dumps(record(5.0, text={"mention": ["x"]})),
        json.dumps(record(5.0, text={"words": 7})),
        json.dumps({"event": "e", **record(5.0)}),
    ],
)
def test_what_is_no_record_is_left_out(tmp_path, line):
    put(tmp_path, file_name(1, EVENTS), record(1.0), line, record(9.0))
    assert times(History(tmp_path).records()) == [1.0, 9.0]


@pytest.mark.parametrize("value", [None, "GPU-0"])
def test_a_record_names_a_gpu_a_job_and_its_name_or_none(tmp_path, value):
    put(tmp_path, file_name(1, EVENTS), record(1.0, gpu=value, job=value, name=value))
    assert times(History(tmp_path).records()) == [1.0]


def test_a_directory_that_is_not_there_has_nothing(tmp_path):
    one = History(tmp_path / "none")
    assert one.records() == ([], False) and one.jobs() == [] and one.last_lines() == []


def test_who_asks_again_and_again_keeps_no_file_open(files, monkeypatch):
    opened, closed = [], []
    real_open, real_close = os.open, os.close

    def open_(*arguments, **more):
        opened.append(real_open(*arguments, **more))
        return opened[-1]

    def close(descriptor):
        closed.append(descriptor)
        real_close(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(history.os, "open", open_)
        patch.setattr(history.os, "close", close)
        files.records()
        files.jobs()
    assert len(opened) == 5 and closed == opened


def test_what_is_no_regular_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / file_name(1, EVENTS))
    put(tmp_path, "real", record(1.0))
    (tmp_path / file_name(2, EVENTS)).symlink_to("real")
    assert History(tmp_path).records() == ([], False)


# ---- jobs -------------------------------------------------------------------------------------------------


def test_the_last_line_of_each_job_counts(tmp_path):
    put(tmp_path, file_name(1, JOBS) + OLD, {"time": 1, "job": job("a", name="old")}, {"time": 2, "job": job("b")})
    put(tmp_path, file_name(1, JOBS), {"time": 5, "job": job("a", name="new", outcome=OUTCOME, state="ended")})
    put(tmp_path, file_name(2, JOBS), {"time": 3, "job": job("c")}, {"time": 4, "job": "odd"}, {"time": 4, "job": {}})
    one = History(tmp_path)
    assert [(found["id"], found["name"]) for found in one.jobs()] == [("b", "b"), ("c", "c"), ("a", "new")]
    assert [found["id"] for found in one.jobs({2})] == ["c"]
    assert [line.time for line in one.last_lines()] == [2, 3, 5]


def test_a_job_whose_end_was_not_seen():
    alive = job("a", processes=[{"pid": 1}])
    found = JobLine(1.0, alive, None).ended()
    assert (found["state"], found["processes"], found["id"]) == ("ended", [], "a")
    assert found["outcome"] == {
        **{"exit_code": None, "signal": None, "killed": None, "peak": {"GPU-0": 5}, "refusals": 0},
        **{"duration": 0.0, "ended": None, "seen": False},
    }
    assert JobLine(1.0, alive, Stop(KILLED, False)).ended()["outcome"]["killed"] == KILLED
    over = job("a", outcome=OUTCOME)
    assert JobLine(1.0, over, Stop(KILLED, True)).ended() is over
    assert history.UNSEEN["outcome"]["peak"] == {}, "it is the same for each job"


@pytest.mark.parametrize(
    ("note", "found"),
    [
        (None, None),
        ("x", None),
        ({}, None),
        ({"killed": {"code": "reclaim"}}, None),
        ({"killed": KILLED}, Stop(KILLED, False)),
        ({"killed": KILLED, "last": True}, Stop(KILLED, True)),
        ({"killed": KILLED, "last": 1}, Stop(KILLED, False)),
    ],
)
def test_what_a_living_job_was_told(tmp_path, note, found):
    put(tmp_path, file_name(1, JOBS), {"time": 1, "job": job("a"), "stop": note})
    (line,) = History(tmp_path).last_lines()
    assert line.stop == found


# ---- mentions -----------------------------------------------------------------------------------------------


NAMED = Mention(7, "train", "train (ada)", None, "a job")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (NAMED, "train"),
        (Text(("the job ", NAMED, " waits")), "the job train waits"),
        ({"a": NAMED, "b": [NAMED, 1]}, {"a": "train", "b": ["train", 1]}),
        ({"a": (1, NAMED)}, {"a": [1, "train"]}),
        ("plain", "plain"),
        (None, None),
        (1.5, 1.5),
    ],
)
def test_mentions_come_back_from_the_disk_and_are_told_in_full(value, text):
    back = history._read(json.loads(json.dumps(written(value))))
    assert back == (value if not isinstance(value, dict) or "b" in value else {"a": [1, NAMED]})
    assert told(back) == text


@pytest.mark.parametrize("uid", [None, 0, 1001])
@pytest.mark.parametrize("kind", [JOBS, EVENTS])
def test_whose_a_file_is(uid, kind):
    assert history.whose(file_name(uid, kind)) == uid == history.whose(file_name(uid, kind) + OLD)


@pytest.mark.parametrize("name", ["x.jobs", "1.job", "1.jobs.older", "-1.jobs", "1.events.old.old", "nodes.events"])
def test_other_files_are_nobodys(name):
    with pytest.raises(ValueError, match=name):
        history.whose(name)
