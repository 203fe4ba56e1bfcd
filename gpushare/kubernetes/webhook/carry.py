"""The patch that makes a pod carry its claim (carried.py), for a server that has none. Pure.

The pod gets what a CDI file gives containers elsewhere: the library, the folder with the daemon's socket, and
variables. The library is in a folder of the pod's own, which the node's plugin makes when its placement is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpushare.container import LIBRARY, SOCKETS
from gpushare.errors import UsageError
from gpushare.kubernetes import fields
from gpushare.kubernetes.carried import CLAIM, GATES, GPUS, LIMIT, REQUEST, WRITTEN
from gpushare.kubernetes.names import SCHEDULER
from gpushare.kubernetes.webhook.asked import Asked
from gpushare.kubernetes.webhook.share import Share

__all__ = ["patch"]

HOST_SOCKETS = "/run/gpushare/containers"
"""Of the system's node daemon."""
VOLUMES = ("gpushare", "gpushare-sockets")


def patch(pod: Mapping[str, Any], asked: Asked, share: Share, gate: str) -> list[dict[str, Any]]:
    """JSON patch. `gate`: 32 hexadecimal digits that no other pod has. Raises UsageError."""
    spec, (kind, index) = pod["spec"], asked.container
    if spec.get("schedulerName") in (None, "default-scheduler"):
        raise UsageError(
            f"on this server only gpushare's scheduler gives parts of GPUs ({asked.said})",
            hint=f"write schedulerName: {SCHEDULER}",
        )
    container, at = spec[kind][index], f"/spec/{kind}/{index}"
    return [
        _annotations(pod, asked, share),
        _added("/spec/volumes", _volumes(gate), spec.get("volumes")),
        _added(f"{at}/volumeMounts", _mounts(), container.get("volumeMounts")),
        _added(f"{at}/env", _env(gate), container.get("env")),
    ]


def _annotations(pod: Mapping[str, Any], asked: Asked, share: Share) -> dict[str, Any]:
    """What a copy of another pod has of that pod's start is not its own."""
    said: dict[str, Any] = {**asked.budget, **({} if share.count == 1 else {"count": share.count})}
    said |= {} if share.memory is None else {"memory": share.written}
    said |= {} if share.limit is None else {"limit": share.limit}
    kept = {name: value for name, value in (pod["metadata"].get("annotations") or {}).items() if name not in WRITTEN}
    return {"op": "add", "path": "/metadata/annotations", "value": {**kept, CLAIM: json.dumps(said)}}


def _volumes(gate: str) -> list[dict[str, Any]]:
    places = (f"{GATES}/{gate}/libgpushare.so", "File"), (HOST_SOCKETS, "Directory")
    return [
        {"name": name, "hostPath": {"path": path, "type": kind}}
        for name, (path, kind) in zip(VOLUMES, places, strict=True)
    ]


def _mounts() -> list[dict[str, Any]]:
    return [
        {"name": name, "mountPath": path, "readOnly": True}
        for name, path in zip(VOLUMES, (LIBRARY, SOCKETS), strict=True)
    ]


def _env(gate: str) -> list[dict[str, Any]]:
    said = {
        "LD_PRELOAD": LIBRARY,
        "GPUSHARE_MODE": "enforce",
        "GPUSHARE_SOCKET": f"{SOCKETS}/api.sock",
        "GPUSHARE_JOB": gate[:16],
    }
    found: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in said.items()]
    read = {"GPUSHARE_REQUEST": REQUEST, "GPUSHARE_LIMIT": LIMIT, "CUDA_VISIBLE_DEVICES": GPUS}
    read |= {"NVIDIA_VISIBLE_DEVICES": GPUS}
    paths = {"GPUSHARE_NAME": "metadata.name"} | {name: f"metadata.annotations['{key}']" for name, key in read.items()}
    return [
        *found,
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in paths.items()),
    ]


def _added(path: str, ours: Sequence[Mapping[str, Any]], there: Any) -> dict[str, Any]:
    """In place of what has the same name, or the same place in the container."""
    return {"op": "add", "path": path, "value": [*_others(ours, fields.objects({"x": there}, "x")), *ours]}


def _others(ours: Sequence[Mapping[str, Any]], there: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    names = {one["name"] for one in ours}
    places = {one["mountPath"] for one in ours if "mountPath" in one}
    return [one for one in there if one.get("name") not in names and one.get("mountPath") not in places]
