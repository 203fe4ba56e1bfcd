"""An engine made of a runner and of records: what it shows of both and what it passes on. How a job has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.cluster.engines import registry
from gpushare.cluster.engines.hosted import Hosted
from gpushare.cluster.engines.runner import Record, Result, outcome
from gpushare.cluster.engines.seam import Accepted, Evict, Gone, SeenNode, SeenTask, Start
from gpushare.cluster.model import Job, Node, Tasks
from gpushare.errors import UsageError


def task(number: int = 0, *, group: int = 0, attempt: int = 1, phase: Any = "running", **more: Any) -> SeenTask:
    given = {"node": "n", "gpus": (0,), "amount": 10, **more}
    return SeenTask(attempt, group, number, phase=phase, **given)


def entry(**changes: Any) -> Any:
    return SimpleNamespace(**{"submitted": 5.0, "held": False, "after": (), "result": None, **changes})


class Runner:
    def __init__(self) -> None:
        self.shown: dict[str, list[SeenTask]] = {}
        self.there = [SeenNode(Node("n", 2), foreign=((1, 7),)), SeenNode(Node("m", 1), "unknown")]
        self.told: list[Any] = []

    def nodes(self) -> Any:
        return self.there

    def tasks(self) -> Any:
        return self.shown

    def start(self, *what: Any) -> Any:
        self.told.append(what)
        return Accepted()

    def evict(self, *what: Any) -> Any:
        self.told.append(what)
        return Accepted()

    def watch(self, seconds: float) -> None:
        self.told.append(seconds)


class Jobs:
    def __init__(self, **entries: Any) -> None:
        self.entries = entries
        self.cordons: dict[str, bool] = {}
        self.without: set[str] = set()

    def job(self, id: str) -> Job:
        return Job(id, "q")

    def record(self, id: str) -> Record | None:
        return None if id in self.without else Record(id, self.job(id), 0, 0, "root", 0.0, {})


def hosted(**entries: Any) -> tuple[Hosted, Runner, Jobs]:
    runner, jobs = Runner(), Jobs(**entries)
    return Hosted(runner, jobs, 7), runner, jobs  # type: ignore[arg-type]


# ---- what it shows --------------------------------------------------------------------------------


def test_it_leads_with_its_term():
    one, runner, _ = hosted()
    assert one.lead("me", 20.0) == 7
    one.watch(3.0)
    assert runner.told == [3.0]


def test_a_snapshot_has_all_jobs_and_a_glance_those_that_are_named_or_have_tasks():
    one, runner, _ = hosted(a=entry(), b=entry(), c=entry())
    runner.shown = {"c": [task()]}
    assert [job.job.id for job in one.snapshot().jobs] == ["a", "b", "c"]
    assert [job.job.id for job in one.glance(["b"]).jobs] == ["b", "c"]
    assert [job.job.id for job in one.glance(["c"]).jobs] == ["c"]
    assert [job.job.id for job in one.glance(["gone"]).jobs] == ["c"]
    assert one.tasks is runner.shown


@pytest.mark.parametrize(
    ("changes", "held", "ended"),
    [
        ({}, False, False),
        ({"held": True}, True, False),
        ({"after": ("1",)}, True, False),
        ({"result": Result("done", 0)}, False, True),
    ],
)
def test_a_job_is_as_the_records_have_it(changes, held, ended):
    one, runner, _ = hosted(a=entry(**changes))
    runner.shown = {"a": [task(attempt=2), task(1, attempt=4)]}
    (job,) = one.snapshot().jobs
    assert (job.submitted, job.held, job.ended, job.attempt) == (5.0, held, ended, 4)
    assert job.tasks == tuple(runner.shown["a"])
    runner.shown = {}
    (job,) = one.snapshot().jobs
    assert (job.attempt, job.tasks) == (0, ())


@pytest.mark.parametrize(
    ("cordons", "cordoned", "draining"), [({}, False, False), ({"n": False}, True, False), ({"n": True}, True, True)]
)
def test_the_records_say_where_nothing_may_start(cordons, cordoned, draining):
    one, _, jobs = hosted()
    jobs.cordons = cordons
    n, m = one.snapshot().nodes
    assert (n.cordoned, n.draining, m.cordoned, m.draining, m.state) == (cordoned, draining, False, False, "unknown")


def test_tasks_of_unknown_jobs_are_programs_of_others():
    one, runner, _ = hosted(a=entry())
    runner.shown = {
        "a": [task(gpus=(0,), amount=100)],
        "x": [task(gpus=(0, 1), amount=10), task(1, node="m", amount=5)],
        "y": [task(gpus=(1,), amount=20, phase="stopping"), task(gpus=(1,), amount=50, phase="done")],
    }
    n, m = one.snapshot().nodes
    assert n.foreign == ((0, 10), (1, 7 + 10 + 20)) and m.foreign == ((0, 5),)
    assert [job.job.id for job in one.snapshot().jobs] == ["a"]


# ---- commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "without", "answer"),
    [
        ({"a": entry()}, set(), Accepted()),
        ({"a": entry(result=Result("cancelled"))}, set(), Gone()),
        ({"a": entry()}, {"a"}, Gone()),
        ({}, set(), Gone()),
    ],
)
def test_only_a_job_that_is_not_over_starts(entries, without, answer):
    one, runner, jobs = hosted(**entries)
    jobs.without = without
    command = Start("a", 1, (), 0)
    assert one.start(command, (7, 1)) == answer
    assert runner.told == ([(jobs.record("a"), command, (7, 1))] if answer == Accepted() else [])


def test_an_eviction_is_passed_on():
    one, runner, _ = hosted()
    command = Evict("gone", 1, ((0, 0),), 5.0, True)
    assert one.evict(command, (7, 2)) == Accepted() and runner.told == [(command, (7, 2))]
    one.annotate("a", "it waits", (7, 3))
    assert len(runner.told) == 1, "the service answers by itself"


# ---- how a job has ended --------------------------------------------------------------------------


def done(number: int = 0, exit: int | None = 0, **more: Any) -> SeenTask:
    return task(number, phase="done", exit=exit, **more)


GANG = (Tasks(2), Tasks(1, 3))


@pytest.mark.parametrize(
    ("groups", "tasks", "result"),
    [
        ((Tasks(),), [], None),
        ((Tasks(),), [task()], None),
        ((Tasks(),), [task(phase="failed")], None),
        ((Tasks(),), [done()], Result("done", 0)),
        ((Tasks(),), [done(why="as it was told")], Result("done", 0, "as it was told")),
        ((Tasks(),), [done(exit=3, why="no")], Result("failed", 3, "no")),
        ((Tasks(),), [done(exit=-9)], Result("failed", -9)),
        ((Tasks(),), [done(exit=None)], Result("done", 0)),
        ((Tasks(),), [done(exit=3), task(attempt=2)], None),  # an earlier attempt
        ((Tasks(),), [done(), task(attempt=2, phase="starting")], None),
        ((Tasks(),), [done(attempt=2), task(attempt=1, phase="stopping")], None),
        ((Tasks(),), [done(attempt=2), done(attempt=1, exit=5)], Result("done", 0)),
        ((Tasks(2),), [done()], None),
        ((Tasks(2),), [done(), task(1)], None),
        ((Tasks(2),), [done(), done(1, exit=4)], Result("failed", 4)),
        ((Tasks(2),), [done(1, exit=4), task()], Result("failed", 4)),
        ((Tasks(2),), [done(), done(1)], Result("done", 0)),
        (GANG, [done(), done(1)], None),
        (GANG, [done(), done(group=1)], None),
        (GANG, [done(), done(1), done(group=1)], Result("done", 0)),
        (GANG, [done(), done(1), done(group=1), task(1, group=1)], None),
    ],
)
def test_how_a_job_has_ended(groups, tasks, result):
    assert outcome(Job("j", "q", groups), tasks) == result


# ---- by name --------------------------------------------------------------------------------------


def test_engines_have_names():
    assert registry._module("memory").__name__ == "gpushare.cluster.engines.paced"
    assert "exit" not in registry.cannot("memory") and "programs" in registry.cannot("memory")
    with pytest.raises(UsageError, match="no engine 'memry'") as caught:
        registry._module("memry")
    assert (caught.value.code, caught.value.hint) == ("no_engine", "did you mean memory?")
    with pytest.raises(UsageError) as caught:
        registry._module("xyz")
    assert caught.value.hint == "there are: memory, local, kubernetes, slurm"


@pytest.mark.parametrize(
    ("name", "told"), [("gpushare.cluster.engines.paced", True), ("gpushare", True), ("yaml", False), (None, False)]
)
def test_an_engine_that_is_left_out_is_told_apart_from_one_that_lacks_something(monkeypatch, name, told):
    def missing(_module):
        raise ModuleNotFoundError("no", name=name)

    monkeypatch.setattr(registry.importlib, "import_module", missing)
    with pytest.raises(UsageError if told else ModuleNotFoundError) as caught:
        registry._module("memory")
    if told:
        assert caught.value.message == "the engine 'memory' is not part of this version"
        assert caught.value.code == "no_engine"
