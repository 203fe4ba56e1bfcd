"""gpushare events -f: what is shown of what comes, and that it sleeps until something comes."""

from __future__ import annotations

import json
import os
import select
import threading
from types import SimpleNamespace

import pytest

from gpushare.cli import events


def record(at: float, text: str, name: str | None = "train", job: str | None = "a1", event: str = "e") -> dict:
    return {"time": at, "event": event, "gpu": None, "job": job, "name": name, "text": text, "facts": {}}


class Stream:
    """Batches of records, each a moment after the one before is read; then the daemon ends it."""

    def __init__(self, *batches: list[dict]) -> None:
        self.batches, self.closed, self.ended = list(batches), False, False
        self.reader, self.writer = os.pipe()
        self.come()

    def come(self) -> None:
        self.coming = threading.Timer(0.03, os.write, (self.writer, b"x"))
        self.coming.start()

    def fileno(self) -> int:
        return self.reader

    def read(self) -> list[dict]:
        assert select.select([self.reader], [], [], 0)[0], "nothing has come: it does not sleep"
        os.read(self.reader, 1)
        if not self.batches:
            self.ended = True
            return []
        self.come()
        return self.batches.pop(0)

    def close(self) -> None:
        self.closed = True
        self.coming.join()
        os.close(self.reader)
        os.close(self.writer)


@pytest.fixture
def follow(gpushare, environ, monkeypatch):
    """Run it before a daemon with these records, of which these come: (lines, how many were asked for)."""

    def follow(*words: str, known=(), comes=()):
        stream = Stream(*comes)
        asked = []

        def began(last: int) -> Stream:
            asked.append(last)
            return stream

        def records(since: float) -> list[dict]:
            return [one for one in known if one["time"] >= since]

        client = SimpleNamespace(follow=began, records=records)
        monkeypatch.setattr(events, "find", lambda _: SimpleNamespace(client=lambda: client))
        code, out, err = gpushare("events", "-f", "-o", "jsonl", *words)
        assert code == 3 and "the daemon has ended this stream" in err and "follow it again" in err
        assert stream.closed
        return [json.loads(line)["text"] for line in out.splitlines()], asked

    return follow


def test_all_that_comes_is_shown_as_it_comes(follow):
    comes = [[record(1.0, "one"), record(2.0, "two", None, None)], [], [record(3.0, "three")]]
    assert follow(comes=comes) == (["one", "two", "three"], [20])
    assert follow("-n", "5", comes=comes)[1] == [5]
    assert follow("-n", "0", comes=comes)[1] == [0]


@pytest.mark.parametrize("job", ["train", "a1"])
def test_of_one_job_and_what_was_lost(follow, job):
    comes = [
        [record(1.0, "mine"), record(2.0, "another's", "web", "b2"), record(3.0, "of nobody", None, None)],
        [record(4.0, "some are lost", None, None, "lost"), record(5.0, "mine again")],
    ]
    assert follow("--job", job, comes=comes)[0] == ["mine", "some are lost", "mine again"]


def test_since_a_moment_what_is_known_comes_first_and_nothing_twice(follow):
    known = [record(1e9 + number, f"known {number}", "train" if number % 2 else "web", "a1") for number in range(6)]
    comes = [[record(1e9 + 4, "known 4"), record(1e9 + 5, "known 5"), record(1e9 + 6, "new")]]
    since = ("--since", "2001-09-01")
    assert follow(*since, known=known, comes=comes) == ([f"known {n}" for n in range(6)] + ["new"], [0])
    assert follow(*since, "-n", "2", known=known, comes=comes)[0] == ["known 4", "known 5", "new"]
    assert follow(*since, "-n", "0", known=known, comes=comes)[0] == ["new"]
    assert follow(*since, "--job", "train", known=known, comes=comes)[0] == ["known 1", "known 3", "known 5", "new"]
    assert follow(*since, comes=comes)[0] == ["known 4", "known 5", "new"]


@pytest.mark.parametrize("output", ["table", "json", "jsonl"])
def test_that_there_are_none_is_said_where_no_program_reads(gpushare, environ, monkeypatch, output):
    monkeypatch.setattr(events, "ask", lambda *_: [])
    code, out, err = gpushare("events", "-o", output)
    assert code == 0 and err == ("no events\n" if output == "table" else "")
    assert (json.loads(out)["records"] == []) if output == "json" else out == ""


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", ["12:00:00  e           train: "]),
        ("one", ["12:00:00  e           train: one"]),
        ("one\ntwo\nthree", ["12:00:00  e           train: one", " " * 22 + "two", " " * 22 + "three"]),
    ],
)
def test_a_record_of_several_lines_is_told_below_its_first(capsys, monkeypatch, text, lines):
    monkeypatch.setattr(events._output, "clock", lambda _moment: "12:00:00")
    events._print(record(1.0, text), "table")
    assert capsys.readouterr().out.splitlines() == lines
    events._print(record(1.0, text, name=None), "table")
    assert capsys.readouterr().out.splitlines() == [line.replace("train: ", "") for line in lines]
