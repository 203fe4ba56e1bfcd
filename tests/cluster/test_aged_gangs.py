"""Nobody starves: a large gang among small jobs that keep the cluster full, and jobs whose queue is below its share."""

from __future__ import annotations

from random import Random

import pytest

from gpushare.cluster.model import Job, JobSubmitted, Node, NodeAdded, Policy, Preempt, Queue, QueueAdded, Start, Tasks
from gpushare.cluster.quantity import MICRO, gpus
from gpushare.cluster.simulation import Simulation
from gpushare.cluster.spec_parser import Submission

HOUR = 3600.0
NODES, GPUS = 12, 8
GANG_COMES, LONGEST = 2 * HOUR, 2 * HOUR
RESERVE_AFTER = 600.0


class Judge(Simulation):
    """Counts how long each job waits while its queue would stay within its share with it."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy, check=True)
        self.owed: dict[str, float] = {}
        self._since, self._who = 0.0, []

    def hand(self, *events) -> None:
        for name in self._who:
            self.owed[name] = self.owed.get(name, 0.0) + self.now - self._since
        super().hand(*events)
        shares = self.allocator.shares()
        left = {name: share.share - share.allocated for name, share in shares.items()}
        self._since, self._who = self.now, []
        for name, view in self.allocator.jobs.items():
            if not view.places:
                left[view.job.queue] -= sum(MICRO * one.least * one.gpus for one in view.job.tasks)
                if left[view.job.queue] >= 0:
                    self._who.append(name)


def crowd(random: Random, until: float, min_runtime: float) -> list[Submission]:
    """One-GPU jobs of two queues, a third more than the cluster can hold."""
    found: list[Submission] = []
    at = 0.0
    while at < until:
        at += random.expovariate(1.3 * NODES * GPUS / (1.25 * HOUR))
        job = Job(f"small-{len(found)}", f"crowd-{len(found) % 2}", min_runtime=min_runtime)
        found.append(Submission(job, at, random.uniform(0.5 * HOUR, LONGEST)))
    return found


def lived(*, protected: bool, seed: int = 1) -> Judge:
    """Five and a half hours of a full cluster into which the gang comes; `protected`: no small job may be stopped."""
    run = Judge(Policy(reserve_after=RESERVE_AFTER))
    run.hand(*(NodeAdded(Node(f"n{n}", GPUS)) for n in range(NODES)))
    run.hand(*(QueueAdded(Queue(name, quota=gpus(16))) for name in ("crowd-0", "crowd-1")))
    run.hand(QueueAdded(Queue("large", quota=gpus(64))))
    run.submit(crowd(Random(f"crowd {seed}"), 5.5 * HOUR, 100 * HOUR if protected else 0.0))
    run.advance(GANG_COMES)
    waiting = sum(not view.places for view in run.allocator.jobs.values())
    assert waiting > 10, "the cluster was not kept full"
    run.hand(JobSubmitted(Job("gang", "large", (Tasks(8, gpus=8),))))
    run.advance(5.5 * HOUR)
    return run


def began(run: Judge, job: str) -> float:
    return next(time for time, action in run.actions if isinstance(action, Start) and action.job == job)


def test_a_gang_among_jobs_that_cannot_be_stopped_starts_when_its_nodes_are_empty() -> None:
    """64 of 96 GPUs. It gets a reservation after ten minutes, and the jobs that run there then end within two hours."""
    for seed in (1, 2):
        run = lived(protected=True, seed=seed)
        waited = began(run, "gang") - GANG_COMES
        longest = max(run.owed.values())
        print(f"the gang waited {waited / 60:.0f} minutes; the longest wait below a share: {longest / 60:.0f} minutes")
        assert not [action for _, action in run.actions if isinstance(action, Preempt)]
        assert waited <= RESERVE_AFTER + LONGEST
        assert longest <= RESERVE_AFTER + LONGEST


@pytest.mark.parametrize("seed", [1, 2])
def test_a_gang_within_quota_does_not_wait_for_borrowers(seed: int) -> None:
    run = lived(protected=False, seed=seed)
    assert began(run, "gang") - GANG_COMES <= RESERVE_AFTER
    longest = max(run.owed.values(), default=0.0)
    print(f"the longest wait below a share: {longest / 60:.1f} minutes")
    assert longest <= RESERVE_AFTER
