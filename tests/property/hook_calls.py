"""What the jobs' hooks do in a world without a kernel, and what the core may ask of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpushared.core import hooks
from gpushared.core.events import HookAnswered, HookRunnerGone
from gpushared.core.health_issues import Condition
from gpushared.core.instructions import CallHook
from gpushared.core.suspend import ANSWER_MARGIN

if TYPE_CHECKING:
    from property.world import World

GIVES = {"ok": 1.0, "part": 0.25, "gives and fails": 1.0, "late": 1.0}
"""The part of what it uses that a job gives back, by the way in which its relief hook goes."""
WELL = ("ok", "part", "lies")
"""The others end with an error."""
UNHEARD = ("silent", "late")
"""Nobody hears of these."""


@dataclass
class Call:
    """A hook that runs."""

    job: str
    number: int
    hook: str
    done_at: float
    how: str
    heard: bool = True
    """By the daemon of now."""


class HookCalls:
    """The runners of hooks that are there, and what they run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.modes: dict[str, list[str]] = {}
        """Job -> how its next calls go; all further ones go as the last."""
        self.takes = 0.5
        """Seconds."""
        self.calls: list[Call] = []
        self.had: dict[str, dict[str, int]] = {}
        """Job -> what it used on each GPU when its relief hook was called."""
        self.given: dict[tuple[int, str], int] = {}
        """(process, GPU) -> what it has given back since."""
        self.wakes: dict[str, bool] = {}
        self.reliefs = self.woken = 0

    # ---- runners -----------------------------------------------------------------------------------

    def come(self, job: str, *modes: str, wakes: bool = True) -> None:
        self.modes[job], self.wakes[job] = list(modes), wakes
        if not self._running(job):
            self.world.send(HookAnswered(job, 0, wakes=wakes))

    def go(self, job: str) -> None:
        """What it runs is ended with it."""
        del self.modes[job]
        self.calls = [call for call in self.calls if call.job != job]
        self.world.send(HookRunnerGone(job))

    def restart(self) -> None:
        """Another daemon: a runner comes to it when it has ended what it runs."""
        for call in self.calls:
            call.heard = False
        for job in self.modes:
            if job in self.world.node.jobs and not self._running(job):
                self.world.send(HookAnswered(job, 0, wakes=self.wakes[job]))

    def _running(self, job: str) -> list[Call]:
        return [call for call in self.calls if call.job == job and call.how not in UNHEARD]

    # ---- calls -------------------------------------------------------------------------------------

    def begin(self, wish: CallHook) -> None:
        assert wish.job in self.modes, "a hook that nobody runs"
        assert not [one for one in self._running(wish.job) if one.heard], "two hooks of a job at once"
        self._check_relief(wish) if wish.hook == "relief" else self._check_resume(wish)
        modes = self.modes[wish.job]
        how = modes.pop(0) if len(modes) > 1 else modes[0]
        takes = {"hangs": wish.within, "late": wish.within + 4, "silent": 1e9}.get(how, self.takes)
        self.calls = [one for one in self.calls if one.job != wish.job or one.how != "silent"]
        self.calls.append(Call(wish.job, wish.number, wish.hook, self.world.now + takes, how))

    def _check_relief(self, wish: CallHook) -> None:
        world, job = self.world, self.world.node.jobs[wish.job]
        assert "hook" in job.spec.on_reclaim, "it has no hook"
        assert job.suspension is None, "it is suspended"
        assert world.now >= world._protected_until(job), "a protected job is asked"
        if job.aside is not None and wish.gpu not in job.reclaims:
            world._check_idle(job)
            assert not self.wakes[wish.job], "it would have to be woken"
        else:
            world._check_rung(wish.job, job.reclaims[wish.gpu].reason.data)
            world._check_trims_first(wish.gpu)
            assert 0 < wish.size <= world.loan(wish.job, wish.gpu), "more asked than the loan"
        self.had[wish.job] = {gpu: world.usage(wish.job, gpu) for gpu in job.bounds}
        self.reliefs += 1

    def _check_resume(self, wish: CallHook) -> None:
        """All that it gave is there for it, and nobody who has a better right waits for it."""
        for gpu, had in self.had[wish.job].items():
            node = self.world.node.gpus[gpu]
            assert not any(ask.claim and ask.short for ask in node.asks.values()), "a claim waits for what it takes"
            mine = [one.words[gpu] for one in self.world._on(gpu) if one.job == wish.job]
            missing = had - self.world.usage(wish.job, gpu) - sum(word.credit - word.used for word in mine)
            assert missing <= max(0, node.free), "woken into memory that is not there"

    def next_times(self) -> list[float]:
        return [call.done_at for call in self.calls]

    def end_those_done(self) -> None:
        for call in [call for call in self.calls if call.done_at <= self.world.now]:
            if call in self.calls:
                self.calls.remove(call)
                self._do(call)
                self._tell(call)

    def _do(self, call: Call) -> None:
        if call.hook == "relief":
            self._give(call.job, GIVES.get(call.how, 0.0))
        elif call.how in WELL:
            self._take(call.job)

    def _give(self, job: str, part: float) -> None:
        for one in self.world.programs.values():
            if one.job == job and part and not self.world.is_stopped(one.id) and not one.stopped:
                for gpu, word in one.words.items():
                    size = int(word.used * part) // 512 * 512
                    word.free(size)
                    self.given[one.id, gpu] = self.given.get((one.id, gpu), 0) + size

    def _take(self, job: str) -> None:
        """What each process had, as far as it has not taken it by itself. Nothing of it may be refused."""
        world = self.world
        for (process, gpu), gave in list(self.given.items()):
            one = world.programs.get(process)
            if one is None or one.job == job:
                del self.given[process, gpu]
            if one is None or one.job != job or gpu not in one.contexts or world.is_stopped(process) or one.stopped:
                continue
            busy = any(asked.program == process for asked in (*world.waiting.values(), *world.takes))
            size = min(gave, self.had[job].get(gpu, 0) - world.usage(job, gpu)) // 512 * 512
            if busy or one.slow or one.ends_at is not None or size <= 0 or job not in world.node.jobs:
                continue
            refused = len(world.refusals)
            world.allocate(process, gpu, size)
            if self._counts_on(job, gpu):
                assert len(world.refusals) == refused, f"refused what was kept for it: {world.refusals[-1].reason}"
            self.woken += 1

    def _counts_on(self, job: str, gpu: str) -> bool:
        """The memory must be there: nothing outside gpushare is in the way, and its budget is what it was."""
        world, found = self.world, self.world.node.jobs[job]
        waking = found.sleep is not None and found.sleep.deadline is not None
        fits = self.had[job].get(gpu, 0) <= found.bounds[gpu].limit
        well = world.condition(gpu) < Condition.SICK and not world.node.gpus[gpu].excess and not found.excess
        return waking and fits and well and not (world.ever_foreign or world.ever_tight)

    def _tell(self, call: Call) -> None:
        world = self.world
        if call.how in UNHEARD or call.job not in world.node.jobs or call.job not in self.modes:
            return
        for gpu in world.total:
            world.send(world._used_seen(gpu))
        problem = "" if call.how in WELL else call.how
        number = call.number if call.heard else 0
        if call.job in world.node.jobs:
            world.send(HookAnswered(call.job, number, problem, self.takes, wakes=self.wakes[call.job]))

    # ---- what follows for others -------------------------------------------------------------------

    def check_first(self, victim: str, gpu: str) -> None:
        """Nobody is suspended or stopped whose hook could be called first, nor while one runs."""
        world, job = self.world, self.world.node.jobs[victim]
        assert job.sleep is None or job.sleep.deadline is None, "its hook runs"
        claims = [one for one in world.node.gpus[gpu].asks.values() if one.claim]
        failed = (
            job.hook_runner.failure is not None and world.now - job.hook_runner.failure[0] < world.policy.hook_again
        )
        can = (
            "hook" in job.spec.on_reclaim and job.hook_runner.connected and job.sleep is None and not failed and claims
        )
        if can and job.hook_runner.called_at < max(one.since for one in claims):
            deadline = min(one.deadline for one in claims)
            left = deadline - world.now - world.policy.grace - world.policy.teardown - ANSWER_MARGIN
            assert left < hooks.LEAST, "its hook could be called"
