"""The daemon's own epoll: one callback a readable descriptor, and never one of a descriptor that has gone."""

from __future__ import annotations

import asyncio
import os

from gpushared.system.epoll import Epoll


def run(body):
    async def main():
        readers = Epoll(asyncio.get_running_loop())
        try:
            await body(readers)
        finally:
            readers.close()

    asyncio.run(main())


def test_what_is_readable_is_read_again_and_again():
    async def body(readers):
        read, write = os.pipe()
        seen = []
        readers.add_reader(read, lambda: seen.append(os.read(read, 1)))
        for byte in (b"a", b"b"):
            os.write(write, byte)
        await asyncio.sleep(0.02)
        assert seen == [b"a", b"b"]
        assert readers.remove_reader(read) and not readers.remove_reader(read)
        os.write(write, b"c")
        await asyncio.sleep(0.02)
        assert seen == [b"a", b"b"]
        os.close(read)
        os.close(write)

    run(body)


def test_a_number_that_has_changed_hands_is_not_called_back_for_what_went_before():
    """Both pipes are readable in one look; the first callback closes the second's, whose number then is another's."""

    async def body(readers):
        first, second = os.pipe(), os.pipe()
        third = os.pipe()
        calls = []

        def take_over(mine, other):
            calls.append(mine)
            readers.remove_reader(mine)
            if readers.remove_reader(other):
                os.dup2(third[0], other)
                readers.add_reader(other, lambda: calls.append("the new one"))

        readers.add_reader(first[0], lambda: take_over(first[0], second[0]))
        readers.add_reader(second[0], lambda: take_over(second[0], first[0]))
        os.write(first[1], b".")
        os.write(second[1], b".")
        await asyncio.sleep(0.02)
        assert calls in ([first[0]], [second[0]])
        os.write(third[1], b".")
        await asyncio.sleep(0.02)
        assert "the new one" in calls
        for fd in (*first, *second, *third):
            os.close(fd)

    run(body)


def test_a_callback_that_fails_does_not_silence_the_others(caplog):
    async def body(readers):
        one, two = os.pipe(), os.pipe()
        seen = []

        def fail():
            os.read(one[0], 1)
            seen.append("failed")
            raise RuntimeError("a bug")

        readers.after_round = lambda: seen.append("end" if readers.in_round else "late")
        readers.add_reader(one[0], fail)
        readers.add_reader(two[0], lambda: seen.append(os.read(two[0], 1)))
        os.write(one[1], b".")
        os.write(two[1], b".")
        await asyncio.sleep(0.02)
        assert [one for one in seen if one != "end"] in (["failed", b"."], [b".", "failed"])
        assert seen[seen.index("failed") + 1] == "end", "a round has its end, whatever happened in it"
        assert not readers.in_round
        for fd in (*one, *two):
            os.close(fd)

    run(body)
    assert "a bug" in caplog.text or "RuntimeError" in caplog.text
