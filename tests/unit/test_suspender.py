"""The process that suspends a job: what it answers to each command, and when it asks the driver at all."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from gpushare import checkpoint, suspend_check, suspender
from gpushare.checkpoint import DriverError
from gpushare.suspender import Suspender

PIDS = [101, 102]


class Driver:
    """Follows the driver's states, and may refuse a step."""

    def __init__(self, **states: str) -> None:
        self.states = {101: "running", 102: "running"} | {int(pid[1:]): state for pid, state in states.items()}
        self.calls: list[tuple[str, int]] = []
        self.refused = ""

    def state(self, pid: int) -> str:
        return self.states[pid]

    def lock(self, pid: int, milliseconds: int) -> None:
        self._go("lock", pid, "locked")

    def checkpoint(self, pid: int) -> None:
        self._go("checkpoint", pid, "suspended")

    def restore(self, pid: int) -> None:
        self._go("restore", pid, "locked")

    def unlock(self, pid: int) -> None:
        self._go("unlock", pid, "running")

    def _go(self, step: str, pid: int, state: str) -> None:
        self.calls.append((step, pid))
        if step == self.refused:
            raise DriverError(f"{step}: refused")
        self.states[pid] = state

    def version(self) -> int:
        return 13000


@pytest.fixture(autouse=True)
def host(monkeypatch):
    """Host memory, and which processes are stopped."""
    made = SimpleNamespace(stopped=set(), shortage="", asked=[])

    def shortage(pid: int, size: int) -> str:
        made.asked.append((pid, size))
        return made.shortage

    monkeypatch.setattr(suspender.standstill, "stands_still", lambda pid: pid in made.stopped)
    monkeypatch.setattr(suspender.host_memory, "shortage", shortage)
    monkeypatch.setattr(checkpoint, "_lives", lambda pid: True)
    return made


def told(driver, command: str, problem: str = "", *, pids=PIDS, **more):
    """The answer to one command."""
    answers = []
    client = SimpleNamespace(suspender_answers=lambda job, answer: answers.append((job, answer)))
    one = Suspender(client, "a1", driver, problem)
    one.answer({"number": 7, "command": command, "pids": pids, "bytes": 5000, "within": 2.0, **more})
    ((job, answer),) = answers
    assert (job, answer.pop("number"), answer.pop("pid")) == ("a1", 7, os.getpid())
    assert 0 <= answer.pop("milliseconds") < 10_000
    return answer["where"], answer["problem"]


def test_all_processes_are_suspended_and_brought_back(host):
    driver = Driver()
    assert told(driver, "suspend") == ("suspended", None)
    assert host.asked == [(101, 5000)], "asked of the host once for all"
    assert set(driver.states.values()) == {"suspended"}
    assert told(driver, "resume") == ("running", None)
    assert host.asked == [(101, 5000)], "what comes back needs no room there"


def test_without_room_in_host_memory_nothing_is_touched(host):
    host.shortage = "it needs 5000 B of host memory"
    driver = Driver()
    assert told(driver, "suspend") == ("running", "it needs 5000 B of host memory")
    assert driver.calls == []


def test_a_job_without_processes_is_running(host):
    assert told(Driver(), "suspend", pids=[]) == ("running", None)
    assert host.asked == []


@pytest.mark.parametrize(
    ("command", "states", "where"),
    [
        ("suspend", {}, "running"),
        ("suspend", {"p101": "suspended", "p102": "suspended"}, "running"),
        ("resume", {"p101": "suspended", "p102": "suspended"}, "suspended"),
        ("resume", {}, "running"),
    ],
)
def test_a_stopped_program_is_not_waited_for(host, command, states, where):
    host.stopped.add(102)
    driver = Driver(**states)
    found, problem = told(driver, command)
    assert found == where and driver.calls == []
    assert (
        problem == "it stands still (Ctrl-Z, SIGSTOP, a debugger or `docker pause`), and the driver would wait for it"
    )


def test_where_a_stopped_program_is_can_be_told_all_the_same(host):
    host.stopped.add(101)
    assert told(Driver(p101="suspended", p102="suspended"), "report") == ("suspended", None)


def test_a_report_brings_the_processes_together_and_says_what_is_wrong_with_the_driver():
    driver = Driver(p101="suspended", p102="locked")
    assert told(driver, "report", "the check has failed") == ("running", "the check has failed")
    assert ("restore", 101) in driver.calls


@pytest.mark.parametrize("command", ["suspend", "resume", "report"])
def test_without_a_driver_nothing_is_known(command):
    assert told(None, command, "the driver cannot be loaded") == ("unknown", "the driver cannot be loaded")


