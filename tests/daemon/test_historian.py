"""The history's files: bounded for each user, and never in the daemon's way."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import GIB, GPU, InProcess, until

from gpushare import history as files
from gpushare.history import EVENTS, JOBS, History, file_name, told, written
from gpushare.reasons import Mention, Text, words
from gpushared.core.instructions import Record
from gpushared.jobs import historian
from gpushared.jobs.historian import Allowance, Files, Historian

A, B = 1001, 1002
WHO = Mention(A, "mine (alice)", "mine (alice)", "a job of alice", "another user's job")


def line(number: int, size: int = 100) -> bytes:
    text = json.dumps(
        {"time": float(number), "event": "e", "gpu": None, "job": "j", "name": "n", "facts": {}, "text": ""}
    )
    return (text[:-2] + "x" * (size - len(text) - 1) + text[-2:] + "\n").encode()


def record(event: str = "e", uid: int | None = A, job: str | None = "j", text: Any = "said", **facts: Any) -> Record:
    return Record(0.0, event, None, text, facts, job, "n", uid)


def job(id: str, uid: int = A, outcome: Any = None) -> dict[str, Any]:
    """As api.Job."""
    return {
        **{"id": id, "name": "n", "user": "alice", "uid": uid, "command": ["x"], "state": "running", "since": 1.0},
        **{"priority": 0, "lend": True, "grace": None, "on_reclaim": ["kill"], "request_source": None},
        **{"limit_source": None, "gpus": [], "processes": [], "outcome": outcome},
    }


ENDED = {"exit_code": 0, "signal": None, "killed": None, "peak": {}, "refusals": 0, "duration": 2.0, "ended": 3.0}


@pytest.fixture
def open_historian(tmp_path: Path) -> Iterator[Callable[[], Historian]]:
    made = []

    def make() -> Historian:
        made.append(Historian(tmp_path / "h"))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


# ---- the files ---------------------------------------------------------------------------------------


def test_mentions_survive_and_are_told(tmp_path):
    value = {"text": words("it is ", WHO), "list": [WHO, 1, None], "plain": "x"}
    again = files._read(json.loads(json.dumps(written(value))))
    assert again == {**value, "list": [WHO, 1, None]}
    assert isinstance(again["text"], Text)
    assert told(again) == {"text": "it is mine (alice)", "list": ["mine (alice)", 1, None], "plain": "x"}
    withheld = Mention(A, "own", None, None, None)
    assert files._read(written(withheld)) == withheld


def test_a_file_is_bounded_and_the_latest_lines_stay(tmp_path):
    out = Files(tmp_path)
    for number in range(12_000):
        if number % 10 == 0:
            out.append(deque((A, EVENTS, line(n)) for n in range(number, number + 10)))
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    bound = historian.FILE_BYTES[EVENTS]
    assert sizes.keys() == {"1001.events", "1001.events.old"}
    assert bound - 100 < sizes["1001.events.old"] <= bound
    assert sizes["1001.events"] <= bound
    found = History(tmp_path).records()
    times = [one["time"] for one in found.records]
    assert times == list(map(float, range(12_000 - len(times), 12_000)))
    assert len(times) == files.RECORDS_AT_MOST and found.cut
    assert [one["time"] for one in History(tmp_path).records(most=2).records] == [11998.0, 11999.0]
    assert History(tmp_path).records(since=11_990.0, most=9).cut
    assert not History(tmp_path).records(since=11_990.0, most=10).cut
    assert not History(tmp_path).records(since=11_000.0).cut
    assert len(History(tmp_path).records(since=11_000.0).records) == 1000


def test_one_batch_may_be_larger_than_a_file(tmp_path, monkeypatch):
    monkeypatch.setitem(historian.FILE_BYTES, EVENTS, 1000)
    Files(tmp_path).append(deque((A, EVENTS, line(n)) for n in range(35)))
    assert [one["time"] for one in History(tmp_path).records().records] == list(map(float, range(20, 35)))
    # And a line larger than a file has one for itself.
    monkeypatch.setitem(historian.FILE_BYTES, EVENTS, 50)
    Files(tmp_path).append(deque([(A, EVENTS, line(40)), (A, EVENTS, line(41))]))
    assert [one["time"] for one in History(tmp_path).records().records] == [40.0, 41.0]


def test_torn_lines_and_garbage_are_passed_over(tmp_path):
    path = tmp_path / file_name(A, EVENTS)
    good = line(1)
    path.write_bytes(
        good
        + b'\xff\x00 garbage\n{"time": 2.0}\n{"time": 3.0, "event": 5}\n[1]\n{"time": 4..4}\n'
        + b'{"time": 4.0, "event": "e", "gpu": null, "job": "j", "name": "n", "facts": {}, "text": {"words": 5}}\n'
        + b'{"time": 4.0, "event": "e", "gpu": null, "job": "j", "name": "n", "facts": {}, "text": {"mention": [1]}}\n'
        + b'{"time": 4.0, "event": "e", "gpu": 1, "job": "j", "name": "n", "facts": {}, "text": ""}\n'
        + b'{"time": 4.0, "event": "e", "gpu": null, "name": "n", "facts": {}, "text": ""}\n'
        + b'{"time": 4.0, "event": "e", "gpu": null, "job": "j", "name": "n", "facts": [], "text": ""}\n'
        + b'{"time": 5.0, "event": "torn'
    )
    assert [one["time"] for one in History(tmp_path).records().records] == [1.0]
    Files(tmp_path).append(deque([(A, EVENTS, line(6))]))
    assert [one["time"] for one in History(tmp_path).records().records] == [1.0, 6.0]


def test_what_is_no_file_of_ours_is_left_alone(tmp_path):
    for name in ("1001.events.new", "x.events", "1001.event", "-1.jobs", "notes.txt"):
        (tmp_path / name).write_bytes(line(1))
    os.mkfifo(tmp_path / "1.events")
    (tmp_path / "2.events").symlink_to("/etc/passwd")
    (tmp_path / "3.events").mkdir()
    (tmp_path / "4.jobs").write_bytes(line(1))
    history = History(tmp_path)
    assert history.records() == ([], False)
    assert history.jobs() == []
    assert History(tmp_path / "none").records() == ([], False)
    with pytest.raises(ValueError, match=r"notes\.txt"):
        files.whose("notes.txt")
    assert (files.whose("17.jobs.old"), files.whose("node.events")) == (17, None)


def test_records_of_a_time_a_job_and_users(tmp_path):
    def of(uid: int | None, number: int, job: str) -> tuple[int | None, str, bytes]:
        return uid, EVENTS, line(number).replace(b'"job": "j"', b'"job": "%s"' % job.encode())

    Files(tmp_path).append(deque([of(A, 3, "a"), of(B, 2, "b"), of(None, 1, "c"), of(A, 5, "b")]))
    history = History(tmp_path)

    def found(*arguments: Any, **more: Any) -> list[tuple[float, int | None]]:
        return [(one["time"], one["uid"]) for one in history.records(*arguments, **more).records]

    assert found() == [(1.0, None), (2.0, B), (3.0, A), (5.0, A)]
    assert found(2.5) == [(3.0, A), (5.0, A)]
    assert found(3.0) == [(3.0, A), (5.0, A)], "from then on"
    assert found(0.0, "b") == [(2.0, B), (5.0, A)]
    assert found(users={B}) == [(1.0, None), (2.0, B)]


def test_only_the_ends_of_many_files_are_read(tmp_path, monkeypatch):
    Files(tmp_path).append(deque((uid, EVENTS, line(n)) for uid in (A, B) for n in range(100)))
    monkeypatch.setattr(files, "READ_AT_MOST", 2 * 1050)
    found = History(tmp_path).records()
    assert found.cut
    assert sorted(one["time"] for one in found.records) == sorted([*map(float, range(90, 100))] * 2)
    assert not History(tmp_path).records(since=90.0).cut, "nothing that was asked for is missing"


def test_the_last_line_of_a_job_counts(tmp_path):
    lines = [
        (1.0, job("a")),
        (2.0, job("b")),
        (3.0, job("a", outcome=ENDED)),
        (4.0, job("c", B, ENDED)),
        (5.0, {"id": 1}),
    ]
    out = Historian(tmp_path)
    for moment, content in lines:
        out.job(content.get("uid", A), content | {"outcome": content.get("outcome")}, moment)
    out.start()
    out.close()
    history = History(tmp_path)
    found = {one["id"]: one for one in history.jobs()}
    assert list(found) == ["b", "a", "c"]
    assert found["a"]["outcome"] == ENDED
    assert found["b"]["state"] == "ended" and found["b"]["outcome"]["seen"] is False
    assert [one["id"] for one in history.jobs({B})] == ["c"]


# ---- who may fill how much ---------------------------------------------------------------------------


def test_one_user_pushes_nothing_of_another_out(open_historian, tmp_path):
    one = open_historian()
    one.record(record(uid=B, text="what matters"), 1.0)
    one.job(B, job("b", B, ENDED), 1.0)
    for number in range(40):
        for other in range(500):
            one.record(record(job=f"j{other}", text="x" * 500, event=f"e{number}"), 2.0)
        one.job(A, job(f"a{number}", A, ENDED), 2.0)
        time.sleep(0.03)
    one.close()
    history = History(tmp_path / "h")
    assert [str(found["text"]) for found in history.records(users={B}).records] == ["what matters"]
    assert [found["id"] for found in history.jobs({B})] == ["b"]
    total = sum(path.stat().st_size for path in (tmp_path / "h").iterdir())
    assert total < 2 * (historian.FILE_BYTES[EVENTS] + historian.FILE_BYTES[JOBS]) + 4096
    assert (tmp_path / "h" / "1001.events.old").exists(), "the flood was one"
    assert len(history.jobs({A})) == 40, "endings have a file of their own"


def test_a_flood_of_one_kind_leaves_the_rest_of_the_story(open_historian, tmp_path):
    one = open_historian()
    for _ in range(1000):
        one.record(record("denied"), 5.0)
    one.record(record("denied", job="other"), 5.0)
    one.record(record("denied", uid=B), 5.0)
    one.record(record("ended"), 5.0)
    one.record(record("denied"), 6.5)
    one.close()
    found = History(tmp_path / "h").records().records
    mine = [entry for entry in found if entry["job"] == "j" and entry["uid"] == A]
    assert [entry["event"] for entry in mine] == ["denied"] * 20 + ["ended", "denied"]
    assert mine[-1]["facts"] == {"left_out": 980}
    assert len(found) == 24


def test_an_allowance():
    allowance = Allowance()
    assert [allowance.take("k", 0.0) for _ in range(22)] == [0] * 20 + [None, None]
    assert allowance.take("k", 0.5) is None
    assert allowance.take("k", 1.1) == 3
    assert allowance.take("k", 1.2) is None
    assert allowance.take("k", 0.0) is None, "a clock that was set back gives nothing"
    assert allowance.take("k", 1000.0) == 2
    assert [allowance.take("k", 1000.0) for _ in range(20)] == [0] * 19 + [None]
    for other in range(historian.KINDS):
        assert allowance.take(other, 2000.0) == 0
    assert len(allowance._left) <= historian.KINDS


def test_a_long_line_loses_its_facts_or_is_left_out(open_historian, tmp_path):
    one = open_historian()
    one.record(record("long", many="x" * 9000), 1.0)
    one.record(record("longer", text="x" * 9000), 1.0)
    one.job(A, {**job("a"), "command": ["x" * 9000]}, 1.0)
    one.job(A, {**job("b"), "name": "x" * 9000}, 1.0)
    one.close()
    history = History(tmp_path / "h")
    assert [(found["event"], found["facts"]) for found in history.records().records] == [("long", {})]
    assert [(found["id"], found["command"]) for found in history.jobs()] == [("a", [])]
    assert one.left_out == 2


def test_a_line_of_the_greatest_length_is_whole(open_historian, tmp_path):
    """One byte more costs its facts, or what its job was started with."""
    one = open_historian()
    fact, word = (historian.LINE_BYTES - size for size in (sizes(tmp_path)))
    for more in (0, 1):
        one.record(record(f"e{more}", many="x" * (fact + more)), 1.0)
        one.job(A, {**job(f"{more}"), "command": ["x" * (word + more)]}, 1.0)
    one.close()
    history = History(tmp_path / "h")
    assert [len(found["facts"].get("many", "")) for found in history.records().records] == [fact, 0]
    assert [found["command"] for found in history.jobs()] == [["x" * word], []]
    assert one.left_out == 0


def sizes(directory: Path) -> tuple[int, int]:
    """Bytes of the line of such a record, and of such a job, without the text that fills it."""
    one = Historian(directory / "other")
    one.record(record("e0", many=""), 1.0)
    one.job(A, {**job("0"), "command": [""]}, 1.0)
    (_, _, first), (_, _, second) = one._lines
    return len(first), len(second)


def test_what_is_written_alone_is_written_soon(open_historian, tmp_path):
    """Nothing else has to come, neither lines nor questions."""
    one = open_historian()
    until((tmp_path / "h").exists)
    time.sleep(0.05)
    one.record(record("alone"), 1.0)
    until(lambda: History(tmp_path / "h").records().records)
    one.job(A, job("a", outcome=ENDED), 1.0)
    until(lambda: History(tmp_path / "h").jobs())


def test_without_a_directory_nothing_waits_and_nobody_is_kept_waiting():
    one = Historian()
    one.start()
    one.record(record(), 1.0)
    one.job(A, job("a"), 1.0)
    assert not one._lines and one.left_out == 0
    unstarted = Historian(Path("/nowhere"))
    for never in (one, unstarted):
        assert asyncio.run(asyncio.wait_for(never.ask(A, lambda history: history.jobs()), 2)) is None
    one.close()


def test_a_disk_that_hangs_keeps_no_process_from_ending_and_one_that_works_is_done(open_historian, tmp_path):
    one = open_historian()
    assert one._thread.daemon
    one.record(record("last"), 1.0)
    began = time.monotonic()
    one.close()
    assert not one._thread.is_alive() and time.monotonic() - began < historian.CLOSE_WITHIN
    assert [found["event"] for found in History(tmp_path / "h").records().records] == ["last"]


def test_what_was_written_makes_room_for_more(open_historian, tmp_path):
    """The bound is of lines that wait, not of all that ever came."""
    one, size = open_historian(), historian.LINE_BYTES - 500
    for number in range(3 * historian.WAITING_BYTES // size):
        one.record(record(f"e{number}", text="x" * size), 1.0)
        until(lambda: not one._lines)
    assert one.left_out == 0


def test_what_is_known_of_a_stop_is_in_the_line_of_its_job(tmp_path):
    one, killed = Historian(tmp_path), {"reclaim": {"code": "reclaim", "claim": WHO}, "last": False}
    one.job(A, job("a"), 1.0)
    one.job(A, job("b"), 1.0, killed)
    first, second = (json.loads(text) for _, _, text in one._lines)
    assert "stop" not in first and second["stop"] == written(killed)


def test_what_waits_is_bounded_for_each_user(tmp_path):
    one = Historian(tmp_path)  # not started: a disk that hangs
    for number in range(400):
        one.record(record(job=f"{number}", text="x" * 1000), 1.0)
    one.record(record(uid=B), 1.0)
    assert one.left_out > 100
    assert historian.WAITING_BYTES - 2000 < one._waiting[A, EVENTS] <= historian.WAITING_BYTES
    assert one._waiting[B, EVENTS] < 1000
    one.start()
    one.close()
    assert len(History(tmp_path).records(users={B}).records) == 1
    assert len(History(tmp_path).records().records) == 401 - one.left_out


def test_so_many_users_and_no_more_until_one_is_old(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(historian, "USERS", 3)
    monkeypatch.setattr(historian.log, "propagate", True)
    out = Files(tmp_path)
    for uid in (None, 1, 2, 3, 4, 5, 1):
        out.append(deque([(uid, EVENTS, line(uid or 0))]))
    assert {path.name for path in tmp_path.iterdir()} == {"node.events", "1.events", "2.events"}
    assert caplog.text.count("no room for more users") == 1
    out.append(deque([(1, JOBS, line(1))]))
    assert (tmp_path / "1.jobs").exists(), "who has one file may have the other"
    Files(tmp_path).append(deque([(6, EVENTS, line(6))]))
    assert caplog.text.count("no room for more users") == 2, "each daemon says it once"
    old = time.time() - historian.KEPT - 60
    os.utime(tmp_path / "2.events", (old, old))
    out.append(deque([(4, EVENTS, line(4))]))
    assert {path.name for path in tmp_path.iterdir()} == {"node.events", "1.events", "1.jobs", "4.events"}


def test_what_is_of_nobody_always_has_room(tmp_path, monkeypatch):
    """The node's own events: that a GPU failed must not be lost because many users have histories."""
    monkeypatch.setattr(historian, "USERS", 2)
    out = Files(tmp_path)
    for uid in (1, 2, 3, None):
        out.append(deque([(uid, EVENTS, line(uid or 0))]))
    assert {path.name for path in tmp_path.iterdir()} == {"1.events", "2.events", "node.events"}


