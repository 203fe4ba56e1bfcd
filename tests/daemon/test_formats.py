"""What a daemon of this version has written yesterday is read today: byte by byte, as it lies there."""

from __future__ import annotations

import errno
import json
import sqlite3
import struct
from pathlib import Path

import pytest

from gpushare._layout import lib
from gpushare.quantity import MAX, Kind, Quantity
from gpushare.reclaim_steps import JOB_STEPS, STEP_BITS
from gpushared.clients import ledger as ledger_
from gpushared.clients.ledger import Header, Ledger, Terms
from gpushared.history.file import File
from gpushared.history.levels import Amounts, SeriesKey, Who
from gpushared.jobs.found_state import FoundState

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
GROWTH = 64

LINES = int(lib.GS_PAGE_LINES)
RECORD = 1024
HEADER = Header(7, 0xFF, 123456789, 4321, 70001, -3, 2500, "train")
START = 10**12


def record(lines: list[tuple[bytes, int, int]], terms: tuple[int, ...]) -> bytes:
    """One of the ledger: the header, the lines from byte 96 on, the terms behind all of them; zeros to its end."""
    one = struct.pack("<QQQIIiI48s", 7, 0xFF, 123456789, 4321, 70001, -3, 2500, b"train")
    one += bytes(96 - len(one))
    one += b"".join(struct.pack("<16sII", *line) for line in lines) + bytes(24 * (LINES - len(lines)))
    one += struct.pack("<BBHIQQ", *terms)
    return one + bytes(RECORD - len(one))


@pytest.mark.parametrize("number", [0, 5, GROWTH + 3])
def test_a_ledger(tmp_path: Path, number: int) -> None:
    steps = sum(STEP_BITS[step] for step in JOB_STEPS[:2])
    whole = record([(b"a" * 16, 5, 6), (b"b" * 16, 7, 0)], (1, 3, steps, 1500, 6 * 2**30, 0))
    (tmp_path / "ledger").write_bytes(bytes(number * RECORD) + whole)
    ledger = Ledger(tmp_path / "ledger")
    assert list(ledger.found) == [7]
    found = ledger.found[7]
    assert (found.number, found.header) == (number, HEADER)
    assert [(line.uuid, line.credit, line.overhead) for line in found.lines] == [(b"a" * 16, 5, 6), (b"b" * 16, 7, 0)]
    assert found.terms == Terms(Quantity.plain(Kind.BYTES, 6 * 2**30), MAX, tuple(JOB_STEPS[:2]), 1.5)
    # What is entered lies where the next daemon, and one of this version before it, look for it.
    found.enter(1, 2, 9)
    found.open_line(b"c" * 16)
    found.enter(2, 1, 1)
    ledger.close()
    text = (tmp_path / "ledger").read_bytes()
    assert len(text) == max(GROWTH, number + 1) * RECORD
    lines = [(b"a" * 16, 5, 6), (b"b" * 16, 9, 9), (b"c" * 16, 1, 1)]
    assert text[number * RECORD :][:RECORD] == record(lines, (1, 3, steps, 1500, 6 * 2**30, 0))


def test_more_pages_than_there_were_records_for(tmp_path: Path) -> None:
    """The file grows, and each page has a record of its own."""
    ledger = Ledger(tmp_path / "ledger")
    headers = [Header(page, page, page, 1, 1, 0, 0, f"{page}") for page in range(1, 2 * GROWTH + 2)]
    made = [ledger.open(header) for header in headers]
    assert len({one.number for one in made}) == len(made)
    ledger.close()
    again = Ledger(tmp_path / "ledger")
    assert [again.found[header.page_id].header for header in headers] == headers
    again.close()
    assert (tmp_path / "ledger").stat().st_size == 3 * GROWTH * RECORD, "by as many as it began with"


def test_a_disk_without_room_for_more_records_is_told_and_those_there_are_stay(tmp_path: Path, monkeypatch) -> None:
    """Not by a signal at the first store."""

    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    ledger = Ledger(tmp_path / "ledger")
    headers = [Header(page, page, page, 1, 1, 0, 0, "x") for page in range(1, GROWTH + 2)]
    made = [ledger.open(header) for header in headers[:-1]]
    monkeypatch.setattr(ledger_.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        ledger.open(headers[-1])
    monkeypatch.undo()
    made[3].strike_out()
    assert ledger.open(headers[-1]).number == made[3].number
    ledger.close()


def test_notes_of_jobs(tmp_path: Path, caplog) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"version": 2, "time": 5.0, "core": {}, "jobs": {}, "attempts": {"p": 3}}))
    assert FoundState(path).attempts == {"p": 3} and caplog.records == []


def test_a_usage_history(tmp_path: Path) -> None:
    path = tmp_path / "state" / "usage.db"
    path.parent.mkdir(mode=0o700)
    with sqlite3.connect(path) as db:
        db.executescript(
            """
            create table series (id integer primary key, gpu text, job text, name text, user text, uid integer,
                seen integer, unique (gpu, job));
            create table point (level integer, time integer, series integer, usage integer, most integer,
                request integer, bound integer, loan integer, computing integer not null default 0,
                primary key (level, time, series)) without rowid;
            create table alive (time integer);
            pragma user_version = 2;
            """
        )
        db.execute("insert into alive values (?)", (START + 5000,))
        db.execute("insert into series values (4, 'GPU-a', 'j', 'train', 'ada', 70001, ?)", (START,))
        db.execute("insert into point values (0, ?, 4, 10, 11, 12, 13, 14, 15)", (START,))
    db.close()
    file = File(path, START + 10_000)
    found, cut = file.read(0, START, START + 5000, None, None)
    file.close()
    assert not cut and not path.with_name("usage.db.bad").exists()
    [(key, who, [point])] = found
    assert (key, who) == (SeriesKey("GPU-a", "j"), Who("train", "ada", 70001))
    assert (point.time, point.amounts, point.most) == (START, Amounts(10, 12, 13, 14, 15), 11)
