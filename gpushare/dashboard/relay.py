"""The calls that a page may make of the daemon's API, and of the cluster's service. All others are refused here,
before they reach it.

Pages name jobs and reservations by id, so that no user's text becomes part of a path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.dashboard.access import Refusal

__all__ = ["CALLS", "CLUSTER_CALLS", "MOST_OF_A_BODY", "Call", "allowed", "body_for"]

MOST_OF_A_BODY = 4096
"""Bytes."""
ID = "[0-9a-f]{16}"
UUID = r"[0-9A-Za-z-]{1,64}"
NUMBER = r"\d{1,12}(\.\d{1,3})?"


@dataclass(frozen=True, slots=True)
class Call:
    """One line of the list."""

    method: str
    path: str
    """A regular expression for the whole path."""
    query: Mapping[str, str] | None = None
    """Names, and a regular expression for each value."""
    fields: Mapping[str, type] | None = None
    """What the body may have; None: there is no body."""

    @property
    def writes(self) -> bool:
        return self.method != "GET"


CALLS = (
    Call("GET", "/v1/version"),
    Call("GET", "/v1/explain"),
    Call("GET", "/v1/events", {"since": NUMBER}),
    Call("GET", "/v1/history", {"since": NUMBER, "until": NUMBER, "step": NUMBER, "job": ID, "gpu": UUID}),
    Call("GET", "/v1/jobs", {"ended": "1"}),
    Call("GET", f"/v1/jobs/{ID}"),
    Call("GET", f"/v1/jobs/{ID}/story"),
    Call(
        "PATCH",
        f"/v1/jobs/{ID}",
        fields={"request": str, "limit": str, "priority": int, "dry_run": bool},
    ),
    Call("POST", f"/v1/jobs/{ID}/stop", fields={"now": bool}),
    Call("DELETE", f"/v1/reservations/{ID}"),
)
CLUSTER_ID = r"\d{1,18}(_\d{1,9})?"
CLUSTER_CALLS = (
    Call("GET", "/v1/version"),
    Call("GET", "/v1/events", {"from": NUMBER}),
    Call("GET", "/v1/history", {"since": NUMBER, "until": NUMBER, "step": NUMBER}),
    Call("GET", f"/v1/jobs/{CLUSTER_ID}/explain"),
    Call("DELETE", f"/v1/jobs/{CLUSTER_ID}", {"dry_run": "1"}),
    Call("POST", f"/v1/jobs/{CLUSTER_ID}/hold", fields={}),
    Call("POST", f"/v1/jobs/{CLUSTER_ID}/release", fields={}),
    Call("POST", "/v1/changes", fields={"events": list, "dry_run": bool}),
)


def allowed(
    method: str, path: str, query: Mapping[str, str], *, read_only: bool, calls: tuple[Call, ...] = CALLS
) -> Call:
    """The entry of the list that this request fits. Refusal if there is none, or if it writes and may not."""
    for call in calls:
        if call.method != method or not re.fullmatch(call.path, path, re.ASCII):
            continue
        known = call.query or {}
        if not all(name in known and re.fullmatch(known[name], value, re.ASCII) for name, value in query.items()):
            raise Refusal(400, "bad_query", "the dashboard does not ask this with such a query")
        if call.writes and read_only:
            raise Refusal(403, "read_only", "this dashboard was started with --read-only")
        return call
    raise Refusal(404, "not_offered", "the dashboard offers no such call")


def body_for(call: Call, text: bytes) -> bytes | None:
    """The body to pass on: known fields of the right type, written again by us. Refusal for all else."""
    if call.fields is None:
        if text:
            raise Refusal(400, "bad_body", "this call has no body")
        return None
    try:
        value: Any = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        raise Refusal(400, "bad_body", "the body is not JSON") from None
    right = isinstance(value, dict) and all(type(one) is call.fields.get(name) for name, one in value.items())
    if not right:
        raise Refusal(400, "bad_body", f"the body may have {', '.join(call.fields)}")
    return json.dumps(value).encode()
