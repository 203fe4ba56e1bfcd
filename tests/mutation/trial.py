"""One change at a time: make it in a copy, run the tests that should notice, take it back."""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import subprocess
import tempfile
import xml.etree.ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutation.change import Change
from mutation.groups import ROOT, Group
from mutation.library import Builder
from mutation.record import Records
from mutation.scratch import Scratch

AT_MOST = 60.0
"""Seconds of tests for one change, by their recorded times: first those that run the line, then others."""
SLOWER = 8
"""A changed program may be that much slower, on a machine with other work, before it counts as hanging."""
PATIENCE = 60.0
"""Seconds on top of that, for the start of pytest and of the tests' own builds."""
ENOUGH_AGAIN = 3
"""How many failures of tests that keep times may turn out to be chance."""


@dataclass(frozen=True)
class Outcome:
    change: Change
    verdict: str
    """noticed, survived, no program, same code."""
    by: str = ""
    """The test that noticed."""
    tests: int = 0
    """How many ran at most."""


class Bench:
    """A copy of the tree in which one group's sources are changed."""

    def __init__(self, group: Group, records: Records, directory: Path) -> None:
        self.group, self.records = group, records
        self.scratch = Scratch.make(directory)
        self.builder: Builder | None = None
        if group.name == "library":
            self.builder = Builder(self.scratch)
            self.builder.build()

    def run(self, change: Change) -> Outcome:
        source = (ROOT / change.path).read_bytes()
        changed = change.apply(source)
        if self.builder is None and not _is_another_program(source, changed):
            return Outcome(change, "no program")
        self.scratch.write(change.path, changed)
        try:
            if self.builder is not None:
                built = self.builder.build(change.path)
                if built != "built":
                    return Outcome(change, built)
            return self._judge(change, source)
        finally:
            self.scratch.write(change.path, source)
            if self.builder is not None:
                self.builder.build(change.path)
            self.scratch.clear()

    def _judge(self, change: Change, source: bytes) -> Outcome:
        covering, others = self.records.order(change.path, change.lines(source))
        tests, seconds = _as_far_as([*covering, *others], self.records.seconds)
        count = len(tests)
        for _ in range(ENOUGH_AGAIN):
            failed = self._first_failure(tests, seconds)
            if failed is None:
                return Outcome(change, "survived", tests=count)
            if self.group.pure or failed not in tests or self._first_failure([failed], 10.0) is not None:
                return Outcome(change, "noticed", failed, count)
            tests = [test for test in tests if test != failed]  # it failed by chance
        return Outcome(change, "survived", tests=count)

    def _first_failure(self, tests: Sequence[str], seconds: float) -> str | None:
        """The test that failed, or what else went wrong; None if all passed."""
        with tempfile.TemporaryDirectory() as made:
            report = Path(made, "report.xml")
            command = [self.scratch.python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header"]
            command += ["-o", "junit_family=xunit1", f"--junitxml={report}", *tests]
            process = subprocess.Popen(
                command,
                cwd=self.scratch.root,
                env=self.scratch.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                code = process.wait(PATIENCE + SLOWER * seconds)
            except subprocess.TimeoutExpired:
                return "(it hangs)"
            finally:
                _end(process)
            if code == 0:
                return None
            return _failed_in(report, tests) or f"(pytest ended with {code})"


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _failed_in(report: Path, tests: Sequence[str]) -> str | None:
    try:
        cases = xml.etree.ElementTree.parse(report).iter("testcase")
    except (OSError, xml.etree.ElementTree.ParseError):
        return None
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            path, name = case.get("file") or "", case.get("name") or ""
            return next((test for test in tests if test.startswith(path) and test.endswith(f"::{name}")), name)
    return None


def _as_far_as(tests: Sequence[str], times: dict[str, float]) -> tuple[list[str], float]:
    """As many of the tests, in this order, as AT_MOST allows; and how long they take."""
    chosen: list[str] = []
    seconds = 0.0
    for test in tests:
        if seconds + times[test] <= AT_MOST or not chosen:
            chosen.append(test)
            seconds += times[test]
    return chosen, seconds


def _is_another_program(source: bytes, changed: bytes) -> bool:
    try:
        return ast.dump(ast.parse(source)) != ast.dump(ast.parse(changed))
    except SyntaxError:
        return False
