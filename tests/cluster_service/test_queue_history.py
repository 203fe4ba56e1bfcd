"""What the service knows of the past: GPUs of each queue over time, its notices, and the cluster at a glance."""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from service_process import Process, until
from service_stage import ALICE, BOB, ROOT, Stage

from gpushare import unixhttp
from gpushare.client import Events
from gpushare.cluster.codec import decode_events
from gpushare.cluster.model import Queue, QueueChanged
from gpushare.cluster.quantity import MICRO, gpus
from gpushare.cluster.service.notices import KEPT, Notices
from gpushare.cluster.service.overview import MOST_OF_A_QUEUE
from gpushare.errors import NotPermitted
from gpushared.cluster.history import sample
from gpushared.cluster.notice_file import NoticeFile
from gpushared.history.levels import TOTAL, Amounts, SeriesKey


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Process]:
    one = Process(tmp_path)
    one.start()
    yield one
    if one.process is not None:
        one.end()


def columns(points, column: int) -> list[float]:
    """The values in order, each once as long as it holds."""
    return [value for value, _ in itertools.groupby(point[column] for point in points if len(point) > 1)]


def test_a_sample_has_what_each_queue_holds_and_may_have(tmp_path):
    stage = Stage(tmp_path, queues=[("a", "1"), ("b", "3")])
    stage.submit(queue="a", gpus=1)
    stage.submit(queue="a", gpus=2)
    stage.submit(queue="b", gpus=2)
    stage.rounds()
    found = sample(stage.store.allocator)
    assert found[SeriesKey("", "a")] == Amounts(gpus(1), gpus("2"), gpus(1), gpus(3))
    assert found[SeriesKey("", "b")] == Amounts(gpus(2), gpus(2), gpus(3), gpus(2))
    assert found[SeriesKey("", TOTAL)] == Amounts(gpus(3), 0, gpus(4), gpus(5))
    stage.store.close()


def test_the_past_is_kept_over_a_kill(service: Process) -> None:
    client, began = service.client, time.time()
    id = client.submit({"job": {"queue": "lab"}, "array": 3, "run": {"duration": 600}})
    until(lambda: [job["state"] for job in client.jobs()] == ["running"] * 3)

    def past() -> dict:
        found = service.client.history(began - 5, time.time() + 1, 1.0, "lab")
        assert not found["kept"] or (found["step"] == 1 and not found["cut"])
        return found["series"][0]["points"] if found["series"] else []

    until(lambda: columns(past(), 1)[-1:] == [3 * MICRO])
    assert columns(past(), 3)[-1] == 3 * MICRO and columns(past(), 4)[-1] == 2 * MICRO, "its share and its quota"
    told = client.events(job=id)
    assert sorted(one["event"] for one in told) == ["running"] * 3 + ["start"] * 3 + ["submitted"]
    seen = time.time()
    until(lambda: any(file.stat().st_mtime > seen for file in service.directory.glob("cluster.db.history/usage*")))
    service.end(signal.SIGKILL)
    service.start()
    until(lambda: client.history(began, time.time(), 1.0, "lab")["kept"])
    assert 3 * MICRO in columns(past(), 1), "the samples of the killed service"
    again = service.client.events(job=id)
    assert again[: len(told)] == told, "its notices, with their numbers"
    assert service.client.events(begin=time.time() + 5) == []
    seqs = [one["seq"] for one in service.client.events()]
    assert seqs == sorted(set(seqs))


def test_each_change_is_followed_live(service: Process) -> None:
    stream, heard = Events(service.socket, "/v1/history?follow=1", 10.0, dict), []

    def lab() -> list[dict]:
        heard.extend(one for line in stream.read() for one in line["queues"] if one["queue"] == "lab")
        return heard

    until(lab)
    assert heard[0]["now"] == {"held": 0, "share": 0, "quota": 2 * MICRO, "demand": 0}
    service.client.submit({"job": {"queue": "lab"}, "array": 4, "run": {"duration": 600}})
    until(lambda: lab()[-1]["now"] == {name: 4 * MICRO for name in ("held", "share", "demand")} | {"quota": 2 * MICRO})
    service.end()
    until(lambda: list(stream.read()) == [] and stream.ended)
    assert stream.clean
    stream.close()


def test_a_question_that_makes_no_sense_is_refused(service: Process) -> None:
    for query in ("since=x", "since=5&until=1", "step=-1", "since=nan"):
        status, text = unixhttp.exchange(service.socket, "GET", f"/v1/history?{query}", None, 10.0)
        assert (status, json.loads(text)["error"]["code"]) == (400, "bad_request")


# ---- notices on disk ---------------------------------------------------------------------------------


def said(directory) -> Notices:
    notices, file = Notices(lambda: 1e6), NoticeFile(directory)
    notices.recall(file.read())
    notices.follow(notices.seq, file.put)
    return notices


def test_notices_are_those_of_the_service_before(tmp_path):
    first = said(tmp_path / "history")
    first.add("start", "1", "start 1: there is room", reason="fits")
    second = said(tmp_path / "history")
    second.add("ended", "1", "job 1 has succeeded")
    found = said(tmp_path / "history").since(0)
    assert [one["event"] for one in found] == ["start", "ended"] and found[1]["seq"] == found[0]["seq"] + 1
    assert found[0]["facts"] == {"reason": "fits"}


