"""After the canvas the process is as it was: its descriptors, its signals."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

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
