"""What holds where nothing is said: an event, an instruction and a new job say nothing that nobody has said, and the
numbers of a policy are those that administrators read."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.quantity import parse_duration
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core import aside, events, health_issues, instructions, links, model, suspension, turns
from gpushared.core.policy import GIB, MIB, Policy

ROOT = Path(__file__).resolve().parents[2]
MODULES = (aside, events, health_issues, instructions, links, model, suspension, turns)

NEVER = -math.inf
SAID: dict[tuple[str, str], object] = {
    ("Aside", "step"): ReclaimStep.REVOKE,
    ("Ask", "step"): ReclaimStep.REVOKE,
    ("BudgetChanged", "limit_source"): "gpushare set",
    ("BudgetChanged", "request_source"): "gpushare set",
    ("Gpu", "sampled_at"): -1.0,
    ("Gpu", "seen_at"): -1.0,
    ("Health", "attributed"): True,
    ("Health", "xid_at"): NEVER,
    ("HookRunnerLink", "called_at"): NEVER,
    ("HookRunnerLink", "missed_at"): NEVER,
    ("Job", "active_at"): NEVER,
    ("Job", "open"): True,
    ("Job", "restored_at"): NEVER,
    ("Job", "resumed_at"): NEVER,
    ("Job", "saved_at"): NEVER,
    ("Link", "missed_at"): NEVER,
    ("JobRestored", "open"): True,
    ("Seen", "done"): True,
    ("Share", "attached"): True,
    ("Share", "contexts"): 1,
    ("Share", "open_contexts"): -1,
    ("Share", "provisional"): -1,
    ("SuspenderLink", "missed_at"): NEVER,
    ("Terms", "begin"): 0.03,
    ("Terms", "drain"): 1.0,
    ("Terms", "least"): 0.02,
    ("Terms", "quiet"): 0.0035,
    ("Terms", "turn"): 0.1,
}
"""The exceptions: a job is open and its context attached until told otherwise; what was never seen was long ago."""


def defaults() -> Iterator[tuple[tuple[str, str], object]]:
    """Of each field that has one; a part that is an object of ours has its own."""
    for module in MODULES:
        for name, kind in vars(module).items():
            if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__:
                for field in dataclasses.fields(kind):
                    made = field.default_factory
                    value = field.default if made is dataclasses.MISSING else made()
                    if value is not dataclasses.MISSING and not dataclasses.is_dataclass(value):
                        yield (name, field.name), value


def test_what_is_not_said_is_nothing() -> None:
    found = dict(defaults())
    assert len(found) > 150
    assert {place: value for place, value in found.items() if value or value == -1} == SAID


def test_all_counters_begin_at_nothing() -> None:
    for field in dataclasses.fields(model.Counters):
        assert not getattr(model.Counters(), field.name), field.name


# ---- the policy --------------------------------------------------------------------------------------


SETTINGS = {
    ("reclaim", "last_rung"): "last_step",
    ("suspend", "runs_after"): "resume_runs",
}
"""Settings of which the core's number has another name."""


def in_the_file() -> dict[str, object]:
    tables = tomllib.loads((ROOT / "daemon" / "deploy" / "gpushared.toml").read_text())
    return {
        SETTINGS.get((table, key), key): value
        for table in ("memory", "reclaim", "suspend")
        for key, value in tables[table].items()
        if (table, key) not in {("memory", "sample_interval"), ("suspend", "memory")}
    }


@pytest.mark.parametrize(("name", "value"), in_the_file().items())
def test_an_administrator_reads_the_defaults_that_hold(name: str, value: object) -> None:
    held = getattr(Policy(), name)
    if isinstance(held, int) and not isinstance(held, bool):
        assert f"{held // MIB}Mi" == value and held % MIB == 0
    elif isinstance(value, str) and isinstance(held, float):
        assert parse_duration(value) == held
    else:
        assert held == value


def test_a_claim_is_met_in_time_by_the_harshest_means() -> None:
    """A claim that trims do not meet stops a borrower. The borrower's whole grace and the driver's time fit in before
    the owner gives up. Hooks and suspenders have less where that would be too late."""
    policy = Policy()
    assert policy.longest_grace == policy.claim_timeout - policy.teardown
    assert policy.longest_protection == policy.claim_timeout - policy.trim - policy.teardown
    assert policy.trim + policy.grace + policy.teardown < policy.claim_timeout
    assert policy.trim + policy.hook + policy.grace + policy.teardown < policy.claim_timeout
    impatient = Policy(claim_timeout=1.0)
    assert (impatient.longest_grace, impatient.longest_protection) == (0.0, 0.0), "no time is below zero"


def test_looks_are_far_more_frequent_than_what_they_decide() -> None:
    policy = Policy()
    assert policy.poll * 50 <= min(policy.trim, policy.teardown, policy.resume_runs, policy.hold)
    assert policy.poll < policy.resume_poll < policy.shrink < policy.provisional_apart < policy.settling
    assert policy.hold * 2 <= policy.teardown, "a program that was stopped keeps nothing from a claim"
    assert policy.breach_lasts < policy.teardown <= policy.unattributed_after <= policy.unkillable_after


def test_a_failure_is_not_repeated_at_once() -> None:
    policy = Policy()
    assert policy.hook_again == policy.suspend_again == 60.0
    assert policy.resume_retry * 2**5 < 60.0 < policy.resume_retry * 2**6, "a minute after six doublings"
    assert policy.suspend_patience == policy.claim_timeout, "a suspender has as long as a claim"
    assert policy.suspender_comes == policy.resume_runs == 5.0


def test_measurements_may_be_a_little_wrong() -> None:
    policy = Policy()
    assert policy.breach_least == policy.chunk == 64 * MIB
    assert policy.breach_share * 100 == 2.0 < policy.reserve_share * 100
    assert policy.guess(8 * GIB) == 256 * MIB, "less on a small GPU"
    assert policy.guess(80 * GIB) == policy.overhead_guess == 640 * MIB
    assert policy.overhead_most == 2 * GIB
    assert policy.suspend_rate * policy.suspend_least == 4 * GIB, "a suspender gets more for more memory"
