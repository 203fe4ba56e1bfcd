"""What the engine keeps in the job's own record, its Comment: where it is to run, in which attempt, and why it waits.

    gpushare {"why": "...", "attempt": 3, "place": [["n2", [1], 21474836480, 68719476736]], ...}

There is no other place for it, so a service that starts again finds everything. The Prolog of the node reads the same
text. Users cannot change it: gpushare_submit.lua refuses that, but for `held`, which it writes for them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Mark", "Spot", "read"]

FIRST = "gpushare "
HELD = "held "
LONGEST_WHY = 1000


class Spot(NamedTuple):
    """Where one task of the job runs."""

    node: str
    gpus: tuple[int, ...]
    request: int
    """Bytes of each of these GPUs."""
    limit: int


@dataclass(frozen=True, slots=True)
class Mark:
    held: bool = False
    """Its user does not want it to start yet."""
    attempt: int = 0
    """The last that was started."""
    place: tuple[Spot, ...] = ()
    """In the order of the job's tasks; empty: it never ran."""
    priority: int = 0
    """Of the node's job: higher ones are stopped later."""
    rung: int = 0
    restarts: int = 0
    """How often Slurm had started the job when this was decided. A larger number: this start is over."""
    stop: bool = False
    """It was told to stop."""
    stopped: str = ""
    """Why its node has stopped it."""
    failed: str = ""
    """Why it did not start there."""
    blame: str = ""
    """The node that is to blame for that."""
    evictions: int = 0
    token: tuple[int, int] = (0, 0)
    """The newest command that was obeyed."""
    why: str = ""
    """Why it waits, for people."""
    theirs: str = ""
    """What the user's own comment was."""

    def text(self) -> str:
        said = {"why": "", "stopped": "", **{name: getattr(self, name) for name in KEPT}}  # people read the first words
        said["why"] = self.why[:LONGEST_WHY]
        kept = {name: value for name, value in said.items() if value != _DEFAULTS[name]}
        return FIRST + (HELD if self.held else "") + json.dumps(kept)


KEPT = tuple(name for name in Mark.__slots__ if name != "held")
_EMPTY = Mark()
_DEFAULTS = {name: getattr(_EMPTY, name) for name in KEPT}


def read(comment: str) -> Mark:
    """Of a comment that is not ours, one that says nothing."""
    try:
        return _mark(comment)
    except (TypeError, ValueError, AttributeError, KeyError):
        return Mark(theirs=comment)


def _mark(comment: str) -> Mark:
    if not comment.startswith(FIRST):
        return Mark(theirs=comment)
    text = comment.removeprefix(FIRST)
    held = text.startswith(HELD)
    said: dict[str, Any] = json.loads(text.removeprefix(HELD))
    known = {name: type(_DEFAULTS[name])(value) for name, value in said.items() if name in _DEFAULTS}
    known["place"] = tuple(_spot(one) for one in said.get("place", ()))
    return Mark(held=held, **known)


def _spot(said: Sequence[Any]) -> Spot:
    node, gpus, request, limit = said
    return Spot(str(node), tuple(int(gpu) for gpu in gpus), int(request), int(limit))
