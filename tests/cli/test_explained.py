"""What `gpushare explain` says of turns, of ends, of what waits, and of messages that are pasted: word by word."""

from __future__ import annotations

import io
import os
from types import SimpleNamespace

import pytest
from fake_api import GIB, killed

from gpushare.cli import explain, output
from gpushare.message_catalog import Found, Meaning

MEANING = Meaning("odd_code", (": it is odd", "cannot … it"), "It is odd.", "Leave it.")


@pytest.fixture(autouse=True)
def forty_columns(monkeypatch):
    monkeypatch.setattr(output, "terminal_size", lambda: os.terminal_size((40, 24)))
    monkeypatch.setattr(output, "clock", lambda moment: f"<{moment:g}>")


def said(capsys, function, *arguments, **more) -> list[str]:
    function(*arguments, **more)
    return capsys.readouterr().out.splitlines()


# ---- turns ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "gpu", "words"),
    [
        ({}, {"turn": "holds"}, "jobs take turns in computing: it has the turn now; turns of 0 s in all"),
        (
            {"compute": 0.25},
            {"turn": "waits", "turn_time": 12.34},
            "jobs take turns in computing (compute 0.25): its launches wait for its turn; turns of 12.3 s in all",
        ),
        (
            {"compute": None, "exclusive": 30.0},
            {"turn": "free", "turn_time": 90.0},
            "jobs take turns in computing (alone for 30 s at a stretch): nobody else wants to compute just now;"
            " turns of 1m30s in all",
        ),
        (
            {"compute": 2, "exclusive": 5.0},
            {"turn": "of a later version", "turn_time": 0.04},
            "jobs take turns in computing (compute 2, alone for 5 s at a stretch): of a later version;"
            " turns of 0 s in all",
        ),
    ],
)
def test_turns(job, gpu, words):
    assert explain._turn(job, gpu) == words


# ---- a job ----------------------------------------------------------------------------------------


def gpu(**changes) -> dict:
    amounts = {"request": 4 * GIB, "limit": 8 * GIB, "usage": 3 * GIB, "peak": 5 * GIB, "grantable": 2 * GIB}
    return {"index": 1, "uuid": "GPU-1", **amounts, "loan": 0, "health": "ok", **changes}


def story(state: str, *gpus, outcome=None, waiting=(), records=(), **more) -> dict:
    job = {"name": "train", "id": "a1", "user": "ada", "state": state, "gpus": list(gpus), "outcome": outcome, **more}
    return {"job": job, "waiting": list(waiting), "story": list(records)}


HEAD = "job train (a1) of ada: "


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        (story("queued"), [HEAD + "queued", "", "nothing is recorded"]),
        (
            story("running", gpu()),
            [
                HEAD + "running",
                "  GPU 1  uses 3.0 GiB; request 4.0 GiB, limit 8.0 GiB; could get 2.0 GiB more now",
                "",
                "nothing is recorded",
            ],
        ),
        (
            story("borrowing", gpu(loan=GIB, health="sick", turn="holds")),
            [
                HEAD + "borrowing",
                "  GPU 1  uses 3.0 GiB, 1.0 GiB of it on loan;"
                " request 4.0 GiB, limit 8.0 GiB; could get 2.0 GiB more now",
                "  GPU 1  jobs take turns in computing: it has the turn now; turns of 0 s in all",
                "  GPU 1  is sick; `gpushare status` says why",
                "",
                "nothing is recorded",
            ],
        ),
        (
            story("observed", gpu(health="sick")),
            [
                HEAD + "observed",
                "  GPU 1  uses 3.0 GiB, 5.0 GiB at most; only observed: no budget",
                "",
                "nothing is recorded",
            ],
        ),
        (
            story(
                "ended", gpu(), outcome={"duration": 2.0, "killed": None, "signal": None, "exit_code": 0, "ended": 7}
            ),
            [
                HEAD + "ended",
                "  GPU 1  used 5.0 GiB at most; request 4.0 GiB, limit 8.0 GiB",
                "  ended after 2 s, exit 0, at <7>",
                "",
                "nothing is recorded",
            ],
        ),
        (
            story(
                "waiting",
                waiting=[
                    {"message": "waits for 1 GiB", "facts": [["on", "GPU 1"], ["since", "2 s"]], "hint": "wait"},
                    {"message": "and more", "facts": [], "hint": None},
                ],
                records=[{"time": 3, "text": "asked\n  much", "name": "train"}, {"time": 4, "text": "", "name": None}],
            ),
            [
                HEAD + "waiting",
                "",
                "waits for 1 GiB",
                "  on     GPU 1",
                "  since  2 s",
                "hint: wait",
                "and more",
                "",
                "<3>  asked",
                "            much",
                "<4>  ",
            ],
        ),
    ],
    ids=["queued", "running", "borrowing", "observed", "ended", "waiting"],
)
def test_the_story_of_a_job(capsys, told, lines):
    assert said(capsys, explain._print_story, told) == lines


