"""The errors of gpushare.

    GpushareError                    1   something failed
    ├── UsageError                   2   the command line, a variable or a file is wrong
    │   └── QuantityError            2   an amount of memory or a duration is wrong
    ├── DaemonUnreachable            3   no daemon answers, or something else answers
    ├── NotPermitted                 4   another user's job or path
    ├── NoSuchJob                    5   no job by that name
    ├── Refused                      1   the daemon refused: not admitted, does not fit, ...
    ├── NotNoted                     1   the daemon cannot write its state to disk, so it has changed nothing
    ├── CommandNotExecutable       126   the program that `run` should start cannot be executed
    └── CommandNotFound            127   the program that `run` should start does not exist

An error has a `message` (what happened, one line without a full stop), `facts` (pairs of label and value), a `hint`
(what to do) and a `code` for programs. Only gpushare/cli/__init__.py turns errors into text and an exit status. There
`run` changes every status of its own below 126 to 125, because the small numbers belong to the program that it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gpushare.printable import one_line, printable

__all__ = [
    "CommandNotExecutable",
    "CommandNotFound",
    "DaemonUnreachable",
    "Facts",
    "GpushareError",
    "NoSuchJob",
    "NotNoted",
    "NotPermitted",
    "QuantityError",
    "Refused",
    "UsageError",
    "render",
    "told_in_full",
]

Facts = Sequence[tuple[str, str]]


class GpushareError(Exception):
    code = "failed"
    exit_code = 1

    def __init__(self, message: str, *, facts: Facts = (), hint: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.facts = tuple((str(label), str(text)) for label, text in facts)
        self.hint = hint
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.facts, self.hint, self.code))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(code={self.code!r}, message={self.message!r})"

    def render(self) -> str:
        return render(self.message, self.facts, self.hint)


def _rebuild(kind: type[GpushareError], message: str, facts: Facts, hint: str | None, code: str) -> GpushareError:
    return kind(message, facts=facts, hint=hint, code=code)


class UsageError(GpushareError):
    code = "usage"
    exit_code = 2


class QuantityError(UsageError):
    code = "bad_quantity"


class DaemonUnreachable(GpushareError):
    code = "daemon_unreachable"
    exit_code = 3


class NotPermitted(GpushareError):
    code = "not_permitted"
    exit_code = 4


class NoSuchJob(GpushareError):
    code = "no_such_job"
    exit_code = 5


class Refused(GpushareError):
    code = "refused"


class NotNoted(GpushareError):
    code = "not_noted"


class CommandNotExecutable(GpushareError):
    code = "not_executable"
    exit_code = 126


class CommandNotFound(GpushareError):
    code = "not_found"
    exit_code = 127


@contextmanager
def told_in_full() -> Iterator[None]:
    """Add facts and hint as a note: Python shows only an exception's message."""
    try:
        yield
    except GpushareError as error:
        rest = error.render().partition("\n")[2].strip("\n")
        if rest:
            error.add_note(rest)
        raise


def render(message: str, facts: Facts = (), hint: str | None = None) -> str:
    """The text of a message: what happened, the facts in aligned pairs, then the hint."""
    lines = [f"gpushare: {one_line(message)}"]
    facts = [(one_line(label), printable(text)) for label, text in facts]
    width = max((len(label) for label, _ in facts), default=0)
    for label, text in facts:
        first, *more = text.split("\n")
        lines.append(f"  {label:<{width}}  {first}".rstrip())
        lines.extend(" " * (width + 4) + line for line in more)
    if hint:
        hint = printable(hint)
        lines += [f"hint: {hint}"] if facts else ["", f"hint: {hint}"]
    return "\n".join(lines)
