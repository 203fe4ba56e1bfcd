"""Jobs that may be suspended, or have hooks: the processes that do it for them, and what follows for what we know.

A suspender (suspender.py) says each step that it has the driver take. A hook asks us through a FIFO, and we have the
programs give or take memory as always; some hooks lie, fail, give a part or hang. So where the memory is, and since
when, is known without the daemon.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path

from chaos.cast import CLAIM_TIMEOUT, DEATH_SLACK, OUTSIDE, Actor, Cast
from chaos.oracle import Record
from chaos.stage import PATIENCE, Helper, Stuck
from chaos.truth import Ask, Span

RESERVED = 2.0
"""So many seconds before a restore begins, at the most, the daemon has reserved the memory."""
HOOK_TIME = 3.0
"""Seconds that a hook has."""
WHY_NOT = re.compile(
    "could not leave the GPU in time|several GPUs|a hook of it runs|failed a moment ago|runs without the library"
    "|host memory|its suspender is not there|it is told to end"
)
"""For these reasons a job that may be suspended is stopped."""
WAITING = ("suspending", "suspended", "resuming", "hook", "asleep", "waking")
"""States of jobs that are not just running."""


@dataclass(eq=False)
class Call:
    """A hook that waits for us."""

    job: str
    what: str
    answer: Path
    since: float


class Helped(Cast):
    """With the helpers of the jobs that have some."""

    def begin_helping(self) -> None:
        self.helpers: dict[tuple[str, str], Helper] = {}
        """By job and kind."""
        self.given: dict[str, list[tuple[int, int, int]]] = {}
        """Job -> (program, GPU, bytes) that its relief hook has given."""
        self.had: dict[str, dict[int, int]] = {}
        """Job -> the most that it may have had on each GPU when its relief hook was called."""
        self.kind = False
        """Everybody does what it should from now on."""
        self.fifo = self.stage.directory / "hooks"
        os.mkfifo(self.fifo)
        self.stage.read_lines(self.fifo, self._hook_asks)

    # ---- helpers -------------------------------------------------------------------------------------

    def hook_options(self, name: str) -> dict[str, str]:
        """The variables that name the hooks of a job."""
        reply = f"{self.stage.directory}/reply.$$"
        script = f"rm -f {reply}; echo {name} $GPUSHARE_HOOK {reply} > {self.fifo}; "
        script += f"until test -s {reply}; do sleep 0.02; done; read line < {reply}; rm -f {reply}; test $line = good"
        return {"GPUSHARE_RELIEF_CMD": script, "GPUSHARE_RESUME_CMD": script}

    def _help(self, name: str) -> None:
        """Start what a job needs, as its wrapper would."""
        rungs = self.truth.jobs[name].rungs
        if "suspend" in rungs:
            self._start_helper(name, "suspender")
        if "hook" in rungs:
            self._start_helper(name, "runner")

    def _start_helper(self, name: str, kind: str) -> None:
        words = [self.ids[name], str(self.stage.runtime / "api.sock")]
        env = self.stage.outsider_env()
        if kind == "suspender":
            faults = 0.0 if self.kind else self.dice.choice([0.0, 0.0, 0.0, 0.08])
            line = [sys.executable, "-m", "chaos.suspender", *words, str(self.dice.random()), str(faults)]
        else:
            line, env = [sys.executable, "-m", "gpushare.hook_runner", *words], env | self.hook_options(name)
        helper = self.stage.helper(line, env, partial(self._driver_said, name))
        helper.on_end = partial(self._helper_ended, name, kind)
        self.helpers[name, kind] = helper

    def _helper_ended(self, name: str, kind: str) -> None:
        self.helpers.pop((name, kind), None)
        if name in self.ids and name in self.truth.jobs:
            self.counts[f"{kind}s that ended"] += 1
            self._start_helper(name, kind)

    def _end_job(self, name: str) -> None:
        super()._end_job(name)
        for kind in ("suspender", "runner"):
            helper = self.helpers.get((name, kind))
            if helper is not None:
                helper.child.kill()
        self.given.pop(name, None)

    def _kill_helper(self) -> str:
        if not self.helpers:
            return "no helper to kill"
        name, kind = self.dice.choice(sorted(self.helpers))
        self.helpers[name, kind].child.kill()
        return f"the {kind} of {name} is killed"

    # ---- suspending ----------------------------------------------------------------------------------

    def _driver_said(self, name: str, words: list[str]) -> None:
        """A line of its suspender."""
        if len(words) != 4:
            return
        what, phase, pid, when = words[0], words[1], int(words[2]), float(words[3])
        actor = next((one for one in self.actors.values() if one.program.pid == pid and one.job == name), None)
        if actor is not None:
            self._moves(actor, f"{what} {phase}", when)

    def _moves(self, actor: Actor, what: str, when: float) -> None:
        match what, actor.where:
            case "lock begin", _:
                actor.where, actor.away_from = "locked", min(actor.away_from, when)
            case (("lock failed" | "unlock end"), _):
                self._runs_again(actor, when)
            case "checkpoint begin", _:
                actor.where = "leaving"
                for span in actor.spans():
                    span.down_from = min(span.down_from, when)
            case ("checkpoint end", _) | ("suspended is", "leaving" | "locked"):
                self.counts["suspended"] += actor.where == "leaving"
                actor.where = "away"
                for span in actor.spans():
                    span.down_from, span.down_by = min(span.down_from, when), min(span.down_by, when + DEATH_SLACK)
            case ("checkpoint failed", _) | (("running is" | "locked is"), "leaving"):
                actor.where = "locked"
                for span in actor.spans():
                    span.down_from = inf
            case "restore begin", _:
                actor.where = "coming"
                self._anew(actor, when - RESERVED)
            case ("restore end", _) | (("running is" | "locked is"), "coming" | "away"):
                if actor.where == "away":
                    self._anew(actor, when - RESERVED)
                actor.where = "locked"
                for span in actor.spans():
                    span.up_by = when
            case ("restore failed", _) | ("suspended is", "coming"):
                actor.where = "away"
                for span in actor.spans():
                    span.down_from, span.down_by = span.up_from, when

    def _anew(self, actor: Actor, since: float) -> None:
        """Its memory is about to be there again: from now on these are other spans."""

        def again(span: Span) -> Span:
            return self.truth.add(replace(span, up_from=since, up_by=inf, down_from=inf, down_by=inf))

        actor.contexts = {gpu: again(span) for gpu, span in actor.contexts.items()}
        actor.stack = [again(span) for span in actor.stack]
        actor.caches = {gpu: [again(span) for span in kept] for gpu, kept in actor.caches.items()}

    def _runs_again(self, actor: Actor, when: float) -> None:
        if actor.where == "on":
            return
        job = self.truth.jobs.get(actor.job or "")
        if job is not None:
            job.away.append((actor.away_from, when + 1.0))
            job.resumed = when
        actor.where, actor.away_from = "on", inf
        if actor.filled and actor.stack:
            self.stage.order(actor.program, f"filled {actor.filled}", partial(self._check_contents, actor))

    def _check_contents(self, actor: Actor, words: list[str]) -> None:
        self.counts["contents compared"] += 1
        if words[0] != "ok":
            self._fault("contents", f"{actor.job}[{actor.program.pid}] has another memory than before: {words}")

    def _suspend_by_hand(self) -> str:
        names = sorted(name for name in self.ids if "suspend" in self.truth.jobs[name].rungs and self._of(name))
        if not names:
            return "nobody to suspend by hand"
        name = self.dice.choice(names)
        status, _ = self.stage.call("POST", f"/v1/jobs/{self.ids[name]}/suspend")
        self.stage.rest(self.dice.choice([0.0, 0.1, 0.5]))
        again, _ = self.stage.call("POST", f"/v1/jobs/{self.ids[name]}/resume")
        self.counts["by hand"] += 1
        return f"{name} is suspended by hand ({status}), and may go on ({again})"

    # ---- hooks ---------------------------------------------------------------------------------------

    def _hook_asks(self, words: list[str]) -> None:
        if len(words) != 3:
            return
        call = Call(words[0], words[1], Path(words[2]), time.monotonic())
        dice = random.Random(f"{self.seed}/{self.round}/{call.job}/{call.what}")
        how = "good" if self.kind else dice.choice(["good"] * 6 + ["part", "lie", "fail", "hang"])
        self.counts[f"{call.what} hooks"] += 1
        if call.what == "relief":
            self._relief(call, how)
        else:
            self._resume(call, "good" if how in ("part", "lie") else how)

    def _relief(self, call: Call, how: str) -> None:
        job, now = self.truth.jobs.get(call.job), time.monotonic()
        if job is None or how == "hang":
            return
        self.had[call.job] = {gpu: self.truth.usage(call.job, gpu, now)[1] for gpu in job.bounds}
        mine = self._of(call.job)
        if how in ("good", "part"):
            for actor in mine:
                count = len(actor.stack) if how == "good" else min(1, len(actor.stack))
                gone = actor.stack[len(actor.stack) - count :]
                self.given.setdefault(call.job, []).extend((actor.serial, one.gpu, one.size) for one in reversed(gone))
                self._free(actor, count)
        self._when_done(mine, lambda: self._reply(call, "bad" if how == "fail" else "good"))

    def _resume(self, call: Call, how: str) -> None:
        if how == "hang":
            return
        given = [] if how == "fail" else self.given.pop(call.job, [])
        mine, asks, before = self._of(call.job), [], time.monotonic()
        fits = self._fits_again(call, given)
        for serial, gpu, size in reversed(given):
            actor = self.actors.get(serial)
            if actor is not None and gpu in actor.contexts:
                asks.append(self._alloc(actor, size, gpu))
        self._when_done(mine, lambda: self._woken(call, how, asks, fits, before))

    def _fits_again(self, call: Call, given: list[tuple[int, int, int]]) -> bool:
        """It takes no more than it had: nothing was allocated since by itself."""
        now = time.monotonic()
        sums = {gpu: sum(size for _, where, size in given if where == gpu) for _, gpu, _ in given}
        had = self.had.get(call.job, {})
        return all(self.truth.usage(call.job, gpu, now)[1] + more <= had.get(gpu, 0) for gpu, more in sums.items())

    def _woken(self, call: Call, how: str, asks: list[Ask], fits: bool, before: float) -> None:
        self._reply(call, "bad" if how == "fail" else "good")
        job, now = self.truth.jobs.get(call.job), time.monotonic()
        self.counts["allocations in a resume hook"] += len(asks)
        quiet = not self._of(None) and before - self.outside_changed > 2.0 and not self._was_down(call.since - 1.0)
        if job is None or not fits or not quiet or job.changed > call.since - 5.0 or now - call.since > HOOK_TIME / 2:
            return
        for ask in asks:
            if ask.ok is False:
                text = f"{call.job} was refused {ask.size >> 20} MiB of GPU {ask.gpu} in its resume hook"
                self._fault("kept", f"{text}; {self.truth.describe(ask.gpu, now)}")

    def _was_down(self, since: float) -> bool:
        return any(over > since for _, over in self.down) or not self.stage.daemon_is_well()

    def _when_done(self, actors: list[Actor], then: object) -> None:
        """When all of these have done what they were told so far. One that ends meanwhile leaves the hook without an
        answer."""
        left = [actor.serial for actor in actors]

        def one_done(_: list[str], serial: int) -> None:
            left.remove(serial)
            if not left:
                then()  # type: ignore[operator]

        if not actors:
            then()  # type: ignore[operator]
        for actor in actors:
            self.stage.order(actor.program, "pid", partial(one_done, serial=actor.serial))

    def _reply(self, call: Call, text: str) -> None:
        with contextlib.suppress(OSError):
            call.answer.write_text(f"{text}\n")

    # ---- checks --------------------------------------------------------------------------------------

    def _check_not_suspended(self, records: list[Record]) -> None:
        """A job that wants to be suspended is stopped for known reasons only."""
        for record in records:
            job = self.truth.jobs.get(record.job)
            if record.event == "not_suspended" and job is not None and "is not suspended" in record.text:
                self.counts["stopped instead of suspended"] += 1
                if not WHY_NOT.search(record.text):
                    self._fault("not suspended", f"{record.job or OUTSIDE}: {record.text}")

    def _all_leave(self) -> None:
        """Everybody ends. Who is suspended or asleep comes back first, when those who run have made room; nobody fails
        any more."""
        for name, id in self.ids.items():
            if "suspend" in self.truth.jobs[name].rungs:
                self.stage.call("POST", f"/v1/jobs/{id}/resume")
        waiting: dict[str, str] = {}

        def all_gone() -> bool:
            self._sweep()  # what a job keeps back may be in the way of one that waits
            jobs = self.stage.api("GET", "/v1/jobs").get("jobs", [])
            waiting.clear()
            waiting.update({job["name"]: job["state"] for job in jobs if job["state"] in WAITING})
            for actor in list(self.actors.values()):
                if actor.where == "on" and actor.job not in waiting and not self._is_going(actor):
                    self._quit(actor) if self.dice.random() < 0.7 else self.stage.kill(actor.program)
            return not self.actors

        try:
            self._until(all_gone, "everybody to be back and to end", 6 * CLAIM_TIMEOUT + PATIENCE)
        except Stuck:
            where = {actor.job: actor.where for actor in self.actors.values()}
            self._fault("hung", f"{waiting}; by the driver {where}")

    def _is_going(self, actor: Actor) -> bool:
        return actor.quitting or actor.program.killed_by_us

    def _kill_helpers(self, number: signal.Signals = signal.SIGKILL) -> None:
        for helper in list(self.helpers.values()):
            helper.child.send_signal(number)
