"""Known names that are close to a typed one, for the hints of all messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable

__all__ = ["did_you_mean", "nearest", "what_there_is"]

ALIKE = 0.6
"""The least similarity of two names, 0 to 1, as difflib counts it."""
MOST = 3
MOST_OF_ALL = 8


def nearest(word: str, known: Iterable[str], *, alike: float = ALIKE) -> list[str]:
    """At most three known names, the closest first. Names that begin with the word come first."""
    from difflib import get_close_matches  # imported late: 5 ms, and only needed after a mistake

    names = {name.lower(): name for name in known}
    typed = word.lower()
    begun = [lower for lower in names if len(typed) > 1 and lower.startswith(typed)]
    close = get_close_matches(typed, names, n=MOST, cutoff=alike)
    return [names[lower] for lower in dict.fromkeys([*begun, *close])][:MOST]


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """`did you mean a, b or c?`, or None if nothing is close."""
    *others, last = nearest(word, known) or [""]
    if not last:
        return None
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"


def what_there_is(word: str, known: Collection[str]) -> str:
    """The hint where something is named that is not there: what is close to the word, else the first of all."""
    all_of_them = f"there are: {', '.join(list(known)[:MOST_OF_ALL])}" if known else "there is none yet"
    return did_you_mean(word, known) or all_of_them
