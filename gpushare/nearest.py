"""Names that are close to what was typed: the one rule by which every message here guesses."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["did_you_mean", "nearest"]

ALIKE = 0.6
"""How much of two names must agree, 0 to 1, as difflib counts it."""
MOST = 3


def nearest(word: str, known: Iterable[str], *, alike: float = ALIKE) -> list[str]:
    """At most three of the known names, the closest first. Names that begin with the word come before all others."""
    from difflib import get_close_matches  # 5 ms that only a mistake costs

    names = {name.lower(): name for name in known}
    typed = word.lower()
    begun = [lower for lower in names if len(typed) > 1 and lower.startswith(typed)]
    close = get_close_matches(typed, names, n=MOST, cutoff=alike)
    return [names[lower] for lower in dict.fromkeys([*begun, *close])][:MOST]


def did_you_mean(word: str, known: Iterable[str], *, alike: float = ALIKE) -> str | None:
    """`did you mean a, b or c?`, or None where nothing is close."""
    *others, last = nearest(word, known, alike=alike) or [""]
    if not last:
        return None
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"
