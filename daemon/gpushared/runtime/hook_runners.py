"""The processes that call the jobs' hooks (gpushare/hook_runner.py). A hook is a command or URL of the job's user. The
daemon does not know it; it says only when to call it, and for how many bytes:

    report   are you there? The first command, also after a restart of the daemon
    relief   have so many bytes of this GPU given back, within so many seconds
    resume   so many bytes are kept free for you now

What a hook has done is read from the job's account.
"""

from __future__ import annotations

from dataclasses import replace

from gpushared.core import instructions as do
from gpushared.core.events import THERE, HookAnswered, HookRunnerGone
from gpushared.runtime.core_loop import Effect
from gpushared.runtime.followers import Command, Followers
from gpushared.system.logs import facts, log


class HookRunners(Followers):
    """The connected runners of hooks, by job, and the instruction for them."""

    def effects(self) -> dict[type, Effect]:
        return {do.CallHook: self._call}

    def first(self, _job: str, /) -> Command:
        return {"command": "report", "number": 0, "gpu": "", "bytes": 0, "within": 0.0}

    def has_gone(self, job: str) -> HookRunnerGone:
        return HookRunnerGone(job)

    def answered(self, pid: int, answer: HookAnswered) -> bool:
        """Take the answer of the process with this id. False: it is not the job's runner."""
        one = self.of(answer.job, pid)
        if one is None:
            return False
        one.known = replace(answer, number=THERE, problem="", seconds=0.0)
        if answer.number == 0:
            log.info("a runner of hooks is ready", extra=facts(job=answer.job, resume=answer.wakes))
        self.core_loop.feed(answer)
        return True

    def _call(self, wish: do.CallHook) -> None:
        self.note()
        log.info("hook", extra=facts(job=wish.job, hook=wish.hook, bytes=wish.size, seconds=round(wish.within, 1)))
        command = {"command": wish.hook, "number": wish.number, "gpu": wish.gpu, "bytes": wish.size}
        self.tell(wish.job, {**command, "within": wish.within})
