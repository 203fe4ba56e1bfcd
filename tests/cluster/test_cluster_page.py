"""docs/cluster.md cannot rot: every key, action, check and code is on it and nothing else, and what it shows works."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from gpushare.cli import main
from gpushare.cluster import scenario, scenario_checks, spec_parser
from gpushare.cluster.model import Policy
from gpushare.cluster.reasons import Code

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text()
SHOWN = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
WAITS = {Code.LIMIT, Code.QUOTA, Code.NO_SPACE, Code.NO_NODE, Code.RESERVED, Code.ENDING, Code.HELD, Code.RESTS}


def table(heading: str) -> set[str]:
    """The words in the first column of the table with this head."""
    body = PAGE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    rows = [line.split("|")[1] for line in body.splitlines()[2:]]
    return {word for row in rows for word in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize(
    ("heading", "keys"),
    [
        ("`nodes:`", spec_parser.NODE_KEYS),
        ("`queues:`", spec_parser.QUEUE_KEYS),
        ("`policy:`", [field.name for field in dataclasses.fields(Policy)]),
        ("key", (*spec_parser.JOB_KEYS, *spec_parser.SERIES_KEYS)),
        ("action", scenario.ACTIONS),
        ("check", scenario_checks.CHECKS),
        ("code", WAITS),
    ],
)
def test_each_table_has_what_there_is(heading: str, keys) -> None:
    assert table(heading) == {str(key) for key in keys}


def test_jobs_that_run_already_are_told_of() -> None:
    told = PAGE.split("`jobs` under `given` also take", 1)[1].split("\n\n", 1)[0]
    assert set(spec_parser.RESTORED_KEYS) - {"duration"} <= set(re.findall(r"`(\w+)`", told))


def test_the_scenario_that_is_shown_goes_as_it_says(tmp_path) -> None:
    (tmp_path / "shown.yaml").write_text(SHOWN[1])
    _, failures = scenario.run(scenario.read(tmp_path / "shown.yaml"))
    assert not failures


def test_the_commands_that_are_shown_work(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "trace.csv").write_text("at,name,queue,gpus,duration\n0s,j,vision,1,1h\n")
    lines = re.findall(r"^gpushare (cluster .*)$", PAGE, re.MULTILINE)
    assert len(lines) == 9
    for line in lines:
        words = shlex.split(line, comments=True)
        for short, where in (("examples/", ROOT), ("trace.", tmp_path), ("day.html", tmp_path)):
            words = [word.replace(short, f"{where}/{short}") for word in words]
        assert main(words) == 0, f"{line}\n{capsys.readouterr().err}"
    assert (tmp_path / "trace.png").stat().st_size > 1000


def test_the_jobs_that_are_shown_run_on_the_example_cluster(tmp_path, capsys) -> None:
    (tmp_path / "jobs.yaml").write_text(SHOWN[0])
    store = ["--store", str(tmp_path / "cluster.db")]
    assert main(["cluster", "apply", str(ROOT / "examples/cluster/cluster.yaml"), *store]) == 0
    capsys.readouterr()
    assert main(["cluster", "submit", str(tmp_path / "jobs.yaml"), *store]) == 0
    out, err = capsys.readouterr()
    started = [line.split()[1] for line in out.splitlines() if line.startswith("start")]
    assert sorted(started) == ["gang", "notebook", "resnet", "sweep-1", "sweep-2", "sweep-3", "tuner"]
    assert err == ""
