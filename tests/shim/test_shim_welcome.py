"""A daemon whose first words make no sense: the program runs under a limit of its own, and nothing is left of it."""

from __future__ import annotations

import os
import struct
import time

import fake_daemon as wire
import pytest
from fake_daemon import Page

LIMIT = {"GPUSHARE_LIMIT": "4Gi"}
MIB = 2**20

RUNS = """
def of_the_talk():
    files = []
    for name in os.listdir("/proc/self/fd"):
        try:
            files.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass
    return sum("socket:" in file or "page-" in file for file in files), "page-" in open("/proc/self/maps").read()
cuda = Cuda().start()
say([cuda.alloc(8 * GiB)[0], cuda.alloc(MiB * 64)[0], cuda.used(), of_the_talk()])
"""


def spoilt(page: Page, at: int, layout: str, value: int) -> Page:
    struct.pack_into(layout, page.map, at, value)
    return page


def too_small(page: Page) -> Page:
    os.truncate(page.fd, 4095)
    return page


PAGES = {
    "another magic": lambda page: spoilt(page, 0, "<Q", wire.PAGE_MAGIC + 1),
    "no version": lambda page: spoilt(page, 8, "<I", 0),
    "larger": lambda page: spoilt(page, 12, "<I", 8192),
    "smaller": lambda page: spoilt(page, 12, "<I", 2048),
    "a file that is too small": too_small,
}


@pytest.mark.parametrize("what", PAGES)
def test_a_page_that_is_none(host, daemon, monkeypatch, what) -> None:
    create = Page.create
    monkeypatch.setattr(Page, "create", lambda number, ops: PAGES[what](create(number, ops)))
    child = host.python(RUNS, **LIMIT)
    assert child.said == [2, 0, 64 * MIB, [0, False]]
    assert "over this process's limit" in child.err
    assert len(daemon.hellos) == 1, "it is not asked again"


def test_a_welcome_without_a_page(host, daemon) -> None:
    send = daemon._welcome

    def without(connection, seq, body, ancillary):
        class Bare:
            def sendmsg(self, parts, rights):
                connection.sendmsg(parts)

        return send(Bare(), seq, body, ancillary)

    daemon._welcome = without
    assert host.python(RUNS, **LIMIT).said == [2, 0, 64 * MIB, [0, False]]
    assert len(daemon.hellos) == 1


@pytest.mark.parametrize("text", ["I am version 9, and speak wire 2 alone", ""])
def test_an_answer_in_place_of_a_welcome(host, daemon, text) -> None:
    """As of a daemon that does not know the kind of frame: what it says is told."""
    daemon.policy.text = text
    daemon._welcome = lambda connection, seq, body, ancillary: daemon._send(connection, seq, wire.BAD_FRAME, 0, 0)
    child = host.python(RUNS, **LIMIT)
    assert child.said == [2, 0, 64 * MIB, [0, False]]
    assert child.err.startswith(f"gpushare: {text or 'the gpushare daemon refuses this process'}\n")


@pytest.mark.parametrize("status", [wire.UNKNOWN, wire.BAD_FRAME])
def test_a_daemon_that_is_of_no_use_is_asked_once(host, daemon, status) -> None:
    daemon.policy.welcome, daemon.policy.text = status, "I do not know such a job"
    child = host.python(RUNS, GPUSHARE_JOB="00000000000000ab", **LIMIT)
    assert child.said == [2, 0, 64 * MIB, [0, False]]
    assert child.err.startswith("gpushare: I do not know such a job\n")
    assert len(daemon.hellos) == 1


def test_a_daemon_that_is_about_to_end_is_asked_again(host, daemon) -> None:
    """Until the next one is there."""
    welcome, turned_away = daemon._welcome, []

    def twice(*arguments):
        daemon.policy.welcome = wire.SHUTTING_DOWN if len(turned_away) < 2 else wire.OK
        turned_away.append(time.monotonic())
        return welcome(*arguments)

    daemon._welcome = twice
    child = host.python("cuda = Cuda().start(); say(cuda.alloc(MiB * 64)[0])", **LIMIT)
    assert (child.said, child.err) == (0, "")
    assert len(turned_away) == 3
    assert daemon.page.word()[0] == 64 * MIB
    assert turned_away[1] - turned_away[0] >= 0.045 and turned_away[2] - turned_away[1] >= 0.09


@pytest.mark.parametrize("text", ["", "GPU 0 is not one of mine"])
@pytest.mark.parametrize("status", [wire.UNKNOWN, wire.BAD_FRAME])
def test_a_gpu_that_the_daemon_does_not_have_has_the_limit_for_itself(host, daemon, status, text) -> None:
    daemon.policy.attach, daemon.policy.text = status, text
    child = host.python("cuda = Cuda().start(); say([cuda.alloc(8 * GiB)[0], cuda.alloc(MiB)[0]])", **LIMIT)
    assert child.said == [2, 0]
    assert child.err.splitlines()[0] == f"gpushare: {text or 'the gpushare daemon has no such GPU'}"
    assert "over this process's limit" in child.err
    assert daemon.asks() == []


@pytest.mark.parametrize("text", ["", "GPU 0 is full"])
@pytest.mark.parametrize("status", [wire.NOT_FREE, wire.TIMED_OUT, wire.NOT_ADMITTED, wire.OVER_LIMIT])
def test_a_context_that_the_daemon_refuses(host, daemon, status, text) -> None:
    daemon.policy.attach, daemon.policy.text = status, text
    child = host.python("cuda = Cuda(); cuda.cuInit(0); say(cuda.cuCtxCreate_v2(byref(c_void_p()), 0, 1))", **LIMIT)
    assert child.said == 2
    ours = "cannot open a context on CUDA device 1: no room for a context"
    assert child.err == f"gpushare: {text or ours}\n"
