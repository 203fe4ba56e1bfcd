"""The thread that has the cluster: calls, rounds that nobody asked for, and what goes wrong in both."""

from __future__ import annotations

import threading
import time

import pytest
from service_stage import ALICE, Stage

from gpushare.cluster.client import ClusterClient, find
from gpushare.cluster.engines import loop
from gpushare.cluster.engines.seam import Refused as StartRefused
from gpushare.cluster.service.compacting import Compacting
from gpushare.cluster.store import StoreError
from gpushare.errors import GpushareError
from gpushared.cluster import writer as writing
from gpushared.cluster.writer import Writer

PATIENCE = 20.0


def until(true) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def stage(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "POLL", PATIENCE * 10)
    monkeypatch.setattr(writing, "AFTER_A_FAILURE", 0.05)
    stage = Stage(tmp_path)
    stage.changed = threading.Event()
    stage.runner.watch = lambda seconds: stage.changed.wait(seconds) and stage.changed.clear()
    stage.runner.wake = stage.changed.set
    return stage


@pytest.fixture
def writer(stage):
    writer = Writer(stage.service)
    writer.start()
    yield writer
    writer.stop()
    stage.store.close()


def results(writer: Writer, stage: Stage) -> dict[str, str]:
    """Asked for in its thread: the file is for one thread at a time."""
    return writer.call(stage.results).result(PATIENCE)


def submit(writer: Writer, **body) -> str:
    return writer.call(writer.service.submit, body, ALICE).result(PATIENCE)["id"]


def test_what_a_call_has_decided_is_told_at_once_and_so_is_what_follows(stage, writer) -> None:
    submit(writer, run={"command": ["a"]})
    submit(writer, after=["1"])
    until(lambda: len(stage.said("start")) == 1)
    stage.runner.finish("1")
    stage.changed.set()  # the engine has something to show
    until(lambda: stage.said("start")[1:] == ["start 2 1 0 0 None"])
    assert writer.errors == 0


def test_when_the_engine_has_shown_its_change_no_round_follows_another(stage, writer) -> None:
    rounds, one = [], stage.service.work.round

    def counted():
        rounds.append(time.monotonic())
        return one()

    stage.service.work.round = counted
    submit(writer, run={"command": ["a"]})
    until(lambda: len(stage.said("start")) == 1)
    stage.runner.finish("1")
    stage.changed.set()
    until(lambda: results(writer, stage) == {"1": "done"})
    time.sleep(0.5)  # some rounds may follow from what was decided
    settled = len(rounds)
    time.sleep(1.0)  # rounds that follow one another would be hundreds
    assert len(rounds) - settled <= 1.0 / writing.SOONEST


def test_a_round_looks_whether_the_log_has_to_be_shortened(stage, writer, monkeypatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(Compacting, "go_on", lambda _: looks.append(1))
    submit(writer)
    until(lambda: looks)


def test_a_start_that_is_refused_is_tried_elsewhere(stage, writer) -> None:
    start = stage.runner.start
    stage.runner.start = lambda record, command, token: (
        StartRefused("no driver", "n1") if command.places[0].node == "n1" else start(record, command, token)
    )
    submit(writer, job={"gpus": 2})
    until(lambda: stage.said("start"))
    assert writer.call(stage.service.show, "1", ALICE).result(PATIENCE)["places"][0]["node"] == "n2"


def test_a_file_that_cannot_be_written_refuses_and_loses_nothing(stage, writer, monkeypatch) -> None:
    submit(writer)
    until(lambda: stage.said("start"))

    def full(*arguments, **named):
        raise StoreError("database or disk is full", hint="free some space there")

    with monkeypatch.context() as patch:
        patch.setattr(stage.store, "append", full)
        patch.setattr(stage.store, "write", full)
        with pytest.raises(StoreError, match="full"):
            submit(writer)
        stage.runner.finish("1")
        stage.changed.set()
        until(lambda: writer.errors > 0)
        assert stage.service.ids() == ["1"]
    until(lambda: results(writer, stage) == {"1": "done"})
    assert submit(writer) == "2"


def test_a_bug_in_a_round_is_counted_and_the_next_round_begins_from_the_file(stage, writer) -> None:
    submit(writer)
    until(lambda: stage.said("start"))
    tasks, calls = stage.runner.tasks, []

    def wrong():
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError
        return tasks()

    stage.runner.tasks = wrong
    stage.runner.finish("1", 7)
    stage.changed.set()
    until(lambda: results(writer, stage) == {"1": "failed"})
    assert writer.errors == 1


def test_an_engine_that_cannot_be_watched_is_asked_now_and_then(stage, monkeypatch) -> None:
    """Not in a busy loop, and the service does its rounds meanwhile."""
    monkeypatch.setattr(writing, "AFTER_A_FAILURE", 0.2)
    asked: list[float] = []

    def watch(_: float) -> None:
        asked.append(time.monotonic())
        raise OSError("no inotify")

    stage.runner.watch = watch
    writer = Writer(stage.service)
    writer.start()
    submit(writer)
    until(lambda: len(asked) >= 4 and stage.said("start"))
    writer.stop()
    stage.store.close()
    assert len(asked) <= (asked[-1] - asked[0]) / 0.2 + 1.5
    assert writer.errors == len(asked)


def test_what_was_called_before_the_end_is_answered_and_nothing_after(stage) -> None:
    writer = Writer(stage.service)
    futures = [writer.call(stage.service.submit, {}, ALICE) for _ in range(20)]
    writer.start()
    writer.stop()
    assert [future.result(0)["id"] for future in futures] == [str(n + 1) for n in range(20)]
    with pytest.raises(GpushareError, match="stopping"):
        writer.call(stage.service.status)
    stage.store.close()


def test_a_socket_without_a_service_is_no_service(tmp_path, monkeypatch) -> None:
    import socket

    path = tmp_path / "api.sock"
    monkeypatch.setattr("gpushare.cluster.client.SYSTEM_SOCKET", path)
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    assert find(None, environ) is None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert find(None, environ) is None
        listener.listen()
        assert isinstance(find(None, environ), ClusterClient)
        assert find(tmp_path / "cluster.db", environ) is None


def test_who_leads_asks_again_before_its_term_is_over():
    assert writing.POLL < loop.TERM


def test_the_engine_is_watched_again_when_a_round_has_looked_and_not_before(stage) -> None:
    """However long the thread is busy: what has changed meanwhile is one change."""
    asked, busy = [], threading.Event()
    stage.runner.watch = asked.append  # something changes all the time
    writer = Writer(stage.service)
    writer.start()
    try:
        until(lambda: len(asked) > 3)
        working = threading.Event()
        blocked = writer.call(lambda: working.set() or busy.wait(PATIENCE))
        assert working.wait(PATIENCE)
        before = len(asked)
        time.sleep(0.15)
        assert len(asked) - before <= 2
        busy.set()
        assert blocked.result(PATIENCE)
        until(lambda: len(asked) > before + 2)
        assert set(asked) == {PATIENCE * 10}
    finally:
        busy.set()
        writer.stop()
        stage.store.close()
