"""The log of a cluster: what was answered is on disk, wholly and once, whenever the writer is killed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import sqlite3
import stat
import time
from pathlib import Path

import pytest

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.codec import decode_events, encode_events
from gpushare.cluster.model import (
    Event,
    ForeignUse,
    GpuHealth,
    Job,
    JobChanged,
    JobEnded,
    JobHeld,
    JobReleased,
    JobRestored,
    JobSubmitted,
    JobWithdrawn,
    Node,
    NodeAdded,
    NodeCordoned,
    NodeDrained,
    NodeLost,
    NodeUncordoned,
    NodeUnknown,
    Place,
    Policy,
    Preempt,
    Queue,
    QueueAdded,
    QueueChanged,
    QueueRemoved,
    Selector,
    Start,
    Started,
    StartFailed,
    Stopped,
    StopRefused,
    Tasks,
    TasksLost,
    TimePassed,
)
from gpushare.cluster.quantity import gpus
from gpushare.cluster.store import Store, StoreError, default_path
from gpushare.errors import UsageError

KILLS = int(os.environ.get("GPUSHARE_TEST_KILLS", "25"))
CLUSTER = [
    NodeAdded(Node("n1", 4)),
    NodeAdded(Node("n2", 4)),
    QueueAdded(Queue("a", quota=gpus(4))),
    QueueAdded(Queue("b", quota=gpus(4))),
]
ALL_EVENTS = [
    NodeAdded(Node("n", 8, 2**30, "H100", "p", (("rack", "r1"),), frozenset({3, 1}))),
    NodeLost("n"),
    GpuHealth("n", 3, healthy=False),
    QueueAdded(Queue("q", "p", None, 5, 3, -1, True, 2.5, "spread", 1, 2)),
    QueueChanged(Queue("q")),
    QueueRemoved("q"),
    JobSubmitted(Job("j", "q", (Tasks(2, 4, 2, 500_000, None, 700_000, (4, 3), "w"), Tasks()), 7, False, 1.5)),
    JobSubmitted(Job("k", "q", selector=Selector(("p",), ("t",), (("a", "b"),), ("n",)), wait=False, backfill=True)),
    JobRestored(Job("l", "q"), (Place(0, 0, "n", (1, 2), 3, 4),), since=0.1, attempt=3, rung=1),
    JobChanged("j", None, preemptible=True),
    JobWithdrawn("j"),
    JobEnded("j"),
    Stopped("j", 2),
    TimePassed(),
    NodeAdded(Node("n", 2, uuids=("GPU-a", "GPU-b"))),
    NodeUnknown("n"),
    NodeCordoned("n"),
    NodeDrained("n"),
    NodeUncordoned("n"),
    ForeignUse("n", 1, 2**30),
    JobSubmitted(Job("m", "q", name="train"), since=2.5, attempt=3, evictions=4),
    JobRestored(Job("l", "q"), (), since=0.1, evictions=2),
    JobHeld("j", "by its user"),
    JobReleased("j"),
    Started("j", 2, ((0, 1), (1, 0))),
    StartFailed("j", 2, ((0, 1),), "n", "no image"),
    StartFailed("j", 2),
    TasksLost("j", 2, ((0, 0),)),
    Stopped("j", 2, ((0, 0),)),
    StopRefused("j", 2, 30.0),
]


def submit(name: str, queue: str = "a", amount: str = "1") -> JobSubmitted:
    number = gpus(amount)
    tasks = Tasks(gpus=number // 10**6) if number % 10**6 == 0 else Tasks(share=number)
    return JobSubmitted(Job(name, queue, (tasks,)))


def replayed(path: Path) -> Allocator:
    """The state by the log alone, read without the store."""
    connection = sqlite3.connect(path)
    allocator = Allocator(Policy())
    for moment, events in connection.execute("SELECT time, events FROM log ORDER BY seq"):
        allocator.handle(decode_events(events), moment)
    connection.close()
    return allocator


# ---- what is kept -------------------------------------------------------------------------------------


def test_every_event_is_read_back_as_it_was() -> None:
    assert decode_events(encode_events(ALL_EVENTS)) == ALL_EVENTS
    assert encode_events(ALL_EVENTS) == encode_events(decode_events(encode_events(ALL_EVENTS)))


def test_a_closed_store_opens_as_it_was(tmp_path) -> None:
    path = tmp_path / "state" / "c.db"
    with Store.create(path, Policy(retry_after=7)) as store:
        store.append(CLUSTER, 1.0)
        actions = store.append([submit("a-1"), submit("a-2", amount="0.1")], 2.5)
        before = store.allocator.dump()
    assert [action.job for action in actions] == ["a-1", "a-2"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with Store.open(path) as again:
        assert again.allocator.dump() == before
        assert (again.seq, again.now) == (2, 2.5)
        assert again.policy == Policy(retry_after=7)
        assert [row.events for row in again.rows()] == [CLUSTER, [submit("a-1"), submit("a-2", amount="0.1")]]


def test_a_refused_event_changes_nothing(tmp_path) -> None:
    with Store.create(tmp_path / "c.db") as store:
        store.append(CLUSTER, 1.0)
        store.append([submit("a-1")], 2.0)
        before = store.allocator.dump()
        for events in ([submit("a-1")], [submit("a-2"), submit("x", "none")], [QueueAdded(Queue("a"))]):
            with pytest.raises(UsageError):
                store.append(events, 3.0)
            assert store.allocator.dump() == before
        assert store.seq == 2
        store.append([submit("a-2")], 3.0)
    assert replayed(tmp_path / "c.db").dump() == Store.open(tmp_path / "c.db").allocator.dump()


def test_two_writers_see_each_other(tmp_path) -> None:
    path = tmp_path / "c.db"
    with Store.create(path) as one, Store.open(path) as other:
        one.append(CLUSTER, 1.0)
        other.append([submit("a-1")], 2.0)
        one.append([submit("a-2")], 3.0)
        with pytest.raises(UsageError):
            other.append([submit("a-2")], 4.0)
        other.append([submit("a-3")], 1.5)  # a clock that is behind
        assert other.now == 3.0
        one.append([TimePassed()], 5.0)
        other.append([TimePassed()], 6.0)
        one.append([TimePassed()], 7.0)
        assert list(one.allocator.jobs) == ["a-1", "a-2", "a-3"]
    assert Store.open(path).allocator.dump() == replayed(path).dump()


def test_time_that_passes_is_kept_or_only_looked_at(tmp_path) -> None:
    path = tmp_path / "c.db"
    with Store.create(path, Policy(grow_hold=10, endings="instant")) as store:
        store.append([*CLUSTER[:1], QueueAdded(Queue("a", quota=gpus(4)))], 1.0)
        store.append(
            [JobSubmitted(Job(f"e-{n}", "a", (Tasks(share=10**6, ladder=(500_000,)),))) for n in range(4)], 2.0
        )
        store.append([submit("fixed", amount="0.5")], 3.0)
        store.append([JobEnded("fixed")], 4.0)
        assert store.allocator.next_wake is not None
    with Store.open(path, read_only=True) as looking:
        assert looking.pass_time(1000.0)
        with pytest.raises(StoreError, match="for reading"):
            looking.append([TimePassed()], 1000.0)
    with Store.open(path) as store:
        rows = store.seq
        assert store.pass_time(1000.0)
        assert store.seq > rows
        assert not store.pass_time(1000.0)


def test_what_is_freed_for_a_job_is_still_its_own_after_a_crash(tmp_path) -> None:
    """Between the eviction and the start the writer is gone; nobody else gets the GPUs, and the job starts once."""
    path = tmp_path / "c.db"
    with Store.create(path, Policy(endings="reported")) as store:
        store.append([*CLUSTER, submit("lent", amount="4"), submit("lent too", amount="4")], 1.0)
        stopped = store.append([submit("owner", "b", "4")], 2.0)
        victims = [action.job for action in stopped if isinstance(action, Preempt)]
        before = store.allocator.dump()
    assert len(victims) == 1
    with Store.open(path) as store:
        assert store.allocator.dump() == before
        assert store.allocator.jobs["owner"].state == "starting"
        assert not [action for action in store.append([submit("thief")], 3.0) if isinstance(action, Start)]
        started = store.append([Stopped(victims[0], 1)], 4.0)
        assert [action.job for action in started if isinstance(action, Start)] == ["owner"]
    with Store.open(path) as store:
        assert store.allocator.jobs["owner"].attempt == 1


# ---- files that cannot be used ------------------------------------------------------------------------


def foreign(path: Path) -> None:
    sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close()


def no_database(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 100)


def another_format(path: Path) -> None:
    Store.create(path).close()
    sqlite3.connect(path).execute("PRAGMA user_version = 99").connection.close()


def a_directory(path: Path) -> None:
    path.mkdir()


def without_policy(path: Path) -> None:
    Store.create(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM meta")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (foreign, "not a cluster of gpushare"),
        (no_database, "not a database"),
        (another_format, "format 99"),
        (a_directory, "unable to open"),
        (without_policy, "policy is missing"),
    ],
)
def test_files_that_are_no_store(tmp_path, make, words: str) -> None:
    make(tmp_path / "c.db")
    with pytest.raises(StoreError, match=words) as caught:
        Store.open(tmp_path / "c.db")
    assert caught.value.hint
    assert str(tmp_path / "c.db") in caught.value.message


def test_a_store_that_is_not_there(tmp_path) -> None:
    with pytest.raises(StoreError, match="there is no cluster") as caught:
        Store.open(tmp_path / "c.db")
    assert "apply" in caught.value.hint


def test_a_store_is_made_once(tmp_path) -> None:
    Store.create(tmp_path / "c.db").close()
    with pytest.raises(StoreError, match="exists already"):
        Store.create(tmp_path / "c.db")
    with pytest.raises(StoreError, match="cannot make"):
        Store.create(Path("/proc/none/c.db"))


@pytest.mark.parametrize("change", ["UPDATE log SET actions = '[]' WHERE seq = 2", "DELETE FROM log WHERE seq = 1"])
def test_a_log_that_does_not_replay_is_not_used(tmp_path, change: str) -> None:
    path = tmp_path / "c.db"
    with Store.create(path) as store:
        store.append(CLUSTER, 1.0)
        store.append([submit("a-1")], 2.0)
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    with pytest.raises(StoreError) as caught:
        Store.open(path)
    assert "row" in caught.value.message


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("UPDATE log SET events = substr(events, 1, 40) WHERE seq = 2", "row 2 of the log"),
        ('UPDATE log SET events = \'[{"event":"JobSubmitted"}]\' WHERE seq = 2', "row 2 of the log"),
        ("UPDATE meta SET value = 'x'", "its policy"),
    ],
)
def test_a_damaged_file_is_said_to_be_one(tmp_path, damage: str, what: str) -> None:
    path = tmp_path / "s.db"
    with Store.create(path) as store:
        store.append(CLUSTER, 0.0)
        store.append([submit("j")], 1.0)
    with sqlite3.connect(path) as connection:
        connection.execute(damage)
    connection.close()
    with pytest.raises(StoreError) as caught:
        Store.open(path, read_only=True)
    assert caught.value.message == f"{path}: {what} cannot be read: it is damaged"
    assert caught.value.hint


def test_who_may_only_read_reads(tmp_path, monkeypatch) -> None:
    """SQLite would make a file beside it, and fail where that may not be."""
    path = tmp_path / "s.db"
    with Store.create(path) as store:
        store.append(CLUSTER, 0.0)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may everything
    beside = sorted(tmp_path.iterdir())
    with Store.open(path, read_only=True) as store:
        assert sorted(tmp_path.iterdir()) == beside
        assert "a" in store.allocator.queues


def test_a_full_disk_leaves_the_state_as_the_log_has_it(tmp_path) -> None:
    path = tmp_path / "c.db"
    with Store.create(path) as store:
        store.append(CLUSTER, 1.0)
        store._file._connection.execute("PRAGMA max_page_count = 8")
        many = [submit(f"a-{n}", amount="0.01") for n in range(300)]
        with pytest.raises(StoreError, match="full") as caught:
            store.append(many, 2.0)
        assert "space" in caught.value.hint
        assert store.allocator.dump() == replayed(path).dump()
        assert not store.allocator.jobs
        store._file._connection.execute("PRAGMA max_page_count = 100000")
        store.append(many, 2.0)
    assert len(Store.open(path).allocator.jobs) == 300


@pytest.mark.parametrize("error", [KeyboardInterrupt, AssertionError])
def test_an_interrupt_between_deciding_and_writing_leaves_the_state_as_the_log_has_it(
    tmp_path, monkeypatch, error
) -> None:
    with Store.create(tmp_path / "c.db") as store:
        store.append(CLUSTER, 1.0)
        before = store.allocator.dump()

        def interrupted(_events) -> str:
            raise error

        monkeypatch.setattr("gpushare.cluster.store.encode_events", interrupted)
        with pytest.raises(error):
            store.append([submit("a-1")], 2.0)
        monkeypatch.undo()
        assert store.allocator.dump() == before
        assert [action.job for action in store.append([submit("a-1")], 2.0)] == ["a-1"]


def test_where_the_file_is_by_default() -> None:
    assert default_path({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path("/s/gpushare/cluster.db")
    assert default_path({"HOME": "/h"}) == Path("/h/.local/state/gpushare/cluster.db")
    assert default_path({"XDG_STATE_HOME": "relative", "HOME": "/h"}) == Path("/h/.local/state/gpushare/cluster.db")


# ---- a log that has become long -----------------------------------------------------------------------


def test_a_compacted_store_is_as_it_was(tmp_path) -> None:
    path = tmp_path / "c.db"
    with Store.create(path, Policy(endings="reported", retry_after=7)) as store:
        store.append([*CLUSTER, submit("lent", amount="4"), submit("lent too", amount="4")], 1.0)
        victims = [one.job for one in store.append([submit("owner", "b", "4")], 2.5) if isinstance(one, Preempt)]
        before = store.allocator.dump(), store.allocator.explain("owner")
        assert store.compact() == 2
        assert list(store.rows()) == []
        store.append([submit("a-1")], 3.0)
    with Store.open(path) as store:
        assert (store.seq, store.now, store.length, store.policy.retry_after) == (3, 3.0, 1, 7)
        store.append([JobWithdrawn("a-1")], 3.0)
        assert (store.allocator.dump()["jobs"], store.allocator.explain("owner")) == (before[0]["jobs"], before[1])
        started = store.append([Stopped(victims[0], 1)], 4.0)
        assert [one.job for one in started if isinstance(one, Start)] == ["owner"]
        assert store.compact() == 3
        assert store.compact() == 0


def test_others_who_have_it_open_see_that_it_was_compacted(tmp_path) -> None:
    path = tmp_path / "c.db"
    with Store.create(path) as one, Store.open(path) as behind, Store.open(path) as even:
        one.append(CLUSTER, 1.0)
        even.append([submit("a-1")], 2.0)
        one.append([submit("a-2")], 3.0)
        even.append([submit("a-3")], 4.0)
        one.compact()
        even.append([submit("a-4")], 5.0)
        one.compact()
        behind.append([submit("a-5")], 6.0)
        one.append([submit("a-6")], 7.0)
        assert list(one.allocator.jobs) == [f"a-{n}" for n in range(1, 7)]
        assert Store.open(path).allocator.dump() == one.allocator.dump()
        assert (one.seq, one.length, behind.length) == (7, 2, 1)
        with pytest.raises(StoreError, match="for reading"):
            Store.open(path, read_only=True).compact()


def test_a_long_log_is_compacted_by_itself_and_an_old_one_opens_unchanged(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("gpushare.cluster.store.FEW", 10**9)
    path = tmp_path / "c.db"
    with Store.create(path) as store:
        store.append(CLUSTER, 1.0)
        for n in range(30):
            store.append([submit(f"a-{n}", amount="0.1")], n + 2.0)
        before = store.allocator.dump()
    monkeypatch.setattr("gpushare.cluster.store.FEW", 20)
    with Store.open(path) as store:
        assert (store.length, store.allocator.dump()) == (31, before)
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        store.append([submit("last", amount="0.1")], 40.0)
        assert (store.seq, store.length) == (32, 0)
        for n in range(30):
            store.append([JobEnded(f"a-{n}")], 50.0 + n)
        assert store.length == 30, "fewer rows than there were jobs when it was compacted"
        store.append([TimePassed()], 99.0)
        assert store.length == 0
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)


def compacted(path: Path) -> dict:
    """A small store whose log is a snapshot; what its allocator holds."""
    with Store.create(path) as store:
        store.append([*CLUSTER, submit("a-1"), submit("a-2", "b", "2")], 1.5)
        store.compact()
        store.shrink()
        return store.allocator.dump()


def test_a_flipped_byte_of_a_snapshot_is_found(tmp_path) -> None:
    """In each byte of what the snapshot says: the state, its number, its time, the policy that it was made with."""
    path = tmp_path / "c.db"
    compacted(path)
    connection = sqlite3.connect(path, isolation_level=None)
    for table, column in (("snapshot", "state"), ("snapshot", "checksum"), ("meta", "value")):
        (text,) = connection.execute(f"SELECT CAST({column} AS BLOB) FROM {table}").fetchone()
        for index in range(len(text)):
            wrong = text[:index] + bytes([text[index] ^ 1 << index % 8]) + text[index + 1 :]
            connection.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT)", (wrong,))
            with pytest.raises(StoreError):
                Store.open(path, read_only=True)
        connection.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT)", (text,))
    for wrong in ("seq = seq + 1", "time = time + 1e-9", "time = 'x'", "checksum = ''"):
        connection.execute("BEGIN")
        connection.execute(f"UPDATE snapshot SET {wrong}")
        connection.execute("COMMIT")
        with pytest.raises(StoreError, match="its state cannot be read: it is damaged"):
            Store.open(path, read_only=True)
        connection.execute("UPDATE snapshot SET seq = 1, time = 1.5, checksum = ?", (checksum_of(connection),))
    connection.close()
    Store.open(path, read_only=True).close()


def checksum_of(connection: sqlite3.Connection) -> str:
    (policy,) = connection.execute("SELECT value FROM meta").fetchone()
    (state,) = connection.execute("SELECT state FROM snapshot").fetchone()
    return hashlib.sha256(f"{policy}\n1\n{(1.5).hex()}\n{state}".encode()).hexdigest()


def test_a_flipped_byte_anywhere_in_the_file_changes_nothing_or_is_said(tmp_path) -> None:
    path = tmp_path / "c.db"
    before = compacted(path)
    whole = path.read_bytes()
    for index in range(0, len(whole), 23):
        if whole[index]:  # most of the file is empty
            path.write_bytes(whole[:index] + bytes([whole[index] ^ 1 << index % 8]) + whole[index + 1 :])
            try:
                with Store.open(path, read_only=True) as store:
                    assert (store.allocator.dump(), store.now, store.policy) == (before, 1.5, Policy())
            except StoreError:
                pass


def test_a_snapshot_without_a_checksum_is_read_and_gets_one(tmp_path) -> None:
    """As the version before wrote it."""
    path = tmp_path / "c.db"
    before = compacted(path)
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE snapshot DROP COLUMN checksum")
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with Store.open(path) as store:
        assert (store.allocator.dump(), store.seq, store.now) == (before, 1, 1.5)
        store.append([submit("a-3")], 2.0)
        store.compact()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (3,)
    connection.execute("UPDATE snapshot SET state = replace(state, 'a-3', 'a-4')")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError):
        Store.open(path)


def test_a_log_that_cannot_be_compacted_is_kept_and_the_answer_too(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("gpushare.cluster.store.FEW", 3)
    monkeypatch.setattr("gpushare.cluster.store.restore", lambda policy, _: Allocator(policy))
    path = tmp_path / "c.db"
    with Store.create(path) as store:
        store.append(CLUSTER, 1.0)
        for n in range(6):
            store.append([submit(f"a-{n}", amount="0.1")], n + 2.0)
        with pytest.raises(StoreError, match="otherwise than it was written"):
            store.compact()
        assert store.length == 7
        assert store.allocator.dump() == replayed(path).dump()


def test_room_is_given_back(tmp_path) -> None:
    path = tmp_path / "c.db"
    with Store.create(path) as store:
        store.append(CLUSTER, 1.0)
        for n in range(40):
            store.append([submit(f"{'x' * 200}-{n}-{k}", amount="0.001") for k in range(10)], n + 2.0)
        store.append([JobEnded(name) for name in store.allocator.jobs], 50.0)
        store.compact()
        store.shrink()
        before = store.allocator.dump()
    assert path.stat().st_size < 100_000
    with Store.open(path) as store:
        assert store.allocator.dump() == before


# ---- killed at any point ------------------------------------------------------------------------------


def story(path: Path, acknowledge) -> None:
    """A writer's life: it makes the cluster, and submits and withdraws jobs, of which some displace others."""
    store = Store.open(path) if path.exists() else Store.create(path)
    while store.seq < 40:
        store.append(chapter(store.seq, store.allocator), float(store.seq + 1))
        acknowledge(f"{store.seq}")


