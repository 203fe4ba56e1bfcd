"""What one user is told of another's jobs: one rule for all channels.

    reveal = "name"   the job's name and its user
    reveal = "user"   its user
    reveal = "none"   that it is another user's

A job's id and memory are always shown, what it runs never. Users see their own jobs in full; administrators and the
daemon's log have everything.

Every text and every datum names a job with a Mention from here. views.py, which shows whole jobs, asks the same Viewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.job_spec import JobSpec
from gpushare.reasons import Mention, Reason, Text, Told, Words


@dataclass(frozen=True, slots=True)
class Viewer:
    """A user who reads, and how much of other users' jobs is shown."""

    uid: int
    reveal: str
    admin: bool = False

    def may_see(self, uid: int) -> bool:
        """Whether everything of this user is shown."""
        return self.may_see_all or self.uid == uid

    @property
    def may_see_all(self) -> bool:
        return self.admin or self.uid == 0

    def sees_name(self, uid: int) -> bool:
        return self.reveal == "name" or self.may_see(uid)

    def sees_user(self, uid: int) -> bool:
        return self.reveal != "none" or self.may_see(uid)

    # ---- texts and data ----------------------------------------------------------------------------

    def word(self, one: Mention) -> str | None:
        if self.may_see(one.uid):
            return one.own
        if self.sees_name(one.uid):
            return one.by_name
        return one.by_user if self.sees_user(one.uid) else one.by_none

    def words(self, text: Words) -> str:
        if isinstance(text, str):
            return text
        return "".join(part if isinstance(part, str) else self.word(part) or "-" for part in text.parts)

    def data(self, value: object) -> object:
        """JSON-able data, with each Mention in it as this viewer may see it."""
        if isinstance(value, Mention):
            return self.word(value)
        if isinstance(value, Text):
            return self.words(value)
        if isinstance(value, Mapping):
            return {key: self.data(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(one) for one in value]
        return value

    def facts(self, values: Mapping[str, object]) -> dict[str, object]:
        return {key: self.data(value) for key, value in values.items()}

    def told(self, reason: Reason) -> Told:
        return Told(
            reason.code,
            self.words(reason.message),
            tuple((self.words(label), self.words(text)) for label, text in reason.facts),
            None if reason.hint is None else self.words(reason.hint),
            self.facts(reason.data),
        )


MOST_SHOWN = 63
"""Letters of a name in a sentence: what programs are told has room for a few hundred bytes."""

OPERATOR = Viewer(0, "name", admin=True)
"""The reader of the daemon's log."""


# ---- mentions ---------------------------------------------------------------------------------------


def _shown(spec: JobSpec) -> str:
    return spec.name if len(spec.name) <= MOST_SHOWN else f"{spec.name[: MOST_SHOWN - 1]}…"


def name(spec: JobSpec) -> Mention:
    """A job, in a sentence that names its user elsewhere."""
    return Mention(spec.uid, _shown(spec), _shown(spec), f"a job of {spec.user}", "another user's job")


def who(spec: JobSpec) -> Mention:
    """A job and its user."""
    full = f"{_shown(spec)} ({spec.user})"
    return Mention(spec.uid, full, full, f"a job of {spec.user}", "another user's job")


def user(spec: JobSpec) -> Mention:
    return Mention(spec.uid, spec.user, spec.user, spec.user, "another user")


def reserved(spec: JobSpec) -> Mention:
    full = f"reserved as {_shown(spec)} ({spec.user})"
    return Mention(spec.uid, full, full, f"reserved by {spec.user}", "reserved by another user")


def program(uid: int, command: str, pid: int) -> Mention:
    """A process of a job. Other users do not see what it runs."""
    hidden = f"a process[{pid}]"
    return Mention(uid, f"{command or 'a process'}[{pid}]", hidden, hidden, hidden)


def bare_name(spec: JobSpec) -> Mention:
    """A job's name in data: None if it is hidden."""
    return Mention(spec.uid, spec.name, spec.name, None, None)


def bare_user(spec: JobSpec) -> Mention:
    return Mention(spec.uid, spec.user, spec.user, spec.user, None)