def test_torn_and_foreign_lines_are_left_out(tmp_path):
    first = said(tmp_path)
    first.add("start", "1", "one")
    with (tmp_path / "notices").open("ab") as file:
        file.write(b'\n{"seq": 1}\n[]\n\xff\n{"seq": 9, "ti')
    first.add("start", "2", "two")
    assert [one["text"] for one in said(tmp_path).since(0)] == ["one", "two"]


def test_the_file_of_notices_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("gpushared.cluster.notice_file.MOST_BYTES", 10_000)
    notices = said(tmp_path)
    for number in range(1000):
        notices.add("start", str(number), "x" * 50)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 21_000
    found = said(tmp_path).since(0)
    assert found[-1]["job"] == "999" and 50 < len(found) <= KEPT
    assert (tmp_path / "notices").stat().st_mode & 0o777 == 0o600


def test_a_disk_that_is_full_stops_the_file_alone(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("os.write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    notices = said(tmp_path)
    notices.add("start", "1", "one")
    notices.add("start", "2", "two")
    assert len(notices.since(0)) == 2
    assert [record.message for record in caplog.records] == ["notices cannot be written"]


# ---- at a glance, and before a change ----------------------------------------------------------------


@pytest.fixture
def lab(tmp_path):
    stage = Stage(tmp_path, queues=[("a", "1"), ("b", "3")])
    stage.submit(queue="a", gpus=2, name="one")
    stage.submit(queue="a", gpus=2, name="two")
    stage.rounds()
    yield stage
    stage.store.close()


def test_the_overview_says_who_has_what(lab):
    found = lab.service.overview(ALICE)
    assert found["capacity"] == gpus(4) and found["you"] == {"uid": 1001, "user": "alice", "admin": False}
    a = next(one for one in found["queues"] if one["name"] == "a")
    assert (a["held"], a["share"], a["quota"], a["running"]) == (gpus(4), gpus(4), gpus(1), 2)
    assert a["sum"].startswith("4 = 1 of its quota + 3 of the surplus")
    assert found["loans"] == [{"borrower": "a", "lender": "b", "amount": gpus(3)}]
    assert [gpu["held"] for node in found["nodes"] for gpu in node["gpus"]] == [80 * 2**30] * 4
    assert [job["places"][0][0] for job in found["jobs"]] == ["n1", "n2"] and found["jobs"][0]["user"] == "alice"
    assert found["jobs"][0]["gpus"] == gpus(2) and found["jobs"][0]["since"] <= lab.now


def test_the_overview_is_made_again_when_something_has_happened_or_after_ten_seconds(lab):
    """Pages ask for it all the time, and it costs more than what they ask else."""
    made = lab.service.overview(ALICE)["time"]
    lab.now += 10.0
    assert lab.service.overview(ALICE)["time"] == made
    lab.now += 0.1
    again = lab.service.overview(ALICE)["time"]
    assert again == lab.now > made
    lab.submit(queue="b")
    lab.now += 0.1
    assert lab.service.overview(ALICE)["time"] == lab.now > again


def test_the_overview_is_bounded(lab):
    lab.submit(BOB, queue="b", gpus=4, array=MOST_OF_A_QUEUE + 50)
    lab.rounds()
    found = lab.service.overview(BOB)
    waiting = [job for job in found["jobs"] if not job["places"] and job["queue"] == "b"]
    b = next(one for one in found["queues"] if one["name"] == "b")
    assert len(waiting) == MOST_OF_A_QUEUE < b["waiting"] and all(job["reason"] for job in waiting)


def test_the_overview_looks_at_few_of_many_jobs(lab, monkeypatch):
    monkeypatch.setattr("gpushare.cluster.service.overview.MOST_WAITING", 7)
    monkeypatch.setattr("gpushare.cluster.service.overview.MOST_HOLDING", 1)
    lab.submit(BOB, queue="b", gpus=4, array=20)
    lab.rounds()
    found = lab.service.overview(BOB)["jobs"]
    assert [bool(job["places"]) for job in found] == [True] + [False] * 7


def test_a_dry_run_says_what_would_follow_and_changes_nothing(lab):
    lab.submit(ROOT, queue="a", gpus=2, name="three")
    lab.rounds()
    before, seq = lab.states(), lab.store.seq
    assert before == {"1": "running", "2": "running", "3": "pending"}
    would = lab.service.cancel("1", ALICE, dry_run=True)
    assert would["jobs"] == ["1"]
    assert [line.partition(":")[0] for line in would["would"]] == ["stop 1 (one)"]
    smaller = QueueChanged(replace(lab.store.allocator.queues["a"].queue, limit=gpus(2)))
    assert lab.service.change([smaller], ROOT, dry_run=True)["would"] == []
    assert lab.states() == before and lab.store.seq == seq
    for ask in (
        lambda: lab.service.cancel("1", BOB, dry_run=True),
        lambda: lab.service.change([smaller], BOB, dry_run=True),
    ):
        with pytest.raises(NotPermitted):
            ask()


def test_what_the_overview_says_of_a_queue_can_be_sent_back_changed(lab):
    a = next(one for one in lab.service.overview(ROOT)["queues"] if one["name"] == "a")
    queue = {name: a[name] for name in (field.name for field in fields(Queue))}
    text = json.dumps([{"event": "QueueChanged", "queue": {**queue, "quota": gpus(3)}}])
    assert lab.service.change(decode_events(text), ROOT)["actions"] == []
    assert lab.store.allocator.queues["a"].queue == replace(Queue("a"), quota=gpus(3))