DAY = 24 * 3600.0


@pytest.mark.parametrize(
    ("ages", "kept"),
    [
        ({"1.jobs": 400, "2.jobs": 380}, {"1.jobs", "2.jobs"}),  # the clock is far ahead, or nothing ran for a year
        ({"1.jobs": 415, "2.jobs": 380}, {"2.jobs"}),
        ({"1.jobs": 40, "2.jobs": 1}, {"2.jobs"}),
        ({"1.jobs": 20, "2.jobs": -4000}, {"1.jobs", "2.jobs"}),  # written when the clock was far ahead
        ({"1.jobs": 40, "2.jobs": -4000}, {"2.jobs"}),
        ({"1.jobs": 40, "notes.txt": 1}, {"1.jobs", "notes.txt"}),
    ],
)
def test_a_clock_that_is_far_ahead_makes_nothing_old(tmp_path, ages, kept):
    for name, days in ages.items():
        (tmp_path / name).write_text("{}\n")
        os.utime(tmp_path / name, (time.time() - days * DAY,) * 2)
    historian.prune(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_link_beside_our_directory_is_not_followed(tmp_path):
    """Nor is anything removed beside it where the directory has another name."""
    old = time.time() - historian.KEPT - 60
    elsewhere, beside = tmp_path / "elsewhere", tmp_path / "state" / "beside"
    for directory in (elsewhere, beside):
        directory.mkdir(parents=True)
        (directory / "1.jobs").write_text("x")
        os.utime(directory / "1.jobs", (old, old))
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "there").symlink_to(elsewhere)
    Files(tmp_path / "history" / "here").open()
    Files(tmp_path / "state" / "here").open()
    assert (elsewhere / "1.jobs").exists() and (beside / "1.jobs").exists()
    assert (tmp_path / "history" / "here").is_dir(), "its own directory stays, though it is empty"


