"""The shims' end of the line: a SOCK_SEQPACKET listener, one frame a packet (shim/wire.h).

asyncio has no protocol classes for packet sockets, and needs none: in a round of the readers' epoll, a frame of each
connection that is readable is taken, one after the other has its turn of the core, and the answers go out together.
Clients are other people's programs. Whatever they send, the answer is GS_BAD_FRAME or a closed connection; whatever
they do not read waits in their own short queue; and a client that has too much on its way is not listened to until it
has caught up.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from gpushare._layout import ffi, lib
from gpushare.reasons import Code
from gpushared.clients.clients import Client
from gpushared.clients.pages import Page, cut, has_page
from gpushared.core import instructions as do
from gpushared.core.events import AskCancelled, AttachAsked, CreditAsked
from gpushared.runtime.shell import Shell
from gpushared.shims.handshake import Handshake
from gpushared.system.acceptor import Acceptor
from gpushared.system.logs import Sparingly, facts, log
from gpushared.system.processes import Process, peer_credentials

FRAME_BYTES = int(lib.GS_FRAME_BYTES)
TEXT_BYTES = int(lib.GS_TEXT_BYTES)
MAGIC, VERSION, OLDEST = int(lib.GS_WIRE_MAGIC), int(lib.GS_WIRE_VERSION), int(lib.GS_WIRE_OLDEST)
HELLO, WELCOME, ATTACH = int(lib.GS_HELLO), int(lib.GS_WELCOME), int(lib.GS_ATTACH)
ASK, DETACH, ANSWER = int(lib.GS_ASK), int(lib.GS_DETACH), int(lib.GS_ANSWER)
TRIMMED = int(lib.GS_TRIMMED)
HEADER = {"magic": MAGIC, "version": VERSION, "size": FRAME_BYTES}
NO_BODY = bytes(FRAME_BYTES - ffi.offsetof("struct gs_frame", "u"))
OK, BAD_FRAME, UNKNOWN = int(lib.GS_OK), int(lib.GS_BAD_FRAME), int(lib.GS_UNKNOWN)
DRIVER_FAILED, FAILED_AGAIN = int(lib.GS_ASK_DRIVER_FAILED), int(lib.GS_ASK_FAILED_AGAIN)

BACKLOG = 256
"""Who finds it full waits for a place in the order of coming; a longer queue would only be a longer wait."""
ACCEPTS = 64
"""Connections that are accepted in one pass of the loop."""
PER_CONNECTION = 2
"""Descriptors: the socket and a pidfd."""
OUTSTANDING = 256
"""Frames of one connection that are not answered, or whose answers are not sent."""
STRANGERS_PER_UID = 128
"""Connections of one user that have not said HELLO."""
AT_ONCE = 32
"""Frames that are taken, or sent, with one call."""
TOGETHER = 0.0005
"""Seconds that an answer may wait for others, to be sent with them."""
NOTICEABLE = 0.001
"""Seconds: who has waited no longer has lost no place worth keeping."""
HELLO_WITHIN = 10.0
LOOK_AGAIN = 0.5
STRIKES = 8
"""Bad frames until a connection is closed."""

STATUS = {
    Code.OVER_LIMIT: int(lib.GS_OVER_LIMIT),
    Code.NOT_FREE: int(lib.GS_NOT_FREE),
    Code.CLAIM_TIMED_OUT: int(lib.GS_TIMED_OUT),
    Code.NOT_ADMITTED: int(lib.GS_NOT_ADMITTED),
    Code.TOO_LARGE: int(lib.GS_NOT_ADMITTED),
    Code.BAD_BUDGET: int(lib.GS_NOT_ADMITTED),
    Code.GPU_UNHEALTHY: int(lib.GS_NOT_ADMITTED),
    Code.NO_SUCH_GPU: UNKNOWN,
    Code.NO_SUCH_JOB: UNKNOWN,
}


class Box:
    """Room for a frame each of some connections."""

    def __init__(self) -> None:
        self.sockets = ffi.new("int[]", AT_ONCE)
        self.results = ffi.new("int[]", AT_ONCE)
        """Of the system calls: sizes, or errors."""
        self.frames = ffi.new("struct gs_frame[]", [HEADER] * AT_ONCE)
        self.each = [self.frames + number for number in range(AT_ONCE)]


class Connection:
    """One shim's connection."""

    __slots__ = (
        "asks",
        "client",
        "fd",
        "outstanding",
        "paused",
        "peer",
        "server",
        "sock",
        "strikes",
        "timer",
        "uid",
        "unsent",
    )

    def __init__(self, server: ShimServer, sock: socket.socket, peer: Process, uid: int) -> None:
        self.server = server
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.uid = uid
        self.client: Client | None = None
        self.asks: dict[int, tuple[int, float]] = {}
        """Of the core, that are not answered yet: the ticket of each, and since when its allocation has waited."""
        self.unsent: deque[bytes] = deque()
        self.outstanding = 0
        self.paused = False
        self.strikes = 0
        self.timer: asyncio.TimerHandle | None = None

    def listen(self) -> None:
        """From when its user is known. A shim says HELLO at once and waits for the answer: it is here already, nearly
        always."""
        self.server.take_from([self])
        if self.fd >= 0:
            self.server.shell.epoll.add_reader(self.fd, self.on_readable)

    def on_readable(self) -> None:
        """Its frame is taken with those of all that are readable now."""
        self.server.ready.append(self)

    def expect_answer(self) -> None:
        self.outstanding += 1
        if self.outstanding >= OUTSTANDING and not self.paused:
            self.paused = True
            self.server.shell.epoll.remove_reader(self.fd)

    def answered(self) -> None:
        self.outstanding -= 1
        if self.paused and self.outstanding < OUTSTANDING // 2 and self.fd >= 0:
            self.paused = False
            self.server.shell.epoll.add_reader(self.fd, self.on_readable)

    def unsendable(self, frame: bytes, error: int) -> None:
        """An answer that did not go out: it waits if the program is slow to read."""
        if error not in (0, errno.EAGAIN, errno.EINTR):
            self.close()
        elif self.fd >= 0:
            if not self.unsent:
                asyncio.get_running_loop().add_writer(self.fd, self._on_writable)
            self.unsent.append(frame)

    def _on_writable(self) -> None:
        while self.unsent:
            try:
                self.sock.send(self.unsent[0])
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.close()
                return
            self.unsent.popleft()
            self.answered()
        asyncio.get_running_loop().remove_writer(self.fd)

    def close(self) -> None:
        if self.fd < 0:
            return
        loop = asyncio.get_running_loop()
        self.server.shell.epoll.remove_reader(self.fd)
        if self.unsent:
            loop.remove_writer(self.fd)
        self.fd = -1
        self.sock.close()
        if self.timer is not None:
            self.timer.cancel()
        self.server.closed(self)


