"""What this node allows whom: the rules by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.errors import UsageError
from gpushare.job_spec import JobSpec
from gpushare.quantity import MAX, NOTHING, Quantity
from gpushare.reasons import Code, Reason
from gpushared import config
from gpushared.core import rules
from gpushared.core.rules import Who
from gpushared.core.visibility import OPERATOR

GIB = 2**30
TOTALS = (16 * GIB, 16 * GIB)
FILE = """\
[policy]
max_limit = "12Gi"
max_jobs = 3
max_grace = "1m"

[policy.groups.students]
max_limit = "8Gi"
limit = "4Gi"
[policy.groups.staff]
max_limit = "10Gi"
max_request = "25%"

[policy.projects.vision]
members = ["bob", "@cv"]
max_request = "50%"
max_priority = 5

[policy.users.alice]
max_limit = "unlimited"
no_lend = false
[policy.users.1007]
max_jobs = 0
"""


def q(text: str) -> Quantity:
    return Quantity.parse(text)


def read(text: str) -> rules.Rules:
    return config.Config(**config.parse(text, Path("/etc/g.toml"))).rules


@pytest.fixture
def said() -> rules.Rules:
    return read(FILE)


def who(user: str, *groups: str, uid: int = 1000) -> Who:
    return Who(uid, user, frozenset(groups))


def spec(request: str = "1Gi", limit: str = "2Gi", **more: object) -> JobSpec:
    return JobSpec("train", 1000, "x", ("x",), q(request), q(limit))._replace(**more)


def refused(answer: JobSpec | Reason) -> list[str]:
    assert isinstance(answer, Reason) and answer.code is Code.POLICY
    return [str(one["rule"]) for one in answer.data["rules"]]  # type: ignore[attr-defined]


def test_without_rules_everything_is_allowed_as_it_is():
    asked = spec("max", "max", priority=99, grace=1e6, lend=False, gpus=64)
    assert rules.admit(rules.Rules(), who("x"), asked, TOTALS, 10**6) == asked


def test_an_amount_above_its_maximum_names_the_rule_and_its_line(said):
    answer = rules.admit(said, who("carol"), spec("1Gi", "13Gi"), TOTALS)
    assert refused(answer) == ["$.policy.max_limit"]
    text = OPERATOR.told(answer).render()
    assert "carol" in text and "13.0 GiB" in text and "at most 12.0 GiB" in text and "/etc/g.toml:2" in text
    assert rules.admit(said, who("carol"), spec("1Gi", "12Gi"), TOTALS) == spec("1Gi", "12Gi")


@pytest.mark.parametrize(
    ("user", "rule", "most"),
    [
        (who("carol"), "$.policy.max_limit", 12),
        (who("carol", "students"), "$.policy.groups.students.max_limit", 8),
        (who("carol", "staff", "students"), "$.policy.groups.students.max_limit", 8),
        (who("carol", "staff"), "$.policy.groups.staff.max_limit", 10),
        (who("bob", "students"), "$.policy.groups.students.max_limit", 8),
        (who("alice", "students"), "$.policy.users.alice.max_limit", None),
    ],
    ids=lambda value: getattr(value, "user", None),
)
def test_the_first_table_that_says_something_counts(said, user, rule, most):
    found = said.find(user, "max_limit")
    assert found.rule == rule and (found.value.resolve(0) if found.value else None) == (most * GIB if most else None)
    if most:
        assert refused(rules.admit(said, user, spec("1Gi", f"{most}.5Gi"), TOTALS)) == [rule]


@pytest.mark.parametrize("key", ["limit", "request", "max_limit"])
def test_a_rule_whose_line_is_not_known_is_placed_at_the_top_of_its_file(key):
    allowed = rules.Rules((rules.Table("$.policy", {key: Quantity.parse("2Gi")}),), "node.toml")
    if key == "max_limit":
        assert allowed.find(who("alice"), key).place == "node.toml:1"
    else:
        assert rules.budget(allowed, who("alice"), None, None)[1] == "node.toml:1"


def test_projects_come_before_groups_and_have_both_kinds_of_members(said):
    for user in (who("bob", "staff"), who("carol", "cv", "staff")):
        assert said.find(user, "max_request").rule == "$.policy.projects.vision.max_request"
        assert not isinstance(rules.admit(said, user, spec("8Gi", "8Gi"), TOTALS), Reason)
    assert said.find(who("carol", "staff"), "max_request").rule == "$.policy.groups.staff.max_request"
    assert refused(rules.admit(said, who("carol", "staff"), spec("5Gi", "8Gi"), TOTALS))


def test_a_user_may_be_named_by_number(said):
    answer = rules.admit(said, who("dave", uid=1007), spec(), TOTALS, 0)
    assert refused(answer) == ["$.policy.users.1007.max_jobs"] and "/etc/g.toml:22" in OPERATOR.told(answer).render()


def test_max_is_all_that_one_may_have(said):
    allowed = rules.admit(said, who("carol"), spec("none", "max"), TOTALS)
    assert allowed.limit == q("12Gi") and allowed.limit_source == "/etc/g.toml:2"
    allowed = rules.admit(said, who("carol", "staff"), spec("max", "max"), TOTALS)
    assert (allowed.request, allowed.limit) == (q("25%"), q("10Gi"))
    allowed = rules.admit(said, who("carol"), spec("max", "max"), TOTALS)
    assert (allowed.request, allowed.limit) == (q("12Gi"), q("12Gi")), "no more is guaranteed than may be had"
    allowed = rules.admit(said, who("alice"), spec("none", "max"), TOTALS)
    assert allowed.limit == MAX


def test_a_request_above_the_ceiling_is_refused_although_the_limit_is_max(said):
    assert refused(rules.admit(said, who("carol"), spec("13Gi", "max"), TOTALS)) == ["$.policy.max_limit"]


def test_shares_are_compared_on_each_gpu():
    said = read('[policy]\nmax_limit = "20Gi"\n')
    half = spec("none", "50%")
    assert not isinstance(rules.admit(said, who("x"), half, (40 * GIB, 16 * GIB)), Reason)
    answer = rules.admit(said, who("x"), half, (16 * GIB, 80 * GIB))
    assert refused(answer) and "50% (40.0 GiB)" in OPERATOR.told(answer).render()


@pytest.mark.parametrize(
    ("text", "changes", "says"),
    [
        ("max_gpus = 2", {"gpus": 3}, "GPUs"),
        ("max_priority = 0", {"priority": 1}, "priority"),
        ("max_priority = -5", {"priority": -4}, "priority"),
        ('max_grace = "10s"', {"grace": 10.5}, "10.5 s"),
        ('max_min_run_time = "0s"', {"min_run_time": 1.0}, "minimum run time"),
        ("no_lend = false", {"lend": False}, "--no-lend"),
        ('max_request = "none"', {"request": "1Mi"}, "request"),
        ("observe = false", {"observe": True}, "--mode observe"),
    ],
)
def test_every_other_maximum(text, changes, says):
    said = read(f"[policy]\n{text}\n")
    answer = rules.admit(said, who("x"), spec(**changes), TOTALS)
    assert refused(answer) == [f"$.policy.{text.split(' ', maxsplit=1)[0]}"] and says in OPERATOR.told(answer).render()
    below = {"gpus": 2, "priority": -5, "grace": 10.0, "min_run_time": 0.0, "lend": True, "request": "none"}
    below["observe"] = False
    allowed = spec(**{key: below[key] for key in changes})
    assert rules.admit(said, who("x"), allowed, TOTALS) == allowed


def test_how_long_a_job_may_be_idle_is_its_users_rule():
    said = read("""\
