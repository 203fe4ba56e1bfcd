"""A change is made in a copy, noticed or not, and taken back; which tests run first."""

from __future__ import annotations

import pytest

from mutation import python_changes, record, trial
from mutation.change import Change
from mutation.groups import ROOT, Group
from mutation.record import Record, Records
from mutation.trial import Bench

PATH = "gpushare/quantity.py"
FOLDER = "tests/unit"
GROUP = Group("some", (PATH,), (FOLDER,))


def bench(tmp_path, *tests: str) -> Bench:
    return Bench(GROUP, Records(GROUP, [Record({f"{FOLDER}/{test}": 0.1 for test in tests})]), tmp_path / "copy")


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
    monkeypatch.setattr(trial, "PATIENCE", 4.0)
    one = written(tmp_path, text)
    assert one._first_failure([f"{FOLDER}/test_written.py::test"]) == f"{FOLDER}/test_written.py::test"


@pytest.mark.parametrize("fails", [{1}, {1, 2}, {1, 2, 3}], ids=["once", "without the change too", "each time"])
def test_a_failure_that_does_not_come_and_go_with_the_change_is_not_counted(tmp_path, change, fails) -> None:
    count = tmp_path / "count"
    one = written(
        tmp_path,
        f"""
def test():
    with open({str(count)!r}, "a+") as file:
        file.write("x")
        assert file.tell() not in {fails}
""",
    )
    assert one.run(change).verdict == "survived"


def test_what_is_no_program_is_not_tried(tmp_path) -> None:
    assert bench(tmp_path).run(Change(PATH, 0, 0, b"(", "sign")).verdict == "no program"


def test_tests_that_run_the_line_come_first_and_the_fastest_file_of_them() -> None:
    lines = (ROOT / PATH).read_text().splitlines()
    one = Record(
        {"a::slow": 3.0, "a::other": 0.1, "b::fast": 1.0, "c::unknown": 9.0},
        {"a::slow": {PATH: [7, 8]}, "b::fast": {PATH: [8]}, "a::other": {PATH: [9]}},
        {PATH: lines},
    )
    assert Records(GROUP, [one]).order(PATH, range(8, 9)) == (
        ["b::fast", "a::slow", "c::unknown"],
        ["a::other"],
    )


def test_of_a_pure_group_every_test_may_run_the_line() -> None:
    pure = Group("pure", (PATH,), (FOLDER,), pure=True)
    assert Records(pure, [Record({"a::slow": 3.0, "b::fast": 1.0})]).order(PATH, range(8, 9)) == (
        ["b::fast", "a::slow"],
        [],
    )


def test_a_line_is_found_again_after_lines_were_added_before_it() -> None:
    assert record._earlier(["a", "b"], ["x", "a", "y", "b"], range(4, 5)) == {2}
    assert record._earlier(["a", "b"], ["x", "a", "y", "b"], range(3, 4)) == set()


def test_no_more_tests_run_than_the_time_allows() -> None:
    assert trial._as_far_as(["a", "b", "c"], {"a": 1.0, "b": 7.0, "c": 3.0}, 5.0) == (["a", "c"], 4.0)
    assert trial._as_far_as(["b"], {"b": 7.0}, 5.0) == (["b"], 7.0)
    assert trial._as_far_as([], {}, 5.0) == ([], 0.0)
