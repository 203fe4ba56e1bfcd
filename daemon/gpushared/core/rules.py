"""What this node allows each user: the [policy] tables of the settings file, and pure functions over them.

    [policy.users.NAME]      one user
    [policy.projects.NAME]   users and groups that the file puts together under a name
    [policy.groups.NAME]     the members of a Unix group
    [policy]                 everybody

For each key, use the first table in this order that covers the user and sets the key. Of several projects (or
groups) of one user, the first in the file counts. So a rule for one user is never changed by the user's groups.
`request` and `limit` are the budget of a job that sets neither. They go together: the first table that sets one of
them gives both.

A maximum is per job and per GPU. A job that asks for more is refused, with the rule's place in the file. `max` is no
amount: it means "all that I may have", and becomes the maximum. Rules apply when a job is submitted and when its user
raises something. They never change a job that is already admitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpushare.job_spec import JobSpec
from gpushare.quantity import MAX, NOTHING, Budget, Kind, Quantity, format_bytes, format_duration
from gpushare.reasons import Code, Reason

UNLIMITED = "unlimited"
PROTECTION = "minimum run time"
RAISED = "`max_min_run_time` in the settings of your daemon allows more"
DEFAULTS: Mapping[str, Any] = {
    "request": NOTHING,
    "limit": MAX,
    "max_request": None,
    "max_limit": None,
    "max_gpus": None,
    "max_jobs": None,
    "max_priority": None,
    "max_grace": None,
    "max_min_run_time": 20.0,
    "max_reservations": 16,
    "no_lend": True,
    "observe": True,
    "idle_release": None,
}
"""Every key of a policy table, and what holds where no table says anything. None: unlimited.

The minimum run time fits into the claim timeout together with trim, grace and teardown, so an owner gets memory back in
time from a job that has just begun to borrow. These defaults do not bind root, nor the user of a user's daemon; tables
do. But the minimum run time binds that user, too: what is promised to an owner does not depend on whose job it is. Root
on a node's daemon is its administrator. `idle_release` is no maximum: a job takes it with it when it is admitted, and
None is never.
"""


@dataclass(frozen=True, slots=True)
class Who:
    """A user, under all names that the file may use: user name and uid, group names and gids."""

    uid: int
    user: str
    groups: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        return frozenset((self.user, str(self.uid)))


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the file. Without users and groups it covers every user."""

    path: str
    values: Mapping[str, Any]
    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)

    def covers(self, who: Who) -> bool:
        everybody = not self.users and not self.groups
        return everybody or not self.users.isdisjoint(who.names) or not self.groups.isdisjoint(who.groups)

    @property
    def budget(self) -> Budget | None:
        """Of a job that says nothing. None: the table sets neither amount; it sets both if it sets one."""
        if "request" not in self.values and "limit" not in self.values:
            return None
        return Budget.of(self.values.get("request"), self.values.get("limit"))


class Said(NamedTuple):
    """The value of a key for a user, and where it comes from."""

    value: Any
    rule: str = ""
    """Its path, such as $.policy.groups.students.max_limit. Empty: it is the default."""
    place: str = ""
    """FILE:LINE"""


@dataclass(frozen=True, slots=True)
class Rules:
    """All tables, in the order in which they count."""

    tables: tuple[Table, ...] = ()
    file: str = field(default="", compare=False)

    def find(self, who: Who, key: str) -> Said:
        for table in self.tables:
            if key in table.values and table.covers(who):
                return Said(table.values[key], f"{table.path}.{key}", f"{self.file}:{table.lines.get(key, 1)}")
        return Said(DEFAULTS[key])

    @property
    def need_groups(self) -> bool:
        """Whether a table depends on groups of users."""
        return any(table.groups for table in self.tables)


def budget(rules: Rules, who: Who, request: Quantity | None, limit: Quantity | None) -> tuple[Budget, str]:
    """A job's budget, and the place in the file if it comes from there and not from the job.

    A job, or a table, that sets one of the two amounts sets both (Budget.of).
    """
    if request is None and limit is None:
        for table in rules.tables:
            found = table.budget
            if found is not None and table.covers(who):
                line = table.lines.get("limit") or table.lines.get("request", 1)
                return found, f"{rules.file}:{line}"
    return Budget.of(request, limit), ""


def admit(
    rules: Rules,
    who: Who,
    spec: JobSpec,
    totals: Sequence[int],
    jobs: int = 0,
    *,
    bound: bool = True,
    own: bool = False,
) -> JobSpec | Reason:
    """The job as it may be, or why it may not. `totals` are the sizes of the GPUs that it may come to use, `jobs`
    how many its user has already; `bound`: whether the defaults hold for this user; `own`: in the user's own daemon."""
    spec = within(rules, who, spec)._replace(idle_release=rules.find(who, "idle_release").value)
    over = [*_over(rules, who, spec, totals), *_too_many(rules, who, "jobs", jobs)]
    long = [one for one in over if own and one.what == PROTECTION and not one.said.rule]
    if long:
        return _reason(who, long, f"{long[0].most}: an owner's claim waits no longer; {RAISED}")
    return _permitted(who, spec, over, bound)


