"""Why the daemon has ended a job, in words: one table for all who tell it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpushare.api import Killed
from gpushare.quantity import format_bytes
from gpushare.reasons import Code

__all__ = ["Cause", "cause", "owner", "stopped"]


class Cause(NamedTuple):
    """Of one code."""

    ending: str
    """How the job has ended, in a word or two."""
    said: str
    """What follows "stopped"."""
    brief: Callable[[Killed], str]
    """The same for a column of a table, with an amount."""
    owes: bool = False
    """An owner wanted memory back; else the job itself is the reason, and `Killed.reason` has its numbers."""
    again: bool = True
    """Whether it may do better when it is started once more: a scheduler does that."""


def owner(killed: Killed) -> str:
    """The owner of the memory, as far as this user may know it."""
    name, user = killed["owner"], killed["owner_user"]
    return f"{name} ({user})" if name and user else name or user or "its owner"


CAUSES = {
    Code.RECLAIM: Cause(
        "reclaimed",
        " to return borrowed memory",
        lambda killed: f"{format_bytes(killed['asked'])} owed to {owner(killed)}",
        owes=True,
    ),
    Code.BREACH: Cause(
        "over limit",
        ": it used more memory than its limit",
        lambda killed: f"used {format_bytes(killed['usage'])}",
        again=False,
    ),
    Code.SUSPEND_STUCK: Cause(
        "stuck", ": it could not be brought back after a suspension", lambda _: "could not be brought back"
    ),
}


def cause(code: object) -> Cause:
    """A code of a later version, or none, counts as a reclaim: by far the most frequent."""
    return next((one for known, one in CAUSES.items() if known == code), CAUSES[Code.RECLAIM])


def stopped(killed: Killed, how: str = "") -> str:
    """In one line. `how` follows the word "stopped": where, when or after what time."""
    why = cause(killed["code"])
    return f"stopped{how}{why.said}" + (f": {why.brief(killed)}" if why.owes else "")
