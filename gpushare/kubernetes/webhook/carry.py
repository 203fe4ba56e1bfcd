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
from gpushare.kubernetes.carried import CLAIM, GATES, GPUS, LIMIT, REQUEST, VOLUME, WRITTEN
from gpushare.kubernetes.names import SCHEDULER
from gpushare.kubernetes.webhook.asked import Asked
from gpushare.kubernetes.webhook.share import Share

__all__ = ["patch", "patch_of_added"]

HOST_SOCKETS = "/run/gpushare/containers"
"""Of the system's node daemon."""
VOLUMES = (VOLUME, "gpushare-sockets")
NO_GPU = ({"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},)
"""Images of CUDA say `all`, and NVIDIA's runtime is the pod's, not the container's."""
ADDED = "ephemeralContainers"


def patch(pod: Mapping[str, Any], asked: Asked, share: Share, gate: str) -> list[dict[str, Any]]:
    """JSON patch. `gate`: 32 hexadecimal digits that no other pod has. Raises UsageError."""
    spec, (kind, index) = pod["spec"], asked.container
    if spec.get("schedulerName") in (None, "default-scheduler"):
        raise UsageError(
            f"on this server only gpushare's scheduler gives parts of GPUs ({asked.said})",
            hint=f"write schedulerName: {SCHEDULER}",
        )
    if spec.get("nodeName"):
        raise UsageError(
            f"the pod names its node {spec['nodeName']}, so gpushare's scheduler gives it no GPU ({asked.said})",
            hint="write nodeSelector in place of nodeName",
        )
    container, at = spec[kind][index], f"/spec/{kind}/{index}"
    return [
        _annotations(pod, asked, share),
        _added("/spec/volumes", _volumes(gate), spec.get("volumes")),
        _added(f"{at}/volumeMounts", _mounts(), container.get("volumeMounts")),
        _added(f"{at}/env", _env(gate), container.get("env")),
        *(
            step
            for other in ("containers", "initContainers")
            for place, one in enumerate(spec.get(other) or ())
            if (other, place) != asked.container
            for step in _without(f"/spec/{other}/{place}", one)
        ),
    ]


def patch_of_added(pod: Mapping[str, Any], before: Any) -> list[dict[str, Any]]:
    """Of containers that come to a pod which runs. `before`: the pod without them."""
    if not fields.named(pod, "annotations", CLAIM):
        return []
    known = {one.get("name") for one in fields.objects(before, f"spec/{ADDED}")}
    return [
        step
        for place, one in enumerate(fields.objects(pod, f"spec/{ADDED}"))
        if one.get("name") not in known
        for step in _without(f"/spec/{ADDED}/{place}", one)
    ]


def _without(at: str, container: Mapping[str, Any]) -> list[dict[str, Any]]:
    """It has no GPU, and cannot write where daemon and library are: the volumes are its pod's."""
    mounts = fields.objects(container, "volumeMounts")
    kept = [one for one in mounts if one.get("name") not in VOLUMES]
    mine = [{"op": "add", "path": f"{at}/volumeMounts", "value": kept}] if kept != mounts else []
    return [_added(f"{at}/env", NO_GPU, container.get("env")), *mine]


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
