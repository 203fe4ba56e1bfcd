"""The HTTP parser: fed in any pieces it reads the same, and garbage is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import DaemonUnreachable
from gpushare.unixhttp import Parser, garbage

PLAIN = b"HTTP/1.1 409 Conflict\r\nContent-Length: 11\r\nX: y\r\n\r\nhello world"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nhello \r\n5;x=y\r\nworld\r\n0\r\n\r\n"
UNTIL_END = b"HTTP/1.0 200 OK\r\n\r\nhello world"


@pytest.mark.parametrize(("answer", "status"), [(PLAIN, 409), (CHUNKED, 200), (UNTIL_END, 200)])
@given(cuts=st.lists(st.integers(0, 120), max_size=8))
def test_pieces_do_not_matter(answer, status, cuts):
    parser, body = Parser(), b""
    edges = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]
    for start, end in pairwise(edges):
        body += parser.feed(answer[start:end])
    assert parser.complete is (answer is not UNTIL_END)
    parser.end()
    assert (parser.status, parser.complete, body) == (status, True, b"hello world")


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc", 204, b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b""),
        (PLAIN + b"what follows is of nobody", 409, b"hello world"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1A\r\n" + b"x" * 26 + b"\r\n0\r\n\r\n",
            200,
            b"x" * 26,
        ),
        (CHUNKED + b"what follows is of nobody", 200, b"hello world"),
    ],
)
def test_an_answer_ends_where_it_says(answer, status, body):
    parser = Parser()
    assert parser.feed(answer) == body and (parser.status, parser.complete) == (status, True)


@pytest.mark.parametrize("answer", [PLAIN, CHUNKED])
def test_an_answer_that_is_cut_off_is_not_complete(answer):
    for end in range(len(answer) - 7):
        parser = Parser()
        parser.feed(answer[:end])
        parser.end()
        assert not parser.complete


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 70000,
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x" * 70000,
    ],
)
def test_garbage(answer):
    with pytest.raises(DaemonUnreachable):
        Parser().feed(answer)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    parser = Parser()
    try:
        parser.feed(data)
        parser.feed(data)
    except DaemonUnreachable as error:
        assert error.code == "garbage"


@pytest.mark.parametrize("size", [0, 39, 40, 41, 5000])
def test_garbage_is_quoted_up_to_forty_bytes(size):
    assert garbage(b"x" * size).message.endswith(f": {'x' * min(size, 40)!r}")
