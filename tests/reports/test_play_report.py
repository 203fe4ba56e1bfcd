"""A report of a simulated run: what its file says, which the page draws moment by moment."""

from __future__ import annotations

import itertools
import json
import re
from bisect import bisect_right
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpushare.cli.cluster import command
from gpushare.cluster import recording
from gpushare.report import plays

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "cluster"
MICRO = 1_000_000
HELD = {
    1: {"a": 4, "b": 4, "c": 4, "d": 4},
    2: {"a": 4, "b": 2, "c": 4, "d": 6},
    3: {"a": 4, "b": 2, "c": 2, "d": 8},
    4: {"a": 4, "b": 2, "c": 2, "d": 8},
    5: {"a": 8, "b": 4, "c": 4, "d": 0},
}
"""GPUs after each step of a1-netapp.yaml, as NetApp's technical report has them."""


def written(directory: Path, name: str, *more: str) -> Any:
    """What the file says of a run."""
    file = directory / "run.html"
    done = CliRunner().invoke(command, ["simulate", str(EXAMPLES / name), "--report", str(file), *more])
    assert done.exit_code in (0, 1), done.output
    found = re.search(r'id="report">(.*?)</script>', file.read_text())
    assert found is not None
    return json.loads(found[1])


def at(track: tuple[list[float], list[int]], moment: float) -> float:
    """GPUs at a moment, from the moments at which the number changes."""
    times, values = track
    assert len(times) == len(values) and times == sorted(set(times))
    assert all(one != other for one, other in itertools.pairwise(values)), "only changes are listed"
    return values[bisect_right(times, moment) - 1] / MICRO


def decided(play: Any, moment: float) -> list[tuple[str, str]]:
    return [(one["kind"], one["job"]) for one in play["decisions"] if one["at"] == moment]


def test_each_step_has_what_the_queues_hold_and_what_was_decided(tmp_path: Path) -> None:
    report = written(tmp_path, "a1-netapp.yaml")
    assert report["about"]["read_only"] is True
    (play,) = report["plays"]
    assert play["title"].startswith("NetApp TR 4.8 to 4.10")
    assert (play["along"], play["moments"], play["times"]) == ("steps", [1, 2, 3, 4, 5], [0.0] * 5)
    assert len(play["titles"]) == 5 and play["titles"][2] == "4.9: and two more, from c"
    for step, held in HELD.items():
        assert {one["name"]: at(one["held"], step) for one in play["queues"]} == held, step
    amounts = {one["name"]: [at(one[what], 5) for what in ("share", "quota", "demand")] for one in play["queues"]}
    assert amounts == {"a": [8, 4, 8], "b": [4, 2, 6], "c": [4, 2, 6], "d": [0, 8, 0]}
    assert at(play["capacity"], 5) == 16
    assert decided(play, 2) == [("evict", "b-4"), ("start", "d-2")]
    assert decided(play, 3) == [("evict", "c-4"), ("start", "d-3")]
    assert {kind for kind, _ in decided(play, 4)} == {"wait"}, "nothing happens to those that run"
    assert decided(play, 5)[-1] == ("start", "a-5")
    assert (play["left_out"], play["failures"]) == (0, [])


def test_a_run_that_is_thinned_out_still_ends_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = written(tmp_path, "day.yaml")["plays"]
    monkeypatch.setattr(recording, "MOST", 2)
    (thin,) = written(tmp_path, "day.yaml")["plays"]
    assert len(thin["moments"]) < len(whole["moments"]) / 4
    assert thin["moments"][-1] == whole["moments"][-1]
    for play in (whole, thin):
        assert {at(one["held"], play["moments"][-1]) for one in play["queues"]} == {0}, "all have ended"


def test_a_queue_below_another_says_so(tmp_path: Path) -> None:
    (play,) = written(tmp_path, "university.yaml")["plays"]
    assert {one["name"]: one["parent"] for one in play["queues"]}["lattice"] == "physics"
    assert play["times"][:2] == [0.0, 3600.0], "a step has its time, too"


