"""The ResourceClaimTemplate of a pod, and the patch that makes the pod name it. Pure.

A template's name is a hash of what it says: pods that ask for the same have the same one, and making it twice makes it
once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from gpushare.errors import UsageError
from gpushare.kubernetes.names import API, BUDGET, DRIVER, MEMORY
from gpushare.kubernetes.webhook.asked import Asked
from gpushare.kubernetes.webhook.share import Share

__all__ = ["LABEL", "LABEL_VALUE", "USED", "patch", "template"]

LABEL, LABEL_VALUE = "gpushare.dev/made-by", "webhook"
"""Of templates that the webhook has made, and may remove."""
USED = "gpushare.dev/used"
"""Annotation of these: when a pod last came that needs it."""
CLAIM = "gpushare"
"""What the pod calls its claim."""
NAME = re.compile(r"gpushare-[0-9a-f]{20}")
REQUEST = "gpu"


def template(share: Share, budget: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """`budget`: what its Budget says beside the limit."""
    exactly: dict[str, Any] = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": share.count}
    if share.memory is not None:
        exactly["capacity"] = {"requests": {MEMORY: share.written}}
    devices: dict[str, Any] = {"requests": [{"name": REQUEST, "exactly": exactly}]}
    if share.limit is not None or budget:
        limit = {} if share.limit is None else {"limit": share.limit}
        parameters = {"apiVersion": API, "kind": BUDGET, **limit, **budget}
        devices["config"] = [{"requests": [REQUEST], "opaque": {"driver": DRIVER, "parameters": parameters}}]
    spec = {"spec": {"devices": devices}}
    name = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:20]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"gpushare-{name}", "namespace": namespace, "labels": {LABEL: LABEL_VALUE}},
        "spec": spec,
    }


def patch(pod: Mapping[str, Any], asked: Asked, name: str) -> list[dict[str, Any]]:
    """JSON patch; nothing where the pod says all that already. `name`: of the template. Raises UsageError for a claim
    of that name that is another's."""
    spec, (kind, index) = pod["spec"], asked.container
    at = f"/spec/{kind}/{index}/resources"
    entry = {"name": CLAIM, "resourceClaimTemplateName": name}
    resources = spec[kind][index].get("resources")
    found = _of_pod(spec.get("resourceClaims"), entry)
    if resources is None:
        return [*found, {"op": "add", "path": at, "value": {"claims": [{"name": CLAIM}]}}]
    if any(one["name"] == CLAIM for one in resources.get("claims") or ()):
        return found
    return [*found, *_added(f"{at}/claims", resources.get("claims"), {"name": CLAIM})]


def _of_pod(claims: Any, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    for index, one in enumerate(claims or ()):
        if one["name"] != CLAIM:
            continue
        if not NAME.fullmatch(str(one.get("resourceClaimTemplateName"))):
            raise UsageError(f"the pod has a claim {CLAIM!r} of its own", hint="leave it out, or its annotations")
        same = dict(one) == dict(entry)
        return [] if same else [{"op": "replace", "path": f"/spec/resourceClaims/{index}", "value": entry}]
    return _added("/spec/resourceClaims", claims, entry)


def _added(path: str, there: Any, value: Mapping[str, Any]) -> list[dict[str, Any]]:
    if there is None:
        return [{"op": "add", "path": path, "value": [value]}]
    return [{"op": "add", "path": f"{path}/-", "value": value}]
