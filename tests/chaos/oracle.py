"""Was it needed? Judges each stop that the daemon has recorded against what the harness knows (truth.py).

The daemon's own planner is not asked: all sets of borrowers are tried. Where the truth is a range, the daemon gets the
benefit of it, so that what is found here has happened.

A stop (SIGTERM, or SIGKILL where a job wants no notice) is at fault if at that moment

    nobody waited          there was no claim on that GPU
    no shortfall           free memory, unused credit and memory of the dead would have done
    no borrower            the victim had no loan, could have none, was protected, or was the claimant itself
    caches left            other jobs' unused caches would have covered it, and were not asked, or not waited for
    in vain                all loans together could not have met even the smallest claim
    too many               some of the victims would have covered what those already asked do not
    too dear               others would have: a set with fewer of the highest priority in which the two differ, or one
                           that spares the victim with clearly the most work to lose

and a SIGKILL after a SIGTERM if the grace was not over, if there was no shortfall any more, if some of the killed would
do, or if others that were told, all of lower priority, would do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from chaos.truth import Truth

SLACK = 0.05
"""Seconds by which two clocks' readings of one moment may differ: how long things take on a busy machine."""
TRIM_BEGIN = 1.0
"""So long a claim waits for a program to begin a trim."""
SAME_TURN = 0.002
CLEARLY = 1.3


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the daemon's story, with times of the monotonic clock and jobs by name."""

    time: float
    event: str
    job: str
    gpu: int
    facts: dict[str, object]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that must not happen."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass
