"""Clients that mean harm, on the shims' socket: whatever they do, others are served within a bound."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from daemon_harness import GIB, GPU, until
from hostile import BOUND, attack, connect, lingering, slowest
from other_user import ALICE, BOB, CAROL, as_user, needs_root
from shim_client import MIB, ShimClient

from gpushare._layout import ffi, lib
from gpushared.limits.user_limits import UserLimits

pytestmark = needs_root
PACKETS = socket.SOCK_SEQPACKET


@pytest.fixture
def shared(make_daemon):
    return make_daemon(system=True)


def descriptors(daemon) -> int:
    return daemon.call(lambda: len(list(Path("/proc/self/fd").iterdir())))


# ---- connections -------------------------------------------------------------------------------


def test_ten_thousand_connections(shared):
    def nasty(ready):
        held = []
        for number in range(10_000):
            sock = connect(shared.shim, PACKETS)
            held.append(sock)
            if number == 2_000:
                ready()
        return held

    with attack(CAROL, nasty):
        assert slowest(shared, 4) < BOUND
        # Of strangers of one user only so many stay.
        assert shared.call(lambda: len(shared.daemon.shims._connections)) < 200


def test_connections_as_fast_as_they_come(shared):
    def nasty(ready):
        ready()
        while True:
            with contextlib.suppress(OSError):
                connect(shared.shim, PACKETS).close()

    with attack(CAROL, nasty), attack(BOB, nasty):
        assert slowest(shared, 3) < BOUND


def test_a_process_has_only_so_many_pages(shared):
    def many():
        held, answers = [], []
        for _ in range(80):
            client = ShimClient(shared.shim)
            answers.append(client.hello(request=MIB, limit=MIB).status)
            held.append(client)
        return answers

    answers = as_user(CAROL, many)
    assert answers == [lib.GS_OK] * 64 + [lib.GS_NOT_ADMITTED] * 16
    until(lambda: shared.client.jobs() == [])


def test_descriptors_do_not_run_out(make_daemon, monkeypatch):
    """With room for 400: two users take all that they can get, on both sockets; root and a third user get in."""
    monkeypatch.setattr("gpushared.limits.limits.UserLimits", lambda: UserLimits(400))
    daemon = make_daemon(system=True)
    before = descriptors(daemon)

    def nasty(ready):
        held = []
        for _ in range(150):
            for path, kind in ((daemon.shim, PACKETS), (daemon.directory / "api.sock", socket.SOCK_STREAM)):
                with contextlib.suppress(OSError):
                    held.append(connect(path, kind))
            client = ShimClient(daemon.shim)
            held.append(client)
            with contextlib.suppress(OSError, EOFError):
                client.hello(request=MIB, limit=MIB)
        ready()
        return held

    with attack(CAROL, nasty), attack(ALICE, nasty):
        # A fourth of them each, and what one connection may cost.
        assert descriptors(daemon) - before <= 2 * (100 + 3)
        assert slowest(daemon, 1) < BOUND

        def third():
            with ShimClient(daemon.shim) as client:
                return [client.hello(request=MIB, limit=MIB).status, daemon.client.version()["protocol"]]

        assert as_user(BOB, third) == [lib.GS_OK, 1]
    until(lambda: descriptors(daemon) <= before + 2)


# ---- frames ------------------------------------------------------------------------------------


def test_floods_of_asks(shared):
    """From many connections at once, and nobody reads the answers."""

    def nasty(ready):
        clients = [ShimClient(shared.shim) for _ in range(60)]
        for client in clients:
            client.hello(request=MIB, limit=4 * GIB)
            client.attach(GPU)
            client.sock.setblocking(False)
        ready()
        while True:
            for client in clients:
                with contextlib.suppress(BlockingIOError):
                    for _ in range(50):
                        client.send_ask(8 * GIB)
                with contextlib.suppress(BlockingIOError):
                    for _ in range(random.randrange(60)):
                        client.sock.recv(512)

    with attack(CAROL, nasty):
        assert slowest(shared, 4) < BOUND


def test_half_frames_and_garbage_in_bulk(shared):
    def nasty(ready):
        ready()
        while True:
            with contextlib.suppress(OSError):
                sock = connect(shared.shim, PACKETS)
                for size in (1, 100, 511, 512, 513, 65536):
                    sock.send(os.urandom(size))

    with attack(CAROL, nasty):
        assert slowest(shared, 3) < BOUND
    assert shared.call(lambda: shared.shell.traffic.bad_frames) > 10


# ---- descriptors that come along ---------------------------------------------------------------


@pytest.mark.parametrize("greeted", [False, True])
def test_descriptors_that_take_an_hour_to_close(shared, greeted):
    """Sockets that linger: whoever closes the last descriptor waits. The daemon must not be that one."""

    def nasty(ready):
        client = ShimClient(shared.shim)
        if greeted:
            client.hello(request=MIB, limit=MIB)
        for number in range(5):
            sock = lingering()
            client.send(client.frame(lib.GS_ASK, ask={"bytes": 1}), [sock.fileno()] * 3)
            sock.close()
            if not greeted:
                client = ShimClient(shared.shim)
            if number == 0:
                ready()
        return client

    before = descriptors(shared)
    with attack(CAROL, nasty):
        assert slowest(shared, 3) < BOUND
    until(lambda: descriptors(shared) <= before + 2)


def test_a_page_that_is_not_one_is_not_taken_for_one(shared, tmp_path):
    """Presented after a restart: a file with the right content, and pipes, and directories."""

    def nasty():
        statuses = []
        forged = os.memfd_create("page")
        os.ftruncate(forged, lib.GS_PAGE_BYTES)
        os.fchmod(forged, 0o600)
        for fd in (forged, os.open("/", os.O_RDONLY), os.pipe()[0]):
            with ShimClient(shared.shim) as client:
                client.page_fd, client.page_id = fd, 4711
                statuses.append(client.hello(request=MIB, limit=MIB, present=True).status)
        return statuses

    assert as_user(CAROL, nasty) == [lib.GS_OK] * 3, "each has got a page of its own"


# ---- pages -------------------------------------------------------------------------------------


def test_pages_that_are_cut_short(shared):
    """The daemon's next look at such a page would be the end of it; and of pages it has looked at all the time."""

    def nasty(ready):
        clients = [ShimClient(shared.shim) for _ in range(8)]
        for client in clients:
            client.hello(request=64 * MIB, limit=GIB)
            client.attach(GPU)
            client.allocate(16 * MIB)
        for client in clients:
            os.ftruncate(client.page_fd, 0)
        ready()
        time.sleep(60)

    with attack(CAROL, nasty):
        assert slowest(shared, 1, shared.client.status) < BOUND
        # They are given up: what they do is outside of gpushare now.
        until(lambda: shared.client.jobs() == [])
        assert shared.daemon.directory.directory.joinpath("pages").exists()
    with ShimClient(shared.shim) as other:
        assert other.hello(request=GIB, limit=GIB).status == lib.GS_OK and other.attach(GPU).status == lib.GS_OK


