"""What shims ask, a method for each type of frame.

Shims are other people's programs. Whatever they send, the answer is GS_BAD_FRAME or a closed connection.
"""

from __future__ import annotations

import time
from typing import Any

from gpushare._layout import ffi, lib
from gpushared.clients.clients import Client
from gpushared.clients.pages import cut
from gpushared.core import instructions as do
from gpushared.core.events import AskCancelled, AttachAsked, CreditAsked
from gpushared.runtime.shell import Shell
from gpushared.shims.connection import Connection, PendingHandshakes
from gpushared.shims.frames import (
    ASK,
    ATTACH,
    BAD_FRAME,
    DETACH,
    DRIVER_FAILED,
    FAILED_AGAIN,
    FRAME_BYTES,
    HEADER,
    HELLO,
    MAGIC,
    OK,
    OLDEST,
    STATUS,
    TEXT_BYTES,
    TRIMMED,
    UNKNOWN,
    VERSION,
    WELCOME,
)
from gpushared.shims.handshake import Handshake
from gpushared.shims.outbox import Outbox, send_with_page
from gpushared.system.logs import Sparingly, facts, log

NOTICEABLE = 0.001
"""Seconds: an ask that waited no longer keeps no place for the next one of its allocation."""
STRIKES = 8
"""Bad frames until a connection is closed."""


