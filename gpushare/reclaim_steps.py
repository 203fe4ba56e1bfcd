"""The steps by which borrowed memory is asked back, and how users write them: `--on-reclaim trim,kill`."""

from __future__ import annotations

from enum import StrEnum

from gpushare.errors import UsageError

__all__ = ["JOB_STEPS", "ReclaimStep", "parse_steps"]


class ReclaimStep(StrEnum):
    """Its text is its name in settings, in the API, in files and in metrics. Gentler steps compare as less."""

    REVOKE = "revoke"
    """Unused credit, by a compare-and-swap."""
    TRIM = "trim"
    """What allocators keep and do not use, by the program itself."""
    TERM = "term"
    """SIGTERM, and a grace."""
    KILL = "kill"
    """SIGKILL."""

    def __lt__(self, other: str) -> bool:
        return _position(self) < _position(other)

    def __le__(self, other: str) -> bool:
        return _position(self) <= _position(other)

    def __gt__(self, other: str) -> bool:
        return _position(self) > _position(other)

    def __ge__(self, other: str) -> bool:
        return _position(self) >= _position(other)


_ORDER = tuple(ReclaimStep)
JOB_STEPS = _ORDER[1:]
"""What a job chooses from: all but the revoke, which costs it nothing."""


def _position(step: str) -> int:
    return _ORDER.index(ReclaimStep(step))


def parse_steps(text: str) -> tuple[ReclaimStep, ...]:
    """Names separated by commas, gentlest first. Kill is always the last, said or not. Raises UsageError."""
    words = [word.strip().lower() for word in text.split(",")]
    unknown = [word for word in words if word not in JOB_STEPS]
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is no way to ask memory back",
            code="bad_rungs",
            facts=[
                ("trim", "ask the program's allocators for what they only keep"),
                ("term", "SIGTERM, and the job's grace"),
                ("kill", "SIGKILL; always the last"),
            ],
            hint=f"the default is {','.join(JOB_STEPS)}; leave out what the job does not want",
        )
    if sorted(words, key=_position) != words or len(set(words)) != len(words):
        raise UsageError(
            f"{text!r} is not in the order of the ladder",
            code="bad_rungs",
            hint=f"gentlest first: {','.join(JOB_STEPS)}",
        )
    return tuple(step for step in JOB_STEPS if step in words or step is ReclaimStep.KILL)
