"""The calls of an API as data. A handler is marked with its call, so that there is one list of them: the server's
routes and the description of the API (docs/man/generate_api.py) are both made of the marks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web

__all__ = ["PARAMETERS", "Call", "call", "calls_of", "routes"]

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[web.StreamResponse]])

PARAMETERS: Mapping[str, str] = {
    "job": "The job's id, or its name; on a node also the beginning of the id, from four characters on.",
    "placement": "The name that the engine has given it.",
    "reservation": "The reservation's id, or its name.",
    "node": "The node's name.",
}
"""What a path names."""
MARK = "gpushare_call"


@dataclass(frozen=True, slots=True)
class Call:
    """What a route takes and answers. Types are those of JSON, TypedDicts, and nouns of the cluster's model."""

    method: str
    path: str
    answer: Any
    """The type of the answer's JSON; None: it is text."""
    statuses: tuple[int, ...] = (200,)
    """The statuses of answers that are no errors."""
    body: Any = None
    """The type of the body's JSON, a TypedDict, or its fields with their types; None: it has none."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the query, and what they mean."""
    line: Any = None
    """The type of a line of the stream that the call answers with, if `follow=1` is in the query or if it has no other
    answer; None: there is no stream."""


def call(method: str, path: str, answer: Any, **more: Any) -> Callable[[Handler], Handler]:
    """Mark a handler. What it does is the first paragraph of its docstring."""

    def mark(handler: Handler) -> Handler:
        setattr(handler, MARK, Call(method, path, answer, **more))
        return handler

    return mark


def calls_of(kind: type) -> Iterator[tuple[str, Call]]:
    """The handlers of a class, by name, and their calls, in the order in which they are written."""
    for name, member in vars(kind).items():
        found = getattr(member, MARK, None)
        if isinstance(found, Call):
            yield name, found


def routes(*of: object) -> list[web.RouteDef]:
    """The routes of these objects, for an application."""
    return [
        web.get(one.path, getattr(each, name))
        if one.method == "GET"
        else web.route(one.method, one.path, getattr(each, name))
        for each in of
        for name, one in calls_of(type(each))
    ]
