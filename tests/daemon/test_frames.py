"""Whatever comes over the shims' socket: a clear answer or a closed connection, and nobody else notices."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from daemon_harness import GIB, GPU, GPU2, until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shim_client import MIB, ShimClient

from gpushare._layout import ffi, lib

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
SPARES = 4


@pytest.fixture
def shim(daemon):
    client = daemon.connect()
    assert client.hello(request=4 * GIB, limit=8 * GIB).status == lib.GS_OK
    assert client.attach(GPU).status == lib.GS_OK
    yield client
    # After all that a test did to it, the daemon serves as before.
    assert client.ask(MIB).status == lib.GS_OK
    client.close()


def raw(daemon) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(5)
    sock.connect(str(daemon.shim))
    return sock


def is_closed(sock: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        while sock.recv(4096):
            pass
    return True


def test_credit_is_granted_in_chunks_and_the_answer_says_how_much(daemon, shim):
    answer = shim.allocate(GIB)
    used, credit = shim.word()
    assert answer.status == lib.GS_OK and answer.granted >= GIB
    assert used == GIB and credit >= GIB + 32 * MIB
    assert shim.allocate(32 * MIB) is None, "a chunk beyond the need: no question for this one"


def test_asks_over_the_limit_are_denied_with_words(daemon, shim):
    before = shim.word()
    answer = shim.ask(9 * GIB)
    assert answer.status == lib.GS_OVER_LIMIT and "limit" in answer.text and answer.granted == 0
    assert shim.word() == before
    # The text of one answer does not linger in the next.
    assert shim.ask(MIB).text == ""


def test_a_connection_whose_frames_are_all_answered_owes_nothing(daemon, shim):
    """Too many that it owes, and the connection is not read until some are answered."""

    def owed():
        return [one.outstanding for one in daemon.daemon.shims._connections]

    until(lambda: daemon.call(owed) == [0])
    shim.ask(MIB)
    shim.ask(64 * GIB)
    shim.send(shim.frame(99))
    shim.answer()
    until(lambda: daemon.call(owed) == [0])


def test_answers_carry_the_seq_of_their_frame(shim):
    first, second = shim.send_ask(MIB), shim.send_ask(9 * GIB)
    answers = {answer.seq: answer.status for answer in (shim.answer(), shim.answer())}
    assert answers == {first: lib.GS_OK, second: lib.GS_OVER_LIMIT}


@pytest.mark.parametrize(
    "packet",
    [
        b"x",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(lib.GS_FRAME_BYTES),
        b"\xff" * lib.GS_FRAME_BYTES,
        b"\xff" * 4096,
        b"",
    ],
    ids=["a byte", "http", "zeros", "ones", "long", "empty"],
)
def test_foreign_packets_close_the_connection(daemon, shim, packet):
    with raw(daemon) as sock:
        sock.send(packet)
        assert is_closed(sock)


def test_a_frame_that_is_too_long_is_not_a_frame(daemon, shim):
    good = bytes(ffi.buffer(shim.frame(lib.GS_ASK, ask={"bytes": MIB, "line": 0})))
    with raw(daemon) as sock:
        sock.send(good + b"x")
        assert is_closed(sock)


def test_the_first_frame_must_be_hello(daemon, shim):
    stranger = daemon.connect()
    answer = stranger.ask(MIB)
    assert answer.status == lib.GS_BAD_FRAME and "HELLO" in answer.text
    assert is_closed(stranger.sock)
    stranger.close()


def test_a_version_that_is_too_old_is_told_so(daemon, shim):
    frame = shim.frame(lib.GS_ASK, ask={"bytes": MIB, "line": 0})
    frame.version = lib.GS_WIRE_OLDEST - 1
    shim.send(frame)
    answer = shim.answer()
    assert answer.status == lib.GS_BAD_FRAME and "version 0" in answer.text and answer.seq == shim.seq


def test_a_later_version_is_understood_as_far_as_it_is_known(daemon, shim):
    frame = shim.frame(lib.GS_ASK, ask={"bytes": MIB, "line": 0})
    frame.version = 9
    shim.send(frame)
    assert shim.answer().status == lib.GS_OK
    for _ in range(20):  # what is not known is refused each time, and not held against it
        frame = shim.frame(99)
        frame.version = 9
        shim.send(frame)
        assert shim.answer().status == lib.GS_BAD_FRAME
    assert shim.ask(MIB).status == lib.GS_OK


@pytest.mark.parametrize("kind", [lib.GS_HELLO, lib.GS_WELCOME, lib.GS_ANSWER, 0, 99])
def test_frames_out_of_place(shim, kind):
    shim.send(shim.frame(kind))
    assert shim.answer().status == lib.GS_BAD_FRAME


@pytest.mark.parametrize("line", [1, 30, 31, 2**32 - 1])
def test_lines_that_the_process_does_not_have(shim, line):
    assert shim.ask(MIB, line).status == lib.GS_BAD_FRAME
    assert shim.detach(line).status == lib.GS_BAD_FRAME


@pytest.mark.parametrize("size", [2**63, 2**64 - 1, 2**41])
def test_absurd_sizes(shim, size):
    assert shim.ask(size).status == lib.GS_OVER_LIMIT


def test_a_client_that_goes_on_with_bad_frames_is_let_go(daemon, shim):
    bad = daemon.connect()
    bad.hello(request=MIB, limit=MIB)
    with pytest.raises((EOFError, ConnectionError)):
        for _ in range(20):
            bad.send(bad.frame(99))
            bad.answer()
    bad.close()


def test_descriptors_that_come_along_are_closed(daemon, shim):
    def count():
        return daemon.call(lambda: len(list(Path("/proc/self/fd").iterdir())))

    def has_spares():
        return len(daemon.daemon.shims.handshake.pages._spares) == SPARES

    read, write = os.pipe()
    until(has_spares)  # each has descriptors too, and the fixture's program has just taken one
    before = count()
    for _ in range(5):
        other = daemon.connect()
        other.page_fd, other.page_id = read, 77
        assert other.hello(request=MIB, limit=MIB, present=True).status == lib.GS_OK
        socket.send_fds(other.sock, [bytes(ffi.buffer(other.frame(lib.GS_ASK, ask={"bytes": 1})))], [read, write] * 2)
        other.answer()
        with raw(daemon) as sock:
            socket.send_fds(sock, [b"garbage"], [read, write])
            assert is_closed(sock)
        other.close()
    # What stays is the daemon's hold on its clients, for they live: page, map and pidfd.
    until(lambda: has_spares() and count() <= before + 5 * 3)
    os.close(read)
    os.close(write)


def test_a_client_that_does_not_read_holds_nobody_up(daemon, shim):
    deaf = daemon.connect()
    deaf.hello(request=MIB, limit=MIB)
    deaf.attach(GPU)
    deaf.sock.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        for _ in range(20_000):
            deaf.send_ask(4 * GIB)
            sent += 1
            if sent % 100 == 0:
                time.sleep(0.002)
    assert sent < 20_000, "the daemon must stop listening to it at some point"
    started = time.monotonic()
    assert shim.ask(MIB).status == lib.GS_OK
    assert time.monotonic() - started < 5, "it would be held up until the deaf one reads, which is after this"
    # Once it reads, all its answers are there, each once.
    deaf.sock.settimeout(5)
    seen = [deaf.answer().seq for _ in range(sent)]
    assert sorted(seen) == list(range(3, 3 + sent))
    deaf.close()


def test_connections_without_a_hello_are_limited_and_do_not_stay(daemon, shim, monkeypatch):
    monkeypatch.setattr("gpushared.shims.connection.PENDING_PER_UID", 20)
    socks = []
    for _ in range(40):
        socks.append(raw(daemon))
    until(lambda: daemon.call(lambda: len(daemon.daemon.shims._connections)) <= 21)
    for sock in socks:
        sock.close()
    monkeypatch.setattr("gpushared.shims.connection.HELLO_WITHIN", 0.1)
    until(lambda: daemon.call(lambda: len(daemon.daemon.shims._connections)) == 1)
    with raw(daemon) as sock:
        assert is_closed(sock)


def test_many_threads_ask_at_once(daemon, shim):
    """One answer each, whatever the order."""
    failures = []

    def work():
        client = daemon.connect()
        try:
            client.hello(request=64 * MIB, limit=128 * MIB)
            client.attach(GPU)
            failures.extend(1 for _ in range(30) if client.ask(4096).status not in {lib.GS_OK, lib.GS_OVER_LIMIT})
        except Exception as error:
            failures.append(error)
        finally:
            client.close()

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    daemon.validate()


words = st.integers(0, 2**64 - 1)
frames = st.builds(
    lambda kind, seq, body: (kind, seq, body),
    st.integers(0, 8),
    st.integers(0, 2**32 - 1),
    st.one_of(
        st.binary(max_size=496),
        st.lists(words, max_size=60).map(lambda n: b"".join(w.to_bytes(8, "little") for w in n)),
    ),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.binary(max_size=600), frames), max_size=12), st.booleans())
def test_garbage(shim, daemon, packets, greeted):
    client = ShimClient(daemon.shim)
    try:
        if greeted:
            client.hello(request=0, limit=GIB)  # without a guarantee it has nothing to claim
            client.attach(GPU2)
        for packet in packets:
            data = packet
            if isinstance(packet, tuple):
                kind, seq, body = packet
                frame = client.frame(kind)
                frame.seq = seq
                data = bytes(ffi.buffer(frame))[:16] + body[:496].ljust(496, b"\0")
            client.sock.send(data)
    except OSError:
        pass
    finally:
        client.close()
    assert shim.ask(4096).status == lib.GS_OK
    daemon.validate()


def test_a_page_full_of_garbage_hurts_only_its_owner(daemon, shim, program):
    vandal = program(daemon.shim)
    vandal.call("hello", request=GIB, limit=2 * GIB)
    vandal.call("attach", GPU)
    for seed in range(20):
        try:
            vandal.call("scribble", seed)
            vandal.call("ask", 4096)
        except (EOFError, BrokenPipeError):
            break  # what it seems to have borrowed was wanted back
        daemon.client.status()
        assert shim.ask(4096).status == lib.GS_OK
