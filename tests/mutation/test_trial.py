"""A change is made in a copy, noticed or not, and taken back; which tests run first."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from mutation import python_changes, record, trial
from mutation.change import Change
from mutation.groups import ROOT, Group
from mutation.record import Record, Records
from mutation.scratch import Scratch
from mutation.trial import Bench

PATH = "gpushare/quantity.py"
FOLDER = "tests/unit"
GROUP = Group("some", (PATH,), (FOLDER,))


def bench(tmp_path, *tests: str) -> Bench:
    names = [f"{FOLDER}/{test}" for test in tests]
    record = Record(dict.fromkeys(names, 0.1), {name: {} for name in names})
    return Bench(GROUP, Records(GROUP, [record]), tmp_path / "copy")


@pytest.fixture
def change() -> Change:
    source = (ROOT / PATH).read_bytes()
    function = source.index(b"def resolve")
    return next(one for one in python_changes.changes(PATH, source) if one.start > function and one.operator == "sign")


def test_a_change_is_noticed_by_a_test_that_fails_and_taken_back(tmp_path, change) -> None:
    before = (ROOT / PATH).read_bytes()
    one = bench(tmp_path, "test_quantity.py::test_resolve")
    outcome = one.run(change)
    assert outcome.verdict == "noticed"
    assert (one.scratch.root / PATH).read_bytes() == before
    assert (ROOT / PATH).read_bytes() == before


def test_a_change_that_no_test_looks_at_survives(tmp_path, change) -> None:
    assert bench(tmp_path, "test_toml_lines.py::test_every_key_has_its_line").run(change).verdict == "survived"


def written(tmp_path, text: str) -> Bench:
    """With one test of this text."""
    one = bench(tmp_path, "test_written.py::test")
    (one.scratch.root / FOLDER / "test_written.py").write_text(text)
    return one


@pytest.mark.parametrize(
    "text",
    [
        "import time\ndef test(): time.sleep(100)\n",
        "import signal, time\n"
        "def test(): signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); time.sleep(100)\n",
        "import os\ndef test(): os.abort()\n",
    ],
    ids=["the test hangs", "pytest hangs", "pytest dies"],
)
def test_what_hangs_or_dies_is_told_by_the_test_that_ran(tmp_path, monkeypatch, text) -> None:
    monkeypatch.setattr(trial, "PATIENCE_OF_A_TEST", 0.1)
    one, test = written(tmp_path, text), f"{FOLDER}/test_written.py::test"
    for seconds in (4.0, 12.0, 36.0):  # pytest has to reach the test within them, which takes long on a busy machine
        monkeypatch.setattr(trial, "PATIENCE", seconds)
        found = one._first_failure([test])
        if found != trial.NOT_BEGUN:
            break
    assert found == test


def test_a_thread_that_a_failed_test_has_left_is_not_waited_for(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(trial, "LEAVE", 0.5)
    text = "import threading\ndef test(): threading.Thread(target=threading.Event().wait).start(); assert False\n"
    began = time.monotonic()
    assert (
        written(tmp_path, text)._first_failure([f"{FOLDER}/test_written.py::test"]) == f"{FOLDER}/test_written.py::test"
    )
    assert time.monotonic() - began < trial.PATIENCE


@pytest.mark.parametrize("fails", [{1}, {1, 2}, {1, 2, 3}], ids=["once", "without the change too", "each time"])
def test_a_failure_that_does_not_come_and_go_with_the_change_is_not_counted(tmp_path, change, fails) -> None:
    assert written(tmp_path, failing(tmp_path / "count", fails)).run(change).verdict == "survived"


def failing(count: Path, fails: set[int]) -> str:
    """A test that fails in these of its runs, counted from 1."""
    return f"""
def test():
    with open({str(count)!r}, "a+") as file:
        file.write("x")
        assert file.tell() not in {fails}
"""


@pytest.mark.parametrize(
    ("runs_it", "fails", "verdict"),
    [(True, {1, 3}, "noticed"), (False, {1, 3}, "survived"), (False, {1, 3, 5, 7}, "noticed")],
)
def test_a_test_that_is_not_known_to_run_the_line_has_to_fail_more_often(
    tmp_path, change, runs_it, fails, verdict
) -> None:
    one = written(tmp_path, failing(tmp_path / "count", fails))
    source = (ROOT / PATH).read_bytes()
    line = change.line_number(source) if runs_it else 1
    test = f"{FOLDER}/test_written.py::test"
    one.records = Records(GROUP, [Record({test: 0.1}, {test: {PATH: [line]}}, {PATH: source.decode().splitlines()})])
    assert one.run(change).verdict == verdict


def test_a_copy_has_all_that_is_built_so_that_no_test_builds_it_in_its_own_time(tmp_path) -> None:
    libraries = [path.relative_to(ROOT) for path in (ROOT / "gpushare").rglob("*.so*")]
    copied = Scratch.make(tmp_path / "copy").root
    assert libraries
    assert [path for path in libraries if not (copied / path).exists()] == []


def test_what_is_no_program_is_not_tried(tmp_path) -> None:
    assert bench(tmp_path).run(Change(PATH, 0, 0, b"(", "sign")).verdict == "no program"


def test_what_a_test_runs_is_measured_in_it_and_in_the_processes_that_it_starts(tmp_path) -> None:
    scratch = Scratch.make(tmp_path / "copy")
    path = f"{FOLDER}/test_written.py"
    parse = "from gpushare.quantity import Quantity; Quantity.parse('1Gi')"
    (scratch.root / path).write_text(
        f"""
