"""Pods with annotations, and the cluster that they come to: two nodes of GPUs of 80 GiB, one of 24 GiB."""

from __future__ import annotations

import copy
from typing import Any

from claims import GIB, gpu

from gpushare.kubernetes.slices import resource_slice
from gpushare.kubernetes.webhook.review import Cluster

__all__ = ["BIG", "SIZES", "Cluster", "cluster", "patched", "pod", "variable"]

SIZES = {"big-1": 80, "big-2": 79, "small": 24}
BIG = {"size": "big"}


def pod(annotations: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """It may run on the big nodes, unless a test says otherwise."""
    labels, env = more.pop("labels", {}), more.pop("env", None)
    container = {"name": "main", "image": "x", **({"env": env} if env is not None else {})}
    spec = {"nodeSelector": dict(BIG), "restartPolicy": "Always", "containers": [container], **more}
    return {"metadata": {"name": "notebook", "annotations": dict(annotations or {}), "labels": labels}, "spec": spec}


def variable(value: str) -> list[dict[str, str]]:
    return [{"name": "RUNAI_GPU_MEMORY_LIMIT", "value": value}]


def cluster(queues: dict[str, dict[str, Any]] | None = None) -> Cluster:
    nodes, slices = {}, []
    for name, size in SIZES.items():
        labels = {"size": name.partition("-")[0]}
        nodes[name] = {"metadata": {"name": name, "labels": labels}, "spec": {}}
        slices.append(resource_slice(name, [gpu(capacity=size * GIB)], "sim"))
    known = (
        None if queues is None else {name: {"metadata": {"name": name}, "spec": one} for name, one in queues.items()}
    )
    return Cluster(slices, nodes, known)


def patched(one: dict[str, Any], steps: list[dict[str, Any]]) -> dict[str, Any]:
    """By RFC 6902, as far as the API server is sent it: add and replace."""
    made = copy.deepcopy(one)
    for step in steps:
        *path, last = step["path"].split("/")[1:]
        there: Any = made
        for word in path:
            there = there[int(word)] if isinstance(there, list) else there[word]
        if isinstance(there, list):
            if step["op"] == "add" and last == "-":
                there.append(step["value"])
            else:
                assert step["op"] == "replace"
                there[int(last)] = step["value"]
        else:
            assert step["op"] == "add" or last in there
            there[last] = step["value"]
    return made
