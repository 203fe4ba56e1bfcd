"""Events, actions and states as JSON: for the log on disk, and for `-o json`.

Events and states are read back, so cattrs makes both directions from the very types; values equal to their default are
left out, unknown fields are refused. Actions are only written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_args, get_origin

import cattrs
from cattrs.strategies import configure_tagged_union

from gpushare.cluster.model import Action, Code, Event, Place, Reason

__all__ = [
    "decode",
    "decode_events",
    "encode",
    "encode_actions",
    "encode_events",
    "plain",
    "read_action",
    "read_reason",
]

Noun = TypeVar("Noun")

SETS: tuple[object, ...] = (frozenset,)


@cache
def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(omit_if_default=True, forbid_extra_keys=True)
    # A set has no order, and equal events are to give equal text.
    converter.register_unstructure_hook_func(lambda kind: get_origin(kind) in SETS, sorted)
    # cattrs does not resolve the annotations of a NamedTuple.
    converter.register_structure_hook(Place, _place)
    converter.register_unstructure_hook(Reason, lambda reason: [reason.code.value, dict(reason.data)])
    converter.register_structure_hook(Reason, _reason)
    configure_tagged_union(Event, converter, tag_name="event")
    return converter


def _place(value: Any, _: type[Place]) -> Place:
    group, task, node, gpus, amount, charge = value
    return Place(group, task, node, tuple(gpus), amount, charge)


def _reason(value: Any, _: type[Reason]) -> Reason:
    code, data = value
    return Reason(Code(code), {key: tuple(one) if isinstance(one, list) else one for key, one in data.items()})


def encode(value: Noun, kind: type[Noun]) -> str:
    return _text(_converter().unstructure(value, kind))


def decode(text: str, kind: type[Noun]) -> Noun:
    return _converter().structure(json.loads(text), kind)


def encode_events(events: Sequence[Event]) -> str:
    return _text(_converter().unstructure(list(events), list[Event]))


def decode_events(text: str) -> list[Event]:
    return _converter().structure(json.loads(text), list[Event])


def encode_actions(actions: Sequence[Action]) -> str:
    """What was decided, with the code of the reason alone: a better sentence is no other decision."""
    return _text([_decided(action) for action in actions])


def _decided(action: Action) -> list[Any]:
    values = (value.code.value if isinstance(value, Reason) else value for value in action)
    return [type(action).__name__.lower(), *values]


ACTIONS = {kind.__name__.lower(): kind for kind in get_args(Action)}


def read_action(value: Mapping[str, Any]) -> Action:
    """What plain() has made of an action."""
    kind = ACTIONS[value["action"]]
    action: Action = kind(**{key: _field(key, one) for key, one in value.items() if key != "action"})
    return action


def read_reason(value: Mapping[str, Any]) -> Reason:
    """What plain() has made of a reason."""
    return _reason([value["code"], value["data"]], Reason)


def _field(key: str, value: Any) -> Any:
    if key == "reason":
        return read_reason(value)
    if key in ("places", "to"):
        return tuple(Place(**{**place, "gpus": tuple(place["gpus"])}) for place in value)
    return value


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
