"""A daemon is killed and started again: no job notices, nothing is forgotten."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time

import pytest
from daemon_harness import GIB, GPU, GPU2, until

from gpushare._layout import lib
from gpushare.errors import DaemonUnreachable
from gpushare.job_spec import JobSpec
from gpushare.quantity import MAX, NOTHING
from gpushared.jobs.registry import JobRegistry
from gpushared.limits.byte_budget import ByteBudget


def submit(node, name="a", **fields):
    body = {"name": name, "command": [name], "request": "4Gi", "limit": "8Gi", "gpus": 1, "devices": ["0"]}
    return node.client.register(body | fields)


def start(node, program, job):
    one = program(node.shim)
    assert one.call("hello", job["id"], request=4 * GIB, limit=8 * GIB)["status"] == lib.GS_OK
    assert one.call("attach", GPU)["status"] == lib.GS_OK
    return one


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_everything_is_as_it_was(node, program, how):
    node.start()
    job = submit(node, grace=2.5, priority=3)
    one = start(node, program, job)
    one.call("allocate", 5 * GIB)
    before = node.client.job("a")
    assert node.stop() == 0 if how == "stopped" else node.kill() is None
    if how == "stopped":
        assert not (node.directory / "api.sock").exists() and not (node.directory / "shim.sock").exists()
    assert one.process.poll() is None
    one.call("free", GIB)  # nobody is there, and nobody is needed
    node.start()
    after = node.client.job("a")
    for key in ("id", "name", "command", "priority", "grace", "processes", "state"):
        if key != "processes":
            assert after[key] == before[key], key
    gpu = after["gpus"][0]
    assert (gpu["request"], gpu["limit"], gpu["accounted"]) == (4 * GIB, 8 * GIB, 4 * GIB)
    assert gpu["credit"] == before["gpus"][0]["credit"] and gpu["overhead"] == before["gpus"][0]["overhead"]
    assert abs(after["since"] - before["since"]) < 0.01
    # The shim comes back with its page, the wrapper with its job.
    one.call("reconnect", str(node.shim))
    again = one.call("hello", job["id"], request=4 * GIB, limit=8 * GIB, present=True)
    assert again["status"] == lib.GS_OK and again["page_id"] == before_page(node)
    assert one.call("ask", 5 * GIB)["status"] == lib.GS_OVER_LIMIT
    assert submit(node, job=job["id"])["id"] == job["id"]
    assert len(node.client.jobs()) == 1
    node.client.end(job["id"], 0, None)
    one.close()
    until(lambda: node.client.jobs() == [])


def before_page(node):
    (page,) = (node.directory / "pages").iterdir()
    return int(page.name, 16)


def test_what_died_meanwhile_is_gone(node, program):
    node.start()
    job = submit(node)
    one = start(node, program, job)
    other = start(node, program, job)
    node.kill()
    one.close()
    node.start()
    (left,) = node.client.job("a")["processes"]
    assert left["pid"] == other.pid
    assert len(list((node.directory / "pages").iterdir())) == 1


def test_a_job_whose_wrapper_died_meanwhile_ends_with_its_processes(node, program):
    import subprocess
    import sys

    node.start()
    code = f"""if 1:
        from pathlib import Path
        from gpushare.client import Client
        client = Client(Path({str(node.directory / "api.sock")!r}))
        print(client.register({{"name": "w", "command": ["w"], "request": "1Gi", "limit": "2Gi", "gpus": 1}})["id"])
        input()
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-uc", code], **pipes) as wrapper:
        job = wrapper.stdout.readline().strip()
        one = program(node.shim)
        one.call("hello", job, request=GIB, limit=2 * GIB)
        node.kill()
        wrapper.kill()
    node.start()
    assert node.client.job(job)["state"] == "running"
    one.close()
    until(lambda: node.client.jobs() == [])


