"""Daemons that die, or fail, just before or just after one of their handlers, when they are told to.

As a program: a process that has everything imported, and forks a daemon for each line that it reads (the directory, and
what goes off already while the daemon starts, as JSON); it answers with the pid. A daemon costs a few hundredths of a
second that way, and dies as any process does: by SIGKILL.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from daemon_harness import GIB, GPU, GPU2, ROOT
from fixed_gpus import FixedGpus

from gpushare import process_owner
from gpushared import config
from gpushared.core import job_events
from gpushared.core.events import Event
from gpushared.core.instructions import Instruction
from gpushared.core.node import NodeState
from gpushared.daemon import Daemon
from gpushared.gpus.inventory import Fault, GpuInfo, Inventory
from gpushared.runtime import shell as shell_module
from gpushared.runtime.shell import Shell
from gpushared.system import logs
from gpushared.system.runtime_dir import RuntimeDir

SETTINGS = config.Config(idle_exit=3600.0, sample_interval=0.2, trim=0.05, grace=20.0, claim_timeout=30.0)


def gpus() -> FixedGpus:
    return FixedGpus([GpuInfo(GPU, 0, "Test GPU", 16 * GIB), GpuInfo(GPU2, 1, "Test GPU", 16 * GIB)])


def harmless_fault(driver: FixedGpus) -> None:
    """An Xid that is a program's own error."""
    driver.faults.put(Fault((GPU2,), 13))


CORE = str(ROOT / "daemon" / "gpushared")


NO_REBUILD = "no rebuild"
"""In the place of a handler: the core fails on a checkpoint, and no other can be made."""


class Blown(Exception):
    """What the fuse raises where it does not kill."""


@dataclass
class Fuse:
    """Goes off once: before or after the handler of this event or instruction, or at a line, counted from its
    beginning."""

    blow: Callable[[], None]
    point: str = ""
    when: str | int = "before"
    blown: bool = False
    passed: bool = False
    """The handler came to its end before that line."""

    def arm(self, point: str, when: str | int) -> None:
        self.point, self.when, self.blown, self.passed = point, when, False, False

    def around(self, name: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any) -> Any:
            if self.point != name:
                return handler(*arguments)
            if self.when == "before":
                self._go()
            if isinstance(self.when, int):
                sys.settrace(self._at_line(self.when))
            try:
                answer = handler(*arguments)
            finally:
                sys.settrace(None)
            if self.when == "after":
                self._go()
            self.point, self.passed = "", True
            return answer

        return guarded

    def _at_line(self, number: int) -> Callable[..., Any]:
        left = number

        def trace(frame: FrameType, what: str, _: object) -> Any:
            nonlocal left
            if not frame.f_code.co_filename.startswith(CORE):
                return None
            if what == "line":
                left -= 1
                if left == 0:
                    self._go()
            return trace

        return trace

    def _go(self) -> None:
        self.point, self.blown = "", True
        self.blow()

    def put_into(self, patch: Callable[[object, str, Any], None]) -> None:
        """Around the handlers of each core, and the hands of each shell, that is made from now on."""
        make_core, make_shell = NodeState.__init__, Shell.__init__

        def of_core(node: NodeState, *arguments: Any, **keywords: Any) -> None:
            make_core(node, *arguments, **keywords)
            handle = node.handle  # all of it: some events have a short way, on which they meet no handler
            around = {kind: self.around(kind.__name__, handle) for kind in node._handlers}
            node.handle = lambda event, now: around[type(event)](event, now)  # type: ignore[method-assign]

        def of_shell(one: Shell, *arguments: Any, **keywords: Any) -> None:
            make_shell(one, *arguments, **keywords)
            effects = one.core_loop.effects
            one.core_loop.effects = {kind: self.around(kind.__name__, effect) for kind, effect in effects.items()}

        patch(NodeState, "__init__", of_core)
        patch(Shell, "__init__", of_shell)


def points() -> list[str]:
    """All handlers that there are, as the code itself has them."""

    async def hands(path: Path) -> list[type[Instruction]]:
        shell = Shell(NodeState(), Inventory(gpus()), path)
        try:
            return list(shell.core_loop.effects)
        finally:
            shell.close()

    events: list[type[Event]] = list(NodeState()._handlers)
    return [kind.__name__ for kind in (*events, *asyncio.run(hands(Path("/nonexistent/state.json"))))]


async def serve(directory: Path, fuse: Fuse) -> None:
    taken = RuntimeDir(directory, system=False)
    taken.take()
    driver = gpus()

    def arm(*_: object) -> None:
        fuse.arm(*json.loads((directory / "fuse").read_text()))
        (directory / "fuse").unlink()

    signal.signal(signal.SIGUSR1, arm)
    signal.signal(signal.SIGUSR2, lambda *_: harmless_fault(driver))
    await Daemon(taken, driver, config.Loaded(SETTINGS, None, frozenset())).run()


def fail(*_: object) -> None:
    raise Blown


def fork(directory: Path, point: str, when: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 1
    try:
        os.dup2(os.open(directory / "test.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        logs.set_up("info", "text")
        fuse = Fuse(lambda: os.kill(os.getpid(), signal.SIGKILL))
        fuse.put_into(setattr)
        fuse.arm(point, when)
        if point == NO_REBUILD:
            shell_module.rebuild = job_events.checkpointed = fail  # type: ignore[assignment]
        asyncio.run(serve(directory, fuse))
        status = 0
    finally:
        os._exit(status)


def main() -> None:
    import aiohttp.web  # noqa: F401  (the daemon's largest import)

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        directory, point, when = json.loads(line)
        print(fork(Path(directory), point, when), flush=True)


if __name__ == "__main__":
    process_owner.ROOT = -1  # run by root, too, a job's processes are signalled only while they are its user's
    main()
