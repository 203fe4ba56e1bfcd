"""What the wrapper does with signals while it waits for its program, and with the last words of the daemon."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace

import pytest

from gpushare import daemon_link
from gpushare.daemon_link import WAITED_FOR, forward, has_ended, status_signal, wait_for


@pytest.fixture
def sent(monkeypatch):
    """The signals that the wrapper sends, in place of sending them."""
    found = []
    monkeypatch.setattr(daemon_link.os, "kill", lambda pid, number: found.append((pid, number)))
    monkeypatch.setattr(daemon_link.signal, "pthread_sigmask", lambda how, some: found.append((how, set(some))))
    return found


def caught(number: int, code: int = 0):
    return SimpleNamespace(si_signo=number, si_code=code)


KERNEL = 0x80
"""The code of the kernel's own signals, in its siginfo.h."""
STOPS = [
    (os.getpid(), signal.SIGTSTP),
    (signal.SIG_UNBLOCK, {signal.SIGTSTP}),
    (signal.SIG_BLOCK, {signal.SIGTSTP}),
]


@pytest.mark.parametrize(
    ("number", "code", "done"),
    [
        (signal.SIGINT, 0, [(7, signal.SIGINT)]),
        (signal.SIGINT, KERNEL, []),
        (signal.SIGUSR1, -1, [(7, signal.SIGUSR1)]),
        (signal.SIGTSTP, 0, [(7, signal.SIGTSTP), *STOPS]),
        (signal.SIGTSTP, KERNEL, STOPS),
    ],
)
def test_a_signal_of_somebody_goes_to_the_program_and_the_terminals_is_there_already(sent, number, code, done):
    """The terminal sends its signals to the whole foreground process group. We stop as the program does."""
    forward(7, caught(number, code))
    assert sent == done


def test_a_program_that_may_not_be_signalled_does_not_end_the_wrapper(monkeypatch):
    def kill(_pid, _number):
        raise PermissionError

    monkeypatch.setattr(daemon_link.os, "kill", kill)
    forward(7, caught(signal.SIGTERM))


def test_has_ended_leaves_the_status_for_the_wait():
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(3)
    try:
        assert not has_ended(child)
    finally:
        os.close(writer)
        os.close(reader)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert has_ended(child) and has_ended(child)
    assert os.waitpid(child, 0) == (child, 3 << 8)


@pytest.mark.parametrize(("status", "number"), [(15, 15), (9, 9), (3 << 8, None), (0, None)])
def test_the_signal_that_ended_the_program(status, number):
    assert status_signal(status) == number


class Waits:
    """sigtimedwait and waitpid in the wrapper's loop: each wait has the next outcome; the last one ends the program."""

    def __init__(self, monkeypatch, *outcomes) -> None:
        self.outcomes, self.timeouts, self.forwarded = list(outcomes), [], []
        self.now = 100.0
        monkeypatch.setattr(daemon_link.signal, "sigtimedwait", self.wait)
        monkeypatch.setattr(daemon_link.os, "waitpid", self.waitpid)
        monkeypatch.setattr(daemon_link, "forward", lambda child, one: self.forwarded.append((child, one.si_signo)))
        monkeypatch.setattr(daemon_link.time, "monotonic", lambda: self.now)

    def wait(self, waited_for, timeout):
        assert waited_for == WAITED_FOR
        self.timeouts.append(timeout)
        number = self.outcomes.pop(0)
        return None if number is None else caught(number)

    def waitpid(self, child, flags):
        assert flags == os.WNOHANG
        return (0, 0) if self.outcomes else (child, 256)


class Linked:
    def __init__(self, retry_at=None) -> None:
        self.retry_at, self.did = retry_at, []

    def reap(self) -> None:
        self.did.append("reap")

    def read(self) -> None:
        self.did.append("read")

    def retry(self) -> None:
        self.did.append("retry")
        self.retry_at = None


def test_without_a_daemon_the_wrapper_waits_for_the_program_alone(monkeypatch):
    waits = Waits(monkeypatch, signal.SIGTERM, signal.SIGIO, signal.SIGCHLD)
    assert wait_for(7, None) == 256
    assert waits.forwarded == [(7, signal.SIGTERM)], "SIGIO and SIGCHLD are for the wrapper"
    assert waits.timeouts == [daemon_link.FOREVER] * 3


def test_after_any_signal_everything_is_looked_at(monkeypatch):
    link = Linked()
    Waits(monkeypatch, signal.SIGWINCH, None, signal.SIGCHLD)
    assert wait_for(7, link) == 256
    assert link.did == ["reap", "read"] * 2, "not once the program has ended"


