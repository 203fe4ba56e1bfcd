"""The strip that `gpushare status` and notebooks draw for a GPU's memory."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.cli import main, output, status, top
from gpushare.cli.status import bar
from gpushare.cli.top import Look, _strip


@pytest.mark.parametrize(
    ("usage", "lent", "unmanaged", "total", "strip"),
    [
        (0, 0, 0, 16, "[........]"),
        (0, 0, 0, 0, "[........]"),
        (5, 0, 0, 0, "[........]"),
        (8, 4, 4, 16, "[##++!!..]"),
        (16, 16, 0, 16, "[++++++++]"),
        (1, 0, 0, 1000, "[#.......]"),
        (1000, 1, 1, 1000, "[########]"),
        (2, 1, 1, 1000, "[#+!.....]"),
    ],
)
def test_each_kind_of_memory_has_its_marks_and_never_more_than_the_strip(
    usage: int, lent: int, unmanaged: int, total: int, strip: str
) -> None:
    gpu: Any = {"usage": usage, "lent": lent, "unmanaged": unmanaged, "total": total}
    assert bar(gpu, 8) == strip
    assert len(bar(gpu)) == 26


@pytest.mark.parametrize(
    ("requested", "total", "strip"),
    [
        (0, 16, "[|#++!...]"),
        (2, 16, "[#|++!...]"),
        (8, 16, "[##++|...]"),
        (14, 16, "[##++!..|]"),
        (16, 16, "[##++!..|]"),
        (99, 16, "[##++!..|]"),
        (0, 0, "[........]"),
    ],
)
def test_the_strip_of_top_has_a_mark_where_the_requests_end(requested: int, total: int, strip: str) -> None:
    gpu: Any = {"usage": 8, "lent": 4, "unmanaged": 2, "total": total, "requested": requested}
    assert _strip(gpu, 8) == strip


GIB = 2**30


def node(jobs: int = 0) -> Any:
    amounts = {"usage": 8, "lent": 4, "unmanaged": 2, "total": 16, "requested": 8, "capacity": 16, "free": 6}
    gpu: Any = {name: amount * GIB for name, amount in amounts.items()}
    gpu |= {"index": 0, "uuid": "GPU-0", "returning": 0, "health": {"state": "ok", "ailments": []}}
    of_job = {"usage": GIB, "request": GIB, "limit": GIB, "loan": 0, "index": 0, "uuid": "GPU-0", "gpu_time": 1.0}
    base = {"id": "a1", "name": "fit", "user": "ada", "uid": 0, "state": "running", "since": 0.0, "outcome": None}
    job = {**base, "processes": [], "command": ["x" * 90], "gpus": [of_job]}
    return {"gpus": [gpu], "jobs": [job] * jobs}


def plain(lines: list[str]) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]


@pytest.mark.parametrize(
    ("columns", "width", "numbers"),
    [
        (31, 8, " 6.0 GiB free"),
        (32, 9, " 6.0 GiB free"),
        (45, 22, "   6.0 GiB free"),
        (46, 8, " 8.0 GiB used"),
        (60, 22, " 8.0 GiB used"),
        (69, 30, " 8.0 GiB used"),
        (100, 30, " 8.0 GiB used"),
        (110, 30, " 8.0 GiB used"),
        (111, 31, " 8.0 GiB used"),
        (200, 120, " 8.0 GiB used"),
    ],
)
def test_the_bar_of_top_takes_what_the_rest_leaves(columns: int, width: int, numbers: str) -> None:
    drawn = top._gpu(node()["gpus"][0], Look(os.terminal_size((columns, 24))), tall=False)
    assert "\x1b" in drawn[0], "on a terminal it has colours"
    line = plain(drawn)[0]
    strip = re.search(r"\[(.*?)\]", line)
    assert strip is not None and len(strip[1]) == width and numbers in line


@pytest.mark.parametrize(
    ("columns", "head"), [(8, ""), (9, " "), (10, "g "), (12, "gpu "), (30, "gpushared" + " " * 13)]
)
def test_the_time_of_day_stands_apart_from_the_title(columns: int, head: str) -> None:
    lines = plain(top.frame("gpushared", node(), Look(os.terminal_size((columns, 24)))))
    assert re.fullmatch(re.escape(head) + r"\d\d:\d\d:\d\d", lines[0])


def test_one_picture_on_a_terminal_is_as_wide_as_it_and_has_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SimpleNamespace(status=lambda: node(40))
    monkeypatch.setattr(top, "load_settings", lambda: None)
    monkeypatch.setattr(top, "find", lambda _settings: SimpleNamespace(client=lambda: client))
    monkeypatch.setattr(top, "headline", lambda _node, _status: "gpushared")
    monkeypatch.setattr(output, "terminal_size", lambda: os.terminal_size((60, 5)))
    for terminal in (True, False):
        drawn: list[str] = []
        monkeypatch.setattr(output, "echo_drawn", drawn.extend)
        monkeypatch.setattr(top, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda it=terminal: it)))
        assert main(["top", "--once"]) == 0
        assert any("\x1b" in line for line in drawn) is terminal
        lines = plain(drawn)
        assert sum("running" in line for line in lines) == 40 and (max(map(len, lines)) <= 60) is terminal


def test_jobs_of_others_are_dim(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = node(2)
    mine, theirs = (dict(shown["jobs"][0], name=name, uid=uid) for name, uid in (("mine", 7), ("theirs", 8)))
    shown["jobs"] = [mine, theirs]
    monkeypatch.setattr(top, "os", SimpleNamespace(getuid=lambda: 7, terminal_size=os.terminal_size))
    lines = top.frame("gpushared", shown, Look(os.terminal_size((100, 24))))
    dim = {name: "\x1b[2m" in line for line in lines for name in ("mine", "theirs") if name in line}
    assert dim == {"mine": False, "theirs": True}


def test_what_top_shows_first() -> None:
    begun = top.View()
    assert top.footer(begun, 2.0) == "h help   q quit   s sort by loan   every 2 s" and not begun.over
    assert top.footer(top.View("name"), 0.5) == "h help   q quit   s sort by usage   every 0.5 s"


@pytest.mark.parametrize(("lines", "tall"), [(8, False), (9, True), (24, True)])
def test_the_numbers_of_a_gpu_are_shown_where_there_is_room(lines: int, tall: bool) -> None:
    drawn = plain(top.frame("gpushared", node(1), Look(os.terminal_size((100, lines)))))
    assert any("capacity 16.0 GiB" in line for line in drawn) is tall
    if tall:
        assert "      requested 8.0 GiB  lent 4.0 GiB  capacity 16.0 GiB  outside gpushare 2.0 GiB" in drawn


@pytest.mark.parametrize(
    ("lines", "footer", "jobs", "more"),
    [(24, "", 18, 2), (24, "q quit", 16, 4), (60, "q quit", 20, 0), (3, "q", 0, 20)],
)
def test_jobs_that_do_not_fit_are_counted(lines: int, footer: str, jobs: int, more: int) -> None:
    drawn = plain(top.frame("gpushared", node(20), Look(os.terminal_size((100, lines)), footer=footer)))
    shown = sum("running" in line for line in drawn)
    counted = [line for line in drawn if line.startswith("and ")]
    if lines > 3:
        assert (shown, counted) == (jobs, [f"and {more} more"] if more else [])
    if footer:
        assert len(drawn) == lines and drawn[-1] == footer


JOB: Any = {"id": "a1", "name": "fit", "user": "ada", "state": "running"}


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (top.View(help=True, note="no"), "any key: back to the jobs"),
        (top.View(asking=JOB, note="no"), "y/n  ask job fit of ada (a1) to stop?"),
        (top.View(asking={**JOB, "state": "queued"}), "y/n  take job fit of ada (a1) from the queue?"),
        (top.View(note="select a job first"), "select a job first"),
    ],
)
def test_the_last_line_is_of_what_was_typed(view: Any, words: str) -> None:
    assert top.footer(view, 2.0) == words


def test_the_selected_job_is_a_bar_across_the_terminal() -> None:
    shown = node(2)
    for number, one in enumerate(list(shown["jobs"])):
        shown["jobs"][number] = {**one, "id": f"a{number}", "name": f"fit-{number}"}
    lines = top.frame("gpushared", shown, Look(os.terminal_size((90, 24)), selected="a1"))
    bars = {name: "\x1b[7m" in line for line in lines for name in ("fit-0", "fit-1") if name in line}
    assert bars == {"fit-0": False, "fit-1": True}
    (bar_of_it,) = [line for line in plain(lines) if "fit-1" in line]
    assert len(bar_of_it) == 90


def test_what_top_answers_is_bold_until_the_next_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, drawn = iter(["k", "n", "q"]), []

    @contextlib.contextmanager
    def screen() -> Iterator[Any]:
        yield lambda _seconds: next(keys)

    monkeypatch.setattr(top, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(top, "load_settings", lambda: None)
    monkeypatch.setattr(top, "find", lambda _settings: SimpleNamespace(client=lambda *_: "client"))
    monkeypatch.setattr(top, "screen", screen)
    monkeypatch.setattr(top, "size", lambda: os.terminal_size((90, 24)))
    monkeypatch.setattr(top, "_ask", lambda: ("node", node(1)))
    monkeypatch.setattr(top, "headline", lambda _node, _status: "gpushared")
    monkeypatch.setattr(top, "draw", lambda lines, _room: drawn.append(lines[-1]))
    assert main(["top"]) == 0
    assert plain(drawn) == [
        "h help   q quit   s sort by loan   every 2 s",
        "select a job first: arrow keys",
        "h help   q quit   s sort by usage   every 2 s",
    ]
    assert ["\x1b[1m" in line for line in drawn] == [False, True, False]
    assert ["\x1b[2m" in line for line in drawn] == [True, False, True]


@pytest.mark.parametrize(
    ("view", "key", "readonly", "change"),
    [
        (top.View(selected="a1"), "k", False, {"asking": JOB}),
        (top.View(selected="a1"), "k", True, {"note": "k is off: --readonly"}),
        (top.View(), "k", False, {"note": "select a job first: arrow keys"}),
        (top.View(), "h", False, {"help": True}),
        (top.View(help=True), "q", False, {"help": False}),
        (top.View(), "?", False, {"help": True}),
        (top.View(), "Q", False, {"over": True}),
        (top.View(), "s", False, {"sort": "loan"}),
        (top.View("name"), "s", False, {"sort": "usage"}),
        (top.View(), "a", False, {"sort": "age"}),
        (top.View(), "x", False, {}),
        (top.View(selected="a1"), "escape", False, {"selected": None}),
        (top.View(), "down", False, {"selected": "a1"}),
        (top.View(note="old"), "x", False, {"note": ""}),
    ],
)
def test_what_a_key_does(view: Any, key: str, readonly: bool, change: dict[str, Any]) -> None:
    job = {**JOB, "gpus": [], "since": 0.0}
    wanted = {"asking": job} if "asking" in change else change
    assert top.press(view, key, [job], readonly=readonly) == replace(view, **wanted)
    if not readonly:
        assert top.press(view, key, [job]) == replace(view, **wanted), "only where it is asked for it only watches"


# ---- `status` -----------------------------------------------------------------------------------------


def ailing(state: str, text: str) -> dict[str, str]:
    return {"state": state, "text": text, "hint": f"mend {text}"}


def test_a_gpu_that_ails_has_a_way_out_unless_it_is_only_slower() -> None:
    gpu: Any = {"index": 3, "health": {"ailments": [ailing("degraded", "a"), ailing("sick", "b")]}}
    first, second = "GPU 3 is degraded: a", "GPU 3 is sick: b"
    assert status.ailments(gpu, hints=False) == [first, second, "  hint: mend b"]
    assert status.ailments(gpu, hints=True) == [first, "  hint: mend a", second, "  hint: mend b"]


@pytest.mark.parametrize(
    ("driver", "jobs", "up", "words"),
    [
        ("sim", 1, 59.9, "gpushared 0.1 (software driver), up 59 s, 1 job"),
        ("nvidia", 0, 3600.0, "gpushared 0.1 (NVIDIA driver), up 1h, 0 jobs"),
        ("other", 2, 0.0, "gpushared 0.1 (other), up 0 s, 2 jobs"),
    ],
)
def test_the_daemon_in_a_line(driver: str, jobs: int, up: float, words: str) -> None:
    told: Any = {"daemon": {"version": "0.1", "uptime": up, "jobs": jobs}}
    assert status.headline(SimpleNamespace(driver=driver), told) == words  # type: ignore[arg-type]


def test_reservations_and_the_states_of_jobs_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "clock", lambda _until: "12:00:00")
    gpus = [{"amount": 4 * GIB, "index": 0}, {"amount": GIB, "index": 2}]
    kept: Any = {"name": "night", "user": "ada", "gpus": gpus, "until": 0.0}
    words = "reserved: 4.0 GiB on GPU 0, 1.0 GiB on GPU 2 as night (ada), until"
    assert status._kept(kept) == f"{words} 12:00:00"
    assert status._kept({**kept, "until": None}) == f"{words} it is released"
    jobs: Any = [{"state": state} for state in ("running", "borrowing", "running")]
    assert status._jobs(jobs) == "jobs: 1 borrowing, 2 running"


def test_the_row_of_a_gpu_has_a_cell_for_each_column() -> None:
    gpu: Any = {**node()["gpus"][0], "name": "H100", "returning": GIB}
    amounts = ["16.0 GiB", "16.0 GiB", "8.0 GiB", "8.0 GiB", "4.0 GiB", "6.0 GiB", "2.0 GiB"]
    row = ["0", "H100", *amounts, "ok", "[######++++++!!!.........]"]
    assert status._row(gpu, wide=False) == row and len(row) == len(status.COLUMNS)
    assert status._row(gpu, wide=True) == [*row, "1.0 GiB", "GPU-0"]
