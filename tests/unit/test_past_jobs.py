"""What earlier daemons have written down, asked of several directories while no daemon runs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare import offline_history
from gpushare.config import load_settings
from gpushare.errors import DaemonUnreachable, NoSuchJob, UsageError
from gpushare.history import EVENTS, JOBS
from gpushare.offline_history import OfflineHistory
from gpushare.paths import SYSTEM_HISTORY, history_dir


def job(id: str, name: str) -> dict[str, Any]:
    return {
        **{"id": id, "name": name, "user": "ada", "uid": 1, "command": ["x"], "state": "ended", "since": 1.0},
        **{"priority": 0, "lend": True, "grace": None, "on_reclaim": ["kill"], "request_source": None},
        **{"limit_source": None, "gpus": [], "processes": []},
        "outcome": {"exit_code": 0, "signal": None, "killed": None, "peak": {}, "refusals": 0, "duration": 1.0},
    }


def record(time: float, job: str | None = None) -> dict[str, Any]:
    return {"time": time, "event": "e", "gpu": None, "job": job, "name": None, "text": f"at {time:g}", "facts": {}}


def written(directory: Path, *, jobs=(), records=()) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    lines = {JOBS: [{"time": float(n), "job": one} for n, one in enumerate(jobs)], EVENTS: list(records)}
    for kind, some in lines.items():
        if some:
            (directory / f"1.{kind}").write_text("".join(json.dumps(line) + "\n" for line in some))
    return directory


NIGHT, AGAIN, DAY = job("a1b20001", "night"), job("a1b20002", "night"), job("C3D40003".lower(), "day")


@pytest.fixture
def past(tmp_path):
    return OfflineHistory(
        [
            written(tmp_path / "system", jobs=[NIGHT, AGAIN], records=[record(3.0, "a1b20001"), record(1.0)]),
            tmp_path / "none",
            written(tmp_path / "own", jobs=[DAY], records=[record(2.0, "a1b20001"), record(4.0)]),
        ]
    )


def test_records_of_all_directories_are_in_the_order_of_time(past):
    assert [one["time"] for one in past.records()] == [1.0, 2.0, 3.0, 4.0]
    assert [one["time"] for one in past.records(2.5)] == [3.0, 4.0]
    assert not [one for one in past.records() if "uid" in one], "it is not in the API's view"


def test_its_jobs_have_all_ended(past):
    assert [one["id"] for one in past.jobs()] == ["a1b20001", "a1b20002", "c3d40003"]
    assert past.jobs(ended=False) == []


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("a1b20001", "a1b20001"),
        ("night", "a1b20002"),
        ("day", "c3d40003"),
        ("c3d4", "c3d40003"),
        ("C3D4", "c3d40003"),
        ("a1b20002", "a1b20002"),
    ],
)
def test_a_job_is_found_by_its_id_its_name_or_the_beginning_of_its_id(past, name, id):
    assert past.find_job(name)["id"] == id


@pytest.mark.parametrize(
    ("name", "hint"),
    [("nigth", "did you mean night?"), ("c3d", "see `gpushare ps -a`"), ("xyz", "see `gpushare ps -a`")],
)
def test_a_job_that_is_not_there(past, name, hint):
    with pytest.raises(NoSuchJob) as caught:
        past.find_job(name)
    assert (caught.value.message, caught.value.hint) == (f"no job {name!r} in the history", hint)


def test_a_beginning_that_fits_several_jobs(past):
    with pytest.raises(UsageError) as caught:
        past.find_job("a1b2")
    assert caught.value.message == "'a1b2' fits 2 jobs"
    assert list(caught.value.facts) == [("a1b20001", "night"), ("a1b20002", "night")]
    assert (caught.value.code, caught.value.hint) == ("ambiguous_job", "use the id")


def test_a_whole_id_is_meant_though_another_one_begins_with_it(tmp_path):
    jobs = [job("beef0001", "a"), job("beef00012", "b"), job("c0de0001", "beef0001")]
    found = OfflineHistory([written(tmp_path / "a", jobs=jobs)])
    assert found.find_job("beef0001")["name"] == "a"


def test_of_many_jobs_eight_are_named(tmp_path):
    many = OfflineHistory([written(tmp_path / "a", jobs=[job(f"abcd000{n}", f"n{n}") for n in range(9)])])
    with pytest.raises(UsageError, match="fits 9 jobs") as caught:
        many.find_job("abcd")
    assert len(caught.value.facts) == 8


@pytest.mark.parametrize("length", [60, 61])
def test_a_long_name_is_cut_in_messages(past, length):
    with pytest.raises(NoSuchJob) as caught:
        past.find_job("x" * length)
    assert repr("x" * 60) in caught.value.message


def test_a_story_is_all_that_was_written_of_a_job(past):
    story = past.story("a1b20001")
    assert story["job"]["id"] == "a1b20001" and story["waiting"] == []
    assert sorted(one["time"] for one in story["story"]) == [2.0, 3.0]


@pytest.mark.parametrize(
    ("made", "known"),
    [({"jobs": [NIGHT]}, True), ({"records": [record(1.0)]}, True), ({}, False)],
)
def test_there_is_a_past_if_there_is_a_job_or_a_record(tmp_path, made, known):
    assert bool(OfflineHistory([written(tmp_path / "a", **made)])) is known
    assert not OfflineHistory([]) and not OfflineHistory([tmp_path / "none"])


def test_a_directory_that_this_user_may_not_open_is_named(tmp_path, monkeypatch):
    def refused(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    found = OfflineHistory([tmp_path / "a", tmp_path / "b"])
    assert found.closed == [tmp_path / "a", tmp_path / "b"] and not found
    words = f"what the node's daemon has written down is in {tmp_path}/a, {tmp_path}/b, for root only; "
    assert offline_history._closed(found).startswith(words)


# ---- who is asked ------------------------------------------------------------------------------------------------


@pytest.fixture
def asking(past, monkeypatch):
    """`asking.error`: why there is no daemon; None: there is one."""
    one = SimpleNamespace(error=None, past=past, notes=[])

    def find(_settings):
        if one.error is not None:
            raise one.error
        return SimpleNamespace(client=lambda: "client")

    monkeypatch.setattr(offline_history, "find", find)
    monkeypatch.setattr(offline_history, "_past", lambda settings: one.past)
    one.ask = lambda: offline_history.ask("settings", lambda who: ("answer of", who), one.notes.append)
    return one


NOTE = "no daemon runs on this node: this is what the last one has written down"


def test_a_daemon_that_is_there_answers(asking):
    assert asking.ask() == ("answer of", "client") and asking.notes == []


def test_without_one_the_past_answers_and_that_is_noted(asking):
    asking.error = DaemonUnreachable("none", code="no_daemon")
    assert asking.ask() == ("answer of", asking.past) and asking.notes == [NOTE]
    asking.past.closed = [Path("/var/lib/x")]
    asking.notes.clear()
    asking.ask()
    assert asking.notes[0] == NOTE and "is in /var/lib/x, for root only" in asking.notes[1]


@pytest.mark.parametrize("code", ["timed_out", "garbage"])
def test_a_daemon_that_hangs_is_an_error_whatever_was_written(asking, code):
    asking.error = DaemonUnreachable("it hangs", code=code, hint="kill it")
    with pytest.raises(DaemonUnreachable, match="it hangs") as caught:
        asking.ask()
    assert caught.value.hint == "kill it" and asking.notes == []


@pytest.mark.parametrize(("closed", "hint"), [([], "start one"), ([Path("/var/x")], "what the node's daemon has")])
def test_where_nothing_can_be_read_it_is_said_where_it_lies(asking, closed, hint):
    asking.error = DaemonUnreachable("none", code="no_daemon", hint="start one")
    asking.past = OfflineHistory([])
    asking.past.closed = closed
    with pytest.raises(DaemonUnreachable) as caught:
        asking.ask()
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(("driver", "names"), [("auto", ["nvidia", "sim"]), ("sim", ["sim"]), ("nvidia", ["nvidia"])])
def test_the_systems_history_comes_first_then_the_users_own(monkeypatch, tmp_path, driver, names):
    monkeypatch.setattr(offline_history, "OfflineHistory", list)
    environ = {"XDG_CONFIG_HOME": "/nowhere", "XDG_STATE_HOME": str(tmp_path), "GPUSHARE_DRIVER": driver}
    found = offline_history._past(load_settings({}, environ))
    assert found == [SYSTEM_HISTORY, *(history_dir(name, environ) for name in names)]
    homeless = {"XDG_CONFIG_HOME": "/nowhere", "GPUSHARE_DRIVER": driver}
    assert offline_history._past(load_settings({}, homeless)) == [SYSTEM_HISTORY]
    named = {**environ, "GPUSHARE_SOCKET": "/x/api.sock"}
    assert offline_history._past(load_settings({}, named)) == [Path("/x/history")]
