"""How fast the scheduler starts pods of a large cluster, with a real API server.

GPUSHARE_TEST_KUBE_BIN=FOLDER python benchmarks/kubernetes.py [--nodes 1000] [--pods 5000] [--beside 500]

Nodes of 8 GPUs and pods that wait are objects of a kube-apiserver and an etcd of their own, which share this machine's
cores with the scheduler. Nodes have no kubelets: a pod counts as started when it is bound. First the floor: the same
requests for other pods, by the same client and as many threads, with nothing decided or observed. Where the API server
has claims of its own (Kubernetes 1.34), kube-scheduler then starts some in the same cluster.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "kubernetes"), str(ROOT), str(ROOT / "daemon")]

from call_times import around  # noqa: E402
from claims import GIB, gpu  # noqa: E402
from real_api_server import HAS, RealApiServer, binary, free_ports, missing, with_claims  # noqa: E402

from gpushare.cluster.engines.kubernetes import api as engine_api  # noqa: E402
from gpushare.cluster.engines.kubernetes.engine import Kubernetes  # noqa: E402
from gpushare.cluster.engines.kubernetes.settings import Settings  # noqa: E402
from gpushare.cluster.model import Policy  # noqa: E402
from gpushare.cluster.service.driver import Options  # noqa: E402
from gpushare.cluster.service.of_queue import QueueRounds  # noqa: E402
from gpushare.cluster.store import Store  # noqa: E402
from gpushare.kubernetes.server import MERGE, Access, Server  # noqa: E402
from gpushare.kubernetes.slices import resource_slice  # noqa: E402
from gpushared.cluster.command import COLLECT_AFTER  # noqa: E402

GPUS = 8
PODS = "/api/v1/namespaces/team-a/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
NODES = "/api/v1/nodes"
MAKERS = 8
SCHEDULERS = {"floor": "nobody", "pod": "gpushare", "beside": "default-scheduler"}
"""By the names of pods."""
LONGEST = 900.0
"""Seconds."""


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--nodes", type=int, default=1000)
    made.add_argument("--pods", type=int, default=5000)
    made.add_argument("--floor", type=int, default=500, help="pods of the floor")
    made.add_argument("--beside", type=int, default=500, help="pods of kube-scheduler")
    options = made.parse_args()
    if missing():
        sys.exit(f"not here: {missing()}")
    with tempfile.TemporaryDirectory(prefix="gs-bench-") as folder:
        cluster = RealApiServer(Path(folder))
        try:
            cluster.serve_claims()
            cluster.deploy()
            cluster.deploy("scheduler")
            fill(cluster, options)
            print(f"{cluster.version()}, claims {'its own' if cluster.own else 'as custom resources'}; {load()}")
            floors = [floor(cluster, options.floor, threads) for threads in (1, engine_api.AT_ONCE)]
            rate = scheduler(cluster, options, Path(folder))
            print(f"of the floor with {engine_api.AT_ONCE} threads: {rate / floors[-1]:.2f}; {load()}", flush=True)
            if cluster.own and options.beside:
                beside = kube_scheduler(cluster, options.beside, Path(folder))
                print(f"gpushare's scheduler does {rate / beside:.1f} times as many; {load()}")
        finally:
            cluster.end()


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"


def each(what: Callable[[Any], object], over: Iterable[Any], threads: int = MAKERS) -> float:
    """Seconds that it took."""
    began = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(what, over))
    return time.monotonic() - began


# ---- the cluster ---------------------------------------------------------------------------------------


def fill(cluster: RealApiServer, options: argparse.Namespace) -> None:
    server = Server(Access.of_kubeconfig(cluster.kubeconfig), connections=MAKERS)
    server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "team-a"}})

    def node(number: int) -> None:
        name = f"n{number}"
        made = server.ask("POST", NODES, {"metadata": {"name": name}})
        said = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"pods": "110"}}
        server.ask("PUT", f"{NODES}/{name}/status", {**made, "status": said})
        server.ask("PATCH", f"{NODES}/{name}", {"spec": {"taints": None}}, MERGE)  # there are no controllers to do it
        devices = [gpu(f"GPU-{name}-{index}", index, capacity=80 * GIB) for index in range(GPUS)]
        server.ask("POST", SLICES, resource_slice(name, devices, "sim"))

    def pod(name: str) -> None:
        exactly = {"deviceClassName": "gpushare.dev", "capacity": {"requests": {"memory": "80Gi"}}}
        meta = {"name": f"{name}-gpu", "namespace": "team-a"}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        server.ask("POST", CLAIMS, {**head, "metadata": meta, "spec": spec})
        spec = {
            "schedulerName": SCHEDULERS[name.rstrip("0123456789")],
            "containers": [{"name": "main", "image": "x"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}],
        }
        server.ask("POST", PODS, {"metadata": {"name": name, "annotations": {HAS: f"{name}-gpu"}}, "spec": spec})

    counts = {"floor": 2 * options.floor, "pod": options.pods, "beside": options.beside if cluster.own else 0}
    names = [f"{kind}{number}" for kind, count in counts.items() for number in range(count)]
    took = each(node, range(options.nodes)) + each(pod, names)
    print(f"{options.nodes} nodes of {GPUS} GPUs and {len(names)} pods were made in {took:.0f} s", flush=True)


# ---- the floor -----------------------------------------------------------------------------------------


def floor(cluster: RealApiServer, count: int, threads: int) -> float:
    """Pods a second, if each is three bare requests, as a start's."""
    server = Server(Access.of_kubeconfig(cluster.schedulers), connections=threads)
    first = 0 if threads == 1 else count

    def start(number: int) -> None:
        name = f"floor{number}"
        pod, claim = f"{PODS}/{name}", f"{CLAIMS}/{name}-gpu"
        server.ask("PATCH", claim, {"metadata": {"finalizers": ["gpushare.dev/floor"]}}, MERGE)
        device = {"request": "gpu", "driver": "floor.example.com", "pool": "n0", "device": "x" * 60}
        status = {"allocation": {"devices": {"results": [device]}}}
        server.ask("PATCH", f"{claim}/status", {"status": status}, MERGE)
        target = {"apiVersion": "v1", "kind": "Node", "name": "n0"}
        meta = {"name": name, "namespace": "team-a", "annotations": {"gpushare.dev/start": "x" * 200}}
        server.ask("POST", f"{pod}/binding", {"metadata": meta, "target": target})

    used, others = time.process_time(), cluster.cpu_seconds()
    rate = count / each(start, range(first, first + count), threads)
    print(f"floor, {threads} at once: {rate:.0f} pods a second; {each_used(cluster, count, used, others)}", flush=True)
    server.close()
    return rate