def test_a_page_that_is_cut_short_and_let_go_of_is_given_up_once(shared, caplog):
    """Its process lives and is connected, but has the file no more, as one that has become another program."""

    def counted():
        return shared.call(lambda: dict(shared.daemon.shell.limits.users._used))

    with ShimClient(shared.shim) as other, contextlib.ExitStack() as stack:
        other.hello(request=GIB, limit=GIB)
        before = counted()
        for number in range(1, 4):
            client = stack.enter_context(ShimClient(shared.shim))
            client.hello(request=64 * MIB, limit=GIB)
            client.attach(GPU)
            client.allocate(16 * MIB)
            os.ftruncate(client.page_fd, 0)
            client.unmap()
            until(lambda: len(shared.client.jobs()) == 1)
            until(lambda: counted() == before)
            assert caplog.text.count("is outside of gpushare from now on") == number


def test_a_real_daemon_survives_it(node, program):
    """Not on a thread of the test's, where somebody else's handler of the signal could help."""
    node.start()
    victim, vandal = program(node.shim), program(node.shim)
    for one in (victim, vandal):
        one.call("hello", request=GIB, limit=2 * GIB)
        one.call("attach", GPU)
    for size in (0, 100, 4095):
        vandal.call("cut_page", size)
        assert victim.call("ask", 4096)["status"] == lib.GS_OK
        assert node.client.status()["gpus"]
        time.sleep(0.3)
        vandal.call("reconnect", str(node.shim))
        assert vandal.call("hello", request=GIB, limit=2 * GIB)["status"] == lib.GS_OK
        vandal.call("attach", GPU)
    assert node.process.poll() is None
    for one in (victim, vandal):
        one.close()
    until(lambda: node.client.jobs() == [])
    # A file that ends within the page's first 4 KiB is mapped whole, so of the three only the empty one is noticed.
    assert node.log.read_text().count("cut its credit page short") == 1


