"""What a page is told of the node while it is visible."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from pathlib import Path

import pytest
from daemon_harness import GIB, GPU, until

from dashboard.conftest import told
from gpushare.dashboard import live
from gpushare.dashboard.daemon import Daemon
from gpushare.dashboard.feed import NODE, difference, jobs_of, joined, lost
from gpushare.dashboard.live import Live, Page, event

JOB = {"name": "train", "command": ["train.py"], "request": "4Gi", "limit": "14Gi"}


@pytest.fixture
def page(make_dashboard, node):
    return make_dashboard(node.directory / "api.sock").log_in()


def test_the_whole_state_comes_first_and_then_what_changes(page, node):
    messages = page.live()
    state = told(messages, lambda kind, _: kind == "state")
    assert state["gpus"][0]["uuid"] == GPU
    assert state["jobs"] == [] and state["reservations"] == [] and len(state["pressure"]) == 2
    job = node.client.register(JOB)["id"]
    record = told(messages, lambda kind, _: kind == "record")
    assert (record["event"], record["job"]) == ("admitted", job)
    change = told(messages, lambda kind, data: kind == "change" and "jobs" in data)
    assert [one["id"] for one in change["jobs"]] == [job]
    assert [gpu["requested"] for gpu in change["gpus"]] == [4 * GIB], "the other GPU has not changed"
    node.client.end(job, 0, None)
    assert told(messages, lambda kind, data: kind == "change" and "gone" in data)["gone"] == [job]
    node.client.reserve({"name": "mine", "request": "2Gi"})
    kept = told(messages, lambda kind, data: kind == "change" and "reservations" in data)
    assert [one["name"] for one in kept["reservations"]] == ["mine"]


def test_two_pages_are_told_the_same(page, node):
    first, second = page.live(), page.live()
    told(first, lambda kind, _: kind == "state")
    told(second, lambda kind, _: kind == "state")
    job = node.client.register(JOB)["id"]
    for messages in (first, second):
        assert told(messages, lambda kind, data: kind == "change" and "jobs" in data)["jobs"][0]["id"] == job


def test_a_daemon_that_dies_is_told_once_and_its_successor_is_found(page, node):
    messages = page.live()
    told(messages, lambda kind, _: kind == "state")
    node.kill()
    away = told(messages, lambda kind, _: kind == "away")
    assert away["message"]
    (node.directory / "api.sock").unlink(missing_ok=True)
    assert told(messages, lambda kind, _: kind == "away")["hint"] == "start one"
    node.start()
    assert told(messages, lambda kind, _: kind in ("away", "state"))["gpus"], "nothing is said in between"


def test_a_daemon_that_starts_again_is_asked_without_another_word(page, node):
    first = page.ask("GET", "/v1/version").json["pid"]
    node.kill()
    assert page.ask("GET", "/v1/version").status == 503
    node.start()
    assert page.ask("GET", "/v1/version").json["pid"] != first


def test_a_page_that_comes_while_the_daemon_is_away_is_told_so(dashboard):
    dashboard.log_in()
    first = dashboard.live()
    assert next(first)[0] == "away"
    assert next(dashboard.live())[0] == "away"


def test_the_daemon_hears_nothing_while_nobody_looks(page, node):
    before = resting(node)
    messages = page.live()
    told(messages, lambda kind, _: kind == "state")
    until(lambda: sockets(node) > before)
    messages.close()
    until(lambda: sockets(node) == before)


def resting(node) -> int:
    """The sockets that the daemon has open when nobody asks it: sockets of earlier requests are closed by then."""
    counts = [sockets(node)]
    while len(counts) < 10 or len(set(counts[-10:])) > 1:
        time.sleep(0.05)
        counts.append(sockets(node))
    return counts[-1]


def sockets(node) -> int:
    """That the daemon has open."""
    count = 0
    for one in Path(f"/proc/{node.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += str(one.readlink()).startswith("socket:")
    return count


# ---- the pieces ------------------------------------------------------------------------------------


def state(**lists):
    return {"time": 1.0, "daemon": {}, "gpus": [], "jobs": [], "pressure": [], "reservations": []} | lists


def test_up_time_alone_is_no_difference():
    assert difference(state(daemon={"uptime": 1}), state(time=2.0, daemon={"uptime": 2})) is None


def test_only_what_differs_is_told():
    before = state(jobs=[{"id": "a", "x": 1}, {"id": "b", "x": 1}, {"id": "c"}], pressure=[{"uuid": "g", "x": 0}])
    after = state(
        time=2.0, jobs=[{"id": "a", "x": 1}, {"id": "b", "x": 2}, {"id": "d"}], pressure=[{"uuid": "g", "x": 1}]
    )
    assert difference(before, after) == {
        "time": 2.0,
        "jobs": [{"id": "b", "x": 2}, {"id": "d"}],
        "pressure": [{"uuid": "g", "x": 1}],
        "gone": ["c"],
    }
    assert difference(state(gpus=[{"uuid": "g", "x": 0}]), state(time=3.0, gpus=[{"uuid": "g", "x": 1}])) == {
        "time": 3.0,
        "gpus": [{"uuid": "g", "x": 1}],
    }


def test_what_goes_away_beside_jobs_needs_the_whole_state():
    before = state(
        gpus=[{"uuid": "g"}, {"uuid": "h"}],
        jobs=[{"id": "a"}],
        pressure=[{"uuid": "g"}],
        reservations=[{"id": "r"}, {"id": "s"}],
    )
    for gone, expected in (
        ({}, False),
        ({"jobs": []}, False),  # their ids are told
        ({"gpus": [{"uuid": "g"}]}, True),
        ({"pressure": []}, True),
        ({"reservations": [{"id": "s"}]}, False),  # they are always told whole
        ({"gpus": [], "pressure": [], "reservations": []}, True),
        ({"reservations": [{"id": "r"}, {"id": "s"}, {"id": "t"}]}, False),
    ):
        assert lost(before, before | gone, NODE) is expected, gone


def test_lines_say_which_jobs_to_read_again():
    assert jobs_of({"event": "changed", "job": "a", "gpu": None}) == {"a"}
    assert jobs_of({"event": "gpu_lost", "job": None, "gpu": GPU}) is None
    assert jobs_of({"time": 1.0, "series": [{"job": "a"}, {"job": ""}, {"job": "outside"}]}) == {"a"}
    assert jobs_of({"time": 1.0, "text": "2 lines are left out here", "facts": {"lost": 2}}) is None


def test_jobs_that_were_read_again_take_the_place_of_their_old_selves():
    before = state(jobs=[{"id": "a", "x": 1}, {"id": "b", "x": 1}, {"id": "c", "x": 1}])
    found = {"time": 2.0, "daemon": {}, "gpus": [{"uuid": "g"}], "jobs": [{"id": "b", "x": 2}, {"id": "d", "x": 1}]}
    after = joined(before, found, {"b", "c", "d"})
    assert after["jobs"] == [{"id": "a", "x": 1}, {"id": "b", "x": 2}, {"id": "d", "x": 1}]
    assert after["gpus"] == [{"uuid": "g"}] and after["reservations"] == []


def test_a_daemon_that_does_not_know_how_to_leave_jobs_out_says_more(page, node):
    """An older one answers with all."""
    before = state(jobs=[{"id": "a", "x": 1}])
    found = state(time=2.0, jobs=[{"id": "a", "x": 2}, {"id": "b", "x": 1}])
    assert joined(before, found, {"b"}) == found


def test_a_page_is_told_of_one_job_without_the_daemon_telling_all(page, node, monkeypatch):
    others = [node.client.register(JOB | {"request": "none"})["id"] for _ in range(3)]
    asked = []
    original = Daemon.get

    async def get(self, target):
        asked.append(target)
        return await original(self, target)

    monkeypatch.setattr(Daemon, "get", get)
    messages = page.live()
    told(messages, lambda kind, _: kind == "state")
    node.client.change(others[1], {"limit": "3Gi"})
    change = told(messages, lambda kind, data: kind == "change" and "jobs" in data)
    assert [one["id"] for one in change["jobs"]] == [others[1]]
    assert [gpu["limit"] for gpu in change["jobs"][0]["gpus"]] == [3 * GIB]
    assert f"/v1/status?jobs={others[1]}" in asked
    node.client.end(others[1], 0, None)
    assert told(messages, lambda kind, data: kind == "change" and "gone" in data)["gone"] == [others[1]]
    assert [gpu["limit"] for gpu in change["jobs"][0]["gpus"]] == [3 * GIB]
    assert asked.count("/v1/status") <= 2


def test_an_event_is_one_line_of_data():
    text = event("record", {"text": "two\nlines\r"}).decode()
    assert text.startswith("event: record\ndata: ") and text.endswith("\n\n") and text.count("\n") == 3
    assert json.loads(text.split("data: ")[1]) == {"text": "two\nlines\r"}


def test_a_page_that_does_not_read_costs_little_and_gets_the_whole_state_later():
    async def story():
        page = Page()
        for _ in range(live.UNREAD):
            page.put(b"x")
        assert not page.behind
        page.put(b"y")
        assert page.behind
        assert await page.take(1.0) == b"y"

    asyncio.run(story())


def test_a_page_that_waits_in_vain_is_told_nothing():
    async def story():
        started = time.monotonic()
        assert await Page().take(0.05) == b""
        assert time.monotonic() - started >= 0.04

    asyncio.run(story())


class Still(Live):
    """Its task asks no daemon: what is told is what a test tells."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.watching = 0

    async def _watch(self) -> None:
        self.watching += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.watching -= 1


