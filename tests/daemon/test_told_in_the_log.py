"""What an administrator reads in the daemon's log: one line for each thing that goes wrong or begins, and no more."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sqlite3
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_harness import GIB, GPU, until

from gpushared.core import persistence
from gpushared.core.events import JobEnded
from gpushared.core.node import NodeState
from gpushared.gpus import nvml_health
from gpushared.gpus.nvml_health import Faults
from gpushared.gpus.pid_names import PidNames
from gpushared.history import usage as usage_
from gpushared.jobs import historian
from gpushared.jobs.found_state import FoundState
from gpushared.jobs.historian import EVENTS, Files, Historian
from gpushared.jobs.placements import Placement, Placements
from gpushared.jobs.registry import JobState
from gpushared.runtime import core_loop, recovery
from gpushared.runtime.core_loop import CoreLoop
from gpushared.runtime.shell import Shell
from gpushared.system.runtime_dir import RuntimeDir

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
MISSES = 3

OURS, THEIRS = 4_000_000, 4_000_001


def thing(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Any:
    """The messages since it was asked last, each with its level and facts."""
    caplog.set_level(logging.DEBUG)

    def take() -> list[tuple[str, str, dict[str, Any]]]:
        found = [
            (one.levelname, one.getMessage(), getattr(one, "facts", {}))
            for one in caplog.records
            if one.name == "gpushared"
        ]
        caplog.clear()
        return found

    return take


# ---- GPUs -------------------------------------------------------------------------------------------


def test_whose_numbers_the_driver_uses_is_said_when_it_changes(told) -> None:
    names = PidNames(False)
    named, missing = (2 * GIB, {OURS: GIB}, {OURS: GIB}), (2 * GIB, {THEIRS: GIB}, {OURS: GIB})
    for _ in range(3):
        names.are_ours(GPU, *named)
    assert told() == [("INFO", "the driver names processes as we do", {"gpu": GPU})]
    for _ in range(2 * MISSES):
        names.are_ours(GPU, *missing)
    assert told() == [("WARNING", "the driver does not name our processes", {"gpu": GPU, "samples": MISSES})]
    for _ in range(2):
        names.are_ours(GPU, *named)
    assert len(told()) == 1
    believed = PidNames(True)
    believed.are_ours(GPU, *named)
    assert told() == [], "as was thought"


def test_a_driver_that_reports_no_events_is_told_for_a_search(told, monkeypatch) -> None:
    error = nvml_health.nv.NVMLError(nvml_health.nv.NVML_ERROR_NOT_SUPPORTED)

    def refuse(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(nvml_health.time, "sleep", lambda _: None)
    monkeypatch.setattr(nvml_health.nv, "nvmlEventSetCreate", refuse)
    Faults(lambda: {"a": "a"}).wait(0.1)
    assert told() == [("DEBUG", "the driver reports no events", {"error": str(error)})]
    monkeypatch.setattr(nvml_health.nv, "nvmlEventSetCreate", lambda: 1)
    monkeypatch.setattr(nvml_health.nv, "nvmlEventSetFree", lambda _: None)
    monkeypatch.setattr(nvml_health.nv, "nvmlDeviceGetHandleByUUID", refuse)
    Faults(lambda: {"a": "a", "b": "b"}).wait(0.1)
    facts = [{"gpu": name, "error": str(error)} for name in "ab"]
    assert told() == [("DEBUG", "the driver reports no events", one) for one in facts]


# ---- notes of an earlier daemon ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message", "error"),
    [
        ("no", "the notes cannot be read", "Expecting value: line 1 column 1 (char 0)"),
        ("[1]", "the notes make no sense", "they are no object with a core"),
        ('{"core": 1}', "the notes make no sense", "they are no object with a core"),
    ],
)
def test_notes_that_are_of_no_use_are_kept_and_told(tmp_path, told, text, message, error) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    assert FoundState(path).state == {}
    kept = tmp_path / "state.bad"
    assert told() == [("WARNING", message, {"file": str(path), "kept_as": str(kept), "error": error})]
    assert kept.read_text() == text


def test_notes_that_cannot_be_kept_are_told_without_a_place(tmp_path, told) -> None:
    (tmp_path / "state.json").mkdir()
    assert FoundState(tmp_path / "state.json").state == {}
    ((level, message, facts),) = told()
    assert (level, message, set(facts)) == ("WARNING", "the notes cannot be read", {"file", "error"})


def test_each_odd_part_of_the_notes_is_told_and_they_are_kept_once(tmp_path, told) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"version": 99, "core": {}, "jobs": {"x": {}, "y" * 50: {}}, "attempts": {"a": "b"}}))
    found = FoundState(path)
    assert told() == [("WARNING", "the notes are of another version", {"file": str(path), "version": "99"})]
    assert found.jobs == {} and found.attempts == {}
    said = told()
    assert {message for _, message, _ in said} == {"a part of the notes makes no sense"}
    assert [facts["what"] for _, _, facts in said] == ["job x", f"job {'y' * 40}", "attempts"]
    assert all(facts["kept_as"] == str(tmp_path / "state.bad") for _, _, facts in said)
    (tmp_path / "state.bad").unlink()
    found.odd("more", persistence.OddNote("why"))
    assert not (tmp_path / "state.bad").exists(), "it is kept already"
    path.write_text(json.dumps({"version": 99, "core": {}, "jobs": [1], "attempts": {"a": 3}}))
    found = FoundState(path)
    told()
    assert found.jobs == {} and found.attempts == {"a": 3}
    assert [facts["what"] for _, _, facts in told()] == ["jobs"]
    path.write_text(json.dumps({"version": found.state["version"], "core": {}}))
    found = FoundState(path)
    told()
    assert (found.jobs, found.attempts) == ({}, {}) and told() == [], "what is not there is not odd"


def test_when_the_notes_were_written(tmp_path, told, monkeypatch) -> None:
    """By the core's clock if there was no boot since, else by the system's; not in the future."""
    path = tmp_path / "state.json"
    monkeypatch.setattr("gpushared.jobs.found_state.boot", lambda: "this")
    monkeypatch.setattr("gpushared.jobs.found_state.time", thing(monotonic=lambda: 500.0, time=lambda: 9000.0))
    for boot, now, at, since, odd in (
        ("this", 480.0, 8000.0, 20.0, []),
        ("this", 500.0, 8000.0, 0.0, []),
        ("this", 501.0, 8000.0, 1000.0, []),
        ("other", 480.0, 8000.0, 1000.0, []),
        (None, 480.0, 8000.0, 1000.0, []),
        (None, 480.0, 9500.0, 0.0, []),
        (None, 480.0, "x", 0.0, ["time"]),
    ):
        path.write_text(json.dumps({"version": 1, "boot": boot, "core": {"now": now}, "time": at}))
        found = FoundState(path)
        told()
        assert found.same_clock is (boot == "this" and now <= 500.0)
        assert found.since == since
        assert [facts["what"] for _, _, facts in told()] == odd


# ---- the core ---------------------------------------------------------------------------------------


def test_each_failure_of_the_core_is_told_with_its_cause(told, monkeypatch) -> None:
    class Ended(BaseException):
        pass

    def ended(code: int) -> None:
        raise Ended

    monkeypatch.setattr(core_loop.os, "_exit", ended)

    def fails(*_: Any) -> Any:
        raise ValueError("no")

    def core(**more: Any) -> Any:
        usual = {"handle": lambda event, now: [], "validate": lambda: None}
        return thing(**{**usual, **more}, policy=NodeState().policy, jobs={"a": 1}, processes={})

    async def story() -> None:
        def rebuild(_: Any) -> None:
            loop.core = core()

        loop = CoreLoop(core(validate=fails), rebuild, lambda _: None)
        loop.check()
        assert [message for _, message, _ in told()] == ["the core contradicts itself", "the state was rebuilt"]
        loop.core = core(handle=fails)
        loop.feed(JobEnded("x" * 600))
        first, second = told()
        assert first == ("ERROR", "the core failed on an event", {"event": repr(JobEnded("x" * 600))[:500]})
        assert second == ("WARNING", "the state was rebuilt", {"jobs": 1, "processes": 0})
        assert loop.errors == 2
        loop._rebuild = fails
        loop.core = core(handle=fails)
        with pytest.raises(Ended):
            loop.feed(JobEnded("x"))
        assert [message for _, message, _ in told()][1:] == [
            "another core cannot be made",
            "the daemon ends: its state cannot be rebuilt",
        ]

    asyncio.run(story())


# ---- histories --------------------------------------------------------------------------------------


def test_a_history_without_room_is_told_each_time_that_it_is_full(tmp_path, told, monkeypatch) -> None:
    monkeypatch.setattr(historian, "USERS", 1)
    files = Files(tmp_path)

    def write(*uids: int) -> None:
        for uid in uids:
            files.append(deque([(uid, EVENTS, b"{}\n")]))

    write(1, 2, 3)
    assert told() == [
        ("WARNING", "the history has no room for more users", {"directory": str(tmp_path), "uid": 2}),
    ]
    (tmp_path / "1.events").unlink()
    write(4, 5, 6)
    assert [facts["uid"] for _, _, facts in told()] == [5]


def test_a_question_about_the_history_that_fails_is_told(tmp_path, told) -> None:
    async def story() -> None:
        one = Historian(tmp_path / "h")
        one.start()
        assert await one.ask(1, lambda _: 1 // 0, within=0.3) is None
        one.close()
        assert one._thread is not None and not one._thread.is_alive()

    asyncio.run(story())
    assert [(level, message) for level, message, _ in told()] == [("ERROR", "a question about the history failed")]


def test_a_usage_history_that_fails_and_recovers_says_both_once(tmp_path, told, monkeypatch) -> None:
    monkeypatch.setattr(usage_, "COMMIT_EVERY", 0.0)
    writer = usage_._Writer(tmp_path / "h" / "usage.db")
    change = usage_.Change(1000, {}, {})
    writer.write(change)
    writer.write(change)
    assert writer.file is not None and told() == [], "nothing is said of what goes well"
    path = str(tmp_path / "h" / "usage.db")
    for _ in range(2):
        writer._failed(sqlite3.OperationalError("disk I/O error"))
        assert writer.file is None
    assert told() == [("WARNING", "the usage history cannot be written", {"file": path, "error": "disk I/O error"})]
    for _ in range(3):
        writer.write(change)
    assert told() == [("WARNING", "the usage history is written again", {"file": path})]
    writer.close()


@pytest.mark.parametrize(("code", "makes"), [(sqlite3.SQLITE_FULL, 1), (sqlite3.SQLITE_IOERR, 0), (None, 0)])
def test_room_is_made_where_the_file_is_full(tmp_path, monkeypatch, code, makes) -> None:
    made: list[str] = []
    writer = usage_._Writer(tmp_path / "usage.db")
    names = ("roll_back", "make_room", "close", "put_aside")
    writer.file = thing(**{name: lambda name=name: made.append(name) for name in names})
    error = sqlite3.OperationalError("it fails")
    if code is not None:
        error.sqlite_errorcode = code
    writer._failed(error)
    assert made == ["roll_back", *["make_room"] * makes, "close"]
    for again in (False, True):
        writer.file = thing(**{name: lambda name=name: made.append(name) for name in names})
        made.clear()
        writer._failed(sqlite3.DatabaseError("it is broken"))
        assert made == ["roll_back", "close", *([] if again else ["put_aside"])], "once"


# ---- jobs and programs ------------------------------------------------------------------------------


def test_a_daemon_that_starts_again_says_what_it_found_and_what_has_gone(make_daemon, told) -> None:
    daemon = make_daemon()
    job = daemon.client.register({"name": "train", "command": ["x"], "request": "1Gi", "limit": "2Gi"})
    (daemon.directory / "pages" / "00000000000000ff").write_bytes(b"of nobody")
    daemon.stop()
    told()
    again = make_daemon()
    said = told()
    gone = ("INFO", "page removed: its process is gone", {"page": "00000000000000ff"})
    assert gone in said and ("INFO", "state rebuilt", {"jobs": 1, "processes": 0}) in said
    assert not (daemon.directory / "pages" / "00000000000000ff").exists()
    again.client.end(job["id"], 0, None)
    again.stop()
    told()
    make_daemon()
    assert "state rebuilt" not in [message for _, message, _ in told()], "there was nothing"


def test_who_no_longer_wants_a_place_in_the_queue_is_told(told, monkeypatch) -> None:
    monkeypatch.setattr(recovery, "ASKS_AGAIN_WITHIN", 0.01)
    monkeypatch.setattr(recovery, "_find", lambda identity: thing(pid=1))
    monkeypatch.setattr(persistence, "spec_from_note", lambda _: None)
    monkeypatch.setattr(recovery, "_set_beginning", lambda *_: None)
    withdrawn: list[Any] = []
    record = thing(who={"job": "a"}, state=JobState.QUEUED)
    registry = thing(open=lambda id, spec: record, set_wrapper=lambda *_: None)
    outside: Any = thing(jobs=thing(registry=registry, withdraw=withdrawn.append))

    async def story() -> None:
        note = {"wrapper": 1, "queued": {"until": 5.0}}
        recovery._open_queued(outside, "a", note, thing(same_clock=True))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)

    asyncio.run(story())
    assert withdrawn == [record] and told() == [("INFO", "nobody asks for a queued job any more", {"job": "a"})]


@pytest.mark.parametrize(
    ("record", "with_processes", "ends"),
    [(thing(who={"job": "j"}), False, True), (thing(who={"job": "j"}), True, False), (None, False, False)],
    ids=["deserted", "with processes", "of no job"],
)
def test_a_placement_that_nobody_holds_is_over_and_told(told, record, with_processes, ends) -> None:
    placements, ended = Placements(), list[Any]()
    placements.put(Placement("task", 1, "j"))
    placements.deserted = lambda now: list(placements)  # type: ignore[method-assign]
    shell: Any = object.__new__(Shell)
    shell.registry = thing(get=lambda job: record)
    shell.clients = thing(has_job=lambda job: with_processes)
    shell.jobs = thing(placements=placements, end=ended.append)
    shell.end_deserted()
    assert ended == ([record] if ends else []) and (placements.get("task") is None) is ends
    said = [("INFO", "a placement is over: nothing of it lives", {"placement": "task", "job": "j"})]
    assert told() == (said if ends else [])


def test_a_users_daemon_that_nobody_needs_says_so_and_ends(make_daemon, told) -> None:
    daemon = make_daemon(idle_exit=0.2)
    until(lambda: not daemon._thread.is_alive())
    messages = [message for _, message, _ in told()]
    assert messages[-2:] == ["no job left", "stopped"]


def test_the_directory_of_a_start_that_failed_has_no_sockets(directory: Path) -> None:
    """The next daemon, or a program that looks for one, should not find a socket that nobody serves."""
    taken = RuntimeDir(directory / "gpushare", system=False)
    taken.take()
    with taken.bind("shim.sock", socket.SOCK_SEQPACKET, for_containers=True):
        taken.release()
        assert sorted(path.name for path in taken.directory.rglob("*")) == ["containers", "lock"]
