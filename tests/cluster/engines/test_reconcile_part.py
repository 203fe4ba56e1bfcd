"""Rounds that look only at the jobs that matter end as rounds that look at all of them do."""

from __future__ import annotations

from random import Random

import pytest
from engine_stage import SETTINGS, Disk, Stage

from gpushare.cluster.engines.loop import Loop
from gpushare.cluster.engines.memory import Memory
from gpushare.cluster.engines.reconcile import Notes, Round, commands, job_facts
from gpushare.cluster.engines.seam import Evict, Observed, SeenJob, SeenNode, SeenTask
from gpushare.cluster.model import Job, JobEnded, JobSubmitted, Node, NodeAdded, Queue, QueueAdded, Tasks
from gpushare.cluster.quantity import gpus


class Narrow(Memory):
    """Shows no job that only waits, but for those that it is asked about and those that are new or have ended."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.shown: set[tuple[str, bool]] = set()
        self.most = 0

    def glance(self, uids):
        seen = self.snapshot()
        asked = set(uids)
        jobs = [job for job in seen.jobs if self.matters(job, asked)]
        self.shown |= {(job.job.id, job.ended) for job in jobs}
        self.most = max(self.most, len(jobs))
        return Observed(seen.nodes, tuple(jobs))

    def matters(self, job: SeenJob, asked: set[str]) -> bool:
        runs = any(task.holds for task in job.tasks)
        return runs or job.job.id in asked or (job.job.id, job.ended) not in self.shown


def story(seed: int, *, whole: bool) -> Stage:
    stage = Stage({"n1": 2, "n2": 2}, [("a", 2), ("b", 2)], engine=Narrow())
    random = Random(seed)
    for number in range(40):
        queue = random.choice("ab")
        kind = random.choice([{"least": 1}, {"least": 2}, {"share": gpus(0.5)}, {"ladder": (gpus(0.5),)}])
        stage.submit(f"j{number}", queue, random.uniform(3.0, 9.0), **kind)
    stage.go(2)
    stage.whole = whole
    stage.engine.shown = {(uid, job.ended) for uid, job in stage.engine.jobs.items()}
    stage.finish(900)
    return stage


@pytest.mark.parametrize("seed", range(4))
def test_all_jobs_end_whatever_a_round_looks_at(seed: int) -> None:
    narrow = story(seed, whole=False)
    assert narrow.engine.most < 20, "it looked at many jobs that wait"
    assert narrow.engine.guarded == 0
    ran = {uid: job.runs for uid, job in narrow.engine.jobs.items()}
    assert set(ran) == set(story(seed, whole=True).engine.jobs) and all(ran.values())


NODE = SeenNode(Node("n1", 2, 100))


class Nobody:
    """An allocator that knows no job."""

    def __init__(self, jobs=None) -> None:
        self.jobs = jobs or {}
        self.nodes = {}
        self.leaving = {}


def seen(*tasks: SeenTask, ended: bool) -> Observed:
    return Observed((NODE,), (SeenJob(Job("j", "a", (Tasks(),)), 0.0, ended=ended, tasks=tasks),))


def evictions(notes: Notes, ours, observed: Observed, now: float) -> list[Evict]:
    return [one for one in commands(Round(ours, observed, notes, now, SETTINGS)) if isinstance(one, Evict)]


def test_what_is_left_of_a_job_that_is_over_is_stopped() -> None:
    """A task has failed, and the job with it; or it was cancelled, and the allocator has forgotten it."""
    running = SeenTask(1, 0, 1, "n1", (0,), 10, "running")
    done = SeenTask(1, 0, 0, "n1", (1,), 10, "done", exit=1)
    notes = Notes()
    assert evictions(notes, Nobody(), seen(running, done, ended=True), 0.0) == [
        Evict("j", 1, ((0, 1),), SETTINGS.grace, again=False)
    ]
    assert evictions(notes, Nobody(), seen(done, ended=True), 1.0) == []


def test_who_is_to_hurry_is_killed() -> None:
    running = SeenTask(1, 0, 0, "n1", (0,), 10, "running")
    notes = Notes(hurry={"j"})
    assert [one.grace for one in evictions(notes, Nobody(), seen(running, ended=True), 0.0)] == [0.0]
    assert evictions(notes, Nobody(), Observed((NODE,)), 1.0) == [] and notes.hurry == set()


def test_a_job_has_ended_when_nothing_of_it_runs() -> None:
    stage = Stage({"n1": 1}, [("a", 1)])
    stage.submit("j", "a", 5.0)
    stage.go(4)
    ours = stage.allocator
    running = SeenTask(1, 0, 0, "n1", (0,), 10, "running")
    for tasks, facts in (((running,), []), ((), [[JobEnded("j")]])):
        assert list(job_facts(Round(ours, seen(*tasks, ended=True), Notes(), 5.0, SETTINGS))) == facts


def test_a_job_of_which_something_was_decided_is_looked_at_and_one_that_waits_is_not() -> None:
    told: list[object] = []
    disk = Disk()
    loop = Loop(disk, Narrow(), lambda: 0.0, tell=lambda _, actions: told.extend(actions))
    disk.append([NodeAdded(Node("n1", 2)), QueueAdded(Queue("a", quota=gpus(2)))], 0.0)
    events = [JobSubmitted(Job(name, "a", (Tasks(gpus=size),))) for name, size in (("runs", 2), ("waits", 1))]
    for event in events:
        loop.heed([event], disk.append([event], 1.0))
    assert {action.job for action in told} == {"runs", "waits"}
    assert loop.active == {"runs"}
    ended = [JobEnded("runs")]
    loop.heed(ended, disk.append(ended, 2.0))
    assert loop.active == {"runs", "waits"}, "it starts now"
