"""The lines of `gpushare ps` and `top`: a cell for each column, whatever job, reservation or program it is of."""

from __future__ import annotations

import os
from typing import Any

import pytest

from gpushare.cli import output, ps

GIB = 2**30
ME = os.getuid()


@pytest.fixture(autouse=True)
def now(monkeypatch):
    monkeypatch.setattr(output, "age", lambda moment: f"<{moment:g}>")
    monkeypatch.setattr(output, "clock", lambda moment: f"at {moment:g}")


def gpu(index: int = 0, **changes: Any) -> dict[str, Any]:
    amounts = {"usage": 2 * GIB, "request": GIB, "limit": 8 * GIB, "peak": 3 * GIB, "loan": GIB}
    return {"index": index, "uuid": f"GPU-{index}", "health": "ok", **amounts, **changes}


def outcome(**changes: Any) -> dict[str, Any]:
    peak = {"GPU-0": 5 * GIB}
    return {"duration": 75.9, "killed": None, "signal": None, "exit_code": 0, "ended": 9.0, "peak": peak, **changes}


def job(*gpus: dict[str, Any], pids: tuple[int, ...] = (), ended: dict[str, Any] | None = None, **changes: Any) -> Any:
    return {
        **{"id": "a1", "name": "train", "user": "ada", "uid": ME, "state": "running", "since": 5.0, "priority": 7},
        **{"command": ["python", "a b.py"], "limit_source": None, "outcome": ended, "gpus": list(gpus)},
        "processes": [{"pid": pid} for pid in pids],
        **changes,
    }


def kept(*indices: int) -> Any:
    gpus = [{"index": index, "uuid": f"GPU-{index}", "amount": 4 * GIB} for index in indices]
    return {"id": "e5", "name": "mine", "user": "ada", "uid": ME, "since": 6.0, "gpus": gpus}


def outsider(**changes: Any) -> Any:
    one = {"user": "bob", "uid": ME + 1, "pid": 77, "bytes": GIB, "job": None, "reason": "", "command": "x"} | changes
    return {"index": 3, "uuid": "GPU-3", "health": {"state": "sick"}}, one


JOBS = [job(), job(gpu()), job(gpu(), gpu(1), pids=(4, 5)), job(gpu(), ended=outcome()), job(ended=outcome(seen=False))]


@pytest.mark.parametrize(("wide", "ended"), [(False, False), (False, True), (True, False), (True, True)])
def test_each_line_has_a_cell_for_each_column(monkeypatch, wide, ended):
    shown: list[tuple[Any, Any]] = []
    monkeypatch.setattr(output, "print_table", lambda columns, rows, dim: shown.append((columns, rows, dim)))
    outsiders = [outsider()] if wide else []
    ps._print(JOBS, [kept(0, 1)], outsiders, wide=wide, ended=ended)
    ((columns, rows, dim),) = shown
    titles = [column.title for column in columns]
    assert len(rows) == 6 + 2 + len(outsiders) and {len(row) for row in rows} == {len(titles)}
    cells = [dict(zip(titles, row, strict=True)) for row in rows]
    assert {one["JOB"] for one in cells} == {"train", "mine", *(["-"] if wide else [])}
    assert [one["STATE"] for one in cells[6:8]] == ["reserved"] * 2
    assert cells[0]["COMMAND"] == "python 'a b.py'" and cells[6]["COMMAND"] == ""
    if wide:
        assert [one["UUID"] for one in cells] == [
            "-",
            "GPU-0",
            "GPU-0",
            "GPU-1",
            "GPU-0",
            "-",
            "GPU-0",
            "GPU-1",
            "GPU-3",
        ]
        assert [one["PRIORITY"] for one in cells] == ["7"] * 6 + ["-"] * 3
        assert cells[-1]["GPU HEALTH"] == "sick" and cells[-1]["COMMAND"] == "x"
        assert not any(column.spare for column in columns), "all of it"
    if wide or ended:
        assert [one["ID"] for one in cells[:8]] == ["a1"] * 6 + ["e5"] * 2
    if ended:
        assert [one["ENDED"] for one in cells[:6]] == ["-"] * 4 + ["at 9"] * 2
    assert [dim(index) for index in range(len(rows))] == [False] * 8 + [True] * len(outsiders), "another user's"


def cells_of(one: Any, **how: Any) -> list[dict[str, str]]:
    wide, ended, live = (how.get(name, False) for name in ("wide", "ended", "live"))
    past = [] if not ended else ps.ENDED[1:] if wide else ps.ENDED
    columns = [*ps.COLUMNS, *past, *([ps.COMPUTING] if live else []), *(ps.WIDE if wide else []), ps.COMMAND]
    titles = [column.title for column in columns]
    return [dict(zip(titles, row, strict=True)) for row in ps.rows(one, **how)]


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("wide", [True, False])
def test_a_job_without_a_gpu_has_one_line(wide, live):
    (cells,) = cells_of(job(state="queued", limit_source="--limit"), wide=wide, live=live)
    assert cells["GPU"] == "-" and cells["STATE"] == "queued" and cells["AGE"] == "<5>"
    assert {cells[title] for title in ("PID", "USAGE", "REQUEST", "LIMIT", "LOAN")} == {"-"}
    if wide:
        assert cells["LIMIT FROM"] == "--limit" and cells["ID"] == "a1" and cells["PRIORITY"] == "7"
    if live:
        assert cells["GPU%"] == "-"


