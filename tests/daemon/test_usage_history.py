"""The usage history: what is kept, at which resolution, for how long, and what a bad disk or a bad file does."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sqlite3
import time

import pytest
from daemon_harness import GIB, GPU, GPU2, until
from fixed_gpus import FixedGpus
from other_user import ALICE, as_user, needs_root

from gpushare import unixhttp
from gpushare.client import Events
from gpushared.api import history as api_history
from gpushared.api import history_question
from gpushared.gpus.inventory import GpuInfo, Sample
from gpushared.history import file as history_file
from gpushared.history import usage as history_usage
from gpushared.history.file import File
from gpushared.history.gpu_time import GpuTime
from gpushared.history.levels import (
    FRAME,
    LEVELS,
    OUTSIDE,
    TOTAL,
    Amounts,
    Level,
    Point,
    SeriesKey,
    Steps,
    Who,
    level_for,
)
from gpushared.history.usage import UsageHistory
from gpushared.limits.backlog import Backlog

A, B = SeriesKey(GPU, "a"), SeriesKey(GPU, "b")
WHO = {A: Who("train", "ann", 1), B: Who("notebook", "bob", 2)}
START = 1_800_000_000_000
"""A whole hour, in milliseconds."""


def amounts(usage: int, request: int = 4, limit: int = 14) -> Amounts:
    return Amounts(usage, request, limit, max(0, usage - request))


# ---- the levels ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "age", "level"),
    [
        (1, 600, 0),
        (9.9, 3600, 0),
        (10, 3600, 1),
        (1, 3 * 3600, 1),
        (59, 24 * 3600, 1),
        (60, 600, 2),
        (1, 25 * 3600, 2),
        (3600, 30 * 24 * 3600, 3),
        (1e9, 1, 3),
        (0, 0, 0),
        (1, 31 * 24 * 3600, 3),
    ],
)
def test_the_finest_level_that_is_fine_enough_and_long_enough(step, age, level):
    assert level_for(step, age) == level


def test_the_first_level_is_longer_than_the_longest_step():
    assert LEVELS[0].kept > LEVELS[-1].step + FRAME


def test_a_step_has_the_mean_and_the_most():
    steps = Steps(10, START)
    steps.take(A, START, amounts(2))
    steps.take(A, START + 5000, amounts(12))
    steps.take(A, START + 6000, amounts(6))
    assert list(steps.finish(START + 9999)) == []
    (point,) = steps.finish(START + 10_000)
    assert point == Point(A, START, Amounts((5 * 2 + 12 + 4 * 6) * 1000 // 10_000, 4, 14, (8 + 4 * 2) // 10), 12)


def test_a_job_that_uses_nothing_has_a_most_of_nothing():
    steps = Steps(10, START)
    steps.take(A, START, Amounts(0, 4, 14, 0))
    assert list(steps.finish(START + 20_000)) == [Point(A, START, Amounts(0, 4, 14, 0), 0)]


def test_a_step_that_is_not_over_is_known_so_far():
    steps = Steps(10, START)
    steps.take(A, START, amounts(2))
    steps.take(A, START + 2000, amounts(5))
    for _ in range(2):  # to ask changes nothing
        assert list(steps.so_far(START + 3000)) == [Point(A, START, Amounts(3, 4, 14, 0), 5)]
    (point,) = steps.finish(START + 10_000)
    assert point.amounts.usage == (2 * 2 + 8 * 5) // 10
    assert list(steps.so_far(START + 12_000)) == [Point(A, START + 10_000, amounts(5), 5)], "it is not the mean before"
    list(steps.finish(START + 20_000))
    assert list(steps.so_far(START + 22_000)) == [], "the point before holds"


def test_a_series_that_has_ended_has_nothing_in_the_step_that_is_not_over():
    steps = Steps(10, START)
    steps.take(A, START, amounts(6))
    steps.take(A, START + 4000, None)
    list(steps.finish(START + 10_000))
    for seconds in (10, 13):
        assert list(steps.so_far(START + seconds * 1000)) == [Point(A, START + 10_000, None)]
    list(steps.finish(START + 20_000))
    assert list(steps.so_far(START + 20_000)) == [], "it is said once"


def test_a_step_that_has_just_begun_says_nothing():
    steps = Steps(10, START)
    steps.take(A, START, amounts(2))
    steps.take(A, START + 5000, amounts(6))
    list(steps.finish(START + 10_000))
    assert list(steps.so_far(START + 10_000)) == []


def test_what_holds_is_written_once_more_and_then_no_more():
    steps = Steps(10, START)
    steps.take(A, START + 5000, amounts(6))
    found = list(steps.finish(START + 50_000))
    assert [(one.time - START, one.amounts, one.most) for one in found] == [
        (0, amounts(6), 6),  # half of a step: the mean is over the time in which there was a value
        (10_000, amounts(6), 6),
    ]


def test_a_step_in_which_a_series_ended_has_its_mean_and_no_budget():
    steps = Steps(10, START)
    steps.take(A, START, amounts(6))
    steps.take(A, START + 4000, None)
    assert list(steps.so_far(START + 5000)) == [Point(A, START, Amounts(6, 0, 0, 2), 6)]
    first, *more = steps.finish(START + 30_000)
    assert first == Point(A, START, Amounts(6, 0, 0, 2), 6), "over the time in which there was a value"
    assert more == [Point(A, START + 10_000, None)]


def test_each_series_has_a_point_in_each_frame():
    steps = Steps(10, START)
    steps.take(A, START, amounts(6))
    found = list(steps.finish(START + 3 * FRAME * 10_000))
    assert [(one.time - START) // 10_000 for one in found] == [0, FRAME, 2 * FRAME]


def test_a_series_that_ends_is_ended_in_the_next_step():
    steps = Steps(10, START)
    steps.take(A, START, amounts(6))
    found = list(steps.finish(START + 12_000))
    steps.take(A, START + 12_000, None)
    found += steps.finish(START + 100_000)
    shown = [(one.time - START, one.amounts and one.amounts.usage) for one in found]
    assert shown == [(0, 6), (10_000, 6), (20_000, None)]


def test_ends_of_what_never_was_are_nothing():
    steps = Steps(10, START)
    steps.take(A, START, None)
    assert list(steps.finish(START + 100_000)) == []


def test_steps_begin_at_whole_multiples():
    assert Steps(10, START + 9999).begun == START
    steps = Steps(10, START)
    list(steps.finish(START + 25_000))
    assert steps.begun == START + 20_000


def test_random_changes_give_the_mean_and_the_most_of_each_step():
    """Against the definition: the value of each second of each step."""
    rng = random.Random(7)
    steps, values, found = Steps(10, START), {}, {}
    for second in range(1000):
        at = START + second * 1000
        for point in steps.finish(at):
            found[point.series, (point.time - START) // 10_000] = point
        for key in (A, B):
            if rng.random() < 0.1:
                values[key, second] = None if rng.random() < 0.2 else amounts(rng.randrange(10))
                steps.take(key, at, values[key, second])
    for key in (A, B):
        now, held = None, None
        for step in range(99):
            seconds = []
            for second in range(10 * step, 10 * step + 10):
                now = values.get((key, second), now)
                seconds.append(now)
            held = found.get((key, step), held)
            known = [one for one in seconds if one is not None]
            if not known:
                assert held is None or held.amounts is None
                continue
            assert held.amounts.usage == sum(one.usage for one in known) // len(known), (key, step)
            assert held.amounts.loan == sum(one.loan for one in known) // len(known)
            assert held.most == max(one.usage for one in known)


# ---- the file --------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "usage.db"


def second(file: File, number: int, changed: dict) -> None:
    at = START + number * 1000
    file.finish(at)
    file.write(at, changed, {key: WHO[key] for key in changed if changed[key] is not None})


def read(file: File, since: float, until: float, level: int = 0, job=None, gpu=None) -> dict:
    found, cut = file.read(level, START + int(since * 1000), START + int(until * 1000), job, gpu)
    assert not cut
    return {
        one.key: [((point.time - START) / 1000, point.amounts and point.amounts.usage) for point in one.points]
        for one in found
    }


def test_only_what_changes_is_written(path):
    file = File(path, START)
    second(file, 0, {A: amounts(1), B: amounts(2)})
    for number in range(1, 50):
        second(file, number, {A: amounts(number)} if number % 10 == 0 else {})
    assert read(file, 0, 50) == {A: [(0, 1), (10, 10), (20, 20), (30, 30), (40, 40)], B: [(0, 2)]}
    file.close()


def test_a_range_begins_with_what_held_before_it(path):
    file = File(path, START)
    changes = {0: {A: amounts(1), B: amounts(2)}, 100: {A: amounts(5)}}
    for number in range(200):
        second(file, number, changes.get(number, {}))
    assert read(file, 90, 110) == {A: [(90, 1), (100, 5)], B: [(90, 2)]}
    assert read(file, 150, 160) == {A: [(150, 5)], B: [(150, 2)]}
    assert read(file, 150, 160, job="a") == {A: [(150, 5)]}
    assert read(file, 150, 160, gpu=GPU2) == {}
    assert read(file, 150, 160, job="'; drop table point") == {}
    assert read(file, 0, 200, level=1)[A][0] == (0, 1)
    assert read(file, 500, 600) == {}, "nothing was written for so long: nothing is known"
    file.close()


def test_a_step_that_is_not_over_is_in_the_ranges_that_it_lies_in(path):
    file = File(path, START)
    for number in range(601):
        second(file, number, {A: amounts(1)} if number == 0 else {A: amounts(5)} if number == 600 else {})
    second(file, 605, {})
    assert [at for at, _ in read(file, 600, 601, level=1)[A]] == [600]
    assert [at for at, _ in read(file, 590, 600, level=1)[A]] == [590], "it begins when the range has ended"
    assert [at for at, _ in read(file, 1200, 1210, level=1)[A]] == [1200], "a frame of steps later it holds"
    assert read(file, 1200.001, 1210, level=1) == {}
    file.close()


def test_a_young_job_is_in_a_long_range(path):
    file = File(path, START)
    second(file, 0, {A: amounts(1)})
    second(file, 3, {B: amounts(2)})
    second(file, 4, {})
    for level in (1, 2, 3):
        assert read(file, -8 * 3600, 4, level=level) == {A: [(0, 1)], B: [(0, 2)]}
    assert read(file, -8 * 3600, 4, level=1, job="b") == {B: [(0, 2)]}
    assert read(file, -8 * 3600, -1, level=1) == {}
    for number in range(5, 15):
        second(file, number, {A: amounts(9)} if number == 12 else {})
    assert read(file, 0, 15, level=1) == {A: [(0, 1), (10, (2 * 1 + 2 * 9) // 4)], B: [(0, 2), (10, 2)]}
    assert read(file, 1000, 1100, level=1) == {}, "nothing was written for so long: nothing is known"
    file.close()


def test_what_had_ended_before_a_range_is_not_in_it(path):
    file = File(path, START)
    second(file, 0, {A: amounts(1), B: amounts(2)})
    second(file, 10, {A: None})
    assert read(file, 5, 20) == {A: [(5, 1), (10, None)], B: [(5, 2)]}
    assert read(file, 15, 20) == {B: [(15, 2)]}
    file.close()


def test_a_file_that_is_opened_again_ends_what_nobody_has_seen(path):
    file = File(path, START)
    for number in range(26):
        second(file, number, {A: amounts(1)} if number == 0 else {A: amounts(21)} if number == 25 else {})
    file.commit(START + 25_000)
    file.close()
    file = File(path, START + 100_000)
    assert read(file, 0, 100) == {A: [(0, 1), (25, 21), (25.001, None)]}
    # The step that was not over has been made from the seconds; nothing holds after it.
    assert read(file, 0, 100, level=1) == {A: [(0, 1), (20, 1), (30, None)]}
    second(file, 100, {A: amounts(3)})
    assert read(file, 90, 110)[A] == [(100, 3)]
    file.close()


def test_uncommitted_seconds_are_all_that_a_kill_costs(path):
    file = File(path, START)
    second(file, 0, {A: amounts(1)})
    file.commit(START)
    second(file, 5, {A: amounts(2)})
    child = os.fork()
    if child == 0:
        os._exit(0)  # with the file open, as a kill leaves it
    os.waitpid(child, 0)
    other = sqlite3.connect(path)
    assert other.execute("select count(*) from point where level = 0").fetchone() == (1,)
    other.close()
    file.close()
    file = File(path, START + 10_000)
    assert read(file, 0, 10) == {A: [(0, 1), (0.001, None)]}
    file.close()


def test_old_points_go_and_young_ones_stay(path, monkeypatch):
    monkeypatch.setattr(history_file, "LEVELS", (Level(1, 100, 10**6), Level(10, 1000, 10**6)))
    file = File(path, START)
    for number in range(0, 2000, 5):
        second(file, number, {A: amounts(number % 7)})
    file.prune(START + 2_000_000)
    (first,), (coarse,) = (
        file._db.execute("select min(time) from point where level = ?", (level,)).fetchone() for level in (0, 1)
    )
    assert START + 1_900_000 <= first <= START + 1_905_000
    assert START + 1_000_000 <= coarse <= START + 1_010_000
    file.close()


def test_there_are_never_too_many_rows(path, monkeypatch):
    monkeypatch.setattr(history_file, "LEVELS", (Level(1, 10**6, 500), Level(10, 10**6, 500)))
    file = File(path, START)
    for number in range(1000):
        second(file, number, {A: amounts(number)})
    file.prune(START + 1_000_000)
    rows = read(file, 0, 1000)[A]
    assert 440 <= len(rows) <= 450 and rows[-1] == (999, 999), "a tenth is free, so that the next ones have room"
    for number in range(1000, 1000 + 500 - len(rows)):
        second(file, number, {A: amounts(number)})
    file.prune(START + 1_100_000)
    assert len(read(file, 0, 2000)[A]) == 500, "as many as there may be"
    file.close()


def test_a_point_may_be_a_frame_ahead_and_as_old_as_its_level_keeps_it(path, monkeypatch):
    """A step has the time of its beginning, and clocks differ a little."""
    monkeypatch.setattr(history_file, "LEVELS", (Level(1, 100, 10**6), Level(10, 1000, 10**6)))
    file = File(path, START)
    second(file, 0, {A: amounts(1)})
    now = START + 5_000_000
    for level, kept, ahead in ((0, 100, 60), (1, 1000, 600)):
        ends = [now - kept * 1000 - 1, now - kept * 1000, now + ahead * 1000, now + ahead * 1000 + 1]
        file._db.executemany("insert into point values (?, ?, 1, 1, 1, 1, 1, 1, 1)", [(level, one) for one in ends])
        file.prune(now)
        found = file._db.execute("select time from point where level = ? order by time", (level,)).fetchall()
        assert [one for (one,) in found] == ends[1:3]
    file.close()


def test_points_from_the_future_go(path):
    file = File(path, START)
    second(file, 0, {A: amounts(1)})
    second(file, 10**6, {A: amounts(2)})
    file.prune(START + 1000)
    assert read(file, 0, 10**7) == {A: [(0, 1)]}
    file.close()


def test_an_answer_has_an_end(path, monkeypatch):
    monkeypatch.setattr(history_file, "MOST_POINTS", 10)
    file = File(path, START)
    for number in range(20):
        second(file, number, {A: amounts(number)})
    found, cut = file.read(0, START, START + 20_000, None, None)
    assert cut and [point.amounts.usage for point in found[0].points] == list(range(10, 20))
    file.close()


def test_nobody_else_reads_the_file(path):
    File(path, START).close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_the_file_stays_below_its_bound(path, monkeypatch):
    monkeypatch.setattr(history_file, "MOST_PAGES", 40)
    file = File(path, START)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        for number in range(10_000):
            second(file, number, {A: amounts(number), B: amounts(number)})
            file.commit(START + number * 1000)
    file.roll_back()
    file.make_room()
    second(file, 10_001, {A: amounts(1)})
    file.commit(START + 10_001_000)
    assert path.stat().st_size <= 40 * 4096
    file.close()


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough" * 100, b"SQLite format 3\0" + b"x" * 5000]
)
def test_a_file_that_is_none_is_put_aside(path, content):
    path.parent.mkdir(mode=0o700)
    path.write_bytes(content)
    file = File(path, START)
    second(file, 0, {A: amounts(1)})
    assert read(file, 0, 1) == {A: [(0, 1)]}
    assert path.with_name("usage.db.bad").read_bytes() == content
    file.close()


def test_a_file_of_a_later_version_is_put_aside(path):
    File(path, START).close()
    with sqlite3.connect(path) as db:
        db.execute("pragma user_version = 99")
    db.close()
    File(path, START).close()
    assert path.with_name("usage.db.bad").exists()


# ---- the thread ------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(history_usage, "COMMIT_EVERY", 0.05)


def kept(path, what: str = "count(*)") -> object:
    with sqlite3.connect(path) as db:
        found = db.execute(f"select {what} from point where level = 0").fetchone()[0]
    db.close()
    return found


def test_a_directory_that_cannot_be_written_stops_the_history_alone(tmp_path, quick, caplog):
    blocked = tmp_path / "state"
    blocked.write_text("a file where the directory should be")
    usage = UsageHistory(blocked)
    usage.start()
    for number in range(3):
        usage.look({A: amounts(number)}, WHO.__getitem__, START / 1000 + number)
        time.sleep(0.1)
    assert sum("cannot be written" in one.message for one in caplog.records) == 1
    blocked.unlink()
    usage.look({A: amounts(9)}, WHO.__getitem__, START / 1000 + 4)
    until(lambda: any("written again" in one.message for one in caplog.records) or tick(usage))
    usage.close()
    assert kept(tmp_path / "state" / "usage.db", "max(usage)") == 9


numbers = itertools.count(5)


def tick(usage: UsageHistory) -> bool:
    usage.look({A: amounts(9)}, WHO.__getitem__, START / 1000 + next(numbers))
    time.sleep(0.02)
    return False


def test_a_full_disk_costs_what_it_costs_and_no_more(path, quick, monkeypatch, caplog):
    usage = UsageHistory(path.parent)
    usage.start()
    usage.look({A: amounts(1)}, WHO.__getitem__, START / 1000)
    until(path.exists)
    real = File.commit

    def full(self, now):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(File, "commit", full)
    until(lambda: any("disk is full" in str(one.__dict__) for one in caplog.records) or tick(usage))
    monkeypatch.setattr(File, "commit", real)
    until(lambda: any("written again" in one.message for one in caplog.records) or tick(usage))
    usage.close()
    assert kept(path, "max(usage)") == 9


def test_what_is_rolled_back_was_never_written(path):
    file = File(path, START)
    second(file, 0, {A: amounts(1)})
    file.commit(START)
    second(file, 1, {A: amounts(2)})
    file.roll_back()
    file.roll_back()
    assert read(file, 0, 10) == {A: [(0, 1)]}
    file.close()


def test_a_question_that_comes_alone_is_answered_soon_and_without_a_history_at_once(path):
    async def story() -> None:
        usage = UsageHistory(path.parent)
        assert await usage.ask(lambda file: 7) is None, "it is not started"
        usage.start()
        usage.look({A: amounts(1)}, WHO.__getitem__, START / 1000)
        while await usage.ask(lambda file: 7) is None:  # until there is a file
            usage.look({A: amounts(1)}, WHO.__getitem__, START / 1000 + 1)
        await asyncio.sleep(0.05)
        assert await usage.ask(lambda file: 7) == 7
        usage.close()
        assert await UsageHistory().ask(lambda file: 7) is None

    asyncio.run(asyncio.wait_for(story(), 9))


def test_room_that_was_made_stays_made(path, monkeypatch):
    """The file is closed after it, and opened again."""
    file = File(path, START)
    for number in range(100):
        second(file, number, {A: amounts(number)})
    file.commit(START + 100_000)
    before = kept(path)
    monkeypatch.setattr(history_file, "MOST_PAGES", 1)
    file.make_room()
    file.close()
    assert before // 3 <= kept(path) <= before // 2 + 1


def test_a_file_that_breaks_meanwhile_is_put_aside_once(path, quick, monkeypatch, caplog):
    """A disk that breaks each file would otherwise take the first one, at which somebody may look."""
    usage, broken, real = UsageHistory(path.parent), [True], File.write
    aside = path.with_name("usage.db.bad")

    def write(self, *arguments):
        if broken[0]:
            raise sqlite3.DatabaseError("database disk image is malformed")
        real(self, *arguments)

    def times(message: str) -> int:
        return sum(message in one.message for one in caplog.records)

    usage.start()
    usage.look({A: amounts(1)}, WHO.__getitem__, START / 1000)
    until(path.exists)
    monkeypatch.setattr(File, "write", write)
    until(lambda: aside.exists() or tick(usage))
    broken[0] = False
    until(lambda: times("written again") == 1 or tick(usage))
    aside.write_text("the first")
    broken[0] = True
    until(lambda: times("cannot be written") == 2 or tick(usage))
    broken[0] = False
    until(lambda: times("written again") == 2 or tick(usage))
    usage.close()
    assert aside.read_text() == "the first" and kept(path, "max(usage)") == 9


def test_the_disk_is_written_now_and_then_and_not_each_second(path, monkeypatch):
    commits = []
    real = File.commit
    monkeypatch.setattr(File, "commit", lambda self, now: (commits.append(now), real(self, now)))
    usage = UsageHistory(path.parent)
    usage.start()
    for number in range(50):
        usage.look({A: amounts(number)}, WHO.__getitem__, START / 1000 + number)
    usage.close()
    assert 2 <= len(commits) <= 4, "the first, the last, and one every ten seconds between"
    assert kept(path, "max(usage)") == 49


def test_a_series_that_goes_is_ended_and_a_pause_ends_all(path):
    usage = UsageHistory(path.parent)
    usage.start()
    now = START / 1000
    usage.look({A: amounts(1), B: amounts(2)}, WHO.__getitem__, now)
    usage.look({A: amounts(1)}, WHO.__getitem__, now + 1)
    usage.look({A: amounts(1)}, WHO.__getitem__, now + 3600)
    usage.look({A: amounts(1)}, WHO.__getitem__, now + 1000)  # the clock was set back
    usage.close()
    with sqlite3.connect(path) as db:
        rows = db.execute("select time - ?, job, usage from point join series on series = id where level = 0", (START,))
        assert sorted(rows.fetchall()) == [
            (0, "a", 1),
            (0, "b", 2),
            (1000, "b", None),
            (1001, "a", None),
            (1_000_000, "a", 1),
            (3_600_000, "a", 1),
            (3_600_001, "a", None),
        ]
    db.close()


# ---- the daemon ------------------------------------------------------------------------------------

JOB = {"name": "train", "command": ["train.py"], "request": "4Gi", "limit": "14Gi"}


def history(daemon, query: str = "") -> dict:
    status, text = unixhttp.exchange(daemon.directory / "api.sock", "GET", f"/v1/history{query}", None, 10.0)
    assert status == 200, text
    return json.loads(text)


def series(found: dict) -> dict:
    return {(one["gpu"], one["job"]): one for one in found["series"]}


def last(daemon, gpu: str, job: str) -> list | None:
    """The amounts of memory of the last point."""
    one = series(history(daemon)).get((gpu, job))
    return None if one is None else one["points"][-1][1:6]


def test_usage_request_limit_and_loan_of_a_job_are_there(gpushared):
    gpushared.start()
    gpu, other = [one["uuid"] for one in gpushared.client.status()["gpus"]]
    job = gpushared.client.register({**JOB, "devices": [gpu]})["id"]
    until(lambda: last(gpushared, gpu, job) == [0, 0, 4 * GIB, 14 * GIB, 0])
    found = history(gpushared, f"?job={job}")
    assert found["kept"] is True and found["step"] == 1 and found["cut"] is False
    assert series(found).keys() == {(gpu, job)} and found["series"][0]["name"] == "train"
    assert series(history(gpushared, f"?gpu={other}")).keys() == {(other, TOTAL), (other, OUTSIDE)}
    until(lambda: last(gpushared, gpu, TOTAL)[2] == 4 * GIB)
    gpushared.client.change(job, {"limit": "8Gi"})
    until(lambda: last(gpushared, gpu, job) == [0, 0, 4 * GIB, 8 * GIB, 0])
    gpushared.client.end(job, 0, None)
    until(lambda: last(gpushared, gpu, job) == [])


def test_what_a_killed_daemon_has_committed_is_there_afterwards(gpushared):
    gpushared.start()
    gpu = gpushared.client.status()["gpus"][0]["uuid"]
    job = gpushared.client.register({**JOB, "devices": [gpu]})["id"]
    until(lambda: last(gpushared, gpu, job) is not None)
    until(lambda: committed(gpushared, job), 15.0)
    gpushared.kill()
    gpushared.start()
    points = series(history(gpushared))[gpu, job]["points"]
    assert points[0][1:6] == [0, 0, 4 * GIB, 14 * GIB, 0]
    assert [] in [one[1:] for one in points], "in between nothing is known"


def committed(daemon, job: str) -> bool:
    with sqlite3.connect(daemon.directory / "history" / "usage.db") as db:
        found = db.execute("select count(*) from point join series on series = id where job = ?", (job,)).fetchone()
    db.close()
    return found[0] > 0


@pytest.mark.parametrize("query", ["?since=x", "?since=nan", "?until=-1", "?step=x", "?since=9&until=8", "?since=1"])
def test_a_question_that_makes_no_sense_is_refused(daemon, query):
    status, text = daemon.http("GET", f"/v1/history{query}")
    assert status == 400 and json.loads(text)["error"]["code"] == "bad_request"


def test_a_daemon_without_a_history_says_so(daemon):
    found = history(daemon)
    assert found["kept"] is False and found["series"] == []


def test_who_follows_hears_what_is_and_what_changes(daemon):
    stream = Events(daemon.directory / "api.sock", "/v1/history?follow=1", 10.0, dict)
    lines = []

    def heard(wanted) -> bool:
        lines.extend(stream.read())
        return any(wanted(one) for line in lines for one in line["series"])

    until(lambda: heard(lambda one: one["gpu"] == GPU2 and one["job"] == TOTAL))
    job = daemon.client.register({**JOB, "devices": [GPU]})["id"]
    until(lambda: heard(lambda one: one["job"] == job and one["now"] == amounts(0, 4 * GIB, 14 * GIB)._asdict()))
    until(lambda: heard(lambda one: (one["gpu"], one["job"]) == (GPU, TOTAL) and one["now"]["request"] == 4 * GIB))
    daemon.client.end(job, 0, None)
    until(lambda: heard(lambda one: one["job"] == job and one["now"] is None))
    stream.close()
    daemon.stop()


def test_usage_above_the_request_is_a_loan(daemon):
    job = daemon.client.register({**JOB, "devices": [GPU]})["id"]
    shim = daemon.connect()
    shim.hello(job, request=4 * GIB, limit=14 * GIB)
    shim.attach(GPU)
    shim.allocate(6 * GIB)
    shown = daemon.client.job(job)["gpus"][0]
    seen = daemon.call(lambda: api_history.seen(daemon.shell))
    assert seen[SeriesKey(GPU, job)] == Amounts(shown["usage"], 4 * GIB, 14 * GIB, shown["loan"])
    gpu = daemon.client.status()["gpus"][0]
    assert seen[SeriesKey(GPU, TOTAL)] == Amounts(gpu["usage"], gpu["requested"], gpu["capacity"], gpu["lent"])
    assert shown["loan"] > GIB
    shim.close()


def test_memory_outside_gpushare_is_a_series_of_its_own(make_daemon):
    gpus = FixedGpus([GpuInfo(GPU, 0, "Test GPU", 16 * GIB)], {GPU: Sample(3 * GIB, {1: 3 * GIB})})
    daemon = make_daemon(gpus)
    until(lambda: daemon.call(lambda: api_history.seen(daemon.shell))[SeriesKey(GPU, OUTSIDE)].usage == 3 * GIB)


@needs_root
@pytest.mark.parametrize("reveal", ["name", "user", "none"])
def test_another_user_sees_amounts_and_of_names_what_reveal_says(gpushared, reveal):
    settings = gpushared.directory / "settings.toml"
    settings.write_text(f'[daemon]\nreveal = "{reveal}"\n')
    gpushared.start("--config", str(settings))
    gpu = gpushared.client.status()["gpus"][0]["uuid"]
    job = gpushared.client.register({**JOB, "devices": [gpu]})
    until(lambda: last(gpushared, gpu, job["id"]) is not None)
    gpushared.directory.chmod(0o711)
    (gpushared.directory / "api.sock").chmod(0o666)
    shown = as_user(ALICE, lambda: [one for one in history(gpushared)["series"] if one["job"] == job["id"]])
    assert shown[0]["points"][-1][1:6] == [0, 0, 4 * GIB, 14 * GIB, 0]
    assert shown[0]["name"] == ("train" if reveal == "name" else "-")
    assert shown[0]["user"] == ("-" if reveal == "none" else job["user"])
    (followed,) = as_user(ALICE, lambda: follow_once(gpushared, job["id"]))
    assert (followed["name"], followed["user"]) == (shown[0]["name"], shown[0]["user"])


def follow_once(daemon, job: str) -> list:
    stream = Events(daemon.directory / "api.sock", "/v1/history?follow=1", 10.0, dict)
    lines = until(lambda: list(stream.read()))
    stream.close()
    return [one for one in lines[0]["series"] if one["job"] == job]


def test_followers_hear_more_often_than_the_file_is_written(path):
    usage = UsageHistory(path.parent)
    usage.start()
    follower = Backlog()
    usage.followers.add(follower)
    for number in range(5):
        usage.look({A: amounts(number)}, WHO.__getitem__, START / 1000 + number / 2)
    usage.close()
    assert len(follower) == 5
    assert kept(path) == 3


# ---- GPU time --------------------------------------------------------------------------------------


def test_gpu_time_is_the_mean_of_ten_seconds():
    time, found = GpuTime(), []
    for second in range(31):
        total = 0.25 * second if second <= 10 else 2.5 + (second - 10)  # a quarter of the time, then all of it
        found.append(dict(time.means({A: total}, 1000.0 + second)))
    assert found[9] == {} and found[10:20] == [{A: 250}] * 10 and found[20] == found[30] == {A: 1000}


def test_gpu_time_of_a_job_that_comes_and_goes():
    time = GpuTime()
    time.means({}, 0.0)
    assert time.means({A: 4.0}, 10.0) == {A: 400}
    assert time.means({B: 0.0}, 20.0) == {B: 0}, "what an ended job had is no more"
    assert time.means({B: 99.0}, 30.0) == {B: 1000}


def test_a_step_has_the_mean_of_gpu_time():
    steps = Steps(10, START)
    steps.take(A, START, amounts(2)._replace(computing=1000))
    steps.take(A, START + 4000, amounts(2)._replace(computing=500))
    (point,) = steps.finish(START + 10_000)
    assert point.amounts == amounts(2)._replace(computing=700)
    assert [one.amounts.computing for one in steps.finish(START + 20_000)] == [500], "and what holds is no mean of both"


def test_gpu_time_is_kept_in_the_file(path):
    file = File(path, START)
    second(file, 0, {A: amounts(1)._replace(computing=333)})
    file.commit(START)
    file.close()
    file = File(path, START + 30_000)
    for level in (1, 0):
        found, _ = file.read(level, START, START + 100_000, None, None)
        assert found[0].points[0].amounts.computing == 333, level
    assert history_question.point(found[0].points[0])[1:] == [1, 1, 4, 14, 0, 0.333]
    file.close()


def test_a_file_of_the_first_version_goes_on(path):
    path.parent.mkdir(0o700)
    with sqlite3.connect(path) as db:
        first = history_file.SCHEMA.replace(" computing integer not null default 0,", "")
        assert first != history_file.SCHEMA
        db.executescript(f"{first} pragma user_version = 1;")
        db.execute("insert into series values (1, ?, 'a', 'train', 'ann', 1, ?)", (GPU, START))
        db.execute("insert into point values (0, ?, 1, 7, 7, 4, 14, 3)", (START,))
        db.execute("update alive set time = ?", (START,))
    db.close()
    file = File(path, START + 5000)
    second(file, 5, {A: amounts(9)._replace(computing=5)})
    assert read(file, 0, 10) == {A: [(0, 7), (0.001, None), (5, 9)]}
    assert not path.with_name("usage.db.bad").exists()
    file.close()
