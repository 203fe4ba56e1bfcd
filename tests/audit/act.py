"""One act: a fresh node, random jobs on it for some seconds, random blows, and the laws judged all the while."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from audit import law
from audit.book import ALIVE, BUCKETS, DEAD, KINDS, OUTCOMES, PROCESSES, Book
from audit.ground import BIN, Ground
from audit.kinds import Kind, Plan, quantity
from audit.law import SECOND, Away, Ceiling
from audit.nvml import Nvml

TICK = 0.05
SAMPLE = 0.15
START_TIMEOUT = 30.0  # for a wrapper to start the program, whose time begins then
GRACE_AT_END = 45.0  # a claim may still wait for its whole timeout
MOST_VIOLATIONS = 60  # accounts that are kept of an act; all are counted


@dataclass
class Violation:
    law: str
    job: str
    text: str
    at: float  # seconds into the act
    facts: dict[str, Any] = field(default_factory=dict)
    evidence: str = ""


@dataclass
class Result:
    kind: str
    seed: str
    seconds: float = 0.0
    jobs: Counter[str] = field(default_factory=Counter)
    deeds: Counter[str] = field(default_factory=Counter)
    allocations: Counter[str] = field(default_factory=Counter)  # "linear within" and so on
    waits: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    longest: int = 0
    samples: int = 0
    violations: list[Violation] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)  # violations by law
    excused: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)


@dataclass
class Job:
    name: str
    plan: Plan
    book: Book
    wrapper: int
    errors: Path
    ends: float
    ceilings: list[Ceiling]
    main: int = 0
    offset: int = 0
    status: int | None = None
    ended_at: int = 0
    struck: dict[int, int] = field(default_factory=dict)  # what the auditor has killed: when, by pid
    stopped_until: float = 0.0
    ever_stopped: bool = False
    tuning: bool = False
    lowered: tuple[int, float, bool] | None = None  # the limit that was set, when last looked, not above it then
    late: set[tuple[int, int]] = field(default_factory=set)
    wrapper_struck: bool = False

    def pids(self) -> list[int]:
        return [int(slot.pid) for slot in self.book.contents.slots if slot.pid]


class Act:
    def __init__(self, kind: Kind, seed: str, keep: bool = False, say: Callable[[str], None] = lambda _: None) -> None:
        self.kind, self.seed, self.say = kind, seed, say
        self.random = random.Random(f"{seed}/{kind.name}")
        self.plot = kind.plot(self.random)
        self.ground = Ground(self.plot.hardware, keep)
        os.environ["GPUSHARE_SIM"] = self.ground.simulation
        self.result = Result(kind.name, seed)
        self.jobs: list[Job] = []
        self.seats: dict[int, float] = {}  # by number: when the next job may take it
        self.seated: dict[int, Job] = {}
        self.errands: dict[int, tuple[Path, Callable[[int, str], None]]] = {}
        self.orphans: dict[int, tuple[int, int]] = {}
        self.aways: list[Away] = []
        self.dying: list[int] = []
        self.number = 0
        self.began = time.monotonic()
        self.recent: deque[str] = deque(maxlen=40)

    # -- the whole ---------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> Result:
        try:
            self.nvml = Nvml()
            self.baseline = self.nvml.used()
            self.context = self.measure()
            self.began = time.monotonic()
            end = self.began + seconds
            self.seats = {seat: self.began + delay for seat, delay in enumerate(self.plot.delays)}
            sampled = 0.0
            while time.monotonic() < end:
                now = time.monotonic()
                self.look()
                if now - sampled >= SAMPLE:
                    sampled = now
                    self.sample()
                self.seat(now)
                self.strike(now)
                time.sleep(TICK)
            self.finish()
        finally:
            self.ground.close()
        self.result.seconds = time.monotonic() - self.began
        return self.result

    def measure(self) -> int:
        """What a context takes, by NVML, of a program that has nothing to do with gpushare."""
        libraries = Path(self.nvml_path()).parent
        output = self.ground.directory / "probe"
        pid = self.ground.start(
            [str(BIN / "python"), "-S", "-m", "audit.probe"], output, {"LD_LIBRARY_PATH": str(libraries)}
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and "open" not in output.read_text():
            time.sleep(0.01)
        used = self.nvml.processes(0).get(pid, 0)
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        if used == 0:
            raise RuntimeError(f"no context on the software driver: {output.read_text()}")
        while self.nvml.used() != self.baseline:
            time.sleep(0.01)
        return used

    @staticmethod
    def nvml_path() -> str:
        from audit.nvml import SIM

        return str(SIM / "libnvidia-ml.so.1")

    def finish(self) -> None:
        """Let all programs end by themselves; then nothing may be left, and the command line must work."""
        self.seats.clear()
        deadline = time.monotonic() + GRACE_AT_END
        for job in self.jobs:
            self.resume(job)
            job.book.header.quit = 1
        while (self.jobs or self.errands) and time.monotonic() < deadline:
            self.look()
            self.sample()
            time.sleep(TICK)
        for job in list(self.jobs):
            states = [f"{pid} {state_of(pid)}" for pid in [job.wrapper, *job.pids()]]
            self.violation("end", job, f"did not end in {GRACE_AT_END:.0f} s: {', '.join(states)}")
            for pid in [job.wrapper, *job.pids()]:
                kill(pid)
        deadline = time.monotonic() + 10
        while self.nvml.used() != self.baseline and time.monotonic() < deadline:
            self.look()
            time.sleep(TICK)
        broken = law.final(self.nvml.used(), self.baseline)
        if broken:
            shown = {gpu: self.nvml.processes(gpu) for gpu in range(len(self.nvml.gpus))}
            self.violation("final", None, broken, {"processes": shown})
        answers: list[tuple[int, str]] = []
        for command in (["status"], ["ps"]):
            self.errand(command, lambda status, text: answers.append((status, text)))
        deadline = time.monotonic() + 20
        while self.errands and time.monotonic() < deadline:
            self.look()
            time.sleep(TICK)
        # Status 3: a user's own daemon ends by itself some time after the last job.
        for status, text in answers:
            if status not in (0, 3 if not self.plot.daemon_stays else 0):
                self.violation("final", None, f"`gpushare status` or `ps` ended with {status}: {text[-500:]}")
        if len(answers) < 2:
            self.violation("final", None, "`gpushare status` or `ps` did not end")

    # -- jobs --------------------------------------------------------------------------------------------------

    def seat(self, now: float) -> None:
        for seat, free_at in list(self.seats.items()):
            if now >= free_at and seat not in self.seated:
                plan = self.plot.seats[seat](self.random)
                self.seated[seat] = self.start(plan, now)
        for job in self.jobs:
            if now >= job.ends and not job.book.header.quit:
                job.book.header.quit = 1

    def start(self, plan: Plan, now: float) -> Job:
        self.number += 1
        name = f"{plan.label}-{self.number}"
        path = self.ground.directory / "jobs" / f"{name}.book"
        book = Book.make(path, plan.request, plan.limit, plan.cap or plan.limit, self.context)
        plan.spec.book, plan.spec.seed, plan.spec.gpus = str(path), f"{self.seed}/{self.number}", len(plan.gpus)
        errors = path.with_suffix(".err")
        command = [str(BIN / "gpushare"), "run", "--name", name]
        command += ["--request", quantity(plan.request), "--limit", quantity(plan.limit), *plan.options]
        command += [part for gpu in plan.gpus for part in ("--gpu", str(gpu))]
        python = [str(BIN / "python"), *(() if plan.spec.manners == "trim" else ("-S",)), "-m", "audit.program"]
        wrapper = self.ground.start([*command, *python, json.dumps(asdict(plan.spec))], errors)
        ceilings = [Ceiling(plan.limit) for _ in plan.gpus]
        job = Job(name, plan, book, wrapper, errors, now + plan.lasts + START_TIMEOUT, ceilings)
        self.jobs.append(job)
        self.result.jobs[plan.label] += 1
        self.note(f"run {name}: {' '.join(command[2:])}, {plan.spec}")
        return job

    def look(self) -> None:
        """Hear of everything that has happened since the last look."""
        now = time.monotonic_ns()
        for pid, status in self.ground.reap():
            if pid in self.errands:
                path, done = self.errands.pop(pid)
                text = path.read_text(errors="replace")
                path.unlink()
                done(os.waitstatus_to_exitcode(status), text)
                continue
            for job in self.jobs:
                if pid == job.wrapper:
                    job.status, job.ended_at = os.waitstatus_to_exitcode(status), now
                    break
            else:
                self.orphans[pid] = (status, now)
        self.see_daemon(now)
        for job in list(self.jobs):
            self.hear(job)
            self.settle(job, now / SECOND)
            self.watch(job, now)
            if job.status is not None and self.gone(job):
                self.close(job)

    def hear(self, job: Job) -> None:
        facts, job.offset = job.book.facts(job.offset)
        for fact in facts:
            what = fact["what"]
            if what == "start":
                job.main = fact["pid"]
                job.ends = time.monotonic() + job.plan.lasts
            elif what == "refused":
                broken = law.refusal(fact, self.aways)
                if job.ever_stopped:
                    self.result.excused["refused, but was stopped by SIGSTOP"] += 1
                elif broken:
                    self.violation("refused", job, broken, fact)
                else:
                    self.result.excused["refused without a daemon"] += 1
            elif what == "late":
                self.judge_wait(job, fact["since"], fact["until"], fact)
            elif what == "over_limit":
                self.judge_sum(job, fact)
            elif what == "term":
                self.result.notes["SIGTERM received"] += 1
                broken = law.stop(fact["at"], fact["held_above"], fact["in_flight"])
                if broken and not job.ever_stopped:
                    self.violation("stopped", job, f"SIGTERM: {broken}", fact)
            elif what == "ended":
                self.judge_child(job, fact)
            elif what in ("broken", "odd_code"):
                self.violation("broken", job, fact.get("error") or f"the driver answered {fact['code']}", fact)

    def judge_sum(self, job: Job, fact: dict[str, Any]) -> None:
        """A process found that the job holds more than its limit, by the account of the job's own processes.

        A dead process stays in that account until the auditor looks, but the driver may have taken its memory back
        before that, and then others may have it. So the dead count only while the driver shows them.
        """
        shown = self.nvml.processes(job.plan.gpus[fact["gpu"]])
        held = sum(size for pid, size in fact["holders"].items() if alive(int(pid)) or int(pid) in shown)
        if held > fact["limit"]:
            text = f"the driver had given {law.mib(held)} of a limit of {law.mib(fact['limit'])}"
            self.violation("limit", job, text, fact)

    def judge_wait(self, job: Job, since: int, until: int, fact: dict[str, Any]) -> None:
        broken = law.wait(since, until, self.aways)
        if broken and job.ever_stopped:
            self.result.excused["late, but was stopped by SIGSTOP"] += 1
        elif broken:
            self.violation("late", job, broken, fact)

    def watch(self, job: Job, now: int) -> None:
        """Allocations that have not returned."""
        for slot, flight in job.book.in_flight():
            since = int(flight.since)
            if not flight.within or not since or now - since < law.CLAIM_TIMEOUT:
                continue
            above = job.book.header.reserved_above[flight.gpu]
            if (slot.pid, since) not in job.late and above < since and law.wait(since, now, self.aways):
                job.late.add((int(slot.pid), since))
                self.judge_wait(job, since, now, {"pid": slot.pid, "size": flight.size, "kind": KINDS[flight.kind]})

    def judge_child(self, job: Job, fact: dict[str, Any]) -> None:
        code = os.waitstatus_to_exitcode(fact["status"])
        if fact["child"] in job.struck or code in (0, 143):
            return
        self.judge_death(job, fact["at"], code, f"process {fact['child']}")

    def judge_death(self, job: Job, at: int, code: int, who: str) -> None:
        """A program that the auditor has not killed, and that did not end by itself."""
        if code not in (-signal.SIGKILL, -signal.SIGTERM, 137, 143):
            self.violation("broken", job, f"{who} ended with {code}")
            return
        self.result.notes["stopped for its loan"] += 1
        # Its account is as it left it: who held more than the request until the end was above it until the end.
        header = job.book.header
        held_above = [
            at if job.book.held(gpu) > header.request else int(header.held_above[gpu])
            for gpu in range(len(job.plan.gpus))
        ]
        flying = sum(1 for _, flight in job.book.in_flight() if not flight.within)
        broken = law.stop(at, held_above, flying)
        if broken:
            self.violation("stopped", job, f"{who} ended with {code}: {broken}")

    def gone(self, job: Job) -> bool:
        return not any(alive(pid) for pid in [job.main, *job.pids()] if pid and pid not in self.orphans)

    def close(self, job: Job) -> None:
        """All processes of this job have ended: judge how, and add up its figures."""
        self.hear(job)
        status, at = job.status, job.ended_at
        assert status is not None
        # Of a program whose wrapper was killed the auditor is the parent.
        if job.wrapper_struck and job.main in self.orphans:
            wait_status, at = self.orphans[job.main]
            status = os.waitstatus_to_exitcode(wait_status)
        struck = job.main in job.struck or job.wrapper in job.struck
        finished = bool(job.book.header.finished)
        if finished or (status == 143 and job.plan.spec.manners == "leave"):
            self.result.notes["ended by themselves"] += 1
        elif job.main in job.struck:
            self.result.notes["main program killed by the auditor"] += 1
        elif job.wrapper_struck and job.main == 0:
            self.result.notes["wrapper killed before it started the program"] += 1
        elif status == 125:
            self.judge_start(job)
        elif job.wrapper_struck and job.main not in self.orphans:
            self.result.notes["nobody knows how it ended"] += 1
        else:
            self.judge_death(job, at, status, "the job" if not struck else "the program")
        for place in range(PROCESSES):
            figures = job.book.contents.figures[place]
            side = "borrower" if job.plan.spec.borrows else "owner"
            for kind, name in enumerate(KINDS):
                for outcome, word in enumerate(OUTCOMES):
                    count = int(figures.outcomes[kind][outcome])
                    if count:
                        self.result.allocations[f"{side} {name} {word}"] += count
            if side == "owner":
                for bucket in range(BUCKETS):
                    self.result.waits[bucket] += int(figures.waits[bucket])
                self.result.longest = max(self.result.longest, int(figures.longest))
        self.note(f"ended {job.name}: {status}")
        self.jobs.remove(job)
        for seat, other in list(self.seated.items()):
            if other is job:
                del self.seated[seat]
                if seat in self.seats:
                    self.seats[seat] = time.monotonic() + self.random.uniform(*self.plot.pause)
        job.book.close(delete=not self.ground.keep)
        if not self.ground.keep:
            job.errors.unlink(missing_ok=True)

    def judge_start(self, job: Job) -> None:
        text = job.errors.read_text(errors="replace")
        if "no room for a request" in text or "queues for room" in text or "queued for room" in text:
            self.result.notes["not admitted"] += 1
        elif any(away.back + SECOND > job.ended_at - 10 * SECOND for away in self.aways):
            self.result.excused["not started without a daemon"] += 1
        else:
            self.violation("broken", job, "gpushare run failed before the start")

    # -- the driver's figures ----------------------------------------------------------------------------------

    def sample(self) -> None:
        self.result.samples += 1
        shown = [self.nvml.processes(gpu) for gpu in range(len(self.nvml.gpus))]
        now = time.monotonic_ns()
        for job in self.jobs:
            pids = job.pids()
            for ceiling, gpu in zip(job.ceilings, job.plan.gpus, strict=True):
                used = sum(shown[gpu].get(pid, 0) for pid in pids)
                self.check_book(job, gpu)
                broken = ceiling.judge(used, now)
                # The figures of several processes are not of one moment: only what is seen three times counts.
                for _ in range(2):
                    if broken:
                        again = self.nvml.processes(gpu)
                        broken = ceiling.judge(sum(again.get(pid, 0) for pid in pids), now)
                if broken:
                    self.violation(
                        "limit", job, broken, {"gpu": gpu, "processes": {p: shown[gpu].get(p) for p in pids}}
                    )
            for place in range(PROCESSES):
                slot = job.book.contents.slots[place]
                if slot.state == DEAD and not any(slot.pid in gpu for gpu in shown):
                    self.hear(job)  # of its end, which is judged by what it held
                    job.book.clear(place)

    def check_book(self, job: Job, gpu: int) -> None:
        """The auditor judges by what programs reserve: that must never be less than what the driver shows."""
        index = job.plan.gpus.index(gpu)
        if not job.book.watch(index):
            return
        shown = self.nvml.processes(gpu)
        used = sum(shown.get(pid, 0) for pid in job.pids())
        reserved = job.book.highest(index)
        if used <= reserved or job.status is not None:
            return
        text = f"the driver shows {law.mib(used)} where the program has noted {law.mib(reserved)}"
        self.violation("auditor", job, text)

    # -- blows -------------------------------------------------------------------------------------------------

    def strike(self, now: float) -> None:
        for deed, rate in self.plot.rates.items() if len(self.errands) < 8 else ():
            if self.random.random() < rate * TICK:
                getattr(self, f"do_{deed}")(now)
        for job in self.jobs:
            if job.stopped_until and now >= job.stopped_until:
                self.resume(job)

    def some_job(self, borrows: bool | None = None) -> Job | None:
        able = [job for job in self.jobs if job.main and job.status is None and not job.book.header.quit]
        if borrows is not None:
            able = [job for job in able if job.plan.spec.borrows == borrows]
        return self.random.choice(able) if able else None

    def do_kill_process(self, now: float) -> None:
        """SIGKILL one process of a job that is not its main one; or the main one, if it is the only one."""
        job = self.some_job()
        if job is not None:
            able = [int(s.pid) for s in job.book.contents.slots if s.state == ALIVE and alive(int(s.pid))]
            children = [pid for pid in able if pid != job.main]
            if children or able:
                self.hit(job, self.random.choice(children or able), "process")

    def do_kill_main(self, now: float) -> None:
        job = self.some_job()
        if job is not None:
            self.hit(job, job.main, "main program")

    def do_kill_wrapper(self, now: float) -> None:
        job = self.some_job()
        if job is not None and not job.wrapper_struck:
            job.wrapper_struck = True
            self.hit(job, job.wrapper, "wrapper")

    def hit(self, job: Job, pid: int, what: str) -> None:
        job.struck[pid] = time.monotonic_ns()
        kill(pid)
        self.result.deeds[f"SIGKILL of a {what}"] += 1
        self.note(f"SIGKILL of a {what} of {job.name}: {pid}")

    def do_kill_daemon(self, now: float) -> None:
        if self.aways and self.aways[-1].back == law.FOREVER:
            return
        daemons = self.ground.daemons()
        if daemons:
            self.aways.append(Away(time.monotonic_ns()))
            self.dying = daemons
            for pid in daemons:
                kill(pid)
            self.result.deeds["SIGKILL of the daemon"] += 1
            self.note("SIGKILL of the daemon")

    def see_daemon(self, now: int) -> None:
        if not self.aways or self.aways[-1].back != law.FOREVER:
            return
        # On a busy machine a killed daemon's socket takes connections until the kernel comes to end it.
        if not any(alive(pid) for pid in self.dying) and self.ground.answers():
            self.aways[-1].back = now
            self.note(f"a daemon is back after {(now - self.aways[-1].since) / SECOND:.2f} s")

    def do_stop(self, now: float) -> None:
        job = self.some_job(borrows=True)
        if job is not None and not job.stopped_until:
            job.ever_stopped = True
            job.stopped_until = now + self.random.uniform(0.2, 6)
            for pid in {job.main, *job.pids()}:
                kill(pid, signal.SIGSTOP)
            self.result.deeds["SIGSTOP of a borrower"] += 1
            self.note(f"SIGSTOP of {job.name}")

    def resume(self, job: Job) -> None:
        if job.stopped_until:
            job.stopped_until = 0.0
            for pid in {job.main, *job.pids()}:
                kill(pid, signal.SIGCONT)

    def do_set_limit(self, now: float) -> None:
        job = self.some_job()
        if job is None or job.tuning or not job.plan.spec.borrows:
            return
        header = job.book.header
        limit = self.random.randrange(max(int(header.request), 512 << 20), 15 << 30, 2 << 20)
        raised = limit > header.limit
        for ceiling in job.ceilings:
            ceiling.lift(limit)  # which is above what is in force, or changes nothing
        if raised:
            header.limit = limit
        else:
            header.cap = limit
        job.tuning, job.lowered = True, None

        def done(status: int, text: str) -> None:
            job.tuning = False
            if status != 0 or job not in self.jobs:
                return
            if raised:
                header.cap = limit
                return
            for ceiling in job.ceilings:
                ceiling.lower(limit, time.monotonic_ns())
            job.lowered = (limit, time.monotonic(), False)

        self.errand(["set", job.name, "--limit", quantity(limit)], done)

    def settle(self, job: Job, now: float) -> None:
        """A lowered limit is in force for a job that was not above it at two looks: what it has just freed it may use
        again for a while."""
        if job.lowered is None or now - job.lowered[1] < law.SHRINKS_WITHIN / SECOND or not job.book.try_lock():
            return
        limit, _, was_below = job.lowered
        below = all(job.book.reserved(gpu) <= limit for gpu in range(len(job.plan.gpus)))
        job.lowered = (limit, now, below)
        if below and was_below:
            job.book.header.limit, job.lowered = limit, None
        job.book.unlock()

    def do_set_request(self, now: float) -> None:
        """An owner's request goes down and up; what its program may have goes with it, first or last."""
        job = self.some_job(borrows=False)
        if job is None or job.tuning or job.plan.request == job.plan.limit:
            return
        header = job.book.header
        least = int(self.context * len(job.pids())) + (64 << 20)
        request = self.random.randrange(min(least, job.plan.request), job.plan.request + 1, 2 << 20)
        if request < header.request:
            header.cap = request
            settled = False
            if job.book.try_lock():
                settled = all(job.book.reserved(gpu) <= request for gpu in range(len(job.plan.gpus)))
                if settled:
                    header.request = request
                job.book.unlock()
            if not settled:
                header.cap = header.request
                return
        job.tuning = True

        def done(status: int, text: str) -> None:
            job.tuning = False
            if status == 0 and job in self.jobs:
                header.request = header.cap = request

        self.errand(["set", job.name, "--request", quantity(request)], done)

    def do_reserve(self, now: float) -> None:
        size = self.random.randrange(64, 2048) << 20
        name = f"kept-{self.random.randrange(1 << 30)}"
        self.errand(["reserve", quantity(size), "--name", name, "--for", f"{self.random.randrange(1, 8)}s"])

    def errand(self, command: list[str], done: Callable[[int, str], None] = lambda status, text: None) -> None:
        """Run one command of gpushare in the background."""
        self.number += 1
        path = self.ground.directory / "jobs" / f"errand-{self.number}"
        pid = self.ground.start([str(BIN / "gpushare"), *command], path)
        self.errands[pid] = (path, done)
        self.result.deeds[f"gpushare {command[0]}"] += 1
        self.note(" ".join(command))

    # -- accounts ----------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        line = f"{time.monotonic() - self.began:8.3f} {text}"
        self.recent.append(line)
        self.say(line)

    def violation(self, which: str, job: Job | None, text: str, facts: dict[str, Any] | None = None) -> None:
        self.result.counted[which] += 1
        at = time.monotonic() - self.began
        self.say(f"{at:8.3f} VIOLATION {which} {job.name if job else ''}: {text}")
        if len(self.result.violations) >= MOST_VIOLATIONS:
            return
        evidence = list(self.recent)[-12:]
        if job is not None:
            facts = {
                "plan": asdict(job.plan),
                "wrapper killed": job.wrapper_struck,
                "killed": job.struck,
                **(facts or {}),
            }
            evidence += job.errors.read_text(errors="replace").splitlines()[-14:]
        evidence += self.ground.logged(job.name if job is not None else "")
        name = job.name if job else ""
        self.result.violations.append(Violation(which, name, text, at, facts or {}, "\n".join(evidence)))


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    if pid > 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def alive(pid: int) -> bool:
    return state_of(pid) not in ("gone", "Z", "X")