@pytest.mark.parametrize("borrows", [True, False])
def test_a_stopped_job_is_told_what_it_cannot_do_while_it_borrows(capsys, borrows):
    lines = said(capsys, explain._print_story, story("stopped", gpu(), gpu(loan=GIB if borrows else 0)))
    assert ("cannot act when its loan is wanted back" in lines[3]) is borrows


# ---- its end --------------------------------------------------------------------------------------


def outcome(**changes) -> dict:
    return {"duration": 61.04, "killed": None, "signal": None, "exit_code": None, **changes}


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (outcome(), "ended after 1m1s"),
        (outcome(exit_code=0), "ended after 1m1s, exit 0"),
        (outcome(duration=3.14159), "ended after 3.1 s"),
        (outcome(exit_code=3, ended=5), "ended after 1m1s, exit 3, at <5>"),
        (outcome(exit_code=3, ended=0), "ended after 1m1s, exit 3"),
        (outcome(signal=11, ended=5), "ended after 1m1s by signal 11, at <5>"),
        (outcome(seen=True, exit_code=1), "ended after 1m1s, exit 1"),
        (outcome(seen=False, exit_code=1), "its end was not seen: the daemon or the node ended before it"),
        (
            outcome(killed=killed(), signal=9, ended=5),
            "stopped after 1m1s to return borrowed memory: 5.0 GiB owed to nb-2 (bob), 12.0 GiB returned, at <5>",
        ),
        (
            outcome(killed=killed(code="breach", reason="used 9 GiB"), exit_code=1),
            "stopped after 1m1s: it used more memory than its limit; used 9 GiB",
        ),
        (
            outcome(killed=killed(code="breach", reason="used 9 GiB"), seen=False),
            "stopped: it used more memory than its limit; used 9 GiB;"
            " its end was not seen: the daemon or the node ended before it",
        ),
        (
            outcome(killed=killed(code="suspend_stuck", reason="no room")),
            "stopped after 1m1s: it could not be brought back after a suspension; no room",
        ),
    ],
)
def test_how_a_job_ended(ended, words):
    assert explain._ending(ended) == words


# ---- the node -------------------------------------------------------------------------------------


def pressure(some: float, full: float, uuid: str = "GPU-1") -> dict:
    return {
        "uuid": uuid,
        "some": {"avg10": 0.5, "avg60": 0.2, "avg300": 0.104, "total": some},
        "full": {"avg10": 0.0, "avg60": 0.0, "avg300": 0.0, "total": full},
    }


def test_pressure_is_told_of_the_gpu_that_has_it(capsys):
    one = {"index": 1, "uuid": "GPU-1", "name": "G", "free": GIB, "capacity": 8 * GIB, "usage": 2 * GIB, "lent": GIB}
    one |= {"unmanaged": 0, "returning": 3 * GIB, "health": {"state": "ok", "shortfall": 0, "ailments": []}}
    now = {"gpus": [one], "waiting": [], "records": [], "pressure": [pressure(2.5, 1.0, "GPU-2"), pressure(0.0, 0.0)]}
    head = "GPU 1 (G): 1.0 GiB free of 8.0 GiB, 2.0 GiB used by jobs (1.0 GiB of it lent), 3.0 GiB coming back"
    assert said(capsys, explain._print_now, now) == [head, "", "no job waits for memory"]
    now["pressure"] = [pressure(2.504, 0.0)]
    text = "  owners have waited 2.5 s for it in all: 50% of the last 10 s, 10% of the last 5 min"
    assert said(capsys, explain._print_now, now)[1] == text
    now["pressure"] = [pressure(2.504, 1.504)]
    assert said(capsys, explain._print_now, now)[1] == f"{text}; for 1.5 s all jobs waited"


