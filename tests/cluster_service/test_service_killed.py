"""The service is killed (SIGKILL, in a process of its own) before and after each thing that it does. The next one goes
on, and the end is always the same: what was answered is there, nothing is lost, and nothing runs twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from service_stage import ALICE, BOB, Stage, in_a_child

from gpushare.cluster.store import Store

AROUND = ("start", "evict", "collect")
IN_THE_STORE = ("append", "write", "pass_time")


class Points:
    """Moments at which the process may be killed."""

    def __init__(self, kill_at: int | None, counted: Path) -> None:
        self.count = 0
        self.kill_at = kill_at
        self.counted = counted

    def here(self) -> None:
        self.count += 1
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, thing, names) -> None:
        for name in names:
            setattr(thing, name, self._call(getattr(thing, name)))

    def _call(self, function):
        def call(*arguments, **named):
            self.here()
            answer = function(*arguments, **named)
            self.here()
            return answer

        return call

    def in_transactions(self, store: Store) -> None:
        """Between what the log and the records get and its commit."""
        append = store.append

        def appended(events, now, also=None):
            def and_also(connection, actions):
                self.here()
                if also is not None:
                    also(connection, actions)
                self.here()

            return append(events, now, and_also)

        store.append = appended


class Story:
    """What clients and jobs do, step by step. A step that was not noted as done is done again by a client who knows
    only what it was answered, so it looks first."""

    def __init__(self, directory: Path, kill_at: int | None) -> None:
        self.notes = directory / "done"
        self.done = self.notes.read_text().split() if self.notes.exists() else []
        self.stage = Stage.__new__(Stage)
        self.points = Points(kill_at, directory / "points")
        Stage.__init__(self.stage, directory, nodes=1, queues=[("bob", 1)])
        self.points.around(self.stage.runner, AROUND)
        self.points.in_transactions(self.stage.store)
        self.points.around(self.stage.store, IN_THE_STORE)

    def step(self, name: str, action) -> None:
        if name not in self.done:
            action()
            with self.notes.open("a") as file:
                file.write(f"{name}\n")
        self.stage.rounds(3)

    def submit(self, name: str, caller, **words) -> None:
        known = [*self.stage.service.shown(self.stage.service.ids()), *self.stage.service.shown_ended()]
        if name not in {job["name"] for job in known}:
            self.stage.submit(caller, name=name, **words)

    def finish(self, name: str) -> None:
        for job in self.stage.service.shown(self.stage.service.ids()):
            if job["name"] == name and job["state"] == "running":
                self.stage.runner.finish(job["id"])

    def cancel(self, name: str, caller) -> None:
        for job in self.stage.service.shown(self.stage.service.ids()):
            if job["name"] == name and job["result"] is None:
                self.stage.service.cancel(job["id"], caller)

    def play(self) -> None:
        self.step("a", lambda: self.submit("gang", ALICE, gpus=1, tasks=2))
        self.step("b", lambda: self.submit("owner", BOB, gpus=1))  # the gang makes room
        self.step("c", lambda: self.submit("late", BOB, gpus=1, after=["2"]))
        self.step("d", lambda: self.submit("unwanted", ALICE, gpus=1))
        self.step("e", lambda: self.finish("owner"))
        self.step("f", lambda: self.cancel("unwanted", ALICE))
        self.step("g", lambda: self.finish("late"))
        self.stage.rounds(3)
        self.step("h", lambda: self.finish("gang"))
        self.stage.rounds(3)
        self.points.counted.write_text(str(self.points.count))


def outcome(directory: Path) -> dict[str, object]:
    stage = Stage(directory, nodes=1)
    said = stage.runner.said
    starts = [line for line in said if line.startswith("start ")]
    ended = {job["name"]: job["result"]["how"] for job in stage.service.shown_ended()}
    left = stage.states()
    held = (list(stage.store.allocator.jobs), dict(stage.store.allocator.leaving))
    stage.store.close()
    assert len(set(starts)) == len(starts), "a task was started twice"
    assert not [line for line in said if line.startswith("overlap")]
    assert not list((directory / "spool").glob("*.task"))
    return {"ended": ended, "left": left, "held": held}


WANTED = {
    "ended": {"gang": "done", "owner": "done", "late": "done", "unwanted": "cancelled"},
    "left": {},
    "held": ([], {}),
}


def play(directory: Path, kill_at: int | None) -> None:
    Story(directory, kill_at).play()


def points_of(directory: Path) -> int:
    assert in_a_child(play, directory, None) == 0
    assert outcome(directory) == WANTED
    return int((directory / "points").read_text())


PARTS = 3
EACH = 1 if os.environ.get("GPUSHARE_TEST_EVERY_POINT") else 12
"""Of so many points one is tried; all of them take a minute of CPU time."""


@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_service_that_is_killed_anywhere_loses_and_doubles_nothing(tmp_path: Path, part: int) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    points = points_of(plain)
    assert points > 60
    for point in range(1 + part * EACH, points + 1, PARTS * EACH):
        directory = tmp_path / str(point)
        directory.mkdir()
        died = in_a_child(play, directory, point)
        assert os.WIFSIGNALED(died) and os.WTERMSIG(died) == signal.SIGKILL, f"point {point}"
        assert in_a_child(play, directory, None) == 0, f"point {point}"
        assert outcome(directory) == WANTED, f"point {point}"


def submit_one(directory: Path, kill_at: int) -> None:
    stage = Stage(directory, nodes=1)
    points = Points(kill_at, directory / "points")
    points.in_transactions(stage.store)
    points.around(stage.store, ("append",))
    stage.submit(run={"command": ["train"]})
    (directory / "answered").write_text("yes")


@pytest.mark.parametrize(("kill_at", "there"), [(1, False), (3, False), (4, True)])
def test_a_submission_is_there_wholly_or_not_at_all(tmp_path: Path, kill_at: int, there: bool) -> None:
    """SIGKILL before the transaction, in the middle of it, and after it but before the answer."""
    assert os.WIFSIGNALED(in_a_child(submit_one, tmp_path, kill_at))
    stage = Stage(tmp_path, nodes=1)
    assert bool(stage.service.ids()) is there and not (tmp_path / "answered").exists()
    stage.rounds()
    assert len(stage.said("start")) == there
    assert sorted(stage.store.allocator.jobs) == stage.service.ids()
    stage.store.close()
