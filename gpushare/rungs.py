"""The rungs that a job lets its loan be asked back by, as users write them: `--on-reclaim trim,term,kill`."""

from __future__ import annotations

from gpushare.errors import UsageError

__all__ = ["LADDER", "parse_rungs"]

LADDER = ("trim", "term", "kill")
"""Gentlest first."""


def parse_rungs(text: str) -> tuple[str, ...]:
    """Names separated by commas, gentlest first. Kill is always the last, said or not. Raises UsageError."""
    words = [word.strip().lower() for word in text.split(",")]
    unknown = [word for word in words if word not in LADDER]
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is no way to ask memory back",
            code="bad_rungs",
            facts=[
                ("trim", "ask the program's allocators for what they only keep"),
                ("term", "SIGTERM, and the job's grace"),
                ("kill", "SIGKILL; always the last"),
            ],
            hint="the default is trim,term,kill; leave out what the job does not want",
        )
    if sorted(words, key=LADDER.index) != words or len(set(words)) != len(words):
        raise UsageError(
            f"{text!r} is not in the order of the ladder", code="bad_rungs", hint="gentlest first: trim,term,kill"
        )
    return tuple(rung for rung in LADDER if rung in words or rung == "kill")
