"""One change at a time: make it in a copy, run the tests that should notice, take it back."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
import xml.etree.ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mutation.change import Change
from mutation.groups import Group
from mutation.library import Builder
from mutation.record import Records
from mutation.scratch import Scratch

MOST_OF_THE_LINE = 300.0
"""Seconds, by their recorded times, of the tests that run the changed line,"""
AT_MOST = 60.0
"""and of others, which run the file in a process that was not measured, or another way."""
SLOWER = 12
"""A changed program may be that much slower, on a machine with other work, before it counts as hanging."""
PATIENCE = 60.0
"""Seconds on top of that, for the start of pytest and of the tests' own builds,"""
PATIENCE_OF_A_TEST = 20.0
"""and for a test of no length."""
LEAVE = 10.0
"""Seconds from pytest's report to its end."""
TIMES = 3
"""How often a failure has to come and go with the change, if the test is not known to run its line: a test that fails
now and then fails so by chance."""
ENOUGH_AGAIN = 5
"""How many failures may turn out to be chance, or the doing of the tests before, when the test is run by itself."""

NOT_BEGUN = "(it hangs)"
"""What is told of pytest if it has come to no test in the time."""


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
        self.unsound: set[str] = set()
        """Tests that failed without a change."""
        self.builder: Builder | None = None
        if group.name == "library":
            self.builder = Builder(self.scratch)
            self.builder.build()

    def run(self, change: Change) -> Outcome:
        source = (self.scratch.root / change.path).read_bytes()
        changed = change.apply(source)
        if self.builder is None and not _is_another_program(source, changed):
            return Outcome(change, "no program")
        try:
            built = self._put(change.path, changed)
            return self._judge(change, source) if built == "built" else Outcome(change, built)
        finally:
            self._put(change.path, source)
            self.scratch.clear()

    def _judge(self, change: Change, source: bytes) -> Outcome:
        covering, others = self.records.order(change.path, change.lines(source))
        tests, seconds = [], 0.0
        for some, most in ((covering, MOST_OF_THE_LINE), (others, AT_MOST)):
            sound = [one for one in some if one not in self.unsound]
            chosen, takes = _as_far_as(sound, self.records.seconds, most)
            tests, seconds = [*tests, *chosen], seconds + takes
        count = len(tests)
        for _ in range(ENOUGH_AGAIN):
            failed = self._first_failure(tests)
            if failed is None:
                return Outcome(change, "survived", tests=count)
            times = 1 if failed in covering else TIMES
            if all(self._is_of_the_change(failed, tests, change, source) for _ in range(times)):
                return Outcome(change, "noticed", failed, count)
            tests = [test for test in tests if test != failed]
        return Outcome(change, "survived", tests=count)

    def _is_of_the_change(self, failed: str, tests: Sequence[str], change: Change, source: bytes) -> bool:
        """Without the change the test passes, and with it it fails once more. Asked in this order each time.

        Other work on the machine may make a test fail for want of time. It comes and goes, so a test that fails, passes
        and fails just as the change comes and goes fails for the change.
        """
        if failed not in tests:  # the tests cannot even be collected
            return self._first_failure(tests) is not None
        self._put(change.path, source)
        if self._first_failure([failed]) is not None:
            self.unsound.add(failed)
            return False
        self._put(change.path, change.apply(source))
        return self._first_failure([failed]) is not None

    def _put(self, path: str, text: bytes) -> str:
        """Into the copy, and into the library that is built there: "built", "no program", "same code"."""
        self.scratch.write(path, text)
        return self.builder.build(path) if self.builder is not None else "built"

    def _first_failure(self, tests: Sequence[str]) -> str | None:
        """The test that failed or hung, or what else went wrong; None if all passed."""
        if not tests:
            return None
        with tempfile.TemporaryDirectory() as made:
            report, chosen, started = (Path(made, name) for name in ("report.xml", "chosen.json", "started"))
            times = {test: self.records.seconds[test] for test in tests}
            chosen.write_text(json.dumps({test: PATIENCE_OF_A_TEST + SLOWER * times[test] for test in tests}))
            command = [
                self.scratch.python,
                "-m",
                "pytest",
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "-p",
                "mutation.chooser",
            ]
            command += ["-o", "junit_family=xunit1", f"--junitxml={report}"]
            command += dict.fromkeys(test.partition("::")[0] for test in tests)
            process = subprocess.Popen(
                command,
                cwd=self.scratch.root,
                env=self.scratch.environment(
                    MUTATION_CHOSEN=str(chosen),
                    MUTATION_STARTED=str(started),
                    PYTHONPATH=f"{self.scratch.root}/tests",
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                code = _code_of(process, PATIENCE + SLOWER * sum(times.values()), report)
            except subprocess.TimeoutExpired:
                return _last_started(started) or NOT_BEGUN
            finally:
                _end(process)
            if code == pytest.ExitCode.NO_TESTS_COLLECTED:
                raise RuntimeError(f"none of these tests is there: {tests}")
            if code == pytest.ExitCode.OK:
                return None
            return _failed_in(report, tests) or _last_started(started) or f"(pytest ended with {code})"


def _code_of(process: subprocess.Popen[bytes], patience: float, report: Path) -> int:
    """Its exit status. A test that has failed may leave a thread behind for which pytest waits after it has written its
    report: then that of failed tests. Raises TimeoutExpired."""
    until = time.monotonic() + patience
    while True:
        try:
            return process.wait(min(LEAVE, max(0.0, until - time.monotonic())))
        except subprocess.TimeoutExpired:
            if report.exists() and time.time() - report.stat().st_mtime >= LEAVE:
                return pytest.ExitCode.TESTS_FAILED
            if time.monotonic() >= until:
                raise


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


def _last_started(path: Path) -> str | None:
    """The test that ran when pytest itself hung or died."""
    return path.read_text() if path.exists() else None


def _as_far_as(tests: Sequence[str], times: dict[str, float], most: float) -> tuple[list[str], float]:
    """As many of the tests, in this order, as so many seconds allow; and how long they take."""
    chosen: list[str] = []
    seconds = 0.0
    for test in tests:
        if seconds + times[test] <= most or not chosen:
            chosen.append(test)
            seconds += times[test]
    return chosen, seconds


def _is_another_program(source: bytes, changed: bytes) -> bool:
    try:
        return ast.dump(ast.parse(source)) != ast.dump(ast.parse(changed))
    except SyntaxError:
        return False
