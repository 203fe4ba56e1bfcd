"""A daemon dies, or fails, just before and just after each of its handlers; nobody loses anything.

The handlers are those that the code has: all events of the core, all instructions of the shell. Each has a step below
that really reaches it, in a small world: an owner, a borrower, a program with its environment alone, two jobs that
queue, a reservation. The daemon is killed there (a process, SIGKILL), another is started, the clients present their
pages, and the world must be what it was; then the step is made once more, and undone. The second half does the same
with exceptions in place of deaths: the daemon serves on, its sums are right, and all who waited have been answered.

What may differ after a death, by design: a claim begins anew with its full time, and what was asked of borrowers for it
with a new grace; idle credit is what the page says; counters, stories and outcomes of ended jobs are a daemon's own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_daemon import NO_REBUILD, SETTINGS, Blown, Fuse, fail, gpus, harmless_fault, points
from daemon_harness import GIB, GPU, GPU2, HERE, PYTHONPATH, InProcess, Program, until
from fake_hook_runner import ready_file
from shim_client import ShimClient

from gpushare import process_owner
from gpushare._layout import lib
from gpushare.client import Client
from gpushare.errors import DaemonUnreachable, GpushareError
from gpushared.core import clock
from gpushared.core.node import NodeState
from gpushared.runtime import core_loop

GONE = (DaemonUnreachable, OSError, EOFError)
OWNER, BORROWER, ALONE = "owner", "borrower", "alone"
FIRST, SECOND = "first", "second"


class DyingNode:
    """Daemons one after the other on one directory."""

    deadly = True

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._forks = subprocess.Popen(
            [sys.executable, str(HERE / "crash_daemon.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            text=True,
        )
        self._pidfd = -1

    def start(self, point: str = "", when: str = "before") -> None:
        assert self._forks.stdin is not None and self._forks.stdout is not None
        self._forks.stdin.write(json.dumps([str(self.directory), point, when]) + "\n")
        self._forks.stdin.flush()
        self.pid = int(self._forks.stdout.readline())
        with contextlib.suppress(ProcessLookupError):  # it is quick, and gone
            self._pidfd = os.pidfd_open(self.pid)
        until(lambda: self.blown() or self._answers(), 10)

    def _answers(self) -> bool:
        with contextlib.suppress(DaemonUnreachable):
            return bool(self.client.version()["pid"] == self.pid)
        return False

    def arm(self, point: str, when: str) -> None:
        (self.directory / "fuse").write_text(json.dumps([point, when]))
        os.kill(self.pid, signal.SIGUSR1)
        until(lambda: self.blown() or not (self.directory / "fuse").exists())

    def xid(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR2)

    def blown(self) -> bool:
        return self._pidfd < 0 or bool(select.select([self._pidfd], [], [], 0)[0])

    def recover(self) -> None:
        self._let_go()
        self.start()

    def _let_go(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
        self._pidfd = -1

    def check(self) -> None:
        pass  # its sums are compared from outside

    def close(self) -> None:
        if not self.blown():
            os.kill(self.pid, signal.SIGKILL)
            until(self.blown)
        self._let_go()
        assert self._forks.stdin is not None and self._forks.stdout is not None
        self._forks.stdin.close()
        self._forks.stdout.close()
        self._forks.wait()

    @property
    def client(self) -> Client:
        return Client(self.directory / "api.sock")

    @property
    def shim(self) -> Path:
        return self.directory / "shim.sock"


class FailingNode:
    """One daemon, on a thread, whose handlers raise an exception."""

    deadly = False

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fuse = Fuse(self._raise)
        self.fuse.put_into(monkeypatch.setattr)
        monkeypatch.setattr(core_loop, "PAUSE_AFTER_FAILURE", 0.05)
        self.directory = directory
        self.gpus = gpus()
        self.daemon = InProcess(directory, SETTINGS, self.gpus)

    @staticmethod
    def _raise() -> None:
        raise Blown

    def start(self) -> None:
        self.daemon.start()

    def arm(self, point: str, when: str | int) -> None:
        self.daemon.call(lambda: self.fuse.arm(point, when))

    def xid(self) -> None:
        harmless_fault(self.gpus)

    def blown(self) -> bool:
        return self.fuse.blown

    def recover(self) -> None:
        self.fuse.blown = False

    def check(self) -> None:
        self.daemon.validate()

    def close(self) -> None:
        self.daemon.validate()
        self.daemon.stop()

    @property
    def client(self) -> Client:
        return self.daemon.client

    @property
    def shim(self) -> Path:
        return self.daemon.shim


class Queuer(threading.Thread):
    """What `gpushare run --wait` does: it asks by the job's id until it has an answer, from whatever daemon."""

    def __init__(self, node: Any, name: str, number: int) -> None:
        super().__init__(daemon=True)
        self.node, self.name, self.id = node, name, f"{number:016x}"
        self.ended = threading.Event()
        self.start()

    def run(self) -> None:
        body = {"name": self.name, "command": [self.name], "request": "10Gi", "limit": "10Gi", "gpus": 1}
        body |= {"devices": ["0"], "wait": 600.0, "job": self.id}
        while not self.ended.is_set():
            try:
                self.node.client.register(body, 600.0)
                return
            except DaemonUnreachable:
                self.ended.wait(0.02)
            except GpushareError:
                return

    def is_queued(self) -> bool:
        return self.name in queue(self.node)


