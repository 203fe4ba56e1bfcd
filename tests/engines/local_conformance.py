"""The local engine on the conformance suite's stand: real programs under a real node daemon, on the software driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from conformance_stand import RUNS, Served, Work
from local_stage import alive

from gpushare.cluster.engines.local import runner
from gpushare.cluster.engines.local.gpus import Daemon
from gpushare.cluster.engines.runner import Context
from gpushare.cluster.engines.seam import Evict
from gpushare.cluster.service.common import Caller
from gpushare.errors import GpushareError, UsageError
from gpushare.paths import SYSTEM_DIR, library


class Ground:
    """A node daemon with its GPUs, for one stand after the other."""

    def __init__(self, directory: Path, gpus: int, memory: str) -> None:
        runtime = directory / "run"
        runtime.mkdir(mode=0o700)
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(directory), "XDG_RUNTIME_DIR": str(runtime)}
        self.environ |= {"XDG_CONFIG_HOME": str(directory / "config"), "XDG_STATE_HOME": str(directory / "state")}
        self.environ["GPUSHARE_SIM"] = f"gpus={gpus},memory={memory},pool={directory}/pool"

    def stop(self) -> None:
        with suppress(GpushareError):
            daemon = Daemon({**os.environ, "GPUSHARE_DRIVER": "sim"}, start=False)
            os.kill(daemon.client().version()["pid"], signal.SIGKILL)


def ground(directory: Path, patch: pytest.MonkeyPatch, *, gpus: int = 2, memory: str = "4Gi") -> Ground:
    """Skips where there can be none."""
    if not library().exists():
        pytest.skip(f"{library()} is not built")
    if SYSTEM_DIR.exists():
        pytest.skip("a system daemon's directory exists on this machine and comes first")
    made = Ground(directory, gpus, memory)
    for name in [name for name in os.environ if name.startswith("GPUSHARE_") and not name.startswith("GPUSHARE_TEST_")]:
        patch.delenv(name)
    for name, value in made.environ.items():
        patch.setenv(name, value)
    return made


SCRIPT = """\
mark={mark}${{GPUSHARE_ARRAY_INDEX:+_$GPUSHARE_ARRAY_INDEX}}
{before}
echo $$ >> $mark
{body}
"""


def script_of(work: Work, mark: Path) -> str:
    if work.script is not None:
        body = work.script
    elif work.seconds is None:
        body = "sleep 1000"
    elif work.signal:
        body = f"sleep {work.seconds:g}; kill -{work.signal} $$; sleep 1"
    else:
        body = f"sleep {work.seconds:g}; exit {work.exit}"
    before = "trap '' TERM" if work.stubborn else ""
    if work.child:
        body = f"""(trap '' TERM; echo $(exec sh -c 'echo $PPID') >> $mark.left; sleep 1000) &\n{body}"""
    return SCRIPT.format(mark=mark, before=before, body=body)


class LocalStand(Served):
    name = "local"
    cannot = runner.CANNOT
    caller = Caller(os.getuid(), os.getgid(), "somebody", admin=False)
    within = 60.0
    ground = staticmethod(ground)

    def __init__(self, directory: Path, ground: Ground) -> None:
        self.directory = directory
        self.environ = {**ground.environ, "XDG_STATE_HOME": str(directory / "state")}
        self.marks = directory / "marks"
        self.marks.mkdir()
        (directory / "tasks").mkdir(mode=0o700)
        self.keys: dict[str, str] = {}
        self.count = 0
        self.others: dict[int, subprocess.Popen[bytes]] = {}
        self.open_runner()
        self.open_service()
        self.until(self.runner.nodes)

    def open_runner(self) -> None:
        context = Context({"driver": "sim"}, self.clock, self.directory / "tasks", (), False)
        self.runner = runner.Local(context, self.environ)

    def revive(self) -> None:
        self.kill_engine()

    def kill_engine(self) -> None:
        self.runner.close()  # which tells no task anything
        self.close()
        self.open_runner()
        self.open_service()
        self.until(self.runner.nodes)

    def rival(self) -> bool:
        with suppress(UsageError):
            runner.Local(Context({"driver": "sim"}, self.clock, self.directory / "tasks", (), False), self.environ)
            return True
        return super().rival()

    # ---- jobs ------------------------------------------------------------------------------------------

    def submit(self, work: Work = RUNS, **more) -> str:
        uid = super().submit(work, **more)
        self.keys[uid] = f"k{self.count}"
        self._after(work)
        return uid

    def submit_array(self, count: int, work: Work = RUNS, *, queue: str = "a") -> list[str]:
        uids = super().submit_array(count, work, queue=queue)
        self.keys |= {uid: f"k{self.count}_{index}" for index, uid in enumerate(uids)}
        self._after(work)
        return uids

    def run_of(self, work: Work) -> dict[str, object]:
        self.count += 1
        cwd = self.directory / f"work{self.count}"
        cwd.mkdir()
        script = script_of(work, self.marks / f"k{self.count}")
        env = {**self.environ, **(work.env or {})}
        return {"command": ["sh", "-c", script], "cwd": str(cwd), "env": env, "grace": work.grace}

    def _after(self, work: Work) -> None:
        if work.broken:
            (self.directory / f"work{self.count}").rmdir()

    def _pids(self, uid: str, end: str = "") -> list[int]:
        path = self.marks / f"{self.keys[uid]}{end}"
        return [int(one) for one in path.read_text().split()] if path.exists() else []

    def began(self, uid: str) -> int:
        return len(self._pids(uid))

    def alive(self, uid: str) -> int:
        return sum(alive(pid) for end in ("", ".left") for pid in self._pids(uid, end))

    def output(self, uid: str) -> str:
        path = self.directory / "state" / "gpushare" / "logs" / f"{uid}.log"
        return path.read_text() if path.exists() else ""

    # ---- the world -------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        self.runner.watch(seconds)

    def clock(self) -> float:
        return time.time() + self.shift

    def foreign(self, node: str, gpu: int, amount: int) -> None:
        if amount:
            line = [sys.executable, "-P", "-m", "gpushare", "run", "-q", "--gpu", str(gpu), "--request", str(amount)]
            environ = {**self.environ, "GPUSHARE_DRIVER": "sim"}
            self.others[gpu] = subprocess.Popen([*line, "sleep", "1000"], env=environ)
        else:
            one = self.others.pop(gpu)
            one.terminate()
            one.wait()

    def clear(self) -> None:
        for gpu in list(self.others):
            self.foreign("", gpu, 0)
        found = self.runner.tasks()
        term = self.service.book.next_term()
        for number, (uid, tasks) in enumerate(found.items(), 1):
            for task in tasks:
                command = Evict(uid, task.attempt, ((task.group, task.task),), 0.0, False)
                self.runner.evict(command, (term, number * 1000 + task.task))
        self.until(lambda: not any(one.holds for tasks in self.runner.tasks().values() for one in tasks))
        self.runner.close()
        self.close()


__all__ = ["Ground", "LocalStand", "ground", "script_of"]
