"""A service as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gpushare.cluster.client import ClusterClient
from gpushare.cluster.model import Event, Node, NodeAdded, Policy, Queue, QueueAdded
from gpushare.cluster.quantity import gpus
from gpushare.cluster.store import Store
from gpushare.errors import DaemonUnreachable

PATIENCE = 30.0


NODES = (NodeAdded(Node("n1", 2)), NodeAdded(Node("n2", 2)), QueueAdded(Queue("lab", quota=gpus(2))))


class Process:
    """A service on the engine `memory`, with a file of two nodes."""

    def __init__(self, directory: Path, given: Sequence[Event] = NODES, policy: Policy | None = None) -> None:
        self.directory = directory
        self.store = directory / "cluster.db"
        self.socket = directory / "api.sock"
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None
        with Store.create(self.store, policy or Policy()) as store:
            store.append(given, 0)

    @property
    def client(self) -> ClusterClient:
        return ClusterClient(self.socket, PATIENCE)

    def words(self, *more: str) -> list[str]:
        words = [sys.executable, "-P", "-m", "gpushared.cluster", "--engine", "memory", "--store", str(self.store)]
        return [*words, "--socket", str(self.socket), "--log-format", "json", *more]

    def start(self, *more: str) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.words(*more), stderr=log)
        until(self.answers)

    def answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log.read_text()
        try:
            return bool(self.client.version())
        except DaemonUnreachable:
            return False

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(PATIENCE)
        self.process = None
        return status


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
