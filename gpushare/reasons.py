"""Reasons: why something was refused, taken or changed. Data first, text last.

The node daemon decides with a Reason. The same object becomes the line on a terminal, the `error` of the HTTP API, the
text in a frame to the library and the record behind `gpushare explain`, so all of them say the same. A message has
one line that says what happened, facts in aligned pairs, and a `hint:` that says what to do.

A Reason may name other users' jobs. It keeps such a name as a Mention until it knows its reader
(gpushared/core/visibility.py). The result, a Told, has only plain text. Only a Told can be shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpushare.printable import one_line


class Code(StrEnum):
    """The kind of reason. Stable: scripts read it in JSON."""

    OVER_LIMIT = "over_limit"
    """Above the job's limit, whatever is free."""
    NOT_FREE = "not_free"
    """Above the job's request, and nothing can be lent now."""
    CLAIM_TIMED_OUT = "claim_timed_out"
    """Within the request, but it could not be freed in time: a guarantee violation."""
    NOT_ADMITTED = "not_admitted"
    """The requests of other jobs leave no room for this one's."""
    TOO_LARGE = "too_large"
    """No GPU of this node is that large."""
    NO_SUCH_GPU = "no_such_gpu"
    GPU_UNHEALTHY = "gpu_unhealthy"
    """The GPU is sick or lost: it takes no jobs and lends nothing."""
    NO_SUCH_JOB = "no_such_job"
    BAD_BUDGET = "bad_budget"
    """request > limit, or an amount that makes no sense."""
    POLICY = "policy"
    """The administrator's policy does not allow it to this user."""
    DRIVER_FAILED = "driver_failed"
    """By the account and by NVML there is room, but the driver says out-of-memory."""
    RECLAIM = "reclaim"
    """The owner wants borrowed memory back."""
    BREACH = "breach"
    """Overuse: the job uses memory past its account, more than its limit."""
    CLAIM_WAITS = "claim_waits"
    """Within the request, and it waits: borrowers have the memory, or it is coming back."""
    BUDGET_CHANGED = "budget_changed"
    """The job's user or an administrator stopped it."""
    SUSPENDED = "suspended"
    """The job's memory goes to host memory: an owner wants it, or the job's user."""
    NOT_SUSPENDED = "not_suspended"
    """The job cannot be suspended, or is not."""
    SUSPEND_STUCK = "suspend_stuck"
    """A suspended job could not be brought back, and ends."""
    RESUMED = "resumed"
    """A suspended job runs again."""
    HOOK = "hook"
    """The job's hook has given memory back."""
    HOOK_FAILED = "hook_failed"
    """A hook of the job has failed, or has given nothing back."""
    IDLE = "idle"
    """The job has not computed for long, and gives back what it does not use."""
    AWAKE = "awake"
    """The resume hook of the job has ended: its memory is there again."""
    NO_TURNS = "no_turns"
    """The turns in computing that the job asks for cannot be had here."""
    WAIT_OVER = "wait_over"
    """No room within the time of --wait."""


@dataclass(slots=True)  # not frozen: that would take three times as long, and a refusal may name many
class Mention:
    """A user's job (or the like) that a text names, with its name for each kind of reader."""

    uid: int
    own: str
    """For this user and for administrators."""
    by_name: str | None
    """For readers who may see names of jobs; the next for readers who may see users. None: withheld."""
    by_user: str | None
    by_none: str | None


@dataclass(frozen=True, slots=True)
class Text:
    """A text with mentions. Not a string, so that it cannot be shown by accident: an f-string refuses it."""

    parts: tuple[str | Mention, ...]

    def __str__(self) -> str:
        raise TypeError("a Text needs a reader: use Viewer.words()")

    def __format__(self, _: str) -> str:
        return str(self)


Words = str | Text


def words(*parts: Words | Mention) -> Words:
    """The parts joined; a plain string if there is no mention."""
    flat: list[str | Mention] = []
    for part in parts:
        if isinstance(part, Text):
            flat += part.parts
        else:
            flat.append(part)
    plain = [part for part in flat if isinstance(part, str)]
    return "".join(plain) if len(plain) == len(flat) else Text(tuple(flat))


def joined(separator: str, items: Iterable[Words | Mention]) -> Words:
    """Like str.join, for texts with mentions."""
    parts: list[Words | Mention] = []
    for item in items:
        parts += (separator, item)
    return words(*parts[1:])


@dataclass(frozen=True, slots=True)
class Reason:
    """code and data for programs; message, facts and hint for people. Its reader is not known yet."""

    code: Code
    message: Words
    """One line, no full stop."""
    facts: tuple[tuple[Words, Words], ...] = ()
    """(label, text) pairs, in order."""
    hint: Words | None = None
    data: Mapping[str, object] = field(default_factory=dict)
    """The numbers, in bytes and seconds, by stable names. Names of jobs are Mentions here, too."""


@dataclass(frozen=True, slots=True)
class Told:
    """A Reason as one reader may see it."""

    code: Code
    message: str
    facts: tuple[tuple[str, str], ...] = ()
    hint: str | None = None
    data: Mapping[str, object] = field(default_factory=dict)

    def render(self) -> str:
        """The whole message, several lines, without the leading `gpushare: `."""
        lines = [self.message]
        width = max((len(label) for label, _ in self.facts), default=0)
        lines += [f"  {label:<{width}}  {text}" for label, text in self.facts]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(map(one_line, lines))
