"""The file of a cluster: how it is made, who may read it, when its log is compacted, and by whom."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from gpushare.cluster import store as stores
from gpushare.cluster import store_file
from gpushare.cluster.allocator import Allocator
from gpushare.cluster.codec import encode
from gpushare.cluster.model import (
    Job,
    JobEnded,
    JobSubmitted,
    Node,
    NodeAdded,
    NodeUnknown,
    Policy,
    Queue,
    QueueAdded,
    Tasks,
    TimePassed,
)
from gpushare.cluster.quantity import gpus
from gpushare.cluster.snapshot import take
from gpushare.cluster.store import Store, StoreError
from gpushare.cluster.store_file import StoreFile

CLUSTER = [NodeAdded(Node("n1", 4)), QueueAdded(Queue("a", quota=gpus(4)))]


def submit(name: str) -> JobSubmitted:
    return JobSubmitted(Job(name, "a", (Tasks(share=gpus("0.1")),)))


def grow(store: Store, rows: int) -> None:
    for _ in range(rows):
        store.append([submit(f"j{store.seq}")], store.now + 1)


def version(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


@pytest.fixture
def path(tmp_path) -> Path:
    Store.create(tmp_path / "c.db").close()
    return tmp_path / "c.db"


# ---- making and opening ----------------------------------------------------------------------------


def test_it_is_its_owners_alone_and_nothing_else_is_left(tmp_path) -> None:
    old = os.umask(0)
    try:
        path = tmp_path / "deep" / "er" / "c.db"
        Store.create(path).close()
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [one.name for one in path.parent.iterdir()] == ["c.db"]
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA application_id").fetchone() == (int.from_bytes(b"gpus", "big"),)
    assert version(path) == 1


def test_what_an_earlier_try_left_does_not_stop_the_next(tmp_path) -> None:
    left = tmp_path / f".c.db.{os.getpid()}"
    left.write_bytes(b"half")
    Store.create(tmp_path / "c.db").close()
    assert not left.exists()
    with Store.open(tmp_path / "c.db") as store:
        assert (store.seq, store.now, store.length) == (0, 0.0, 0)


def test_one_that_is_there_stays_as_it_is(path) -> None:
    with Store.open(path) as store:
        store.append(CLUSTER, 1.0)
    with pytest.raises(StoreError) as caught:
        Store.create(path, Policy(retry_after=9))
    assert caught.value.message == f"{path} exists already"
    assert caught.value.hint == "name another file with --store, or move this one"
    assert [one.name for one in path.parent.iterdir()] == ["c.db"]
    with Store.open(path) as store:
        assert store.seq == 1


@pytest.mark.parametrize("number", [0, 5])
def test_formats_outside_the_known_ones_are_refused(path, number) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {number}")
    with pytest.raises(StoreError) as caught:
        Store.open(path)
    assert caught.value.message == f"{path} has format {number}, this gpushare reads up to 4"
    assert caught.value.hint == "use the gpushare that wrote it"


def test_the_newest_format_is_read(path) -> None:
    with Store.open(path) as store:
        store.append([*CLUSTER, NodeUnknown("n1")], 1.0)
    assert version(path) == 4
    with Store.open(path) as store:
        assert store.seq == 1
        store.compact()
    assert version(path) == 4, "compacting does not make it older"


def test_a_reader_that_may_write_there_changes_nothing(path) -> None:
    with Store.open(path, read_only=True) as store:
        for change in (
            lambda: store.append(CLUSTER, 1.0),
            store.compact,
            lambda: store.write(lambda connection: connection.execute("DELETE FROM meta")),
        ):
            with pytest.raises(StoreError):
                change()
        with pytest.raises(StoreError, match="was opened for reading") as caught:
            store.append(CLUSTER, 1.0)
        assert caught.value.hint == "open it for writing"
        with pytest.raises(StoreError, match="was opened for reading") as caught:
            store.compact()
        assert caught.value.hint == "open it for writing"
        assert store.seq == 0
    with Store.open(path) as store:
        assert store.read("SELECT count(*) FROM meta WHERE key = ?", "policy") == [(1,)]


def test_what_a_log_has_beside_it_is_there_wholly_or_not_at_all(path) -> None:
    def half(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO meta VALUES ('one', '1')")
        raise KeyError("two")

    with Store.open(path) as store:
        with pytest.raises(KeyError):
            store.write(half)
        assert store.read("SELECT value FROM meta WHERE key = 'one'") == []
        store.write(lambda connection: connection.execute("INSERT INTO meta VALUES ('one', '1')"))
        store.append(CLUSTER, 1.0)
    with Store.open(path) as store:
        assert store.read("SELECT value FROM meta WHERE key = 'one'") == [("1",)]


def test_more_is_written_in_the_same_transaction_and_sees_the_actions(path) -> None:
    seen = []

    def also(connection: sqlite3.Connection, actions: list) -> None:
        seen.append([type(one).__name__ for one in actions])
        connection.execute("INSERT INTO meta VALUES ('beside', 'yes')")
        raise OSError("no")

    with Store.open(path) as store:
        with pytest.raises(OSError, match="no"):
            store.append([*CLUSTER, submit("j")], 1.0, also)
        assert "Start" in seen[0]
        assert (store.seq, list(store.allocator.jobs)) == (0, [])
        assert store.read("SELECT value FROM meta WHERE key = 'beside'") == []


def test_a_default_for_what_is_not_noted(path) -> None:
    file = StoreFile.open(path, read_only=True)
    assert file.meta("none", "x") == "x"
    assert file.meta("none", "") == ""
    assert file.meta("policy", "x") == encode(Policy(), Policy)
    with pytest.raises(StoreError) as caught:
        file.meta("none")
    assert (caught.value.message, caught.value.hint) == (f"{path}: none is missing", "restore a copy of it")
    file.close()
    with pytest.raises(StoreError):
        file.meta("policy", "x")


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("database is locked", "another gpushare is writing to it; try again"),
        ("busy", "another gpushare is writing to it; try again"),
        ("file is not a database", "name another file with --store, or restore a copy of this one"),
        ("database disk image is malformed", "name another file with --store, or restore a copy of this one"),
        ("database or disk is full", "free some space there"),
        ("disk I/O error", "free some space there"),
        (
            "attempt to write a readonly database",
            "you may not write there: name another file with --store, or ask its owner",
        ),
        ("unable to open database file", "see that it can be read and written"),
    ],
)
def test_what_sqlite_says_and_what_to_do(path, said, hint) -> None:
    file = StoreFile.open(path, read_only=False)
    with pytest.raises(StoreError) as caught, file.writing():
        raise sqlite3.OperationalError(said)
    assert (caught.value.message, caught.value.hint) == (f"{path}: {said}", hint)
    with file.writing() as connection:
        connection.execute("INSERT INTO meta VALUES ('after', '1')")
    assert file.meta("after") == "1"
    file.close()


def test_a_writer_waits_for_another(path, monkeypatch) -> None:
    assert store_file.BUSY_SECONDS == 10
    monkeypatch.setattr(store_file, "BUSY_SECONDS", 0.01)
    one, other = StoreFile.open(path, read_only=False), StoreFile.open(path, read_only=False)
    with one.writing(), pytest.raises(StoreError, match="locked"), other.writing():
        pass
    with other.writing() as connection:
        connection.execute("INSERT INTO meta VALUES ('x', '1')")
    one.close()
    other.close()


def test_another_thread_may_use_it(path) -> None:
    with Store.open(path) as store:
        thread = threading.Thread(target=lambda: store.append(CLUSTER, 1.0))
        thread.start()
        thread.join()
        assert store.seq == 1


# ---- a log that is compacted ------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch) -> None:
    monkeypatch.setattr(stores, "FEW", 8)


@pytest.mark.usefixtures("few")
def test_a_long_log_is_asked_for_again_when_it_is_twice_as_long(path) -> None:
    assert Store.open(path).is_long() is False
    with Store.open(path) as store:
        store.compacts = False
        store.append(CLUSTER, 1.0)
        asked = []
        for _ in range(40):
            grow(store, 1)
            if store.is_long():
                asked.append(store.length)
        assert asked == [8, 16, 32]
        assert store.length == 41, "nobody has compacted it"


@pytest.mark.usefixtures("few")
def test_a_log_is_long_from_as_many_rows_as_there_are_jobs(path) -> None:
    with Store.open(path) as store:
        store.append([*CLUSTER, *(submit(f"m{n}") for n in range(12))], 1.0)
        store.compact()
        lengths = []
        for n in range(12):
            store.append([JobEnded(f"m{n}")], 2.0 + n)
            lengths.append(store.length)
        assert lengths == [*range(1, 12), 0]
        for _ in range(7):
            store.append([TimePassed()], 20.0)
        assert store.length == 7
        store.append([TimePassed()], 20.0)
        assert store.length == 0, "no jobs are left: a few rows are enough"


def test_a_few_rows_are_five_hundred() -> None:
    assert stores.FEW == 500


@pytest.mark.usefixtures("few")
def test_one_that_cannot_be_compacted_is_appended_to_and_tried_again_later(path, monkeypatch) -> None:
    tried = []

    def full(store: Store) -> int:
        tried.append(store.length)
        raise StoreError("full", hint="")

    with Store.open(path) as store:
        monkeypatch.setattr(Store, "compact", full)
        store.append(CLUSTER, 1.0)
        grow(store, 30)
        assert tried == [8, 16]
        assert store.length == 31


def test_beside_the_one_that_appends(path) -> None:
    with Store.open(path) as store:
        store.append(CLUSTER, 1.0)
        grow(store, 6)
        with Store.open(path) as beside:
            grow(store, 3)
            assert beside.compact_behind() == 7
            assert beside.length == 0
            assert beside.compact_behind() == 0, "it is done"
        assert [row.seq for row in store.rows()] == [8, 9, 10]
        grow(store, 1)
        assert (store.seq, store.length) == (11, 4)
        with Store.open(path) as again:
            assert (again.seq, again.now, again.length) == (11, store.now, 4)
            assert take(again.allocator) == take(store.allocator)


def test_beside_with_another_policy_or_after_another(path) -> None:
    with Store.open(path) as store:
        store.append(CLUSTER, 1.0)
        grow(store, 3)
        with Store.open(path) as beside:
            assert store.compact(Policy(retry_after=9)) == 4
            assert beside.compact_behind() == 0
        with Store.open(path) as beside:
            grow(store, 1)
            with Store.open(path) as newer:
                assert newer.compact_behind() == 1
            assert beside.compact_behind() == 0
            assert beside.length == 0 or beside.length == store.length - 1
        with Store.open(path) as again:
            assert (again.seq, again.policy.retry_after) == (5, 9)


def test_another_policy_counts_at_once_and_stays(path) -> None:
    policy = Policy(retry_after=9)
    with Store.open(path) as store:
        store.append(CLUSTER, 1.0)
        grow(store, 2)
        assert store.compact(policy) == 3
        assert store.policy == store.allocator.policy == policy
        assert list(store.allocator.jobs) == ["j1", "j2"]
        grow(store, 1)
    with Store.open(path) as again:
        assert (again.policy, again.seq, list(again.allocator.jobs)) == (policy, 4, ["j1", "j2", "j3"])


def test_a_state_that_reads_otherwise_is_not_written(path, monkeypatch) -> None:
    with Store.open(path) as store:
        store.append(CLUSTER, 1.0)
        monkeypatch.setattr(stores, "restore", lambda policy, _state: Allocator(policy))
        for compact in (store.compact, store.compact_behind):
            with pytest.raises(StoreError) as caught:
                compact()
            assert caught.value.message == f"{path}: its state reads otherwise than it was written"
            assert caught.value.hint == "the log is kept"
        assert store.length == 1
    monkeypatch.undo()
    assert version(path) == 1
    with Store.open(path) as again:
        assert again.seq == again.length == 1


# ---- clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behind", "now"),
    [(0, 1000), (1, 1000), (300, 1000), (301, 1000), (500, 1000)],
)
def test_time_does_not_go_back(path, behind, now) -> None:
    with Store.open(path) as store:
        store.append(CLUSTER, 1000.0)
        assert store.at(1000.0 - behind) == now
        store.append([TimePassed()], 1000.0 - behind)
        assert store.now == now
        later = store.at(1000.0 - behind + 60)
    was_set_back = behind > 300
    assert later == (now + 60 if was_set_back else max(1000, 1060 - behind))
    with Store.open(path) as again:
        assert again.at(1000.0 - behind + 60) == later, "how far it is ahead is kept"


def test_a_reader_lets_time_pass_for_itself_alone(path) -> None:
    with Store.open(path) as store:
        store.append([*CLUSTER, submit("j")], 10.0)
        before = take(store.allocator)
    with Store.open(path, read_only=True) as reader:
        reader.pass_time(10_000.0)
        assert reader.seq == 1
    with Store.open(path) as store:
        assert (store.seq, take(store.allocator)) == (1, before)
