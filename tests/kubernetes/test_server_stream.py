"""What the API server's watch may send, and what of it becomes an object."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable

import pytest

from gpushare.kubernetes.server import Stream, Unanswered

EVENTS = [
    {"type": "ADDED", "object": {"metadata": {"name": "ä\u2028b"}}},
    {"type": "DELETED", "object": {}},
    {"type": "BOOKMARK"},
]
WHOLE = b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in EVENTS)


class Pieces:
    """An HTTP answer whose body comes in these pieces, and its connection. An exception is raised where it stands."""

    def __init__(self, pieces: Iterable[bytes | Exception]) -> None:
        self.pieces = list(pieces)
        self.closed = False

    def read1(self, most: int) -> bytes:
        assert not self.closed
        if not self.pieces:
            return b""
        first = self.pieces.pop(0)
        if isinstance(first, Exception):
            raise first
        assert len(first) <= most
        return first

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
def test_an_object_is_whole_however_the_bytes_come(size: int) -> None:
    answer = Pieces(WHOLE[at : at + size] for at in range(0, len(WHOLE), size))
    assert list(Stream(answer, answer).objects()) == EVENTS
    assert answer.closed


def test_an_object_is_there_as_soon_as_its_line_is() -> None:
    """And not when the next one comes, which may be an hour later."""
    first, rest = WHOLE.split(b"\n", 1)
    answer = Pieces([first + b"\n" + rest[:5], OSError("nobody may read this far")])
    assert next(Stream(answer, answer).objects()) == EVENTS[0]


def test_half_an_object_at_the_end_is_none() -> None:
    """The server has ended in the middle of a line; the next watch tells of it again."""
    answer = Pieces([WHOLE[:-5]])
    assert list(Stream(answer, answer).objects()) == EVENTS[:2]


@pytest.mark.parametrize("line", [b"not JSON", b"[]", b'"text"', b"7", b"null", b"", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_object_ends_the_watch_and_is_said(line: bytes) -> None:
    """Something other than an API server answers: nothing of it counts, and nothing breaks later."""
    answer = Pieces([WHOLE, *(line[at : at + 10_000] for at in range(0, len(line), 10_000)), b"\n", WHOLE])
    found, objects = [], Stream(answer, answer).objects()
    with pytest.raises(Unanswered, match="watch"):
        for one in objects:
            found.append(one)
    assert found == EVENTS and answer.closed


@pytest.mark.parametrize(
    "error", [ConnectionResetError("reset"), TimeoutError("late"), http.client.HTTPException("cut")]
)
def test_a_connection_that_breaks_is_no_answer(error: Exception) -> None:
    answer = Pieces([WHOLE, error])
    found, objects = [], Stream(answer, answer).objects()
    with pytest.raises(Unanswered, match=f"watch ended: .*{error}"):
        for one in objects:
            found.append(one)
    assert found == EVENTS and answer.closed
