"""How the daemon learns that a process is gone, and how it makes one go."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from daemon_harness import GIB, GPU, until
from shim_client import MIB

from gpushare import api
from gpushare._layout import lib
from gpushare.reasons import Code, Reason
from gpushared.jobs.registry import killed_facts
from gpushared.system.processes import is_stopped


def submit(daemon, name, request, limit, **fields):
    body = {"name": name, "command": [name], "request": request, "limit": limit, "gpus": 1, "devices": ["0"]}
    return daemon.client.register(body | fields)


def start(daemon, program, job, request, limit):
    one = program(daemon.shim)
    assert one.call("hello", job["id"], request=request, limit=limit)["status"] == lib.GS_OK
    assert one.call("attach", GPU)["status"] == lib.GS_OK
    return one


def processes(daemon, job):
    return daemon.client.job(job["id"])["processes"]


def pages(daemon):
    return list((daemon.directory / "pages").iterdir())


def test_a_killed_process_takes_its_page_with_it(daemon, program):
    job = submit(daemon, "a", "4Gi", "8Gi")
    one = start(daemon, program, job, 4 * GIB, 8 * GIB)
    one.call("allocate", 3 * GIB)
    one.call("refuse")
    assert len(pages(daemon)) == 1
    one.close()
    until(lambda: processes(daemon, job) == [] and pages(daemon) == [])
    assert daemon.client.job(job["id"])["gpus"][0]["peak"] >= 3 * GIB
    assert daemon.client.end(job["id"], 0, None)["outcome"]["refusals"] == 1
    daemon.validate()


def test_a_job_is_stopped_when_all_its_processes_are(daemon, program):
    job = submit(daemon, "a", "1Gi", "8Gi")
    first, second = (start(daemon, program, job, GIB, 8 * GIB) for _ in range(2))

    def state():
        return daemon.client.job(job["id"])["state"]

    assert state() == "running"
    first.process.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(first.process.pid))
    assert state() == "running"
    second.call("allocate", 3 * GIB)
    assert state() == "borrowing"
    second.process.send_signal(signal.SIGSTOP)
    until(lambda: state() == "stopped")
    first.process.send_signal(signal.SIGCONT)
    second.process.send_signal(signal.SIGCONT)
    until(lambda: state() == "borrowing")


def test_a_stopped_borrower_runs_on_when_its_loan_is_wanted_back(daemon, program):
    """Its handler of SIGTERM gives the memory back within the grace."""
    loan = submit(daemon, "loan", "none", "14Gi", grace=20.0, on_reclaim="term,kill")
    borrower = start(daemon, program, loan, 0, 14 * GIB)
    borrower.call("allocate", 12 * GIB)
    borrower.call("free_on_sigterm", 12 * GIB)
    borrower.process.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(borrower.process.pid))
    owner = start(daemon, program, submit(daemon, "owner", "8Gi", "8Gi"), 8 * GIB, 8 * GIB)
    assert owner.call("allocate", 6 * GIB)["status"] == lib.GS_OK
    assert borrower.process.poll() is None and not is_stopped(borrower.process.pid)
    assert daemon.client.job(loan["id"])["gpus"][0]["usage"] < GIB


def test_a_lost_connection_is_not_the_end(daemon, program):
    job = submit(daemon, "a", "4Gi", "8Gi")
    one = start(daemon, program, job, 4 * GIB, 8 * GIB)
    one.call("allocate", 3 * GIB)
    one.call("disconnect")
    until(lambda: daemon.call(lambda: all(client.disconnect is None for client in daemon.shell.clients)))
    time.sleep(0.1)
    assert len(processes(daemon, job)) == 1
    one.call("allocate", 32 * MIB)  # from its credit, without us
    one.call("reconnect", str(daemon.shim))
    assert one.call("hello", job["id"], request=4 * GIB, limit=8 * GIB, present=True)["status"] == lib.GS_OK
    assert daemon.client.job(job["id"])["gpus"][0]["accounted"] == 3 * GIB + 32 * MIB
    assert one.call("ask", GIB)["status"] == lib.GS_OK


def test_exec_ends_it(daemon, program):
    """The pid and its start time are the same, and its connection has ended (close-on-exec)."""
    job = submit(daemon, "a", "4Gi", "8Gi")
    one = start(daemon, program, job, 4 * GIB, 8 * GIB)
    one.call("allocate", 3 * GIB)
    one.send("exec_sleep")
    until(lambda: processes(daemon, job) == [])
    assert one.process.poll() is None, "the program after exec is nobody's victim"
    daemon.validate()


@pytest.mark.parametrize("end", ["death", "disconnection"])
def test_a_process_with_several_asks_goes_as_a_whole(make_daemon, program, end):
    """Two of its threads wait, the second for what the first is to have: when the first ask is taken back, the second
    could be met."""
    daemon = make_daemon(claim_timeout=60.0)
    borrower_job = submit(daemon, "borrower", "none", "14Gi", grace=30.0)
    borrower = start(daemon, program, borrower_job, 0, 14 * GIB)
    borrower.call("ignore_sigterm")
    borrower.call("allocate", 7 * GIB)
    job = submit(daemon, "owner", "13Gi", "13Gi")
    owner = start(daemon, program, job, 13 * GIB, 13 * GIB)
    owner.call("send_ask", 11 * GIB)
    owner.call("send_ask", GIB)
    until(lambda: daemon.call(lambda: [len(gpu.asks) for gpu in daemon.shell.core.gpus.values()]) == [2, 0])
    if end == "death":
        owner.close()
        until(lambda: processes(daemon, job) == [])
        assert daemon.client.end(job["id"], 0, None)
    else:
        owner.call("disconnect")
    until(lambda: daemon.call(lambda: not daemon.shell.core.gpus[GPU].asks and not daemon.shell.core_loop.asks.open))
    daemon.validate()


@pytest.mark.parametrize("end", ["death", "disconnection"])
def test_a_claim_that_nobody_waits_for_any_more_kills_nobody(daemon, program, end):
    borrower_job = submit(daemon, "borrower", "1Gi", "14Gi", grace=30.0)
    borrower = start(daemon, program, borrower_job, GIB, 14 * GIB)
    borrower.call("ignore_sigterm")
    borrower.call("allocate", 12 * GIB)
    owner_job = submit(daemon, "owner", "8Gi", "8Gi")
    owner = start(daemon, program, owner_job, 8 * GIB, 8 * GIB)
    owner.call("send_ask", 7 * GIB)
    until(lambda: daemon.client.job("borrower")["state"] == "asked_back")
    assert daemon.client.job("owner")["state"] == "waiting"
    if end == "death":
        owner.close()
    else:
        owner.call("disconnect")
    until(lambda: daemon.client.job("borrower")["state"] == "borrowing", 1.5)
    assert borrower.process.poll() is None
    daemon.validate()


def test_a_borrower_is_asked_and_then_killed(daemon, program):
    borrower_job = submit(daemon, "borrower", "1Gi", "14Gi", grace=0.3)
    events = daemon.client.events(borrower_job["id"])
    borrower = start(daemon, program, borrower_job, GIB, 14 * GIB)
    borrower.call("ignore_sigterm")
    borrower.call("allocate", 12 * GIB)
    owner_job = submit(daemon, "owner", "8Gi", "8Gi")
    owner = start(daemon, program, owner_job, 8 * GIB, 8 * GIB)
    started = time.monotonic()
    answer = owner.call("allocate", 7 * GIB)
    waited = time.monotonic() - started
    assert answer["status"] == lib.GS_OK and waited > 0.3
    assert borrower.process.wait(5) == -signal.SIGKILL
    notices = []
    until(lambda: notices.extend(events.read()) or "killed" in [notice["kind"] for notice in notices])
    events.close()
    assert [notice["kind"] for notice in notices] == ["asked_back", "killed"]
    assert "owner" in notices[1]["text"] and notices[1]["facts"]["asked"] > 6 * GIB
    outcome = daemon.client.end(borrower_job["id"], None, 9)["outcome"]
    assert outcome["killed"]["owner"] == "owner" and outcome["killed"]["loan"] > 11 * GIB
    assert outcome["signal"] == 9 and outcome["peak"][GPU] >= 12 * GIB
    ended = daemon.client.job(borrower_job["id"])
    assert ended["state"] == "ended" and ended["outcome"] == outcome
    assert "kill" in [record["event"] for record in daemon.client.story(borrower_job["id"])["story"]]
    daemon.validate()


def test_a_borrower_that_gives_back_in_time_lives_on(daemon, program):
    borrower_job = submit(daemon, "borrower", "1Gi", "14Gi", grace=5.0)
    borrower = start(daemon, program, borrower_job, GIB, 14 * GIB)
    borrower.call("allocate", 12 * GIB)
    borrower.call("free_on_sigterm", 11 * GIB + 600 * MIB)
    owner_job = submit(daemon, "owner", "8Gi", "8Gi")
    owner = start(daemon, program, owner_job, 8 * GIB, 8 * GIB)
    assert owner.call("allocate", 7 * GIB)["status"] == lib.GS_OK
    until(lambda: daemon.client.job("borrower")["state"] == "running")
    assert borrower.process.poll() is None
    outcome = daemon.client.end(borrower_job["id"], 0, None)["outcome"]
    assert outcome["killed"] is None
    daemon.validate()


def test_the_main_process_goes_with_the_job(daemon, program):
    """Also when it has no GPU open itself: a shell script around the program."""
    import subprocess

    borrower_job = submit(daemon, "borrower", "1Gi", "14Gi", grace=0.1)
    with subprocess.Popen(["sleep", "60"]) as main:
        daemon.client.set_main(borrower_job["id"], main.pid)
        borrower = start(daemon, program, borrower_job, GIB, 14 * GIB)
        borrower.call("ignore_sigterm")
        borrower.call("allocate", 12 * GIB)
        owner_job = submit(daemon, "owner", "8Gi", "8Gi")
        owner = start(daemon, program, owner_job, 8 * GIB, 8 * GIB)
        assert owner.call("allocate", 7 * GIB)["status"] == lib.GS_OK
        assert main.wait(5) == -signal.SIGKILL


def test_a_detached_gpu_costs_nothing_more(daemon, program):
    job = submit(daemon, "a", "4Gi", "8Gi")
    one = start(daemon, program, job, 4 * GIB, 8 * GIB)
    assert daemon.client.job("a")["gpus"][0]["overhead"] > 0
    assert one.call("detach")["status"] == lib.GS_OK
    assert daemon.client.job("a")["gpus"][0]["overhead"] == 0
    again = one.call("attach", GPU)
    assert (again["status"], again["line"]) == (lib.GS_OK, 0)
    daemon.validate()


@pytest.mark.parametrize("kind", ["wrapper", "job"])
def test_a_job_ends_with_its_wrapper(daemon, program, kind):
    import subprocess
    import sys

    code = f"""if 1:
        import sys, time
        from pathlib import Path
        from gpushare.client import Client
        client = Client(Path({str(daemon.directory / "api.sock")!r}))
        job = client.register({{"name": "w", "command": ["w"], "request": "1Gi", "limit": "2Gi", "gpus": 1}})
        print(job["id"], flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as wrapper:
        job = wrapper.stdout.readline().strip()
        one = program(daemon.shim)
        one.call("hello", job, request=GIB, limit=2 * GIB)
        if kind == "wrapper":
            wrapper.kill()
            time.sleep(0.2)
            # Its process still lives: the job stays until that has gone too.
            assert len(processes(daemon, {"id": job})) == 1
            one.close()
        else:
            one.close()
            until(lambda: processes(daemon, {"id": job}) == [])
            assert daemon.client.job(job)["state"] == "running"
            wrapper.kill()
    until(lambda: daemon.client.jobs() == [])


def test_a_job_lasts_as_long_as_its_program_when_the_wrapper_is_killed(daemon, program):
    """Between two processes that use the GPU nothing of the job has a page, and its request stays its own."""
    import subprocess
    import sys

    code = f"""if 1:
        import os, subprocess, sys, time
        from pathlib import Path
        from gpushare.client import Client
        client = Client(Path({str(daemon.directory / "api.sock")!r}))
        job = client.register({{"name": "w", "command": ["w"], "request": "6Gi", "limit": "6Gi", "gpus": 1}})
        main = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        client.set_main(job["id"], main.pid)
        print(job["id"], main.pid, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as wrapper:
        job, main = wrapper.stdout.readline().split()
        wrapper.kill()
    one = program(daemon.shim)
    assert one.call("hello", job, request=6 * GIB, limit=6 * GIB)["status"] == lib.GS_OK
    one.call("attach", GPU)
    one.close()
    until(lambda: processes(daemon, {"id": job}) == [])
    time.sleep(0.2)
    shown = daemon.client.job(job)
    assert shown["state"] == "running" and shown["gpus"][0]["request"] == 6 * GIB
    os.kill(int(main), signal.SIGKILL)
    until(lambda: daemon.client.jobs() == [])


NOTHING = {
    "claim": None,
    "owner": None,
    "owner_user": None,
    "asked": 0,
    "got": 0,
    "loan": 0,
    "request": 0,
    "grace": 0.0,
}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"usage": 9, "over": 4, "limit": 5, "request": 3, "loan": 2}, {"usage": 9, "request": 3, "loan": 2, "got": 2}),
        ({"usage": 9, "grace": 1.5, "victim": "a"}, {"usage": 9, "grace": 1.5}),
        (
            {"owner": "a1", "owner_name": "train", "owner_user": "ann", "asked": 7, "usage": 9, "request": 3, "loan": 6}
            | {"grace": 2.5},
            {"owner": "train", "owner_user": "ann", "asked": 7, "usage": 9, "request": 3, "loan": 6, "got": 6}
            | {"grace": 2.5},
        ),
    ],
    ids=["overuse", "stuck", "reclaim"],
)
def test_an_outcome_says_of_a_kill_what_is_known_and_of_the_rest_nothing(data, told):
    found = killed_facts(Reason(Code.RECLAIM, "why", data=data))
    assert found.pop("code") == "reclaim" and found.pop("reason") == "why" and found.pop("time") > 0
    assert found == NOTHING | told
    assert api.fits({**found, "code": "reclaim", "reason": "why", "time": 1.0}, api.Killed)


def test_connections_that_come_again_cost_no_descriptors(daemon, program):
    """Each brings a handle of the process with it; one is enough."""
    job = submit(daemon, "a", "1Gi", "8Gi")
    one = start(daemon, program, job, GIB, 8 * GIB)

    def again() -> int:
        one.call("reconnect", str(daemon.shim))
        assert one.call("hello", job["id"], present=True)["status"] == lib.GS_OK
        assert one.call("ask", MIB)["status"] == lib.GS_OK
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    first = again()
    assert max(again() for _ in range(20)) < first + 10


def test_without_a_job_gpus_are_hardly_looked_at(make_daemon, program):
    """A node that does nothing shall cost nothing; a job is looked after at once."""
    daemon = make_daemon(sample_interval=0.02)
    asked, sample = [], daemon.gpus.sample
    daemon.gpus.sample = lambda gpu: asked.append(gpu) or sample(gpu)
    time.sleep(0.4)
    assert asked == []
    submit(daemon, "a", "1Gi", "8Gi")
    until(lambda: len(asked) > 4)
