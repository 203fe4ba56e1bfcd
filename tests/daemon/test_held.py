"""Bytes that are held for a user, and who waits for room."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
from daemon_harness import until

from gpushare.job_spec import JobSpec
from gpushare.quantity import MAX, NOTHING
from gpushared.limits import byte_budget
from gpushared.limits.backlog import Backlog
from gpushared.limits.byte_budget import ByteBudget, bytes_of
from gpushared.system.descriptors import DescriptorCloser

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
UNREAD = 1000

ALICE, BOB, ROOT = 1000, 1001, 0


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(byte_budget, "MOST", 100)


def counted() -> ByteBudget:
    return ByteBudget(lambda uid: uid != ROOT)


def test_bytes_are_counted_by_user():
    one = counted()
    one.change(ALICE, 70)
    one.change(ALICE, 20)
    one.change(BOB, 5)
    assert (one.of(ALICE), one.of(BOB), one.of(ROOT)) == (90, 5, 0)
    assert one.has_room(ALICE) and one.has_room(ALICE, 10) and not one.has_room(ALICE, 11)
    one.change(ALICE, -90)
    assert one.of(ALICE) == 0 and not one._bytes.keys() & {ALICE}, "who holds nothing is forgotten"
    one.change(ROOT, 1000)
    assert one.has_room(ROOT, 1000) and one.of(ROOT) == 1000


def test_who_has_no_room_waits_until_there_is():
    async def run() -> list[str]:
        one, order = counted(), []

        async def wait(name: str, uid: int, more: int) -> None:
            await one.room(uid, more)
            order.append(name)

        one.change(ALICE, 100)
        tasks = [asyncio.create_task(wait("first", ALICE, 1)), asyncio.create_task(wait("second", ALICE, 50))]
        tasks.append(asyncio.create_task(wait("other", BOB, 100)))
        await asyncio.sleep(0.01)
        assert order == ["other"]
        one.change(ALICE, -1)
        await asyncio.sleep(0.01)
        assert order == ["other", "first"], "the second needs more"
        one.change(ALICE, -49)
        await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(run()) == ["other", "first", "second"]


def test_only_some_are_woken_at_once_and_none_is_forgotten():
    async def run() -> None:
        one, done = counted(), []

        async def wait(number: int) -> None:
            await one.room(ALICE)
            done.append(number)

        one.change(ALICE, 101)
        tasks = [asyncio.create_task(wait(number)) for number in range(24)]
        await asyncio.sleep(0.01)
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        one.change(ALICE, -1)
        await asyncio.sleep(0.01)
        assert done == list(range(1, 9)), "in their order; who has gone does not count"
        one.look_again()
        one.look_again()
        await asyncio.sleep(0.01)
        assert len(done) == 24 - 1 and not one._waiting
        one.change(ALICE, 10)
        last = asyncio.create_task(wait(99))
        await asyncio.sleep(0.01)
        one.look_again()
        one.change(ALICE, -1)
        await asyncio.sleep(0.01)
        assert not last.done(), "there is no room yet"
        last.cancel()

    asyncio.run(run())


def test_a_backlog_drops_the_oldest_when_its_user_has_no_room():
    async def run() -> None:
        one = counted()

        def count(item: str, sign: int) -> bool:
            one.change(ALICE, sign * len(item))
            return one.has_room(ALICE)

        backlog: Backlog[str] = Backlog(("a" * 60,), count=count)
        backlog.put("b" * 30)
        assert len(backlog) == 2 and one.of(ALICE) == 90
        backlog.put("c" * 30)
        assert one.of(ALICE) == 120 and len(backlog) == 3, "the one that is one too many is kept"
        backlog.put("d" * 10)
        assert one.of(ALICE) == 70 and len(backlog) == 3, "and the oldest goes for the next"
        items, lost, _ = await backlog.take(1.0)
        assert [item[0] for item in items] == ["b", "c", "d"] and lost == 1 and one.of(ALICE) == 0
        backlog.put("e" * 20)
        backlog.close()
        assert one.of(ALICE) == 0 and len(backlog) == 0

    asyncio.run(run())


def test_a_backlog_without_a_count_keeps_so_many():
    async def run() -> None:
        backlog: Backlog[int] = Backlog(range(UNREAD + 5))
        assert len(backlog) == UNREAD
        items, lost, _ = await backlog.take(1.0)
        assert items[0] == 5 and lost == 5

    asyncio.run(run())


def test_the_texts_of_a_job_count_twice():
    """Here, and in what is written down."""
    spec = JobSpec("train", ALICE, "alice", ("x",), NOTHING, MAX)
    for more in (
        {"command": ("x", "y" * 9)},
        {"request_source": "y" * 9},
        {"limit_source": "y" * 9},
        {"devices": ("y" * 9,)},
    ):
        assert bytes_of(spec._replace(**more)) == bytes_of(spec) + 18
    assert bytes_of(spec) == 4096 + 2


def test_descriptors_of_a_user_are_closed_on_a_thread_of_its_own_and_counted():
    closer = DescriptorCloser()
    closer.take(ALICE, [])
    assert not any(one.name == f"descriptors-{ALICE}" for one in threading.enumerate()), "there is nothing to do"
    for many, too_many in ((1024, False), (1025, True)):
        closer._open[ALICE] = many
        assert closer.too_many(ALICE) is too_many and not closer.too_many(BOB)
    closer._open.clear()
    pairs = [os.pipe() for _ in range(3)]
    for pair in pairs:
        closer.take(BOB, list(pair))
    until(lambda: not closer._waiting and not closer._open)
    for fd in (fd for pair in pairs for fd in pair):
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(fd)
