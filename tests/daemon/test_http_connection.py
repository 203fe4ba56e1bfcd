"""One connection of the API: what aiohttp gets of what comes, and when the socket is read on."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from gpushared.api.http_listener import HttpConnection

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
MOST_UNPARSED = 256 * 1024
PIECE = 4096

UID = 1000


class Share:
    """The user's time of the loop: there is some, or what is to be done waits."""

    def __init__(self) -> None:
        self.has_time = True
        self.waiting: list[Callable[[], None]] = []

    def may(self, _uid: int) -> bool:
        return self.has_time

    def spend(self, _uid: int, _seconds: float) -> None:
        pass

    def wait(self, _uid: int, function: Callable[[], None]) -> None:
        self.waiting.append(function)

    def turn(self) -> None:
        now, self.waiting = self.waiting, []
        for function in now:
            function()


class Transport:
    reading = True
    closing = aborted = False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True


class Parser:
    """In the place of aiohttp's. It may say after a piece that it wants no more for now."""

    def __init__(self) -> None:
        self.got = b""
        self.ended = False
        self.enough_at: list[int] = []

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        if self.enough_at and len(self.got) >= self.enough_at[0]:
            self.enough_at.pop(0)
            self.transport.pause_reading()

    def eof_received(self) -> None:
        self.ended = True


class Stand:
    def __init__(self) -> None:
        self.share, self.inner, self.transport = Share(), Parser(), Transport()
        listener = SimpleNamespace(fair_share=self.share, byte_budget=None)
        self.connection = HttpConnection(listener, self.inner, UID)
        self.connection.connection_made(self.transport)

    def come(self, data: bytes) -> None:
        assert self.transport.reading, "nothing comes while the socket is not read"
        self.connection.data_received(data)


@pytest.fixture
def stand() -> Stand:
    return Stand()


def test_what_comes_is_handed_on_in_pieces(stand):
    data = bytes(itertools.islice(itertools.cycle(range(251)), 3 * PIECE + 7))
    stand.come(data)
    assert stand.inner.got == data and stand.transport.reading and not stand.share.waiting


def test_what_the_parser_does_not_want_yet_is_kept_until_it_does(stand):
    stand.inner.enough_at = [PIECE, 3 * PIECE]
    stand.come(b"a" * PIECE + b"b" * PIECE + b"c" * PIECE + b"d")
    for number, wanted in ((1, b"a"), (3, b"c")):
        assert len(stand.inner.got) == number * PIECE and stand.inner.got.endswith(wanted)
        assert not stand.transport.reading
        stand.share.turn()
        assert not stand.transport.reading, "nobody has said that it goes on"
        stand.inner.transport.resume_reading()
        assert len(stand.inner.got) == number * PIECE, "not within its own call"
        stand.share.turn()
    assert stand.inner.got.endswith(b"cd") and stand.transport.reading
    stand.come(b"e")
    assert stand.inner.got.endswith(b"de")


def test_a_user_without_time_waits_and_goes_on(stand):
    stand.share.has_time = False
    stand.come(b"a")
    assert stand.inner.got == b"" and not stand.transport.reading
    stand.share.turn()
    assert stand.inner.got == b"" and not stand.transport.reading and stand.share.waiting, "still none"
    stand.share.has_time = True
    stand.share.turn()
    assert stand.inner.got == b"a" and stand.transport.reading


def test_the_first_to_go_on_does_not_undo_the_others_pause(stand):
    stand.inner.enough_at = [1]
    stand.come(b"a")
    stand.share.has_time = False
    stand.inner.transport.resume_reading()
    stand.share.turn()
    assert stand.transport.reading and not stand.share.waiting, "nothing is left that needs the user's time"
    stand.share.has_time = True
    stand.inner.enough_at = [2]
    stand.share.has_time = False
    stand.come(b"bc")
    stand.inner.transport.pause_reading()
    stand.share.has_time = True
    stand.share.turn()
    assert stand.inner.got == b"a" and not stand.transport.reading, "there is time, and the parser wants nothing"
    stand.inner.transport.resume_reading()
    stand.share.turn()
    assert stand.inner.got == b"abc"


def test_to_pause_twice_is_to_pause_once(stand):
    for _ in range(2):
        stand.inner.transport.pause_reading()
    assert not stand.transport.reading
    for _ in range(2):
        stand.inner.transport.resume_reading()
    assert len(stand.share.waiting) == 1
    stand.share.turn()
    assert stand.transport.reading


@pytest.mark.parametrize("waits", [False, True])
def test_the_end_comes_after_all_that_came_before_it(stand, waits):
    stand.share.has_time = not waits
    stand.come(b"a")
    stays = stand.connection.eof_received()
    assert stays is waits and stand.inner.ended is not waits
    stand.share.has_time = True
    stand.share.turn()
    assert stand.inner.got == b"a" and stand.transport.closing is waits


def test_of_a_connection_that_is_closed_nothing_more_is_done(stand):
    """Not even waited for: others have the time."""
    hand_on = stand.inner.data_received

    def close(data: bytes) -> None:
        hand_on(data)
        stand.transport.close()

    stand.inner.data_received = close
    stand.come(b"a" * PIECE + b"b")
    assert stand.inner.got == b"a" * PIECE and stand.transport.reading and not stand.share.waiting
    stand.inner.transport.pause_reading()
    assert stand.transport.reading, "there is nothing to pause"


def test_a_connection_that_sends_on_and_on_while_nothing_is_taken_is_cut(stand):
    stand.share.has_time = False
    stand.come(b"a" * MOST_UNPARSED)
    assert not stand.transport.aborted
    stand.connection.data_received(b"a")
    assert stand.transport.aborted
    stand.share.has_time = True
    stand.share.turn()
    assert stand.inner.got == b""