def test_a_queue_that_comes_later_holds_nothing_before(tmp_path: Path) -> None:
    run = tmp_path / "later.yaml"
    run.write_text(
        """
scenario: a queue comes, and goes
given:
  nodes: [{name: n, gpus: 4}]
  queues: [{name: a, quota: 2}]
steps:
  - when: [{submit: {name: a-1, queue: a, gpus: 1}}]
  - when: [{queue: {name: b, quota: 2}}, {submit: {name: b-1, queue: b, gpus: 2}}]
  - when: [{end: b-1}, {remove: b}]
"""
    )
    (play,) = written(tmp_path, str(run))["plays"]
    (later,) = (one for one in play["queues"] if one["name"] == "b")
    for amount in ("held", "share", "quota", "demand"):
        assert [at(later[amount], step) for step in (1, 2, 3)] == [0, 2, 0], amount


def test_along_a_run_in_which_time_passes_the_moments_are_seconds(tmp_path: Path) -> None:
    (play,) = written(tmp_path, "day.yaml")["plays"]
    assert play["along"] == "seconds" and (play["titles"], play["times"]) == ([], [])
    assert play["moments"][0] == 0.0 and play["moments"][-1] == 67200.0
    research, product, students = play["queues"]
    assert [at(research["held"], hour * 3600) for hour in (0, 8, 9, 18)] == [14, 12, 6, 0]
    assert [at(product["held"], hour * 3600) for hour in (7.9, 8, 10)] == [0, 3, 7]
    assert [at(students["held"], hour * 3600) for hour in (10, 12)] == [1, 0]
    evicted = [one for one in play["decisions"] if one["kind"] == "evict"]
    assert [one["at"] for one in evicted] == sorted(one["at"] for one in evicted)
    assert {one["queue"] for one in evicted} == {"research"} and all(28800 <= one["at"] <= 32400 for one in evicted)


def test_of_two_runs_both_are_there(tmp_path: Path) -> None:
    beside = tmp_path / "other.yaml"
    beside.write_text((EXAMPLES / "a1-netapp.yaml").read_text().replace("quota: 8}", "quota: 6}"))
    first, second = written(tmp_path, "a1-netapp.yaml", "--beside", str(beside))["plays"]
    assert [at(one["queues"][3]["quota"], 1) for one in (first, second)] == [8, 6]
    assert {one["name"]: at(one["held"], 5) for one in first["queues"]} == HELD[5]
    assert first["decisions"] and second["decisions"] and len(second["titles"]) == 5


def test_of_a_trace_it_has_the_decisions_too(tmp_path: Path) -> None:
    cluster, trace = tmp_path / "c.yaml", tmp_path / "t.csv"
    cluster.write_text("nodes: [{name: n1, gpus: 2, memory: 80Gi}]\nqueues: [{name: vision, quota: 2}]\n")
    trace.write_text("at,name,queue,gpus,duration\n10s,a,vision,2,20s\n15s,b,vision,1,5s\n")
    (play,) = written(tmp_path, str(trace), "--cluster", str(cluster))["plays"]
    assert decided(play, 10.0) == [("start", "a")] and decided(play, 30.0) == [("end", "a"), ("start", "b")]


def test_a_step_that_is_not_as_expected_is_named(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    text = (EXAMPLES / "a1-netapp.yaml").read_text()
    assert "held: {" in text
    wrong.write_text(re.sub(r"held: \{a: \d", "held: {a: 15", text, count=1))
    (play,) = written(tmp_path, str(wrong))["plays"]
    (failure,) = play["failures"]
    assert re.match(r".*: step 1, .*", failure)


def test_of_a_long_run_the_first_decisions_are_kept_and_the_rest_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = written(tmp_path, "a1-netapp.yaml")["plays"]
    monkeypatch.setattr(plays, "MOST_DECISIONS", 10)
    (play,) = written(tmp_path, "a1-netapp.yaml")["plays"]
    assert play["decisions"] == whole["decisions"][:10]
    assert play["left_out"] == len(whole["decisions"]) - 10 > 0


def test_beside_a_run_that_is_told_step_by_step_the_other_one_is_only_in_the_file(tmp_path: Path) -> None:
    file, name = tmp_path / "run.html", str(EXAMPLES / "a1-netapp.yaml")
    done = CliRunner().invoke(command, ["simulate", name, "--report", str(file), "--beside", name])
    lines = done.output.splitlines()
    assert done.exit_code == 0 and sum(line.startswith("1. ") for line in lines) == 1
    assert lines[-1] == f"to look through: {file}" and "drawn to" not in done.output
