"""Events and actions as JSON: for the log on disk, and for `-o json`.

Events are read back, so cattrs makes both directions from the very types; values equal to their default are left out,
unknown fields are refused. Actions are only written: their reasons carry the sentence beside the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, get_origin

import cattrs
from cattrs.strategies import configure_tagged_union

from gpushare.cluster.model import Action, Event, Policy, Reason

__all__ = ["decode_events", "decode_policy", "encode_actions", "encode_events", "encode_policy", "plain"]


@cache
def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(omit_if_default=True, forbid_extra_keys=True)
    # A set has no order, and equal events are to give equal text.
    converter.register_unstructure_hook_func(lambda kind: get_origin(kind) is frozenset, sorted)
    configure_tagged_union(Event, converter, tag_name="event")
    return converter


def encode_events(events: Sequence[Event]) -> str:
    return _text(_converter().unstructure(list(events), list[Event]))


def decode_events(text: str) -> list[Event]:
    return _converter().structure(json.loads(text), list[Event])


def encode_policy(policy: Policy) -> str:
    return _text(_converter().unstructure(policy, Policy))


def decode_policy(text: str) -> Policy:
    return _converter().structure(json.loads(text), Policy)


def encode_actions(actions: Sequence[Action]) -> str:
    return _text([plain(action) for action in actions])


def plain(value: Any) -> Any:
    """A noun of the model as dicts, lists, strings and numbers, with all its fields."""
    match value:
        case Reason():
            return {"code": value.code.value, "message": value.message, "data": plain(value.data)}
        case Enum():
            return value.value
        case Mapping():
            return {str(key): plain(one) for key, one in value.items()}
        case frozenset() | set():
            return sorted(plain(one) for one in value)
        case list() | tuple() if not hasattr(value, "_asdict"):
            return [plain(one) for one in value]
        case tuple():
            named = {key: plain(one) for key, one in value._asdict().items()}  # type: ignore[attr-defined]
            kind = type(value).__name__.lower()
            return {"action": kind, **named} if isinstance(value, Action) else named
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
        case _:
            return value


def _text(tree: Any) -> str:
    return json.dumps(tree, separators=(",", ":"), sort_keys=True)