def reserve(
    rules: Rules, who: Who, spec: JobSpec, totals: Sequence[int], reservations: int, *, bound: bool = True
) -> JobSpec | Reason:
    """The same for a reservation: a user may reserve what the user's job may request. It has no limit."""
    over = [*_over(rules, who, spec, totals), *_too_many(rules, who, "reservations", reservations)]
    return _permitted(who, spec, over, bound)


def _permitted(who: Who, spec: JobSpec, over: Sequence[Over], bound: bool) -> JobSpec | Reason:
    over = [one for one in over if bound or one.said.rule]
    return _reason(who, over) if over else spec


def _too_many(rules: Rules, who: Who, what: str, count: int) -> list[Over]:
    most = rules.find(who, f"max_{what}")
    if most.value is None or count < most.value:
        return []
    return [Over(what, f"{count} there already", f"at most {most.value} at once", most)]


def change(rules: Rules, who: Who, old: JobSpec, new: JobSpec, totals: Sequence[int]) -> JobSpec | Reason:
    """The same for a running job that its user changes. Only what is raised is checked, so that a job that is older
    than the rule can still be made smaller."""
    new = within(rules, who, new)
    over = [one for one in _over(rules, who, new, totals) if _raised(one.what, old, new, totals)]
    return _reason(who, over) if over else new


def within(rules: Rules, who: Who, spec: JobSpec) -> JobSpec:
    """The job with `max` replaced by all that this user may have."""
    ceiling, guarantee = rules.find(who, "max_limit"), rules.find(who, "max_request")
    if spec.limit.kind is Kind.MAX and ceiling.value is not None:
        spec = spec._replace(limit=ceiling.value, limit_source=ceiling.place)
    if spec.request.kind is Kind.MAX and guarantee.value is not None:
        spec = spec._replace(request=guarantee.value, request_source=guarantee.place)
    elif spec.request.kind is Kind.MAX and ceiling.value is not None:
        spec = spec._replace(request=ceiling.value, request_source=ceiling.place)
    return spec


# ---- amounts above a maximum -----------------------------------------------------------------------


class Over(NamedTuple):
    """One thing that is above its maximum."""

    what: str
    asked: str
    most: str
    said: Said


def _over(rules: Rules, who: Who, spec: JobSpec, totals: Sequence[int]) -> list[Over]:
    ceiling = rules.find(who, "max_limit")
    found = [
        # If the request is above the maximum, so is the limit, unless the limit is `max`.
        _amount_over("request", spec.request, rules.find(who, "max_request"), totals)
        or _amount_over("request", spec.request, ceiling, totals),
        _amount_over("limit", spec.limit, ceiling, totals),
    ]
    for what, key, asked, show in (
        ("GPUs", "max_gpus", spec.gpus, str),
        ("priority", "max_priority", spec.priority, str),
        ("grace", "max_grace", spec.grace or 0.0, format_duration),
        (PROTECTION, "max_min_run_time", spec.min_run_time, format_duration),
    ):
        said = rules.find(who, key)
        if said.value is not None and asked > said.value:
            found.append(Over(what, show(asked), f"at most {show(said.value)}", said))
    keep = rules.find(who, "no_lend")
    if not keep.value and not spec.lend:
        found.append(Over("--no-lend", "asked for", "not allowed", keep))
    watch = rules.find(who, "observe")
    if not watch.value and spec.observe:
        found.append(Over("--mode observe", "asked for", "not allowed", watch))
    return [one for one in found if one is not None]


def _amount_over(what: str, asked: Quantity, said: Said, totals: Sequence[int]) -> Over | None:
    """On any of the GPUs: a share is more on a larger one."""
    most: Quantity | None = said.value
    if most is None:
        return None
    for total in totals:
        if asked.resolve(total) > most.resolve(total):
            return Over(what, _shown(asked, total), f"at most {_shown(most, total)}", said)
    return None


def _shown(amount: Quantity, total: int) -> str:
    if amount.kind is Kind.BYTES:
        return format_bytes(amount.value)
    return f"{amount} ({format_bytes(amount.resolve(total))})" if amount.kind is Kind.SHARE else str(amount)


def _raised(what: str, old: JobSpec, new: JobSpec, totals: Sequence[int]) -> bool:
    match what:
        case "request":
            return any(new.request.resolve(total) > old.request.resolve(total) for total in totals)
        case "limit":
            return any(new.limit.resolve(total) > old.limit.resolve(total) for total in totals)
        case "priority":
            return new.priority > old.priority
    return False  # nothing else of a running job can be changed


def _by(said: Said) -> str:
    return f"by {said.rule} ({said.place})" if said.rule else "the default where no rule says more"


def _reason(who: Who, over: Sequence[Over], way_out: str = "") -> Reason:
    first = over[0]
    facts = tuple((one.what, f"{one.asked}; {one.most}, {_by(one.said)}") for one in over)
    named = ", ".join(one.what for one in over)
    data = [{"what": one.what, "asked": one.asked, "rule": one.said.rule, "place": one.said.place} for one in over]
    return Reason(
        Code.POLICY,
        f"this node's settings do not allow that to {who.user}: {named}",
        facts,
        f"{first.what}: {way_out or f'{first.most}; the administrator of this node sets the rule'}",
        {"rules": data},
    )
