"""The table of checks, the verdict over answers, and the report: what computes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuday import judge, table
from gpuday.checks.tools import TOOLS
from gpuday.report import report

HERE = Path(__file__).resolve().parent

TABLE = """
[assumption.even]
says = "numbers are even"
otherwise = "halves are lost"

[[check]]
number = 1
name = "one"
part = 1
seconds = 10
asks = "What is it?"
answer = [
    { name = "the number", side = "bare", like_software = true, assumes = "even" },
    { name = "how many", least = 2, most = 4, assumes = "even", part = "counting" },
    { name = "the list", equals = [], assumes = "even" },
]
"""


def load(directory: Path, text: str) -> tuple[table.Check, ...]:
    file = directory / "checks.toml"
    file.write_text(text)
    return table.load(file)


@pytest.fixture
def check(tmp_path):
    (one,) = load(tmp_path, TABLE)
    return one


SOFTWARE = {"bare": {"the number": 8}}


def result(*, rc=0, bare=None, values=None, **fields):
    given = {"bare": {"the number": 8} if bare is None else bare}
    given["values"] = {"how many": 3, "the list": []} if values is None else values
    return judge.Result(1, "one", rc=rc, **given, **fields)


# ---- the table ---------------------------------------------------------------------------------------


def test_the_checks_are_those_of_the_day():
    checks = table.load()
    assert len(checks) == 29
    assert [check.part for check in checks] == sorted(check.part for check in checks)
    assert {check.name.replace("-", "_") for check in checks} == {
        path.stem for path in (HERE / "checks").glob("[a-z]*.py")
    }
    for part in table.PARTS:
        assert sum(check.seconds for check in checks if check.part == part) <= 600


def test_each_check_says_what_it_tests():
    for check in table.load():
        assert check.answers, check.name
        assert check.asks.endswith((".", "?")), check.name
        module = (HERE / "checks" / f"{check.name.replace('-', '_')}.py").read_text()
        assert re.match(rf'"""{check.number}: ', module), f"{check.name}: its module has another number"


def test_nothing_changes_the_settings_of_a_gpu():
    """Neither by itself nor by a tool: NVML's setters, nvidia-smi, and the clocks that ncu sets unless told not to."""
    texts = {path: path.read_text() for path in HERE.rglob("*") if path.suffix in (".py", ".c", ".cu", ".sh")}
    setters = re.compile(r"nvmlDevice(Set|Reset|Clear)|nvidia.smi\b|lock.gpu.clocks")
    assert [path.name for path, text in texts.items() if setters.search(text) and path != Path(__file__)] == []
    assert TOOLS["ncu"][1:3] == ("--clock-control", "none")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("number = 1", "number = 2"), "the numbers"),
        (("part = 1\nseconds", "part = 3\nseconds"), "no part 3"),
        (("seconds = 10", "seconds = 601"), "more than 600"),
        (('assumes = "even" },\n]', 'assumes = "odd" },\n]'), "no assumption 'odd'"),
        (("equals = [], ", ""), "needs equals, or like_software"),
        (("equals = [], ", "equals = [], most = 1, "), "needs equals, or like_software"),
        (('side = "bare"', 'side = "both"'), "no side 'both'"),
        (
            ("[[check]]", '[assumption.odd]\nsays = ""\notherwise = ""\n[[check]]'),
            "no answer tests these assumptions: odd",
        ),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(tmp_path, change, said):
    assert change[0] in TABLE
    with pytest.raises(table.BadTable, match=re.escape(said)):
        load(tmp_path, TABLE.replace(*change))


def test_two_checks_of_one_name_are_refused(tmp_path):
    second = TABLE[TABLE.index("[[check]]") :].replace("number = 1", "number = 2")
    with pytest.raises(table.BadTable, match="same name"):
        load(tmp_path, TABLE + second)


# ---- the verdict -------------------------------------------------------------------------------------


def test_all_as_assumed_passes(check):
    judged = judge.judge(check, result(), SOFTWARE)
    assert (judged.state, judged.findings, judged.good) == ("passed", [], True)


@pytest.mark.parametrize(
    "changed",
    [
        {"bare": {"the number": 9}},
        {"values": {"how many": 5, "the list": []}},
        {"values": {"how many": 1, "the list": []}},
        {"values": {"how many": 3, "the list": [1]}},
        {"values": {"how many": True, "the list": []}},
        {"values": {"how many": 3}},
    ],
)
def test_another_answer_or_none_breaks_the_assumption(check, changed):
    judged = judge.judge(check, result(**changed), SOFTWARE)
    assert (judged.state, judged.good) == ("otherwise", False)
    (finding,) = judged.findings
    assert finding.assumption == "even"
    (told,) = judge.told(judged.findings)
    assert told == ("The assumption 'even' does not hold: numbers are even. So halves are lost.", [str(finding)])


def test_the_bounds_themselves_are_within(check):
    for bound in (2, 4):
        assert judge.judge(check, result(values={"how many": bound, "the list": []}), SOFTWARE).good


def test_a_part_that_is_skipped_owes_no_answer(check):
    judged = judge.judge(check, result(values={"the list": []}, skipped={"counting": "no fingers"}), SOFTWARE)
    assert judged.state == "passed"


def test_nothing_recorded_is_nothing_to_compare_with(check):
    assert judge.judge(check, result(bare={"the number": 9}), {}).state == "passed"


