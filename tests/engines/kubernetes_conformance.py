"""Kubernetes on the conformance suite's stand: the engine on a stand-in for the API server, with controllers and
kubelets whose time passes when it is told to. tests/kubernetes has what only this engine does."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kubernetes"))

from annotated_cluster import AnnotatedCluster
from conformance_stand import RUNS, Queued, Work
from kube_cluster import CLAIMS, CLASSES, GIB, NAMESPACE, NODES, PODS, KubeCluster, Program
from memory_stand import POLICY
from scheduler_stage import Scheduler

from gpushare.cluster.engines.kubernetes import engine

MEMORY = 80 * GIB
ANY_PRIORITY = {"apiVersion": "gpushare.dev/v1", "kind": "Budget", "priority": 1000}
CANNOT: Mapping[str, str] = {
    **engine.CANNOT,
    "programs": "its pods have no programs; a real kubelet is needed",
    "budget": "no node daemon is here; tests/kubernetes shows it",
}
CANNOT_ANNOTATED = {**CANNOT, "foreign": "on a server without claims nobody else gives GPUs away"}


class KubernetesStand(Queued):
    name = "kubernetes"
    cannot = CANNOT
    policy = POLICY
    step = 1.0
    within = 300.0

    def __init__(self, directory: Path, environ: object) -> None:
        self.directory = directory
        self.cluster = self.make_cluster()
        self.allow_priorities()
        self.ended: dict[str, tuple[str, int | None]] = {}
        self.owners: dict[str, str] = {}
        self.others: dict[tuple[str, int], str] = {}
        self.count = 0
        self.open_engine()
        self.open_ledger()

    def make_cluster(self) -> KubeCluster:
        return KubeCluster(self.directory)

    def allow_priorities(self) -> None:
        config = [{"opaque": {"driver": "gpushare.dev", "parameters": ANY_PRIORITY}}]
        self.cluster.api.change(f"{CLASSES}/gpushare.dev", lambda one: one["spec"].update(config=config))

    def open_engine(self) -> None:
        self.scheduler = Scheduler(self.cluster)
        self.engine, self.settle = self.scheduler.engine, self.scheduler.settle

    # ---- jobs ------------------------------------------------------------------------------------------

    def submit(self, work: Work = RUNS, **more) -> str:
        uid = self._submit(work, **more)
        self.settle()
        return uid

    def _submit(
        self,
        work: Work = RUNS,
        *,
        queue="a",
        gpus=1,
        tasks=1,
        share=None,
        limit=None,
        priority=50,
        held=False,
        preemptible=True,
    ) -> str:
        self.count += 1
        owner = f"j{self.count}"
        memory = None if share is None else f"{round(MEMORY * share) // 2**20}Mi"
        said = {"priority": priority - 50}
        if limit is not None:
            said["limit"] = f"{round(MEMORY * limit) // 2**20}Mi"
        gates = [{"name": "wait"}] if held else []
        program = Program(seconds=work.seconds, exit=work.exit, stubborn=work.stubborn)
        more = {"memory": memory, "count": gpus, "queue": queue, "said": said, "gates": gates}
        annotations = {} if preemptible else {"gpushare.dev/preemptible": "false"}
        if tasks > 1:
            more |= {"labels": {"gpushare.dev/pod-group": owner}}
            annotations |= {"gpushare.dev/pod-group-size": str(tasks)}
        more |= {"annotations": annotations}
        uid = self.cluster.submit(owner, program, **more)
        for number in range(1, tasks):
            program.make(f"{owner}-{number}")
        program.pods = tasks
        if work.broken:
            self.refuse_bindings(owner)
        self.owners[uid] = owner
        return uid

    def submit_array(self, count: int, work: Work = RUNS, *, queue: str = "a") -> list[str]:
        uids = [self._submit(work, queue=queue) for _ in range(count)]
        self.settle()
        return uids

    def refuse_bindings(self, owner: str) -> None:
        def refuses(method: str, path: str, _: object):
            broken = path.startswith(f"{PODS}/{owner}") and path.endswith("/binding")
            return (403, {"message": "a policy forbids it"}) if broken else None

        self.cluster.api.refuses = refuses

    def cancel(self, uid: str) -> None:
        if self.result(uid) is None:
            self.cluster.cancel(self.owners[uid])
            self.ended[uid] = "cancelled", None
        self.settle()

    def release(self, uid: str) -> None:
        for path, _ in self.cluster.pods_of(self.owners[uid]):
            self.cluster.api.change(path, lambda one: one["spec"].update(schedulingGates=[]))
        self.settle()

    def began(self, uid: str) -> int:
        return self.cluster.programs[self.owners[uid]].began if uid in self.owners else 0

    def alive(self, uid: str) -> int:
        return len(self.cluster.programs[self.owners[uid]].starts) if uid in self.owners else 0

    def result(self, uid: str) -> tuple[str, int | None] | None:
        if uid in self.ended:
            return self.ended[uid]
        pods = [pod for _, pod in self.cluster.pods_of(self.owners[uid])]
        phases = {pod["status"]["phase"] for pod in pods}
        if not phases <= {"Succeeded", "Failed"} or not pods:
            return None
        program = self.cluster.programs[self.owners[uid]]
        return ("failed" if "Failed" in phases else "done"), program.exit

    # ---- the world -------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        self.cluster.tick(seconds)
        self.settle()

    def clock(self) -> float:
        return self.cluster.now + self.shift

    def cordon(self, node: str, *, draining: bool = False) -> None:
        self.cluster.api.change(f"{NODES}/{node}", lambda one: one["spec"].update(unschedulable=True))
        for path, pod in self.cluster.pods() if draining else ():
            if pod["spec"].get("nodeName") == node:
                self.cluster.api.handle("DELETE", path, {}, {})
        self.settle()

    def uncordon(self, node: str) -> None:
        self.cluster.api.change(f"{NODES}/{node}", lambda one: one["spec"].update(unschedulable=False))
        self.settle()

    def foreign(self, node: str, gpu: int, amount: int) -> None:
        """A claim that another scheduler has allocated."""
        path = f"{CLAIMS}/other-{node}-{gpu}"
        if not amount:
            self.cluster.api.remove(path)
            self.settle()
            return
        device = self.cluster.gpus[node][gpu]["uuid"].lower()
        result = {"request": "gpu", "driver": "gpushare.dev", "pool": node, "device": device, "shareID": "x"}
        result["consumedCapacity"] = {"memory": str(amount)}
        meta = {"name": path.rpartition("/")[2], "namespace": NAMESPACE}
        self.cluster.api.put(path, {"metadata": meta, "status": {"allocation": {"devices": {"results": [result]}}}})
        self.settle()

    def silence(self, node: str) -> None:
        self.cluster.set_ready(node, ready=False)
        self.settle()

    def lose(self, node: str) -> None:
        self.cluster.lose(node)
        self.settle()

    def bring_back(self, node: str) -> None:
        if node in self.cluster.lost:
            self.cluster.lost.discard(node)
            self.cluster.add_node(node)
        else:
            self.cluster.set_ready(node, ready=True)
        self.settle()

    def kill_engine(self) -> None:
        """The API server goes, and so does this process; both come back."""
        self.cluster.api.stop()
        self.engine.close()
        self.cluster.api.start()
        self.number = 0
        self.open_engine()
        if hasattr(self, "_store"):
            self.loop.engine = self.engine

    def clear(self) -> None:
        self.engine.close()
        self.cluster.close()
        self._store.close()
        assert not self.cluster.unread, "the node's plugin reads what the engine writes"


class AnnotatedStand(KubernetesStand):
    """On a server without claims: pods carry theirs."""

    name = "kubernetes (annotations)"
    cannot = CANNOT_ANNOTATED

    def make_cluster(self) -> KubeCluster:
        return AnnotatedCluster(self.directory)

    def allow_priorities(self) -> None:
        self.cluster.settings = {"budget": '{"priority": 1000}'}
