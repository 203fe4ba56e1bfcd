"""A pytest plugin that notes which lines each test runs, and how long it takes.

Python: coverage.py with a context for each test, here and in the processes that a test starts, if record.py has left
the settings for it. C: the library counts its lines itself (gcov); what it has counted is moved aside after each test.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

OUTPUT = Path(os.environ["MUTATION_OUTPUT"])
COUNTS = os.environ.get("MUTATION_COUNTS")
"""Where the library under test leaves its counts."""

PURE = "MUTATION_PURE" in os.environ
"""The tests only compute: what counts is the processor's time, which other work on the machine does not change."""


class Recorder:
    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        self.order: list[str] = []
        self.coverage = None
        if (OUTPUT / "here.ini").exists():
            self.coverage = coverage.Coverage(config_file=str(OUTPUT / "here.ini"))
            self.coverage.start()
            os.environ["COVERAGE_PROCESS_START"] = str(OUTPUT / "there.ini")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        os.environ["MUTATION_TEST"] = f"test{len(self.order)}"
        if self.coverage is not None:
            self.coverage.switch_context(f"test{len(self.order)}")
        self.order.append(item.nodeid)
        test = self.tests[item.nodeid] = {"seconds": 0.0, "skipped": False}
        before = sum(os.times()[:4])
        try:
            return (yield)
        finally:
            if PURE:
                test["seconds"] = sum(os.times()[:4]) - before
            if COUNTS:
                self._keep_counts(OUTPUT / f"counts-test{len(self.order) - 1}")

    def _keep_counts(self, target: Path) -> None:
        for path in Path(COUNTS or "").glob("*.gcda"):
            target.mkdir(exist_ok=True)
            shutil.move(path, target / path.name)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.tests[report.nodeid]
        if not PURE:
            test["seconds"] += report.duration
        test["skipped"] |= report.skipped  # then it notices nothing

    def pytest_sessionfinish(self) -> None:
        if self.coverage is not None:
            self.coverage.stop()
            self.coverage.save()
        for number, id in enumerate(self.order):
            self.tests[id]["context"] = f"test{number}"
        (OUTPUT / "tests.json").write_text(json.dumps(self.tests))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder())