def queue(node: Any) -> list[str]:
    waiting = [job for job in node.client.jobs() if job["state"] == "queued"]
    return [job["name"] for job in sorted(waiting, key=lambda job: job["since"])]


class World:
    """Everybody on the node."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.visitors = contextlib.ExitStack()
        self.follower: subprocess.Popen[bytes] | None = None
        self.came: list[ShimClient] = []
        self.borrower = Program(node.shim)
        owner = self.register(OWNER, request="8Gi", limit="12Gi", priority=3, grace=1.5, min_run_time=0.25)
        self.owner = self._settle(ShimClient(node.shim), owner, GPU, 2 * GIB)
        self.alone = ShimClient(node.shim)
        self.alone.hello(request=GIB, limit=2 * GIB, name=ALONE, priority=1, grace_ms=700)
        self.alone.attach(GPU2)
        self.alone.allocate(GIB // 2)
        lending = self.register(BORROWER, request="1Gi", limit="14Gi", grace=60.0)
        self.borrower.call("hello", lending, request=GIB, limit=14 * GIB)
        self.borrower.call("attach", GPU)
        self.borrower.call("allocate", 9 * GIB)
        self.borrower.call("ignore_sigterm")
        self.borrower.call("listen_to_trims")
        node.client.reserve({"name": "kept", "request": "2Gi", "devices": ["1"]})
        self.queuers = []
        for number, name in enumerate((FIRST, SECOND)):
            self.queuers.append(Queuer(node, name, 0xA0 + number))
            until(self.queuers[-1].is_queued)
        until(lambda: all(queuer.id in (node.directory / "state.json").read_text() for queuer in self.queuers))

    def register(self, name: str, **fields: Any) -> str:
        body = {"name": name, "command": [name], "gpus": 1, "devices": ["0"]} | fields
        return self.node.client.register(body)["id"]

    def _settle(self, client: ShimClient, job: str, gpu: str, size: int) -> ShimClient:
        assert client.hello(job).status == lib.GS_OK
        assert client.attach(gpu).status == lib.GS_OK
        assert client.allocate(size) is None or client.word()[0] == size
        return client

    def visitor(self, job: str = OWNER) -> ShimClient:
        """Another process of the job, with a context, until the step is over."""
        client = self.come()
        client.hello(self.node.client.job(job)["id"])
        client.attach(GPU)
        return client

    def come(self) -> ShimClient:
        client = self.visitors.enter_context(ShimClient(self.node.shim))
        self.came.append(client)
        return client

    def leave(self) -> None:
        """All visitors."""
        self.came.clear()
        self.visitors.close()

    def present(self) -> None:
        """All come back to the daemon that is there now; each finds what it had."""
        for visitor in self.came:
            if visitor.map is not None:
                visitor.reconnect(self.node.shim)
                visitor.hello(present=True)
        self.leave()
        for client in (self.owner, self.alone):
            used = client.word()[0]
            client.reconnect(self.node.shim)
            assert client.hello(request=GIB, limit=2 * GIB, present=True).page_id == client.page_id
            assert client.word()[0] == used
        self.borrower.call("reconnect", str(self.node.shim))
        assert self.borrower.call("hello", present=True)["status"] == lib.GS_OK

    def facts(self) -> dict[str, Any]:
        """What must never change."""
        jobs = {
            job["name"]: (
                *(job["id"], job["priority"], job["grace"], job["lend"], job["on_reclaim"], round(job["since"], 1)),
                *((gpu["index"], gpu["request"], gpu["limit"], gpu["accounted"]) for gpu in job["gpus"]),
            )
            for job in self.node.client.jobs()
        }
        kept = [(one["name"], one["gpus"][0]["amount"]) for one in self.node.client.reservations()]
        return {"jobs": jobs, "queue": queue(self.node), "kept": kept}

    def check(self) -> None:
        """The sums, from what anybody can see."""
        status = self.node.client.status()
        for gpu in status["gpus"]:
            on_it = [(job, one) for job in status["jobs"] for one in job["gpus"] if one["uuid"] == gpu["uuid"]]
            given = sum(one["credit"] + one["overhead"] for _, one in on_it)
            assert given + gpu["unmanaged"] + gpu["returning"] <= gpu["capacity"]
            assert gpu["requested"] <= gpu["capacity"]
            for job, one in on_it:
                assert one["credit"] + one["overhead"] <= one["limit"], job["name"]
                assert one["accounted"] <= one["credit"], job["name"]
        self.node.check()

    def close(self) -> None:
        for queuer in self.queuers:
            queuer.ended.set()
        self.leave()
        for client in (self.owner, self.alone):
            client.close()
        self.borrower.close()


# ---- the steps -------------------------------------------------------------------------------------

Step = tuple[Callable[[World], object], Callable[[World], object]]
"""What reaches the handler, and what undoes it."""


def nothing(_: World) -> None:
    pass


def submit(world: World) -> None:
    world.node.client.register({"name": "new", "command": ["new"], "request": "1Gi", "limit": "1Gi", "devices": ["1"]})


def end_new(world: World) -> None:
    for job in [job for job in world.node.client.jobs() if job["name"] == "new"]:
        world.node.client.end(job["id"], 0, None)


def submit_and_end(world: World) -> None:
    submit(world)
    end_new(world)


def refused(call: Callable[[], object]) -> None:
    with contextlib.suppress(GpushareError):
        call()
        raise AssertionError("not refused")


def submit_too_large(world: World) -> None:
    refused(lambda: world.register("large", request="15Gi", limit="15Gi"))


def queue_third(world: World) -> None:
    world.third = Queuer(world.node, "third", 0xA7)
    until(lambda: world.node.blown() or world.third.is_queued())


def leave_queue(world: World) -> None:
    world.third.ended.set()
    with contextlib.suppress(GpushareError):
        world.node.client.end(world.third.id, None, None)
    world.third.join(5)


def queue_and_leave(world: World) -> None:
    queue_third(world)
    world.node.client.end(world.third.id, None, None)


def come_and_go(world: World) -> None:
    world.visitor().close()
    until(lambda: world.node.blown() or len(world.node.client.job(OWNER)["processes"]) == 1)


def visit(world: World) -> None:
    world.visitor().ask(GIB // 2)


def detach(world: World) -> None:
    world.visitor().detach()


def ask_too_much(world: World) -> None:
    world.visitor().ask(20 * GIB)


def claim(world: World) -> None:
    """For memory that the borrower has."""
    world.claimant = world.visitor()
    world.claimant.send_ask(4 * GIB)
    until(lambda: world.node.blown() or world.node.client.job(BORROWER)["state"] == "asked_back")


def take_back(world: World) -> None:
    """The claim, and the process that has made it."""
    world.leave()
    until(lambda: world.node.client.job(BORROWER)["state"] == "borrowing")


def claim_and_take_back(world: World) -> None:
    claim(world)
    world.claimant.disconnect()
    until(lambda: world.node.blown() or world.node.client.job(BORROWER)["state"] == "borrowing")


def revoke(world: World) -> None:
    """Idle credit of the one for the other."""
    idle = world.come()
    idle.hello(request=GIB // 2, limit=4 * GIB, name="idle")
    idle.attach(GPU)
    idle.allocate(2 * GIB)
    idle.free(2 * GIB)
    world.visitor().ask(GIB)


def borrow_for_a_short_time(world: World, on_reclaim: str) -> None:
    """The first borrower to be stopped."""
    world.node.client.register(
        {"name": "short", "command": ["short"], "request": "none", "limit": "8Gi", "devices": ["0"]}
        | {"gpus": 1, "priority": -5, "on_reclaim": on_reclaim}
    )
    world.short = world.visitors.enter_context(contextlib.closing(Program(world.node.shim)))
    world.short.call("hello", world.node.client.job("short")["id"])
    world.short.call("attach", GPU)
    world.short.call("allocate", 2 * GIB)


def kill(world: World) -> None:
    """A borrower that wants no notice."""
    borrow_for_a_short_time(world, "kill")
    world.visitor().send_ask(2 * GIB)
    until(lambda: world.node.blown() or world.short.process.poll() is not None)


def become_anothers(world: World) -> None:
    """A borrower whose program is another user's when it is to be stopped."""
    borrow_for_a_short_time(world, "term,kill")
    world.short.call("become_another_user")
    world.claimant = world.visitor()
    world.claimant.send_ask(2 * GIB)
    until(lambda: world.node.blown() or world.node.client.job(BORROWER)["state"] == "asked_back")


