"""One turn: the state, the time, what has been decided so far; and the four things that can happen to a job.

    begin    tasks get their places: the job starts, or starts once those whose places they were have ended
    lift     a task is taken off its place, for now: part of a search
    evict    jobs whose tasks were lifted for good wait again
    resize   a job goes up or down its ladder where it is

With Policy.endings == "reported" a place that was taken from a running task is *left*, not free: the new owner holds
it in the ledger from the decision on, so nobody else can take it, and is started when it is empty. The order in which
tasks end does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gpushare.cluster.claimed import claim, leave, must_wait, unclaim
from gpushare.cluster.jobs import NOTHING_SEEN, JobState
from gpushare.cluster.model import (
    Action,
    Grow,
    Move,
    Place,
    Preempt,
    Reason,
    Shrink,
    Start,
    Stop,
)
from gpushare.cluster.queues import QueueState
from gpushare.cluster.rules import OFTEN, Barrier, How, barrier, guarded_until
from gpushare.cluster.sizes import note_sizes
from gpushare.cluster.state import State
from gpushare.cluster.watch import OVER

STEPS = 20_000
"""Of wider searches (widening.py), all those of a turn together."""


class Turn:
    __slots__ = (
        "about",
        "again",
        "arrived",
        "indexed",
        "lines",
        "now",
        "number",
        "out",
        "partial",
        "reported",
        "spent",
        "state",
        "steps",
    )

    def __init__(self, state: State, now: float) -> None:
        self.state = state
        self.now = now
        state.turn += 1
        self.number = state.turn
        self.out: list[Action] = []
        self.about: dict[str, list[int]] = {}
        """By job, where in `out` its actions are; of the first `indexed` of them."""
        self.indexed = 0
        self.reported = state.policy.endings == "reported"
        self.again = False
        """What was started in this cycle may have to go: decide once more."""
        self.arrived: list[JobState] = []
        """Jobs submitted in this turn."""
        self.partial: list[JobState] = []
        """Jobs restored with fewer tasks than their gang needs."""
        self.spent = False
        """A search has spent its steps and found nothing."""
        self.lines: dict[object, Any] = {}
        """Who may be stopped, in order: see lines.py."""
        self.steps = STEPS
        """What is left for wider searches."""

    # ---- begin ---------------------------------------------------------------------------------------

    def begin(self, job: JobState, places: Sequence[Place], rung: int, reason: Reason, backfill: bool = False) -> None:
        """The job, which waited, gets these places, which are occupied in the ledger already. It pays for them."""
        state, cls = self.state, job.cls
        journal = state.journal
        charge = 0
        for place in places:
            charge += place.charge
        state.pay(job, charge)
        state.delist(cls.pending, job.seq)
        entries = journal.entries
        state.watch.changed[job.queue] = None
        for queue in job.queue.path:
            if queue.served != self.now:
                journal.set(queue, "served", self.now)
        kept = (job.attempt, job.rung, job.since, job.changed, job.backfill, job.reason, job.given_in)
        entries.append((_restore, job, kept))
        job.attempt += 1
        job.rung = rung
        job.since = job.changed = self.now
        job.backfill = backfill
        job.reason = reason
        job.given_in = self.number
        state.enlist(cls.running, job.run)
        if job.evictions and not cls.uneven:
            journal.set(cls, "uneven", True)
        shape = cls.shape
        if shape.elastic or shape.rungs > 1:
            note_sizes(state, job)
        if backfill:
            journal.put(state.backfills, job.seq, None)
        if job.job.min_runtime or job.queue.granted:
            self.guard(job)
        self._correct_demand(job)
        if self.reported and must_wait(state, job, places):
            claim(state, job, places)
        else:
            self.out.append(Start(job.job.id, job.attempt, tuple(places), rung, reason, backfill))

    def extend(self, job: JobState, places: Sequence[Place], reason: Reason) -> None:
        """An elastic job that runs gets further tasks."""
        state = self.state
        state.pay(job, sum(place.charge for place in places))
        state.watch.changed[job.queue] = None
        state.journal.set(job, "given_in", self.number)
        note_sizes(state, job)
        self._correct_demand(job)
        # While its gang waits for others to end, what comes later waits with it.
        if self.reported and (job.unstarted or must_wait(state, job, places)):
            claim(state, job, places)
        else:
            self.out.append(Start(job.job.id, job.attempt, tuple(places), job.rung, reason, job.backfill))

    def guard(self, job: JobState) -> None:
        """Note until when rules forbid to stop it, or some of them do."""
        state = self.state
        end = guarded_until(job)
        if end > self.now:
            state.journal.put(state.guarded, job.seq, end)
        else:
            state.journal.drop(state.guarded, job.seq)

    def loosen(self, job: JobState) -> None:
        """It can be stopped or moved from now on, or may be."""
        watch = self.state.watch
        job.queue.changes += 1
        watch.changed[job.queue] = None
        watch.loose = True
        watch.publish(OVER)  # a move of it beside a stop may make room, whatever its queue holds
        self.state.version += 1
        if job.cls.tall:
            watch.publish_all()  # or shrunk

    def _correct_demand(self, job: JobState) -> None:
        """Bytes cost more on smaller GPUs than was expected: while it is there, that is what it asks for."""
        if job.cls.shape.by_bytes:
            self.state.ask(job, max(job.cls.demand, job.charge) - job.demand)

    def start_claimed(self) -> None:
        """Start those whose places have become empty."""
        state = self.state
        for seq in sorted(state.waiting):
            job = state.by_seq[seq]
            places = [job.unstarted[key] for key in sorted(job.unstarted)]
            for place in places:
                state.claim(place, -1)
            if must_wait(state, job, places):
                for place in places:
                    state.claim(place, 1)
                continue
            for key in list(job.unstarted):
                state.journal.drop(job.unstarted, key)
            state.journal.drop(state.waiting, seq)
            state.journal.set(job, "given_in", self.number)
            if len(places) == len(job.places):
                self.runs_since(job, self.now)
            self.guard(job)
            self.loosen(job)
            self.out.append(Start(job.job.id, job.attempt, tuple(places), job.rung, job.reason, job.backfill))

    # ---- lift, evict, move -----------------------------------------------------------------------------

    def lift(self, job: JobState, place: Place) -> None:
        self.state.vacate(job, place)
        self.state.pay(job, -place.charge)

    def put_back(self, job: JobState, place: Place) -> None:
        self.state.occupy(job, place)
        self.state.pay(job, place.charge)

    def evicted(self, job: JobState, places: Sequence[Place], for_job: str, reason: Reason) -> None:
        """These places, lifted already, are lost for good."""
        leave(self.state, job, places)
        whole = not job.places
        if whole:
            state = self.state
            state.delist(job.cls.running, job.run)
            state.journal.set(job, "evictions", job.evictions + 1)
            state.journal.set(job, "disturbed", (*job.disturbed, self.now)[-OFTEN:])
            state.enlist(job.cls.running, job.run)
        self.out.append(Preempt(job.job.id, job.attempt, tuple(sorted(places)), whole, for_job, reason))
        self.after_loss(job, reason)

    def after_loss(self, job: JobState, reason: Reason) -> None:
        """Some of its places are gone: it goes on with the rest, or waits again when there is none."""
        state, cls = self.state, job.cls
        if not job.places:
            state.delist(cls.running, job.run)
            state.enlist(cls.pending, job.seq)
            self.forget_run(job)
            state.journal.set(job, "reason", reason)
            state.journal.set(job, "since", self.now)
            state.journal.set(job, "evicted_in", self.number)
            if job.seen:
                state.journal.set(job, "seen", NOTHING_SEEN)
            state.open(cls)
        elif cls.shape.elastic:
            note_sizes(state, job)
            state.open(cls)
        self._correct_demand(job)

    def runs_since(self, job: JobState, since: float) -> None:
        """It is running, and started at another time than was noted."""
        state, running = self.state, job.cls.running
        job.queue.changes += 1
        state.delist(running, job.run)
        state.journal.set(job, "since", since)
        state.enlist(running, job.run)

    def forget_run(self, job: JobState) -> None:
        """Notes about a run that is over."""
        state = self.state
        state.journal.drop(state.guarded, job.seq)
        if job.stall is not None:
            state.journal.set(job, "stall", None)
            state.journal.drop(state.stalled, job.seq)
        if job.cls.shape.elastic or job.cls.shape.rungs > 1:
            note_sizes(state, job)
        if job.backfill:
            state.journal.drop(state.backfills, job.seq)
            state.journal.set(job, "backfill", False)

    def moved(self, job: JobState, old: Sequence[Place], for_job: str, reason: Reason) -> None:
        """These places, lifted already, have become others, which are occupied and paid for."""
        keys = sorted((place.group, place.task) for place in old)
        new = [job.places[key] for key in keys]
        leave(self.state, job, old)
        self._correct_demand(job)
        self.state.journal.set(job, "given_in", self.number)
        self.state.watch.changed[job.queue] = None
        self.state.journal.set(job, "resized_in", self.number)
        self.out.append(Move(job.job.id, job.attempt, tuple(sorted(old)), tuple(new), for_job, reason))
        if self.reported:
            claim(self.state, job, new)

    def stop(self, job: JobState, reason: Reason, again: bool, gone: Iterable[Place] = ()) -> None:
        """All of a placed job is stopped; `gone` are places that it has lost already with their node."""
        places = job.ordered
        started = [place for place in places if (place.group, place.task) not in job.unstarted]
        leave(self.state, job, [place for place in started if place not in set(gone)])
        unclaim(self.state, job, places)
        for place in places:
            self.lift(job, place)
        if started or again:
            self.out.append(Stop(job.job.id, job.attempt, tuple(started), again, reason))
        if again:
            self.after_loss(job, reason)

    # ---- resize --------------------------------------------------------------------------------------

    def resize(self, job: JobState, rung: int) -> None:
        """Down or up the ladder in place; the caller has seen that there is room."""
        state = self.state
        places = job.ordered
        for place in places:
            self.lift(job, place)
        for place in places:
            need = job.shape.groups[place.group].needs[rung]
            memory = state.space.by_name[place.node].memory
            new = place._replace(amount=need.on(memory), charge=need.charge(memory))
            self.put_back(job, new)
            if (place.group, place.task) in job.unstarted:
                state.claim(place, -1)
                state.claim(new, 1)
                state.journal.put(job.unstarted, (place.group, place.task), new)
        state.journal.set(job, "rung", rung)
        note_sizes(state, job)

    def shrunk(self, job: JobState, for_job: str, reason: Reason) -> None:
        """It has gone down its ladder; what starts in this turn starts there instead."""
        self.state.journal.set(job, "changed", self.now)
        if job.given_in != self.number or not self._restated(job):
            self.out.append(Shrink(job.job.id, job.rung, tuple(job.ordered), for_job, reason))

    def grown(self, job: JobState, reason: Reason) -> None:
        self.state.journal.set(job, "changed", self.now)
        self.state.journal.set(job, "given_in", self.number)
        self.state.journal.set(job, "resized_in", self.number)
        self.out.append(Grow(job.job.id, job.rung, tuple(job.ordered), reason))

    def _restated(self, job: JobState) -> bool:
        """Say in this turn's starts and shrinks of the job what its places are now; whether these are all of them."""
        for index in range(self.indexed, len(self.out)):
            self.about.setdefault(self.out[index].job, []).append(index)
        self.indexed = len(self.out)
        told: set[Place] = set()
        for index in self.about.get(job.job.id, ()):
            action = self.out[index]
            if isinstance(action, (Start, Shrink)):
                places = tuple([job.places[place.group, place.task] for place in action.places])
                self.out[index] = action._replace(places=places, rung=job.rung)
                told.update(places)
        return len(told) == len(job.places)

    def take_back(self, length: int) -> None:
        """Actions after so many were only tried out."""
        del self.out[length:]
        if self.indexed > length:
            self.indexed = 0
            self.about.clear()


def _restore(job: JobState, kept: tuple[int, int, float, float, bool, Reason, int]) -> None:
    job.attempt, job.rung, job.since, job.changed, job.backfill, job.reason, job.given_in = kept


def allows(turn: Turn, job: JobState, how: How) -> bool:
    """Do the rules allow this now?"""
    why = barrier(job, how, turn.now, turn.number)
    if why is Barrier.GIVEN_NOW:
        turn.again = True  # what was given in this cycle can be taken in the next, which is to follow
    return why is None


def spread(queue: QueueState) -> bool:
    for one in queue.path:
        if one.spec.placement is not None:
            return one.spec.placement == "spread"
    return False