class Requests:
    """Answers the frames of shims."""

    def __init__(self, shell: Shell, handshake: Handshake, pending: PendingHandshakes, outbox: Outbox) -> None:
        self.shell = shell
        self.handshake = handshake
        self._pending = pending
        self._outbox = outbox
        self._sparingly = Sparingly()
        self._look_again = Sparingly(5.0)

    def complain(self, uid: int, why: str, pid: int = 0) -> None:
        """Log that a client is not served. A few lines for each user, not for each cause: a client could make up any
        number of causes."""
        left_out = self._sparingly.allow(uid)
        if left_out is not None:
            log.warning("a client is not understood", extra=facts(why=why, uid=uid, pid=pid, more=left_out))

    def cancel_asks(self, connection: Connection) -> None:
        """The connection is closed: nothing is answered any more. Its client's waits count for asks that it repeats."""
        asks, connection.asks = connection.asks, {}
        for ask, (ticket, since) in asks.items():
            self.shell.core_loop.asks.drop(ask)
            if connection.client is not None:
                connection.client.remember_wait(ticket, time.monotonic() - since)
        for ask in asks:
            self.shell.feed(AskCancelled(ask))  # after all are dropped: it may answer the next of them

    def handle(self, connection: Connection, frame: Any, size: int, descriptors: list[int]) -> None:
        try:
            self._handle(connection, frame, size, descriptors)
        except Exception:
            self.shell.core_loop.errors += 1
            log.exception("a frame could not be handled", extra=facts(pid=connection.peer.pid))
            connection.close()

    def _handle(self, connection: Connection, frame: Any, size: int, descriptors: list[int]) -> None:
        connection.expect_answer()
        if size != FRAME_BYTES or frame.magic != MAGIC or frame.size != FRAME_BYTES:
            self._bad(connection, 0, "not a frame", close=True)
            return
        kind, seq = frame.type, frame.seq
        if frame.version < OLDEST:
            self._bad(connection, seq, f"frames of version {frame.version}; this daemon speaks {OLDEST} and later ones")
            return
        client = connection.client
        if client is None:
            if kind == HELLO:
                self._hello(connection, frame, descriptors)
            else:
                self._bad(connection, seq, "the first frame must be HELLO", close=True)
        elif kind == ASK:
            self._ask(connection, client, frame)
        elif kind == ATTACH:
            self._attach(connection, client, frame)
        elif kind == DETACH:
            self._detach(connection, client, frame)
        elif kind == TRIMMED:
            self.shell.trimmed(client)
            self._outbox.reply(connection, seq, OK)
        else:
            # A later library may send a type that this daemon does not know. It is told so, and that is no strike.
            self._bad(connection, seq, f"a frame of type {kind}", strike=frame.version <= VERSION)

    def _bad(self, connection: Connection, seq: int, why: str, *, close: bool = False, strike: bool = True) -> None:
        self.shell.traffic.bad_frames += 1
        self.complain(connection.uid, why, connection.peer.pid)
        connection.strikes += strike
        self._outbox.reply(connection, seq, BAD_FRAME, text=f"the daemon did not understand: {why}")
        if close or connection.strikes >= STRIKES:
            self._outbox.send()
            connection.close()

    # ---- HELLO -------------------------------------------------------------------------------------

    def _hello(self, connection: Connection, frame: Any, descriptors: list[int]) -> None:
        seq = frame.seq
        descriptor = descriptors[0] if descriptors else None
        welcome = self.handshake.welcome(connection.peer, connection.uid, frame.u.hello, descriptor)
        client = welcome.client
        if client is None:
            out = self._outbox.next(connection, WELCOME, seq, text=True)
        else:
            # Before the frame is written: closing an earlier connection may lead to answers to others.
            self._identify(connection, client)
            out = ffi.new("struct gs_frame *", {**HEADER, "type": WELCOME, "seq": seq})
        body = out.u.welcome
        body.page_id, body.job_id = welcome.page_id, welcome.job_id
        body.status, body.patience_ms = welcome.status, welcome.patience_ms
        body.text = cut(welcome.text, TEXT_BYTES - 1)
        if client is not None:
            send_with_page(connection, out, client.page)
            if welcome.new:
                self.handshake.introduce(client)

    def _identify(self, connection: Connection, client: Client) -> None:
        """The connection is this client's from now on."""
        earlier = client.disconnect
        client.disconnect = connection.close
        if earlier is not None:
            earlier()
        connection.client = client
        self._pending.end(connection)
        if connection.peer is not client.process:
            connection.peer.close()
            connection.peer = client.process

    # ---- GPUs and credit ---------------------------------------------------------------------------

    def _attach(self, connection: Connection, client: Client, frame: Any) -> None:
        seq, identity = frame.seq, bytes(ffi.buffer(frame.u.attach.uuid))
        another = bool(frame.u.attach.contexts)
        if identity in self.shell.gpus.by_bytes or self._look_again.allow("") is None:
            self._attach_to(connection, client, seq, identity, another)
            return

        def found() -> None:
            if connection.client is client and connection.fd >= 0:
                self._attach_to(connection, client, seq, identity, another)

        # Perhaps a GPU that has appeared since the start, or a MIG instance.
        self.shell.driver.look_for_gpus(found)

    def _attach_to(self, connection: Connection, client: Client, seq: int, identity: bytes, another: bool) -> None:
        gpu = self.shell.gpus.by_bytes.get(identity)
        reply = self._outbox.reply
        if gpu is None:
            reply(connection, seq, UNKNOWN, text="the daemon does not know this GPU\nhint: see `gpushare status`")
            return

        def answer(done: do.Attached | do.Granted | do.Denied, line: int | None) -> None:
            connection.asks.pop(ask, None)
            if isinstance(done, do.Denied):
                self._deny(connection, seq, done)
            elif line is None:
                self.shell.processes.detached(client, gpu)
                reply(connection, seq, UNKNOWN, text="this process has as many GPUs open as gpushare can count")
            else:
                granted = done.credit if isinstance(done, do.Attached) else 0
                index = self.shell.gpus.infos[gpu].index
                reply(connection, seq, OK, line=line, granted=granted, node_number=index + 1)

        ask = self.shell.core_loop.asks.next_number()
        connection.asks[ask] = 0, time.monotonic()
        self.shell.core_loop.ask(AttachAsked(ask, client.id, gpu, another=another), answer)

    def _ask(self, connection: Connection, client: Client, frame: Any) -> None:
        seq, body = frame.seq, frame.u.ask
        line, size, flags = body.line, body.bytes, body.flags
        gpus = client.page.gpus
        if line >= len(gpus) or size == 0:
            why = f"no line {line}" if size else "an ask for nothing"
            self._bad(connection, seq, why)
            return
        self.shell.traffic.asks += 1

        ticket, asked_at = body.ticket, time.monotonic()
        waited = client.waits.pop(ticket, 0.0) if client.waits else 0.0

        def answer(done: do.Attached | do.Granted | do.Denied, _: int | None) -> None:
            connection.asks.pop(ask, None)
            if isinstance(done, do.Granted):
                wait = waited + time.monotonic() - asked_at
                if wait >= NOTICEABLE:
                    client.remember_wait(ticket, wait)
                self._outbox.reply(connection, seq, OK, line=line, granted=done.size)
            elif isinstance(done, do.Denied):
                self._deny(connection, seq, done, line)

        ask = self.shell.core_loop.asks.next_number()
        connection.asks[ask] = ticket, asked_at - waited
        failed, again = bool(flags & DRIVER_FAILED), bool(flags & FAILED_AGAIN)
        self.shell.core_loop.ask(
            CreditAsked(ask, client.id, gpus[line], size, failed, body.allocation, again, waited), answer
        )

    def _detach(self, connection: Connection, client: Client, frame: Any) -> None:
        seq, line = frame.seq, frame.u.detach.line
        if line >= len(client.page.gpus):
            self._bad(connection, seq, f"no line {line}")
            return
        self.shell.processes.detached(client, client.page.gpus[line])
        self._outbox.reply(connection, seq, OK, line=line)

    def _deny(self, connection: Connection, seq: int, denied: do.Denied, line: int = 0) -> None:
        status = STATUS.get(denied.reason.code, int(lib.GS_NOT_FREE))
        told = self.handshake.access.viewer(connection.uid).told(denied.reason)
        self._outbox.reply(connection, seq, status, line=line, text=told.render())
