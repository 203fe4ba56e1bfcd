"""The log of a service's file is shortened beside the service, while it appends."""

from __future__ import annotations

import time

import pytest
from service_stage import Stage

from gpushare.cluster.model import Job, JobSubmitted, JobWithdrawn, Policy, Queue, QueueAdded
from gpushare.cluster.service.compacting import Compacting
from gpushare.cluster.snapshot import take
from gpushare.cluster.store import Store

FEW = 40


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr("gpushare.cluster.store.FEW", FEW)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "cluster.db"
    with Store.create(path, Policy(endings="reported")) as store:
        store.append([QueueAdded(Queue("a"))], 0.0)
    return path


def grow(store: Store, rows: int, since: int = 0) -> None:
    for number in range(since, since + rows):
        store.append([JobSubmitted(Job(str(number), "a"))], float(number))


def same(path, store: Store) -> None:
    """What is read again is what the service has."""
    with Store.open(path) as again:
        assert (again.seq, again.now) == (store.seq, store.now)
        assert take(again.allocator) == take(store.allocator)


def test_what_is_appended_while_it_is_compacted_stays(path) -> None:
    with Store.open(path) as store:
        store.compacts = False
        grow(store, 20)
        with Store.open(path) as beside:
            grow(store, 10, 20)  # beside has not seen these
            assert beside.compact_behind() == 21
        assert [row.seq for row in store.rows()] == list(range(22, 32))
        grow(store, 5, 30)
        store.append([JobWithdrawn("3")], 100.0)
        assert store.length == 16, "it has noticed"
        same(path, store)


def test_one_that_comes_late_changes_nothing(path) -> None:
    with Store.open(path) as store:
        grow(store, 10)
        with Store.open(path) as early, Store.open(path) as late:
            grow(store, 3, 10)
            store.compact()
            assert early.compact_behind() == late.compact_behind() == 0
        same(path, store)
    with Store.open(path) as store:
        grow(store, 3, 20)
        with Store.open(path) as beside:
            store.compact(Policy(endings="reported", back_off=1.0))
            assert beside.compact_behind() == 0, "its policy is over"
        assert Store.open(path).policy.back_off == 1.0


def test_no_append_waits_for_it_and_the_log_becomes_short(path) -> None:
    with Store.open(path) as store:
        compacting = Compacting(store)
        grow(store, FEW - 2)
        compacting.go_on()
        assert compacting._process is None, "it is short yet"
        grow(store, 2, FEW)
        assert store.length > FEW, "an append does not compact it"
        compacting.go_on()
        began = compacting._process
        assert began is not None
        compacting.go_on()
        assert compacting._process is began, "one at a time"
        assert began.wait(60) == 0
        grow(store, 1, 2 * FEW)
        assert store.length == 1
        same(path, store)
        compacting.close()


def test_it_is_given_up_when_the_service_ends(path) -> None:
    with Store.open(path) as store:
        compacting = Compacting(store)
        grow(store, FEW)
        compacting.go_on()
        began = time.monotonic()
        compacting.close()
        assert time.monotonic() - began < 10.0 and compacting._process is None
        same(path, store)


def test_a_service_goes_on_over_it(tmp_path) -> None:
    stage = Stage(tmp_path)
    stage.store.compacts = False
    ids = [stage.submit() for _ in range(8)]
    stage.rounds()
    with Store.open(stage.path) as beside:
        assert beside.compact_behind() > 8
    stage.runner.finish(ids[0])
    stage.rounds()
    stage.restart()
    stage.rounds()
    assert stage.results() == {ids[0]: "done"} and len(stage.states()) == 7
    stage.store.close()
