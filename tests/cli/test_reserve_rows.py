"""What `gpushare reserve` lists: a line for each GPU of a reservation."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.cli import main, output, reserve

GIB = 2**30


def reservation(name: str, until: float | None, uid: int, jobs: list[str], *gpus: int) -> dict[str, Any]:
    parts = [{"index": gpu, "amount": 4 * GIB, "remainder": (gpu + 1) * GIB} for gpu in gpus]
    return {"name": name, "user": "ada", "uid": uid, "since": 0.0, "until": until, "jobs": jobs, "gpus": parts}


def test_each_gpu_has_a_line_with_the_end_if_there_is_one(monkeypatch) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(output, "print_table", lambda columns, rows, dim: printed.append((columns, rows, dim)))
    monkeypatch.setattr(output, "age", lambda since: "1m")
    monkeypatch.setattr(output, "clock", lambda until: f"at {until:g}")
    mine, other = os.getuid(), os.getuid() + 1
    reserve._print(
        [reservation("night", 0.0, mine, ["a", "b"], 0, 2), reservation("week", None, other, [], 1)]  # type: ignore[list-item]
    )
    ((columns, rows, dim),) = printed
    assert rows == [
        ["0", "night", "ada", "1m", "4.0 GiB", "1.0 GiB", "at 0", "2"],
        ["2", "night", "ada", "1m", "4.0 GiB", "3.0 GiB", "at 0", "2"],
        ["1", "week", "ada", "1m", "4.0 GiB", "2.0 GiB", "released", "0"],
    ]
    assert len(columns) == len(rows[0])
    assert [dim(index) for index in range(3)] == [False, False, True], "those of others"


def test_none_is_said_where_no_program_reads(capsys) -> None:
    reserve._print([])
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "no reservations\n")


@pytest.mark.parametrize("words", [["--list"], ["--list", "--json"], ["8Gi", "--list"]])
def test_all_of_the_node_are_listed(monkeypatch, capsys, words) -> None:
    found = [reservation("night", None, 0, [], 0)]
    client = SimpleNamespace(reservations=lambda: found)
    monkeypatch.setattr(reserve, "load_settings", lambda: None)
    monkeypatch.setattr(reserve, "find", lambda _settings: SimpleNamespace(client=lambda: client))
    assert main(["reserve", *words]) == 0
    text = capsys.readouterr().out
    if "--json" in words:
        assert json.loads(text) == {"schema": "gpushare.reservations/1", "reservations": found}
    else:
        assert [line.split()[1] for line in text.splitlines()] == ["NAME", "night"]
