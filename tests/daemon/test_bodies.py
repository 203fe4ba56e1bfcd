"""Bodies of requests: how much of them is read, for whose account, and how long they may take; what a refusal is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from gpushare.errors import UsageError
from gpushare.reasons import Code, Told
from gpushared.api import answers
from gpushared.api.answers import Rejected, read_body
from gpushared.limits import byte_budget
from gpushared.limits.byte_budget import ByteBudget

ADA = 70001


class Request:
    """A request whose body comes in pieces; `at` is called before each."""

    def __init__(self, *pieces: bytes, length: int | None = None, at: Any = lambda: None) -> None:
        self.pieces, self.content_length, self.at = list(pieces), length, at
        self.content = self

    def at_eof(self) -> bool:
        return not self.pieces

    async def readany(self) -> bytes:
        await asyncio.sleep(0)
        self.at()
        return self.pieces.pop(0)


def read(request: Any, held: ByteBudget, most: int = 100) -> bytes:
    return asyncio.run(asyncio.wait_for(read_body(request, held, ADA, most), 10))


@pytest.mark.parametrize(("length", "counted"), [(7, 7), (None, 100), (1000, 100)])
def test_a_body_counts_for_its_user_while_it_is_read(length, counted) -> None:
    """As much as it says, or as much as may come."""
    held, seen = ByteBudget(lambda _: True), []
    assert read(Request(b"abc", b"defg", length=length, at=lambda: seen.append(held.of(ADA))), held) == b"abcdefg"
    assert seen == [counted, counted] and held.of(ADA) == 0


def test_a_body_that_is_too_long_is_refused_and_counts_no_more() -> None:
    held = ByteBudget(lambda _: True)
    assert read(Request(b"x" * 60, b"x" * 40), held) == b"x" * 100
    request = Request(b"x" * 60, b"x" * 41, b"never read")
    with pytest.raises(web.HTTPRequestEntityTooLarge):
        read(request, held)
    assert held.of(ADA) == 0 and request.pieces == [b"never read"]


def test_a_body_waits_until_its_bytes_have_room(monkeypatch) -> None:
    monkeypatch.setattr(byte_budget, "MOST", 100)

    async def story() -> None:
        held, began = ByteBudget(lambda _: True), []
        held.change(ADA, 95)
        request: Any = Request(b"abcdef", length=6, at=lambda: began.append(held.of(ADA)))
        task = asyncio.create_task(read_body(request, held, ADA))
        for _ in range(10):
            await asyncio.sleep(0)
        assert began == [] and held.of(ADA) == 95
        held.change(ADA, -1)
        assert await asyncio.wait_for(task, 10) == b"abcdef" and began == [100]

    asyncio.run(story())


def test_a_body_that_does_not_come_in_time_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(answers, "BODY_WITHIN", 0.05)
    held = ByteBudget(lambda _: True)
    never: Any = SimpleNamespace(at_eof=lambda: False, readany=lambda: asyncio.sleep(60))
    with pytest.raises(UsageError, match=r"the body of the request did not come within 0\.05 s"):
        read(SimpleNamespace(content_length=5, content=never), held)
    assert held.of(ADA) == 0
    monkeypatch.setattr(byte_budget, "MOST", 10)
    held.change(ADA, 10)
    with pytest.raises(UsageError):
        read(Request(b"abc", length=3), held)
    assert held.of(ADA) == 10, "what never had room never counted"


def refused(code: Code, queue: int = 0) -> Rejected:
    return Rejected(Told(code, "no"), queue)


def test_what_the_core_refuses_has_a_status_that_says_whether_to_ask_again() -> None:
    """404: there is no such thing; 400: this is no request; 409: not now."""
    never = {Code.NO_SUCH_JOB: 404, Code.BAD_BUDGET: 400, Code.NO_SUCH_GPU: 400}
    for code in Code:
        assert refused(code, 2).status == never.get(code, 409)
        assert (refused(code, 2).retry_after is not None) == (code is Code.NOT_ADMITTED)
    assert [refused(Code.NOT_ADMITTED, queue).retry_after for queue in range(3)] == [3, 6, 9]