def fail_without_a_daemon(world: World) -> None:
    """A call within the request has failed while there was none."""
    line = world.visitor().line()
    line.unmet += 1
    until(lambda: world.node.blown() or line.unmet_told == line.unmet)


def end_short(world: World) -> None:
    world.leave()
    for job in [job for job in world.node.client.jobs() if job["name"] == "short"]:
        world.node.client.end(job["id"], 0, None)
    until(lambda: world.node.client.job(BORROWER)["state"] == "borrowing")


def reserve(world: World) -> None:
    if all(one["name"] != "more" for one in world.node.client.reservations()):
        world.node.client.reserve({"name": "more", "request": "1Gi", "devices": ["1"]})


def release(world: World) -> None:
    with contextlib.suppress(GpushareError):
        world.node.client.release("more")


def reserve_and_release(world: World) -> None:
    reserve(world)
    world.node.client.release("more")


def reserve_too_much(world: World) -> None:
    refused(lambda: world.node.client.reserve({"name": "all", "request": "15Gi", "devices": ["1"]}))


def change(world: World) -> None:
    world.node.client.change(OWNER, {"limit": "11Gi", "priority": 4})


def change_back(world: World) -> None:
    world.node.client.change(OWNER, {"limit": "12Gi", "priority": 3})


def change_too_much(world: World) -> None:
    refused(lambda: world.node.client.change(OWNER, {"request": "13Gi"}))


