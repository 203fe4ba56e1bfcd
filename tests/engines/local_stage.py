"""The local engine on a stage: a runner whose tasks are plain shell scripts, or real ones under the software driver."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpushare.cluster.engines.local.runner import Local
from gpushare.cluster.engines.local.spool import Key
from gpushare.cluster.engines.runner import Context, Record
from gpushare.cluster.engines.seam import Answer, Evict, SeenNode, SeenTask, Start
from gpushare.cluster.model import Job, Node, Place, Tasks
from gpushare.errors import Refused as DaemonRefused

GIB = 2**30
NODE = Node("here", 2, 8 * GIB, uuids=("GPU-a", "GPU-b"))
WITHIN = 30.0
"""Seconds: a loaded machine is slow."""


WRAPPER = 'trap : TERM; sh -c "$1"; exit $?'
"""In place of `gpushare run`: a process around the program that ends with its status."""


class FakeDaemon:
    """What the runner asks the node daemon, without one."""

    events = None

    def __init__(self) -> None:
        self.placed: dict[str, dict[str, Any]] = {}
        """By id, as they were last said."""
        self.holders: dict[str, list[int]] = {}
        self.over: dict[str, int] = {}
        """By id, the last attempt that is over."""

    def nodes(self, ours: Any) -> list[SeenNode]:
        self.ours = set(ours)
        return [SeenNode(NODE)]

    def uuids(self, node: str, gpus: Any) -> tuple[str, ...] | None:
        known = node == NODE.name and all(gpu < NODE.gpus for gpu in gpus)
        return tuple(NODE.uuids[gpu] for gpu in gpus) if known else None

    def memory(self, node: str) -> int:
        return NODE.memory if node == NODE.name else 0

    def place(self, *said: Any) -> Any:
        """Where it is; or, as its client, a placement."""
        if said:
            return self.place_task(*said)
        return SimpleNamespace(runtime=SimpleNamespace(api_socket="/nowhere/api.sock"), driver="sim")

    def client(self) -> Any:
        return self

    def place_task(self, id: str, body: dict[str, Any]) -> None:
        if body["attempt"] <= self.over.get(id, 0):
            raise DaemonRefused(f"attempt {body['attempt']} of {id} is over", code="stale_attempt")
        self.placed[id] = body
        if body["holder"] is not None:
            self.holders.setdefault(id, []).append(body["holder"])

    def placements(self) -> list[dict[str, Any]]:
        """A holder is known from the call that names it until its placement ends."""
        return [
            {"id": id, "attempt": body["attempt"], "state": "placed", "holders": self.holders.get(id, [])}
            for id, body in self.placed.items()
        ]

    def displace(self, id: str, attempt: int) -> None:
        if id in self.placed and self.placed[id]["attempt"] <= attempt:
            self.over[id] = self.placed.pop(id)["attempt"]
            self.holders.pop(id, None)

    def close(self) -> None: ...


class Plain(Local):
    """Its tasks are their commands, without `gpushare run` around them."""

    def _start_of(self, record: Record, key: Key, place: Place, devices: Any, token: Any) -> dict[str, Any]:
        start = super()._start_of(record, key, place, devices, token)
        return {**start, "argv": ["/bin/sh", "-c", WRAPPER, "wrapper", record.run["command"][-1]]}


class Stage:
    """One service after the other on one directory."""

    def __init__(self, directory: Path, *, plain: bool = True, system: bool = False, environ: Any = None) -> None:
        self.directory = directory
        self.plain = plain
        self.system = system
        self.environ = dict(environ if environ is not None else {"PATH": os.environ["PATH"]})
        self.environ.setdefault("XDG_STATE_HOME", str(directory / "state"))
        self.queue = directory / "queue"
        self.queue.mkdir(mode=0o700)
        self.number = 0
        self.term = 0
        self.daemon = FakeDaemon()
        self.pids: set[int] = set()
        self.open()

    def open(self, **settings: Any) -> Local:
        """The service starts, perhaps again."""
        self.term += 1
        self.number = 0
        settings = settings if self.plain else {"driver": "sim", **settings}
        context = Context(settings, time.time, self.queue, (), self.system)
        self.runner = (Plain if self.plain else Local)(context, self.environ)
        if self.plain:
            self.runner.daemon = self.daemon  # type: ignore[assignment]
            self.runner.placing._daemon = self.daemon
        return self.runner

    def crash(self) -> None:
        """The service is killed and starts again."""
        self.runner.close()  # which tells no task anything
        self.open()

    def record(self, id: str, script: str | list[str], **more: Any) -> Record:
        run = {"cwd": str(self.directory), "env": self.environ, "grace": 20.0, **more.pop("run", {})}
        run["command"] = script if isinstance(script, list) else ["sh", "-c", script]
        tasks = more.pop("tasks", (Tasks(),))
        job = Job(id, "q", tasks, name=more.pop("name", ""))
        uid, gid = more.pop("uid", os.getuid()), more.pop("gid", os.getgid())
        return Record(id, job, uid, gid, "somebody", 0.0, run, **more)

    def token(self) -> tuple[int, int]:
        self.number += 1
        return self.term, self.number

    def start(self, record: Record, *, attempt: int = 1, token: Any = None, places: Any = None) -> Answer:
        places = places or (self.place(),)
        return self.runner.start(record, Start(record.id, attempt, tuple(places), 0), token or self.token())

    def place(self, task: int = 0, gpus: tuple[int, ...] = (0,), amount: int = GIB, node: str = "") -> Place:
        return Place(0, task, node or NODE.name, gpus, amount, 0)

    def evict(self, id: str, grace: float = 20.0, *, attempt: int = 1, token: Any = None) -> Answer:
        return self.runner.evict(Evict(id, attempt, ((0, 0),), grace, True), token or self.token())

    def task(self, id: str) -> SeenTask | None:
        found = self.runner.tasks().get(id, ())
        assert len(found) <= 1
        return found[0] if found else None

    def until(self, true: Callable[[], Any], what: str = "") -> Any:
        deadline = time.monotonic() + WITHIN
        while not (found := true()):
            assert time.monotonic() < deadline, what or "it did not happen"
            self.runner.watch(0.1)
        return found

    def over(self, id: str) -> SeenTask | None:
        """Wait until nothing of it runs; what is left of it."""
        self.until(lambda: (found := self.task(id)) is None or not found.holds, f"{id} did not end")
        return self.task(id)

    def said(self, text: str, id: str = "1") -> str:
        """Wait for this in its output."""
        self.until(lambda: text in self.output(id), f"{text!r} is not in the output: {self.output(id)!r}")
        return self.output(id)

    def output(self, id: str = "1") -> str:
        self.runner.tasks()
        path = self.log(id)
        return path.read_text() if path.exists() else ""

    def log(self, id: str = "1") -> Path:
        return Path(self.environ["XDG_STATE_HOME"], "gpushare", "logs", f"{id}.log")

    def own(self, id: str = "1", attempt: int = 1) -> Path:
        return self.queue / "tasks" / f"{id}.{attempt}.0.0" / "own"

    def keeper(self, id: str = "1") -> int:
        """The process that holds the task's lock."""
        task = self.runner._tasks[Key(id, 1, 0, 0)]
        assert task.keeper is not None
        return task.keeper.pid

    def kill_keeper(self, id: str = "1") -> None:
        task = self.runner._tasks[Key(id, 1, 0, 0)]
        assert task.keeper is not None
        task.keeper.kill()
        task.keeper.wait()

    def clear(self) -> None:
        """Nothing is left of what was started."""
        self.term += 1
        self.number = 0
        with contextlib.suppress(OSError):
            self.runner.close()
        self.open()
        for key in list(self.runner._tasks):
            self.runner.evict(Evict(key.job, key.attempt, ((key.group, key.task),), 0.0, False), self.token())
        self.until(lambda: not any(one.holds for found in self.runner.tasks().values() for one in found))
        self.runner.close()


def alive(pid: int) -> bool:
    """It runs, and is no corpse."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


__all__ = ["GIB", "NODE", "WITHIN", "Stage", "alive", "kill"]
