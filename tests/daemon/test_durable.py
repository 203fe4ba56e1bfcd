"""Nothing is answered as done before it is written down; what cannot be written down is refused, and not done."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import GIB, GPU, HERE, PYTHONPATH, Subprocess, until

from gpushare.client import Client
from gpushare.errors import DaemonUnreachable, GpushareError, NotNoted
from gpushared.jobs import commits


def submit(client: Client, name: str = "a", **fields: Any) -> Any:
    body = {"name": name, "command": [name], "request": "4Gi", "limit": "8Gi", "gpus": 1, "devices": ["0"]}
    return client.register(body | fields)


def noted(directory: Path) -> dict[str, Any]:
    """What a daemon that starts now would read."""
    return dict(json.loads((directory / "state.json").read_text()))


def requests(directory: Path) -> list[int]:
    return [one["note"]["spec"]["request"]["value"] for one in noted(directory)["jobs"].values()]


KEPT = "it is done, but the next daemon will not know of it"


class Blocked:
    """The notes cannot be written: where the new file would be made, a directory stands."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / ".state.json.new"

    def __enter__(self) -> Blocked:
        self.path.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        if self.path.exists():
            self.path.rmdir()


@pytest.fixture
def blocked(directory: Path) -> Callable[[], Blocked]:
    return lambda: Blocked(directory)


def refused(question: Callable[[], Any]) -> GpushareError:
    with pytest.raises(GpushareError) as caught:
        question()
    assert caught.value.code == "not_noted", caught.value
    assert "cannot write its notes: Is a directory" in caught.value.message
    assert caught.value.hint is not None and "state.json" in caught.value.hint
    assert type(caught.value) is NotNoted and caught.value.exit_code != 0
    return caught.value


def test_an_admission_that_cannot_be_noted_is_refused_and_leaves_nothing(daemon, blocked):
    client = daemon.client
    with blocked():
        refused(lambda: submit(client, request="12Gi", limit="12Gi"))
        assert client.jobs(ended=True) == []
        assert client.status()["gpus"][0]["requested"] == 0
    assert submit(client, request="12Gi", limit="12Gi")["state"] == "running"
    assert requests(daemon.directory) == [12 * GIB]


def test_it_is_an_answer_507(daemon, blocked):
    with blocked():
        body = json.dumps({"request": "1Gi", "name": "kept"}).encode()
        status, answer = daemon.http("POST", "/v1/reservations", body)
    assert status == 507
    assert json.loads(answer)["error"]["code"] == "not_noted"


def test_a_change_that_cannot_be_noted_is_not_made(daemon, blocked):
    client = daemon.client
    job = submit(client)
    with blocked():
        refused(lambda: client.change(job["id"], {"request": "2Gi", "limit": "3Gi", "priority": 7}))
        found = client.job(job["id"])
        assert (found["gpus"][0]["request"], found["gpus"][0]["limit"]) == (4 * GIB, 8 * GIB)
        assert found["priority"] == 0
        # What is refused for its own reason is refused for that, and a dry run promises nothing.
        with pytest.raises(GpushareError) as caught:
            client.change(job["id"], {"request": "17Gi"})
        assert caught.value.code == "too_large"
        assert client.change(job["id"], {"limit": "5Gi", "dry_run": True})["after"]["gpus"][0]["limit"] == 5 * GIB
    assert client.change(job["id"], {"limit": "5Gi"})["after"]["gpus"][0]["limit"] == 5 * GIB


def test_a_change_is_in_the_notes_before_it_is_answered(daemon, monkeypatch):
    """And only once it can be there is it made."""
    client = daemon.client
    job = submit(client)
    seen = []
    feed = daemon.shell.core_loop.feed

    def watched(event: Any) -> None:
        if type(event).__name__ == "BudgetChanged":
            (one,) = noted(daemon.directory)["jobs"].values()
            spec = one["note"]["spec"]
            seen.append((spec["request"]["value"], spec["limit"]["value"], spec["priority"]))
        feed(event)

    monkeypatch.setattr(daemon.shell.core_loop, "feed", watched)
    client.change(job["id"], {"request": "2Gi", "priority": 7})
    assert seen == [(2 * GIB, 8 * GIB, 7)]
    until(lambda: requests(daemon.directory) == [2 * GIB])