def see_xid(world: World) -> None:
    world.node.xid()


def checkpointed(world: World) -> None:
    world.node.client.checkpointed(OWNER)


SLEEPER = "sleeper"


def start_sleeper(world: World) -> None:
    """A job that can be suspended, with its suspender."""
    job = world.register(SLEEPER, request="256Mi", limit="256Mi", devices=["1"], on_reclaim="suspend,kill")
    client = world.come()
    client.hello(job)
    client.attach(GPU2)
    client.page.trim_ready = 1
    follow(world, "fake_suspender.py", job)
    until(lambda: world.node.blown() or is_ready(world, job), 10)


def keep_quiet(world: World) -> None:
    """Answer a daemon that asks for it, as programs whose calls are at the gate."""
    for visitor in world.came:
        if visitor.page is not None:
            visitor.page.trim_begun = visitor.page.trim_done = visitor.page.trim_asked


def follow(world: World, script: str, job: str) -> None:
    socket = str(world.node.directory / "api.sock")
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH}
    world.follower = subprocess.Popen([sys.executable, str(HERE / script), job, socket], env=environ)


def is_ready(world: World, job: str) -> bool:
    """Its suspender has said so: only then can it be suspended."""
    try:
        world.node.client.suspend(job)
        return True
    except GpushareError as error:
        return "suspender" not in error.message


