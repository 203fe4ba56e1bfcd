"""Two users and every channel in which one might read of the other's job; what `reveal` withholds is in none."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from daemon_harness import GIB, GPU, until
from hostile import attack
from other_user import ALICE, BOB, as_user, needs_root
from shim_client import ShimClient

from gpushare import unixhttp
from gpushare._layout import lib
from gpushare.errors import GpushareError

pytestmark = needs_root

SECRET = "thesis-of-alice"  # the borrower's
OWNERS = "paper-of-bob"


def job(name: str, request: str, limit: str, **more: object) -> dict[str, object]:
    return {
        "name": name,
        "command": [f"/home/{name}/run"],
        "request": request,
        "limit": limit,
        "devices": ["0"],
        **more,
    }


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except GpushareError as error:
        return error.render()
    raise AssertionError("it was not refused")


def says(text: str, word: str) -> bool:
    """A user's number within a longer number, as a time or an id, does not name the user."""
    return re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", text) is not None


def everything_to_read(daemon: Any, other: str) -> dict[str, str]:
    """What the caller gets from each question to the daemon."""
    client = daemon.client
    api = daemon.directory / "api.sock"
    return {
        "ps": json.dumps(client.jobs()),
        "job": json.dumps(client.job(other)),
        "status": json.dumps(client.status()),
        "explain": json.dumps(client.explain()),
        "events": json.dumps(client.records()),
        "reservations": json.dumps(client.reservations()),
        "story": refusal(lambda: client.story(other)),
        "set": refusal(lambda: client.change(other, {"limit": "1Gi"})),
        "end": refusal(lambda: client.end(other, 0, None)),
        "metrics": unixhttp.exchange(api, "GET", "/metrics", None, 10.0)[1].decode(),
        "no room": refusal(lambda: client.register(job("x", "15Gi", "15Gi"))),
        "waited": refusal(lambda: client.register(job("x", "15Gi", "15Gi", wait=0.1))),
        "no room to reserve": refusal(lambda: client.reserve({"request": "15Gi", "name": "x", "devices": ["0"]})),
    }


def owner(daemon: Any, other: str) -> dict[str, str]:
    """Bob's program wants back what Alice has borrowed; all that he reads until it has it."""
    client = daemon.client
    mine = client.register(job(OWNERS, "8Gi", "12Gi"))
    stream = client.follow(0)
    with ShimClient(daemon.shim) as shim:
        assert shim.hello(job=mine["id"]).status == lib.GS_OK
        assert shim.attach(GPU).status == lib.GS_OK
        loan = shim.ask(11 * GIB)
        assert loan.status == lib.GS_NOT_FREE
        read = everything_to_read(daemon, other)
        read["the answer to a program"] = loan.text
        read["not raised"] = refusal(lambda: client.change(mine["id"], {"request": "12Gi"}))
        shim.send_ask(7 * GIB)
        until(lambda: [one for one in client.explain()["waiting"] if one["job"] == mine["id"]])
        read["why it waits"] = json.dumps(client.explain()["waiting"])
        read["own story"] = json.dumps(client.story(mine["id"]))
        assert shim.answer().status == lib.GS_OK
        read["outcome of the other"] = json.dumps(client.job(other))
    read["follow"] = json.dumps(list(stream.read()))
    stream.close()
    return read


NAMES_IT = {"no room", "waited", "no room to reserve", "the answer to a program", "not raised", "why it waits"}
"""Where the other job is spoken of in a text."""


