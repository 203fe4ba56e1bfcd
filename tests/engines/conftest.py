"""The stages of the engines' tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from local_stage import Stage


@pytest.fixture
def stage(tmp_path):
    """A runner whose tasks are plain shell scripts."""
    made = Stage(tmp_path)
    yield made
    made.clear()


def pytest_terminal_summary(terminalreporter) -> None:
    """What the conformance suite has seen of each engine."""
    said = [
        words
        for report in terminalreporter.stats.get("passed", ())
        for name, words in getattr(report, "user_properties", ())
        if name == "conformance"
    ]
    if said:
        terminalreporter.section("engines")
        for words in said:
            terminalreporter.line(words)