@pytest.mark.parametrize(("step", "where"), [("lock", "running"), ("checkpoint", "running")])
def test_what_the_driver_refuses_is_told(step, where):
    driver = Driver()
    driver.refused = step
    assert told(driver, "suspend") == (where, f"{step}: refused")


def test_a_problem_has_a_bounded_length():
    (_, problem) = told(None, "report", "x" * 5000)
    assert problem == "x" * suspender.LONGEST_PROBLEM


def test_how_long_it_took_is_told_in_milliseconds(monkeypatch):
    times = [10.0, 12.5]
    monkeypatch.setattr(suspender.time, "monotonic", lambda: times.pop(0))
    answers = []
    client = SimpleNamespace(suspender_answers=lambda job, answer: answers.append(answer["milliseconds"]))
    Suspender(client, "a1", None).answer({"number": 1, "command": "report", "pids": []})
    assert answers == [2500]


def test_commands_are_those_of_its_job():
    client = SimpleNamespace(suspender=lambda job: f"commands of {job}")
    assert Suspender(client, "a1", None).commands() == "commands of a1"


# ---- a driver that has to prove itself -----------------------------------------------------------------


@pytest.fixture
def checked(monkeypatch, tmp_path):
    """The result file, and how often the check was done; `good`: what it finds."""
    made = SimpleNamespace(count=0, good=True, file=tmp_path / "gpushare" / "suspend.json")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GPUSHARE_DRIVER", raising=False)

    def attempt(driver):
        made.count += 1
        return suspend_check.Checked(
            driver=driver.version(), good=made.good, problem="" if made.good else "it died", bytes=1, out=0.1, back=0.2
        )

    monkeypatch.setattr(suspend_check, "_try", attempt)
    return made


def test_each_version_of_a_driver_is_checked_once(checked, monkeypatch):
    driver = Driver()
    assert suspender._proved(driver) == suspender._proved(driver) == "" and checked.count == 1
    monkeypatch.setattr(Driver, "version", lambda _: 13010)
    checked.good = False
    said = "this driver has failed the check: it died"
    assert suspender._proved(driver) == suspender._proved(driver) == said and checked.count == 2
    kept = json.loads(checked.file.read_text())
    assert {version: one["good"] for version, one in kept.items()} == {"13000": True, "13010": False}
    assert [path.name for path in checked.file.parent.iterdir()] == ["suspend.json"]
    assert checked.file.parent.stat().st_mode & 0o777 == 0o700


def test_the_software_driver_needs_no_check(checked, monkeypatch):
    monkeypatch.setenv("GPUSHARE_DRIVER", "sim")
    assert suspender._proved(Driver()) == "" and checked.count == 0


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"13000": 1}', '{"13000": {}}', '{"13000": {"driver": 1}}'])
def test_a_result_that_cannot_be_read_is_none(checked, text):
    checked.file.parent.mkdir()
    checked.file.write_text(text)
    assert suspend_check.kept(checked.file, 13000) is None
    assert suspender._proved(Driver()) == suspender._proved(Driver()) == "" and checked.count == 1


def test_a_result_that_cannot_be_kept_counts_all_the_same(checked):
    checked.file.parent.write_text("a file in its place")
    assert suspender._proved(Driver()) == "" and checked.count == 1


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/gpushare/suspend.json"),
        ({"HOME": "/h"}, "/h/.cache/gpushare/suspend.json"),
        ({"XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/gpushare/suspend.json"),
        ({}, "/nonexistent/.cache/gpushare/suspend.json"),
    ],
)
def test_where_results_are_kept(environ, path):
    assert str(suspend_check.result_file(environ)) == path


@pytest.mark.parametrize("found", ["proved", "failed", "no driver"])
def test_it_starts_even_where_it_can_only_say_why_not(monkeypatch, found):
    made = []

    def driver():
        if found == "no driver":
            raise DriverError("this driver cannot suspend processes")
        return Driver()

    monkeypatch.setattr(checkpoint, "DriverCheckpoints", driver)
    monkeypatch.setattr(suspender, "_proved", lambda _: "it died" if found == "failed" else "")

    def run(self):
        made.append(self)

    monkeypatch.setattr(Suspender, "run", run)
    suspender.main("a1", "/run/api.sock")
    (one,) = made
    assert one.job == "a1" and str(one.client.api_socket) == "/run/api.sock"
    assert (
        one.problem == {"proved": "", "failed": "it died", "no driver": "this driver cannot suspend processes"}[found]
    )
    assert (one.driver is None) == (found == "no driver")