@pytest.mark.parametrize("word", [0, 0xFFFFFFFF, 0xFFFFFFFF_FFFFFFFF, 0xFFFFFFFF_00000000, 1 << 63])
def test_a_word_that_its_process_has_edited(shared, word):
    """It cheats, and harms nobody but what it takes; what the daemon has in its ledger stays sound."""
    with ShimClient(shared.shim) as victim:
        victim.hello(request=8 * GIB, limit=8 * GIB)
        victim.attach(GPU)

        def cheat():
            client = ShimClient(shared.shim)
            client.hello(request=0, limit=12 * GIB)
            client.attach(GPU)
            client.allocate(2 * GIB)
            statuses = []
            for _ in range(20):
                client.line().word = word
                statuses.append(client.ask(64 * MIB).status)
                client.line().word = random.getrandbits(64)
                client.line().overhead = client.line().limit = random.getrandbits(32)
            return statuses

        as_user(CAROL, cheat)
        for _ in range(4):
            assert victim.allocate(GIB) is None or victim.word()[0] > 0
        shared.validate()
        gpu = next(one for one in shared.client.status()["gpus"] if one["uuid"] == GPU)
        assert gpu["requested"] >= 8 * GIB and gpu["free"] >= 0


def test_a_restarted_daemon_does_not_believe_what_a_page_says(node, program):
    """A process writes itself all credit there is, somebody else's job, and the pid of somebody else's program."""
    node.start()
    mine = node.client.register(
        {"name": "mine", "command": ["a"], "request": "8Gi", "limit": "8Gi", "gpus": 1, "devices": ["0"]}
    )
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        vandal = program(node.shim)
        vandal.call("hello", request=0, limit=4 * GIB)
        vandal.call("attach", GPU)
        vandal.call("allocate", GIB)
        vandal.call("claim", bystander.pid, int(mine["id"], 16))
        node.kill()
        node.start()
        (own,) = [one for one in node.client.jobs() if one["id"] != mine["id"]]
        assert [one["pid"] for one in own["processes"]] == [vandal.pid]
        assert own["gpus"][0]["credit"] <= GIB + 64 * MIB
        assert node.client.job(mine["id"])["processes"] == []
        owner = node.connect()
        owner.hello(job=mine["id"])
        owner.attach(GPU)
        assert owner.ask(7 * GIB).status == lib.GS_OK
        owner.close()
        assert bystander.poll() is None
        bystander.communicate(b"\n")


def test_another_users_job_cannot_be_joined(shared):
    job = shared.client.register({"name": "mine", "command": ["a"], "request": "1Gi", "limit": "1Gi", "gpus": 1})

    def join():
        with ShimClient(shared.shim) as client:
            return client.hello(job=job["id"]).status

    assert as_user(CAROL, join) == lib.GS_NOT_ALLOWED
    assert ffi.sizeof("struct gs_page") == lib.GS_PAGE_BYTES


def test_sockets_and_pages_have_the_least_permissions(shared, directory):
    with shared.connect() as client:
        client.hello(request=MIB, limit=MIB)
        modes = {path.name: path.stat().st_mode & 0o777 for path in directory.rglob("*")}
    sockets = {"api.sock": 0o666, "shim.sock": 0o666}
    assert {name: mode for name, mode in modes.items() if name.endswith(".sock")} == sockets
    assert modes.pop("containers") == 0o711, "it has shim.sock alone, for containers"
    assert sorted(path.name for path in (directory / "containers").iterdir()) == ["shim.sock"]
    assert all(mode & 0o077 == 0 for name, mode in modes.items() if not name.endswith(".sock")), modes
    assert directory.stat().st_mode & 0o777 == 0o711