[policy.groups.notebooks]
idle_release = "30m"
[policy.users.alice]
idle_release = "unlimited"
""")

    def of(*user: str) -> object:
        return rules.admit(said, who(*user), spec(idle_release=1.0), TOTALS).idle_release

    assert of("carol", "notebooks") == 1800.0
    assert of("alice", "notebooks") is None and of("carol") is None, "a job does not choose it"
    with pytest.raises(UsageError, match="not accepted") as error:
        read('[policy]\nidle_release = "500ms"\n')
    assert "$.policy.idle_release" in str(error.value.facts)


def test_jobs_are_counted(said):
    assert not isinstance(rules.admit(said, who("carol"), spec(), TOTALS, 2), Reason)
    assert refused(rules.admit(said, who("carol"), spec(), TOTALS, 3)) == ["$.policy.max_jobs"]


def test_all_that_is_too_much_is_said_at_once(said):
    answer = rules.admit(said, who("carol"), spec("1Gi", "13Gi", grace=61.0), TOTALS, 3)
    assert refused(answer) == ["$.policy.max_limit", "$.policy.max_grace", "$.policy.max_jobs"]


def test_what_a_job_gets_that_says_nothing(said):
    assert rules.budget(said, who("carol"), None, None) == ((NOTHING, MAX), "")
    budget, place = rules.budget(said, who("carol", "students"), None, None)
    assert budget == (q("4Gi"), q("4Gi")) and place == "/etc/g.toml:8"
    assert rules.budget(said, who("carol", "students"), None, q("2Gi")) == ((q("2Gi"), q("2Gi")), "")
    assert rules.budget(said, who("carol", "students"), q("none"), q("max"))[0] == (NOTHING, MAX)


def test_defaults_go_together():
    said = read('[policy]\nrequest = "8Gi"\nlimit = "12Gi"\n[policy.users.x]\nlimit = "4Gi"\n')
    assert rules.budget(said, who("y"), None, None)[0] == (q("8Gi"), q("12Gi"))
    assert rules.budget(said, who("x"), None, None)[0] == (q("4Gi"), q("4Gi")), "and not a request above the limit"


def test_a_change_is_measured_by_what_it_raises(said):
    old = spec("1Gi", "14Gi", priority=3)  # from before the rules
    carol = who("carol")
    smaller = old._replace(limit=q("13Gi"), priority=2)
    assert rules.change(said, carol, old, smaller, TOTALS) == smaller
    assert refused(rules.change(said, carol, old, old._replace(limit=q("15Gi")), TOTALS)) == ["$.policy.max_limit"]
    assert rules.change(said, carol, old, old._replace(limit=MAX), TOTALS).limit == q("12Gi")
    bob = who("bob")
    assert refused(rules.change(said, bob, old, old._replace(priority=6), TOTALS)) == [
        "$.policy.projects.vision.max_priority"
    ]
    assert not isinstance(rules.change(said, bob, old, old._replace(priority=5), TOTALS), Reason)


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("policy = 1", "$.policy", 1),
        ("[policy]\nmax_limits = 1", "$.policy.max_limits", 2),
        ('[policy]\nlimit = "none"', "$.policy.limit", 2),
        ('[policy]\nrequest = "8Gi"\nlimit = "4Gi"', "$.policy.request", 2),
        ("[policy]\nmax_gpus = 0", "$.policy.max_gpus", 2),
        ("[policy]\nmax_gpus = true", "$.policy.max_gpus", 2),
        ('[policy]\nmax_grace = "soon"', "$.policy.max_grace", 2),
        ("[policy]\nno_lend = 1", "$.policy.no_lend", 2),
        ("[policy]\nmembers = []", "$.policy.members", 2),
        ("[policy]\nusers = 1", "$.policy.users", 2),
        ("[policy.users]\nbob = 1", "$.policy.users.bob", 2),
        ("[policy.users.bob]\n\nmembers = []", "$.policy.users.bob.members", 3),
        ('[policy.users."b b"]\nx = 1', '$.policy.users."b b".x', 2),
        ("[policy.projects.p]\nmax_gpus = 1", "$.policy.projects.p", 1),
        ("[policy.projects.p]\nmembers = []", "$.policy.projects.p.members", 2),
        ('[policy.projects.p]\nmembers = ["@"]', "$.policy.projects.p.members", 2),
        ("[policy.projects.p]\nmembers = [1]", "$.policy.projects.p.members", 2),
        ("policy.users.bob.max_gpus = 0", "$.policy.users.bob.max_gpus", 1),
    ],
)
def test_tables_that_are_wrong(text, path, line):
    with pytest.raises(UsageError) as caught:
        config.parse(text, Path("g.toml"))
    ((place, problem),) = caught.value.facts
    assert place == f"g.toml:{line}" and problem.startswith(f"{path}: ")


def test_every_key_can_be_written_down_and_read_again():
    said = config.Loaded(config.Config(rules=read(FILE)), Path("/etc/g.toml"), frozenset({"rules"}))
    again = read(said.describe())
    assert again == said.config.rules


def test_the_list_of_keys_is_one():
    assert set(config._RULES) == set(rules.DEFAULTS)
