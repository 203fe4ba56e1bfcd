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


def test_every_difference_is_listed_and_everything_listed_differs(result) -> None:
    listed = (run.read_exceptions(run.EXCEPTIONS, kind) for kind in ("exception", "open"))
    lines, good = run.report(result, *listed)
    assert good, "\n".join(lines)


def test_nothing_is_open() -> None:
    """Where the other scheduler is right by our own rules. An entry is removed when ours gets there."""
    still_open = run.read_exceptions(run.EXCEPTIONS, "open")
    if still_open:
        pytest.xfail("; ".join(f"{case}: {reason}" for case, (_, reason) in still_open.items()))


def test_no_more_evictions_in_all(result) -> None:
    assert result.ours <= result.theirs


def test_exceptions_have_reasons() -> None:
    for case, (levels, reason) in run.read_exceptions(run.EXCEPTIONS).items():
        assert levels, case
        assert len(reason) > 30, case


def test_what_is_listed_must_differ_and_what_differs_must_be_listed() -> None:
    misses = [run.Miss("c1", "running", "+x"), run.Miss("c2", "queues", "q"), run.Miss("c4", "queues", "q")]
    running, queues = frozenset({"running"}), frozenset({"queues"})
    lines, good = run.report(
        run.Score(4, misses=misses), {"c1": (running, "a"), "c3": (queues, "b")}, {"c4": (queues, "c")}
    )
    assert not good
    text = "\n".join(lines)
    assert "queues: c2\n    q" in text
    assert "c3: queues is as theirs: it need not be listed" in text
    assert "running    0/4  (1 differ on purpose)" in lines
    assert "queues     0/4  (1 open)" in lines
    assert run.report(run.Score(), {}, {})[1]
