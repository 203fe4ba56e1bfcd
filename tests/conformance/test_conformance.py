"""Situations recorded with another scheduler, where their folder lies beside the checkout (or GPUSHARE_CONFORMANCE)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from conformance import run

ROOT = Path(__file__).resolve().parents[2]
PLACES = [
    Path(os.environ.get("GPUSHARE_CONFORMANCE", "")),
    ROOT.parent / "shared/conformance",
    ROOT.parents[1] / "shared/conformance",
]


def folder() -> Path | None:
    return next((place for place in PLACES if str(place) != "." and (place / "cases.json").is_file()), None)


@pytest.fixture(scope="module")
def result() -> run.Score:
    place = folder()
    if place is None:
        pytest.skip("no conformance cases beside the checkout, and GPUSHARE_CONFORMANCE names none")
    cases = json.loads((place / "cases.json").read_text())["cases"]
    return run.score(cases, json.loads((place / "converged.json").read_text()))


def test_the_invariants_hold_in_every_case(result) -> None:
    assert [miss for miss in result.misses if miss.level == "invariants"] == []


def test_every_difference_is_on_purpose_and_every_exception_needed(result) -> None:
    lines, good = run.report(result, run.read_exceptions(run.EXCEPTIONS))
    assert good, "\n".join(lines)


def test_no_more_evictions_in_all(result) -> None:
    assert result.ours <= result.theirs


def test_exceptions_have_reasons() -> None:
    for case, (levels, reason) in run.read_exceptions(run.EXCEPTIONS).items():
        assert levels, case
        assert len(reason) > 30, case


def test_a_miss_without_an_exception_is_reported() -> None:
    result = run.Score(cases=2, misses=[run.Miss("c1", "running", "+x"), run.Miss("c2", "queues", "q")])
    lines, good = run.report(result, {"c1": (frozenset({"running"}), "why"), "c3": (frozenset({"queues"}), "why")})
    assert not good
    assert "queues: c2\n    q" in "\n".join(lines)
    assert "c3: queues is as theirs: no exception is needed" in lines
    assert "running    0/2  (1 differ on purpose)" in lines
    assert run.report(run.Score(), {}) == (
        [f"{level:<10} 0/0" + ("  ours 0, theirs 0" if level == "evictions" else "") for level in run.LEVELS],
        True,
    )