def test_the_daemon_is_looked_for_when_it_is_time(monkeypatch):
    link = Linked(retry_at=103.0)
    waits = Waits(monkeypatch, signal.SIGIO, None, signal.SIGCHLD)
    real = waits.wait

    def wait(waited_for, timeout):
        if len(waits.timeouts) == 1:
            waits.now = 103.0
        return real(waited_for, timeout)

    monkeypatch.setattr(daemon_link.signal, "sigtimedwait", wait)
    assert wait_for(7, link) == 256
    assert waits.timeouts == [3.0, 3.0, daemon_link.FOREVER]
    assert link.did == ["reap", "read", "reap", "read", "retry"]


def test_a_time_that_has_passed_is_no_negative_wait(monkeypatch):
    waits = Waits(monkeypatch, signal.SIGCHLD)
    wait_for(7, Linked(retry_at=99.0))
    assert waits.timeouts == [0.0]


# ---- last words -------------------------------------------------------------------------------------------


class Stream:
    """Notices that come at their time; then it ends, or stays open."""

    def __init__(self, *batches, ends=True) -> None:
        self.batches, self.ends = list(batches), ends
        self.ended = False
        self.pipe = os.pipe()
        if batches or ends:
            os.write(self.pipe[1], b"x")

    def fileno(self) -> int:
        return self.pipe[0]

    def read(self):
        batch = self.batches.pop(0) if self.batches else []
        self.ended = self.ends and not self.batches
        return batch

    def close(self) -> None:
        self.closed = True


def link_of(stream, *, killed=None) -> tuple[daemon_link.Link, list[str]]:
    said: list[str] = []
    client = SimpleNamespace(
        set_main=lambda _job, _child: None,
        events=lambda _job: stream,
        end=lambda job, code, number: {"job": {"id": job}, "outcome": {"killed": killed}},
    )
    node = SimpleNamespace(client=lambda _timeout: client, starter=None, runtime=None)

    def say(text: str, *, level: int) -> None:
        assert level == 0
        said.append(text)

    return daemon_link.Link(node, {"id": "1"}, os.getpid(), dict, say), said


STOPPED = {"kind": "stopped", "text": "stopped by alice"}


@pytest.mark.parametrize(
    ("status", "killed", "told"),
    [
        (15, None, ["stopped by alice"]),
        (9, None, ["stopped by alice"]),
        (2, None, []),
        (0, None, []),
        (15, {"code": "breach"}, []),
    ],
)
def test_only_after_an_end_by_a_signal_of_a_stop_is_its_notice_waited_for(monkeypatch, status, killed, told):
    monkeypatch.setattr(daemon_link, "watch", lambda _events: None)
    stream = Stream([], [], [STOPPED])  # read when it is opened, when the program has ended, and then
    link, said = link_of(stream, killed=killed)
    link.end(status)
    assert said == told and link.stopped is bool(told)


def test_a_stream_without_last_words_is_not_waited_for_long(monkeypatch):
    monkeypatch.setattr(daemon_link, "watch", lambda _events: None)
    monkeypatch.setattr(daemon_link, "LAST_WORDS", 0.02)
    stream = Stream(ends=False)
    link, said = link_of(stream)
    assert link.end(15) == {"killed": None} and said == [] and stream.closed


def test_last_words_are_waited_for_half_a_second_in_all(monkeypatch):
    monkeypatch.setattr(daemon_link, "watch", lambda _events: None)
    link, _ = link_of(Stream(ends=False))
    now, waits = [100.0], []

    def select(_readers, _writers, _errors, left):
        waits.append(left)
        now[0] += 0.2
        return [[link._events] if len(waits) < 9 else []]

    monkeypatch.setattr(daemon_link, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(daemon_link, "select", SimpleNamespace(select=select))
    link.end(15)
    assert waits == pytest.approx([0.5, 0.3, 0.1])


def test_who_is_beside_the_program_is_looked_after_and_ended(monkeypatch):
    monkeypatch.setattr(daemon_link, "watch", lambda _events: None)
    link, _ = link_of(Stream([], ends=False))
    did = []
    link._followers.append(
        SimpleNamespace(look_after=lambda: did.append("looked after"), end=lambda: did.append("ended"))
    )
    link.reap()
    link.node.starter = SimpleNamespace(reap=lambda: did.append("reaped"))
    link.reap()
    link.end(0)
    assert did == ["looked after", "reaped", "looked after", "ended"]


def test_notices_raise_a_signal_in_this_process():
    import fcntl
    import socket

    ours, theirs = socket.socketpair()
    came: list[int] = []
    before = signal.signal(signal.SIGIO, lambda number, _: came.append(number))  # any thread may get it
    try:
        daemon_link.watch(ours)
        flags = fcntl.fcntl(ours, fcntl.F_GETFL)
        assert flags & os.O_ASYNC and flags & os.O_ACCMODE == os.O_RDWR
        theirs.send(b"x")
        end = time.monotonic() + 10
        while not came and time.monotonic() < end:
            time.sleep(0.01)
        assert came == [signal.SIGIO] * len(came) and came
    finally:
        ours.close()
        theirs.close()
        time.sleep(0.05)
        signal.signal(signal.SIGIO, before)
