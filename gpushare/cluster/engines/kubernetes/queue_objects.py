"""Queues as objects of the API server: what an administrator says of each, and what it is told. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpushare.cluster import spec_parser
from gpushare.cluster.engines.kubernetes import queue_users
from gpushare.cluster.engines.kubernetes.names import Thing
from gpushare.cluster.engines.seam import QueueTold
from gpushare.cluster.model import Queue
from gpushare.cluster.quantity import format_gpus
from gpushare.cluster.yaml_source import parse_line
from gpushare.errors import UsageError
from gpushare.kubernetes.webhook import limits

__all__ = ["ACCEPTED", "COUNTS", "KNOWN", "read", "status"]

FIELDS = {
    "parent": "parent",
    "quota": "quota",
    "limit": "limit",
    "weight": "weight",
    "priority": "priority",
    "minRunTime": "min_runtime",
    "defaultLimit": "default_limit",
    "maxLimit": "max_limit",
}
"""Of `spec`, and how spec_parser.py calls them."""
KNOWN = tuple(dict.fromkeys((*FIELDS, *limits.FIELDS, *queue_users.FIELDS)))
"""All fields of `spec`. The allocator does not know `interactiveLimit`, nor namespaces."""
ACCEPTED = "Accepted"
COUNTS = "what it says counts"


def read(thing: Thing) -> Queue | str:
    """A text says what is wrong with it."""
    name = thing["metadata"]["name"]
    try:
        spec = dict(thing.get("spec") or {})
        unknown = sorted(set(spec) - set(KNOWN))
        if unknown:
            return f"spec has no field {unknown[0]!r}: there are {', '.join(KNOWN)}"
        limits.read(spec, name)
        queue_users.check(spec)
        said = {FIELDS[key]: value for key, value in spec.items() if key in FIELDS}
        ((queue, _),) = spec_parser.said_of_queues(parse_line(json.dumps({"name": name, **said}), f"queue {name}", 0))
    except UsageError as error:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    except (TypeError, ValueError, AttributeError) as error:
        return f"spec cannot be read: {error}"
    return queue


def status(thing: Thing, told: QueueTold, now: str) -> dict[str, Any] | None:
    """What its status is to be. None: it is so already."""
    found = thing.get("status") or {}
    said: dict[str, Any] = {
        "held": format_gpus(told.held),
        "share": format_gpus(told.share),
        "waiting": told.waiting,
        "running": told.running,
    }
    condition = {
        "type": ACCEPTED,
        "status": "False" if told.wrong else "True",
        "reason": "Refused" if told.wrong else "Taken",
        "message": told.wrong or COUNTS,
    }
    known: Mapping[str, Any] = next((one for one in found.get("conditions") or () if one["type"] == ACCEPTED), {})
    same = all(known.get(name, "") == value for name, value in condition.items())
    if same and all(found.get(name) == value for name, value in said.items()):
        return None
    turned = known.get("lastTransitionTime") if known.get("status") == condition["status"] else None
    return {**said, "conditions": [{**condition, "lastTransitionTime": turned or now}]}
