"""What could have been done instead: an exact search (CP-SAT) that shares nothing with the allocator.

A plan for a job within its queue's quota is a set of running jobs whose stop makes room for it, by the guarantee:

    only of other queues, and of each only while it holds more than its quota: the last of its victims may be larger
    the other queues together lose less of what is within their quotas than the job brings. Jobs larger than their
    queue's whole quota are not within it
    nobody goes who has just started
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from ortools.sat.python import cp_model
from over_time_traces import Job


@dataclass
class Picture:
    """Who runs where at one moment."""

    quotas: Mapping[str, int]
    free: list[int]
    """GPUs of each node."""
    running: dict[str, tuple[Job, Counter[int]]] = field(default_factory=dict)
    """The job, and how many GPUs it has of each node."""
    fresh: set[str] = field(default_factory=set)
    """Who has just started."""

    def held(self, queue: str) -> int:
        return sum(job.size for job, _ in self.running.values() if job.queue == queue)

    def within(self, queue: str) -> int:
        """What jobs hold that are not larger than the quota."""
        quota = self.quotas[queue]
        return sum(job.size for job, _ in self.running.values() if job.queue == queue and job.size <= quota)

    def start(self, job: Job, nodes: Sequence[int]) -> None:
        where = Counter({node: count * job.gpus for node, count in Counter(nodes).items()})
        self.running[job.name] = job, where
        self.fresh.add(job.name)
        for node, count in where.items():
            self.free[node] -= count

    def stop(self, name: str) -> None:
        for node, count in self.running.pop(name)[1].items():
            self.free[node] += count


def plan(picture: Picture, job: Job, spare: Container[str] = ()) -> list[str] | None:
    """The fewest that a job within quota needs stopped, none of them among `spare`; None: there is no plan."""
    quotas, mine = picture.quotas, job.queue
    assert picture.held(mine) + job.size <= quotas[mine], f"{job.name} is not within its quota"
    model = cp_model.CpModel()
    goes: dict[str, cp_model.IntVar] = {}
    of_queue: dict[str, list[Job]] = defaultdict(list)
    for name, (victim, _) in picture.running.items():
        over = victim.queue != mine and picture.held(victim.queue) > quotas[victim.queue]
        if over and name not in spare and name not in picture.fresh:
            goes[name] = model.new_bool_var(name)
            of_queue[victim.queue].append(victim)
    lost = []
    for queue, victims in of_queue.items():
        last = {victim.name: model.new_bool_var(f"last {victim.name}") for victim in victims}
        model.add(sum(last.values()) <= 1)
        for name, is_last in last.items():
            model.add_implication(is_last, goes[name])
        before_last = sum(victim.size * (goes[victim.name] - last[victim.name]) for victim in victims)
        model.add(before_last <= picture.held(queue) - quotas[queue] - 1)
        within = picture.within(queue)
        loss = model.new_int_var(0, within, f"lost by {queue}")
        small = sum(victim.size * goes[victim.name] for victim in victims if victim.size <= quotas[queue])
        model.add(loss >= min(within, quotas[queue]) - within + small)
        lost.append(loss)
    model.add(sum(lost) <= job.size - 1)
    tasks = []
    for node, free in enumerate(picture.free):
        here = model.new_int_var(0, job.tasks, f"on {node}")
        freed = sum(picture.running[name][1][node] * going for name, going in goes.items())
        model.add(here * job.gpus <= free + freed)
        tasks.append(here)
    model.add(sum(tasks) == job.tasks)
    model.minimize(sum(goes.values()))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    found = solver.solve(model)
    assert found in (cp_model.OPTIMAL, cp_model.INFEASIBLE), solver.status_name(found)
    return [name for name, going in goes.items() if solver.value(going)] if found == cp_model.OPTIMAL else None
