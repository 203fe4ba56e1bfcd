"""Has jobs take turns in computing: core/turns.py decides, GPU by GPU; this reads and writes the processes' words.

Off (the setting), it only opens what an earlier daemon has left closed. On, it looks four times a second whether a job
on a GPU has asked for turns, and more often only on a GPU where another job is, too: every 20 ms while at most one of
them computes, every 4 ms during a turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from gpushared.clients.clients import Clients
from gpushared.clients.turn_words import TurnWords, Word
from gpushared.core.model import Gpu, Job
from gpushared.core.node import NodeState
from gpushared.core.turns import Seen, Terms, Turn, Turns, weights
from gpushared.system.logs import log
from gpushared.system.processes import is_stopped

AT_REST, AWAKE, AT_WORK = 0.25, 0.02, 0.004
"""Seconds between two looks."""


class TurnKeeper:
    """Keeps the turns of all GPUs of the node."""

    def __init__(self, core: Callable[[], NodeState], words: TurnWords, clients: Clients) -> None:
        self.on = False
        self._core = core
        self._words = words
        self._clients = clients
        self._terms = Terms()
        self._gpus: dict[str, Turns] = {}

    def start(self, *, on: bool, turn: float) -> None:
        self.on, self._terms = on, Terms(turn=turn)
        self._words.release_all()

    async def keep(self) -> None:
        """Look again and again, until cancelled."""
        try:
            pause = 0.0
            while self.on:
                await asyncio.sleep(pause)
                pause = self.look(time.monotonic())
        except Exception:  # a bug of ours costs turns: all launches go on, and memory is not touched
            log.exception("jobs take no turns in computing any more")
            self.on = False
        finally:
            self._words.release_all()

    def look(self, now: float) -> float:
        """Look at all GPUs. Returns the seconds until the next look."""
        core = self._core()
        for gone in self._gpus.keys() - core.gpus.keys():
            del self._gpus[gone]
        return min((self._look_at(now, core, gpu) for gpu in core.gpus.values()), default=AT_REST)

    def turn_of(self, job: Job, gpu: str) -> Turn | None:
        """None: no job there has asked for turns."""
        turns = self._gpus.get(gpu)
        if turns is None:
            return None
        if job.suspension is not None:
            return Turn.SUSPENDED
        held = [self._words.read(process, gpu).held for process in _processes(self._core().gpus[gpu], job.id)]
        return turns.state_of(job.id) if held and all(held) and _may_wait(job) else Turn.NOT_HELD

    def time_of(self, job: str, gpu: str) -> float:
        turns = self._gpus.get(gpu)
        return turns.spent.get(job, 0.0) if turns is not None else 0.0

    def count_of(self, gpu: str) -> int:
        """Turns of all jobs of the GPU since somebody has asked for them."""
        turns = self._gpus.get(gpu)
        return turns.count if turns is not None else 0

    # ---- one GPU -----------------------------------------------------------------------------------

    def _look_at(self, now: float, core: NodeState, gpu: Gpu) -> float:
        here = {share.job: core.jobs[share.job] for share in gpu.shares.values() if share.job in core.jobs}
        if not any(_asks(job) for job in here.values()):
            if self._gpus.pop(gpu.id, None) is not None:
                for process in gpu.shares:
                    self._words.release(process, gpu.id)
            return AT_REST
        turns = self._gpus.setdefault(gpu.id, Turns(self._terms))
        processes = {id: _processes(gpu, id) for id, job in here.items() if _may_wait(job)}
        words = {id: [self._words.read(process, gpu.id) for process in mine] for id, mine in processes.items()}
        held = {id: found for id, found in words.items() if all(word.held for word in found)}
        parts = weights({id: here[id].spec.compute for id in held})
        if not any(_asks(here[id]) for id in held):
            held = {}
        orders = turns.look(now, [self._seen(here[id], parts[id], held[id], processes[id]) for id in held])
        for id in here:
            for process in _processes(gpu, id):
                if id in held and len(held) > 1:
                    self._words.say(process, gpu.id, closed=id in orders.closed, ask=id in orders.ask)
                else:
                    self._words.release(process, gpu.id)
        return AT_WORK if orders.busy else AWAKE if len(held) > 1 else AT_REST

    def _seen(self, job: Job, part: float, words: Sequence[Word], processes: Sequence[int]) -> Seen:
        done = all(word.done for word in words) or self._are_stopped(processes)
        launched, waits = any(word.launched for word in words), any(word.waits for word in words)
        return Seen(job.id, part, job.spec.exclusive or self._terms.turn, launched, waits, done)

    def _are_stopped(self, processes: Sequence[int]) -> bool:
        clients = [self._clients.get(process) for process in processes]
        return all(client is None or is_stopped(client.process.pid) for client in clients)


def _asks(job: Job) -> bool:
    return job.spec.compute is not None or job.spec.exclusive is not None


def _may_wait(job: Job) -> bool:
    """Whether the job's launches may wait. Not on several GPUs: kernels on one may wait for kernels on another. A
    suspended job launches nothing."""
    return len(job.bounds) == 1 and job.suspension is None


def _processes(gpu: Gpu, job: str) -> list[int]:
    return [share.process for share in gpu.shares.values() if share.job == job]