def test_a_history_begins_in_directories_that_nobody_else_reads(tmp_path):
    Files(tmp_path / "home" / "state" / "history").open()
    modes = [(tmp_path / "home" / "state" / name).stat().st_mode & 0o777 for name in ("", "history")]
    assert modes == [0o700, 0o700]


def test_old_files_go_and_those_of_hosts_that_are_no_more(tmp_path):
    here, there, busy = (tmp_path / "history" / name for name in ("here", "there", "busy"))
    old = time.time() - historian.KEPT - 60
    for directory in (here, there, busy):
        directory.mkdir(parents=True)
        for name in ("1.jobs", "1.events.old", "usage.db", "usage.db-wal", "letter"):
            if (directory, name) != (there, "letter"):
                (directory / name).write_text("x")
                os.utime(directory / name, (old, old))
    (busy / "2.jobs").write_text("x")
    Files(here).open()
    assert {path.name for path in here.iterdir()} == {"letter"}, "only what is ours"
    assert not there.exists()
    assert {path.name for path in busy.iterdir()} == {"letter", "2.jobs"}


# ---- never in the way --------------------------------------------------------------------------------


def test_a_directory_of_another_is_not_used(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(historian.log, "propagate", True)
    for kind, make in {
        "open": lambda path: (path.mkdir(), path.chmod(0o777)),
        "link": lambda path: path.symlink_to(tmp_path),
    }.items():
        make(tmp_path / kind)
        caplog.clear()
        Files(tmp_path / kind).open()
        assert caplog.text.count("the history cannot be written") == 1


def test_a_full_disk_is_said_once_and_so_is_its_end(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(historian.log, "propagate", True)
    out = Files(tmp_path)
    write, taken = os.write, [1000, 30, 0]

    def full(fd: int, text: bytes) -> int:
        if taken and taken[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, text[: taken.pop(0)] if taken else text)

    monkeypatch.setattr(os, "write", full)
    out.append(deque([(A, EVENTS, line(1))]))
    for number in (2, 3, 4):
        out.append(deque([(A, EVENTS, line(number))]))  # the second is torn
    taken.clear()
    out.append(deque([(A, EVENTS, line(5)), (B, EVENTS, line(6))]))
    assert [one["time"] for one in History(tmp_path).records().records] == [1.0, 5.0, 6.0]
    assert caplog.text.count("the history cannot be written") == 1
    assert caplog.text.count("the history is written again") == 1


def test_a_disk_that_hangs_delays_nobody(tmp_path, monkeypatch):
    hang = threading.Event()
    monkeypatch.setattr(Files, "open", lambda _: hang.wait(30))
    monkeypatch.setattr(historian, "CLOSE_WITHIN", 0.1)
    one = Historian(tmp_path)
    one.start()
    one.record(record(), 1.0)
    assert asyncio.run(one.ask(A, lambda history: history.records(), within=0.05)) is None
    began = time.monotonic()
    one.close()
    assert time.monotonic() - began < 1.0
    hang.set()


def test_a_question_finds_what_was_handed_in_before_it(open_historian):
    async def main() -> None:
        one = open_historian()
        for number in range(50):
            one.record(record(f"e{number}"), float(number))
            found = await one.ask(A, lambda history: history.records())
            assert found is not None and len(found.records) == number + 1

    asyncio.run(main())


def test_a_question_that_fails_hurts_no_other(open_historian):
    async def main() -> None:
        one = open_historian()
        assert await one.ask(A, lambda _: 1 // 0, within=0.2) is None
        assert await one.ask(A, lambda _: 7) == 7

    asyncio.run(main())


def test_questions_of_one_user_come_one_after_the_other(open_historian):
    async def main() -> None:
        one, order = open_historian(), []
        asked = [asyncio.create_task(one.ask(A, lambda _, n=n: order.append(n))) for n in range(5)]
        await asyncio.sleep(0)
        asked.append(asyncio.create_task(one.ask(B, lambda _: order.append("B"))))
        await asyncio.gather(*asked)
        assert order.index("B") <= 1, order

    asyncio.run(main())


def test_without_a_directory_there_is_nothing(tmp_path):
    one = Historian()
    one.start()
    one.record(record(), 1.0)
    one.job(A, job("a"), 1.0)
    assert asyncio.run(one.ask(A, lambda history: history.records())) is None
    one.close()


# ---- the daemon --------------------------------------------------------------------------------------


@pytest.fixture
def with_history(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpushared import daemon

    make = daemon.Daemon.__init__

    def init(self: Any, *arguments: Any, **more: Any) -> None:
        make(self, *arguments, **{**more, "history": directory / "history"})

    monkeypatch.setattr(daemon.Daemon, "__init__", init)


@pytest.mark.usefixtures("with_history")
def test_the_next_daemon_shows_what_was_before_it(make_daemon):
    first: InProcess = make_daemon()
    body = {"name": "a", "command": ["a", "b"], "request": "4Gi", "limit": "8Gi", "gpus": 1, "devices": ["0"]}
    job = first.client.register(body)
    first.client.change(job["id"], {"limit": "6Gi", "priority": 3})
    first.client.end(job["id"], 7, None)
    (before,) = first.client.jobs(ended=True)
    story = first.client.story(job["id"])
    assert (before["gpus"][0]["request"], before["gpus"][0]["limit"]) == (4 * GIB, 6 * GIB)
    assert before["outcome"]["exit_code"] == 7 and before["outcome"]["ended"] is not None
    lives = first.client.register({**body, "name": "lives"})
    first.client.reserve({"request": "1Gi", "name": "kept"})
    known = first.client.records()
    first.stop()

    second = make_daemon()
    (shown, still) = sorted(second.client.jobs(ended=True), key=lambda one: one["name"])
    assert shown == before
    assert still["id"] == lives["id"] and still["state"] == "running"
    assert second.client.job("a") == before, "by its name"
    assert second.client.story("a") == {**story, "job": before}

    def texts(records: Any) -> list[Any]:
        return [(one["event"], one["text"], one["job"], one["name"], one["facts"]) for one in records]

    assert texts(second.client.records())[: len(known)] == texts(known)
    assert texts(second.client.records(0.0)) == texts(second.client.records())
    assert "admitted" in {one["event"] for one in second.client.story(lives["id"])["story"]}
    late = second.client.records()[-1]["time"]
    assert second.client.records(late + 1) == []
    assert all(abs(one["time"] - two["time"]) < 0.1 for one, two in zip(second.client.records(), known, strict=False))
    second.client.end(lives["id"], 0, None)


@pytest.mark.usefixtures("with_history")
def test_a_job_without_a_wrapper_keeps_its_numbers(make_daemon):
    """It ends with its process, and nobody says so before."""
    daemon = make_daemon()
    client = daemon.connect()
    assert client.hello(request=2 * GIB, limit=3 * GIB).status == 0
    assert client.attach(GPU).status == 0
    client.allocate(GIB)
    (living,) = daemon.client.jobs()
    daemon.call(lambda: daemon.shell.jobs.end(daemon.shell.registry.get(living["id"])))
    daemon.call(lambda: [daemon.shell.processes.gone(one) for one in list(daemon.shell.clients)])
    (job,) = daemon.client.jobs(ended=True)
    assert job["state"] == "ended"
    (gpu,) = job["gpus"]
    assert (gpu["request"], gpu["limit"]) == (2 * GIB, 3 * GIB)
    assert gpu["peak"] == job["outcome"]["peak"][GPU] > 0
    client.close()


def test_without_a_history_since_is_answered_from_memory(daemon):
    daemon.client.reserve({"request": "1Gi", "name": "one"})
    record = daemon.client.records()[-1]
    assert daemon.client.records(record["time"] - 0.001)[-1]["text"] == record["text"]
    assert daemon.client.records(record["time"] + 5) == []


@pytest.mark.parametrize("since", ["x", "-1", "nan", "1e400", "", "1" * 500])
def test_a_time_that_is_none(daemon, since):
    status, answer = daemon.http("GET", f"/v1/events?since={since}")
    assert (status, json.loads(answer)["error"]["code"]) == (400, "bad_request")


@pytest.mark.parametrize(("reveal", "sees"), [("name", True), ("user", False), ("none", False)])
def test_others_read_of_it_what_they_may_read_of_the_present(tmp_path, reveal, sees):
    from gpushared.core.visibility import Viewer
    from gpushared.jobs import earlier

    out = Historian(tmp_path)
    out.record(record(uid=A, text=words("for ", Mention(B, "b's", "b's", "of bob", "another's")), whom=WHO), 1.0)
    out.record(record(uid=B), 2.0)
    out.record(record(uid=None), 3.0)
    out.start()
    out.close()

    def read(viewer: Viewer) -> list[Any]:
        found = History(tmp_path).records(users=earlier.users_for(viewer)).records
        return [
            (one["time"], one["text"], one["facts"].get("whom")) for one in (earlier.shown(x, viewer) for x in found)
        ]

    mine = {"name": "b's", "user": "of bob", "none": "another's"}[reveal]
    assert read(Viewer(A, reveal))[0] == (1.0, f"for {mine}", "mine (alice)")
    assert [one[0] for one in read(Viewer(A, reveal))] == ([1.0, 2.0, 3.0] if sees else [1.0, 3.0])
    assert [one[0] for one in read(Viewer(B, reveal))] == ([1.0, 2.0, 3.0] if sees else [2.0, 3.0])
    assert [one[0] for one in read(Viewer(0, reveal))] == [1.0, 2.0, 3.0]
    assert [one[0] for one in read(Viewer(77, reveal, admin=True))] == [1.0, 2.0, 3.0]


def test_of_ended_jobs_in_memory_the_user_with_most_loses_first(monkeypatch):
    from gpushare.job_spec import JobSpec
    from gpushare.quantity import MAX, NOTHING
    from gpushared.jobs import registry
    from gpushared.limits.byte_budget import ByteBudget

    monkeypatch.setattr(registry, "ENDED_KEPT", 5)
    book = registry.JobRegistry(None, ByteBudget(lambda _: False))
    for number, uid in enumerate((A, B, *[A] * 10)):
        book.end(book.open(f"{number}", JobSpec("n", uid, "u", (), NOTHING, MAX)))
    assert [entry.id for entry in book.all()] == ["1", "8", "9", "10", "11"]
