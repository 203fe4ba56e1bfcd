"""Nobody has the daemon signal what it could not signal itself: a job's process may become another user's by exec."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_harness import until
from other_user import ALICE, CAROL, as_user, needs_root

from gpushare import stop as from_the_command_line
from gpushare.process_owner import may_signal, users_of
from gpushare.reasons import Code, Reason
from gpushared.core.instructions import Kill, Terminate
from gpushared.jobs.registry import stop
from gpushared.system.processes import Process, Sent

pytestmark = needs_root
WHY = Reason(Code.RECLAIM, "wanted back", data={})


@pytest.fixture
def setuid_program() -> Iterator[Path]:
    """Becomes root's altogether, as sudo and su do, and sleeps. In a directory whose file system allows that."""
    source = """
        #include <unistd.h>
        int main(void) { if (setgid(0) || setuid(0)) return 9; sleep(60); return 0; }
    """
    with tempfile.TemporaryDirectory(prefix="gs-setuid-", dir="/var/tmp") as directory:
        Path(directory).chmod(0o755)
        program = Path(directory) / "become-root"
        subprocess.run(["cc", "-x", "c", "-o", str(program), "-"], input=source.encode(), check=True)
        program.chmod(0o4755)
        yield program


def start_as(uid: int, *command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, user=uid, group=uid, extra_groups=[])


@contextlib.contextmanager
def becoming_roots(uid: int, program: Path) -> Iterator[tuple[subprocess.Popen[bytes], Process]]:
    """A process that we met as this user's, and that is root's now."""
    with subprocess.Popen(
        ["/bin/sh", "-c", f"read line; exec {program}"], user=uid, group=uid, extra_groups=[], stdin=subprocess.PIPE
    ) as child:
        met = Process.open(child.pid)
        assert met is not None
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.close()
        until(lambda: users_of(child.pid) == (0, 0))
        try:
            yield child, met
        finally:
            met.close()
            child.kill()


def test_the_kernels_rule():
    """Real or saved, not effective: as kill(2) has it."""
    assert may_signal(ALICE, (ALICE, ALICE)) and may_signal(ALICE, (ALICE, 0)) and may_signal(ALICE, (0, ALICE))
    assert not may_signal(ALICE, (0, 0)) and not may_signal(ALICE, (CAROL, CAROL))
    assert may_signal(0, (ALICE, CAROL)), "root"
    assert users_of(os.getpid()) == (0, 0) and users_of(2**22) is None
    with start_as(ALICE, "sleep", "60") as child:
        assert users_of(child.pid) == (ALICE, ALICE)
        child.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_has_executed_a_setuid_program_is_left_alone(setuid_program, number):
    with becoming_roots(ALICE, setuid_program) as (child, met):
        assert as_user(ALICE, lambda: _kill(child.pid)) == "PermissionError", "its user could not"
        assert met.send(number, ALICE) is Sent.NOT_THEIRS
        time.sleep(0.1)
        assert child.poll() is None
        assert met.send(number, 0) is Sent.REACHED, "root's own job"
        child.wait(5)
        assert met.send(number, ALICE) is Sent.GONE


def _kill(pid: int) -> str:
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError as error:
        return type(error).__name__
    return "done"


def test_a_process_of_the_user_is_signalled_and_one_of_another_start_is_not():
    with start_as(ALICE, "sleep", "60") as child:
        met = Process.open(child.pid)
        assert met.send(signal.SIGTERM, CAROL) is Sent.NOT_THEIRS
        met.start_time += 1
        assert met.send(signal.SIGTERM, ALICE) is Sent.NOT_THEIRS
        met.start_time -= 1
        assert child.poll() is None
        assert met.send(signal.SIGTERM, ALICE) is Sent.REACHED
        assert child.wait(5) == -signal.SIGTERM
        met.close()
        assert met.send(signal.SIGTERM, ALICE) is Sent.GONE