class ShimServer:
    """All of them."""

    def __init__(self, shell: Shell, handshake: Handshake) -> None:
        self.shell = shell
        self.handshake = handshake
        self._inbox, self._outbox = Box(), Box()
        self._descriptors = ffi.new("int[]", int(lib.GS_MOST_DESCRIPTORS))
        self._descriptor_count = ffi.new("int *")
        self._frame: Any = None
        """The one that is worked on."""
        self.ready: list[Connection] = []
        """Whose frames are taken at the end of this round,"""
        self._answered: list[Connection] = []
        """and whose answers are in the outbox,"""
        self._send_by = 0.0
        """at most until then;"""
        self._texts: list[int] = []
        """those of them that are more than numbers."""
        shell.epoll.after_round = self._end_round
        self._connections: set[Connection] = set()
        self._strangers: dict[int, set[Connection]] = {}
        """By user: those that have not said HELLO."""
        self._sparingly = Sparingly()
        self._look_again = Sparingly(5.0)
        self._acceptor: Acceptor | None = None

    # ---- connections -------------------------------------------------------------------------------

    def start(self, listener: socket.socket) -> None:
        """Takes over a bound socket."""
        self._acceptor = Acceptor(listener, BACKLOG, self._on_connections, self._note_pause)

    def _note_pause(self, error: str) -> None:
        self._complain(-1, f"cannot accept connections: {error}")

    def stop(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None

    def close(self) -> None:
        """The daemon goes. The ends of these connections are not the ends of their processes."""
        self.stop()
        self._send_answers()
        for connection in list(self._connections):
            connection.client = None
            connection.close()

    def _on_connections(self) -> None:
        """Several at once: a pass of the loop may be long, and newcomers should not wait for one each."""
        for _ in range(ACCEPTS):
            if not self._on_connection():
                return

    def _on_connection(self) -> bool:
        """Whether there was one."""
        sock = self._acceptor.accept() if self._acceptor is not None else None
        if sock is None:
            return False
        _, uid, _ = peer_credentials(sock)
        if not self.shell.limits.users.has_room(uid, PER_CONNECTION) or self.shell.limits.descriptors.too_many(uid):
            self._complain(uid, "too many connections, or descriptors that came along")
            sock.close()
            return True
        strangers = self._strangers.setdefault(uid, set())
        if len(strangers) >= STRANGERS_PER_UID:
            self._complain(uid, "too many connections without a HELLO")
            sock.close()
            return True
        peer = Process.of_peer(sock)
        if peer is None:
            self._complain(uid, "its process has gone, or is in a PID namespace that this daemon cannot see")
            sock.close()
            return True
        connection = Connection(self, sock, peer, uid)
        self._connections.add(connection)
        strangers.add(connection)
        self.shell.limits.users.enter(uid, PER_CONNECTION)
        self.handshake.access.when_met(uid, connection.listen)
        if connection.fd >= 0 and connection.client is None:
            connection.timer = asyncio.get_running_loop().call_later(HELLO_WITHIN, connection.close)
        return True

    def closed(self, connection: Connection) -> None:
        """The connection has ended; that may be the process's end, or not."""
        self._connections.discard(connection)
        self._is_no_stranger(connection)
        self.shell.limits.users.leave(connection.uid, PER_CONNECTION)
        asks, connection.asks = connection.asks, {}
        for ask, (ticket, since) in asks.items():
            self.shell.core_loop.asks.drop(ask)
            if connection.client is not None:
                connection.client.remember_wait(ticket, time.monotonic() - since)
        for ask in asks:
            self.shell.feed(AskCancelled(ask))  # which may answer the next one, to nobody any more
        client = connection.client
        if client is None:
            connection.peer.close()
        elif client.connection is connection:
            client.connection = None
            self._look_after(client)
            # Of the descriptors of a program that becomes another one, this may have been closed before the page's.
            asyncio.get_running_loop().call_later(LOOK_AGAIN, self._look_after, client)

    def _is_no_stranger(self, connection: Connection) -> None:
        strangers = self._strangers.get(connection.uid)
        if strangers is not None:
            strangers.discard(connection)
            if not strangers:
                del self._strangers[connection.uid]

    def _look_after(self, client: Client) -> None:
        """It has no connection. It may live on without the page, having become another program (exec); a process
        that only ends just now is left to its pidfd."""
        alone = self.shell.clients.get(client.id) is client and client.connection is None
        if alone and client.process.alive() and not has_page(client.process, client.page):
            self.shell.processes.gone(client)

    def look_after_the_absent(self) -> None:
        """Who has lost an earlier daemon and has not come back: nobody says when one has become another program."""
        for client in self.shell.clients:
            if client.connection is None:
                self._look_after(client)

    def _complain(self, uid: int, why: str, pid: int = 0) -> None:
        left_out = self._sparingly.allow(uid)  # not by what it sent: it could send something else each time
        if left_out is not None:
            log.warning("a client is not understood", extra=facts(why=why, uid=uid, pid=pid, more=left_out))

    # ---- frames ------------------------------------------------------------------------------------

    def _end_round(self) -> None:
        ready, self.ready = self.ready, []
        self.take_from(ready)
        self._send_answers()

    def take_from(self, ready: Sequence[Connection]) -> None:
        """One frame of each: the loop comes back for the next, and others are not kept waiting."""
        turns = self.shell.limits.time
        for start in range(0, len(ready), AT_ONCE):
            # Who has no time left is readable in the next pass of the loop as well.
            some = [one for one in ready[start : start + AT_ONCE] if one.fd >= 0 and turns.may(one.uid)]
            while some:
                some = some[self._take_some(some) :]

    def _take_some(self, some: Sequence[Connection]) -> int:
        """How many of these have been looked at: up to the first that sent descriptors."""
        inbox, turns = self._inbox, self.shell.limits.time
        then = time.perf_counter()
        for number, connection in enumerate(some):
            inbox.sockets[number] = connection.fd
        count: int = lib.gs_receive_frames(
            inbox.sockets, len(some), inbox.frames, inbox.results, self._descriptors, self._descriptor_count
        )
        descriptors: list[int] = list(self._descriptors[0 : self._descriptor_count[0]])
        try:
            for number in range(count):
                connection, size = some[number], inbox.results[number]
                if size == 0:
                    connection.close()
                elif size > 0 and connection.fd >= 0:
                    self._frame = inbox.each[number]
                    self._take_frame(connection, size, descriptors if number == count - 1 else [])
                now = time.perf_counter()
                turns.spend(connection.uid, now - then)
                then = now
                if self._answered and now >= self._send_by:
                    self._send_answers()
                    then = time.perf_counter()
        finally:
            self.shell.limits.descriptors.take(some[count - 1].uid, descriptors)
        return count

    def _take_frame(self, connection: Connection, size: int, descriptors: list[int]) -> None:
        try:
            self._take(connection, size, descriptors)
        except Exception:
            self.shell.core_loop.errors += 1
            log.exception("a frame could not be handled", extra=facts(pid=connection.peer.pid))
            connection.close()

    def _take(self, connection: Connection, size: int, descriptors: list[int]) -> None:
        frame = self._frame
        if size != FRAME_BYTES or frame.magic != MAGIC or frame.size != FRAME_BYTES:
            self._bad(connection, 0, "not a frame", close=True)
            return
        kind, seq = frame.type, frame.seq
        if frame.version < OLDEST:
            self._bad(connection, seq, f"frames of version {frame.version}; this daemon speaks {OLDEST} and later ones")
            return
        client = connection.client
        connection.expect_answer()
        if client is None:
            if kind == HELLO:
                self._hello(connection, seq, descriptors)
            else:
                self._bad(connection, seq, "the first frame must be HELLO", close=True, expected=True)
        elif kind == ASK:
            self._ask(connection, client, seq)
        elif kind == ATTACH:
            self._attach(connection, client, seq)
        elif kind == DETACH:
            self._detach(connection, client, seq)
        elif kind == TRIMMED:
            self.shell.trimmed(client)
            self._reply(connection, seq, OK)
        else:
            # A later library may say what is not known here yet; it is told so, and nothing is held against it.
            self._bad(connection, seq, f"a frame of type {kind}", expected=True, strike=frame.version <= VERSION)

    def _bad(
        self,
        connection: Connection,
        seq: int,
        why: str,
        *,
        close: bool = False,
        expected: bool = False,
        strike: bool = True,
    ) -> None:
        self.shell.traffic.bad_frames += 1
        self._complain(connection.uid, why, connection.peer.pid)
        if not expected:
            connection.expect_answer()
        connection.strikes += strike
        self._reply(connection, seq, BAD_FRAME, text=f"the daemon did not understand: {why}")
        if close or connection.strikes >= STRIKES:
            self._send_answers()
            connection.close()

    def _hello(self, connection: Connection, seq: int, descriptors: list[int]) -> None:
        hello = self._frame.u.hello
        descriptor = descriptors[0] if descriptors else None
        welcome = self.handshake.welcome(connection.peer, connection.uid, hello, descriptor)
        if welcome.client is not None:
            # Before the frame is written: closing an earlier connection may lead to answers to others.
            self._take_in(connection, welcome.client)
        if welcome.client is None:
            out = self._next_out(connection, WELCOME, seq, text=True)
        else:
            out = ffi.new("struct gs_frame *", {**HEADER, "type": WELCOME, "seq": seq})
        body = out.u.welcome
        body.page_id, body.job_id = welcome.page_id, welcome.job_id
        body.status, body.patience_ms = welcome.status, welcome.patience_ms
        body.text = cut(welcome.text, TEXT_BYTES - 1)
        if welcome.client is not None:
            self._send_with_descriptor(connection, out, welcome.client.page)
        if welcome.client is not None and welcome.new:
            self.handshake.settle_in(welcome.client)
            if connection.fd < 0:
                self._look_after(welcome.client)  # it could not be told, and nobody else knew of it then

    def _take_in(self, connection: Connection, client: Client) -> None:
        earlier = client.connection
        client.connection = connection
        if earlier is not None:
            earlier.close()
        connection.client = client
        self._is_no_stranger(connection)
        if connection.peer is not client.process:
            connection.peer.close()
            connection.peer = client.process
        if connection.timer is not None:
            connection.timer.cancel()

    def _send_with_descriptor(self, connection: Connection, frame: Any, page: Page) -> None:
        """The first packet of a connection always fits into its buffer."""
        try:
            with page.for_its_process() as fd:
                socket.send_fds(connection.sock, [bytes(ffi.buffer(frame))], [fd])
        except OSError:
            connection.close()
        else:
            connection.answered()

    def _attach(self, connection: Connection, client: Client, seq: int) -> None:
        identity = bytes(ffi.buffer(self._frame.u.attach.uuid))
        if identity in self.shell.gpus.by_bytes or self._look_again.allow("") is None:
            self._attach_to(connection, client, seq, identity)
            return

        def found() -> None:
            if connection.client is client and connection.fd >= 0:
                self._attach_to(connection, client, seq, identity)

        # Perhaps a GPU that has appeared since the start, or a MIG instance.
        self.shell.driver.look_for_gpus(found)

    def _attach_to(self, connection: Connection, client: Client, seq: int, identity: bytes) -> None:
        gpu = self.shell.gpus.by_bytes.get(identity)
        if gpu is None:
            self._reply(connection, seq, UNKNOWN, text="the daemon does not know this GPU\nhint: see `gpushare status`")
            return

        def answer(done: do.Attached | do.Granted | do.Denied, line: int | None) -> None:
            connection.asks.pop(ask, None)
            if isinstance(done, do.Denied):
                self._deny(connection, seq, done)
            elif line is None:
                self.shell.processes.detached(client, gpu)
                self._reply(connection, seq, UNKNOWN, text="this process has as many GPUs open as gpushare can count")
            else:
                granted = done.credit if isinstance(done, do.Attached) else 0
                index = self.shell.gpus.infos[gpu].index
                self._reply(connection, seq, OK, line=line, granted=granted, node_number=index + 1)

        ask = self.shell.core_loop.asks.next_number()
        connection.asks[ask] = 0, time.monotonic()
        self.shell.core_loop.ask(AttachAsked(ask, client.id, gpu), answer)

    def _ask(self, connection: Connection, client: Client, seq: int) -> None:
        body = self._frame.u.ask
        line, size, flags = body.line, body.bytes, body.flags
        gpus = client.page.gpus
        if line >= len(gpus) or size == 0:
            why = f"no line {line}" if size else "an ask for nothing"
            self._bad(connection, seq, why, expected=True)
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
                self._reply(connection, seq, OK, line=line, granted=done.size)
            elif isinstance(done, do.Denied):
                self._deny(connection, seq, done, line)

        ask = self.shell.core_loop.asks.next_number()
        connection.asks[ask] = ticket, asked_at - waited
        failed, again = bool(flags & DRIVER_FAILED), bool(flags & FAILED_AGAIN)
        self.shell.core_loop.ask(
            CreditAsked(ask, client.id, gpus[line], size, failed, body.allocation, again, waited), answer
        )

    def _detach(self, connection: Connection, client: Client, seq: int) -> None:
        line = self._frame.u.detach.line
        if line >= len(client.page.gpus):
            self._bad(connection, seq, f"no line {line}", expected=True)
            return
        self.shell.processes.detached(client, client.page.gpus[line])
        self._reply(connection, seq, OK, line=line)

    def _deny(self, connection: Connection, seq: int, denied: do.Denied, line: int = 0) -> None:
        status = STATUS.get(denied.reason.code, int(lib.GS_NOT_FREE))
        told = self.handshake.access.viewer(connection.uid).told(denied.reason)
        self._reply(connection, seq, status, line=line, text=told.render())

    def _reply(
        self,
        connection: Connection,
        seq: int,
        status: int,
        *,
        line: int = 0,
        granted: int = 0,
        text: str = "",
        node_number: int = 0,
    ) -> None:
        body = self._next_out(connection, ANSWER, seq, text=bool(text)).u.answer
        body.status, body.line, body.granted, body.node_number = status, line, granted, node_number
        if text:
            body.text = cut(text, TEXT_BYTES - 1)

    def _next_out(self, connection: Connection, kind: int, seq: int, *, text: bool) -> Any:
        """A frame that goes out with the others of this round. To send wakes a program up, which takes as long as
        several answers, and those that ask in the same moment would wait for all of it."""
        number = len(self._answered)
        if number == AT_ONCE:
            self._send_answers()
            number = 0
        if number == 0:
            self._send_by = time.perf_counter() + TOGETHER
            if not self.shell.epoll.in_round:
                asyncio.get_running_loop().call_soon(self._send_answers)
        self._answered.append(connection)
        if text:
            self._texts.append(number)
        out = self._outbox.each[number]
        out.type, out.seq = kind, seq
        return out

    def _send_answers(self) -> None:
        answered, self._answered = self._answered, []
        if not answered:
            return
        outbox, turns = self._outbox, self.shell.limits.time
        started = time.perf_counter()
        for number, connection in enumerate(answered):
            outbox.sockets[number] = -1 if connection.unsent else connection.fd
        failed = lib.gs_send_frames(outbox.sockets, len(answered), outbox.frames, outbox.results)
        each = (time.perf_counter() - started) / len(answered)
        unsent = []
        for number, connection in enumerate(answered):
            turns.spend(connection.uid, each)
            if failed and outbox.results[number]:
                error = 0 if connection.unsent else outbox.results[number]
                unsent.append((connection, bytes(ffi.buffer(outbox.each[number])), error))
            else:
                connection.answered()
        while self._texts:
            ffi.memmove(outbox.each[self._texts.pop()].u.bytes, NO_BODY, len(NO_BODY))
        # Last, for a connection that is closed may lead to answers to others.
        for connection, frame, error in unsent:
            connection.unsendable(frame, error)