def each_used(cluster: RealApiServer, count: int, used: float, others: float) -> str:
    client, server = (time.process_time() - used) / count * 1000, (cluster.cpu_seconds() - others) / count * 1000
    return f"for each {client:.1f} ms of CPU time, and {server:.1f} ms of the API server's and etcd's"


# ---- the scheduler -------------------------------------------------------------------------------------


def scheduler(cluster: RealApiServer, options: argparse.Namespace, folder: Path) -> float:
    """Pods a second, from the first round to the last binding."""
    if not cluster.own:
        engine_api._keeps = with_claims(engine_api._keeps)
    gc.set_threshold(COLLECT_AFTER)
    settings = Settings(kubeconfig=str(cluster.schedulers))
    woken = threading.Event()
    engine = Kubernetes(engine_api.Api(settings, woken.set), settings, woken)
    store = Store.create(folder / "cluster.db", Policy(endings="reported"))
    work = QueueRounds(store, engine, time.time, Options())
    spent = timed(work)
    engine._api.listed()  # what the watches bring at first is not measured
    began, used, others = time.monotonic(), time.process_time(), cluster.cpu_seconds()
    first = last = began
    bound = 0
    while bound < options.pods and time.monotonic() < began + LONGEST:
        work.round()
        now_bound = sum(1 for one in engine._board.members.values() if one.bound)
        if now_bound > bound:
            bound, last = now_bound, time.monotonic()
        if work.trouble:
            print(work.trouble)
    if not bound:
        sys.exit("nothing was started")
    took = last - first
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"scheduler: {bound} of {options.pods} pods in {took:.1f} s, {bound / took:.0f} a second;"
        f" {each_used(cluster, bound, used, others)}; at most {peak} MiB"
    )
    parts = ", ".join(f"{name} {seconds:.1f} s ({seconds / took:.0%})" for name, seconds in spent.items())
    print(f"of that time: {parts}; {work.count} rounds", flush=True)
    engine.close()
    store.close()
    return bound / took


def kube_scheduler(cluster: RealApiServer, count: int, folder: Path) -> float:
    """Pods a second, from its first binding to the last. It asks as often as it likes."""
    connection = {"kubeconfig": str(cluster.kubeconfig), "qps": 5000, "burst": 10000}
    said = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    said |= {"clientConnection": connection, "leaderElection": {"leaderElect": False}}
    config = folder / "kube-scheduler.json"
    config.write_text(json.dumps(said))
    (port,) = free_ports(1)
    line = [str(binary("kube-scheduler")), f"--config={config}", f"--secure-port={port}", f"--cert-dir={folder}/kube"]
    server = Server(Access.of_kubeconfig(cluster.kubeconfig))
    mine = f"{PODS}?fieldSelector=spec.schedulerName=default-scheduler,spec.nodeName!="
    with (folder / "kube-scheduler.log").open("wb") as log:
        process = subprocess.Popen([*line, "--bind-address=127.0.0.1"], stdout=log, stderr=log)
    try:
        began, started, bound = time.monotonic(), None, 0
        while bound < count and time.monotonic() < began + LONGEST:
            time.sleep(0.5)
            bound = len(server.ask("GET", mine)["items"])
            if started is None and bound:
                started = time.monotonic(), bound
    finally:
        process.kill()
        process.wait()
        server.close()
    if started is None or bound == started[1]:
        sys.exit(f"kube-scheduler bound {bound}: {(folder / 'kube-scheduler.log').read_text()[-2000:]}")
    rate = (bound - started[1]) / (time.monotonic() - started[0])
    print(f"kube-scheduler: {bound} of {count} pods, {rate:.0f} a second", flush=True)
    return rate


def timed(work: QueueRounds) -> dict[str, float]:
    spent = {"deciding and its file": 0.0, "looking": 0.0}
    around(spent, work.store, "append", "deciding and its file")
    around(spent, work.store, "pass_time", "deciding and its file")
    around(spent, work.seen, "snapshot", "looking")
    return spent


if __name__ == "__main__":
    main()