class Node:
    """A job of Alice whose main process is root's by now."""

    def __init__(self, daemon, program: Path) -> None:
        self.daemon = daemon
        self.pipe, ours = os.pipe()
        self.wrapper = os.fork()
        if self.wrapper == 0:
            self._wrap(program, ours)
        os.close(ours)
        said = b""
        while not said.endswith(b"\n"):
            said += os.read(self.pipe, 1000)
        self.job, self.pid = json.loads(said)
        until(lambda: users_of(self.pid) == (0, 0))

    def _wrap(self, program: Path, said: int) -> None:
        try:
            os.setgroups([])
            os.setgid(ALICE)
            os.setuid(ALICE)
            client = self.daemon.client
            job = client.register({"name": "j", "command": ["j"], "request": "1Mi", "limit": "1Mi", "gpus": 1})["id"]
            go, gone = os.pipe()
            child = os.fork()
            if child == 0:
                os.read(go, 1)
                os.execv(program, [str(program)])
            client.set_main(job, child)
            os.write(gone, b"x")
            os.write(said, json.dumps([job, child]).encode() + b"\n")
            time.sleep(60)
        finally:
            os._exit(0)

    def close(self) -> None:
        for pid in (self.pid, self.wrapper):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.waitpid(self.wrapper, 0)
        os.close(self.pipe)


@pytest.fixture
def node(make_daemon, setuid_program) -> Iterator[Node]:
    node = Node(make_daemon(system=True), setuid_program)
    yield node
    node.close()


def alive(pid: int) -> bool:
    return users_of(pid) is not None and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_the_daemon_leaves_it_alone_and_says_so(node, caplog):
    shell, entry = node.daemon.shell, node.daemon.shell.registry.get(node.job)
    assert entry.main.pid == node.pid

    def act():
        for event in [shell.stopper.kill(Kill(node.job, (), WHY))]:
            assert event is not None
            shell.feed(event)

    with caplog.at_level("INFO", "gpushared"):
        node.daemon.call(act)
    time.sleep(0.2)
    assert alive(node.pid)
    told = [one for one in node.daemon.client.story(node.job)["story"] if one["event"] == "left_alone"]
    assert len(told) == 1 and told[0]["facts"] == {"pid": node.pid}
    assert any("belongs to another user" in record.getMessage() for record in caplog.records)
    assert entry.ending.reclaim is None, "what becomes of it is not our doing"
    assert b"gpushare_left_alone_total 1.0" in node.daemon.http("GET", "/metrics")[1]


def test_a_reclaim_of_a_program_that_has_become_roots_goes_on_with_others(node):
    """Terminate names processes with pages only; the main process is for the kill."""
    shell = node.daemon.shell
    assert node.daemon.call(lambda: shell.stopper.terminate(Terminate(node.job, (), 1.0, WHY))) is None
    entry = shell.registry.get(node.job)
    assert entry.ending.reclaim is not None
    sent = node.daemon.call(lambda: stop(entry, [], signal.SIGKILL))
    assert list(sent.values()) == [Sent.NOT_THEIRS]
    assert node.daemon.call(lambda: stop(entry, [entry.main], signal.SIGKILL)) == {entry.main: Sent.NOT_THEIRS}


def test_root_asks_a_users_job_to_stop_and_not_what_it_has_executed(node):
    """`gpushare stop` and the key in top, called by root."""
    said = from_the_command_line.ask_to_stop(node.daemon.client, node.job)
    assert said.endswith("SIGTERM to 0 processes; 1 process left alone: another user's by now")
    assert node.daemon.client.stop(node.job, now=True)["spared"] == 1
    assert alive(node.pid)
    told = [one for one in node.daemon.client.records() if one["job"] == node.job and one["event"] == "left_alone"]
    assert [one["text"] for one in told] == [
        f"process {node.pid} was not signalled: it belongs to another user than the job now"
    ] * 2, "once for each signal"
    assert node.daemon.shell.core.counters.left_alone == 2