import subprocess, sys
def test_here():
    {parse}
def test_there():
    subprocess.run([sys.executable, "-c", {parse!r}], check=True)
def test_elsewhere():
    pass
"""
    )
    found = record._measure(GROUP, scratch, path)
    text = (ROOT / PATH).read_text().splitlines()
    first = next(number for number, line in enumerate(text, 1) if line.startswith("    def parse("))
    body = range(first + 1, first + 30)
    ran = {test.rpartition("_")[2]: set(of.get(PATH, ())) & set(body) for test, of in found.lines.items()}
    assert ran["here"] and ran["there"] >= ran["here"] and not ran["elsewhere"]


def test_tests_that_run_the_line_come_first_and_the_fastest_file_of_them() -> None:
    text = (ROOT / PATH).read_text()
    line = text[: text.index("        if not ")].count("\n") + 1  # of a function
    one = Record(
        {"a::slow": 3.0, "a::other": 0.1, "b::fast": 1.0, "c::elsewhere": 9.0},
        {"a::slow": {PATH: [line - 1, line]}, "b::fast": {PATH: [line]}, "a::other": {PATH: [1]}, "c::elsewhere": {}},
        {PATH: text.splitlines()},
    )
    assert Records(GROUP, [one]).order(PATH, range(line, line + 1)) == (
        ["b::fast", "a::slow"],
        ["a::other", "c::elsewhere"],
    )


def test_what_a_module_sets_while_it_is_imported_is_asked_of_all_that_run_a_line_of_it() -> None:
    text = (ROOT / PATH).read_text()
    constant = text[: text.index("\nMOST_GIB = ")].count("\n") + 2
    one = Record(
        {"a::imports": 3.0, "b::uses": 1.0, "c::elsewhere": 9.0},
        {"a::imports": {PATH: [constant]}, "b::uses": {PATH: [300]}, "c::elsewhere": {}},
        {PATH: text.splitlines()},
    )
    assert Records(GROUP, [one]).order(PATH, range(constant, constant + 1)) == (
        ["b::uses", "a::imports"],
        ["c::elsewhere"],
    )


def test_defaults_run_while_a_module_is_imported_and_bodies_do_not() -> None:
    text = (
        "A = 1\nclass B:\n    c: int = 2\n    def d(self, e=3):\n        f = 4\n        return f\n\nasync def g(): pass"
    )
    assert record.while_imported(text) == {1, 2, 3, 4, 7}


def test_of_a_pure_group_every_test_may_run_the_line() -> None:
    pure = Group("pure", (PATH,), (FOLDER,), pure=True)
    assert Records(pure, [Record({"a::slow": 3.0, "b::fast": 1.0})]).order(PATH, range(8, 9)) == (
        ["b::fast", "a::slow"],
        [],
    )


def test_a_test_that_compiles_a_source_itself_may_run_any_line_of_it() -> None:
    compiling = replace(GROUP, unmeasured={"a": (PATH,)})
    record = Record({"a::one": 1.0, "b::two": 1.0}, {"a::one": {}, "b::two": {}}, {PATH: []})
    assert Records(compiling, [record]).order(PATH, range(8, 9)) == (["a::one"], ["b::two"])


def test_a_line_is_found_again_after_lines_were_added_before_it() -> None:
    assert record._earlier(["a", "b"], ["x", "a", "y", "b"], range(4, 5)) == {2}
    assert record._earlier(["a", "b"], ["x", "a", "y", "b"], range(3, 4)) == set()


def test_no_more_tests_run_than_the_time_allows() -> None:
    assert trial._as_far_as(["a", "b", "c"], {"a": 1.0, "b": 7.0, "c": 3.0}, 5.0) == (["a", "c"], 4.0)
    assert trial._as_far_as(["b"], {"b": 7.0}, 5.0) == (["b"], 7.0)
    assert trial._as_far_as([], {}, 5.0) == ([], 0.0)
