"""Fields of objects that others have written. What is of another type than it should be counts as absent. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["json_object", "named", "number", "objects", "part", "text", "texts"]

Thing = Mapping[str, Any]


def _at(thing: object, path: str) -> object:
    for name in path.split("/"):
        thing = thing.get(name) if isinstance(thing, Mapping) else None
    return thing


def part(thing: object, path: str) -> Thing:
    """An object in it; empty if there is none. `path`: as in "status/allocation"."""
    found = _at(thing, path)
    return found if isinstance(found, Mapping) else {}


def objects(thing: object, path: str) -> list[Thing]:
    """Of a list, what is an object."""
    found = _at(thing, path)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def text(thing: object, path: str) -> str:
    """A number counts, too."""
    found = _at(thing, path)
    return str(found) if isinstance(found, str | int | float) and not isinstance(found, bool) else ""


def texts(thing: object, path: str) -> list[str]:
    found = _at(thing, path)
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def named(thing: object, what: str, name: str) -> str:
    """One of its labels or annotations; "" if it has none."""
    found = part(thing, f"metadata/{what}").get(name)
    return found if isinstance(found, str) else ""


def number(thing: object, path: str) -> int:
    found = _at(thing, path)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def json_object(text: str) -> dict[str, Any] | None:
    """None: the text is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
