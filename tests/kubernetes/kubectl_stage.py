"""A cluster with queues, pods and loans for people to look at, on the stand-in for its API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner
from kube_cluster import CLAIMS, GIB, NAMESPACE, PODS, KubeCluster, Program
from scheduler_stage import Ruled

from gpushare.cluster.engines.kubernetes.names import QUEUES
from gpushare.kubernetes.publish import use_of

QUEUE = f"{QUEUES}/{{}}"


class Looked:
    """Queues research > vision, speech; `train` and `eval` share a GPU, `big` waits, `later` is held."""

    def __init__(self, folder: Path) -> None:
        self.cluster = KubeCluster(folder)
        self.ruled = Ruled(self.cluster, folder)
        self.api = self.cluster.api
        for name, spec, status in (
            ("research", {"quota": 4}, {"held": "1", "share": "4", "waiting": 1, "running": 2}),
            ("vision", {"parent": "research", "quota": 2, "limit": 3, "priority": 5}, {"held": "0.5", "share": "3"}),
            ("speech", {"parent": "research", "quota": "0.5"}, None),
            ("wrong", {"quota": "many"}, {"held": "0", "share": "0"}),
        ):
            accepted = {"type": "Accepted", "status": "False" if name == "wrong" else "True"}
            accepted["message"] = (
                "queue wrong: quota: 'many' is no number" if name == "wrong" else "what it says counts"
            )
            more = {} if status is None else {"status": {**status, "conditions": [accepted]}}
            self.api.put(QUEUE.format(name), {"metadata": {"name": name}, "spec": spec, **more})
        self.cluster.submit("train", Program(), memory="24Gi", queue="a", said={"limit": "60Gi"})
        self.cluster.submit("eval", Program(), memory="40Gi", queue="a")
        programs = self.cluster.programs
        self.ruled.go(lambda: programs["train"].began and programs["eval"].began)
        self.cluster.submit("big", memory=None, count=3, queue="a")
        self.cluster.submit("later", memory="1Gi", queue="b", annotations={"gpushare.dev/hold": "true"})
        self.ruled.settle()
        for _ in range(3):
            self.ruled.round()
        self.use("train", 30 * GIB, 6 * GIB, "asked_back")
        self.use("eval", 10 * GIB, 0, "running")

    def close(self) -> None:
        self.ruled.close()
        self.cluster.close()

    def use(self, name: str, usage: int, loan: int, state: str) -> None:
        """As the plugin of its node says it."""
        claim = self.cluster.claim_of(name)
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        node, _, index = result["device"].removeprefix("gpu-").rpartition("-")
        request = int(result["consumedCapacity"]["memory"].removesuffix("Gi")) * GIB
        amounts = {"usage": usage, "loan": loan, "request": request, "limit": 60 * GIB}
        job: Any = {"gpus": [{"uuid": f"GPU-{node}-{index}", **amounts}], "state": state}
        devices = use_of(claim, node, job)
        assert devices
        path = f"{CLAIMS}/{claim['metadata']['name']}"
        self.api.change(path, lambda one: one["status"].update(devices=devices))

    def shown(self, *words: str, config: bool = True) -> tuple[int, str]:
        """Exit status, and what both streams say."""
        import gpushare.cli.kubectl as kubectl

        runner = CliRunner()
        more = ["--kubeconfig", str(self.api.kubeconfig)] if config else []
        with runner.isolation() as (out, err, *_):
            code = kubectl.main([*words, *more])
        return code, out.getvalue().decode() + err.getvalue().decode()


__all__ = ["NAMESPACE", "PODS", "Looked"]
