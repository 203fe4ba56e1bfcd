"""Turns in computing: which job of a GPU may launch now, while several want to and one of them has asked for a part of
the GPU's time (`--compute`, `--exclusive`).

One `Turns` a GPU. `look` is told every few milliseconds what the launches of each job did since the last look, and says
who may launch until the next one. Three states:

    free      at most one job computes: all may launch. The first two that compute at once begin with turns
    a turn    one job launches, the others wait, until its turn is over and another job is next, or until it is idle
    leaving   the job whose turn is over may launch no more; the others wait until the GPU has done what it launched

A job's weight is its `compute`; those that ask for none divide what is left. The next turn is that of the job that has
had the least time for its weight, so a turn that took longer than it should is made up for. A job that was idle cannot
save up more than one turn.

A holder is idle that has launched nothing for a moment and whose work the GPU has done; it loses the turn at once. What
a process does not answer is waited for only so long: a program that is stopped, or gone, blocks nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpushare.job_spec import JobSpec
from gpushare.quantity import format_duration
from gpushare.reasons import Code, Reason

__all__ = ["Orders", "Seen", "Terms", "Turn", "Turns", "refusal", "weights"]

LATELY = 1.0
"""Seconds."""
MUCH = 2
"""A job that has had so many turns of its own less than the holder does not wait for the end of the holder's."""
LEAST_WEIGHT = 0.05
"""Of a job where the others have asked for all of the time."""


class Turn(StrEnum):
    """Of a job on a GPU."""

    FREE = "free"
    """It may launch: nobody else wants to."""
    HOLDS = "holds"
    LEAVING = "leaving"
    """Its turn is over; the GPU still does what it has launched."""
    WAITS = "waits"
    SUSPENDED = "suspended"
    """Its job is suspended: it launches nothing, and takes no turns until it goes on."""
    NOT_HELD = "not_held"
    """Its launches cannot be held back: it was started elsewhere, or otherwise, or uses several GPUs."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds."""

    turn: float = 0.1
    quiet: float = 0.0035
    """A holder that has launched nothing for so long is asked whether the GPU is done, and for so long after its answer
    it may launch again."""
    least: float = 0.02
    """A turn of no more than the usual length ends so early for a job that has had much less: one that computes now and
    then."""
    begin: float = 0.03
    """A holder that has launched nothing so long after its turn began does not want it any more."""
    drain: float = 1.0
    """The longest that the others wait for work of a turn that is over."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A job since the last look."""

    job: str
    weight: float
    length: float
    """Seconds of one turn of it."""
    launched: bool = False
    waits: bool = False
    """A launch of it waits."""
    done: bool = True
    """The GPU has done what it had launched when that was last asked. True, too, if that was not asked, and if all its
    processes are stopped (SIGSTOP)."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Until the next look."""

    closed: frozenset[str] = frozenset()
    """The jobs that may not launch."""
    ask: frozenset[str] = frozenset()
    """The jobs that are now to be asked whether the GPU has done what they have launched."""
    busy: bool = False
    """Look again soon."""


