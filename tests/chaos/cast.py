"""The cast: jobs and programs, the orders that they get, and the spans of memory that follow from their answers."""

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
from chaos.stage import PATIENCE, Program, Stage
from chaos.truth import Ask, Job, Span, Truth

MIB = 1 << 20
GIB = 1 << 30
BLOCK = 2 * MIB
"""The software driver hands memory out in these, so what is asked for is what is taken."""
CONTEXT = 300 * MIB
CLAIM_TIMEOUT = 10.0
DEATH_SLACK = 0.25
"""So much later than we the daemon may hear of the end of a process."""
OUTSIDE = "outside"
MARKER = "marker"


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
    stopped_at: float = 0.0
    pooled_at: dict[int, float] = field(default_factory=dict)
    """When its pool was last looked at."""
    pending: list[Ask] = field(default_factory=list)
    stopped: bool = False
    quitting: bool = False
    born: float = 0.0
    where: str = "on"
    """on | locked | leaving | away | coming: by what its suspender says."""
    away_from: float = inf
    filled: int = 0
    """What it writes into its memory, if that is compared when it goes on."""

    @property
    def serial(self) -> int:
        return self.program.serial

    def spans(self) -> list[Span]:
        return [*self.contexts.values(), *self.stack, *(span for kept in self.caches.values() for span in kept)]


class Cast:
    """Everybody on the stage, what we have told them, and what they have answered."""

    def __init__(self, stage: Stage, seed: int, say: Callable[[str], None] = lambda _: None) -> None:
        self.stage = stage
        self.seed = seed
        self.say = say
        self.dice = random.Random(seed)
        self.truth = Truth({})
        self.oracle = Oracle(self.truth)
        self.uuids: dict[int, str] = {}
        """Of the GPUs, by number."""
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

    def _fault(self, kind: str, text: str) -> None:
        self.faults.append(Fault(kind, text))

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
        known = self.truth.jobs.get(job or "")
        actor.filled = 1 + actor.serial % 200 if known is not None and "suspend" in known.rungs else 0
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
            if actor.job and actor.contexts and not (actor.stopped or actor.quitting or actor.where != "on")
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
            assert words[1] in ("2", "3", "201"), f"{actor.program.name}: {words}"
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
                if actor.filled:
                    self.stage.order(actor.program, f"fill {actor.filled}")

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
        if not self._is_held(actor):
            self.stage.order(actor.program, "quit")
        else:
            self.stage.kill(actor.program)  # it would hear it when it goes on

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

    def _stop(self, actor: Actor) -> None:
        """It stops itself. A trim may reach it first, and nobody can ask it then what its caches hold."""
        self.stage.order(actor.program, "stop")
        actor.stopped, actor.stopped_at = True, time.monotonic()
        for gpu, cache in actor.caches.items():
            for span in cache:
                span.down_from = actor.pooled_at.get(gpu, self.round_began)
        self._note_stopped()

    def _go_on(self, actor: Actor) -> None:
        # Not before it has stopped: a SIGCONT that comes first is lost.
        with contextlib.suppress(OSError):
            self._until(lambda: _state(actor) in "TZX" or self._was_woken(actor), "it to stop")
        self.stage.signal(actor.program, signal.SIGCONT)
        self._acts_again(actor)

    def _was_woken(self, actor: Actor) -> bool:
        """By the daemon, which sends SIGCONT with SIGTERM."""
        terms = (one for one in self.stage.records if one.event == "term" and one.job == actor.job)
        return any(one.time >= actor.stopped_at for one in terms) and _state(actor) not in "TZX"

    def _acts_again(self, actor: Actor) -> None:
        actor.stopped = False
        for cache in actor.caches.values():
            for span in cache:
                span.down_from = inf  # what has gone it will tell
        self._note_stopped()

    def _note_stopped(self) -> None:
        self.oracle.stopped = {actor.job: True for actor in self.actors.values() if actor.stopped and actor.job}

    # ---- waiting -----------------------------------------------------------------------------------

    def _until(self, condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        self.stage.pump(condition, patience, what)

    def _busy(self) -> bool:
        return any(actor.program.answers and not self._is_held(actor) for actor in self.actors.values())

    def _is_held(self, actor: Actor) -> bool:
        """It can answer nothing now: it is stopped, or suspended."""
        siblings = self._of(actor.job) if actor.job else []  # one that has just started waits with the others
        return actor.stopped or any(one.where != "on" for one in siblings)

    def _answers(self) -> None:
        """Until every program that can act has answered, or has ended."""

        def quiet() -> bool:
            going = (actor for actor in self.actors.values() if actor.quitting or actor.program.killed_by_us)
            ending = (not self._is_held(actor) or actor.program.killed_by_us for actor in going)
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


def _state(actor: Actor) -> str:
    """Of its process: a letter, as in /proc/PID/stat; X if it is gone."""
    try:
        return Path(f"/proc/{actor.program.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
