"""What a program says of itself when it says HELLO, forged: another's job, pages and pids, and figures that make no
sense. It gets what it could have had by an honest HELLO, and others lose nothing.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import time

import pytest
from daemon_harness import GIB, GPU, InProcess, until
from other_user import ALICE, BOB, CAROL, as_user, needs_root
from shim_client import ShimClient

from gpushare._layout import ffi, lib
from gpushared.system.processes import start_time

pytestmark = needs_root
JOB = {"name": "a", "command": ["a"], "request": "4Gi", "limit": "8Gi", "gpus": 1, "devices": ["0"]}


@pytest.fixture
def shared(make_daemon) -> InProcess:
    return make_daemon(system=True)


def pass_on(sock: socket.socket, fd: int, page_id: int) -> None:
    socket.send_fds(sock, [page_id.to_bytes(8, "little")], [fd])


def of_a_process_that_has_ended(daemon: InProcess) -> tuple[int, int]:
    """The descriptor and the id of a page that the daemon has given to a process of this user, and that is nobody's."""
    mine, its = socket.socketpair()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            shim = ShimClient(daemon.shim)
            shim.hello(request=0, limit=2**21)
            shim.attach(GPU)
            pass_on(its, shim.page_fd, shim.page_id)
            its.recv(1)
        os._exit(0)
    data, fds, _, _ = socket.recv_fds(mine, 8, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    until(lambda: not any(job["processes"] for job in daemon.client.jobs() if job["uid"] == os.getuid()))
    return fds[0], int.from_bytes(data, "little")


def test_an_old_page_is_no_credit(shared):
    """Its bearer writes itself into it, and all of the GPU: others still have what they were promised."""
    with ShimClient(shared.shim) as owner:
        assert owner.hello(request=8 * GIB, limit=8 * GIB).status == lib.GS_OK
        assert owner.attach(GPU).status == lib.GS_OK

        def forge() -> int:
            fd, page_id = of_a_process_that_has_ended(shared)
            shim = ShimClient(shared.shim)
            shim._map(fd, page_id)
            page = shim.page
            page.pid, page.start_time, page.uid = os.getpid(), int(start_time(os.getpid()) or 0), os.getuid()
            page.job_id = 0xABCDEF
            line = shim.line()
            line.word = (2**25 << 32) | 2**25
            line.request = line.limit = 2**25
            line.overhead = 2**24
            line.attached = 1
            shim.hello(request=0, limit=2**21, present=True)
            time.sleep(0.5)
            return max(gpu["usage"] for gpu in shared.client.status()["gpus"])

        assert as_user(CAROL, forge) < 2 * GIB
        answer = owner.allocate(7 * GIB)
        assert answer is None or answer.status == lib.GS_OK, answer
        assert shared.shell.core.counters.violations == {}


def test_anothers_page_is_not_ours(shared, tmp_path):
    """With its descriptor and its id, while its process lives: the bearer gets a page of its own."""
    with ShimClient(shared.shim) as owner:
        assert owner.hello(request=4 * GIB, limit=4 * GIB).status == lib.GS_OK
        assert owner.attach(GPU).status == lib.GS_OK
        owner.allocate(2 * GIB)
        before, fd, page_id = owner.word(), owner.page_fd, owner.page_id
        job = f"{owner.page.job_id:016x}"

        def forge() -> list[int]:
            shim = ShimClient(shared.shim)
            shim.page_fd, shim.page_id = os.dup(fd), page_id
            found = shim.hello(request=0, limit=2**21, present=True)
            assert shim.attach(GPU).status == lib.GS_OK
            refused = ShimClient(shared.shim).hello(job, request=0, limit=2**21).status
            bare = ShimClient(shared.shim)
            bare.page_fd, bare.page_id = -1, page_id
            alone = bare.hello(request=0, limit=2**21, present=True, descriptor=False)
            return [found.status, found.page_id, refused, alone.status, alone.page_id]

        status, mine, refused, alone_status, alone = as_user(CAROL, forge)
        assert status == alone_status == lib.GS_OK and page_id not in (mine, alone)
        assert refused == lib.GS_NOT_ALLOWED
        assert owner.word() == before and owner.ask(2**20).status == lib.GS_OK
        assert [one["pid"] for one in shared.client.job(job)["processes"]] == [os.getpid()]


def test_another_pid_in_the_hello_is_only_words(shared):
    """The kernel says who it is: nobody else's process gets into the job, or is stopped with it."""

    def forge() -> list[object]:
        shim = ShimClient(shared.shim)
        frame = shim.frame(
            lib.GS_HELLO,
            hello={"pid": victim, "request": {"kind": lib.GS_AMOUNT_BYTES}, "limit": {"kind": lib.GS_AMOUNT_BYTES}},
        )
        frame.u.hello.limit.value = 2**21
        shim.send(frame)
        welcome = shim.receive()
        job = f"{welcome.u.welcome.job_id:016x}"
        pids = [one["pid"] for one in shared.client.job(job)["processes"]]
        return [welcome.u.welcome.status, pids == [os.getpid()]]

    victim = os.fork()
    if victim == 0:
        time.sleep(60)
        os._exit(0)
    try:
        assert as_user(CAROL, forge) == [lib.GS_OK, True]
        assert os.waitpid(victim, os.WNOHANG) == (0, 0)
    finally:
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)


def test_random_hellos(shared):
    """Any bits, from one user; another is served, and the daemon meets no bug of its own (the fixture looks)."""
    job = as_user(BOB, lambda: shared.client.register(JOB)["id"])
    ids = [0, 1, int(job, 16), 2**64 - 1]

    def forge() -> dict[str, int]:
        chance, seen = random.Random(1), {"ok": 0, "refused": 0}
        for _ in range(300):
            with contextlib.suppress(OSError, EOFError), ShimClient(shared.shim) as shim:
                frame = shim.frame(lib.GS_HELLO)
                ffi.memmove(
                    frame.u.bytes, chance.randbytes(ffi.sizeof("struct gs_hello")), ffi.sizeof("struct gs_hello")
                )
                body = frame.u.hello
                body.job_id, body.page_id = chance.choice(ids), chance.choice([0, chance.getrandbits(64)])
                for one in (body.request, body.limit):
                    one.kind = chance.choice([0, 1, 2, 3, 4, 2**31])
                    one.value = chance.choice([0, 1, 4096, 10**9, 2**50, 2**50 + 1, 2**63, 2**64 - 1])
                body.priority = chance.choice([-(2**31), 2**31 - 1, 0])
                body.flags = chance.choice([0, lib.GS_HELLO_HAS_PAGE, 2**32 - 1])
                if chance.random() < 0.5:
                    body.request.kind, body.request.value = lib.GS_AMOUNT_BYTES, 0
                    body.limit.kind, body.limit.value = lib.GS_AMOUNT_MAX, 0
                    body.min_run_ms = 0
                shim.send(frame)
                seen["ok" if shim.receive().u.welcome.status == lib.GS_OK else "refused"] += 1
        return seen

    seen = as_user(CAROL, forge)
    assert seen["ok"] > 10 and seen["refused"] > 10
    jobs = shared.client.jobs()
    assert [one["id"] for one in jobs if one["uid"] == BOB] in ([job], [])
    assert as_user(ALICE, lambda: shared.client.register(JOB | {"name": "b"})["state"]) == "running"
