"""What every service answers, whatever its engine: queues, nodes, the state. Subclasses answer the rest."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.codec import encode, plain
from gpushare.cluster.model import (
    Event,
    JobChanged,
    NodeCordoned,
    NodeDrained,
    NodeUncordoned,
    Policy,
    QueueAdded,
    QueueChanged,
    QueueRemoved,
)
from gpushare.cluster.service.book import Entry
from gpushare.cluster.service.driver import Driver
from gpushare.cluster.service.overview import overview
from gpushare.cluster.service.shown import Shown
from gpushare.cluster.simulation import VERBS, describe
from gpushare.cluster.snapshot import take
from gpushare.errors import NoSuchJob, NotPermitted, UsageError
from gpushare.nearest import what_there_is

__all__ = ["Caller", "Common", "ambiguous", "no_such_job"]

OVERVIEW_FOR = 10.0
"""Seconds that an overview is good for while nothing happens: time passes in it."""


class Caller(NamedTuple):
    """The user who asks, as the kernel names it."""

    uid: int
    gid: int
    user: str
    admin: bool

    def may_change(self, uid: int) -> bool:
        return self.admin or self.uid == uid


def ambiguous(name: str, ids: Sequence[str]) -> UsageError:
    """The error for a name that several jobs have."""
    return UsageError(f"{name!r} is {len(ids)} jobs", code="ambiguous_job", hint=f"name one of: {', '.join(ids[:8])}")


def no_such_job(name: str) -> NoSuchJob:
    return NoSuchJob(f"no job {name[:60]!r}", hint="`gpushare queue` lists them")


class Common(ABC):
    """One cluster that runs."""

    def __init__(self, work: Driver, *, engine: str) -> None:
        self.work = work
        self.engine = engine
        self.store = work.store
        self.clock = work.clock
        self.notices = work.notices
        self._state: tuple[int, dict[str, Any]] = (-1, {})
        self._overview: tuple[int, dict[str, Any]] = (-1, {})

    # ---- jobs ----------------------------------------------------------------------------------------

    @abstractmethod
    def submit(self, body: object, caller: Caller) -> dict[str, Any]:
        """{"id", "jobs", "actions"}. UsageError, NotPermitted, Refused, NoSuchJob (of `after`)."""

    @abstractmethod
    def cancel(self, name: str, caller: Caller, *, now: bool = False, dry_run: bool = False) -> dict[str, Any]:
        """Take back a job, or all jobs of an array. A job is over when none of its tasks runs. `now`: without grace.
        `dry_run`: nothing happens, and {"would"} says what would follow."""

    @abstractmethod
    def hold(self, name: str, caller: Caller) -> dict[str, Any]:
        """Keep waiting jobs from starting until release(). UsageError if one of them runs."""

    @abstractmethod
    def release(self, name: str, caller: Caller) -> dict[str, Any]:
        """Let jobs start that hold() or failed starts keep back. Jobs that they follow keep them back as before."""

    @abstractmethod
    def ids(self, *, queue: str | None = None, user: str | None = None) -> list[str]:
        """Ids of the jobs that are not over, in the order in which they came."""

    def listed(
        self, *, ended: bool, queue: str | None = None, user: str | None = None
    ) -> tuple[list[Shown], list[str]]:
        """At one moment: what is shown of the latest jobs that are over, if these are wanted, and ids of the others."""
        ids = self.ids(queue=queue, user=user)
        return (self.shown_ended(queue=queue, user=user) if ended else []), ids

    @abstractmethod
    def shown(self, ids: Iterable[str], *, ended: bool = False) -> list[Shown]:
        """What is shown of each of these jobs that is not over; with `ended` also of those that are by now."""

    @abstractmethod
    def shown_ended(self, *, queue: str | None = None, user: str | None = None) -> list[Shown]:
        """What is shown of the latest jobs that are over."""

    @abstractmethod
    def show(self, name: str, caller: Caller) -> Shown:
        """One job, over or not; with what it is run with, if it is the caller's."""

    @abstractmethod
    def explain(self, name: str) -> dict[str, Any]:
        """Why a job waits or runs, and the smallest change that would start it."""

    def _check_queue_name(self, queue: str | None) -> None:
        queues = self.store.allocator.queues
        if queue is not None and queue not in queues:
            raise UsageError(f"no queue {queue[:60]!r}", hint=what_there_is(queue, queues))

    def _explained(self, id: str) -> dict[str, Any]:
        allocator = self.store.allocator
        explanation = allocator.explain(id)
        never = explanation.state == "pending" and bool(allocator.never([allocator.jobs[id].job]))
        return {**plain(explanation), "never": never}

    # ---- the cluster ---------------------------------------------------------------------------------

    @abstractmethod
    def cordon(self, node: str, draining: bool | None, caller: Caller) -> dict[str, Any]:
        """Start nothing more on the node; `draining`: also stop what runs there. None: jobs may start there again."""

    @abstractmethod
    def entries(self) -> Mapping[str, Entry]:
        """Jobs that are not over, by id."""

    def queues(self) -> dict[str, Any]:
        allocator = self.store.allocator
        shares = allocator.shares()
        queues = [{**plain(view), "share": plain(shares[name])} for name, view in allocator.queues.items()]
        return {"queues": queues, "loans": [plain(loan) for loan in allocator.loans()]}

    def nodes(self) -> dict[str, Any]:
        return {"nodes": [plain(view) for view in self.store.allocator.nodes.values()]}

    def change(self, events: Sequence[Event], caller: Caller, *, dry_run: bool = False) -> dict[str, Any]:
        """Queues and priorities, all together; `dry_run`: nothing happens, and {"would"} says what would follow."""
        self._administrator(caller, "queues")
        for event in events:
            if isinstance(event, NodeCordoned | NodeDrained | NodeUncordoned):
                raise UsageError("nodes are cordoned by themselves", hint="`gpushare cluster cordon NODE`")
            if not isinstance(event, QueueAdded | QueueChanged | QueueRemoved | JobChanged):
                raise UsageError(
                    f"nodes and the ends of jobs come from the engine {self.engine}: {type(event).__name__} is refused",
                    code="engine_knows",
                    hint="change queues and priorities here; cancel a job with `gpushare cluster cancel`; plan with "
                    "other nodes in another file: --store FILE",
                )
        if dry_run:
            return {"would": self._would(events)}
        actions = self.work.append(events)
        self.notices.add("changed", None, f"{caller.user} changed the queues", events=len(events))
        return {"actions": [plain(action) for action in actions]}

    def _would(self, events: Sequence[Event]) -> list[str]:
        """What would follow from these events, a line for each decision."""
        allocator = self.store.allocator
        return [
            f"{VERBS[type(action)]} {_called(allocator, action.job)}: {describe(action)}"
            for action in allocator.what_if(events).actions
        ]

    def overview(self, caller: Caller) -> dict[str, Any]:
        """What a page shows (overview.py), the engine, and what the caller may do."""
        seq = self.store.seq
        if self._overview[0] != seq or self.clock() - self._overview[1]["time"] > OVERVIEW_FOR:
            self._overview = seq, overview(self.store.allocator, self.entries(), self.clock())
        you = {"uid": caller.uid, "user": caller.user, "admin": caller.admin}
        return {**self._overview[1], "engine": self.engine, "you": you}

    def state(self) -> str:
        """JSON text with the cluster's time, policy and state, the last two as text that codec.py and snapshot.py read:
        what `gpushare cluster` makes its tables and plans of."""
        if self._state[0] != self.store.seq:
            policy = encode(self.store.policy, Policy)
            self._state = self.store.seq, {"policy": policy, "state": take(self.store.allocator)}
        return json.dumps({"now": self.store.at(self.clock()), **self._state[1]})

    def status(self) -> dict[str, Any]:
        views = list(self.store.allocator.queues.values())
        return {
            "engine": self.engine,
            "jobs": len(self.entries()),
            "running": sum(view.running for view in views),
            "waiting": sum(view.pending for view in views),
            "nodes": len(self.store.allocator.nodes),
            "rounds": self.work.count,
            "trouble": self.work.trouble,
            "seq": self.notices.seq,
            "store": str(self.store.path),
        }

    def _administrator(self, caller: Caller, what: str) -> None:
        if not caller.admin:
            raise NotPermitted(
                f"only administrators change {what}", hint="ask one, or see `admin_group` in the settings"
            )


def _called(allocator: Allocator, id: str) -> str:
    """A job's id, with its name if it has one."""
    view = allocator.jobs.get(id)
    return f"{id} ({view.job.name})" if view is not None and view.job.name else id
