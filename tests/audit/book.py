"""The account that a job under audit keeps of itself, in a file that its processes and the auditor share.

Each process has a slot. It reserves an amount there before it asks the driver for it, and takes it out after the
driver has taken it back; so the sum of all slots is never less than what the job has. The lock is the kernel's
(fcntl), which ends with the process that holds it, and no kill leaves it behind.

All amounts are bytes, all times nanoseconds of CLOCK_MONOTONIC, which is one clock for all processes.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROCESSES = 16
GPUS = 2
THREADS = 4
KINDS = ("linear", "pool", "vmm", "managed", "context")
OUTCOMES = (
    "within",
    "loan",
    "no_loan",
    "failed",
)  # granted within the request, granted above it, refused above, failed
BUCKETS = 256
BUCKETS_PER_OCTAVE = 8
LOG_BYTES = 256 << 10  # a job writes no more than this about itself

EMPTY, ALIVE, DEAD = 0, 1, 2


class Header(ctypes.Structure):
    _fields_ = (
        ("quit", ctypes.c_uint64),
        ("request", ctypes.c_uint64),  # the lowest that may be in force: the auditor lowers it before, raises it after
        ("limit", ctypes.c_uint64),  # the highest that may be in force
        ("cap", ctypes.c_uint64),  # what the program may reserve, its contexts included
        ("context", ctypes.c_uint64),  # what a context takes of a GPU
        ("reserved_above", ctypes.c_uint64 * GPUS),  # when the reserved sum was last above the request
        ("held_above", ctypes.c_uint64 * GPUS),  # when the driver had last given more than the request
        ("terms", ctypes.c_uint64),  # how many SIGTERM the main process has had
        ("finished", ctypes.c_uint64),  # 1: the program ended by itself
    )


class Flight(ctypes.Structure):
    """A call of the driver that has not returned; `since` is 0 if there is none."""

    _fields_ = (
        ("since", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("gpu", ctypes.c_uint64),
        ("kind", ctypes.c_uint64),
        ("within", ctypes.c_uint64),
    )


class Slot(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint64),
        ("state", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64 * GPUS),
        ("highest", ctypes.c_uint64 * GPUS),  # the most that was reserved since the auditor began to watch
        ("held", ctypes.c_uint64 * GPUS),
        ("flights", Flight * THREADS),
    )


class Figures(ctypes.Structure):
    _fields_ = (
        ("outcomes", (ctypes.c_uint64 * len(OUTCOMES)) * len(KINDS)),
        ("waits", ctypes.c_uint64 * BUCKETS),  # of allocations granted within the request, by their duration
        ("longest", ctypes.c_uint64),
    )


class Contents(ctypes.Structure):
    _fields_ = (("header", Header), ("slots", Slot * PROCESSES), ("figures", Figures * PROCESSES))


def bucket_of(duration: int) -> int:
    """The bucket of a duration: eight to each doubling, from 1 us on."""
    microseconds = max(1, duration // 1000)
    octave = microseconds.bit_length() - 1
    fraction = (microseconds - (1 << octave)) * BUCKETS_PER_OCTAVE >> octave
    return min(BUCKETS - 1, octave * BUCKETS_PER_OCTAVE + fraction)


def bucket_end(bucket: int) -> int:
    """The longest duration of a bucket, in nanoseconds."""
    octave, fraction = divmod(bucket, BUCKETS_PER_OCTAVE)
    return ((1 << octave) * (BUCKETS_PER_OCTAVE + fraction + 1) * 1000) // BUCKETS_PER_OCTAVE


class Book:
    """One job's account. `place` is the number of this process's slot; the auditor has none."""

    def __init__(self, path: Path, place: int = 0) -> None:
        self.path = path
        self.place = place
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.memory = mmap.mmap(self.fd, ctypes.sizeof(Contents))
        self.contents = Contents.from_buffer(self.memory)
        self.header: Header = self.contents.header
        self.threads = threading.Lock()
        self.log_fd = os.open(path.with_suffix(".log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @classmethod
    def make(cls, path: Path, request: int, limit: int, cap: int, context: int) -> Book:
        with path.open("xb") as file:
            file.truncate(ctypes.sizeof(Contents))
        book = cls(path)
        header = book.header
        header.request, header.limit, header.cap, header.context = request, limit, cap, context
        return book

    def move(self, place: int) -> None:
        """Become another process of the job, after a fork."""
        self.place = place
        self.threads = threading.Lock()
        self.enter(place, os.getpid())

    def enter(self, place: int, pid: int) -> None:
        slot = self.contents.slots[place]
        slot.pid = pid
        slot.state = ALIVE

    @property
    def slot(self) -> Slot:
        return self.contents.slots[self.place]  # type: ignore[no-any-return]

    @property
    def figures(self) -> Figures:
        return self.contents.figures[self.place]  # type: ignore[no-any-return]

    @contextmanager
    def lock(self) -> Iterator[None]:
        with self.threads:
            fcntl.lockf(self.fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def try_lock(self) -> bool:
        """For the auditor, which must never wait for a process that it has stopped itself."""
        try:
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def unlock(self) -> None:
        fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def reserved(self, gpu: int) -> int:
        return sum(slot.reserved[gpu] for slot in self.contents.slots)

    def held(self, gpu: int) -> int:
        return sum(slot.held[gpu] for slot in self.contents.slots)

    def in_flight(self) -> Iterator[tuple[Slot, Flight]]:
        for slot in self.contents.slots:
            for flight in slot.flights:
                if slot.state == ALIVE and flight.since:
                    yield slot, flight

    # -- what a program does -----------------------------------------------------------------------------------

    def reserve(self, gpu: int, size: int, most: int) -> bool | None:
        """Reserve `size`; None if the sum would be above `most`, else whether it is within the request."""
        with self.lock():
            total = self.reserved(gpu) + size
            if total > most:
                return None
            slot = self.slot
            slot.reserved[gpu] += size
            slot.highest[gpu] = max(slot.highest[gpu], slot.reserved[gpu])
            within = total <= self.header.request
            if not within:
                self.header.reserved_above[gpu] = time.monotonic_ns()
            return within

    def release(self, gpu: int, size: int) -> None:
        """Take out of the book what the driver has taken back, or refused."""
        with self.lock():
            if self.reserved(gpu) > self.header.request:
                self.header.reserved_above[gpu] = time.monotonic_ns()
            self.slot.reserved[gpu] -= size

    def received(self, gpu: int, size: int) -> dict[int, int]:
        """The driver has given `size`. Returns what each process of the job holds now at least, by pid."""
        with self.lock():
            self.slot.held[gpu] += size
            self._note_held(gpu)
            return {int(slot.pid): int(slot.held[gpu]) for slot in self.contents.slots if slot.held[gpu]}

    def returning(self, gpu: int, size: int) -> None:
        """`size` is about to be given back to the driver."""
        with self.lock():
            self._note_held(gpu)
            self.slot.held[gpu] -= size

    def _note_held(self, gpu: int) -> int:
        held = self.held(gpu)
        if held > self.header.request:
            self.header.held_above[gpu] = time.monotonic_ns()
        return held

    def count(self, kind: int, outcome: str, duration: int) -> None:
        figures = self.figures
        figures.outcomes[kind][OUTCOMES.index(outcome)] += 1
        if outcome == "within":
            figures.waits[bucket_of(duration)] += 1
            figures.longest = max(figures.longest, duration)

    def write(self, **fact: Any) -> None:
        """Add a fact to the job's log: one line of JSON, whole even if several processes write."""
        if os.fstat(self.log_fd).st_size < LOG_BYTES:
            os.write(self.log_fd, (json.dumps({"pid": os.getpid()} | fact) + "\n").encode())

    # -- what the auditor does ---------------------------------------------------------------------------------

    def watch(self, gpu: int) -> bool:
        """From now on `highest` is what each process had at most. False: a process has the lock now."""
        if not self.try_lock():
            return False
        for slot in self.contents.slots:
            slot.highest[gpu] = slot.reserved[gpu]
        self.unlock()
        return True

    def highest(self, gpu: int) -> int:
        """No less than the driver can have shown since watch(), although its figures are of different moments."""
        return sum(slot.highest[gpu] for slot in self.contents.slots)

    def facts(self, offset: int) -> tuple[list[dict[str, Any]], int]:
        """The facts written since `offset`, and the next offset."""
        with self.path.with_suffix(".log").open("rb") as file:
            file.seek(offset)
            text = file.read()
        whole = text.rfind(b"\n") + 1
        return [json.loads(line) for line in text[:whole].splitlines()], offset + whole

    def clear(self, place: int) -> None:
        """The driver shows nothing of this dead process any more: what it reserved is free for the others."""
        ctypes.memset(ctypes.byref(self.contents.slots[place]), 0, ctypes.sizeof(Slot))

    def close(self, delete: bool) -> None:
        del self.contents, self.header, self.memory  # unmapped with the last that refers to it
        os.close(self.fd)
        os.close(self.log_fd)
        if delete:
            self.path.unlink(missing_ok=True)
            self.path.with_suffix(".log").unlink(missing_ok=True)