def test_a_job_whose_wrapper_died_meanwhile_lasts_as_long_as_its_program(node):
    import subprocess
    import sys

    node.start()
    code = f"""if 1:
        import subprocess, sys
        from pathlib import Path
        from gpushare.client import Client
        client = Client(Path({str(node.directory / "api.sock")!r}))
        job = client.register({{"name": "w", "command": ["w"], "request": "1Gi", "limit": "2Gi", "gpus": 1}})
        main = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        client.set_main(job["id"], main.pid)
        print(job["id"], main.pid)
        input()
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-uc", code], **pipes) as wrapper:
        job, main = wrapper.stdout.readline().split()
        node.kill()
        wrapper.kill()
    node.start()
    assert node.client.job(job)["state"] == "running"
    os.kill(int(main), signal.SIGKILL)
    until(lambda: node.client.jobs() == [])


def test_the_file_of_the_first_version_is_read(node, caplog):
    """As it was written then. A later format changes nothing in this test."""
    amount = {"kind": "bytes", "value": 2147483648, "text": "2Gi"}
    spec = {
        **{"name": "night", "uid": os.getuid(), "user": "alice", "command": ["python"], "request": amount},
        **{"limit": amount, "gpus": 1, "devices": None, "priority": 0, "grace": None, "lend": True},
        **{"min_run_time": 0.0, "on_reclaim": ["trim", "term", "kill"], "request_source": "", "limit_source": ""},
        **{"reservation": "", "observe": False},
    }
    reservation = {"reservation": "a" * 16, "spec": spec, "amounts": {GPU: 2 * GIB}, "since": 990.0, "until": None}
    core = {"now": 1000.0, "overheads": {}, "reservations": [reservation]}
    text = json.dumps({"version": 2, "time": time.time(), "boot": None, "core": core, "jobs": {}})
    (node.directory / "state.json").write_text(text)
    node.start()
    (found,) = node.client.reservations()
    assert (found["name"], found["gpus"][0]["amount"]) == ("night", 2 * GIB)
    assert [one.message for one in caplog.records if "notes" in one.message] == []


@pytest.mark.parametrize("notes", [None, b"", b"not json", b'{"version": 9}', b'{"version":1,"core":{}}', b"[1]"])
def test_jobs_are_rebuilt_from_pages_when_the_notes_are_lost(node, program, notes):
    node.start()
    job = submit(node, priority=5, grace=1.5)
    one = start(node, program, job)
    one.call("allocate", 5 * GIB)
    node.kill()
    state = node.directory / "state.json"
    state.unlink() if notes is None else state.write_bytes(notes)
    node.start()
    found = node.client.job(job["id"])
    assert (found["name"], found["priority"], found["grace"]) == ("a", 5, 1.5)
    gpu = found["gpus"][0]
    assert (gpu["request"], gpu["limit"], gpu["accounted"]) == (4 * GIB, 8 * GIB, 5 * GIB)


def test_a_family_of_the_environment_alone_stays_one_job(node, program):
    node.start()
    one = program(node.shim)
    parent = one.call("hello", request=GIB, limit=2 * GIB)
    one.call("attach", GPU)
    node.kill()
    node.start()
    child = one.call("fork_and_hello", GIB, 2 * GIB, False)
    assert child["job_id"] == parent["job_id"]
    one.close()
    until(lambda: node.client.jobs() == [])


def test_a_job_keeps_its_age(make_daemon):
    """It counts for its minimum run time, and for what would be lost with it."""
    first = make_daemon()
    job = submit(first)
    since = first.shell.core.jobs[job["id"]].since
    time.sleep(0.3)
    first.stop()
    time.sleep(1.0)
    second = make_daemon()
    assert abs(second.shell.core.jobs[job["id"]].since - since) < 0.5


def test_notes_are_private_and_whole(node):
    node.start()
    job = submit(node)
    state = node.directory / "state.json"
    until(lambda: state.exists() and job["id"] in state.read_text())
    assert state.stat().st_mode & 0o777 == 0o600
    assert json.loads(state.read_text())["jobs"][job["id"]]["wrapper"][0] == os.getpid()
    assert [path.name for path in node.directory.iterdir() if "state.json." in path.name] == []


def test_killed_again_and_again_under_load(node, program):
    """The limit holds over all of it, and the sums are right at the end."""
    node.start()
    job = submit(node, devices=["1"])
    one = program(node.shim)
    assert one.call("hello", job["id"], request=4 * GIB, limit=8 * GIB)["status"] == lib.GS_OK
    assert one.call("attach", GPU2)["status"] == lib.GS_OK
    used = 0
    for round_ in range(8):
        size = (round_ + 1) * 200 * 2**20
        answer = one.call("allocate", size)
        assert answer is None or answer["status"] == lib.GS_OK
        used += size
        node.kill()
        node.start()
        one.call("reconnect", str(node.shim))
        assert one.call("hello", job["id"], request=4 * GIB, limit=8 * GIB, present=True)["status"] == lib.GS_OK
        gpu = node.client.job("a")["gpus"][0]
        assert gpu["accounted"] == used and gpu["usage"] <= gpu["limit"] and gpu["credit"] >= used
    assert one.call("ask", 4 * GIB)["status"] == lib.GS_OVER_LIMIT


def test_a_job_that_was_ended_does_not_come_back(node):
    """Its wrapper lives on, as a Python program does that has several jobs one after the other."""
    node.start()
    job = submit(node)
    node.client.end(job["id"], 0, None)
    node.kill()  # before anything could be written down later
    node.start()
    assert node.client.jobs() == []


@pytest.mark.parametrize("meanwhile", [True, False])
def test_an_ended_job_ends_with_its_last_process(node, program, meanwhile):
    node.start()
    job = submit(node)
    one = start(node, program, job)
    node.client.end(job["id"], 0, None)
    node.kill()
    if meanwhile:
        one.close()
    node.start()
    if not meanwhile:
        assert node.client.job("a")["state"] == "running"  # the process is still there
        one.close()
    until(lambda: node.client.jobs() == [])


def test_a_job_submitted_again_is_not_forgotten_with_its_first_submission():
    """A call that breaks off is noticed late: its wrapper may have come again by then, with the same id."""
    book, spec = JobRegistry(None, ByteBudget(lambda _: False)), spec_of_nobody()
    first = book.open("00000000000000b0", spec)
    second = book.open("00000000000000b0", spec)
    book.forget(first)
    assert book.get("00000000000000b0") is second


def spec_of_nobody() -> JobSpec:
    return JobSpec(name="b", uid=0, user="root", command=(), request=NOTHING, limit=MAX)


def test_a_limit_of_the_environment_alone_outlives_the_notes(node, program):
    """Before the program has opened a GPU: no line of its page says anything yet."""
    node.start()
    one = program(node.shim)
    one.call("hello", request=GIB, limit=2 * GIB, priority=2)
    node.kill()
    (node.directory / "state.json").unlink(missing_ok=True)
    node.start()
    one.call("reconnect", str(node.shim))
    assert one.call("hello", request=GIB, limit=2 * GIB, present=True)["status"] == lib.GS_OK
    assert one.call("attach", GPU)["status"] == lib.GS_OK
    (gpu,) = node.client.jobs()[0]["gpus"]
    assert (gpu["request"], gpu["limit"]) == (GIB, 2 * GIB)
    assert one.call("ask", 3 * GIB)["status"] == lib.GS_OVER_LIMIT


def test_a_changed_limit_outlives_the_notes(node, program):
    node.start()
    job = submit(node)
    start(node, program, job)
    node.client.change("a", {"limit": "6Gi"})
    node.kill()
    (node.directory / "state.json").unlink()
    node.start()
    assert node.client.job("a")["gpus"][0]["limit"] == 6 * GIB


def test_a_second_attach_leaves_the_overhead_in_the_ledger(node, program):
    node.start()
    one = start(node, program, submit(node))
    before = node.client.job("a")["gpus"][0]["overhead"]
    assert one.call("attach", GPU)["status"] == lib.GS_OK
    node.kill()
    node.start()
    assert node.client.job("a")["gpus"][0]["overhead"] == before > 0


def test_a_program_that_has_not_come_back_may_become_another_one(node, program):
    node.start()
    one = start(node, program, submit(node))
    one.call("allocate", GIB)
    node.kill()
    node.start()
    one.send("exec_sleep")
    until(lambda: node.client.job("a")["processes"] == [])
    assert one.process.poll() is None and list((node.directory / "pages").iterdir()) == []


def test_a_saved_checkpoint_is_remembered(make_daemon):
    first = make_daemon()
    job = submit(first)["id"]
    first.client.checkpointed(job)
    saved = first.shell.core.jobs[job].saved_at
    first.stop()
    second = make_daemon()
    assert abs(second.shell.core.jobs[job].saved_at - saved) < 0.5


def test_a_queued_job_keeps_its_place_and_its_patience(make_daemon):
    def ask(daemon, answers):
        body = {"name": "b", "command": ["b"], "request": "14Gi", "limit": "14Gi", "devices": ["0"], "wait": 60.0}
        with contextlib.suppress(DaemonUnreachable):
            answers.append(daemon.client.register(body | {"job": "00000000000000b0"}, 60.0))

    first = make_daemon()
    job = submit(first)
    answers: list[dict[str, object]] = []
    waiting = threading.Thread(target=ask, args=(first, answers), daemon=True)
    waiting.start()
    until(lambda: len(first.client.jobs()) == 2)
    (before,) = first.shell.core.state.queue.values()
    first.stop()  # an orderly end: the call breaks off, the place is kept
    second = make_daemon()
    (after,) = second.shell.core.state.queue.values()
    assert abs(after.since - before.since) < 0.5 and abs(after.until - before.until) < 0.5
    again = threading.Thread(target=ask, args=(second, answers), daemon=True)
    again.start()
    second.client.end(job["id"], 0, None)
    again.join(5)
    assert [one["state"] for one in answers] == ["running"]
    second.client.end("b", 0, None)
