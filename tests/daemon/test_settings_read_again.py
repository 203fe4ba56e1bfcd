"""What the log says when the settings are read again: each change, in the words of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushared import config
from gpushared.core.rules import Who, budget

PROJECT = '[policy.projects.vision]\nmembers = ["ann", "@lab"]\nmax_jobs = 3\n'


def loaded(folder: Path, name: str, text: str) -> config.Config:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return config.load(path).config


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("", "", []),
        ("[reclaim]\ngrace = 5\n", '[reclaim]\ngrace = "5s"\n', []),
        ("", '[reclaim]\ngrace = "9s"\n', ["grace: 5 s -> 9 s"]),
        ('[memory]\nchunk = "64Mi"\n', '[memory]\nchunk = "1Gi"\n', ["chunk: 64.0 MiB -> 1.0 GiB"]),
        (
            "[memory]\nreserve_share = 0.1\n",
            "[memory]\nreserve_share = 0.2\n",
            ["reserve_share: 0.1 -> 0.2 (at the next start)"],
        ),
        ('[daemon]\nreveal = "name"\n', '[daemon]\nreveal = "none"\n', ["reveal: name -> none"]),
        ('[reclaim]\nlast_rung = "kill"\n', '[reclaim]\nlast_rung = "term"\n', ["last_rung: kill -> term"]),
        ("", "[policy]\nmax_jobs = 4\n", ["$.policy.max_jobs: not said -> 4"]),
        ("[policy]\nmax_jobs = 4\n", "[policy]\nmax_jobs = 5\n", ["$.policy.max_jobs: 4 -> 5"]),
        ("[policy]\nmax_jobs = 4\n", "", ["$.policy.max_jobs: 4 -> not said"]),
        ("", '[policy.users.ann]\nmax_limit = "8Gi"\n', ['$.policy.users.ann.max_limit: not said -> "8Gi"']),
        (
            "",
            PROJECT,
            [
                "$.policy.projects.vision.max_jobs: not said -> 3",
                "$.policy.projects.vision.members: not said -> ann, lab",
            ],
        ),
        (
            PROJECT,
            PROJECT.replace('"ann"', '"bob"'),
            ["$.policy.projects.vision.members: ann, lab -> bob, lab"],
        ),
        (
            "[compute]\nturns = false\n",
            "[compute]\nturns = true\n[reclaim]\nhook = 1\n[policy]\nmax_jobs = 1\n",
            [
                "hook: {} -> 1 s",
                "turns: False -> True (at the next start)",
                "$.policy.max_jobs: not said -> 1",
            ],
        ),
    ],
)
def test_each_change_is_said_in_the_words_of_the_file(tmp_path: Path, before: str, after: str, said: list[str]) -> None:
    old, new = loaded(tmp_path, "before", before), loaded(tmp_path, "after", after)
    usual = config._show("hook", old.hook)
    found = config.changes(old, new)
    rules = [one for one in found if one.startswith("$")]
    assert sorted(found) == sorted(one.format(usual) for one in said)
    assert rules == [one for one in said if one.startswith("$")] == found[len(found) - len(rules) :], "rules come last"


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("policy = 1\n", "$.policy", "not a table"),
        ("[policy]\nusers = 1\n", "$.policy.users", "not a table of tables [policy.users.NAME]"),
        ("[policy.users]\nann = 1\n", "$.policy.users.ann", "not a table [policy.users.NAME]"),
        ("[policy.groups]\nlab = []\n", "$.policy.groups.lab", "not a table [policy.groups.NAME]"),
        ("[policy]\nmax_job = 1\n", "$.policy.max_job", "no such key; there are "),
        ("[policy]\nmax_jobs = -1\n", "$.policy.max_jobs", "not a whole number from"),
        ('[policy]\nrequest = "8Gi"\nlimit = "4Gi"\n', "$.policy.request", "the request 8Gi is above the limit 4Gi"),
    ],
)
def test_rules_that_are_none_are_named(tmp_path: Path, text: str, place: str, says: str) -> None:
    with pytest.raises(config.UsageError) as caught:
        loaded(tmp_path, "bad", text)
    ((at, problem),) = caught.value.facts
    assert at.startswith(f"{tmp_path / 'bad.toml'}:") and problem.startswith(f"{place}: ") and says in problem


def test_a_key_that_belongs_elsewhere_is_told_with_those_that_belong_there(tmp_path: Path) -> None:
    for text, more in (
        ("[policy]\nx = 1\n", ("users", "groups", "projects")),
        ("[policy.users.a]\nx = 1\n", ()),
        ('[policy.projects.a]\nmembers = ["b"]\nx = 1\n', ("members",)),
    ):
        with pytest.raises(config.UsageError) as caught:
            loaded(tmp_path, "bad", text)
        known = caught.value.facts[0][1].partition("there are ")[2].split(", ")
        assert set(more) <= set(known) and ("members" in known) == ("members" in more)


def test_what_is_checked_is_shown_with_where_it_was_said(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('[reclaim]\ngrace = "9s"\n[policy]\nmax_jobs = 4\n' + PROJECT)
    shown = config.load(path).describe()
    assert f'grace = "9s"  # {path}' in shown.splitlines() or f"grace = 9.0  # {path}" in shown.splitlines(), shown
    lines = shown.splitlines()
    assert f"max_jobs = 4  # {path}:4" in lines and f"max_jobs = 3  # {path}:7" in lines
    assert lines[lines.index("[policy.projects.vision]") + 1] == 'members = ["ann", "@lab"]'
    assert any(one.startswith("claim_timeout = ") and one.endswith("  # default") for one in lines)


@pytest.mark.parametrize(
    ("text", "guaranteed", "most"),
    [
        ('limit = "8Gi"', '# request = "8Gi": follows from limit', 'limit = "8Gi"  # {}:2'),
        ('request = "2Gi"', 'request = "2Gi"  # {}:2', '# limit = "2Gi": follows from request'),
        ('limit = "max"', 'request = "none"  # default', 'limit = "max"  # default'),
        ('limit = "8Gi"\nrequest = "none"', 'request = "none"  # {}:3', 'limit = "8Gi"  # {}:2'),
        ("", 'request = "none"  # default', 'limit = "max"  # default'),
    ],
)
def test_what_is_shown_gives_the_same_budget_when_it_is_read_again(tmp_path: Path, text, guaranteed, most) -> None:
    path = tmp_path / "a.toml"
    path.write_text(f"[policy]\n{text}\n")
    shown = config.load(path).describe()
    assert {guaranteed.format(path), most.format(path)} <= set(shown.splitlines()), shown
    (tmp_path / "again.toml").write_text(shown)
    who = Who(61001, "ada", frozenset())
    assert (
        budget(config.load(tmp_path / "again.toml").config.rules, who, None, None)[0]
        == (budget(config.load(path).config.rules, who, None, None)[0])
    )


def test_of_a_user_what_follows_is_shown_and_nothing_that_holds_for_all(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        '[policy]\nrequest = "2Gi"\n[policy.users.61001]\nlimit = "6Gi"\n[policy.users.61002]\nmax_jobs = 1\n'
    )
    lines = config.load(path).describe().splitlines()
    at, after = lines.index("[policy.users.61001]"), lines.index("[policy.users.61002]")
    assert sorted(lines[at + 1 : after - 1]) == ['# request = "6Gi": follows from limit', f'limit = "6Gi"  # {path}:4']
    assert lines[after + 1 :] == [f"max_jobs = 1  # {path}:6"]
