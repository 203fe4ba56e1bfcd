"""After the canvas the process is as it was: its descriptors, its signals."""

from __future__ import annotations

import os
import pty
import signal
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare.cli import screen

NUMBERS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_the_canvas_is_left(monkeypatch: pytest.MonkeyPatch, capfd, fails: bool) -> None:
    handlers = [signal.getsignal(number) for number in NUMBERS]
    with Path("/dev/null").open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        before = sorted(Path("/proc/self/fd").iterdir())
        try:
            with screen.screen() as wait:
                assert wait(0.0) == "", "nobody can press a key"
                os.kill(os.getpid(), signal.SIGWINCH)
                assert wait(60.0) == "", "a new size is not waited out"
                assert signal.getsignal(signal.SIGTERM) is not handlers[0]
                if fails:
                    raise ValueError
        except ValueError:
            assert fails
        assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert [signal.getsignal(number) for number in NUMBERS] == handlers
    assert signal.set_wakeup_fd(-1) == -1
    said = capfd.readouterr().out
    assert said == screen.ENTER + screen.LEAVE


def test_a_second_signal_does_not_stop_the_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ignored = []
    monkeypatch.setattr(screen.signal, "signal", lambda number, how: ignored.append((number, how)))
    with pytest.raises(SystemExit) as ended:
        screen._end(signal.SIGTERM, None)
    assert ended.value.code == 128 + signal.SIGTERM
    assert {(signal.SIGTERM, signal.SIG_IGN), (signal.SIGHUP, signal.SIG_IGN)} <= set(ignored)


@pytest.fixture
def keyboard() -> Iterator[int]:
    """The end of a pseudo terminal that a program reads keys from."""
    ours, its = pty.openpty()
    yield its
    os.close(ours)
    os.close(its)


def test_keys_come_one_by_one_until_the_terminal_is_as_it_was(keyboard: int, capfd) -> None:
    def line_by_line() -> bool:
        return bool(termios.tcgetattr(keyboard)[3] & termios.ICANON)

    before = termios.tcgetattr(keyboard)
    one = screen._Terminal(keyboard)
    one.enter()
    assert not line_by_line() and capfd.readouterr().out == screen.ENTER
    one.enter()
    assert capfd.readouterr().out == "", "the canvas is there already: a second one would lose what was before"
    one.leave()
    assert termios.tcgetattr(keyboard) == before and capfd.readouterr().out == screen.LEAVE
    one.enter()
    assert not line_by_line() and capfd.readouterr().out == screen.ENTER, "after Ctrl-Z and fg"
    one.leave()


def test_a_program_that_goes_on_sets_its_terminal_up_again(keyboard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with os.fdopen(os.dup(keyboard), closefd=True) as keys:
        monkeypatch.setattr(sys, "stdin", keys)
        before = termios.tcgetattr(keyboard)
        with screen.screen() as wait:
            termios.tcsetattr(keyboard, termios.TCSANOW, before)  # as a shell leaves it
            os.kill(os.getpid(), signal.SIGCONT)
            assert wait(60.0) == ""
            assert not termios.tcgetattr(keyboard)[3] & termios.ICANON
        assert termios.tcgetattr(keyboard) == before


@pytest.mark.parametrize(
    ("found", "size"), [((90, 30), (90, 30)), ((0, 0), (80, 24)), ((90, 0), (80, 24)), ((0, 30), (80, 24))]
)
def test_a_terminal_that_does_not_know_its_size_has_the_usual_one(
    monkeypatch: pytest.MonkeyPatch, found: tuple[int, int], size: tuple[int, int]
) -> None:
    monkeypatch.setattr(screen.sys, "stdout", SimpleNamespace(fileno=lambda: 1))
    monkeypatch.setattr(screen.os, "get_terminal_size", lambda _fd: os.terminal_size(found))
    assert screen.size() == size


def test_a_picture_is_written_whole_and_only_as_much_as_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    def write(_fd: int, data: bytes) -> int:
        written.append(bytes(data[:7]))
        return len(written[-1])

    monkeypatch.setattr(screen, "os", SimpleNamespace(write=write))
    monkeypatch.setattr(screen, "sys", SimpleNamespace(stdout=SimpleNamespace(fileno=lambda: 1, encoding="ascii")))
    screen.draw(["first", "second", "thi▁rd"], os.terminal_size((80, 2)))
    text = b"".join(written).decode()
    assert text == f"{screen.HOME}second{screen.END_OF_LINE}\r\nthi?rd{screen.END_OF_LINE}{screen.BELOW}"


def test_without_a_keyboard_there_is_only_a_canvas(capfd) -> None:
    one = screen._Terminal(None)
    one.enter()
    one.leave()
    assert capfd.readouterr().out == screen.ENTER + screen.LEAVE


def test_ctrl_z_gives_the_terminal_back_before_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    one = screen._Terminal(None)
    monkeypatch.setattr(one, "leave", lambda: done.append("left"))
    monkeypatch.setattr(screen, "os", SimpleNamespace(getpid=lambda: 7, kill=lambda *what: done.append(what)))
    one.pause(signal.SIGTSTP, None)
    assert done == ["left", (7, signal.SIGSTOP)]


def test_a_signal_ends_one_wait() -> None:
    read, write = os.pipe()
    try:
        os.set_blocking(read, False)
        os.write(write, b"\x1c\x1c")
        assert screen._wait(read, None, 60.0) == ""
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
    finally:
        os.close(read)
        os.close(write)
