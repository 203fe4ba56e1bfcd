"""A stand-in for NVIDIA's DRA driver on a node: its name, its ResourceSlice, and what the kubelet asks of it.

It publishes its GPUs as that driver does with consumable shares of memory, each time the kubelet takes it, and gives a
container what the driver's CDI files give: the GPUs' names in its environment.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from kube_stage import until
from real_nodes import RealNode

from gpushare.errors import NoSuchJob
from gpushare.kubernetes.names import NVIDIA
from gpushare.kubernetes.wire import Method, methods

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIM = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}"
CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": NVIDIA},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{NVIDIA}"'}}]},
}
KIND = "k8s.gpu.nvidia.com/claim"
WITHIN = 90.0


class NvidiaDriver:
    """On one node, with a MIG device that nothing stands behind. `memory`: of each of its GPUs, all of which it gives
    out."""

    def __init__(self, node: RealNode, memory: str) -> None:
        self.node, self.memory = node, memory
        self.published = 0
        """How often: each time the kubelet has taken it."""
        self.start()

    def start(self) -> None:
        before = self.published
        places = self.node.folder / "kubelet"
        calls = methods("v1")
        prepare, unprepare = calls["NodePrepareResources"], calls["NodeUnprepareResources"]
        about = methods()
        info = about["GetInfo"].response(
            type="DRAPlugin",
            name=NVIDIA,
            endpoint=f"/var/lib/kubelet/plugins/{NVIDIA}/dra.sock",
            supported_versions=["v1.DRAPlugin"],
        )
        self._sockets = [places / "plugins_registry" / f"{NVIDIA}-reg.sock", places / "plugins" / NVIDIA / "dra.sock"]
        self._servers = [
            serve(
                self._sockets[1],
                {prepare: answering(prepare, self._prepare), unprepare: answering(unprepare, self._unprepare)},
            ),
            serve(
                self._sockets[0],
                {
                    about["GetInfo"]: lambda _: info,
                    about["NotifyRegistrationStatus"]: self._taken,
                },
            ),
        ]
        until(lambda: self.published > before, "the kubelet to take NVIDIA's driver", WITHIN)

    def end(self) -> None:
        for path in self._sockets:
            path.unlink(missing_ok=True)
        for server in self._servers:
            server.stop(0).wait()

    # ---- what the kubelet asks -------------------------------------------------------------------------

    def _taken(self, said: Any) -> Any:
        if said.plugin_registered:
            self.publish()
        return methods()["NotifyRegistrationStatus"].response()

    def publish(self) -> None:
        server = self.node.cluster.server
        name = f"{self.node.name}-{NVIDIA}"
        with contextlib.suppress(NoSuchJob):
            server.ask("DELETE", f"{SLICES}/{name}")
        server.ask("POST", SLICES, self._slice(name))
        self.published += 1

    def _slice(self, name: str) -> dict[str, Any]:
        node, gpus = self.node, self.node.client.status()["gpus"]
        found = node.cluster.server.ask("GET", f"/api/v1/nodes/{node.name}")["metadata"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": found["uid"], "controller": True}
        pool = {"name": node.name, "generation": 1, "resourceSliceCount": 1}
        devices = [self._device(f"gpu-{gpu['index']}", gpu["uuid"]) for gpu in gpus]
        devices.append(self._device("gpu-0-mig-1", f"MIG-{gpus[0]['uuid']}", "mig"))
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": {"driver": NVIDIA, "nodeName": node.name, "pool": pool, "devices": devices},
        }

    def _device(self, name: str, uuid: str, kind: str = "gpu") -> dict[str, Any]:
        step = {"default": self.memory, "validRange": {"min": "1Mi", "step": "1Mi"}}
        return {
            "name": name,
            "attributes": {"uuid": {"string": uuid}, "type": {"string": kind}},
            "capacity": {"memory": {"value": self.memory, "requestPolicy": step}},
            "allowMultipleAllocations": True,
        }

    def _prepare(self, claim: Any) -> dict[str, Any]:
        found = self.node.cluster.server.ask("GET", CLAIM.format(claim.namespace, claim.name))
        results = [one for one in found["status"]["allocation"]["devices"]["results"] if one["driver"] == NVIDIA]
        names = ",".join(one["device"] for one in results)
        device = {"name": claim.uid, "containerEdits": {"env": [f"OF_NVIDIAS_DRIVER={names}"]}}
        said = {"cdiVersion": "0.6.0", "kind": KIND, "devices": [device]}
        self._file(claim.uid).write_text(json.dumps(said))
        shown = [
            {
                "request_names": [one["request"]],
                "pool_name": one["pool"],
                "device_name": one["device"],
                "cdi_device_ids": [f"{KIND}={claim.uid}"],
            }
            for one in results
        ]
        return {"devices": shown}

    def _unprepare(self, claim: Any) -> dict[str, Any]:
        self._file(claim.uid).unlink(missing_ok=True)
        return {}

    def _file(self, uid: str) -> Path:
        return self.node.folder / "cdi" / f"k8s.gpu.nvidia.com-claim_{uid}.json"


def answering(method: Method, one: Callable[[Any], dict[str, Any]]) -> Callable[[Any], Any]:
    return lambda asked: method.response(claims={claim.uid: one(claim) for claim in asked.claims})


def serve(path: Path, calls: Mapping[Method, Callable[[Any], Any]]) -> grpc.Server:
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Handler(calls)])
    server.add_insecure_port(f"unix:{path}")
    server.start()
    return server


class Handler(grpc.GenericRpcHandler):
    def __init__(self, calls: Mapping[Method, Callable[[Any], Any]]) -> None:
        self._found = {
            method.path: grpc.unary_unary_rpc_method_handler(
                lambda asked, _, answer=answer: answer(asked),
                request_deserializer=method.request.FromString,
                response_serializer=method.response.SerializeToString,
            )
            for method, answer in calls.items()
        }

    def service(self, handler_call_details: Any) -> Any:
        return self._found.get(handler_call_details.method)


__all__ = ["CLASS", "NvidiaDriver"]