def test_a_check_that_was_ended_owes_no_answers_and_is_judged_by_those_it_gave(check):
    ended = judge.judge(check, result(rc=None, bare={"the number": 9}, values={}), SOFTWARE)
    assert (ended.state, [finding.answer for finding in ended.findings]) == ("timed out", ["the number"])


def test_how_a_check_ends_comes_before_its_answers(check):
    assert judge.judge(check, result(rc=None), SOFTWARE).state == "timed out"
    assert judge.judge(check, result(rc=1), SOFTWARE).state == "failed"
    assert judge.judge(check, result(rc=-11), SOFTWARE).state == "failed"


def test_a_check_that_says_nothing_has_failed(tmp_path):
    (check,) = load(
        tmp_path,
        TABLE.replace(TABLE[TABLE.index("answer = [") :], "answer = []").replace(
            '[assumption.even]\nsays = "numbers are even"\notherwise = "halves are lost"', "[assumption]"
        ),
    )
    silent = judge.judge(check, result(bare={}, values={}), {})
    assert (silent.state, silent.error) == ("failed", "the check gave no answer")
    skipped = judge.judge(check, result(bare={}, values={}, skipped={"all": "no GPU"}), {})
    assert (skipped.state, skipped.error, skipped.good) == ("skipped", "", True)


def test_of_two_tables_only_what_differs_is_shown(check):
    judged = judge.judge(
        check, result(bare={"the number": {"a": 1, "b": 2}}), {"bare": {"the number": {"a": 1, "b": 3}}}
    )
    (finding,) = judged.findings
    assert (finding.value, finding.wanted) == ({"b": 2}, "the software driver's answer, {'b': 3}")


def test_an_assumption_is_told_once(check):
    judged = judge.judge(check, result(bare={"the number": 9}, values={"how many": 5, "the list": "x" * 400}), SOFTWARE)
    ((_, answers),) = judge.told(judged.findings)
    assert answers[:2] == [
        "the number (bare): 9, expected the software driver's answer, 8",
        "how many: 5, expected at least 2 and at most 4",
    ]
    assert answers[2] == f"the list: {'x' * 300}... (all of it is in the record), expected []"


def test_near_is_enough_where_the_table_says_so(tmp_path):
    (check,) = load(tmp_path, TABLE.replace("like_software = true", "like_software = true, factor = 2"))
    for value, good in ((4, True), (16, True), (17, False), (3, False)):
        assert judge.judge(check, result(bare={"the number": value}), SOFTWARE).good is good


@pytest.mark.parametrize(
    ("states", "status"),
    [
        (["passed", "skipped"], 0),
        (["skipped"], 2),
        ([], 2),
        (["passed", "otherwise"], 1),
        (["passed", "failed"], 1),
        (["timed out", "skipped"], 1),
    ],
)
def test_exit_status(states, status):
    assert judge.exit_status([judge.Result(1, "one", state=state) for state in states]) == status


# ---- the report --------------------------------------------------------------------------------------


def test_the_report_has_both_drivers_side_by_side(check):
    judged = judge.judge(check, result(bare={"the number": 9, "a figure": 7}, skipped={"art": "no | brush"}), SOFTWARE)
    text = report("A day", (check,), [judged], {"one": SOFTWARE})
    assert text.startswith("## A day\n\n1 checks in 0 s: 1 otherwise.\n")
    assert "| the number | bare | 8 | 9 | **not as assumed: even** |" in text
    assert "| a figure | bare |  | 7 |  |" in text
    assert "| how many |  |  | 3 | as assumed |" in text
    assert "Skipped: art (no | brush)." in text
    assert (
        "### What is not as we assume\n\n"
        "* The assumption 'even' does not hold: numbers are even. So halves are lost.\n"
        "  * the number (bare): 9, expected the software driver's answer, 8\n\n"
    ) in text


def test_the_report_says_why_a_check_failed(check):
    judged = judge.judge(check, result(rc=1, error="Traceback\nValueError: that's why"), SOFTWARE)
    assert "* **1 one failed**: ValueError: that's why" in report("A day", (check,), [judged], {})
    hung = judge.judge(check, result(rc=None), SOFTWARE)
    assert "* **1 one timed out**: no reason was given" in report("A day", (check,), [hung], {})


def test_a_long_table_is_shown_where_the_software_driver_gave_it_otherwise(check):
    cases = {f"case {number}": number for number in range(50)}
    software = {"bare": {"the number": 8, "cases": cases | {"case 7": 70}}}
    judged = judge.judge(check, result(bare={"the number": 8, "cases": cases}), software)
    text = report("A day", (check,), [judged], {"one": software})
    assert "| cases | bare | 50 entries, in the record | 50 entries, in the record |  |" in text
    assert (
        "<details><summary>cases: 1 of 50 entries</summary>\n\n| | software driver | here |\n|---|---|---|\n"
        "| case 7 | 70 | 7 |\n\n</details>"
    ) in text
    assert "| case 8 |  | 8 |" in report("A day", (check,), [judged], {})


def test_long_answers_are_left_to_the_record(check):
    judged = judge.judge(
        check, result(values={"how many": 3, "the list": [], "much": list(range(200)), "bar": "a|b"}), SOFTWARE
    )
    text = report("A day", (check,), [judged], {})
    assert "| much |  |  | 200 entries, in the record |  |" in text
    assert "| bar |  |  | a\\|b |  |" in text
