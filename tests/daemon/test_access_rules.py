"""Who may do what: administrators, engines, users; and what becomes of a change within the rules of the settings."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.job_spec import JobSpec
from gpushare.quantity import MAX, NOTHING, Quantity
from gpushare.reasons import Code, Reason
from gpushared import config as configuration
from gpushared.core.events import BudgetChanged
from gpushared.core.model import Bounds
from gpushared.core.rules import Who
from gpushared.limits import access as access_
from gpushared.limits.access import Access
from gpushared.limits.byte_budget import bytes_of
from gpushared.limits.user_limits import UserLimits

ADA, BOB, ROOT = 70001, 70002, 0
ME = os.geteuid()
GIB = 2**30
RULES = """\
[policy]
max_limit = "8Gi"
max_priority = 5
max_reservations = 2
[policy.groups.vision]
max_limit = "12Gi"
"""


def thing(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


def amount(text: str) -> Quantity:
    return Quantity.parse(text)


def spec(uid: int = ADA, **more: Any) -> JobSpec:
    return JobSpec("train", uid, f"user{uid}", ("x",), NOTHING, amount("4Gi"))._replace(**more)


class Node:
    """GPUs x of 16 and y of 8 GiB, users in groups, and settings."""

    def __init__(self, text: str = "", *, system: bool = True, descriptors: int = 2**20, **settings: Any) -> None:
        rules = configuration.parse(text, Path("/etc/x"))["rules"] if text else configuration.Config().rules
        self.config = configuration.Config(rules=rules, **settings)
        self.groups: dict[int, frozenset[str]] = {}
        self.met: list[Any] = []
        self.core = thing(gpus={"x": thing(total=16 * GIB), "y": thing(total=8 * GIB)}, jobs={}, reservations={})
        identities = thing(
            known=lambda uid: Who(uid, f"user{uid}", self.groups.get(uid, frozenset())),
            get=self._get,
            when_known=lambda uid, then: self.met.append(("later", uid)),
        )
        limits = UserLimits(descriptors)
        self.access = Access(lambda: self.core, lambda: self.config, identities, limits, system=system)

    async def _get(self, uid: int) -> None:
        self.met.append(uid)


# ---- users ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "settings", "needed"),
    [
        ("", {}, False),
        ("[policy]\nmax_jobs = 3\n", {}, False),
        ("[policy.groups.vision]\nmax_jobs = 3\n", {}, True),
        ("", {"admin_group": "admins"}, True),
        ("", {"engine_group": "engines"}, True),
    ],
)
def test_groups_are_asked_for_where_something_depends_on_them(text, settings, needed) -> None:
    node, called = Node(text, **settings), []
    asyncio.run(node.access.meet(ADA))
    node.access.when_met(ADA, lambda: called.append("now"))
    assert node.met == ([ADA, ("later", ADA)] if needed else []) and called == ([] if needed else ["now"])


@pytest.mark.parametrize("system", [False, True])
def test_root_and_the_daemons_user_may_all_and_groups_what_the_settings_say(monkeypatch, system) -> None:
    monkeypatch.setattr(access_.os, "geteuid", lambda: ME or 70009)
    me = ME or 70009
    node = Node(system=system)
    node.groups = {ADA: frozenset({"admins", "", "engines"}), BOB: frozenset({"engines"})}
    ask = node.access
    assert [ask.is_admin(uid) for uid in (ADA, BOB, me, ROOT)] == [False, False, system, True]
    assert [ask.is_engine(uid) for uid in (ADA, BOB, me, ROOT)] == [False, False, True, True]
    assert not any(ask.placed_only(uid) for uid in (ADA, BOB, me, ROOT))
    node.config = configuration.Config(admin_group="admins", engine_group="engines", placed_only=True)
    assert [ask.is_admin(uid) for uid in (ADA, BOB, me, ROOT)] == [True, False, system, True]
    assert [ask.is_engine(uid) for uid in (ADA, BOB, me, ROOT)] == [True, True, True, True]
    assert [ask.placed_only(uid) for uid in (ADA, BOB, me, ROOT)] == [False, True, not system, False]


def test_a_viewer_reads_as_the_settings_say() -> None:
    node = Node(reveal="none", admin_group="admins")
    node.groups = {ADA: frozenset({"admins"})}
    ada, bob = node.access.viewer(ADA), node.access.viewer(BOB)
    assert (ada.uid, ada.reveal, ada.may_see_all) == (ADA, "none", True)
    assert (bob.uid, bob.reveal, bob.may_see_all) == (BOB, "none", False)


# ---- new jobs ---------------------------------------------------------------------------------------


def test_a_job_that_wants_turns_where_there_are_none() -> None:
    refused = Node().access.admit(spec(exclusive=1.0), [])
    assert isinstance(refused, Reason) and refused.code is Code.NO_TURNS
    assert isinstance(Node(turns=True, longest_turn=2.0).access.admit(spec(exclusive=1.0), []), JobSpec)
    assert isinstance(Node(turns=True, longest_turn=0.5).access.admit(spec(exclusive=1.0), []), Reason)


def test_each_text_of_a_job_counts_for_its_user() -> None:
    """Twice: it is kept here and in state.json."""
    none = bytes_of(spec())
    for more in (
        {"command": ("x", "y" * 10)},
        {"request_source": "y" * 10},
        {"limit_source": "y" * 10},
        {"devices": ("y" * 4, "y" * 6)},
    ):
        assert bytes_of(spec(**more)) == none + 20, more


def test_a_user_has_so_many_jobs_and_so_many_bytes_of_them(monkeypatch) -> None:
    node = Node(descriptors=160)  # ten jobs
    assert isinstance(node.access.admit(spec(), [1] * 9), JobSpec)
    refused = node.access.admit(spec(), [1] * 10)
    assert isinstance(refused, Reason) and refused.code is Code.POLICY
    assert refused.message == f"user{ADA} has 10 jobs, as many as this daemon can keep of one user"
    assert refused.hint == "end one of them first: `gpushare ps` lists them"
    monkeypatch.setattr(access_, "MOST_OF_JOBS", 5 + bytes_of(spec()))
    assert isinstance(node.access.admit(spec(), [5]), JobSpec)
    refused = node.access.admit(spec(), [5, 1])
    assert isinstance(refused, Reason)
    assert refused.message == f"user{ADA} has 2 jobs with long commands, as many as this daemon can keep of one user"
    assert isinstance(node.access.admit(spec(ROOT), [10] * 5000), JobSpec), "root is not bound"


def test_the_rules_of_a_users_group_hold_and_root_keeps_to_tables_too() -> None:
    node = Node(RULES)
    large = spec(limit=amount("10Gi"))
    assert isinstance(node.access.admit(large, []), Reason)
    node.groups = {ADA: frozenset({"vision"})}
    assert node.access.admit(large, []) == large
    assert isinstance(node.access.admit(large._replace(uid=ROOT), []), Reason)


def test_a_job_is_measured_by_the_gpus_that_it_may_use() -> None:
    """Half of a GPU of 16 GiB is more than is allowed, half of one of 8 GiB is not."""
    node = Node('[policy]\nmax_limit = "6Gi"\n')
    half = spec(limit=amount("0.5"))
    assert isinstance(node.access.admit(half, []), Reason)
    assert isinstance(node.access.admit(half._replace(devices=("x",)), []), Reason)
    assert isinstance(node.access.admit(half._replace(devices=("y",)), []), JobSpec)


def test_reservations_of_a_user_are_counted_and_have_no_limit_of_their_own() -> None:
    node = Node(RULES)
    wanted = spec(request=amount("4Gi"), limit=MAX)
    for uid in (ADA, BOB, BOB):
        node.core.reservations[len(node.core.reservations)] = thing(spec=spec(uid))
    made = node.access.admit_reservation(wanted)
    assert isinstance(made, JobSpec) and made.limit == made.request == amount("4Gi")
    assert isinstance(node.access.admit_reservation(wanted._replace(uid=BOB)), Reason), "two are there"
    assert isinstance(node.access.admit_reservation(wanted._replace(request=amount("9Gi"))), Reason)
    assert isinstance(node.access.admit_reservation(wanted._replace(request=amount("0.6"))), Reason)
    on_y = wanted._replace(request=amount("0.6"), devices=("y",))
    assert isinstance(node.access.admit_reservation(on_y), JobSpec)


# ---- changes ----------------------------------------------------------------------------------------


def running(node: Node, **more: Any) -> JobSpec:
    now = spec(request=amount("1Gi"), limit=amount("4Gi"), priority=2)._replace(**more)
    bounds = {"x": Bounds(GIB, 4 * GIB)}
    node.core.jobs["ff"] = thing(spec=now, bounds=bounds)
    return now


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({"limit": amount("8Gi")}, True),
        ({"limit": amount("9Gi")}, False),
        ({"limit": amount("2Gi")}, True),
        ({"request": amount("2Gi")}, True),
        ({"priority": 5}, True),
        ({"priority": 6}, False),
        ({"priority": 0}, True),
        ({"priority": -7}, True),
        ({}, True),
    ],
    ids=str,
)
def test_what_a_user_may_change(change, allowed) -> None:
    node = Node(RULES)
    running(node)
    event = BudgetChanged("ff", **change)
    found = node.access.change(spec(), event)
    assert found == event if allowed else isinstance(found, Reason)


def test_what_is_not_changed_stays_although_a_rule_would_not_allow_it_now() -> None:
    """The job is older than the rule."""
    node = Node(RULES)
    running(node, limit=amount("12Gi"), priority=9)
    for change in ({"request": amount("2Gi")}, {"priority": 8}, {"limit": amount("11Gi")}, {"priority": 0}):
        event = BudgetChanged("ff", **change)
        assert node.access.change(spec(), event) == event, change
    for change in ({"priority": 10}, {"limit": amount("13Gi")}):
        assert isinstance(node.access.change(spec(), BudgetChanged("ff", **change)), Reason), change


def test_all_that_one_may_have_becomes_the_amount() -> None:
    node = Node(RULES)
    running(node)
    changed = node.access.change(spec(), BudgetChanged("ff", limit=MAX))
    assert isinstance(changed, BudgetChanged) and (changed.limit, changed.request) == (amount("8Gi"), None)
    changed = node.access.change(spec(), BudgetChanged("ff", request=MAX, limit=MAX))
    assert isinstance(changed, BudgetChanged) and (changed.limit, changed.request) == (amount("8Gi"),) * 2


def test_a_job_that_waits_is_measured_by_what_it_was_submitted_with() -> None:
    """The core does not have it: any GPU may become its own."""
    node = Node('[policy]\nmax_limit = "6Gi"\n')
    waits = spec(limit=amount("2Gi"))
    half = BudgetChanged("ff", limit=amount("0.5"))
    assert isinstance(node.access.change(waits, half), Reason)
    node.core.jobs["ff"] = thing(spec=waits, bounds={"y": Bounds(0, 2 * GIB)})
    assert node.access.change(waits, half) == half, "half of the GPU that it has"
    node.core.jobs["ff"].bounds = {}
    assert isinstance(node.access.change(waits, half), Reason)


def test_the_rules_are_those_of_the_jobs_user() -> None:
    node = Node(RULES)
    node.groups = {ADA: frozenset({"vision"})}
    running(node)
    event = BudgetChanged("ff", limit=amount("12Gi"))
    assert node.access.change(spec(BOB), event) == event
