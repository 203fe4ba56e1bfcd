"""Processes as the kernel knows them: identity, life, and signals that cannot hit the wrong one.

A pid alone is not enough: the kernel uses it again. A process is its pid with its start time (field 22 of
/proc/PID/stat), held by a pidfd from the first contact on. Signals go through the pidfd only, and only to processes
that still belong to the job's user: exec may change that (gpushare/process_owner.py). A pidfd becomes readable when the
whole process has ended, a zombie included. /proc calls a process a zombie as soon as its first thread has ended, so its
state is not used.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path

from gpushare.printable import kept
from gpushare.process_owner import ROOT, may_signal, users_of
from gpushared.system.epoll import Epoll

HEAD = 8192
"""Bytes, more than /proc/PID/stat has, and than the path of a program."""

FLAGS = 6
"""The place of a thread's flags in /proc/PID/stat, counted after its name."""
PF_EXITING = 0x4
"""The flag of a thread that is in its exit (include/linux/sched.h)."""

SO_PEERPIDFD = 77  # Linux 6.5; not in the socket module yet


def _read(path: str) -> bytes | None:
    """The beginning of a file in /proc; None: no such process, or no right to read. Fast: programs that start wait for
    it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, HEAD)
    except OSError:
        return None
    finally:
        os.close(fd)


def _stat_fields(pid: int, thread: str = "") -> list[bytes] | None:
    """The fields after the program's name, which may itself hold blanks and brackets; None: it has gone."""
    text = _read(f"/proc/{pid}{thread}/stat")
    return text[text.rfind(b")") + 2 :].split() if text else None


def _in_exit(pid: int) -> bool:
    """Whether all threads of a process that has not been reaped are in their exit."""
    if not _is_exiting(_stat_fields(pid)):  # the first thread: nearly always this is the answer
        return False
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return False
    found = (_stat_fields(pid, f"/task/{thread.name}") for thread in threads)
    return all(fields is None or _is_exiting(fields) for fields in found)


def _is_exiting(fields: list[bytes] | None) -> bool:
    return fields is not None and len(fields) > FLAGS and bool(int(fields[FLAGS]) & PF_EXITING)


def start_time(pid: int) -> int | None:
    """Clock ticks from boot to the process's start; None: no such process."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields is not None and len(fields) > 19 else None


def parent_of(pid: int) -> int | None:
    fields = _stat_fields(pid)
    return int(fields[1]) if fields is not None and len(fields) > 1 else None


def parent_and_session(pid: int) -> tuple[int, int] | None:
    fields = _stat_fields(pid)
    return (int(fields[1]), int(fields[3])) if fields is not None and len(fields) > 3 else None


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped, by SIGSTOP or by Ctrl-Z at its terminal."""
    fields = _stat_fields(pid)
    return fields is not None and fields[:1] == [b"T"]


def uid_of(pid: int) -> int | None:
    """The real user of the process. Not the owner of /proc/PID: that is root for what may not be dumped."""
    users = users_of(pid)
    return None if users is None else users[0]


def command_of(pid: int) -> str:
    """A short name for people: the program's file name."""
    words = (_read(f"/proc/{pid}/cmdline") or b"").split(b"\0", 1)
    program = printable(words[0].decode(errors="replace").rpartition("/")[2], 40)
    if program:
        return program
    name = (_read(f"/proc/{pid}/comm") or b"").decode(errors="replace").strip()
    return printable(name, 40) or "?"


def printable(text: str, longest: int) -> str:
    """Without control characters, because it is shown on terminals and in logs."""
    return kept(text)[:longest]


def has_mapped(pid: int, name: str) -> bool | None:
    """Whether a file of this (unique) name is in the process's memory; None: cannot tell.

    An empty list is no answer either: the first thread has left, or the process is just ending.
    """
    try:
        maps = Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return None
    return (b"/" + name.encode()) in maps if maps else None


class Sent(Enum):
    """The result of a signal."""

    REACHED = auto()
    GONE = auto()
    """The process has ended."""
    NOT_THEIRS = auto()
    """It belongs to another user now, or the daemon may not signal it: it was not signalled."""

    def __bool__(self) -> bool:
        return self is Sent.REACHED


class Process:
    """One process, from the first contact to its end."""

    __slots__ = ("_epoll", "pid", "pidfd", "start_time")

    def __init__(self, pid: int, pidfd: int, started: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.start_time = started
        self._epoll: Epoll | None = None

    @classmethod
    def open(cls, pid: int, expected_start: int | None = None) -> Process | None:
        """The living process of this pid. None: it has ended, or it is not the one that was expected."""
        try:
            pidfd = os.pidfd_open(pid)
        except (OSError, OverflowError):
            return None
        return cls._checked(pid, pidfd, expected_start)

    @classmethod
    def of_peer(cls, sock: socket.socket) -> Process | None:
        """The process that called connect() on a Unix socket, by the kernel."""
        pid, _, _ = peer_credentials(sock)
        try:
            pidfd = sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        except OSError:
            return cls._of_peer_by_pid(sock, pid)
        os.set_inheritable(pidfd, False)
        return cls._checked(pid, pidfd, None)

    @classmethod
    def _of_peer_by_pid(cls, sock: socket.socket, pid: int) -> Process | None:
        """The peer, on kernels before 6.5. If it is still connected now, the pid was its own when it was opened."""
        process = cls.open(pid)
        if process is None:
            return None
        poll = select.poll()
        poll.register(sock, 0)
        if any(event & select.POLLHUP for _, event in poll.poll(0)):
            process.close()
            return None
        return process

    @classmethod
    def _checked(cls, pid: int, pidfd: int, expected_start: int | None) -> Process | None:
        started = start_time(pid)
        if started is None or _has_ended(pidfd) or expected_start not in (None, started):
            os.close(pidfd)
            return None
        return cls(pid, pidfd, started)

    def alive(self) -> bool:
        return self.pidfd >= 0 and not _has_ended(self.pidfd)

    def is_ending(self) -> bool:
        """It has ended, or all of its threads are in their exit, which lasts while its memory is torn down. It runs no
        program any more, although its pidfd does not tell so yet."""
        return not self.alive() or _in_exit(self.pid)

    def same(self, other: Process) -> bool:
        return self.pid == other.pid and self.start_time == other.start_time

    def send(self, number: signal.Signals, uid: int = ROOT) -> Sent:
        """Signal a process of a job of this user, if it still belongs to the user: it may have executed a setuid
        program. Root's jobs may have processes of any user.

        The pid is not used again before the process has ended, so /proc tells about this process. An exec in the few
        microseconds between the check and the signal is not noticed.
        """
        users, started = users_of(self.pid), start_time(self.pid)
        if not self.alive():
            return Sent.GONE
        if users is None or started != self.start_time or not may_signal(uid, users):
            return Sent.NOT_THEIRS
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return Sent.GONE
        except OSError:
            return Sent.NOT_THEIRS
        return Sent.REACHED

    def watch(self, epoll: Epoll, ended: Callable[[], None]) -> None:
        """Call `ended` once, when the process has ended."""

        def on_end() -> None:
            self.unwatch()
            ended()

        self._epoll = epoll
        epoll.add_reader(self.pidfd, on_end)

    def unwatch(self) -> None:
        if self._epoll is not None and self.pidfd >= 0:
            self._epoll.remove_reader(self.pidfd)
        self._epoll = None

    def close(self) -> None:
        self.unwatch()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.pidfd = -1


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """pid (0: in a PID namespace that this process cannot see), uid, gid of the process that called connect()."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, gid = struct.unpack("3i", data)
    return pid, uid, gid