def sleeps(world: World, state: str) -> bool:
    keep_quiet(world)
    return bool(world.node.blown() or world.node.client.job(SLEEPER)["state"] == state)


def suspend(world: World) -> None:
    start_sleeper(world)
    until(lambda: sleeps(world, "suspended"))


def suspend_and_resume(world: World) -> None:
    suspend(world)
    world.node.client.resume(SLEEPER)
    until(lambda: sleeps(world, "running"))


def suspend_and_kill_suspender(world: World) -> None:
    suspend(world)
    end_follower(world)
    until(lambda: world.node.blown() or not world.node.client.resume(SLEEPER)["suspender"])


def suspend_too_much(world: World) -> None:
    refused(lambda: world.node.client.suspend(OWNER))


def end_follower(world: World) -> None:
    if world.follower is not None:
        world.follower.kill()
        world.follower.wait()


def borrow_hooked(world: World) -> None:
    borrow_for_a_short_time(world, "hook,kill")
    job = world.node.client.job("short")["id"]
    follow(world, "fake_hook_runner.py", job)
    until(lambda: world.node.blown() or ready_file(world.node.directory / "api.sock", job).exists(), 10)


def call_hook(world: World) -> None:
    """Of a borrower that is asked before the other."""
    borrow_hooked(world)
    world.claimant = world.visitor()
    world.claimant.send_ask(2 * GIB)
    until(lambda: world.node.blown() or world.short.process.poll() is not None, 10)


def call_hook_and_kill_runner(world: World) -> None:
    borrow_hooked(world)
    end_follower(world)
    until_true(world.node.blown, 1.0)


def end_hooked(world: World) -> None:
    end_follower(world)
    end_short(world)


def end_sleeper(world: World) -> None:
    end_follower(world)
    world.leave()
    for job in [job for job in world.node.client.jobs() if job["name"] == SLEEPER]:
        world.node.client.end(job["id"], 0, None)


def leave(world: World) -> None:
    world.leave()
    until(lambda: len(world.node.client.job(OWNER)["processes"]) == 1)


STEPS: dict[str, Step] = {
    "GpuFound": (nothing, nothing),
    "GpuExamined": (nothing, nothing),
    "JobRestored": (nothing, nothing),
    "ProcessRestored": (nothing, nothing),
    "ReservationRestored": (nothing, nothing),
    "MemorySampled": (nothing, nothing),
    "XidSeen": (see_xid, nothing),
    "JobSubmitted": (submit, end_new),
    "JobAdmitted": (submit, end_new),
    "JobRefused": (submit_too_large, nothing),
    "JobQueued": (queue_third, leave_queue),
    "JobWithdrawn": (queue_and_leave, leave_queue),
    "JobEnded": (submit_and_end, end_new),
    "JobClosed": (submit_and_end, end_new),
    "ProcessJoined": (visit, leave),
    "ProcessGone": (come_and_go, leave),
    "AttachAsked": (visit, leave),
    "Attached": (visit, leave),
    "CreditAsked": (visit, leave),
    "Granted": (visit, leave),
    "Denied": (ask_too_much, leave),
    "Detached": (detach, leave),
    "UsedSeen": (claim, take_back),
    "LookUsed": (claim, take_back),
    "SampleMemory": (claim, take_back),
    "WakeAt": (claim, take_back),
    "TimePassed": (claim, take_back),
    "Trim": (claim, take_back),
    "Terminate": (claim, take_back),
    "AskCancelled": (claim_and_take_back, take_back),
    "Notify": (claim_and_take_back, take_back),
    "Revoke": (revoke, leave),
    "Revoked": (revoke, leave),
    "Kill": (kill, end_short),
    "LeftAlone": (become_anothers, end_short),
    "Unmet": (fail_without_a_daemon, leave),
    "BudgetChanged": (change, change_back),
    "BudgetSet": (change, change_back),
    "BudgetRefused": (change_too_much, nothing),
    "Checkpointed": (checkpointed, nothing),
    "SuspendWanted": (suspend, end_sleeper),
    "SuspendNoted": (suspend, end_sleeper),
    "SuspendRefused": (suspend_too_much, nothing),
    "Suspend": (suspend, end_sleeper),
    "SuspenderAnswered": (suspend, end_sleeper),
    "SuspenderGone": (suspend_and_kill_suspender, end_sleeper),
    "ResumeWanted": (suspend_and_resume, end_sleeper),
    "Resume": (suspend_and_resume, end_sleeper),
    "OpenGate": (suspend_and_resume, end_sleeper),
    "CallHook": (call_hook, end_hooked),
    "HookAnswered": (call_hook, end_hooked),
    "HookRunnerGone": (call_hook_and_kill_runner, end_hooked),
    "ReservationAsked": (reserve, release),
    "ReservationMade": (reserve, release),
    "ReservationRefused": (reserve_too_much, nothing),
    "ReservationEnded": (reserve_and_release, release),
    "Publish": (visit, leave),
    "Persist": (submit, end_new),
    "Log": (submit, end_new),
}