def test_a_reservation_that_cannot_be_noted_is_not_made_nor_released(daemon, blocked):
    client = daemon.client
    with blocked():
        refused(lambda: client.reserve({"request": "9Gi", "name": "kept"}))
        assert client.reservations() == []
        assert client.status()["gpus"][0]["requested"] == 0
    client.reserve({"request": "9Gi", "name": "kept"})
    assert [one["spec"]["name"] for one in noted(daemon.directory)["core"]["reservations"]] == ["kept"]
    with blocked():
        refused(lambda: client.release("kept"))
        assert [one["name"] for one in client.reservations()] == ["kept"]
    client.release("kept")
    assert noted(daemon.directory)["core"]["reservations"] == []
    assert client.reservations() == []


def test_only_the_reservation_that_is_released_leaves_the_notes(daemon, monkeypatch):
    client = daemon.client
    for name in ("one", "two"):
        client.reserve({"request": "1Gi", "name": name})
    seen = []
    feed = daemon.shell.feed

    def watched(event: Any) -> None:
        seen.append([one["spec"]["name"] for one in noted(daemon.directory)["core"]["reservations"]])
        feed(event)

    monkeypatch.setattr(daemon.shell, "feed", watched)
    client.release("one")
    assert seen[0] == ["two"], "the notes come first"


def test_a_main_program_that_cannot_be_noted_is_not_kept(daemon, blocked):
    client = daemon.client
    job = submit(client)
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        client.set_main(job["id"], children[0].pid)
        with blocked():
            refused(lambda: client.set_main(job["id"], children[1].pid))
        assert daemon.call(lambda: daemon.shell.registry.get(job["id"]).main.pid) == children[0].pid
        client.set_main(job["id"], children[1].pid)
        (one,) = noted(daemon.directory)["jobs"].values()
        assert one["main"][0] == children[1].pid
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_checkpoint_is_answered_when_it_is_noted(daemon, blocked):
    client = daemon.client
    job = submit(client)
    with blocked():
        assert KEPT in str(refused(lambda: client.checkpointed(job["id"])).hint)
    client.checkpointed(job["id"])
    (one,) = noted(daemon.directory)["jobs"].values()
    assert one["note"]["saved"] is not None


def is_suspendable(client: Client, job: str) -> bool:
    """Its suspender is there. Then the job is suspended."""
    with contextlib.suppress(GpushareError):
        client.suspend(job)
    return bool(client.job(job)["state"] == "suspended")


def test_a_suspension_that_cannot_be_noted_happens_and_its_answer_says_so(daemon, blocked, program):
    client = daemon.client
    job = submit(client, on_reclaim="suspend,kill")["id"]
    one = program(daemon.shim)
    one.call("hello", job=job)
    one.call("attach", GPU)
    one.call("answer_trims")
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH}
    follower = subprocess.Popen(
        [sys.executable, str(HERE / "fake_suspender.py"), job, str(daemon.directory / "api.sock")], env=environ
    )
    try:
        until(lambda: is_suspendable(client, job), 60)  # a process starts
        with blocked():
            for ask, state in ((client.resume, "running"), (client.suspend, "suspended")):
                hint = str(refused(lambda ask=ask: ask(job)).hint)
                assert hint.startswith(f"{KEPT}; make room for ")
                until(lambda state=state: client.job(job)["state"] == state, 30)
    finally:
        follower.kill()
        follower.wait()


def test_an_end_is_told_all_the_same_and_noted_later(daemon, blocked, monkeypatch):
    monkeypatch.setattr(commits, "AGAIN", 0.05)
    client = daemon.client
    job = submit(client)
    with blocked():
        assert client.end(job["id"], 3, None)["outcome"]["exit_code"] == 3
        assert client.jobs() == []
        assert requests(daemon.directory) == [4 * GIB]
    until(lambda: requests(daemon.directory) == [])


