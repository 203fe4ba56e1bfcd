"""The forms of results: what goes to which stream, how tables fit, what is styled, and how times are written."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from gpushare.cli import output
from gpushare.cli.output import Column

BOLD, DIM, RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"


# ---- streams ------------------------------------------------------------------------------------------


def test_data_go_to_stdout_and_words_beside_it_to_stderr(capsys):
    output.echo("a\x1b[31m", nl=False)
    output.echo(7)
    output.echo()
    output.note("note\x1b")
    output.echo("err", err=True)
    output.print_json("thing", {"a": [1]})
    output.jsonl("thing", [{"b": 1}, {"b": 2}])
    output.jsonl("thing", [])
    out, err = capsys.readouterr()
    first, empty, *document = out.split("\n")
    assert (first, empty) == ("a\\x1b[31m7", "") and err == "gpushare: note\\x1b\nerr\n"
    text = "\n".join(document)
    assert text.startswith('{\n  "schema": "gpushare.thing/1",\n  "a": [\n')
    assert text.splitlines()[-2:] == [f'{{"schema": "gpushare.thing/1", "b": {n}}}' for n in (1, 2)]
    assert json.loads(text[: text.index("}\n{") + 1]) == {"schema": "gpushare.thing/1", "a": [1]}


@pytest.mark.parametrize(
    ("words", "found"),
    [([], "table"), (["-o", "jsonl"], "jsonl"), (["--json"], "json"), (["--output", "json"], "json")],
)
def test_the_first_format_is_the_usual_one(words, found):
    told = []

    @click.command()
    @output.option("table", "json", "jsonl")
    def command(output: str) -> None:
        told.append(output)

    assert CliRunner().invoke(command, words).exit_code == 0 and told == [found]
    assert CliRunner().invoke(command, ["-o", "xml"]).exit_code == 2


# ---- tables ----------------------------------------------------------------------------------------------


NAMES = [
    Column("NAME", shrink=True),
    Column("SIZE", right=True),
    Column("WHY", wrap=True, least=6),
    Column("ID", spare=1),
]


def test_in_a_pipe_a_table_is_whole_and_plain(capsys):
    output.print_table(NAMES, [["a" * 30, "1", "because it is so", "x"], ["b", "22", "", "yy"]])
    assert capsys.readouterr().out.splitlines() == [
        f"{'NAME':<30}  SIZE  {'WHY':<16}  ID",
        f"{'a' * 30}     1  because it is so  x",
        f"{'b':<30}    22  {'':<16}  yy",
    ]


def plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


@pytest.mark.parametrize(
    ("width", "head"),
    [
        (60, f"{'NAME':<30}  SIZE  {'WHY':<16}  ID"),
        (56, f"{'NAME':<28}  SIZE  {'WHY':<16}  ID"),
        (32, f"{'NAME':<10}  SIZE  {'WHY':<10}  ID"),
        (28, f"{'NAME':<10}  SIZE  {'WHY':<6}  ID"),
        (27, f"{'NAME':<10}  SIZE  {'WHY':<7}"),
        (24, f"{'NAME':<10}  SIZE  WHY"),
    ],
)
def test_in_a_terminal_it_fits(width, head):
    lines = [plain(line) for line in output.table(NAMES, [["a" * 30, "1", "because it is so", "x"]], width)]
    assert lines[0].rstrip() == head.rstrip() and max(map(len, lines)) <= width
    if "ID" in head:
        assert lines[1].endswith("x") or any(line.endswith("x") for line in lines)


def test_a_table_that_is_too_narrow_for_all_keeps_its_least_widths():
    columns = [Column("A"), Column("BBBB", spare=2), Column("CC", spare=1)]
    row = [["1", "2", "3"]]
    found = {width: plain(output.table(columns, row, width)[0]).split() for width in (11, 10, 9, 6, 5, 4, 1)}
    assert found == {
        11: ["A", "BBBB", "CC"],
        10: ["A", "CC"],
        9: ["A", "CC"],
        6: ["A", "CC"],
        5: ["A", "CC"],
        4: ["A"],
        1: ["A"],
    }


def test_colours_repeat_what_the_words_say_and_others_are_dim():
    rows = [["borrowing"], ["sick"], ["plain"]]
    lines = output.table([Column("STATE")], rows, 40, lambda index: index == 2)
    assert lines[0].startswith(BOLD) and "\x1b[33mborrowing" in lines[1] and "\x1b[1;31msick" in lines[2]
    assert lines[3].startswith(DIM) and "plain" in lines[3]
    assert not any("\x1b" in line for line in output.table([Column("STATE")], rows, None))


def test_what_others_have_named_cannot_move_the_cursor():
    lines = output.table([Column("NAME")], [["a\nb\x1b[2J"]], None)
    assert lines == ["NAME", "a\\nb\\x1b[2J"]


# ---- single lines --------------------------------------------------------------------------------------------


def test_lines_for_a_terminal():
    assert plain(output.styled(("a\n", "bold"), ("b", ""))) == "a\\nb" and BOLD in output.styled(("a", "bold"))
    line = output.styled(("abcdef", "red"))
    assert output.cut(line, 6) is line and plain(output.cut(line, 5)) == "abcde" and "\x1b[31m" in output.cut(line, 5)
    bar = output.selected(line, 10)
    assert plain(bar) == "abcdef    " and "\x1b[7m" in bar
    text = output.markdown("# Title\n\nsome *words* of a text that is long", 20)
    assert max(len(plain(one).rstrip()) for one in text.splitlines()) <= 20 and "\x1b" in text


def test_a_bar_is_for_terminals_alone(capsys, monkeypatch):
    with output.progress("working") as advance:
        advance(1, 2)
    assert capsys.readouterr() == ("", "")
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with output.progress("working") as advance:
        advance(1, 2)
        advance(2, 2)
    assert "working" in stream.getvalue() and "100%" in stream.getvalue()
    assert stream.getvalue().rstrip("\r").endswith("\x1b[2K") or "\x1b[2K" in stream.getvalue(), "it is gone at the end"


def test_the_size_heeds_the_variables(monkeypatch):
    monkeypatch.setenv("COLUMNS", "123")
    monkeypatch.setenv("LINES", "45")
    assert output.terminal_size() == os.terminal_size((123, 45))


# ---- times ----------------------------------------------------------------------------------------------------


NOON = time.mktime((2026, 11, 26, 12, 0, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (NOON, "12:00:00"),
        (NOON - 12 * 3600, "00:00:00"),
        (NOON - 12 * 3600 - 1, "2026-11-25 23:59:59"),
        (NOON + 12 * 3600 - 1, "23:59:59"),
        (NOON + 12 * 3600, "2026-11-27 00:00:00"),
        (NOON - 365 * 86400, "2025-11-26 12:00:00"),
    ],
)
def test_the_date_is_told_of_another_day(monkeypatch, moment, text):
    now = time.localtime(NOON)
    clock = SimpleNamespace(
        localtime=lambda *given: time.localtime(*given) if given else now, strftime=time.strftime, time=lambda: NOON
    )
    monkeypatch.setattr(output, "time", clock)
    assert output.clock(moment) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5.0, "0s"), (0.0, "0s"), (0.99, "0s"), (1.0, "1s"), (59.9, "59s"), (60.0, "1m"), (61.0, "1m1s"), (3600.0, "1h")],
)
def test_a_span_in_a_column(monkeypatch, seconds, text):
    assert output.lasted(seconds) == text
    monkeypatch.setattr(output, "time", SimpleNamespace(time=lambda: 1000.0))
    assert output.age(1000.0 - seconds) == text
