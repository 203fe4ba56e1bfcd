"""Events: what a pod's user is told by `kubectl describe pod`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

__all__ = ["EVENTS", "now", "of_pod"]

EVENTS = "/api/v1/namespaces/{}/events"
SOURCE = "gpushare"


def now() -> str:
    """As the API server writes times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def of_pod(meta: Mapping[str, Any], reason: str, text: str, at: str, kind: str = "Normal") -> dict[str, Any]:
    """`meta`: the pod's. `kind`: Normal or Warning."""
    pod = {name: meta[name] for name in ("namespace", "name", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{meta['name'][:200]}.", "namespace": meta["namespace"]},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", **pod},
        "reason": reason,
        "message": text,
        "type": kind,
        "source": {"component": SOURCE},
        "reportingComponent": SOURCE,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