def test_it_is_said_once_in_the_log_and_once_that_it_is_over(daemon, blocked, monkeypatch, caplog):
    monkeypatch.setattr(commits, "AGAIN", 0.01)
    monkeypatch.setattr(commits.log, "propagate", True)
    client = daemon.client
    with blocked():
        for _ in range(3):
            refused(lambda: submit(client))
        until(lambda: not daemon.call(lambda: daemon.shell.registry.get("a")))
    until(lambda: "the notes are written again" in caplog.text)
    assert caplog.text.count("cannot write the notes: nothing new is promised") == 1
    assert caplog.text.count("the notes are written again") == 1


def test_a_file_that_could_not_be_written_leaves_no_litter(daemon, monkeypatch):
    """Some file systems say that they are full only when asked to have it all."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GpushareError, match="No space left on device"):
        submit(daemon.client)
    assert not (daemon.directory / ".state.json.new").exists()
    assert daemon.client.jobs() == []


def test_who_has_hung_up_leaves_nothing_either(daemon, monkeypatch):
    """Admitted, but not yet noted, and the client is gone."""
    monkeypatch.setattr(daemon.shell.commits, "_not_before", daemon.call(daemon.loop.time) + 0.5)
    with pytest.raises(DaemonUnreachable):
        submit(Client(daemon.directory / "api.sock", timeout=0.1))
    until(lambda: daemon.client.jobs(ended=True) == [])
    until(lambda: requests(daemon.directory) == [] if (daemon.directory / "state.json").exists() else False)


def test_submissions_of_one_moment_share_writes(daemon, monkeypatch):
    written = []
    write = daemon.shell._state_file.write

    def counted(*arguments: Any) -> None:
        began = daemon.loop.time()
        write(*arguments)
        written.append(began)
        until(lambda: daemon.loop.time() > began + 0.02)  # a slow disk

    monkeypatch.setattr(daemon.shell._state_file, "write", counted)
    threads = [
        threading.Thread(target=submit, args=(daemon.client, f"j{n}"), kwargs={"request": "1Mi"}) for n in range(30)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(daemon.client.jobs()) == 30
    assert len(written) < 20
    pauses = [late - early for early, late in itertools.pairwise(written)]
    assert min(pauses) >= 0.039, "half of the time is for others"


# ---- a crash between the note and the answer -------------------------------------------------------


DIES = f"""
import os, signal, sys
sys.argv = ["fixed_daemon.py", sys.argv[1]]
sys.path.insert(0, {str(HERE)!r})
import asyncio
from pathlib import Path
import fixed_daemon
from gpushared.jobs.state_file import StateFile

write = StateFile.write
def last(self, *arguments):
    before = os.path.exists(self.path.with_name("die-before"))
    if before:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, *arguments)
    if os.path.exists(self.path.with_name("die-after")):
        os.kill(os.getpid(), signal.SIGKILL)
StateFile.write = last
asyncio.run(fixed_daemon.main(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_job_submitted_again_under_its_id_is_one_job(directory, when):
    node = Subprocess(directory, {}, fixed=True)
    normal = node.command
    node.command = [sys.executable, "-c", DIES, str(directory)]
    node.start()
    try:
        (directory / f"die-{when}").touch()
        with pytest.raises(DaemonUnreachable):
            submit(node.client, "new", job="00000000000000b0")
        assert node.process is not None and node.process.wait(10) == -signal.SIGKILL
        (directory / f"die-{when}").unlink()
        node.command = normal
        node.start()
        assert submit(node.client, "new", job="00000000000000b0")["id"] == "00000000000000b0"
        assert [job["name"] for job in node.client.jobs()] == ["new"]
    finally:
        node.stop()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["submit", "change", "reserve", "release"])
def test_killed_at_the_note_the_change_is_whole_or_not_there(directory, when, what):
    node = Subprocess(directory, {}, fixed=True)
    normal = node.command
    node.command = [sys.executable, "-c", DIES, str(directory)]
    node.start()
    try:
        job = submit(node.client, request="2Gi")
        node.client.reserve({"request": "1Gi", "name": "old"})
        (directory / f"die-{when}").touch()
        steps: dict[str, Callable[[], Any]] = {
            "submit": lambda: submit(node.client, "new"),
            "change": lambda: node.client.change(job["id"], {"request": "3Gi"}),
            "reserve": lambda: node.client.reserve({"request": "5Gi", "name": "new"}),
            "release": lambda: node.client.release("old"),
        }
        with pytest.raises(DaemonUnreachable):
            steps[what]()
        assert node.process is not None and node.process.wait(10) == -signal.SIGKILL
        (directory / f"die-{when}").unlink()
        node.command = normal
        node.start()
        jobs = {one["name"]: one["gpus"][0]["request"] for one in node.client.jobs()}
        kept = {one["name"] for one in node.client.reservations()}
        done = when == "after"
        assert jobs["a"] == (3 * GIB if done and what == "change" else 2 * GIB)
        assert ("new" in jobs) == (done and what == "submit")
        assert ("new" in kept) == (done and what == "reserve")
        assert ("old" in kept) == (not (done and what == "release"))
    finally:
        if node.process is not None and node.process.poll() is None:
            node.kill()


# ---- a file system that is really full, or read-only -----------------------------------------------


def unshared(*command: str) -> list[str]:
    more = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *more, "--mount", "--propagation", "private", *command]