# ---- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (
            Found(MEANING, "it is odd", [], 1),
            ["odd_code: it is odd", "", "It is odd.", "What to do: Leave it."],
        ),
        (
            Found(MEANING, "it is odd", [("used", "1"), ("guaranteed", "2\n3"), ("x", "")], 2, hint="no"),
            [
                "odd_code: it is odd (2 times; the last has these numbers)",
                "  used        1",
                "  guaranteed  2",
                "              3",
                "  x",
                "",
                "It is odd.",
                "What to do: Leave it.",
                "hint: no",
            ],
        ),
    ],
)
def test_a_message_that_is_found(capsys, found, lines):
    assert said(capsys, explain._print_found, found) == lines


def test_what_a_code_means(capsys):
    assert said(capsys, explain._print_meaning, MEANING) == [
        "odd_code: messages with these words",
        "  …: it is odd",
        "  cannot … it",
        "",
        "It is odd.",
        "What to do: Leave it.",
    ]


def test_texts_are_as_wide_as_the_terminal_and_no_wider_than_can_be_read(capsys, monkeypatch):
    meaning = Meaning("c", (), "word " * 60, "wait")
    for columns, most in ((40, 40), (300, 100)):
        monkeypatch.setattr(output, "terminal_size", lambda columns=columns: os.terminal_size((columns, 24)))
        widths = [len(line) for line in said(capsys, explain._print_what, meaning)]
        assert most - 5 < max(widths) <= most


def test_messages_are_apart_by_an_empty_line(capsys, monkeypatch):
    found = [Found(MEANING, "one", [], 1), Found(MEANING, "two", [], 1)]
    monkeypatch.setattr("gpushare.message_catalog.messages_in", lambda lines: found)
    monkeypatch.setattr(explain, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(explain, "open", lambda *_, **__: io.StringIO(), raising=False)
    explain._explain_input("table")
    out, err = capsys.readouterr()
    whole = "odd_code: {}\n\nIt is odd.\nWhat to do: Leave it.\n"
    assert out == f"{whole.format('one')}\n{whole.format('two')}"
    assert err == "paste the messages, then Ctrl-D\n"
    monkeypatch.setattr(explain.sys.stdin, "isatty", lambda: False)
    explain._explain_input("table")
    assert capsys.readouterr().err == ""


def test_records_of_one_job_do_not_name_it(capsys, monkeypatch):
    monkeypatch.setattr(output, "clock", lambda _moment: "12:00:00")
    records = [{"time": 1.0, "text": "it began\nmore", "name": "fit"}, {"time": 2.0, "text": "", "name": ""}]
    assert said(capsys, explain._print_records, records) == ["12:00:00  it began", "          more", "12:00:00  "]
    named = said(capsys, explain._print_records, records, names=True)
    assert (named[0], named[-1]) == ("12:00:00  fit: it began", "12:00:00  "), "what is of no job names none"


def test_who_waits_is_told_with_numbers_and_what_to_do(capsys):
    assert said(capsys, explain._print_waiting, [], None) == []
    assert said(capsys, explain._print_waiting, [], "nobody waits") == ["nobody waits"]
    one = {"message": "it waits", "facts": [["free", "1"], ["needed", "2"]], "hint": "stop one"}
    plain = {"message": "another", "facts": [], "hint": ""}
    lines = ["it waits", "  free    1", "  needed  2", "hint: stop one", "another"]
    for none in (None, "nobody waits"):
        assert said(capsys, explain._print_waiting, [one, plain], none) == lines


def test_what_happened_last_is_below_the_present_state(capsys):
    records = [{"time": float(number), "text": f"event {number}", "name": "fit"} for number in range(25)]
    now = {"gpus": [], "pressure": [], "waiting": [], "records": records}
    lines = said(capsys, explain._print_now, now)
    assert [line.partition("event ")[2] for line in lines if "fit: event" in line] == [str(n) for n in range(5, 25)]
    assert any("latest events" in line for line in lines)
    assert not any("latest events" in line for line in said(capsys, explain._print_now, now | {"records": []}))


def test_a_gpu_that_ails_is_told_with_what_to_do(capsys):
    ailments = [{"state": "degraded", "text": "it is slow", "hint": "cool it"}]
    amounts = dict.fromkeys(("usage", "lent", "unmanaged", "returning", "free", "capacity"), 0)
    sick = {
        **amounts,
        "index": 3,
        "name": "H100",
        "uuid": "GPU-3",
        "health": {"state": "degraded", "ailments": ailments},
    }
    lines = said(capsys, explain._print_now, {"gpus": [sick], "pressure": [], "waiting": [], "records": []})
    text = " ".join(" ".join(lines).split())
    assert "GPU 3 is degraded: it is slow hint: cool it no job waits for memory" in text