AT_THE_START = ("GpuFound", "GpuExamined", "JobRestored", "ProcessRestored", "ReservationRestored")
"""Of these a daemon dies before it has served anybody; one that fails on them does not come to serve."""

WHEN = ("before", "after")


def test_every_handler_has_a_step():
    assert sorted(STEPS) == sorted(points())


@pytest.fixture
def dying(directory: Path) -> Iterator[DyingNode]:
    node = DyingNode(directory)
    yield node
    node.close()


@pytest.fixture
def failing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingNode]:
    monkeypatch.setattr(process_owner, "ROOT", -1)  # as in crash_daemon.py
    node = FailingNode(directory, monkeypatch)
    yield node
    node.close()


def make_once(world: World, point: str, when: str) -> None:
    """The step, with a daemon that does not outlive it."""
    node, (do, undo) = world.node, STEPS[point]
    if node.deadly and point in AT_THE_START:
        os.kill(node.pid, signal.SIGKILL)
        until(node.blown)
        node._let_go()
        node.start(point, when)
    else:
        node.arm(point, when)
        with contextlib.suppress(*GONE, GpushareError):
            while not node.blown():  # where a sample was fresh already, none is asked for
                do(world)
                if until_true(node.blown, 0.5):
                    break
                undo(world)
    until(node.blown, 10)


def siege(world: World, chosen: list[str]) -> None:
    node = world.node
    before = world.facts()
    world.check()
    for point, when in itertools.product(chosen, WHEN):
        try:
            make_once(world, point, when)
            node.recover()
            if node.deadly:
                world.present()
            else:
                world.leave()
            until_settled(world)
            after = world.facts()
            lost = {name: job for name, job in before["jobs"].items() if after["jobs"].get(name) != job}
            if point not in ("BudgetChanged", "BudgetSet", "Persist", "Log", "Publish"):
                assert lost == {}
            assert after["queue"][:2] == [FIRST, SECOND]
            do, undo = STEPS[point]
            undo(world)
            do(world)
            undo(world)
            world.leave()
            until_settled(world)
            until(lambda: world.facts() == before)
        except BaseException as error:
            error.add_note(f"{when} {point}: now {world.facts()}")
            raise


def until_settled(world: World) -> None:
    def settled() -> bool:
        with contextlib.suppress(AssertionError):
            world.check()
            return True
        return False

    if not until_true(settled):
        world.check()


