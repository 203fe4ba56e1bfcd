"""The scheduler's engine on the stand-in for a cluster, and with a ledger of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kube_cluster import KubeCluster

from gpushare.cluster.engines.kubernetes.api import Api
from gpushare.cluster.engines.kubernetes.engine import Kubernetes
from gpushare.cluster.engines.kubernetes.settings import Settings
from gpushare.cluster.engines.loop import Loop
from gpushare.cluster.engines.seam import Answer, Evict, SeenJob, Start, Token, Unanswered
from gpushare.cluster.model import Place, Policy, Queue, QueueAdded
from gpushare.cluster.quantity import gpus
from gpushare.cluster.store import Store

GIB = 2**30
WITHIN = 30.0


class Scheduler:
    """An engine that has seen all that there is."""

    holder = "the test"

    def __init__(self, cluster: KubeCluster) -> None:
        self.cluster = cluster
        settings = Settings(kubeconfig=str(cluster.api.kubeconfig), **cluster.settings)
        self.woken = threading.Event()
        self.api = Api(settings, self.woken.set)
        self.engine = Kubernetes(self.api, settings, self.woken, lambda: cluster.now)
        self.number = 0
        self.settle()

    def settle(self) -> None:
        deadline = time.monotonic() + WITHIN
        for path, one in self.api.watched.items():
            while not one.absent and (one.seen < self.cluster.api.newest(path) or one.objects(0)[1]):
                assert time.monotonic() < deadline, f"{path}: {one.objects(0)[1]}"
                self.woken.wait(0.005)
                self.woken.clear()

    def close(self) -> None:
        self.engine.close()

    # ---- commands --------------------------------------------------------------------------------------

    def token(self) -> Token:
        self.number += 1
        return self.engine.lead(self.holder, 1000.0) or 0, self.number

    def job(self, uid: str) -> SeenJob | None:
        self.settle()
        return next((one for one in self.engine.snapshot().jobs if one.job.id == uid), None)

    def start(self, uid: str, node: str = "n1", gpu: int = 0, amount: int = 8 * GIB, **more: Any) -> Answer:
        places = more.pop("places", (Place(0, 0, node, (gpu,), amount, 0),))
        self.settle()
        self.engine.snapshot()
        command = Start(uid, more.pop("attempt", 1), places, 0)
        return self.engine.start(command, more.pop("token", None) or self.token())

    def evict(self, uid: str, grace: float = 30.0) -> Answer:
        return self.engine.evict(Evict(uid, 1, ((0, 0),), grace, True), self.token())


class Ruled(Scheduler):
    """With a ledger, and queues `a` and `b` that have half of the cluster each."""

    holder = "gpushare"

    def __init__(self, cluster: KubeCluster, folder: Path) -> None:
        super().__init__(cluster)
        self.store = Store.create(folder / "ledger.db", Policy(endings="reported", reserve_after=None, protect=0.0))
        half = gpus(sum(len(one) for one in cluster.gpus.values()) / 2)
        self.store.append([QueueAdded(Queue(name, quota=half)) for name in ("a", "b")], cluster.now)
        self.loop = Loop(self.store, self.engine, lambda: cluster.now, holder=self.holder)

    def close(self) -> None:
        super().close()
        self.store.close()

    def token(self) -> Token:
        """As if the loop had given the command."""
        self.loop._number = self.number = self.loop._number + 1
        return super().token()[0], self.number

    def round(self) -> None:
        try:
            self.loop.step()
        except Unanswered:
            return
        finally:
            self.cluster.tick()
        self.settle()

    def go(self, true: Callable[[], Any], rounds: int = 100) -> Any:
        for _ in range(rounds):
            if found := true():
                return found
            self.round()
        raise AssertionError("it did not happen")
