"""The allocator: `Allocator.handle(event, now)` returns actions. No clock, randomness or input and output in here.

This file has what others call. What decides, in the order in which a decision needs it:

    transaction.py one cycle: events, what follows from them; or nothing has changed
    apply.py       what each event means for the state     nodes.py, attempts.py, losses.py: of nodes and attempts
    shares.py      fair shares: exact weighted max-min
    decide.py      the cycle: in which order the ways to start jobs are tried
    news.py        what has changed, and which asks that wakes
    starting.py    starting what fits                           room.py    making room for the others
    order.py       the order of queues and jobs
    placement.py   limits and quotas; places for a gang         space.py   free GPUs, indexed
    rules.py       what may be done to a job that runs, and what is lost: one table
    search.py      room for a gang: one search, by one of these means
        moves.py       others move                             holes.py: whether that can help
        elastic.py     others shrink; they grow back
        victims.py     others are stopped, by reclaim or preemption
                       candidates.py, lines.py: which may be, in which order      holders.py: where they are
                       singles.py: one that is enough    proof.py: the check
        clearing.py    the cheapest way to make room for one task on one node
        widening.py    fewer to stop and to move, where the first answer may be too many
                       plan.py: what it has found
    ageing.py      reservations for jobs that have waited too long
    watch.py       what each blocked class waits for
    turn.py        what happens to a job                        state.py   the ledger      journal.py   undo
    queues.py, jobs.py, shapes.py, lists.py   what the ledger is about
    explain.py     why, and what would change it                snapshot.py   the whole state as text, and back

`validate()` checks every invariant and runs after every event of every test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpushare.cluster import explain, views
from gpushare.cluster.apply import known
from gpushare.cluster.checks import bad, check_policy
from gpushare.cluster.model import (
    Action,
    Event,
    Explanation,
    Job,
    JobSubmitted,
    JobView,
    JobWithdrawn,
    Loan,
    NodeAdded,
    NodeView,
    Place,
    Policy,
    QueueAdded,
    QueueView,
    Reason,
    Share,
    WhatIf,
)
from gpushare.cluster.state import State
from gpushare.cluster.transaction import Transactions

__all__ = ["Allocator"]


class Allocator:
    """One cluster: events go in, actions come out, and questions are answered. model.py has their words and units.

        allocator = Allocator()
        allocator.handle([NodeAdded(Node("n1", 8)), QueueAdded(Queue("lab", quota=gpus(6)))], now=0)
        actions = allocator.handle(JobSubmitted(Job("train", "lab", (Tasks(gpus=2),))), now=10)
        [action.job for action in actions if isinstance(action, Start)]          # ["train"]

    GPUs are counted in millionths (`quantity.gpus(0.5) == 500_000`), memory in bytes, time in seconds. Nothing is
    started: who runs the jobs carries the actions out and reports with JobEnded what has ended. What makes no sense
    raises an error of gpushare.errors that names the place, and then nothing has changed. Not for several threads.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        """An empty cluster. UsageError for a policy that makes no sense."""
        self.policy = policy or Policy()
        check_policy(self.policy)
        self._state = State(self.policy)
        self._turns = Transactions(self._state)

    def handle(self, event: Event | Iterable[Event], now: float) -> list[Action]:
        """What follows from the event, or from several that come together: all of them count, or if one is wrong none.

        `now` is in seconds of any clock. It never goes back; a smaller one counts as the last. Raises UsageError for an
        event that makes no sense, NoSuchJob for an unknown job.
        """
        if isinstance(now, bool) or not isinstance(now, (int, float)) or not abs(now) < float("inf"):
            raise bad(
                "now", f"{now!r} is not a moment", "hand in seconds as a number, of any clock that does not go back"
            )
        return self._turns.keep(event if isinstance(event, Iterable) else (event,), now).out

    # ---- questions -----------------------------------------------------------------------------------

    def explain(self, job: str) -> Explanation:
        """Why a job waits or runs, and for one that waits the smallest change that would start it, tried out.

        Slower than handle(): each remedy costs turns that are undone again. NoSuchJob if it is unknown."""
        return explain.explain(self._turns, known(self._state, job))

    def what_if(self, changes: Iterable[Event]) -> WhatIf:
        """What would happen after these events, and what time alone brings at once; the state is as before.

        Raises what handle() would."""
        with self._turns.tried(changes) as turn:
            running = frozenset(name for name, job in self._state.jobs.items() if job.places)
            allocated = {name: queue.allocated for name, queue in self._state.queues.items()}
            shares = {name: share.share for name, share in self.shares().items()}
            return WhatIf(tuple(turn.out), running, allocated, shares)

    def never(self, jobs: Iterable[Job]) -> dict[str, Reason]:
        """Jobs that could not start if they had the cluster to themselves, one at a time, and why not.

        Nodes that come, larger limits and quotas would change it; other jobs that end would not."""
        empty = Allocator(self.policy)
        empty.handle([NodeAdded(view.node) for view in self.nodes.values() if view.alive], 0.0)
        parents_first = sorted(self._state.queues.values(), key=lambda one: len(one.path))
        empty.handle([QueueAdded(one.spec) for one in parents_first], 0.0)
        found = {}
        for job in jobs:
            empty.handle(JobSubmitted(replace(job, wait=True)), 0.0)
            if empty.jobs[job.id].state == "pending":
                found[job.id] = empty.explain(job.id).reason
            empty.handle(JobWithdrawn(job.id), 0.0)
        return found

    def shares(self) -> dict[str, Share]:
        """The fair share of each queue with the sum that it comes from (micro-GPUs), in the order of the queues."""
        return views.shares(self._state)

    def loans(self) -> list[Loan]:
        """Who holds more than its quota, and whose unused quota that is (micro-GPUs)."""
        return views.loans(self._state)

    @property
    def next_wake(self) -> float | None:
        """When time alone changes something (seconds): a protection or a hold ends, a job has waited long enough.

        Hand in TimePassed() then, if no event comes before. None: never."""
        return self.now if self._turns.again else views.next_wake(self._state, self.now)

    @property
    def now(self) -> float:
        """Seconds: the largest that was handed in."""
        return self._turns.now

    def limit(self, job: str, place: Place) -> int:
        """Bytes that a task of the job may use of each of its GPUs at most: its own limit, or its queue's default."""
        return views.limit(known(self._state, job), place, self._state.space.by_name[place.node].memory)

    def validate(self) -> None:
        """Raise AssertionError if the state contradicts itself or an invariant."""
        views.validate(self._state)

    def dump(self) -> dict[str, Any]:
        """The whole state as plain sorted data: equal states give equal dumps."""
        return views.dump(self._state)

    # ---- views ---------------------------------------------------------------------------------------

    @property
    def jobs(self) -> Mapping[str, JobView]:
        """Waiting and running jobs by name, as they are when they are looked up. What has ended is forgotten."""
        return _View(self._state.jobs, views.job)

    @property
    def holding(self) -> tuple[str, ...]:
        """Names of the jobs that have places, in the order in which they came."""
        return tuple(name for name, job in self._state.jobs.items() if job.places)

    @property
    def queues(self) -> Mapping[str, QueueView]:
        """By name, as they are when they are looked up."""
        return _View(self._state.queues, views.queue)

    @property
    def leaving(self) -> Mapping[tuple[str, int], tuple[Place, ...]]:
        """Places that tasks told to stop still hold, by job and attempt."""
        return dict(self._state.leaving)

    @property
    def nodes(self) -> Mapping[str, NodeView]:
        """By name, as they are when they are looked up; lost ones, too."""
        return _View(self._state.space.by_name, views.node)


class _View(Mapping[str, Any]):
    """A dictionary of states, shown one by one as views."""

    def __init__(self, states: Mapping[str, Any], show: Any) -> None:
        self._states, self._show = states, show

    def __getitem__(self, name: str) -> Any:
        return self._show(self._states[name])

    def __contains__(self, name: object) -> bool:
        return name in self._states

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)
