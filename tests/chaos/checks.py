"""What is checked after each round, and what when everybody has gone."""

from __future__ import annotations

import math
import signal
import time
from functools import partial
from pathlib import Path

from chaos.cast import CLAIM_TIMEOUT, CONTEXT, DEATH_SLACK, MARKER, OUTSIDE
from chaos.helped import Helped
from chaos.oracle import Record
from chaos.stage import PATIENCE, Stuck
from chaos.truth import Ask

COUNTED = ("trim", "trimmed", "term", "kill", "relieved", "claim_met", "resumed", "not_resumed", "stuck", "awake")
LATE = 4.0
"""Beyond a bound, on a machine with other things to do."""
USED_AGAIN = 0.3
"""A tenth of a second, on such a machine."""


class Checks(Helped):
    """Faults are noted, not raised: a round may have several."""

    def _check(self) -> None:
        if not self.stage.daemon_is_well():
            self._fault("daemon", "it has ended by itself")
            return
        self._pools()
        self._sync()
        records = self.stage.records[self.seen :]
        self.seen = len(self.stage.records)
        self._note_records(records)
        self._refine_ends()
        self._judge(records)
        self._check_ends()
        self._check_asks()
        self._sweep()
        self._check_books()
        self.truth.forget_before(time.monotonic() - 30.0)
        if len(self.stage.records) > 5000:
            del self.stage.records[:4000]
            self.seen -= 4000

    def _judge(self, records: list[Record]) -> None:
        """The records of one daemon at a time: its successor knows of nobody that was asked."""
        part: list[Record] = []
        for record in records:
            if record.event == "gpu":
                self.faults += self.oracle.judge(part)
                self.oracle.daemon_restarted()
                part = []
            part.append(record)
        self.faults += self.oracle.judge(part)

    def _pools(self) -> None:
        """What the caches of those who can answer hold now."""
        for actor in list(self.actors.values()):
            if actor.stopped and self._was_woken(actor):
                self._acts_again(actor)
            if self._is_held(actor) or actor.program.answers:
                continue
            for gpu in sorted(actor.caches):
                if gpu != actor.current:
                    self._open(actor, gpu)
                self.stage.order(actor.program, "pool", partial(self._pool_seen, actor, gpu))
        self._answers()

    def _note_records(self, records: list[Record]) -> None:
        for record in records:
            if record.event in ("term", "kill"):
                self.stops.setdefault(record.job, []).append((record.time, record.event))
            if record.event == "denied" and record.facts.get("code") == "claim_timed_out":
                self.violations.append(record)
            if record.event in COUNTED:
                self.counts[record.event] += 1
            if record.event == "claim_met":
                self.counts[f"claims met by {record.facts['rung']}"] += 1
        self._check_not_suspended(records)

    def _refine_ends(self) -> None:
        """Whom the daemon has stopped had its memory until then; its caches may have been given back before."""
        for actor, ended in self.ended:
            if actor.program.doomed_from is not None:
                continue
            times = [when for when, _ in self.stops.get(actor.job or "", []) if when >= self.round_began - 1.0]
            since = min(times, default=ended - DEATH_SLACK)
            for span in self.truth.spans:
                if span.process == actor.serial and span.down_from == self.round_began and not span.cache:
                    span.down_from = max(span.down_from, since)

    def _check_ends(self) -> None:
        for actor, ended in self.ended:
            status = actor.program.status()
            if actor.program.killed_by_us or (actor.quitting and status == 0):
                continue
            stops = self.stops.get(actor.job or "", [])
            said = {"term": -signal.SIGTERM, "kill": -signal.SIGKILL}
            told = {said[what] for when, what in stops if when >= actor.born}
            # A wrapper says 137 of whomever the daemon has stopped.
            if status in told or (told and actor.program.wrapped and status == -signal.SIGKILL):
                self.counts["stopped by the daemon"] += 1
                continue
            near = any(began - 1.0 <= ended <= over + 1.0 for began, over in self.down)
            if status in said.values() and near:
                self.counts["stopped as the daemon was killed"] += 1
                continue
            self._fault("end", f"{actor.job or OUTSIDE}[{actor.program.pid}] ended with {status}, and nobody knows why")
        self.ended.clear()

    def _most_of(self, ask: Ask, limit: int) -> int:
        """What its job may have. Under a lowered limit, what it has just freed may be used again (docs/reasons.md)."""
        if self.truth.jobs[ask.job].changed == -math.inf:
            return limit
        return max(limit, self.truth.most_during(ask.job, ask.gpu, ask.began - USED_AGAIN, ask.began))

    def _check_asks(self) -> None:
        for ask in self.truth.asks:
            if ask.ended < self.round_began or ask.ok is None:
                continue
            job = self.truth.jobs.get(ask.job)
            if job is None or ask.gpu not in job.bounds:
                continue
            request, limit = job.bounds[ask.gpu]
            waited = ask.ended - ask.began
            if ask.ok:
                least = self.truth.least_during(ask.job, ask.gpu, ask.began, ask.ended)
                if least + ask.size > self._most_of(ask, limit) and job.changed < self.round_began:
                    self._fault(
                        "cap", f"{ask.job} got {ask.size >> 20} MiB on {least >> 20}: its limit is {limit >> 20}"
                    )
            if waited > CLAIM_TIMEOUT + LATE + self._away(ask) and not self._was_suspended(ask):
                self._fault("late", f"{ask.job} waited {waited:.1f} s for {ask.size >> 20} MiB")
            most = self.truth.most_during(ask.job, ask.gpu, ask.began, ask.ended) + (0 if ask.ok else ask.size)
            if not ask.ok and most <= request and ask.job not in self.refused:
                self._judge_failure(ask)
        self.violations.clear()

    def _was_suspended(self, ask: Ask) -> bool:
        """For some of the time."""
        job = self.truth.jobs[ask.job]
        held = [actor for actor in self._of(ask.job) if actor.where != "on"]
        return bool(held) or any(since <= ask.ended and until >= ask.began for since, until in job.away)

    def _away(self, ask: Ask) -> float:
        """For how long of its time there was no daemon to ask."""
        return sum(max(0.0, min(ask.ended, over) - max(ask.began, began)) for began, over in self.down)

    def _judge_failure(self, ask: Ask) -> None:
        """Within the request, and refused: only for a cause that we have brought about, and that the daemon names."""
        what = f"{ask.job} was refused {ask.size >> 20} MiB of GPU {ask.gpu} within its request"
        least, most = self.truth.usage(ask.job, ask.gpu, ask.began)
        request = self.truth.jobs[ask.job].bounds[ask.gpu][0]
        what += f" of {request >> 20} (in use {least >> 20}..{most >> 20}), after {ask.ended - ask.began:.1f} s"
        named = [one for one in self.violations if one.job == ask.job and ask.began <= one.time <= ask.ended + 0.1]
        if not named:
            if self._away(ask) > 1.5:
                self.counts["refused: daemon away"] += 1
            else:
                heard = [
                    f"{one.time - ask.began:+.3f} {one.event}: {one.text}"
                    for one in self.stage.records
                    if one.job == ask.job and ask.began - 1.0 < one.time < ask.ended + 0.1
                ]
                held = self.truth.describe(ask.gpu, ask.ended)
                self._fault("guarantee", f"{what}, and the daemon does not say why; {held}; {heard}")
            return
        cause = str(named[0].facts.get("cause"))
        if not self._injected(cause, ask):
            self._fault("guarantee", f"{what}; the daemon says '{cause}', which nobody has brought about")
        self.counts[f"violation: {cause}"] += 1

    def _injected(self, cause: str, ask: Ask) -> bool:
        now = ask.ended
        if cause == "unmanaged":
            return self.truth.unmanaged_during(ask.gpu, ask.began - 1.0, now)
        if cause == "returning":
            return self.stage.teardown >= 1000 * CLAIM_TIMEOUT / 2
        if cause in {"protected", "late"}:
            young = (job for job in self.truth.jobs.values() if job.name != ask.job and ask.gpu in job.bounds)
            return any(job.protected and ask.began - job.since < job.protected for job in young)
        return False

    def _sweep(self) -> None:
        """Jobs whose programs have all ended are over; as a wrapper would say."""
        for name in list(self.truth.jobs):
            if name != MARKER and not self._of(name):
                self._end_job(name)
                self.refused.discard(name)
                self.stops.pop(name, None)

    def _check_books(self) -> None:
        """With everybody at rest the daemon's books say what we know; somebody may be ending just now."""
        end = time.monotonic() + 5.0
        while wrong := self._misfits():
            if time.monotonic() > end:
                self._fault("books", "; ".join(wrong))
                return
            self.stage.rest(0.05)
            self._pools()  # a trim that is no longer needed is carried out all the same

    def _misfits(self) -> list[str]:
        jobs = self.stage.api("GET", "/v1/jobs").get("jobs", [])
        shown = {job["name"]: {self.stage.index[one["uuid"]]: one for one in job["gpus"]} for job in jobs}
        wanted = set(self.truth.jobs) - self.refused
        wrong = [f"job {name} is {'not there' if name in wanted else 'left over'}" for name in wanted ^ set(shown)]
        now = time.monotonic()
        contexts = {id(span) for actor in self.actors.values() for span in actor.contexts.values()}
        for name in sorted(wanted & set(shown) - {MARKER}):
            for gpu, bounds in self.truth.jobs[name].bounds.items():
                mine = [span for span in self.truth.spans if span.job == name and span.gpu == gpu]
                mine = [span for span in mine if id(span) not in contexts]
                least = sum(span.size for span in mine if span.surely(now))
                most = sum(span.size for span in mine if span.maybe(now))
                told = shown[name].get(gpu)
                if told is None or not least <= told["accounted"] <= most:
                    said = "nothing" if told is None else f"{told['accounted'] >> 20}"
                    wrong.append(f"{name} holds {least >> 20}..{most >> 20} MiB of GPU {gpu}, not {said}")
                elif (told["request"], told["limit"]) != bounds:
                    wrong.append(f"{name} was promised {bounds}, not {told['request']}, {told['limit']}")
        return wrong

    # ---- nothing left ------------------------------------------------------------------------------

    def _end_epoch(self) -> None:
        """Everybody goes, and nothing may be left; then another kind of hardware."""
        self.round_began = time.monotonic()
        for actor in list(self.actors.values()):
            if actor.stopped:
                self._go_on(actor)
        self._answers()
        self.kind = True
        self._kill_helpers()  # the next ones do not fail
        self._all_leave()
        self.kind = False
        self._check()
        self._leave_nothing()
        self.stage.teardown = self.dice.choice([0, 0, 150, 800])
        self.down = self.down[-20:]
        self.counts["epochs"] += 1

    def _leave_nothing(self) -> None:
        last: list[str] = []

        def nothing() -> bool:
            last[:] = self._left()
            return not last

        try:
            self._until(nothing, "everything to be given back", 10.0 + LATE)
        except Stuck:
            self._fault("leak", "; ".join(last))
            return
        self._check_daemon()
        self._check_driver()

    def _left(self) -> list[str]:
        status = self.stage.api("GET", "/v1/status")
        left = [
            f"GPU {gpu['index']}: {key} {gpu[key]}"
            for gpu in status["gpus"]
            for key in ("usage", "returning", "unmanaged", "requested", "lent")
            if gpu[key]
        ]
        left += [f"job {job['name']}" for job in status["jobs"] if job["name"] != MARKER]
        left += [f"page {page.name}" for page in (self.stage.runtime / "pages").iterdir()]
        return left

    def _check_daemon(self) -> None:
        assert self.stage.daemon is not None
        metrics = self.stage.metrics()
        for name in ("gpushare_internal_errors_total", "gpushare_bad_frames_total"):
            if metrics[name]:
                self._fault("daemon", f"{name} {metrics[name]:.0f}")
        pid = self.stage.daemon.pid
        found = _entries(f"/proc/{pid}/fd"), _entries(f"/proc/{pid}/task")
        self.base = self.base or found
        if found[0] > self.base[0] + 3 or found[1] > self.base[1] + 1:
            self._fault("leak", f"the daemon has {found} descriptors and threads, at first {self.base}")

    def _check_driver(self) -> None:
        """The software driver's own word, through a program outside."""
        program = self.stage.spawn("look", [str(self.stage.puppet)], self.stage.outsider_env())
        try:
            for gpu in self.uuids:
                self.stage.ask(program, f"open {gpu}")
                free, total = map(int, self.stage.ask(program, "info")[1:])
                if free + CONTEXT != total:
                    self._fault("leak", f"{(total - free - CONTEXT) >> 20} MiB of GPU {gpu} are held by nobody")
        finally:
            self.stage.order(program, "quit")
            self._until(lambda: not program.alive, "it to end")
            program.child.wait(PATIENCE)


def _entries(directory: str) -> int:
    return sum(1 for _ in Path(directory).iterdir())
