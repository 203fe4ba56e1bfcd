"""Reading the JSON objects that clients of the API send: every field typed, every unknown field refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from gpushare.errors import UsageError
from gpushare.job_spec import OPTIONS, JobSpec
from gpushare.quantity import Quantity
from gpushare.reclaim_steps import parse_steps
from gpushared.system.processes import printable

MAX_TEXT = 4096


class RequestBody:
    """One JSON object. Each reader takes its field out; `finish` refuses the fields that are left."""

    def __init__(self, value: object) -> None:
        if not isinstance(value, dict):
            raise _bad("the body of the request is not a JSON object")
        self._left: dict[str, Any] = dict(value)

    def text(self, name: str, *, longest: int = MAX_TEXT) -> str | None:
        value = self._left.pop(name, None)
        if value is None:
            return None
        if not isinstance(value, str) or len(value) > longest or "\0" in value:
            raise _bad(f"{name} is not a text of at most {longest} characters")
        return value

    def texts(self, name: str, *, most: int, longest: int | None = None) -> tuple[str, ...] | None:
        """If `longest` is None the texts may have any length: the caller cuts them."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > most or not all(isinstance(one, str) for one in value):
            raise _bad(f"{name} is not a list of at most {most} texts")
        if longest is not None and any(len(one) > longest for one in value):
            raise _bad(f"{name} has a text of more than {longest} characters")
        return tuple(value)

    def integer(self, name: str, least: int, most: int) -> int | None:
        value = self._left.pop(name, None)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _bad(f"{name} is not a whole number from {least} to {most}")
        return value

    def seconds(self, name: str, most: float) -> float | None:
        value = self._left.pop(name, None)
        if value is None:
            return None
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or math.isnan(value) or not 0 <= value <= most:
            raise _bad(f"{name} is not a number of seconds from 0 to {most:g}")
        return float(value)

    def share(self, name: str) -> float | None:
        value = self._left.pop(name, None)
        if value is None:
            return None
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value <= 1:
            raise _bad(f"{name} is not a part of the whole, above 0 and at most 1")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._left.pop(name, None)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise _bad(f"{name} is neither true nor false")
        return value

    def option(self, name: str) -> Any:
        """A plain option of a job, as job_spec.py declares it; its default if the body does not have it."""
        option, default = OPTIONS[name], JobSpec._field_defaults[name]
        value: Any = None
        match option.kind:
            case "integer":
                value = self.integer(name, option.least, int(option.most))
            case "seconds":
                value = self.seconds(name, option.most)
            case "share":
                value = self.share(name)
            case "flag":
                value = self.flag(name, default)
            case "text":
                value = self.text(name, longest=int(option.most))
            case "texts":
                value = self.texts(name, most=64, longest=MAX_TEXT)
            case "steps":
                text = self.text(name)
                value = None if text is None else parse_steps(text)
            case "amount":
                text = self.text(name, longest=64)
                value = None if text is None else Quantity.parse(text)
        return default if value is None else value

    def has(self, name: str) -> bool:
        return self._left.get(name) is not None

    def finish(self, kind: Any) -> None:
        """Refuse what is left. `kind` says which fields there are: a TypedDict, or their types by name."""
        if self._left:
            known = kind if isinstance(kind, Mapping) else kind.__annotations__
            name = sorted(self._left)[0]
            raise UsageError(
                f"the request has an unknown field {name[:60]!r}",
                code="unknown_field",
                hint=f"there are: {', '.join(known)}",
            )


def number(text: str, name: str, most: int) -> int:
    """A whole number from 0 in a query. int() alone fails on thousands of digits."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and int(text) <= most):
        raise _bad(f"{name}={printable(text, 20)} is not a whole number from 0 to {most}")
    return int(text)


COMMAND = 4096
"""Bytes of a job's command that are kept, as JSON. It is only shown."""


def shortened(words: Iterable[str]) -> tuple[str, ...]:
    """The beginning of a command, at most COMMAND bytes of it."""
    kept: list[str] = []
    left = COMMAND
    for word in words:
        beginning = word[:left]
        while beginning and _size(beginning) > left:  # JSON writes some characters with six or twelve bytes
            beginning = beginning[: len(beginning) // 2]
        left -= _size(beginning)
        if left < 0:
            break
        kept.append(beginning)
    return tuple(kept)


def _size(word: str) -> int:
    """Bytes as JSON, with the comma and the blank before the next word."""
    return len(json.dumps(word)) + 2


def _bad(message: str) -> UsageError:
    return UsageError(message, code="bad_request")
