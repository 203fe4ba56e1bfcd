"""Objects of the API server, as small as tests need them."""

from __future__ import annotations

from typing import Any

NODE = "n1"
GIB = 2**30
GPU = "GPU-00000000-0000-0000-0000-000000000001"
GPU2 = "GPU-00000000-0000-0000-0000-000000000002"


def gpu(uuid: str = GPU, index: int = 0, **more: Any) -> dict[str, Any]:
    health = {"state": more.pop("health", "ok"), "shortfall": 0, "ailments": []}
    return {
        "uuid": uuid,
        "index": index,
        "name": "Some GPU",
        "total": 16 * GIB,
        "capacity": 15 * GIB,
        "health": health,
        **more,
    }


def budget(source: str = "FromClaim", requests: tuple[str, ...] = (), driver: str = "gpushare.dev", **said: Any) -> Any:
    parameters = {"apiVersion": "gpushare.dev/v1", "kind": "Budget", **said}
    return {"source": source, "requests": list(requests), "opaque": {"driver": driver, "parameters": parameters}}


def result(uuid: str = GPU, memory: str | None = "8Gi", request: str = "gpu", **more: Any) -> dict[str, Any]:
    booked = {} if memory is None else {"consumedCapacity": {"memory": memory}, "shareID": "a-share"}
    return {"request": request, "driver": "gpushare.dev", "pool": NODE, "device": uuid.lower(), **booked, **more}


def claim(
    *results: dict[str, Any], uid: str = "c-1", name: str = "train", config: Any = (), pods: Any = ("p-1",)
) -> Any:
    """Allocated, and reserved for these pods."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team-a", "uid": uid},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": list(results or [result()]), "config": list(config)}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
        },
    }
