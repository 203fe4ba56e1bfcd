"""Connections are accepted several at once, not while no descriptor is left, and not after the end."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushared.system import acceptor as module
from gpushared.system.acceptor import Acceptor

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
AT_ONCE = 64


def run(path: Path, body: Callable) -> None:
    async def main() -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(path))
        taken: list[socket.socket] = []
        said: list[str] = []
        made = Acceptor(listener, taken.append, said.append)
        try:
            await body(made, listener, taken, said)
        finally:
            made.close()
            for one in taken:
                one.close()

    asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("not within five seconds")


def connect(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(str(path))
    return made


def test_more_than_one_look_takes_are_all_taken_and_none_blocks(directory):
    path = directory / "s"

    async def body(_acceptor, _listener, taken, said):
        clients = [connect(path) for _ in range(AT_ONCE + 5)]
        await until(lambda: len(taken) == len(clients))
        assert not any(one.getblocking() for one in taken) and said == []
        for one in clients:
            one.close()

    run(path, body)


@pytest.mark.parametrize("number", module.USED_UP)
def test_without_descriptors_it_complains_and_goes_on_later(directory, monkeypatch, number):
    monkeypatch.setattr(module, "PAUSE", 0.05)
    path = directory / "s"

    async def body(acceptor, listener, taken, said):
        failing = [True]

        class Listener:
            fileno, close = listener.fileno, listener.close

            def accept(self):
                if failing:
                    failing.pop()
                    raise OSError(number, os.strerror(number))
                return listener.accept()

        acceptor._listener = Listener()
        client = connect(path)
        await until(lambda: taken)
        assert said == [os.strerror(number)]
        client.close()

    run(path, body)


def test_after_its_end_the_number_of_its_descriptor_is_anybodys(directory):
    path = directory / "s"

    async def body(acceptor, listener, taken, _said):
        number = listener.fileno()
        acceptor.close()
        acceptor.close()  # once more is nothing
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as late:
            assert late.connect_ex(str(path)) == errno.ECONNREFUSED
        read, write = os.pipe()
        if read != number:
            os.dup2(read, number)
        seen: list[bytes] = []
        asyncio.get_running_loop().add_reader(number, lambda: seen.append(os.read(number, 1)))
        os.write(write, b"x")
        await until(lambda: seen)
        asyncio.get_running_loop().remove_reader(number)
        for one in {read, write, number}:
            os.close(one)
        assert taken == []

    run(path, body)


def test_an_end_within_a_pause_is_the_end(directory, monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0.02)

    async def body(acceptor, _listener, _taken, _said):
        acceptor._pause(OSError(errno.EMFILE, "none is left"))
        acceptor.close()
        await asyncio.sleep(0.1)  # _resume() has been called, and has no socket to look at

    run(directory / "s", body)