class Turns:
    """Of one GPU."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.holder: str | None = None
        self.leaving = False
        self.spent: dict[str, float] = {}
        """Job -> seconds of its turns, for as long as the job is there."""
        self.count = 0
        """Turns so far."""
        self._virtual: dict[str, float] = {}
        """Job -> seconds of its turns by its weight."""
        self._seen_at: dict[str, float] = {}
        """Job -> when it was last seen to launch, or to wait."""
        self._clock = 0.0
        """What the job of the last turn had of these when it began."""
        self._looked = self._began = self._launched = self._ends = self._left = 0.0
        self._worked = False
        """The holder has launched something in its turn."""
        self._asked: float | None = None
        self._answered: float | None = None
        self._waiting: frozenset[str] = frozenset()

    def state_of(self, job: str) -> Turn:
        if job == self.holder:
            return Turn.LEAVING if self.leaving else Turn.HOLDS
        return Turn.WAITS if self.holder is not None and job in self._waiting else Turn.FREE

    def look(self, now: float, jobs: Sequence[Seen]) -> Orders:
        """What the jobs with launches that can be held back did since the last look. `now` never goes back."""
        by_id = {one.job: one for one in jobs}
        for known in (self.spent, self._virtual, self._seen_at):
            for gone in [job for job in known if job not in by_id]:
                del known[gone]
        self._charge(now, by_id)
        self._waiting = frozenset(one.job for one in jobs if one.waits)
        self._seen_at |= {one.job: now for one in jobs if one.launched or one.waits}
        holder = by_id.get(self.holder or "")
        if holder is None:
            self.holder, self.leaving = None, False
            return self._watch(now, jobs, by_id)
        return self._leave(now, holder, by_id) if self.leaving else self._hold(now, holder, by_id)

    def _watch(self, now: float, jobs: Sequence[Seen], by_id: Mapping[str, Seen]) -> Orders:
        """Everybody may launch. Kernels may be longer than the time between two looks: so where several jobs compute in
        turn, each is asked whether its kernel is done."""
        wanting = [one for one in jobs if one.waits or one.launched or not one.done]
        if len(wanting) >= 2 or self._waiting:
            return self._begin(now, wanting, by_id)
        return Orders(ask=frozenset(one.job for one in jobs if one.launched and self._others_lately(now, one)))

    def _others_lately(self, now: float, one: Seen) -> bool:
        """Whether another job has computed or waited a short while ago."""
        return any(now - at < LATELY for job, at in self._seen_at.items() if job != one.job)

    # ---- steps -------------------------------------------------------------------------------------

    def _charge(self, now: float, by_id: Mapping[str, Seen]) -> None:
        passed, self._looked = now - self._looked, now
        holder = by_id.get(self.holder or "")
        if holder is not None:
            self.spent[holder.job] = self.spent.get(holder.job, 0.0) + passed
            self._virtual[holder.job] = self._virtual.get(holder.job, self._clock) + passed / holder.weight

    def _begin(self, now: float, wanting: Collection[Seen], by_id: Mapping[str, Seen]) -> Orders:
        """A turn of the one that has had the least."""
        chosen = min(wanting, key=self._had)
        self._clock = self._had(chosen)
        self._virtual[chosen.job] = self._clock
        self.holder, self.leaving = chosen.job, False
        self.count += 1
        self._began = self._launched = now
        self._ends, self._worked = now + chosen.length, chosen.launched or not chosen.done
        self._asked = self._answered = None
        return self._others_wait(by_id)

    def _had(self, one: Seen) -> float:
        """Time of its turns by its weight. At least so much that it has saved up one turn and no more."""
        return max(self._virtual.get(one.job, self._clock), self._clock - one.length / one.weight)

    def _hold(self, now: float, holder: Seen, by_id: Mapping[str, Seen]) -> Orders:
        if holder.launched:
            self._launched, self._worked, self._asked, self._answered = now, True, None, None
        if now >= self._ends or self._is_behind(now, holder, by_id):
            chosen = min((one for one in by_id.values() if one.waits or one is holder), key=self._had)
            if chosen is not holder:
                self.leaving, self._left = True, now
                return self._others_wait(by_id, ask=holder.job, also=holder.job)
            if not self._others_lately(now, holder):
                return self._next(now, by_id)
            self._clock = max(self._clock, self._had(holder))
            self._ends = now + holder.length
        if now - self._launched < (self.terms.quiet if self._worked else self.terms.begin):
            return self._others_wait(by_id)
        return self._is_it_idle(now, holder, by_id)

    def _is_behind(self, now: float, holder: Seen, by_id: Mapping[str, Seen]) -> bool:
        """Whether a job waits that has had much less than the holder."""
        if holder.length > self.terms.turn or now - self._began < self.terms.least:
            return False
        had = self._had(holder)
        waiting = map(by_id.__getitem__, self._waiting)
        return any(self._had(one) + MUCH * one.length / one.weight < had for one in waiting)

    def _is_it_idle(self, now: float, holder: Seen, by_id: Mapping[str, Seen]) -> Orders:
        if not self._worked:
            return self._next(now, by_id)
        if self._asked is None:
            self._asked = now
            return self._others_wait(by_id, ask=holder.job)
        if holder.done and self._answered is None:
            self._answered = now
        if self._answered is None or now - self._answered < self.terms.quiet:
            return self._others_wait(by_id)
        return self._next(now, by_id)

    def _leave(self, now: float, holder: Seen, by_id: Mapping[str, Seen]) -> Orders:
        if holder.done or now - self._left >= self.terms.drain:
            return self._next(now, by_id)
        return self._others_wait(by_id, also=holder.job)

    def _next(self, now: float, by_id: Mapping[str, Seen]) -> Orders:
        """The turn is over for certain: that of another begins, if one waits."""
        self.holder, self.leaving = None, False
        wanting = [one for one in by_id.values() if one.waits]
        return self._begin(now, wanting, by_id) if wanting else Orders()

    def _others_wait(self, by_id: Mapping[str, Seen], ask: str | None = None, also: str | None = None) -> Orders:
        closed = frozenset(job for job in by_id if job != self.holder or job == also)
        return Orders(closed, frozenset() if ask is None else frozenset((ask,)), busy=True)


def weights(asked: Mapping[str, float | None]) -> dict[str, float]:
    """Job -> its part of the time: what it has asked for; the others divide the rest."""
    told = {job: part for job, part in asked.items() if part}
    rest = max(0.0, 1.0 - sum(told.values())) / max(1, len(asked) - len(told))
    return {job: told.get(job, max(rest, LEAST_WEIGHT)) for job in asked}


def refusal(spec: JobSpec, *, on: bool, longest: float) -> Reason | None:
    """Why a job cannot have the turns that it asks for. `on`: whether jobs take turns on this node; `longest`: seconds
    that one may have at a stretch."""
    named = [
        name for name, value in (("--compute", spec.compute), ("--exclusive", spec.exclusive)) if value is not None
    ]
    if not named:
        return None
    option = " and ".join(named)
    if not on:
        hint = "leave it out, or ask the administrator for `[compute] turns = true` in the daemon's settings"
        return Reason(Code.NO_TURNS, f"{option}: jobs take no turns in computing on this node", hint=hint)
    if spec.gpus != 1:
        hint = "ask for one GPU: programs on several wait for each other's kernels, and turns would stop them"
        return Reason(Code.NO_TURNS, f"{option}: jobs on several GPUs take no turns in computing", hint=hint)
    if spec.observe:
        hint = "leave --mode observe out: an observed program runs without the library that holds launches back"
        return Reason(Code.NO_TURNS, f"{option}: an observed job takes no turns in computing", hint=hint)
    if spec.exclusive is not None and spec.exclusive > longest:
        message = f"--exclusive {format_duration(spec.exclusive)}: a turn is at most {format_duration(longest)} here"
        return Reason(Code.NO_TURNS, message, hint="the administrator sets `[compute] longest`")
    return None
