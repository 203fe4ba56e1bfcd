"""Questions of the API server (AdmissionReview) and the answers. Pure but for the template, which `make` makes."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.cluster.engines.kubernetes.names import QUEUE, of_pod
from gpushare.errors import GpushareError, UsageError
from gpushare.kubernetes.claim import MALFORMED
from gpushare.kubernetes.webhook import asked as asks
from gpushare.kubernetes.webhook import carry, share, sizes
from gpushare.kubernetes.webhook import limits as of_queues
from gpushare.kubernetes.webhook.limits import Rules
from gpushare.kubernetes.webhook.template import patch, template

__all__ = ["Cluster", "answer", "claimed"]

Thing = Mapping[str, Any]
Answered = tuple[dict[str, Any] | None, list[dict[str, Any]]] | None
"""A template that is needed, or none, and a patch."""
API = "admission.k8s.io/v1"
ADDED = "ephemeralcontainers"
"""Of a pod that runs: containers to look into it."""
REFUSED, UNREADABLE, LATER = 403, 400, 503
"""Codes of refusals: 503 for what may be otherwise when the same is asked again."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is known of it, when a pod comes."""

    slices: Collection[Thing]
    nodes: Mapping[str, Thing]
    queues: Mapping[str, Thing] | None
    """None: the API server does not know the kind."""
    claims: bool = True
    """The API server has them. Else pods carry their own."""


def claimed(pod: Thing, namespace: str, cluster: Cluster, rules: Rules) -> Answered:
    """The template that it needs, if it needs one, and the patch. None: it asks for nothing. Raises UsageError."""
    try:
        asked = asks.read(pod)
        if asked is None:
            return None
        limits = of_queues.together(of_pod(pod, "labels", QUEUE), namespace, cluster.queues, rules.limits)
        said = share.of(
            asked,
            limits,
            interactive=rules.is_interactive(pod),
            gpu=lambda: sizes.smallest(pod, cluster.slices, cluster.nodes),
        )
        if not cluster.claims:
            return None, carry.patch(pod, asked, said, secrets.token_hex(16))
        made = template(said, asked.budget, namespace)
        return made, patch(pod, asked, made["metadata"]["name"])
    except (*MALFORMED, IndexError, ValueError) as error:
        raise UsageError(f"the pod cannot be read: {type(error).__name__} {error}") from None


def _added(pod: Thing, before: object, cluster: Cluster) -> Answered:
    return None if cluster.claims else (None, carry.patch_of_added(pod, before))


def answer(
    review: object, cluster: Callable[[], Cluster], rules: Rules, make: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Of one AdmissionReview. `make` makes a template that is not there; it is not called for a dry run. What these
    two raise as GpushareError is a refusal that may be otherwise later. Raises UsageError for what is no review."""
    request = review.get("request") if isinstance(review, Mapping) else None
    if not isinstance(request, Mapping) or not isinstance(request.get("uid"), str):
        raise UsageError(f"this is no AdmissionReview of {API}")
    return {"apiVersion": API, "kind": "AdmissionReview", "response": _response(request, cluster, rules, make)}


def _response(
    request: Thing, cluster: Callable[[], Cluster], rules: Rules, make: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    uid, pod, namespace = request["uid"], request.get("object"), request.get("namespace")
    if not isinstance(pod, Mapping) or not isinstance(namespace, str) or not namespace:
        return _refused(uid, UNREADABLE, "the request has no pod in a namespace")
    try:
        if request.get("subResource") == ADDED:
            found = _added(pod, request.get("oldObject"), cluster())
        else:
            found = claimed(pod, namespace, cluster(), rules)
    except UsageError as error:
        return _refused(uid, REFUSED, _sentence(error))
    except GpushareError as error:
        return _refused(uid, LATER, _sentence(error))
    if found is None:
        return {"uid": uid, "allowed": True}
    wanted, steps = found
    try:
        if wanted is not None and not request.get("dryRun"):
            make(wanted)
    except UsageError as error:
        return _refused(uid, REFUSED, _sentence(error))
    except GpushareError as error:
        return _refused(uid, LATER, _sentence(error))
    if not steps:
        return {"uid": uid, "allowed": True}
    encoded = base64.b64encode(json.dumps(steps).encode()).decode()
    return {"uid": uid, "allowed": True, "patchType": "JSONPatch", "patch": encoded}


def _refused(uid: str, code: int, message: str) -> dict[str, Any]:
    return {"uid": uid, "allowed": False, "status": {"code": code, "message": message}}


def _sentence(error: GpushareError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message
