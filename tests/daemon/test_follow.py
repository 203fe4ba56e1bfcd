"""Event streams: a reader that does not keep up loses lines and is told so; the daemon keeps so much and no more."""

from __future__ import annotations

import asyncio
import json
import os
import tracemalloc

import pytest
from daemon_harness import until

from gpushared.core.instructions import Record
from gpushared.limits import backlog as unread
from gpushared.limits.backlog import Backlog

JOB = {"name": "train", "command": ["x"], "request": "1Gi", "limit": "2Gi", "gpus": 1}


def record(number: int) -> Record:
    return Record(float(number), "changed", None, f"number {number}", {"number": number})


def taken(backlog: Backlog[Record]) -> tuple[list[float], list[int]]:
    """The times of all records, and what each batch says was lost."""

    async def take() -> tuple[list[float], list[int]]:
        times: list[float] = []
        lost: list[int] = []
        while len(backlog):
            batch = await backlog.take(1.0)
            assert len(batch.items) <= unread.AT_ONCE, "no more than this lies in a connection's buffer"
            times += [one.time for one in batch.items]
            lost.append(batch.lost)
        return times, lost

    return asyncio.run(take())


def test_the_newest_are_kept_and_the_loss_is_told_once():
    backlog = Backlog([record(number) for number in range(unread.UNREAD + 7)])
    times, lost = taken(backlog)
    assert times == [float(number) for number in range(7, unread.UNREAD + 7)]
    assert lost[0] == 7 and set(lost[1:]) == {0}


def test_what_a_reader_does_not_want_takes_no_place():
    backlog = Backlog(wanted=lambda one: one.time == 0)
    backlog.put(record(0))
    for number in range(1, 5000):
        backlog.put(record(number))
    assert taken(backlog) == ([0.0], [0])


def test_it_ends_after_what_is_there_and_takes_nothing_more():
    backlog = Backlog([record(1), record(2)])
    backlog.end()
    backlog.put(record(3))
    batch = asyncio.run(backlog.take(None))
    assert ([one.time for one in batch.items], batch.ended) == ([1.0, 2.0], True)
    assert asyncio.run(Backlog[Record]().take(0.0)) == ([], 0, False), "nothing within its patience"


def test_readers_that_do_not_read_cost_so_much_memory_and_no_more():
    backlogs = [Backlog[Record]() for _ in range(50)]
    tracemalloc.start()
    try:
        for number in range(20_000):
            one = record(number)
            for backlog in backlogs:
                backlog.put(one)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(len(backlog) == unread.UNREAD for backlog in backlogs)
    assert kept < 50 * unread.UNREAD * 16 + unread.UNREAD * 2048, "a pointer for each reader, the records once"


def test_a_slow_reader_is_told_what_it_has_missed(daemon):
    stream = daemon.client.follow(0)
    (backlog,) = until(lambda: daemon.call(lambda: list(daemon.shell.records.followers)))
    many = unread.UNREAD + 500
    daemon.call(lambda: [backlog.put(record(number)) for number in range(many)])
    seen = []
    until(lambda: seen.extend(stream.read()) or (seen and seen[-1]["facts"].get("number") == many - 1))
    stream.close()
    assert seen[0]["event"] == "lost" and seen[0]["facts"] == {"lost": 500}
    assert seen[0]["text"] == "500 lines are left out here: the reader was too slow"
    assert [one["facts"]["number"] for one in seen[1:]] == list(range(500, many))


def test_a_jobs_notices_are_the_same_kind_of_stream(daemon):
    job = daemon.client.register(JOB)
    entry = daemon.shell.registry.get(job["id"])
    stream = daemon.client.events(job["id"])
    until(lambda: daemon.call(lambda: len(entry.notices.listeners)))
    many = unread.UNREAD + 1
    daemon.call(lambda: [entry.notices.put("changed", "x", {"number": number}) for number in range(many)])
    daemon.client.end(job["id"], 0, None)
    seen = []
    until(lambda: seen.extend(stream.read()) or stream.ended)
    assert stream.clean, "the job is over"
    stream.close()
    assert (seen[0]["kind"], seen[0]["text"]) == ("lost", "1 line is left out here: the reader was too slow")
    assert [one["facts"]["number"] for one in seen[1:]] == list(range(1, many))


def test_the_nodes_stream_ends_with_the_daemon(make_daemon):
    daemon = make_daemon()
    stream = daemon.client.follow(0)
    until(lambda: daemon.call(lambda: len(daemon.shell.records.followers)))
    daemon.stop()
    until(lambda: list(stream.read()) is not None and stream.ended)
    assert stream.clean
    stream.close()


def test_a_follower_whose_stream_ends_is_none_any_more_though_its_process_lives(daemon):
    client = daemon.client
    job = client.register({**JOB, "on_reclaim": "suspend,kill"})["id"]
    followers = daemon.shell._suspenders

    def has_one() -> bool:
        return daemon.call(lambda: followers.of(job, os.getpid()) is not None)

    assert not has_one()
    for _ in range(2):
        stream = client.suspender(job)
        until(has_one)
        stream.close()
        until(lambda: not has_one())


ANSWER = {"number": 0, "where": "running", "problem": None, "pid": os.getpid(), "milliseconds": 7}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, 200),
        ({"problem": "it is odd"}, 200),
        ({"milliseconds": None}, 200),
        ({"number": None}, 400),
        ({"number": -1}, 400),
        ({"where": None}, 400),
        ({"where": "elsewhere"}, 400),
        ({"where": "x" * 17}, 400),
        ({"pid": 0}, 400),
        ({"more": 1}, 400),
    ],
)
def test_what_a_suspender_may_answer(daemon, change, status):
    job = daemon.client.register({**JOB, "on_reclaim": "suspend,kill"})["id"]
    stream = daemon.client.suspender(job)
    try:
        until(lambda: daemon.call(lambda: daemon.shell._suspenders.of(job, os.getpid()) is not None))
        body = json.dumps({name: value for name, value in {**ANSWER, **change}.items() if value is not None}).encode()
        assert daemon.http("POST", f"/v1/jobs/{job}/suspender", body)[0] == status
    finally:
        stream.close()
    until(lambda: daemon.http("POST", f"/v1/jobs/{job}/suspender", json.dumps(ANSWER).encode())[0] == 403)


@pytest.mark.parametrize("pid", [None, 2**21])
def test_a_suspender_in_another_pid_namespace_is_told_apart(daemon, pid):
    job = daemon.client.register({**JOB, "on_reclaim": "suspend,kill"})["id"]
    stream = daemon.client.suspender(job)
    try:
        until(lambda: daemon.call(lambda: daemon.shell._suspenders.of(job, os.getpid()) is not None))
        body = {name: value for name, value in {**ANSWER, "pid": pid}.items() if value is not None}
        daemon.client._call("POST", f"/v1/jobs/{job}/suspender", dict, body)
        known = daemon.call(lambda: daemon.shell._suspenders.known(job))
        assert known.problem == "it runs in another PID namespace than the daemon"
    finally:
        stream.close()
