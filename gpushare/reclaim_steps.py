"""The reclaim steps, and how users write them: `--on-reclaim trim,kill`."""

from __future__ import annotations

from enum import StrEnum

from gpushare.errors import UsageError

__all__ = ["JOB_STEPS", "OF_THE_WRAPPER", "STEP_BITS", "USUAL_STEPS", "ReclaimStep", "parse_steps"]


class ReclaimStep(StrEnum):
    """A step. Its text is its name in settings, the API, files and metrics. Earlier steps compare as less."""

    REVOKE = "revoke"
    """The daemon takes unused credit back."""
    TRIM = "trim"
    """The program gives back what its allocators only keep."""
    HOOK = "hook"
    """A command or URL of the job's user has the program give memory back."""
    SUSPEND = "suspend"
    """The program stops, and its memory goes to host memory until there is room again."""
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
"""The steps that a job can choose: all but revoke, which costs it nothing."""
OF_THE_WRAPPER = (ReclaimStep.HOOK, ReclaimStep.SUSPEND)
"""Those that need a process of `gpushare run` beside the job."""
USUAL_STEPS = tuple(step for step in JOB_STEPS if step not in OF_THE_WRAPPER)
"""Those of a job that has not chosen."""
STEP_BITS = {
    ReclaimStep.TRIM: 1,
    ReclaimStep.TERM: 2,
    ReclaimStep.KILL: 4,
    ReclaimStep.SUSPEND: 8,
    ReclaimStep.HOOK: 16,
}
"""In frames and in the ledger (GS_STEP_* in shim/wire.h): earlier versions have written them."""


def _position(step: str) -> int:
    return _ORDER.index(ReclaimStep(step))


def parse_steps(text: str) -> tuple[ReclaimStep, ...]:
    """Names separated by commas, in their order. Kill is always added as the last. Raises UsageError."""
    words = [word.strip().lower() for word in text.split(",")]
    unknown = [word for word in words if word not in JOB_STEPS]
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is no reclaim step",
            code="bad_rungs",
            facts=[
                ("trim", "ask the program's allocators for what they only keep"),
                ("hook", "have a command or URL of yours give memory back (--relief-cmd, --relief-url)"),
                ("suspend", "stop the program, and keep its memory in host memory until there is room again"),
                ("term", "SIGTERM, and the job's grace"),
                ("kill", "SIGKILL; always the last"),
            ],
            hint=f"the default is {','.join(USUAL_STEPS)}; leave out what the job does not want",
        )
    if sorted(words, key=_position) != words or len(set(words)) != len(words):
        raise UsageError(
            f"the steps of {text!r} are not in their order",
            code="bad_rungs",
            hint=f"the order is {','.join(JOB_STEPS)}",
        )
    return tuple(step for step in JOB_STEPS if step in words or step is ReclaimStep.KILL)
