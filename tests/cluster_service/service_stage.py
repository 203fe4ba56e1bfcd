"""A service on a runner whose tasks are files, so both can be killed and found again as they were."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from gpushare.cluster.engines.seam import Accepted, Busy, Gone, SeenNode, SeenTask
from gpushare.cluster.model import Node, Policy, Queue, QueueAdded
from gpushare.cluster.quantity import gpus
from gpushare.cluster.service.common import Caller
from gpushare.cluster.service.driver import Options
from gpushare.cluster.service.service import Service
from gpushare.cluster.store import Store
from gpushare.errors import UsageError

GIB = 2**30
ALICE = Caller(1001, 1001, "alice", admin=False)
BOB = Caller(1002, 1002, "bob", admin=False)
ROOT = Caller(0, 0, "root", admin=True)


class Spool:
    """A Runner: each task is a file, and each thing that was done is a line of `said`."""

    def __init__(self, directory: Path, nodes: list[Node]) -> None:
        self.directory = directory
        self.directory.mkdir(exist_ok=True)
        self._nodes = nodes
        self.foreign: tuple[tuple[int, int], ...] = ()
        self.refuse = ""
        """What check() says."""
        self.stubborn = False
        """Tasks end only when they are killed."""

    @property
    def said(self) -> list[str]:
        path = self.directory / "said"
        return path.read_text().splitlines() if path.exists() else []

    def say(self, line: str) -> None:
        with (self.directory / "said").open("a") as file:
            file.write(line + "\n")

    def _path(self, uid: str, attempt: int, group: int, task: int) -> Path:
        return self.directory / f"{uid}.{attempt}.{group}.{task}.task"

    def _write(self, path: Path, task: dict[str, object]) -> None:
        fresh = path.with_suffix(".fresh")
        fresh.write_text(json.dumps(task))
        fresh.replace(path)

    def finish(self, uid: str, status: int = 0, *, task: int | None = None) -> None:
        """Its tasks end by themselves."""
        for path in sorted(self.directory.glob(f"{uid}.*.task")):
            if task is None or path.name.split(".")[3] == str(task):
                self._write(path, {**json.loads(path.read_text()), "phase": "done", "exit": status})

    # ---- the protocol ----------------------------------------------------------------------------------

    def check(self, record) -> None:
        if self.refuse:
            raise UsageError(self.refuse)

    def nodes(self):
        return [SeenNode(node, foreign=self.foreign) for node in self._nodes]

    def tasks(self):
        found: dict[str, list[SeenTask]] = {}
        for path in sorted(self.directory.glob("*.task")):
            uid, attempt, group, task, _ = path.name.split(".")
            kept = json.loads(path.read_text())
            kept["gpus"] = tuple(kept["gpus"])
            found.setdefault(uid, []).append(SeenTask(int(attempt), int(group), int(task), **kept))
        return found

    def start(self, record, command, token):
        if not self._newer(token):
            return Busy()
        for task in self.tasks().get(record.id, ()):
            if task.holds and task.attempt != command.attempt:
                return Busy()
        for place in command.places:
            path = self._path(record.id, command.attempt, place.group, place.task)
            if path.exists():
                continue
            task = {"node": place.node, "gpus": place.gpus, "amount": place.amount, "phase": "running"}
            self.say(f"start {record.id} {command.attempt} {place.group} {place.task} {record.run.get('command')}")
            self._write(path, task)
            self._judge()
        return Accepted()

    def evict(self, command, token):
        if not self._newer(token):
            return Busy()
        gone = True
        for group, task in command.tasks:
            path = self._path(command.uid, command.attempt, group, task)
            if path.exists():
                gone = False
                kept = json.loads(path.read_text())
                self.say(f"evict {command.uid} {command.attempt} {group} {task} {command.grace:g}")
                if self.stubborn and command.grace:
                    self._write(path, {**kept, "phase": "stopping"})
                else:
                    path.unlink()
        return Gone() if gone else Accepted()

    def collect(self, id):
        for path in self.directory.glob(f"{id}.*.task"):
            path.unlink()
        self.say(f"collect {id}")

    def watch(self, seconds):
        pass

    def wake(self):
        pass

    def close(self):
        pass

    def _newer(self, token) -> bool:
        path = self.directory / "token"
        known = tuple(json.loads(path.read_text())) if path.exists() else (0, 0)
        path.write_text(json.dumps(max(known, token)))
        return tuple(token) > known

    def _judge(self) -> None:
        """A GPU never holds more than it has, and a job runs once at a time."""
        used: dict[tuple[str, int], int] = {}
        for uid, tasks in self.tasks().items():
            holding = [task for task in tasks if task.holds]
            if len({task.attempt for task in holding}) > 1:
                self.say(f"overlap {uid}")
            for task in holding:
                for gpu in task.gpus:
                    used[task.node, gpu] = used.get((task.node, gpu), 0) + task.amount
        if any(amount > self._nodes[0].memory for amount in used.values()):
            self.say(f"overlap {used}")


class Stage:
    """A cluster of nodes with two GPUs each, driven round by round."""

    def __init__(self, directory: Path, nodes: int = 2, queues=(), options: Options | None = None) -> None:
        self.directory = directory
        self.path = directory / "cluster.db"
        self.options = options or Options()
        self.now = 1e9
        self.nodes = [Node(f"n{n + 1}", 2, 80 * GIB) for n in range(nodes)]
        if not self.path.exists():
            with Store.create(self.path, Policy(endings="reported", reserve_after=None, protect=0.0)) as store:
                if queues:
                    store.append([QueueAdded(Queue(name, quota=gpus(quota))) for name, quota in queues], self.now)
        self.open()
        self.rounds(1)  # now it knows the nodes

    def open(self) -> None:
        self.runner = Spool(self.directory / "spool", self.nodes)
        self.store = Store.open(self.path)
        self.service = Service(self.store, self.runner, engine="spool", clock=lambda: self.now, options=self.options)

    def restart(self) -> None:
        """As after kill -9: whatever was in memory is gone."""
        self.store.close()
        self.open()

    def rounds(self, count: int = 3) -> None:
        for _ in range(count):
            self.now += 1.0
            self.service.work.round()
            self.service.store.allocator.validate()

    def submit(self, caller: Caller = ALICE, **body) -> str:
        """`job` words beside the other fields."""
        fields = {key: body.pop(key) for key in ("array", "after", "hold", "requeue", "run") if key in body}
        return self.service.submit({"job": body, **fields}, caller)["id"]

    def states(self) -> dict[str, str]:
        return {job["id"]: job["state"] for job in self.service.shown(self.service.ids())}

    def results(self) -> dict[str, str]:
        return {job["id"]: job["result"]["how"] for job in self.service.shown_ended()}

    def said(self, verb: str) -> list[str]:
        return [line for line in self.runner.said if line.split()[0] == verb]


def in_a_child(work: Callable[..., None], *arguments: object) -> int:
    """Do it in a process of its own, which may be killed; how it ended (as waitpid says)."""
    pid = os.fork()
    if not pid:
        try:
            work(*arguments)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


__all__ = ["ALICE", "BOB", "GIB", "ROOT", "Spool", "Stage", "in_a_child"]