@pytest.mark.parametrize("reveal", ["name", "user", "none"])
def test_no_channel_tells_more_than_is_revealed(make_daemon, reveal):
    daemon = make_daemon(system=True, reveal=reveal, grace=0.5, claim_timeout=10.0, last_step="kill")
    client = daemon.client

    def borrower(ready: Callable[[], None]) -> object:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        mine = client.register(job(SECRET, "4Gi", "14Gi"))
        shim = ShimClient(daemon.shim)
        assert shim.hello(job=mine["id"]).status == lib.GS_OK
        assert shim.attach(GPU).status == lib.GS_OK
        shim.allocate(12 * GIB)
        ready()
        time.sleep(60)
        return shim

    withheld = {"name": [], "user": [SECRET], "none": [SECRET, str(ALICE)]}[reveal]
    with attack(ALICE, borrower):
        (theirs,) = client.jobs()
        read = as_user(BOB, lambda: owner(daemon, theirs["id"]))
        if reveal == "name":
            assert as_user(BOB, lambda: client.job(SECRET))["id"] == theirs["id"]
        else:
            code, text = as_user(BOB, lambda: client.job(SECRET))
            assert code == "no_such_job", f"a name that may not be known is not found either: {text}"
        assert not [(where, word) for where, text in read.items() for word in withheld if says(text, word)]
        assert all(f"/home/{SECRET}" not in text for text in read.values()), "a command line is told to nobody"
        shown = {"name": SECRET, "user": f"a job of {ALICE}", "none": "another user's job"}[reveal]
        assert not [where for where in NAMES_IT if shown not in read[where]], read

        entry = daemon.shell.registry.get(theirs["id"])
        until(lambda: entry.state == "ended")

        def what_the_borrower_reads() -> dict[str, object]:
            seen = client.job(theirs["id"])
            story = client.story(theirs["id"])["story"]
            events = client.events(theirs["id"])
            notices: list[object] = []
            until(lambda: notices.extend(events.read()) or events.ended)
            events.close()
            return {"killed": seen["outcome"]["killed"], "story": story, "notices": notices}

        told = as_user(ALICE, what_the_borrower_reads)
        withheld = {"name": [], "user": [OWNERS], "none": [OWNERS, str(BOB)]}[reveal]
        assert not [word for word in withheld if says(json.dumps(told), word)], told
        assert [one["kind"] for one in told["notices"]] == ["asked_back", "killed"]
        assert (told["killed"]["owner"], told["killed"]["owner_user"]) == {
            "name": (OWNERS, str(BOB)),
            "user": (None, str(BOB)),
            "none": (None, None),
        }[reveal]
    root = json.dumps([client.jobs(), client.story(theirs["id"]), client.records()])
    assert SECRET in root and OWNERS in root, "administrators read all"


def test_of_several_jobs_of_one_name_a_user_means_its_own(make_daemon):
    """Everybody's job is called train."""
    daemon = make_daemon(system=True, reveal="name")
    client = daemon.client

    def same_name(ready: Callable[[], None]) -> None:
        client.register(job("train", "1Gi", "2Gi"))
        ready()

    def change() -> int:
        mine = client.register(job("train", "1Gi", "2Gi"))
        changed = client.change("train", {"limit": "3Gi"})
        assert changed["after"]["id"] == mine["id"]
        return changed["after"]["uid"]

    with attack(ALICE, same_name):
        assert as_user(BOB, change) == BOB
        client.register(job("train", "1Gi", "2Gi"))
        with pytest.raises(GpushareError, match="fits 2 jobs"):
            client.change("train", {"limit": "3Gi"})  # root must say which


def test_a_slow_reader_keeps_its_own_records(make_daemon):
    """What others do is not among what it has not read: nobody can push somebody else's records out."""
    daemon = make_daemon(system=True, reveal="none")
    client = daemon.client

    def loud(ready: Callable[[], None]) -> object:
        stream = client.follow(0)
        mine = client.register(job("a", "1Gi", "2Gi"))
        for number in range(5):
            client.change(mine["id"], {"priority": -number})
        ready()
        return stream

    with attack(ALICE, loud):
        (backlog,) = until(lambda: daemon.call(lambda: list(daemon.shell.records.followers)))
        as_user(BOB, lambda: [client.register(job("b", "1Gi", "2Gi")) and None for _ in range(3)])
        assert "b" not in daemon.call(lambda: [one.name for one in backlog._items])


@pytest.mark.parametrize("uid", [2, ALICE])
def test_who_reads_metrics_over_tcp_is_nobody_who_has_jobs(make_daemon, uid: int) -> None:
    """Users of the system have small numbers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    daemon = make_daemon(system=True, reveal="none", metrics_listen=f"127.0.0.1:{port}")

    def holder(ready: Callable[[], None]) -> object:
        mine = daemon.client.register(job(SECRET, "4Gi", "4Gi"))
        ready()
        time.sleep(60)
        return mine

    def look() -> str:
        status, body = unixhttp.exchange(daemon.directory / "api.sock", "GET", "/metrics", None, 10.0)[:2]
        assert status == 200
        return body.decode()

    with attack(uid, holder):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            told = answer.read().decode()
        own = as_user(uid, look)
    assert SECRET not in told
    assert SECRET in own, "its own user reads it"
