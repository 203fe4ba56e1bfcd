"""The time of the daemon's loop among users: each has a slice of each pass, and what does not fit waits in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpushared.limits.fair_share import SLICE, FairShare

A, B = 1000, 1001


class Loop:
    """Of which each turn runs what was there when it began."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, function: Callable[[], None]) -> None:
        self.soon.append(function)

    def turn(self) -> None:
        now, self.soon = self.soon, []
        for function in now:
            function()


def test_who_has_spent_the_slice_has_time_again_in_the_next_pass_and_others_have_it_now() -> None:
    loop = Loop()
    share = FairShare(loop)
    share.spend(A, SLICE / 2)
    assert share.may(A) and not loop.soon, "nobody has to wait"
    share.spend(A, SLICE / 2)
    assert not share.may(A) and share.may(B)
    loop.turn()
    assert share.may(A) and not loop.soon


def test_in_each_pass_one_piece_of_each_user_is_done_in_the_order_of_arrival() -> None:
    loop, done = Loop(), []
    share = FairShare(loop)

    def piece(uid: int, number: int) -> Callable[[], None]:
        def run() -> None:
            done.append((uid, number))
            share.spend(uid, SLICE)

        return run

    for number in range(3):
        share.spend(A, SLICE)
        share.wait(A, piece(A, number))
    share.wait(B, piece(B, 0))
    passes = []
    while loop.soon:
        loop.turn()
        passes.append(done.copy())
        done.clear()
    assert passes[:3] == [[(A, 0), (B, 0)], [(A, 1)], [(A, 2)]]
    assert not any(passes[3:]) and len(passes) <= 4


def test_work_of_unknown_length_is_begun_once_a_pass_and_who_has_gone_takes_nobodys_turn() -> None:
    async def story() -> list[str]:
        share, begun = FairShare(asyncio.get_running_loop()), []

        async def work(name: str) -> None:
            await share.enter(A)
            begun.append(name)

        tasks = {name: asyncio.create_task(work(name)) for name in ("first", "gone", "last")}
        await asyncio.sleep(0)
        assert begun == ["first"]
        tasks["gone"].cancel()
        await asyncio.wait(tasks.values(), timeout=10.0)
        assert share.may(B)
        return begun

    assert asyncio.run(story()) == ["first", "last"]