def chapter(n: int, allocator: Allocator) -> list[Event]:
    if not n:
        return CLUSTER
    if n % 7 == 6:
        return [JobWithdrawn(sorted(allocator.jobs)[0])]
    return [submit(f"a-{n}") if n < 10 else submit(f"b-{n}", "b") if n < 16 else submit(f"c-{n}", "ab"[n % 2], "0.3")]


def told(chapters: int) -> Allocator:
    """The state after so many of them, without a store."""
    allocator = Allocator(Policy())
    for n in range(chapters):
        allocator.handle(chapter(n, allocator), float(n + 1))
    return allocator


def lives(path: Path, die) -> list[str]:
    """Run the story in a process that `die` kills; what it had acknowledged by then."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            die(path, lambda text: os.write(writer, f"{text}\n".encode()))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = []
        if die is by_parent:  # after so many answers and a moment: however fast the machine is
            for _ in range(random.randrange(30)):
                said += pipe.readline().splitlines()
            time.sleep(random.random() * 0.002)
            os.kill(child, signal.SIGKILL)
        said += pipe.read().splitlines()
    os.waitpid(child, 0)
    return said


def by_parent(path: Path, acknowledge) -> None:
    story(path, acknowledge)


def at_a_step(path: Path, acknowledge) -> None:
    """Kill -9 from within SQLite, before its n-th instruction."""
    left = random.randrange(1, 400)

    def step() -> int:
        nonlocal left
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    connect = sqlite3.connect

    def counted(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.set_progress_handler(step, 1)
        return connection

    sqlite3.connect = counted
    story(path, acknowledge)


@pytest.mark.parametrize("die", [by_parent, at_a_step])
def test_nothing_is_lost_or_doubled_when_the_writer_is_killed(tmp_path, die) -> None:
    path, seq, kills = tmp_path / "c.db", 0, 0
    for n in range(KILLS):
        random.seed(n)
        said = lives(path, die)
        if not path.exists():
            continue
        with Store.open(path) as store:
            rows = [event for row in store.rows() for event in row.events]
            assert seq + len(said) <= store.seq <= seq + len(said) + 1, (
                "what was answered is there, and at most one more"
            )
            kills += store.seq < 40
            seq = store.seq
            submitted = [event.job.id for event in rows if isinstance(event, JobSubmitted)]
            assert len(submitted) == len(set(submitted))
            gone = {event.job for event in rows if isinstance(event, JobWithdrawn)}
            assert set(store.allocator.jobs) == set(submitted) - gone
            store.allocator.validate()
            state = store.allocator.dump()
        assert replayed(path).dump() == state
        if seq >= 40:
            path.unlink()
            seq = 0
    assert kills > KILLS // 4, "most of the writers were meant to be killed before their end"
    check_file(path)


@pytest.mark.parametrize("die", [by_parent, at_a_step])
def test_a_log_that_is_compacted_again_and_again_loses_nothing_when_the_writer_is_killed(
    tmp_path, die, monkeypatch
) -> None:
    """Every few rows, and the room is given back: killed at any step of that too."""
    compact, fold = Store.compact, Store._fold

    def soon_again(store: Store, seq: int) -> None:
        fold(store, seq)
        store._long = 3

    def compact_and_shrink(store: Store) -> int:
        rows = compact(store)
        store.shrink()
        return rows

    monkeypatch.setattr("gpushare.cluster.store.FEW", 3)
    monkeypatch.setattr(Store, "_fold", soon_again)
    monkeypatch.setattr(Store, "compact", compact_and_shrink)
    path, seq, kills, amid = tmp_path / "c.db", 0, 0, 0
    for n in range(KILLS):
        random.seed(n)
        said = lives(path, die)
        if not path.exists():
            continue
        with Store.open(path) as store:
            assert seq + len(said) <= store.seq <= seq + len(said) + 1
            kills += store.seq < 40
            amid += store.length >= 3
            seq = store.seq
            store.allocator.validate()
            assert store.allocator.dump() == told(seq).dump()
        if seq >= 40:
            path.unlink()
            seq = 0
    print(f"{kills} killed before their end, {amid} of them when the log was to be compacted")
    assert kills > KILLS // 4, "most of the writers were meant to be killed before their end"
    assert amid or KILLS < 100
    check_file(path)


def check_file(path: Path) -> None:
    with sqlite3.connect(path if path.exists() else ":memory:") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# ---- versions and time --------------------------------------------------------------------------------


def version(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def test_a_file_says_that_it_has_events_of_engines_and_keeps_saying_so(tmp_path) -> None:
    path = tmp_path / "c.db"
    with Store.create(path) as store:
        store.append(CLUSTER, 1.0)
        assert version(path) == 1
        store.append([NodeCordoned("n1"), submit("a-1")], 2.0)
        assert version(path) == 4
    with Store.open(path) as again:
        assert again.allocator.nodes["n1"].cordoned
        again.compact()
        assert version(path) == 4
        again.append([submit("a-2")], 3.0)
    with Store.open(path) as last:
        assert last.allocator.nodes["n1"].cordoned
        assert set(last.allocator.jobs) == {"a-1", "a-2"}


def test_a_clock_that_is_set_back_does_not_stop_the_time(tmp_path) -> None:
    path = tmp_path / "c.db"
    with Store.create(path) as store:
        store.append(CLUSTER, 10_000.0)
        store.append([submit("a-1")], 9_800.0)
        assert store.now == 10_000.0, "machines may disagree by minutes"
        assert store.at(10_001.0) == 10_001.0
        store.append([submit("a-2")], 5_000.0)
        assert store.now == 10_000.0
        store.append([submit("a-3")], 5_010.0)
        assert store.now == 10_010.0, "it goes on from where it was"
    with Store.open(path) as again:
        assert (again.now, again.at(5_020.0)) == (10_010.0, 10_020.0)
        with Store.open(path) as another:
            another.append([submit("a-4")], 1_000.0)
        again.append([submit("a-5")], 1_011.0)
        assert again.now == 10_021.0, "what another has learnt of the clock counts here, too"


def test_one_jump_forward_is_over_when_the_clock_is_right_again(tmp_path) -> None:
    day = 86_400.0
    with Store.create(tmp_path / "c.db", Policy(reserve_after=60.0)) as store:
        store.append(CLUSTER, 1000.0)
        store.append([submit("a-1")], 1000.0 + day)
        store.append([submit(f"b-{n}", "b") for n in range(8)], 1010.0)
        assert store.now == 1000.0 + day
        assert store.allocator.next_wake == 1060.0 + day
        store.pass_time(1069.0)
        assert store.now == 1000.0 + day
        store.pass_time(1070.0)
        assert store.now == 1060.0 + day