STATE = {"gpus": [], "jobs": []}


def test_a_page_that_fell_behind_gets_the_whole_state_and_then_what_comes():
    async def story():
        one = Still()
        one._state = STATE
        page = one.follow()
        assert await anext(page) == b": welcome\n\n"
        assert await anext(page) == event("state", STATE)
        for number in range(live.UNREAD + 1):
            one._tell(b"%d;" % number)
        assert await anext(page) == event("state", STATE), "what it has missed is of no use to it"
        one._tell(b"next;")
        assert await anext(page) == b"next;"
        await page.aclose()

    asyncio.run(story())


def test_a_page_that_fell_behind_while_no_daemon_answers_is_told_that():
    async def story():
        one = Still()
        page = one.follow()
        assert await anext(page) == b": welcome\n\n"
        one._away = live.DaemonUnreachable("no daemon", hint="start one")
        for _ in range(live.UNREAD + 1):
            one._tell(b"x")
        assert json.loads((await anext(page)).split(b"data: ")[1]) == {"message": "no daemon", "hint": "start one"}
        await page.aclose()

    asyncio.run(story())


def test_the_daemon_is_watched_once_for_all_pages_and_no_longer_than_one_looks(monkeypatch):
    monkeypatch.setattr(live, "HEARTBEAT", 0.05)

    async def story():
        one = Still()
        first, second = one.follow(), one.follow()
        assert [await anext(first), await anext(second)] == [b": welcome\n\n"] * 2
        assert await anext(first) == b": nothing new\n\n" and one.watching == 1
        one._state = STATE
        one._tell(b"told")
        assert await anext(first) == await anext(second) == b"told"
        await first.aclose()
        await asyncio.sleep(0)
        assert one.watching == 1 and one._state is not None
        await second.aclose()
        await asyncio.sleep(0)
        assert one.watching == 0 and one._state is None, "it will be old when the next page comes"
        third = one.follow()
        assert await anext(third) == b": welcome\n\n"
        assert await anext(third) == b": nothing new\n\n" and one.watching == 1
        await third.aclose()

    asyncio.run(story())


def test_a_page_takes_no_silence_for_an_end_before_it_could_have_heard_twice():
    """One comment may be late, or lost with a connection."""
    page = re.search(r"SILENT_FOR = ([\d_]+)", (Path(__file__).parents[2] / "web" / "src" / "live.ts").read_text())
    assert page is not None and int(page[1]) / 1000 > 2 * live.HEARTBEAT
