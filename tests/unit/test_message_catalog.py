"""What messages mean: docs/reasons.md is complete, and what the sources say is recognised by it."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from gpushare import errors, message_catalog, reasons
from gpushare.message_catalog import meanings, messages_in

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = (ROOT / "tests" / "core" / "messages.txt").read_text().splitlines()
CLASSES = {
    name: kind.code
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.GpushareError)
}
OF_ANOTHER = {("no_such_job", "no_such_reservation")}
"""The core's code for a reservation that is not there is that of a job; what it means is not."""


def told() -> list[tuple[str, str]]:
    """(code, message) of everything that the daemon tells."""
    tags = [(number, re.fullmatch(r"\[(?:.*, )?([a-z_]+)\]", line)) for number, line in enumerate(GOLDEN)]
    return [(tag[1], GOLDEN[number + 1]) for number, tag in tags if tag]


def raised() -> list[tuple[str, str, str]]:
    """(place, code, message) of every error with a code of its own that the sources raise."""
    found = []
    for path in sorted([*(ROOT / "gpushare").rglob("*.py"), *(ROOT / "daemon").rglob("*.py")]):
        if "cluster" in str(path.relative_to(ROOT)):
            continue  # the allocator's reasons are told by `gpushare cluster explain`
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).split(".")[-1] in {*CLASSES, "_bad"}:
                codes = [one.value for one in node.keywords if one.arg == "code"]
                code = codes[0].value if codes and isinstance(codes[0], ast.Constant) else None
                message = sample(node.args[0])
                if code is not None and message is not None:
                    found.append((f"{path.relative_to(ROOT)}:{node.lineno}", code, message))
    return found


def sample(node: ast.expr) -> str | None:
    """The message with something in each of its gaps; None where it is made elsewhere."""
    if isinstance(node, ast.Constant):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    return "".join(part.value if isinstance(part, ast.Constant) else "X1" for part in node.values)


def code_of(message: str) -> str | None:
    found = messages_in([message])
    return found[0].meaning.code if found else None


@pytest.mark.parametrize(("code", "message"), sorted(set(told())))
def test_what_the_daemon_tells_is_recognised(code: str, message: str) -> None:
    found = code_of(f"gpushare: {message}")
    assert found == code or (code, found) in OF_ANOTHER


def in_their_own_words() -> list[tuple[str, str, str]]:
    """Without those that are put together of other words."""
    return [one for one in raised() if len(one[2].replace("X1", "").replace("cannot", "").strip(" :")) > 5]


@pytest.mark.parametrize(("place", "code", "message"), in_their_own_words())
def test_what_the_sources_raise_is_recognised(place: str, code: str, message: str) -> None:
    assert code_of(f"gpushare: {message}") == code


def test_every_code_has_its_meaning_and_no_other_has() -> None:
    codes = {code.value for code in reasons.Code} | set(CLASSES.values()) | {code for _, code, _ in raised()}
    assert len(raised()) > 50
    assert set(meanings()) == codes | {message_catalog.FRAMEWORKS}


@pytest.mark.parametrize("code", sorted(meanings()))
def test_a_meaning_is_whole(code: str) -> None:
    one = meanings()[code]
    assert one.what.endswith(".") and one.remedy.endswith(".")
    assert one.messages or code in CLASSES.values()
    for line in one.messages:
        assert code_of(line) == code, f"{line} is taken for another's"


def test_what_is_said_to_do_exists() -> None:
    text = (ROOT / "docs" / "reasons.md").read_text()
    from gpushare.cli import COMMANDS

    assert set(re.findall(r"`gpushare ([a-z-]+)", text)) <= {*COMMANDS}


def test_the_numbers_below_a_message_are_its_own() -> None:
    (found,) = messages_in(
        [
            "epoch 3",
            "2026-01-01T10:00:00Z rank0 gpushare: cannot allocate 1.0 GiB on GPU 0: over this job's limit",
            "2026-01-01T10:00:00Z rank0   limit   2.0 GiB   from --request",
            "2026-01-01T10:00:00Z rank0   in use  1.3 GiB   python[1585] 1.3 GiB",
            "2026-01-01T10:00:00Z rank0             and more",
            "2026-01-01T10:00:00Z rank0 hint: raise it",
            "2026-01-01T10:00:00Z rank0   not    a fact",
        ]
    )
    assert found.message == "cannot allocate 1.0 GiB on GPU 0: over this job's limit"
    assert found.facts == [
        ("limit", "2.0 GiB   from --request"),
        ("in use", "1.3 GiB   python[1585] 1.3 GiB\nand more"),
    ]
    assert found.hint == "raise it"


def test_a_line_that_is_no_fact_ends_a_message() -> None:
    (found,) = messages_in(
        [
            "gpushare: cannot allocate 1.0 GiB on GPU 0: over this job's limit",
            "  limit   2.0 GiB",
            "epoch 4",
            "  loss    0.3",
        ]
    )
    assert found.facts == [("limit", "2.0 GiB")] and found.hint is None


def test_a_message_of_others_is_shown_from_its_beginning() -> None:
    error = "CUDA out of memory. Tried to allocate 1.00 GiB."
    (found,) = messages_in([error])
    assert (found.message, found.facts, found.count) == (error, [], 1)


def test_of_several_messages_of_a_code_the_last_is_shown() -> None:
    lines = [f"gpushare: cannot allocate {n}.0 GiB on GPU 0: over this job's limit\n" for n in range(3)]
    (found,) = messages_in([*lines, "gpushare: no daemon runs on this node"][:3])
    assert (found.count, found.message[:22]) == (3, "cannot allocate 2.0 Gi")
    assert [one.meaning.code for one in messages_in([lines[0], "gpushare: no daemon runs on this node"])] == [
        "over_limit",
        "no_daemon",
    ]


def test_only_messages_like_the_one_that_is_shown_are_counted() -> None:
    waits = "gpushare: waiting until there is room: no room for a request of 10.0 GiB on GPU 0"
    (found,) = messages_in([waits, waits, "gpushare: the job was withdrawn while it waited for room"])
    assert (found.message, found.count) == ("the job was withdrawn while it waited for room", 1)
    (found,) = messages_in(["gpushare: the job was withdrawn while it waited for room", waits, waits])
    assert (found.message[:7], found.count) == ("waiting", 2)


def test_a_frameworks_error_counts_only_where_gpushare_has_said_nothing() -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB."
    assert code_of(error) == "out_of_memory"
    both = messages_in(["gpushare: cannot allocate 1.0 GiB on GPU 0: over this job's limit", error])
    assert [one.meaning.code for one in both] == ["over_limit"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('{"schema": "gpushare.report/1", "code": "reclaim"}', "reclaim"),
        ("10:00:00 warning refused job=1 code=over_limit", "over_limit"),
        ("gpushared: another daemon holds /run/x and does not answer", "locked"),
        ("gpushare.errors.NotPermitted: job 1 belongs to bob", "not_permitted"),
        ("exit_code=failed", None),
        ("ls: /x is not a directory", None),
        ("bash: no job control in this shell", None),
        ("x" * 1_000_000, None),
    ],
)
def test_other_lines(line: str, code: str | None) -> None:
    assert code_of(line) == code