class Oracle:
    """Follows the records in their order."""

    truth: Truth
    stopped: dict[str, bool] = field(default_factory=dict)
    """Jobs with a process that cannot act (SIGSTOP) -> True."""
    told: dict[tuple[str, int], float] = field(default_factory=dict)
    """(job, GPU) -> when it was told to stop, until it is relieved or gone."""
    killed: dict[tuple[str, int], float] = field(default_factory=dict)
    asked: dict[tuple[str, int], float] = field(default_factory=dict)
    """(job, GPU) -> when it was last asked to trim,"""
    answered: dict[tuple[str, int], float] = field(default_factory=dict)
    """and when that trim was over."""
    hooked: set[str] = field(default_factory=set)
    """Jobs whose relief hook runs, or that are just being suspended: they are asked for all already."""
    judged: int = 0

    def daemon_restarted(self) -> None:
        """The new one knows of nobody that was asked."""
        self.told.clear()
        self.asked.clear()
        self.answered.clear()

    def judge(self, records: Sequence[Record]) -> list[Fault]:
        """Faults in these records, which follow those of earlier calls."""
        faults: list[Fault] = []
        for turn in _turns(records):
            for gpu in {record.gpu for record in turn}:
                here = [record for record in turn if record.gpu == gpu]
                faults += self._judge_turn(gpu, here)
        return faults

    def _judge_turn(self, gpu: int, turn: list[Record]) -> list[Fault]:
        faults: list[Fault] = []
        time = turn[0].time
        terms = [record.job for record in turn if record.event == "term"]
        kills = [record.job for record in turn if record.event == "kill"]
        at_once = [job for job in kills if (job, gpu) not in self.told and job not in terms]
        after_grace = [job for job in kills if (job, gpu) in self.told]
        if after_grace:
            faults += self._judge_kills(gpu, time, after_grace)
        if terms or at_once:
            faults += self._judge_stops(gpu, time, [*terms, *at_once])
        for record in turn:
            self._note(record)
        return faults

    def _note(self, record: Record) -> None:
        key = (record.job, record.gpu)
        match record.event:
            case "trim":
                self.asked[key] = record.time
                self.answered.pop(key, None)
            case "trimmed":
                self.answered[key] = record.time
            case "hook" | "suspend":
                self.hooked.add(record.job)
            case "hook_gave" | "hook_failed" | "suspended" | "not_suspended":
                self.hooked.discard(record.job)
            case "term":
                self.told[key] = record.time
            case "kill":
                self.told.pop(key, None)
                self.killed[key] = record.time
            case "relieved" | "reclaimed":
                self.told.pop(key, None)
            case _:
                pass

    # ---- stops -------------------------------------------------------------------------------------

    def _judge_stops(self, gpu: int, time: float, victims: list[str]) -> list[Fault]:
        self.judged += len(victims)
        truth = self.truth
        what = f"{', '.join(victims)} on GPU {gpu} at {time:.3f}"
        claims = truth.claims(gpu, time)
        if not claims:
            return [Fault("nobody waited", what)]
        least, most = truth.shortfall(gpu, time)
        if most <= 0:
            return [Fault("no shortfall", f"{what}: {-most >> 20} MiB to spare; {truth.describe(gpu, time)}")]
        faults = [
            Fault("no borrower", f"{victim} of {what}: {why}")
            for victim in victims
            if (why := self._why_no_victim(victim, gpu, time, {ask.job for ask in claims}))
        ]
        if faults:
            return faults
        began = min(ask.began for ask in claims)
        caches = sum(self._untapped(job, gpu, time, began) for job in self._others(gpu, claims))
        if caches >= most:
            return [
                Fault("caches left", f"{what}: {caches >> 20} MiB unused for {most >> 20}; {truth.describe(gpu, time)}")
            ]
        coming = sum(truth.loan(job, gpu, time)[0] for job, where in self.told if where == gpu and job in truth.jobs)
        candidates = [job for job in self._candidates(gpu, time, claims) if job not in victims]
        everybody = sum(truth.loan(job, gpu, time)[1] for job in {*candidates, *victims, *self._told_on(gpu)})
        everybody += sum(truth.loan(job, gpu, time)[1] for job in self._perhaps(gpu, time, claims))
        if everybody < least:
            return [
                Fault(
                    "in vain",
                    f"{what}: {least >> 20} MiB missing, {everybody >> 20} MiB on loan; {truth.describe(gpu, time)}",
                )
            ]
        return self._cheaper(gpu, time, victims, candidates, most - coming, what)

    def _cheaper(
        self, gpu: int, time: float, victims: list[str], candidates: list[str], missing: int, what: str
    ) -> list[Fault]:
        truth = self.truth
        if missing <= 0:
            return [Fault("too many", f"{what}: those already asked cover it")]
        choice = sorted({*candidates, *victims})
        loans = {job: truth.loan(job, gpu, time)[0] for job in choice}
        changing = any(truth.jobs[job].changed > time - 1.0 for job in choice)
        for group in _subsets(choice):
            if set(group) == set(victims) or sum(loans[job] for job in group) < missing:
                continue
            others = f"{', '.join(group)} would do for {missing >> 20} MiB"
            if set(group) < set(victims):
                return [Fault("too many", f"{what}: {others}; {truth.describe(gpu, time)}")]
            if not changing and (why := self._milder(group, victims, gpu, time)):
                return [Fault("too dear", f"{what}: {others}, and {why}; {truth.describe(gpu, time)}")]
        return []

    def _milder(self, group: Sequence[str], victims: Sequence[str], gpu: int, time: float) -> str:
        """Why this group comes before the victims in the order, if it surely does."""
        spared, taken = set(victims) - set(group), set(group) - set(victims)
        level = {job: self._level(job, gpu, time, low=job in spared) for job in {*spared, *taken}}
        for one in sorted(set(level.values()), reverse=True):
            here = [job for job in spared if level[job] == one]
            instead = [job for job in taken if level[job] == one]
            if len(instead) != len(here):
                return "has fewer of the highest priority" if len(instead) < len(here) else ""
        top = max(level.values())
        most = max(self._lost(job, gpu, time)[1] for job in taken if level[job] == top)
        least = max(self._lost(job, gpu, time)[0] for job in spared if level[job] == top)
        return "has less to lose" if most * CLEARLY < least else ""

    def _level(self, name: str, gpu: int, time: float, *, low: bool) -> float:
        """Its priority; below all others if it may be above its own limit, where the daemon has the benefit of that."""
        job = self.truth.jobs[name]
        may_be_over = self.truth.usage(name, gpu, time)[1] > job.bounds[gpu][1]
        return float("-inf") if low and may_be_over else job.priority

    def _lost(self, name: str, gpu: int, time: float) -> tuple[float, float]:
        """The work that is lost with it, at the least and at the most."""
        job = self.truth.jobs[name]
        seconds = time - max(job.since, job.saved)
        low, high = self.truth.usage(name, gpu, time)
        return low * max(0.0, seconds - 0.5), high * (seconds + 0.5)

    def _why_no_victim(self, name: str, gpu: int, time: float, claimants: set[str]) -> str:
        job = self.truth.jobs.get(name)
        if job is None:
            return "it is over"
        if self.truth.loan(name, gpu, time)[1] <= 0:
            return "it has no loan"
        if not job.borrows_on(gpu):
            return "its limit is its request"
        if time - job.since < job.protected - SLACK:
            return "it is protected"
        return "it is the only claimant" if claimants == {name} else ""

    def _others(self, gpu: int, claims: Sequence[object]) -> list[str]:
        claimants = {ask.job for ask in claims}  # type: ignore[attr-defined]
        return [
            name
            for name, job in self.truth.jobs.items()
            if name not in claimants and gpu in job.bounds and job.borrows_on(gpu)
        ]

    def _told_on(self, gpu: int) -> list[str]:
        return [job for job, where in self.told if where == gpu and job in self.truth.jobs]

    def _candidates(self, gpu: int, time: float, claims: Sequence[object]) -> list[str]:
        """Who could surely have been stopped instead."""
        found = []
        for name in self._others(gpu, claims):
            job = self.truth.jobs[name]
            free_to = (name, gpu) not in self.told and (name, gpu) not in self.killed
            young = time - job.since < job.protected + 0.5
            if free_to and not young and not job.is_soft and self.truth.loan(name, gpu, time)[0] > 0:
                found.append(name)
        return found

    def _perhaps(self, gpu: int, time: float, claims: Sequence[object]) -> list[str]:
        """Who may have been one, beside those: the caches of the protected can be asked for, too."""
        sure = {*self._candidates(gpu, time, claims), *self._told_on(gpu)}
        return [name for name in self._others(gpu, claims) if name not in sure]

    def _untapped(self, name: str, gpu: int, time: float, began: float) -> int:
        """What the job would surely have given if it had been asked to trim, or waited for."""
        job = self.truth.jobs[name]
        if "trim" not in job.rungs or self.stopped.get(name) or name in self.hooked:
            return 0
        kept = min(self.truth.cache(name, gpu, time)[0], self.truth.loan(name, gpu, time)[0])
        asked = self.asked.get((name, gpu))
        if asked is None or asked < began - SLACK:
            return kept
        waiting = (name, gpu) not in self.answered and time < asked + TRIM_BEGIN - SLACK
        return kept if waiting else 0

    # ---- kills -------------------------------------------------------------------------------------

    def _judge_kills(self, gpu: int, time: float, victims: list[str]) -> list[Fault]:
        self.judged += len(victims)
        truth = self.truth
        what = f"{', '.join(victims)} killed on GPU {gpu} at {time:.3f}"
        faults = []
        for victim in victims:
            job = truth.jobs.get(victim)
            since = min(when for (name, _), when in self.told.items() if name == victim)
            begins = [ask.began for when in (since, time) for ask in truth.claims(gpu, when)]
            cut = min(begins, default=since) + truth.longest_grace - since
            grace = min(job.grace, max(0.0, cut)) if job is not None else 0.0
            if time - since < grace - SLACK:
                faults.append(Fault("hasty", f"{what}: {time - since:.3f} s of {grace:.3f} s grace"))
        _, most = truth.shortfall(gpu, time)
        if not truth.claims(gpu, time):
            return [*faults, Fault("nobody waited", what)]
        if most <= 0:
            return [*faults, Fault("no shortfall", f"{what}: {-most >> 20} MiB to spare; {truth.describe(gpu, time)}")]
        known = [victim for victim in victims if victim in truth.jobs]
        loans = {victim: truth.loan(victim, gpu, time)[0] for victim in known}
        told = [job for job in {*self._told_on(gpu), *known} if job not in {name for name, _ in self.killed}]
        loans |= {job: truth.loan(job, gpu, time)[0] for job in told}
        highest = max((self._level(job, gpu, time, low=True) for job in known), default=float("-inf"))
        lower = [job for job in told if self._level(job, gpu, time, low=False) < highest]
        changing = any(truth.jobs[job].changed > time - 1.0 for job in told)
        if not changing and sum(loans[job] for job in lower) >= most:
            text = f"{what}: {', '.join(lower)}, told as well and of lower priority, would do"
            return [*faults, Fault("too dear", f"{text}; {truth.describe(gpu, time)}")]
        for group in _subsets(known):
            if len(group) < len(known) and sum(loans[victim] for victim in group) >= most:
                return [
                    *faults,
                    Fault("too many", f"{what}: {', '.join(group)} would do; {truth.describe(gpu, time)}"),
                ]
        return faults


def _subsets(jobs: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The smallest first."""
    for size in range(1, len(jobs) + 1):
        yield from combinations(jobs, size)


def _turns(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Records of one moment are of one decision."""
    turn: list[Record] = []
    for record in records:
        if turn and record.time - turn[0].time > SAME_TURN:
            yield turn
            turn = []
        turn.append(record)
    if turn:
        yield turn
