"""Rounds of chaos: one random action (or a small burst of them), then everything is checked.

Each round has dice of its own, thrown from the seed and its number: what is tried depends on nothing else. Whom it
meets depends on who is there, and that, now and then, on timing.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from chaos.oracle import Fault, Oracle, Record
from chaos.stage import PATIENCE, Program, Stage, Stuck
from chaos.truth import Ask, Job, Span, Truth

MIB = 1 << 20
GIB = 1 << 30
BLOCK = 2 * MIB
"""The software driver hands memory out in these, so what is asked for is what is taken."""
POOL_STEP = 32 * MIB
CONTEXT = 300 * MIB
CLAIM_TIMEOUT = 5.0
LATE = 4.0
"""Beyond a bound, on a machine with other things to do."""
DEATH_SLACK = 0.25
"""So much later than we the daemon may hear of the end of a process."""
EPOCH = 40
"""Rounds until everybody has to go, and nothing may be left."""
OUTSIDE = "outside"
MARKER = "marker"
LADDERS = ("trim,term,kill", "trim,term,kill", "trim,term,kill", "trim,kill", "term,kill", "kill")


@dataclass(eq=False)
class Actor:
    """One program, and what we know that it holds."""

    program: Program
    job: str | None
    gpus: list[int]
    """By its own device numbers."""
    current: int = -1
    contexts: dict[int, Span] = field(default_factory=dict)
    stack: list[Span] = field(default_factory=list)
    """Its allocations in their order: it frees the last ones first."""
    caches: dict[int, list[Span]] = field(default_factory=dict)
    pooled_at: dict[int, float] = field(default_factory=dict)
    """When its pool was last looked at."""
    pending: list[Ask] = field(default_factory=list)
    stopped: bool = False
    quitting: bool = False
    born: float = 0.0

    @property
    def serial(self) -> int:
        return self.program.serial

    def spans(self) -> list[Span]:
        return [*self.contexts.values(), *self.stack, *(span for kept in self.caches.values() for span in kept)]


class Chaos:
    """A node under siege."""

    def __init__(self, stage: Stage, seed: int, say: Callable[[str], None] = lambda _: None) -> None:
        self.stage = stage
        self.seed = seed
        self.say = say
        self.dice = random.Random(seed)
        self.actors: dict[int, Actor] = {}
        self.ids: dict[str, str] = {}
        """Registered jobs (those whose wrapper we are) -> id."""
        self.bodies: dict[str, dict[str, object]] = {}
        self.refused: set[str] = set()
        self.history: deque[str] = deque(maxlen=30)
        self.counts: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self.round = 0
        self.serial = 0
        self.down: list[tuple[float, float]] = []
        """When there was no daemon, or one that could not act."""
        self.outside_changed = -inf
        self.round_began = 0.0
        self.seen = 0
        """Records that have been judged."""
        self.stops: dict[str, list[tuple[float, str]]] = {}
        """Job -> its SIGTERMs and SIGKILLs, as the daemon tells them."""
        self.violations: list[Record] = []
        self.ended: list[tuple[Actor, float]] = []
        """Programs that have ended in this round."""
        self.base: tuple[int, int] | None = None
        stage.on_end = self._program_ended

    # ---- life --------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.stage.start_daemon()
        gpus = self.stage.api("GET", "/v1/status")["gpus"]
        self.truth = Truth({gpu["index"]: gpu["capacity"] for gpu in gpus})
        self.total = {gpu["index"]: gpu["total"] for gpu in gpus}
        self.uuids = {gpu["index"]: gpu["uuid"] for gpu in gpus}
        self.oracle = Oracle(self.truth)
        self._register(MARKER, {"request": "none", "limit": "1Gi"}, [0])
        self._learn_overhead()

    def _learn_overhead(self) -> None:
        """A first context is charged by a guess. Let it be measured, and that be written down."""
        self._register("first", {"request": "1Gi", "limit": "2Gi"}, [0])
        actor = self._program("first", [0])
        self._open(actor, 0)
        self._answers()
        self._until(lambda: any(one.event == "overhead" for one in self.stage.records), "a context to be measured")
        self._register("second", {"request": "none", "limit": "1Gi"}, [0])
        self._quit(actor)
        self._answers()
        self._sweep()
        self._end_job("second")
        self._sync()
        self.seen = len(self.stage.records)
        self._leave_nothing()

    def play(self, rounds: int, until: float = inf) -> bool:
        """True: all of them, and nothing at fault."""
        for number in range(1, rounds + 1):
            if time.monotonic() > until:
                break
            self.round = number
            self.dice = random.Random(f"{self.seed}/{number}")
            self.round_began = time.monotonic()
            try:
                what = self._act()
                self.history.append(f"{number}: {what}  ({time.monotonic() - self.round_began:.2f} s)")
                self.say(self.history[-1])
                self._check()
                if number % EPOCH == 0 or number == rounds:
                    self._end_epoch()
            except (Stuck, AssertionError, OSError) as error:
                self.faults.append(Fault("stuck", f"{error!r}"))
            if self.faults:
                return False
        return True

    # ---- jobs and programs -------------------------------------------------------------------------

    def _register(self, name: str, budget: dict[str, object], gpus: list[int], **more: object) -> bool:
        """A job whose wrapper is this process. False: refused."""
        body: dict[str, object] = {"name": name, "command": ["puppet"], "gpus": len(gpus), **budget, **more}
        body["devices"] = [self.uuids[gpu] for gpu in gpus]
        status, answer = self.stage.call("POST", "/v1/jobs", body)
        if status not in (200, 201):
            assert status == 409, (status, answer)
            return False
        self.ids[name] = answer["id"]
        self.bodies[name] = body
        bounds = {self.stage.index[one["uuid"]]: (one["request"], one["limit"]) for one in answer["gpus"]}
        ladder = tuple(answer["on_reclaim"])
        job = Job(name, bounds, answer["priority"], float(str(body.get("grace", 5.0))), ladder, answer["lend"])
        job.protected, job.since = float(str(body.get("min_run_time", 0.0))), time.monotonic()
        self.truth.jobs[name] = job
        return True

    def _program(self, name: str, gpus: list[int]) -> Actor:
        """One more process of a job that this process has registered."""
        body = self.bodies[name]
        env = self.stage.program_env() | {"GPUSHARE_JOB": self.ids[name], "GPUSHARE_NAME": name}
        env["CUDA_VISIBLE_DEVICES"] = ",".join(self.uuids[gpu] for gpu in gpus)
        env |= {"GPUSHARE_REQUEST": str(body["request"]), "GPUSHARE_LIMIT": str(body["limit"])}
        program = self.stage.spawn(name, [str(self.stage.puppet)], env)
        first = not any(actor.job == name for actor in self.actors.values())
        if first:
            self.stage.call("PUT", f"/v1/jobs/{self.ids[name]}/main", {"pid": program.pid})
        return self._take_in(program, name, gpus)

    def _take_in(self, program: Program, job: str | None, gpus: list[int]) -> Actor:
        actor = Actor(program, job, gpus, born=time.monotonic())
        self.actors[actor.serial] = actor
        program.unasked = lambda words: self._unasked(actor, words)
        self.counts["programs"] += 1
        return actor

    def _end_job(self, name: str) -> None:
        if name in self.ids:
            self.stage.call("DELETE", f"/v1/jobs/{self.ids[name]}", {})
            del self.ids[name], self.bodies[name]
        self.truth.jobs.pop(name, None)

    def _of(self, job: str | None) -> list[Actor]:
        return [actor for actor in self.actors.values() if actor.job == job]

    def _able(self) -> list[Actor]:
        """Programs of jobs that can be told something."""
        return [
            actor
            for actor in self.actors.values()
            if actor.job and actor.contexts and not (actor.stopped or actor.quitting)
        ]

    # ---- orders ------------------------------------------------------------------------------------

    def _open(self, actor: Actor, gpu: int) -> None:
        """A context on one of its GPUs; to it belong the next orders."""
        device = actor.gpus.index(gpu)
        if gpu in actor.contexts:
            self.stage.order(actor.program, f"open {device}")
            actor.current = gpu
            return
        ask = Ask(actor.job or OUTSIDE, actor.serial, gpu, CONTEXT, time.monotonic(), context=True)
        self._await(actor, ask)

        def then(words: list[str]) -> None:
            span = self._answered(actor, ask, words)
            if span is not None:
                actor.contexts[gpu] = span
                actor.current = gpu

        self.stage.order(actor.program, f"open {device}", then)

    def _await(self, actor: Actor, ask: Ask) -> None:
        actor.pending.append(ask)
        if actor.job is not None:
            self.truth.asks.append(ask)

    def _answered(self, actor: Actor, ask: Ask, words: list[str]) -> Span | None:
        ask.ended, ask.ok = time.monotonic(), words[0] == "ok"
        actor.pending.remove(ask)
        self.counts["allocated" if ask.ok else "refused"] += 1
        if not ask.ok:
            assert words[1] in ("2", "3", "801", "100", "999"), f"{actor.program.name}: {words}"
            return None
        return self.truth.add(Span(actor.job, actor.serial, ask.gpu, ask.size, ask.began, ask.ended))

    def _alloc(self, actor: Actor, size: int, gpu: int | None = None) -> Ask:
        gpu = actor.current if gpu is None else gpu
        if gpu != actor.current:
            self._open(actor, gpu)
        size = max(BLOCK, size // BLOCK * BLOCK)
        ask = Ask(actor.job or OUTSIDE, actor.serial, gpu, size, time.monotonic())
        self._await(actor, ask)

        def then(words: list[str]) -> None:
            span = self._answered(actor, ask, words)
            if span is not None:
                actor.stack.append(span)

        self.stage.order(actor.program, f"alloc {size}", then)
        return ask

    def _free(self, actor: Actor, count: int) -> None:
        for _ in range(min(count, len(actor.stack))):
            sent = time.monotonic()

            def then(words: list[str], sent: float = sent) -> None:
                if words[0] == "ok" and words[1] != "0" and actor.stack:
                    self._down(actor.stack.pop(), sent)

            self.stage.order(actor.program, "free last", then)

    def _down(self, span: Span, since: float, by: float | None = None) -> None:
        span.down_from = min(span.down_from, since)
        span.down_by = min(span.down_by, time.monotonic() if by is None else by)

    def _unasked(self, actor: Actor, words: list[str]) -> None:
        """What it says of its own accord: that it has freed something, having been asked by SIGTERM."""
        if words[:1] == ["gave"]:
            for _ in range(int(words[1])):
                if actor.stack:
                    self._down(actor.stack.pop(), self.round_began)
            self.counts["gave"] += 1

    def _cache(self, actor: Actor, size: int) -> None:
        """Let its pool grow by about so much, and keep it."""
        count = max(1, min(64, size // (64 * MIB)))
        self.stage.order(
            actor.program, f"cache {64 * MIB} {count}", lambda words: self._pool_seen(actor, actor.current, words)
        )
        actor.pooled_at[actor.current] = time.monotonic()
        self.counts["caches"] += 1

    def _pool_seen(self, actor: Actor, gpu: int, words: list[str]) -> None:
        now, holds = time.monotonic(), int(words[-1])
        known = actor.caches.setdefault(gpu, [])
        since = actor.pooled_at.get(gpu, self.round_began)
        more = holds - sum(span.size for span in known)
        if more > 0:
            known.append(self.truth.add(Span(actor.job, actor.serial, gpu, more, since, now, cache=True)))
        while more < 0 and known:
            span = known.pop()
            part = min(span.size, -more)
            if part < span.size:
                rest = Span(span.job, span.process, gpu, span.size - part, span.up_from, span.up_by, cache=True)
                known.append(self.truth.add(rest))
                span.size = part
            self._down(span, since)
            self.counts["trimmed MiB"] += part // MIB
            more += part
        actor.pooled_at[gpu] = now

    def _quit(self, actor: Actor) -> None:
        actor.quitting = True
        actor.program.doomed_from = time.monotonic()
        self.stage.order(actor.program, "quit")

    def _program_ended(self, program: Program) -> None:
        actor = self.actors.pop(program.serial, None)
        if actor is None:
            return
        ended = program.ended_at or time.monotonic()
        since = program.doomed_from if program.doomed_from is not None else self.round_began
        for ask in actor.pending:
            ask.ended = ended
            # What it was asking for it may have had for a moment.
            self.truth.add(Span(actor.job, actor.serial, ask.gpu, ask.size, ask.began, inf, ended, ended + DEATH_SLACK))
        for span in actor.spans():
            self._down(span, since, ended + DEATH_SLACK)
            if actor.job is None:
                # To the daemon it is gone when the driver says so; of its own programs' memory it knows that it comes.
                span.down_by += self.stage.teardown / 1000
        if actor.job is None:
            self.outside_changed = time.monotonic()
        self.ended.append((actor, ended))

    # ---- waiting -----------------------------------------------------------------------------------

    def _until(self, condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        self.stage.pump(condition, patience, what)

    def _busy(self) -> bool:
        return any(actor.program.answers and not actor.stopped for actor in self.actors.values())

    def _answers(self) -> None:
        """Until every program that can act has answered, or has ended."""

        def quiet() -> bool:
            ending = (actor.quitting or actor.program.killed_by_us for actor in self.actors.values())
            return not self._busy() and not any(ending)

        self._until(quiet, "answers", 3 * CLAIM_TIMEOUT + PATIENCE)

    def _sync(self) -> None:
        """Until all that the daemon has noted so far has arrived."""
        before = len(self.stage.records)
        status, _ = self.stage.call("POST", f"/v1/jobs/{self.ids[MARKER]}/checkpointed")
        assert status == 200, f"the marker's job is not known: {status}"

        def arrived() -> bool:
            return any(one.event == "checkpointed" and one.job == MARKER for one in self.stage.records[before:])

        self._until(arrived, "the daemon's records")

    # ---- actions -----------------------------------------------------------------------------------

    def _act(self) -> str:
        dice = self.dice
        actions: list[tuple[int, Callable[[], str]]] = [
            (self._need_of_jobs(), self._start_job),
            (4, self._one_more),
            (12, self._borrow),
            (16, self._claim),
            (30, self._squeeze),
            (5, self._release),
            (9, self._keep_cache),
            (6, self._term_mode),
            (4, self._stop_or_go_on),
            (3, self._fork),
            (2, self._exec),
            (4, self._die),
            (3, self._finish),
            (5, self._outsider),
            (3, self._restart),
            (4, self._change_budget),
            (2, self._checkpoint),
            (5, self._burst),
        ]
        action = dice.choices([one for _, one in actions], [weight for weight, _ in actions])[0]
        what = action()
        self._answers()
        return what

    def _need_of_jobs(self) -> int:
        """A weight: with few jobs there is little to quarrel about."""
        return (200, 200, 60, 30, 16, 8, 2, 1)[min(7, len(self._of_jobs()))]

    def _of_jobs(self) -> set[str]:
        return {actor.job for actor in self.actors.values() if actor.job}

    def _pick(self, able: list[Actor]) -> Actor | None:
        return self.dice.choice(sorted(able, key=lambda actor: actor.serial)) if able else None

    def _size(self, least: int, most: int) -> int:
        return self.dice.randrange(least, max(least, most) + 1) // BLOCK * BLOCK

    def _free_now(self, gpu: int) -> int:
        """What nobody holds: by the truth."""
        now = time.monotonic()
        used = sum(span.size for span in self.truth.spans if span.gpu == gpu and span.maybe(now))
        return self.truth.capacity[gpu] - used

    def _start_job(self) -> str:
        dice = self.dice
        self.serial += 1
        gpus = [0]
        if len(self.uuids) > 1:
            gpus = dice.choice([[0], [0], [0], [1], [0, 1]])
        name = f"{'abcdefghijklmnopqrstuvwxyz'[self.serial % 26]}{self.serial}"
        request = dice.choice([0, 0, self._size(512 * MIB, 2 * GIB), self._size(2 * GIB, 8 * GIB)])
        limit = dice.choice([request or GIB, *[min(request + self._size(GIB, 14 * GIB), 15 * GIB)] * 4])
        limit = max(limit, request)
        grace = dice.choice([0.0, 0.1, 0.1, 0.3, 0.3, 0.8])
        ladder = dice.choice(LADDERS)
        priority = dice.choice([-1, 0, 0, 0, 1])
        lend = dice.random() < 0.85
        protected = dice.choice([0.0, 0.0, 0.0, 0.0, 2.0])
        way = dice.choice(["registered"] * 6 + ["alone"] * 3 + ["wrapped"])
        what = f"start {name} ({way}) {request // MIB}..{limit // MIB}Mi on {gpus}, grace {grace}, {ladder}"
        what += f", priority {priority}{'' if lend else ', lends nothing'}{', protected' if protected else ''}"
        fits = all(request <= self.truth.capacity[gpu] - self._requested(gpu) - self._outside(gpu) for gpu in gpus)
        amounts: dict[str, object] = {"request": f"{request // MIB}Mi" if request else "none"}
        amounts["limit"] = f"{limit // MIB}Mi"
        if way == "registered":
            more = {"priority": priority, "grace": grace, "on_reclaim": ladder, "lend": lend, "min_run_time": protected}
            admitted = self._register(name, amounts, gpus, **more)
            self._expect_admission(name, admitted, fits, gpus)
            if not admitted:
                return f"{what}: refused"
            actor = self._program(name, gpus)
            self._open_all(actor)
            return what
        gpus = gpus[:1]
        settings = {"GPUSHARE_GRACE": f"{grace}s", "GPUSHARE_PRIORITY": str(priority), "GPUSHARE_ON_RECLAIM": ladder}
        settings |= {"GPUSHARE_MIN_RUN_TIME": f"{protected}s", "GPUSHARE_NAME": name}
        settings |= {"GPUSHARE_REQUEST": str(amounts["request"]), "GPUSHARE_LIMIT": str(amounts["limit"])}
        env = self.stage.program_env() | settings | {"CUDA_VISIBLE_DEVICES": self.uuids[gpus[0]]}
        if way == "wrapped":
            del env["LD_PRELOAD"]
            options = ["--no-lend"] if not lend else []
            program = self.stage.spawn(name, self.stage.run_line(*options), env, wrapped=True)
            self._expect_admission(name, program.alive, fits, gpus)
        else:
            lend = True
            program = self.stage.spawn(name, [str(self.stage.puppet)], env)
        if not program.alive:
            return f"{what}: refused"
        bounds = {gpus[0]: (request, min(limit, self.truth.capacity[gpus[0]]))}
        job = Job(name, bounds, priority, grace, tuple(ladder.split(",")), lend, protected, time.monotonic())
        self.truth.jobs[name] = job
        actor = self._take_in(program, name, gpus)
        self._open_all(actor)
        self._answers()
        if way == "alone" and actor.serial in self.actors and not actor.contexts:
            # Not admitted, or no room for a context: then it is no job.
            self._quit(actor)
            self.refused.add(name)
            return f"{what}: no context"
        job.since = time.monotonic()
        return what

    def _requested(self, gpu: int) -> int:
        return sum(job.bounds[gpu][0] for job in self.truth.jobs.values() if gpu in job.bounds)

    def _outside(self, gpu: int) -> int:
        return self.truth.unmanaged(gpu, time.monotonic())[1]

    def _expect_admission(self, name: str, admitted: bool, fits: bool, gpus: list[int]) -> None:
        if time.monotonic() - self.outside_changed < 1.5 or any(self._outside(gpu) for gpu in gpus):
            return  # what is outside is known to the daemon from its last sample
        if admitted != fits:
            self._fault(
                "admission", f"{name} {'admitted' if admitted else 'refused'}: requests do{'' if fits else ' not'} fit"
            )

    def _open_all(self, actor: Actor) -> None:
        for gpu in actor.gpus:
            self._open(actor, gpu)

    def _one_more(self) -> str:
        names = sorted(name for name in self.ids if name != MARKER and self._of(name))
        if not names:
            return "no job for one more process"
        name = self.dice.choice(names)
        if len(self._of(name)) >= 3:
            return f"{name} has enough processes"
        actor = self._program(name, list(self._of(name)[0].gpus))
        self._open_all(actor)
        return f"one more process of {name}"

    def _borrow(self) -> str:
        actor = self._pick(self._able())
        if actor is None or actor.job is None:
            return "nobody to borrow"
        gpu = self.dice.choice(sorted(actor.contexts))
        free = self._free_now(gpu)
        size = self._size(BLOCK, int(free * self.dice.choice([0.3, 0.9, 1.0, 1.3])) if free > BLOCK else GIB)
        self._alloc(actor, size, gpu)
        return f"{actor.job} takes {size // MIB} MiB of GPU {gpu} ({free // MIB} free)"

    def _headroom(self, actor: Actor, gpu: int) -> int:
        job = self.truth.jobs[actor.job or ""]
        return job.bounds[gpu][0] - self.truth.usage(job.name, gpu, time.monotonic())[1]

    def _owners(self) -> list[tuple[Actor, int]]:
        found = [(actor, gpu) for actor in self._able() for gpu in sorted(actor.contexts)]
        return [(actor, gpu) for actor, gpu in found if self._headroom(actor, gpu) >= 64 * MIB]

    def _claim(self) -> str:
        owners = self._owners()
        if not owners:
            return self._start_job()
        actor, gpu = self.dice.choice(owners)
        headroom = self._headroom(actor, gpu)
        size = self._size(BLOCK, headroom) if self.dice.random() < 0.5 else headroom // BLOCK * BLOCK
        if self._is_hopeless(actor, gpu, size) and self.dice.random() < 0.8:
            return self._outsider_leaves()
        disturb = self.dice.choice([None] * 6 + self._disturbances())
        self._alloc(actor, size, gpu)
        what = f"{actor.job} claims {size // MIB} MiB of GPU {gpu} ({self._free_now(gpu) // MIB} free)"
        if disturb is None:
            return what
        delay = self.dice.choice([0.0, 0.02, 0.1, 0.4, 1.1])
        self.stage.rest(delay)
        return f"{what}; after {delay} s {disturb(actor)}"

    def _is_hopeless(self, actor: Actor, gpu: int, size: int) -> bool:
        """Nothing but time will meet it: memory outside, or loans that may not be touched."""
        now = time.monotonic()
        lenders = [
            job
            for job in self.truth.jobs.values()
            if gpu in job.bounds and job.name != actor.job and job.borrows_on(gpu) and now - job.since > job.protected
        ]
        loans = sum(self.truth.loan(job.name, gpu, now)[0] for job in lenders)
        kept = self.truth.headroom_kept(gpu, now, {actor.job or "": size})
        return size + kept > self._free_now(gpu) + loans

    def _disturbances(self) -> list[Callable[[Actor], str]]:
        return [
            self._kill_daemon_meanwhile,
            self._kill_claimant,
            self._kill_somebody_else,
            self._free_elsewhere,
            self._another_claim,
            self._loan_meanwhile,
            self._pause_claimant,
            self._outsider_meanwhile,
            self._pause_daemon,
        ]

    def _kill_daemon_meanwhile(self, _: Actor) -> str:
        return self._restart()

    def _kill_claimant(self, actor: Actor) -> str:
        self.stage.kill(actor.program)
        return "it is killed"

    def _others(self, actor: Actor) -> list[Actor]:
        return [other for other in self._able() if other.job != actor.job and other.serial in self.actors]

    def _kill_somebody_else(self, actor: Actor) -> str:
        other = self._pick(self._others(actor))
        if other is None:
            return "nobody else is there"
        self.stage.kill(other.program)
        return f"{other.job} is killed"

    def _free_elsewhere(self, actor: Actor) -> str:
        other = self._pick([one for one in self._others(actor) if one.stack])
        if other is None:
            return "nobody has anything to free"
        self._free(other, self.dice.randrange(1, 4))
        return f"{other.job} frees"

    def _another_claim(self, actor: Actor) -> str:
        owners = [(other, gpu) for other, gpu in self._owners() if other.job != actor.job and not other.program.answers]
        if not owners:
            return "nobody else may claim"
        other, gpu = self.dice.choice(owners)
        size = self._size(BLOCK, self._headroom(other, gpu))
        if self._is_hopeless(other, gpu, size):
            return "another's claim would be hopeless"
        self._alloc(other, size, gpu)
        return f"{other.job} claims {size // MIB} MiB"

    def _loan_meanwhile(self, actor: Actor) -> str:
        other = self._pick(self._others(actor))
        if other is None:
            return "nobody else is there"
        self._alloc(other, self._size(BLOCK, 4 * GIB))
        return f"{other.job} wants a loan"

    def _pause_claimant(self, actor: Actor) -> str:
        self.stage.signal(actor.program, signal.SIGSTOP)
        self.stage.rest(0.3)
        if actor.serial in self.actors:
            self.stage.signal(actor.program, signal.SIGCONT)
        return "it is paused for a moment"

    def _outsider_meanwhile(self, _: Actor) -> str:
        return self._outsider()

    def _pause_daemon(self, _: Actor) -> str:
        assert self.stage.daemon is not None
        began = time.monotonic()
        self.stage.daemon.send_signal(signal.SIGSTOP)
        self.stage.rest(0.3)
        self.stage.daemon.send_signal(signal.SIGCONT)
        self.down.append((began, time.monotonic() + 0.2))
        return "the daemon is paused for a moment"

    def _squeeze(self) -> str:
        """Those who may borrow all they can get, then an owner wants its own."""
        owners = self._owners()
        if not owners:
            return self._start_job()
        owner, gpu = self.dice.choice(owners)
        others = [other for other in self._others(owner) if gpu in other.contexts]
        self.dice.shuffle(others)
        parts = []
        for other in others[:3]:
            job = self.truth.jobs[other.job or ""]
            room = job.bounds[gpu][1] - self.truth.usage(job.name, gpu, time.monotonic())[1]
            size = min(self._free_now(gpu), room) // BLOCK * BLOCK
            if other is not others[:3][-1]:
                size = size // 2 // BLOCK * BLOCK
            if size < 64 * MIB or self.truth.headroom_kept(gpu, time.monotonic(), {}):
                continue
            if self.dice.random() < 0.4:
                if other.current != gpu:
                    self._open(other, gpu)
                    self._answers()
                if other.current == gpu and other.serial in self.actors:
                    self._cache(other, size)
                    parts.append(f"{other.job} keeps {size // MIB}")
            else:
                for _ in range(pieces := self.dice.choice([1, 2, 4])):
                    self._alloc(other, size // pieces, gpu)
                parts.append(f"{other.job} takes {size // MIB}")
            self._answers()
        self._pools()
        if owner.serial not in self.actors or owner.stopped:
            return f"{', '.join(parts)}; the owner has gone"
        return f"{', '.join(parts)}; {self._claim_of(owner, gpu)}"

    def _claim_of(self, owner: Actor, gpu: int) -> str:
        headroom = self._headroom(owner, gpu)
        if headroom < BLOCK or self._is_hopeless(owner, gpu, headroom):
            return "nothing to claim"
        size = headroom // BLOCK * BLOCK if self.dice.random() < 0.5 else self._size(BLOCK, headroom)
        self._alloc(owner, size, gpu)
        disturb = self.dice.choice([None] * 12 + self._disturbances())
        what = f"{owner.job} claims {size // MIB} MiB of GPU {gpu}"
        if disturb is not None:
            delay = self.dice.choice([0.0, 0.02, 0.1, 0.4])
            self.stage.rest(delay)
            what += f"; after {delay} s {disturb(owner)}"
        return what

    def _release(self) -> str:
        actor = self._pick([one for one in self._able() if one.stack])
        if actor is None:
            return "nobody has anything to free"
        count = self.dice.randrange(1, len(actor.stack) + 1)
        self._free(actor, count)
        return f"{actor.job} frees {count} of {len(actor.stack)}"

    def _keep_cache(self) -> str:
        """Only of what is free: a pool that grows is no claim here."""
        able = [one for one in self._able() if self.truth.jobs[one.job or ""].borrows_on(one.current)]
        actor = self._pick(able)
        if actor is None:
            return "nobody to cache"
        gpu = actor.current
        job = self.truth.jobs[actor.job or ""]
        room = min(self._free_now(gpu), job.bounds[gpu][1] - self.truth.usage(job.name, gpu, time.monotonic())[1])
        room -= self.truth.headroom_kept(gpu, time.monotonic(), {job.name: room})
        if room < 256 * MIB:
            return "no room for a cache"
        size = self._size(128 * MIB, room)
        self._cache(actor, size)
        return f"{actor.job} keeps {size // MIB} MiB in its pool"

    def _term_mode(self) -> str:
        actor = self._pick(self._able())
        if actor is None:
            return "nobody to tell about SIGTERM"
        mode = self.dice.choice(["ignore", "ignore", "die", "tell 1", "tell 100"])
        self.stage.order(actor.program, f"term {mode}")
        return f"{actor.job}: on SIGTERM {mode}"

    def _stop_or_go_on(self) -> str:
        stopped = [actor for actor in self.actors.values() if actor.stopped]
        if stopped and self.dice.random() < 0.6:
            self._go_on(self.dice.choice(sorted(stopped, key=lambda one: one.serial)))
            return "a stopped program goes on"
        actor = self._pick(self._able())
        if actor is None:
            return "nobody to stop"
        self.stage.order(actor.program, "stop")
        actor.stopped = True
        self._note_stopped()
        self.counts["stopped"] += 1
        return f"{actor.job} stops itself"

    def _go_on(self, actor: Actor) -> None:
        # Not before it has stopped: a SIGCONT that comes first is lost.
        stat = Path(f"/proc/{actor.program.pid}/stat")
        with contextlib.suppress(OSError):
            self._until(lambda: stat.read_text().rpartition(")")[2].split()[0] in "TZX", "it to stop")
        actor.stopped = False
        self.stage.signal(actor.program, signal.SIGCONT)
        self._note_stopped()

    def _note_stopped(self) -> None:
        self.oracle.stopped = {actor.job: True for actor in self.actors.values() if actor.stopped and actor.job}

    def _fork(self) -> str:
        actor = self._pick(self._able())
        if actor is None:
            return "nobody to fork"
        lasting = self.dice.choice([10, 500, 3000])
        self.stage.order(actor.program, f"fork {lasting}")
        self.counts["forks"] += 1
        if self.dice.random() < 0.3:
            self._answers()
            self.stage.kill(actor.program)
            return f"{actor.job} forks, and is killed while its child lives on"
        return f"{actor.job} forks"

    def _exec(self) -> str:
        actor = self._pick(self._able())
        if actor is None:
            return "nobody to exec"
        sent = time.monotonic()

        def fresh(_: list[str]) -> None:
            for span in actor.spans():
                self._down(span, sent, time.monotonic() + DEATH_SLACK)
            actor.contexts, actor.stack, actor.caches, actor.current = {}, [], {}, -1

        self.stage.order(actor.program, "exec", fresh)
        self._answers()
        if actor.serial not in self.actors or actor.contexts:
            return f"{actor.job} does not come through exec"
        self.counts["execs"] += 1
        if self.dice.random() < 0.8:
            self._open_all(actor)
            return f"{actor.job} becomes another program"
        self._quit(actor)
        return f"{actor.job} becomes another program, and ends"

    def _die(self) -> str:
        actor = self._pick([one for one in self.actors.values() if one.job])
        if actor is None:
            return "nobody to kill"
        self.stage.kill(actor.program)
        if self.dice.random() < 0.2 and actor.program.wrapped:
            actor.program.child.kill()
            return f"{actor.job} and its wrapper are killed"
        return f"{actor.job}[{actor.program.pid}] is killed"

    def _finish(self) -> str:
        names = sorted({actor.job for actor in self.actors.values() if actor.job})
        if not names:
            return "no job to finish"
        name = self.dice.choice(names)
        for actor in self._of(name):
            if actor.stopped:
                self._go_on(actor)
            self._quit(actor)
        return f"{name} finishes"

    def _outsider(self) -> str:
        outside = self._of(None)
        if outside and self.dice.random() < 0.6:
            return self._outsider_leaves()
        gpu = self.dice.choice(sorted(self.uuids))
        if outside:
            actor = outside[0]
            gpu = actor.current if actor.current in self.uuids else gpu
        else:
            program = self.stage.spawn(OUTSIDE, [str(self.stage.puppet)], self.stage.outsider_env())
            actor = self._take_in(program, None, sorted(self.uuids))
        size = self._size(256 * MIB, self.dice.choice([1, 2, 6]) * GIB)
        self._alloc(actor, size, gpu)
        self.outside_changed = time.monotonic()
        self.counts["outsiders"] += 1
        return f"a program outside takes {size // MIB} MiB of GPU {gpu}"

    def _outsider_leaves(self) -> str:
        for actor in self._of(None):
            self.stage.kill(actor.program)
            self.outside_changed = time.monotonic()
            return "the program outside is killed"
        return "nobody is outside"

    def _restart(self) -> str:
        number = self.dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        began = time.monotonic()
        self.stage.stop_daemon(number)
        self._forget_what_comes_back(began)
        self.stage.start_daemon()
        self._register_again()
        self.down.append((began, time.monotonic()))
        self.counts["restarts"] += 1
        return f"the daemon gets {number.name} and is started again"

    def _forget_what_comes_back(self, began: float) -> None:
        """The next daemon cannot know that what the driver still holds was a program's that has ended."""
        slow = self.stage.teardown / 1000
        for span in self.truth.spans:
            if began - slow - DEATH_SLACK < span.down_by < inf and span.job is not None:
                span.down_by += slow

    def _register_again(self) -> None:
        """As wrappers do."""
        for job in self.stage.api("GET", "/v1/jobs")["jobs"]:
            if job["name"] not in self.truth.jobs and job["name"] not in self.refused:
                # It was killed before it had written down that this job is over. A wrapper ends, we go on.
                self.stage.call("DELETE", f"/v1/jobs/{job['id']}", {})
                self.counts["ended twice"] += 1
        for name, id in self.ids.items():
            status, answer = self.stage.call("POST", "/v1/jobs", {**self.bodies[name], "job": id})
            if status != 200:
                self._fault("forgotten", f"job {name} is not known to the new daemon: {status} {answer}")

    def _change_budget(self) -> str:
        names = sorted(name for name in self.truth.jobs if name != MARKER and self._of(name))
        if not names:
            return "no job to change"
        name = self.dice.choice(names)
        job = self.truth.jobs[name]
        gpu = min(job.bounds)
        request, limit = job.bounds[gpu]
        change: dict[str, object]
        match self.dice.choice(["priority", "request", "limit"]):
            case "priority":
                change = {"priority": self.dice.randrange(-1, 2)}
            case "request":
                change = {"request": f"{self._size(BLOCK, max(BLOCK, limit - GIB)) // MIB}Mi"}
            case _:
                change = {"limit": f"{(request + self._size(GIB, 8 * GIB)) // MIB}Mi"}
        status, answer = self.stage.call("PATCH", f"/v1/jobs/{name}", change)
        job.changed = time.monotonic()
        if status == 200:
            after = answer["after"]
            job.priority = after["priority"]
            job.bounds = {self.stage.index[one["uuid"]]: (one["request"], one["limit"]) for one in after["gpus"]}
            if name in self.bodies:
                self.bodies[name] |= {key: value for key, value in change.items()}
        elif status not in (400, 404, 409):
            self._fault("change", f"{name}: {change}: {status} {answer}")
        return f"{name}: {change} -> {status}"

    def _checkpoint(self) -> str:
        names = sorted(name for name in self.truth.jobs if name != MARKER and self._of(name))
        if not names:
            return "no job to save"
        name = self.dice.choice(names)
        self.stage.call("POST", f"/v1/jobs/{name}/checkpointed")
        self.truth.jobs[name].saved = time.monotonic()
        return f"{name} says that its work is saved"

    def _burst(self) -> str:
        """Several at once."""
        able = self._able()
        self.dice.shuffle(able)
        parts = []
        for actor in able[:4]:
            gpu = actor.current
            headroom = self._headroom(actor, gpu)
            kind = self.dice.choice(["take", "free", "claim"])
            if kind == "free" and actor.stack:
                self._free(actor, self.dice.randrange(1, len(actor.stack) + 1))
            elif kind == "claim" and headroom > BLOCK and not self._is_hopeless(actor, gpu, headroom):
                self._alloc(actor, self._size(BLOCK, headroom))
            else:
                kind = "take"
                self._alloc(actor, self._size(BLOCK, 2 * GIB))
            parts.append(f"{actor.job} {kind}s")
        return f"at once: {', '.join(parts)}"

    # ---- checks ------------------------------------------------------------------------------------

    def _fault(self, kind: str, text: str) -> None:
        self.faults.append(Fault(kind, text))

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
            if actor.stopped or actor.program.answers:
                continue
            for gpu in sorted(actor.caches):
                if gpu != actor.current:
                    self._open(actor, gpu)
                self.stage.order(
                    actor.program, "pool", lambda words, actor=actor, gpu=gpu: self._pool_seen(actor, gpu, words)
                )
        self._answers()

    def _note_records(self, records: list[Record]) -> None:
        for record in records:
            if record.event in ("term", "kill"):
                self.stops.setdefault(record.job, []).append((record.time, record.event))
            if record.event == "denied" and record.facts.get("code") == "claim_timed_out":
                self.violations.append(record)
            if record.event in ("trim", "trimmed", "term", "kill", "relieved", "claim_met"):
                self.counts[record.event] += 1

    def _refine_ends(self) -> None:
        """Whom the daemon has stopped had its memory until then."""
        for actor, ended in self.ended:
            if actor.program.doomed_from is not None:
                continue
            times = [when for when, _ in self.stops.get(actor.job or "", []) if when >= self.round_began - 1.0]
            since = min(times, default=ended - DEATH_SLACK)
            for span in self.truth.spans:
                if span.process == actor.serial and span.down_from == self.round_began:
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
                if least + ask.size > limit and job.changed < self.round_began:
                    self._fault(
                        "cap", f"{ask.job} got {ask.size >> 20} MiB on {least >> 20}: its limit is {limit >> 20}"
                    )
            if waited > CLAIM_TIMEOUT + LATE + self._away(ask):
                self._fault("late", f"{ask.job} waited {waited:.1f} s for {ask.size >> 20} MiB")
            most = self.truth.most_during(ask.job, ask.gpu, ask.began, ask.ended) + (0 if ask.ok else ask.size)
            if not ask.ok and most <= request and ask.job not in self.refused:
                self._judge_failure(ask)
        self.violations.clear()

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
                self._fault("guarantee", f"{what}, and the daemon does not say why")
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
        if cause == "protected":
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
        wrong: list[str] = []

        def right() -> bool:
            wrong[:] = self._misfits()
            return not wrong

        try:
            self._until(right, "the books to be right", 5.0)
        except Stuck:
            self._fault("books", "; ".join(wrong))

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
        for actor in list(self.actors.values()):
            self._quit(actor) if self.dice.random() < 0.7 else self.stage.kill(actor.program)
        self._until(lambda: not self.actors, "all programs to end")
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
