"""A daemon for tests that speaks wire.h and decides nothing by itself.

It is written from the headers with `struct`, not with the product's own view of them, so that a mistake in one is
not repeated in the other. Atomic changes of a word are made by the functions of credit.h, compiled by the fixture.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

UNIT = 512
FRAME = 512
MAGIC = 0x77737067
PAGE_MAGIC = 0x6572616873757067
HELLO, WELCOME, ATTACH, ASK, DETACH, ANSWER, TRIMMED = range(1, 8)
OK, OVER_LIMIT, NOT_FREE, TIMED_OUT, NOT_ADMITTED, NOT_ALLOWED, UNKNOWN, BAD_FRAME, SHUTTING_DOWN = range(9)
BARE = 100
"""For Policy.decide: answered OK, and no credit came."""
HAS_PAGE = 1
DRIVER_FAILED = 1

HEADER = struct.Struct("<IHHII")
HELLO_BODY = struct.Struct("<QQIIQIIQIIiI64sII")
WELCOME_BODY = struct.Struct("<QQII384s")
ATTACH_BODY = struct.Struct("<16sQI")
ASK_BODY = struct.Struct("<QIIQI")
ANSWER_BODY = struct.Struct("<IIQ384sI")
PAGE_HEADER = struct.Struct("<QIIQQQIIiI48s")
LINE_AT, LINE_BYTES = 128, 128
TRIM_ASKED, TRIM_READY, TRIM_BEGUN, TRIM_DONE, TRIM_MS = range(104, 124, 4)
LINE_TRIMMED, LINE_ASKING, LINE_UNMET, LINE_TRIM_UNITS = 36, 40, 44, 124
SYS_FUTEX = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
FUTEX_WAKE = 1


def wait_until(condition: Callable[[], object], what: str, patience: float = 10) -> None:
    until = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < until, f"waited {patience} s for {what}"
        time.sleep(0.001)


class Page:
    """A credit page, from the daemon's side."""

    def __init__(self, fd: int, ops: ctypes.CDLL) -> None:
        self.fd, self.ops = fd, ops
        self.map = mmap.mmap(fd, 4096)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.uuids: list[bytes] = []

    @classmethod
    def create(cls, page_id: int, ops: ctypes.CDLL) -> Page:
        fd = os.memfd_create(f"page-{page_id:x}", os.MFD_CLOEXEC)
        os.truncate(fd, 4096)
        page = cls(fd, ops)
        page.map[: PAGE_HEADER.size] = PAGE_HEADER.pack(PAGE_MAGIC, 1, 4096, page_id, 7, 0, 0, 0, 0, 0, b"fake")
        return page

    @property
    def id(self) -> int:
        return struct.unpack_from("<Q", self.map, 16)[0]

    def _line(self, line: int) -> int:
        return LINE_AT + line * LINE_BYTES

    def attach(self, uuid: bytes, limit: int, request: int, overhead: int = 0) -> int:
        if uuid not in self.uuids:
            self.uuids.append(uuid)
        line = self.uuids.index(uuid)
        at = self._line(line)
        struct.pack_into("<QQQQ", self.map, at + 64, 0, limit // UNIT, request // UNIT, overhead // UNIT)
        self.map[at + 104 : at + 120] = uuid
        struct.pack_into("<I", self.map, at + 120, 1)
        return line

    def word(self, line: int = 0) -> tuple[int, int]:
        """(used, credit) in bytes."""
        word = struct.unpack_from("<Q", self.map, self._line(line))[0]
        return (word >> 32) * UNIT, (word & 0xFFFFFFFF) * UNIT

    def counts(self, line: int = 0) -> dict[str, int]:
        names = ("peak", "refusals", "contexts", "managed", "ipc", "vmm_export", "multicast")
        return dict(zip(names, struct.unpack_from("<7I", self.map, self._line(line) + 8), strict=True))

    def grant(self, size: int, line: int = 0) -> None:
        self.ops.grant(ctypes.c_void_p(self.base + self._line(line)), ctypes.c_uint32(size // UNIT))

    def revoke(self, size: int, line: int = 0) -> int:
        return self.ops.revoke(ctypes.c_void_p(self.base + self._line(line)), ctypes.c_uint32(size // UNIT)) * UNIT

    def _number(self, at: int) -> int:
        return struct.unpack_from("<I", self.map, at)[0]

    @property
    def trim_ready(self) -> int:
        return self._number(TRIM_READY)

    @property
    def trim_begun(self) -> int:
        return self._number(TRIM_BEGUN)

    @property
    def trim_done(self) -> int:
        return self._number(TRIM_DONE)

    def asking(self, line: int = 0) -> int:
        return self._number(self._line(line) + LINE_ASKING)

    def unmet(self, line: int = 0) -> int:
        return self._number(self._line(line) + LINE_UNMET)

    def trimmed(self, line: int = 0) -> int:
        return self._number(self._line(line) + LINE_TRIMMED) * UNIT

    def ask_for_trim(self, *sizes: int, within_ms: int = 0, wake: bool = True) -> int:
        """Bytes wanted of each line; the number of this trim."""
        for line, size in enumerate(sizes):
            struct.pack_into("<I", self.map, self._line(line) + LINE_TRIM_UNITS, size // UNIT)
        number = self._number(TRIM_ASKED) + 1
        struct.pack_into("<I", self.map, TRIM_MS, within_ms)
        struct.pack_into("<I", self.map, TRIM_ASKED, number)
        if wake:
            word = ctypes.c_void_p(self.base + TRIM_ASKED)
            ctypes.CDLL(None).syscall(SYS_FUTEX, word, FUTEX_WAKE, 2**31 - 1, None, None, 0)
        return number

    def trim(self, *sizes: int, within_ms: int = 0, patience: float = 10) -> float:
        """Ask for a trim and wait until it is done; how long that took."""
        began = time.monotonic()
        number = self.ask_for_trim(*sizes, within_ms=within_ms)
        self.await_trim(number, patience)
        return time.monotonic() - began

    def await_trim(self, number: int, patience: float = 10) -> None:
        wait_until(lambda: self.trim_done == number, f"trim {number} to be done", patience)

    def await_ready(self) -> None:
        wait_until(lambda: self.trim_ready == 1, "somebody to wait for trims")

    def publish(self, grantable: int, line: int = 0) -> None:
        struct.pack_into("<Q", self.map, self._line(line) + 64, grantable // UNIT)


@dataclass
class Seen:
    """A frame from a process."""

    type: int
    seq: int
    body: bytes
    page: Page | None
    bytes: int = 0
    line: int = 0
    flags: int = 0
    ticket: int = 0
    contexts: int = 0


@dataclass
class Policy:
    """What the daemon answers. Tests change it while it runs."""

    limit: int = 8 * 2**30
    request: int = 4 * 2**30
    overhead: int = 0
    chunk: int = 0
    """Credit is granted in multiples of this."""
    patience_ms: int = 30000
    welcome: int = OK
    knows_by_pid: bool = True
    """A process that presents its page without its descriptor."""
    attach: int = OK
    index: int | None = 0
    """Of the GPU on the node, as an answer to ATTACH tells it; None: a daemon that does not tell it."""
    text: str = ""
    decide: Callable[[Seen], int | None] | None = None
    """None: within the limit. Else the status of an ASK; a None from it: no answer at all."""


@dataclass
class FakeDaemon:
    directory: Path
    ops: ctypes.CDLL
    policy: Policy = field(default_factory=Policy)
    pages: dict[int, Page] = field(default_factory=dict)
    frames: list[Seen] = field(default_factory=list)
    hellos: list[tuple] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = self.directory / "shim.sock"
        self.connections: list[socket.socket] = []
        self.next_page = 100
        self.lock = threading.Lock()
        self.listener: socket.socket | None = None

    def start(self) -> FakeDaemon:
        self.path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.path))
        self.listener.listen(64)
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()
        return self

    def stop(self) -> None:
        """As a daemon that is killed: the connections end, the pages stay."""
        if self.listener is not None:
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
            self.listener = None
        self.path.unlink(missing_ok=True)
        with self.lock:
            gone, self.connections = self.connections, []
        for connection in gone:
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    @property
    def page(self) -> Page:
        """The page of the only process."""
        (page,) = self.pages.values()
        return page

    def asks(self, kind: int = ASK) -> list[Seen]:
        return [frame for frame in self.frames if frame.type == kind]

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self.lock:
                self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        page: Page | None = None
        while True:
            try:
                data, ancillary, _, _ = connection.recvmsg(FRAME, 1024)
            except OSError:
                return
            if not data:
                return
            magic, version, kind, size, seq = HEADER.unpack_from(data)
            assert (magic, version, size, len(data)) == (MAGIC, 1, FRAME, FRAME)
            if kind == HELLO:
                page = self._welcome(connection, seq, data[16:], ancillary)
                continue
            frame = Seen(kind, seq, data[16:], page)
            self.frames.append(frame)
            threading.Thread(target=self._answer, args=(connection, frame), daemon=True).start()

    def _welcome(self, connection: socket.socket, seq: int, body: bytes, ancillary: list) -> Page | None:
        hello = HELLO_BODY.unpack_from(body)
        self.hellos.append(hello)
        page_id, flags = hello[1], hello[2]
        passed = []
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(data)
                passed += list(fds)
        page = None
        fresh = False
        if self.policy.welcome == OK:
            if flags & HAS_PAGE and (passed or self.policy.knows_by_pid):
                page = self.pages[page_id]
                for presented in passed:
                    assert os.fstat(presented).st_ino == os.fstat(page.fd).st_ino
            else:
                assert not passed
                with self.lock:
                    self.next_page += 1
                    page = self.pages[self.next_page] = Page.create(self.next_page, self.ops)
                fresh = True
        for fd in passed:
            os.close(fd)
        answer = WELCOME_BODY.pack(
            page.id if page else 0, 7, self.policy.welcome, self.policy.patience_ms, self.policy.text.encode()
        )
        frame = (HEADER.pack(MAGIC, 1, WELCOME, FRAME, seq) + answer).ljust(FRAME, b"\0")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", page.fd))] if page and fresh else []
        with contextlib.suppress(OSError):  # the test may have ended the connection meanwhile
            connection.sendmsg([frame], rights)
        return page

    def _answer(self, connection: socket.socket, frame: Seen) -> None:
        status, line, granted = OK, 0, 0
        page = frame.page
        assert page is not None
        if frame.type == ATTACH:
            uuid, _total, frame.contexts = ATTACH_BODY.unpack_from(frame.body)
            status = self.policy.attach
            if status == OK:
                line = page.attach(uuid, self.policy.limit, self.policy.request, self.policy.overhead)
        elif frame.type == ASK:
            frame.bytes, line, frame.flags, _, frame.ticket = ASK_BODY.unpack_from(frame.body)
            frame.line = line
            outcome = self.policy.decide(frame) if self.policy.decide else self._within_limit(frame)
            if outcome is None:
                return
            status = OK if outcome == BARE else outcome
            if outcome != BARE and status == OK and not frame.flags & DRIVER_FAILED:
                granted = frame.bytes
                if self.policy.chunk:
                    granted = -(-granted // self.policy.chunk) * self.policy.chunk
                room = self.policy.limit - page.word(line)[1]
                page.grant(max(min(granted, room), frame.bytes), line)
        self._send(connection, frame.seq, status, line, granted, attached=frame.type == ATTACH)

    def _within_limit(self, frame: Seen) -> int:
        assert frame.page is not None
        _used, credit = frame.page.word(frame.line)
        return OK if credit + frame.bytes <= self.policy.limit else OVER_LIMIT

    def _send(
        self, connection: socket.socket, seq: int, status: int, line: int, granted: int, *, attached: bool = False
    ) -> None:
        text = self.policy.text.encode() if status != OK else b""
        told = attached and self.policy.index is not None
        body = ANSWER_BODY.pack(status, line, granted, text, self.policy.index + 1 if told else 0)
        frame = (HEADER.pack(MAGIC, 1, ANSWER, FRAME, seq) + body).ljust(FRAME, b"\0")
        with contextlib.suppress(OSError):  # the test may have ended the connection meanwhile
            connection.send(frame)
