"""A shim in Python: speaks the frames of shim/wire.h and uses its page as a process does. For tests and benchmarks."""

from __future__ import annotations

import mmap
import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare._layout import ffi, lib

MIB = 2**20
GIB = 2**30


@dataclass(frozen=True)
class Answer:
    status: int
    line: int
    granted: int
    text: str
    seq: int


@dataclass(frozen=True)
class Welcome:
    status: int
    page_id: int
    job_id: int
    patience_ms: int
    text: str


def amount(value: int | str | None) -> dict[str, int]:
    """None: not said; "max"; a share as text ("0.5"); bytes as a number."""
    if value is None:
        return {"kind": lib.GS_AMOUNT_UNSET}
    if value == "max":
        return {"kind": lib.GS_AMOUNT_MAX}
    if isinstance(value, str):
        return {"kind": lib.GS_AMOUNT_SHARE, "value": int(float(value) * 10**9)}
    return {"kind": lib.GS_AMOUNT_BYTES, "value": value}


class ShimClient:
    """One connection, and the page behind it."""

    def __init__(self, path: Path, timeout: float = 10.0) -> None:
        self._connect(path, timeout)
        self.seq = 0
        self.page: Any = None
        self.page_fd = -1
        self.map: mmap.mmap | None = None
        self.page_id = 0

    # frames

    def frame(self, kind: int, **body: Any) -> Any:
        self.seq += 1
        return ffi.new(
            "struct gs_frame *",
            {
                "magic": lib.GS_WIRE_MAGIC,
                "version": lib.GS_WIRE_VERSION,
                "type": kind,
                "size": lib.GS_FRAME_BYTES,
                "seq": self.seq,
                "u": body,
            },
        )

    def send(self, frame: Any, fds: list[int] | None = None) -> int:
        if fds:
            socket.send_fds(self.sock, [bytes(ffi.buffer(frame))], fds)
        else:
            self.sock.send(ffi.buffer(frame))
        return int(frame.seq)

    def receive(self) -> Any:
        data = self.sock.recv(4096)
        if not data:
            raise EOFError("the daemon has closed the connection")
        assert len(data) == lib.GS_FRAME_BYTES
        frame = ffi.new("struct gs_frame *")
        ffi.memmove(frame, data, len(data))
        assert frame.magic == lib.GS_WIRE_MAGIC
        return frame

    def answer(self) -> Answer:
        frame = self.receive()
        assert frame.type == lib.GS_ANSWER, frame.type
        body = frame.u.answer
        return Answer(body.status, body.line, body.granted, ffi.string(body.text).decode(), frame.seq)

    # calls

    def hello(
        self,
        job: str | None = None,
        request: int | str | None = None,
        limit: int | str | None = None,
        name: str = "test",
        present: bool = False,
        grace_ms: int = 0,
        priority: int = 0,
        *,
        descriptor: bool = True,
        page: int | None = None,
    ) -> Welcome:
        """`present`: the page, with its descriptor or without; `page`: another than its own."""
        body = {
            "job_id": int(job, 16) if job else 0,
            "pid": os.getpid(),
            "request": amount(request),
            "limit": amount(limit),
            "name": name.encode(),
            "grace_ms": grace_ms,
            "priority": priority,
        }
        if present:
            body |= {"flags": lib.GS_HELLO_HAS_PAGE, "page_id": self.page_id if page is None else page}
        self.send(self.frame(lib.GS_HELLO, hello=body), [self.page_fd] if present and descriptor else None)
        data, fds, _, _ = socket.recv_fds(self.sock, 4096, 4)
        for fd in fds:
            os.set_inheritable(fd, False)  # recv_fds of Python 3.11 does not pass its flags on
        assert len(data) == lib.GS_FRAME_BYTES, len(data)
        frame = ffi.new("struct gs_frame *")
        ffi.memmove(frame, data, len(data))
        body = frame.u.welcome
        if frame.type == lib.GS_ANSWER:
            body = frame.u.answer
            return Welcome(body.status, 0, 0, 0, ffi.string(body.text).decode())
        assert frame.type == lib.GS_WELCOME
        welcome = Welcome(body.status, body.page_id, body.job_id, body.patience_ms, ffi.string(body.text).decode())
        if fds and welcome.page_id != self.page_id:
            self._map(fds[0], welcome.page_id)
        else:
            for fd in fds:
                os.close(fd)
        return welcome

    def _map(self, fd: int, page_id: int) -> None:
        self.unmap()
        self.page_fd, self.page_id = fd, page_id
        self.map = mmap.mmap(fd, lib.GS_PAGE_BYTES)
        self.view = ffi.from_buffer("char[]", self.map, require_writable=True)
        self.page = ffi.cast("struct gs_page *", self.view)

    def attach(self, gpu: str, total: int = 16 * GIB) -> Answer:
        """Its context is open as soon as it may be."""
        self.send_attach(gpu, total)
        answer = self.answer()
        if answer.status == lib.GS_OK:
            self.line(answer.line).contexts += 1
        return answer

    def send_attach(self, gpu: str, total: int = 16 * GIB) -> int:
        identity = uuid.UUID(gpu.split("-", 1)[1]).bytes
        return self.send(self.frame(lib.GS_ATTACH, attach={"uuid": identity, "total": total}))

    def ask(self, size: int, line: int = 0, flags: int = 0) -> Answer:
        self.send_ask(size, line, flags)
        return self.answer()

    def send_ask(self, size: int, line: int = 0, flags: int = 0) -> int:
        return self.send(self.frame(lib.GS_ASK, ask={"bytes": size, "line": line, "flags": flags}))

    def detach(self, line: int = 0) -> Answer:
        if line < lib.GS_PAGE_LINES:
            self.line(line).contexts = 0
        self.send(self.frame(lib.GS_DETACH, detach={"line": line}))
        return self.answer()

    # the page, as the process uses it

    def line(self, line: int = 0) -> Any:
        return ffi.addressof(self.page.line[line])

    def word(self, line: int = 0) -> tuple[int, int]:
        """used and credit, bytes"""
        word = lib.gs_word_load(self.line(line))
        return (word >> 32) * 512, (word & 0xFFFFFFFF) * 512

    def allocate(self, size: int, line: int = 0) -> Answer | None:
        """As the shim does: from credit, else ask. None: it went without asking."""
        units = lib.gs_units(size)
        if lib.gs_reserve(self.line(line), units):
            return None
        used, credit = self.word(line)
        answer = self.ask(size - (credit - used), line)
        if answer.status == lib.GS_OK:
            assert lib.gs_reserve(self.line(line), units)
        return answer

    def free(self, size: int, line: int = 0) -> None:
        lib.gs_release(self.line(line), lib.gs_units(size))

    # the end

    def unmap(self) -> None:
        if self.map is not None:
            self.page = None
            ffi.release(self.view)
            self.map.close()
            os.close(self.page_fd)
            self.map, self.page_fd = None, -1

    def disconnect(self) -> None:
        self.sock.close()

    def reconnect(self, path: Path, timeout: float = 10.0) -> None:
        self.sock.close()
        self._connect(path, timeout)

    def _connect(self, path: Path, timeout: float) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.sock.connect(str(path))  # in the queue at the door, if need be
        except OSError:
            self.sock.close()
            raise
        self.sock.settimeout(timeout)

    def close(self) -> None:
        """As a process that ends: the page first, so that the daemon need not look twice whether it is still held."""
        self.unmap()
        self.sock.close()

    def __enter__(self) -> ShimClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
