"""Reasons: why something was refused, taken or changed, as data first and as a sentence last.

The node daemon decides with a Reason; the same object becomes the line on a user's terminal, the `error` of
the HTTP API, the text in a frame to the shim and the record behind `gpushare explain`, so that all of them say
the same. The shape of a message is fixed: one line what happened, in the user's terms; facts in aligned pairs;
then a `hint:` with the way out.

A Reason may speak of jobs that are not its reader's. Whom it names stays data in it, as a Mention, until it is told
to somebody (gpushared/core/visibility.py): what comes out, a Told, has plain text only, and nothing else can be
rendered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpushare.printable import one_line


class Code(StrEnum):
    """What kind of reason it is. Stable: scripts read it in JSON."""

    OVER_LIMIT = "over_limit"
    """The job's limit: more would not be granted whatever is free."""
    NOT_FREE = "not_free"
    """Above the job's request, and not to be lent now."""
    CLAIM_TIMED_OUT = "claim_timed_out"
    """Within the request, but it could not be freed in time: a guarantee violation."""
    NOT_ADMITTED = "not_admitted"
    """The requests of other jobs leave no room for this one's."""
    TOO_LARGE = "too_large"
    """No GPU of this node is that large."""
    NO_SUCH_GPU = "no_such_gpu"
    GPU_UNHEALTHY = "gpu_unhealthy"
    """The GPU is sick or lost: nothing is admitted on it, and nothing lent."""
    NO_SUCH_JOB = "no_such_job"
    BAD_BUDGET = "bad_budget"
    """request > limit, or an amount that makes no sense."""
    POLICY = "policy"
    """The administrator's settings do not allow it to this user."""
    DRIVER_FAILED = "driver_failed"
    """There is room by the account and by NVML, and the driver still says out-of-memory."""
    RECLAIM = "reclaim"
    """Borrowed memory is wanted back by its owner."""
    BREACH = "breach"
    """The job uses memory past its account, more than its limit."""
    CLAIM_WAITS = "claim_waits"
    """Within the request, and waited for: borrowers have it, or it is on its way back."""
    BUDGET_CHANGED = "budget_changed"
    """Of a running job, by its user or an administrator."""
    WAIT_OVER = "wait_over"
    """No room within the time that was given with --wait."""


@dataclass(slots=True)  # not frozen: that takes three times as long, and a refusal may name many
class Mention:
    """Something of a user's that is named in a text: how it is called for each kind of reader."""

    uid: int
    own: str
    """For this user and for administrators."""
    by_name: str | None
    """For others where names of jobs may be seen; and so on. None: a value in `data` that is withheld."""
    by_user: str | None
    by_none: str | None


@dataclass(frozen=True, slots=True)
class Text:
    """A text with mentions. It is no string, so that it cannot become one by accident: an f-string refuses it."""

    parts: tuple[str | Mention, ...]

    def __str__(self) -> str:
        raise TypeError("a Text has to be told to somebody: Viewer.words()")

    def __format__(self, _: str) -> str:
        return str(self)


Words = str | Text


def words(*parts: Words | Mention) -> Words:
    """The parts, one after the other; a plain string if nobody is mentioned."""
    flat: list[str | Mention] = []
    for part in parts:
        if isinstance(part, Text):
            flat += part.parts
        else:
            flat.append(part)
    plain = [part for part in flat if isinstance(part, str)]
    return "".join(plain) if len(plain) == len(flat) else Text(tuple(flat))


def joined(separator: str, items: Iterable[Words | Mention]) -> Words:
    """As str.join."""
    parts: list[Words | Mention] = []
    for item in items:
        parts += (separator, item)
    return words(*parts[1:])


@dataclass(frozen=True, slots=True)
class Reason:
    """code and data for programs; message, facts and hint for people. Not yet told to anybody."""

    code: Code
    message: Words
    """One line, no full stop."""
    facts: tuple[tuple[Words, Words], ...] = ()
    """(label, text) pairs, in order."""
    hint: Words | None = None
    data: Mapping[str, object] = field(default_factory=dict)
    """The numbers, in bytes and seconds, by stable names. A name of somebody's is a Mention here, too."""


@dataclass(frozen=True, slots=True)
class Told:
    """A Reason as one reader may have it."""

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