def until_true(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    try:
        return bool(until(condition, seconds))
    except AssertionError:
        return False


def finish(world: World, directory: Path) -> None:
    """Who queued first is first; and when everybody has left, nothing is left."""
    node = world.node
    node.client.end(OWNER, 0, None)
    world.owner.close()
    node.client.end(BORROWER, 0, None)
    world.borrower.close()
    until(lambda: queue(node) == [SECOND])
    for queuer in world.queuers:
        queuer.ended.set()
        node.client.end(queuer.id, 0, None)
    node.client.release("kept")
    world.alone.close()
    until(lambda: node.client.jobs() == [])
    until(
        lambda: all(gpu["usage"] == gpu["requested"] == gpu["returning"] == 0 for gpu in node.client.status()["gpus"])
    )
    assert list((directory / "pages").iterdir()) == []
    assert len(list((directory / "spare-pages").iterdir())) <= 4
    assert [path.name for path in directory.iterdir() if path.name.startswith(".state")] == []


def test_a_daemon_dies_at_each_handler(dying, directory):
    dying.start()
    world = World(dying)
    try:
        siege(world, list(STEPS))
        finish(world, directory)
    finally:
        world.close()


def test_a_daemon_fails_at_each_handler(failing, directory):
    failing.start()
    world = World(failing)
    try:
        siege(world, [point for point in STEPS if point not in AT_THE_START])
        finish(world, directory)
    finally:
        world.close()


def test_a_core_fails_in_the_middle(failing, directory):
    """At lines all through each handler, and through what it calls: whatever is half changed then, the sums are right
    afterwards, and nothing is lost. GPUSHARE_TEST_FAILURES: so many lines of each."""
    failing.start()
    world = World(failing)
    most = int(os.environ.get("GPUSHARE_TEST_FAILURES", "6"))
    rng = random.Random(os.environ.get("GPUSHARE_TEST_SEED", "1"))
    before = world.facts()
    failures = 0
    try:
        for kind in NodeState()._handlers:
            point = kind.__name__
            if point in AT_THE_START:
                continue
            do, undo = STEPS[point]
            length = 400
            for _ in range(most):
                line = rng.randint(1, length)
                failing.arm(point, line)
                with contextlib.suppress(*GONE, GpushareError):
                    do(world)
                until(lambda: failing.fuse.blown or failing.fuse.passed)
                if failing.fuse.passed:
                    length = max(1, line - 1)
                failures += failing.fuse.blown
                failing.recover()
                world.leave()
                undo(world)
                failing.check()
                do(world)
                undo(world)
                world.leave()
                until_settled(world)
                try:
                    until(lambda: world.facts() == before)
                except AssertionError as error:
                    error.add_note(f"line {line} of {point}: now {world.facts()}")
                    raise
        assert failures >= most
        finish(world, directory)
    finally:
        world.close()


def test_wrong_sums_are_found(failing):
    """By a look at them, now and then: nobody has failed."""
    failing.start()
    world = World(failing)
    try:
        before = world.facts()

        def forge() -> None:
            failing.daemon.shell.core.gpus[GPU].committed -= GIB
            failing.daemon.shell.core_loop.check()

        failing.daemon.call(forge)
        assert failing.daemon.shell.core_loop.errors == 1
        world.check()
        assert world.facts() == before
    finally:
        world.close()


def test_a_core_that_fails_whenever_time_passes_serves_all_the_same(failing, monkeypatch):
    """Whoever waits then is refused in the end; others have what they ask for."""
    monkeypatch.setattr(clock, "time_passed", fail)
    failing.start()
    world = World(failing)
    try:
        before = world.facts()
        answer = world.visitor().ask(4 * GIB)
        assert answer.status == lib.GS_NOT_FREE and "the daemon failed on this request" in answer.text
        assert world.visitor().ask(GIB // 2).status == lib.GS_OK
        world.leave()
        until(lambda: world.facts() == before)
    finally:
        world.close()


def test_a_daemon_that_cannot_make_another_core_ends_and_its_successor_has_all(dying):
    dying.start(NO_REBUILD)
    world = World(dying)
    try:
        before = world.facts()
        with contextlib.suppress(DaemonUnreachable):
            dying.client.checkpointed(OWNER)
        until(dying.blown)
        assert "its state cannot be rebuilt" in (dying.directory / "test.log").read_text()
        dying.recover()
        world.present()
        until_settled(world)
        until(lambda: world.facts() == before)
    finally:
        world.close()
