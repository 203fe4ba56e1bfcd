"""What holds for users where the settings say nothing: a finite minimum run time, and so many reservations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.tale import spec, start, used
from gpushare.reasons import Code, Reason
from gpushared import config
from gpushared.core import rules
from gpushared.core.invariants import InvariantError
from gpushared.core.model import Bounds
from gpushared.core.policy import MIB, Policy
from gpushared.core.rules import DEFAULTS, Rules, Table, Who
from gpushared.core.visibility import OPERATOR
from property.world import World, mib

GIB = 1024 * MIB
TOTALS = [16 * GIB]
ALICE = Who(1000, "alice")
MOST = float(DEFAULTS["max_min_run_time"])


# ---- the minimum run time ----------------------------------------------------------------------


def test_the_default_maximum_leaves_a_claim_its_time():
    policy = Policy()
    assert MOST + policy.trim + policy.grace + policy.teardown <= policy.claim_timeout
    assert config.cautions(config.Config()) == []


@pytest.mark.parametrize(
    ("seconds", "refused"), [(0.0, False), (MOST, False), (MOST + 0.1, True), (365 * 86400.0, True)]
)
def test_more_than_the_default_is_refused(seconds, refused):
    wanted = spec("a", "1Gi", "1Gi", min_run_time=seconds)
    answer = rules.admit(Rules(), ALICE, wanted, TOTALS)
    assert isinstance(answer, Reason) is refused
    if isinstance(answer, Reason):
        assert answer.code is Code.POLICY
        assert "at most 20 s, the default" in OPERATOR.told(answer).render()
    assert rules.admit(Rules(), ALICE, wanted, TOTALS, bound=False) == wanted, "root, and a user alone"


def test_in_a_users_own_daemon_the_promise_to_owners_holds_too():
    wanted = spec("a", "1Gi", "1Gi", min_run_time=1800.0)
    answer = rules.admit(Rules(), ALICE, wanted, TOTALS, bound=False, own=True)
    assert isinstance(answer, Reason) and answer.code is Code.POLICY
    assert "an owner's claim waits no longer" in OPERATOR.told(answer).render()
    raised = Rules((Table("$.policy", {"max_min_run_time": 3600.0}),), "g.toml")
    assert rules.admit(raised, ALICE, wanted, TOTALS, bound=False, own=True) == wanted
    assert rules.admit(Rules(), ALICE, wanted._replace(min_run_time=MOST), TOTALS, bound=False, own=True)


@pytest.mark.parametrize("bound", [True, False])
def test_a_rule_counts_before_the_default_and_for_all(bound):
    def said(value: float | None) -> Rules:
        return Rules((Table("$.policy", {"max_min_run_time": value}),), "g.toml")

    wanted = spec("a", "1Gi", "1Gi", min_run_time=3600.0)
    assert rules.admit(said(None), ALICE, wanted, TOTALS, bound=bound) == wanted
    assert rules.admit(said(3600.0), ALICE, wanted, TOTALS, bound=bound) == wanted
    assert isinstance(rules.admit(said(3599.0), ALICE, wanted, TOTALS, bound=bound), Reason)


def test_an_owner_has_its_memory_in_time_from_whoever_is_protected_as_long_as_may_be():
    """The borrower has just begun, ignores SIGTERM, and is killed at the very end."""
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    owner = start(world, "serve", "8Gi", "8Gi")
    borrower = start(world, "train", "none", "14Gi", min_run_time=MOST)
    world.allocate(borrower, "GPU-0", 12 * GIB)
    world.ever_protected = True
    world.allocate(owner, "GPU-0", 7 * GIB)
    world.wait(MOST - 1.0)
    assert not world.terminated
    world.wait(10.0)
    assert used(world, owner) == 7 * GIB and not world.refusals
    world.node.validate()


def test_settings_that_let_claims_fail_are_said():
    def cautions(text: str) -> list[str]:
        return config.cautions(config.Config(**config.parse(text, "g.toml")))

    assert cautions('[policy]\nmax_min_run_time = "26s"\n') == []
    (said,) = cautions('[policy]\nmax_min_run_time = "26.5s"\n')
    assert said.startswith("$.policy.max_min_run_time is 26.5 s") and "claim_timeout 30 s, of which 4 s" in said
    (said,) = cautions('[policy.users.x]\nmax_min_run_time = "unlimited"\n')
    assert said.startswith("$.policy.users.x.max_min_run_time is unlimited")
    (said,) = cautions('[reclaim]\nclaim_timeout = "20s"\n')
    assert said.startswith("$.policy.max_min_run_time is 20 s")
    assert cautions('[reclaim]\nclaim_timeout = "20s"\n[policy]\nmax_min_run_time = "10s"\n') == []


# ---- reservations ------------------------------------------------------------------------------


def test_reservations_are_counted():
    most, wanted = int(DEFAULTS["max_reservations"]), spec("a", "1Gi", "1Gi")
    assert rules.reserve(Rules(), ALICE, wanted, TOTALS, most - 1) == wanted
    answer = rules.reserve(Rules(), ALICE, wanted, TOTALS, most)
    assert isinstance(answer, Reason)
    assert "reservations" in str(answer.message) and f"{most} there already" in OPERATOR.told(answer).render()
    assert rules.reserve(Rules(), ALICE, wanted, TOTALS, 10_000, bound=False) == wanted
    said = Rules((Table("$.policy", {"max_reservations": 2, "max_jobs": 0}),), "g.toml")
    assert rules.reserve(said, ALICE, wanted, TOTALS, 1, bound=False) == wanted, "they are no jobs"
    assert isinstance(rules.reserve(said, ALICE, wanted, TOTALS, 2, bound=False), Reason)
    assert isinstance(rules.admit(said, ALICE, wanted, TOTALS, 0), Reason)
    most_of = Rules((Table("$.policy", {"max_request": spec("b", "512Mi", "1Gi").request}),), "g.toml")
    assert isinstance(rules.reserve(most_of, ALICE, wanted, TOTALS, 0), Reason)


def test_the_sums_of_reservations_are_kept_and_checked():
    world = World([16 * GIB, 16 * GIB], [mib(300)] * 2)
    first = world.reserve(spec("kept", "8Gi", "max", devices=("GPU-0",)), None)
    second = world.reserve(spec("too", "2Gi", "max", gpus=2), None)
    state = world.node.state
    assert [state.gpus[gpu].reserved for gpu in ("GPU-0", "GPU-1")] == [10 * GIB, 2 * GIB]
    job = world.submit(spec("in", "9Gi", "9Gi", reservation=first))
    assert state.gpus["GPU-0"].reserved == 2 * GIB and state.reservations[first].inside == {"GPU-0": 9 * GIB}
    state.bind(state.jobs[job], "GPU-0", Bounds(3 * GIB, 9 * GIB))
    assert state.gpus["GPU-0"].reserved == 7 * GIB
    world.node.validate()
    state.drop_reservation(state.reservations[first])
    assert state.gpus["GPU-0"].reserved == 2 * GIB
    world.node.validate()
    state.gpus["GPU-1"].reserved += 512
    with pytest.raises(InvariantError, match="reserved is out of step"):
        world.node.validate()
    state.reservations[second].inside["GPU-1"] = 512
    state.gpus["GPU-1"].reserved -= 1024
    with pytest.raises(InvariantError, match="requests inside are out of step"):
        world.node.validate()


def test_a_reservation_that_comes_after_its_jobs_counts_them():
    """As after a restart."""
    world = World([16 * GIB], [mib(300)])
    kept = world.reserve(spec("kept", "8Gi", "max"), None)
    world.submit(spec("in", "3Gi", "9Gi", reservation=kept))
    state = world.node.state
    one = state.reservations[kept]
    state.drop_reservation(one)
    world.node.validate()
    assert state.gpus["GPU-0"].reserved == 0
    state.add_reservation(replace(one, inside={}))
    assert state.gpus["GPU-0"].reserved == 5 * GIB
    world.node.validate()