@pytest.fixture
def own_mounts() -> Iterator[None]:
    try:
        tried = subprocess.run(unshared("mount", "-t", "tmpfs", "none", "/mnt"), capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if tried.returncode:
        pytest.skip(f"no mounts of our own here: {tried.stderr.decode().strip()}")
    yield


ON_A_SMALL_DISK = f"""
import subprocess, sys
from pathlib import Path
directory, kind = Path(sys.argv[1]), sys.argv[2]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "none", str(directory)], check=True)
sys.path.insert(0, {str(HERE)!r})
from daemon_harness import Subprocess
from gpushare.errors import GpushareError

node = Subprocess(directory, {{}}, fixed=True)
node.log = directory.with_name(directory.name + ".log")
node.start()
body = {{"name": "a", "command": ["a"], "request": "4Gi", "limit": "8Gi", "gpus": 1, "devices": ["0"]}}
job = node.client.register(body)["id"]
node.client.reserve({{"request": "1Gi", "name": "old"}})

def fill():
    if kind == "readonly":
        subprocess.run(["mount", "--bind", str(directory), str(directory)], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(directory)], check=True)
        return
    with open(directory / "ballast", "wb", buffering=0) as ballast:
        try:
            while ballast.write(b"x" * 512):
                pass
        except OSError:
            pass

def clear():
    if kind == "readonly":
        subprocess.run(["umount", str(directory)], check=True)
    else:
        (directory / "ballast").unlink()

def refused(question):
    try:
        question()
    except GpushareError as error:
        assert error.code == "not_noted", error
        assert ("Read-only file system" if kind == "readonly" else "No space left on device") in error.message
        return
    raise AssertionError("answered as done")

def show():
    (one,) = node.client.jobs()
    return one["gpus"][0]["request"], one["gpus"][0]["limit"], [one["name"] for one in node.client.reservations()]

before = show()
try:
    fill()
    refused(lambda: node.client.change(job, {{"limit": "5Gi"}}))
    refused(lambda: node.client.reserve({{"request": "2Gi", "name": "new"}}))
    refused(lambda: node.client.release("old"))
    refused(lambda: node.client.register({{**body, "name": "b"}}))
    assert show() == before == (4 * 2**30, 8 * 2**30, ["old"]), show()
    node.kill()
    clear()
    node.start()
    assert show() == before, show()
    node.client.change(job, {{"limit": "5Gi"}})
    node.client.release("old")
    node.kill()
    node.start()
    assert show() == (4 * 2**30, 5 * 2**30, []), show()
    node.kill()
finally:
    node.kill()
print("held")
"""


@pytest.mark.parametrize("kind", ["full", "readonly"])
@pytest.mark.usefixtures("own_mounts")
def test_on_a_disk_that_is_full_or_read_only(directory, kind):
    inner = directory / "run"
    inner.mkdir()
    command = unshared(sys.executable, "-c", ON_A_SMALL_DISK, str(inner), kind)
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "held\n", done.stderr