@pytest.mark.parametrize(("pids", "shown"), [((), "-"), ((4,), "4"), ((4, 9), "4+1"), ((9, 4, 5), "9+2")])
def test_the_first_process_and_how_many_more(pids, shown):
    assert cells_of(job(gpu(), pids=pids))[0]["PID"] == shown


def test_what_it_uses_now_and_what_it_used_at_most():
    (now,) = cells_of(job(gpu()), wide=True)
    assert (now["USAGE"], now["LOAN"], now["PEAK"]) == ("2.0 GiB", "1.0 GiB", "3.0 GiB")
    first, second = cells_of(job(gpu(), gpu(1), ended=outcome()), ended=True)
    assert (first["USAGE"], first["LOAN"], first["AGE"]) == ("5.0 GiB", "-", "1m15s")
    assert second["USAGE"] == "0 B", "it had no memory there"
    assert cells_of(job(gpu(loan=0)))[0]["LOAN"] == "-"


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, ("-", "-", "-")),
        ({"computing": 0.0, "gpu_time": 0.0, "turn": ""}, ("0%", "0s", "-")),
        ({"computing": 0.256, "gpu_time": 61.9, "turn": "holds"}, ("26%", "1m1s", "holds")),
    ],
)
def test_computing(changes, shown):
    (cells,) = cells_of(job(gpu(**changes)), wide=True, live=True)
    assert (cells["GPU%"], cells["GPU TIME"], cells["TURN"]) == shown


@pytest.mark.parametrize(
    ("changes", "state", "age"),
    [
        ({"exit_code": 3}, "exit 3", "1m15s"),
        ({"exit_code": None}, "ended", "1m15s"),
        ({"exit_code": None, "signal": 9}, "SIGKILL", "1m15s"),
        ({"exit_code": None, "signal": 63}, "signal 63", "1m15s"),
        ({"seen": False}, "not seen", "-"),
        ({"seen": True}, "exit 0", "1m15s"),
    ],
)
def test_how_it_ended(changes, state, age):
    (cells,) = cells_of(job(gpu(), ended=outcome(**changes)), ended=True)
    assert (cells["STATE"], cells["AGE"], cells["WHY"]) == (state, age, "-")


@pytest.mark.parametrize(("ended", "shown"), [(None, "-"), (0.0, "-"), (9.0, "at 9")])
def test_when_it_ended_if_that_is_known(ended, shown):
    assert cells_of(job(gpu(), ended=outcome(ended=ended)), ended=True)[0]["ENDED"] == shown


@pytest.mark.parametrize(
    ("changes", "job_cell", "state"),
    [
        ({}, "-", "unmanaged"),
        ({"job": "a1"}, "a1", "escaped"),
        ({"job": "a1", "reason": "observed"}, "a1", "observed"),
        ({"reason": "observed"}, "-", "observed"),
    ],
)
def test_a_program_of_no_job(changes, job_cell, state):
    row = ps._outsider(*outsider(**changes), 0)
    assert (row[9], row[10]) == (state, job_cell) and row[5] == "1.0 GiB" and row[3] == "77"


@pytest.mark.parametrize(
    ("wanted", "user", "pids"),
    [
        (None, None, [1, 2, 3]),
        ("0", None, [1, 2]),
        ("GPU-1", None, [3]),
        (None, "ada", [1]),
        (None, "1002", [2]),
        ("1", "bob", [3]),
        ("7", None, []),
    ],
)
def test_programs_of_no_job_are_chosen_like_jobs(wanted, user, pids):
    def at(index: int, *processes: tuple[str, int, int]) -> Any:
        those = [{"user": user, "uid": uid, "pid": pid} for user, uid, pid in processes]
        return {"index": index, "uuid": f"GPU-{index}", "unmanaged_processes": those}

    gpus = [at(0, ("ada", 1001, 1), ("bob", 1002, 2)), at(1, ("bob", 1003, 3))]
    assert [one["pid"] for _, one in ps._outsiders(gpus, wanted, user)] == pids


def test_without_a_word_a_line_has_the_usual_cells():
    assert {len(row) for one in JOBS for row in ps.rows(one)} == {len([*ps.COLUMNS, ps.COMMAND])}
    assert {len(row) for one in JOBS for row in ps.rows(one, live=True)} == {
        len([*ps.COLUMNS, ps.COMPUTING, ps.COMMAND])
    }
