"""What a submission says, and what becomes of one that comes again or fails on its way."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import GIB, GPU, PYTHONPATH, InProcess, until
from fixed_gpus import FixedGpus

from gpushare.quantity import MAX, NOTHING
from gpushared.api import submit_routes
from gpushared.gpus.inventory import GpuInfo
from gpushared.jobs.registry import JobState

JOB = "00000000000000a1"
FULL = {"name": "first", "command": ["x"], "request": "12Gi", "limit": "12Gi", "devices": ["0"]}
WAITS = {"name": "second", "command": ["x"], "request": "6Gi", "limit": "6Gi", "devices": ["0"], "wait": 60, "job": JOB}


def post(daemon: InProcess, **body: Any) -> tuple[int, dict[str, Any]]:
    status, answer = daemon.http("POST", "/v1/jobs", json.dumps(body).encode())
    return status, json.loads(answer)


def refused(daemon: InProcess, **body: Any) -> tuple[int, str, str]:
    status, answer = post(daemon, **body)
    assert "error" in answer, answer
    return status, answer["error"]["code"], answer["error"]["message"]


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def capacity(daemon: InProcess) -> int:
    return int(daemon.client.status()["gpus"][0]["capacity"])


# ---- what it says -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"name": "train", "command": ["/bin/python", "t.py"]}, "train"),
        ({"command": ["/bin/python", "t.py"]}, "python"),
        ({"name": "", "command": ["/opt/tool/"]}, "tool"),
        ({"command": []}, "job"),
        ({}, "job"),
        ({"name": "x" * 256}, "x" * 256),
        ({"name": "a\tb"}, "a?b"),
    ],
    ids=str,
)
def test_the_name_of_a_job(daemon: InProcess, body: dict[str, Any], name: str) -> None:
    status, made = post(daemon, **body)
    assert (status, made["name"]) == (201, name)
    assert daemon.client.job(name)["id"] == made["id"], "it is found by the whole of it"


def test_a_job_that_says_nothing_has_the_defaults(daemon: InProcess) -> None:
    _, made = post(daemon)
    (gpu,) = made["gpus"]
    spec = daemon.shell.registry.get(made["id"]).spec
    assert (spec.request, spec.limit, spec.gpus, spec.devices, spec.reservation) == (NOTHING, MAX, 1, None, "")
    assert (spec.observe, spec.command, spec.priority, spec.lend) == (False, (), 0, True)
    assert (made["request_source"], made["limit_source"]) == ("", "")
    assert (gpu["request"], gpu["limit"]) == (0, capacity(daemon)), "all that may be lent"


def test_where_a_budget_comes_from_is_told_up_to_a_length(daemon: InProcess) -> None:
    said = {"request": "1Gi", "limit": "2Gi", "cwd": "/"}
    _, made = post(daemon, **said, request_source="r" * 4096, limit_source="a file")
    assert (made["request_source"], made["limit_source"]) == ("r" * 256, "a file")
    assert refused(daemon, **said, request_source="r" * 4097)[1] == "bad_request"


@pytest.mark.parametrize("mode", [None, "enforce", "observe"])
def test_a_job_that_is_only_observed_has_no_budget(daemon: InProcess, mode: str | None) -> None:
    _, made = post(daemon, name="x", mode=mode, request="1Gi", limit="2Gi", request_source="here")
    spec = daemon.shell.registry.get(made["id"]).spec
    assert spec.observe is (mode == "observe") and made["request_source"] == "here"
    assert made["state"] == ("observed" if mode == "observe" else "running")
    budget = {(gpu["request"], gpu["limit"]) for gpu in made["gpus"]}
    assert budget == ({(0, capacity(daemon))} if mode == "observe" else {(GIB, 2 * GIB)})


def test_a_mode_that_is_none_is_named(daemon: InProcess) -> None:
    message = "mode 'watch\\x1b' is neither enforce nor observe"
    status, code, words = refused(daemon, mode="watch")
    assert (status, code, words) == (400, "bad_request", message.replace("\\x1b", ""))
    assert "x" * 21 not in refused(daemon, mode="x" * 99)[2] and daemon.client.jobs() == []


def test_a_reservation_that_is_not_there_is_named(daemon: InProcess) -> None:
    made = daemon.client.reserve({"name": "night", "request": "2Gi"})
    for name in ("night", made["id"]):
        job = post(daemon, request="1Gi", reservation=name)[1]["id"]
        assert daemon.shell.registry.get(job).spec.reservation == made["id"]
    assert refused(daemon, reservation="day")[:2] == (404, "no_such_reservation")
    assert refused(daemon, reservation="d" * 65)[:2] == (400, "bad_request")
    assert daemon.shell.registry.get(post(daemon, reservation="")[1]["id"]).spec.reservation == ""


@pytest.mark.parametrize("field", ["request", "limit"])
def test_an_amount_that_is_none_is_named_with_its_field(daemon: InProcess, field: str) -> None:
    assert refused(daemon, **{field: "4g"})[2].startswith(f"the {field}: ")
    assert refused(daemon, **{field: "4" * 65})[2] == f"{field} is not a text of at most 64 characters"


@pytest.mark.parametrize("job", ["g" * 16, "0" * 16, "a" * 15, "A" * 16])
def test_an_id_that_is_none(daemon: InProcess, job: str) -> None:
    assert refused(daemon, job=job)[1:] == ("bad_request", f"{job!r} is not a job's id")
    assert daemon.client.jobs() == []


# ---- the same again ---------------------------------------------------------------------------------


def test_a_wrapper_that_comes_again_has_its_job_and_no_second_one(daemon: InProcess) -> None:
    status, made = post(daemon, name="x", command=["x"], request="1Gi", limit="2Gi", job=JOB)
    assert (status, made["id"]) == (201, JOB)
    open_before = descriptors()
    for _ in range(3):
        status, again = post(daemon, name="x", command=["x"], request="1Gi", limit="2Gi", job=JOB)
        assert (status, again["id"], again["state"]) == (200, JOB, "running")
    until(lambda: descriptors() <= open_before + 1)  # the handle of the first call is closed
    assert len(daemon.client.jobs()) == 1
    daemon.client.end(JOB, 0, None)
    status, third = post(daemon, name="x", command=["x"], request="1Gi", limit="2Gi", job=JOB)
    assert (status, third["state"]) == (201, "running"), "after its end it is another one"


def as_another_process(daemon: InProcess, body: dict[str, Any]) -> list[str]:
    """The code and the message of the refusal."""
    program = (
        "import json, sys; from pathlib import Path; from gpushare.client import Client\n"
        "from gpushare.errors import GpushareError\n"
        "try:\n    Client(Path(sys.argv[1])).register(json.loads(sys.argv[2]))\n"
        "except GpushareError as error:\n    print(json.dumps([error.code, error.message]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(daemon.client.api_socket), json.dumps(body)],
        env={"PYTHONPATH": PYTHONPATH},
        capture_output=True,
        check=True,
    )
    return list(json.loads(done.stdout))


class Call:
    """A submission that waits for its answer."""

    def __init__(self, daemon: InProcess, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(5)
        self.sock.connect(str(daemon.directory / "api.sock"))
        self.sock.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)

    def status(self) -> int:
        return int(self.sock.recv(65536).split(b" ")[1])


def test_a_queued_job_belongs_to_the_process_that_submitted_it(daemon: InProcess) -> None:
    first = daemon.client.register(FULL)
    call = Call(daemon, WAITS)
    until(lambda: len(daemon.client.jobs()) == 2)
    assert as_another_process(daemon, WAITS) == ["bad_request", f"job {JOB} still waits for room"]
    assert daemon.client.job(JOB)["state"] == "queued"
    first_admission = daemon.shell.registry.get(JOB).admission
    again = Call(daemon, WAITS)
    until(lambda: daemon.shell.registry.get(JOB).admission is not first_admission)
    call.sock.close()  # the call that was replaced ends: the job keeps its place
    time.sleep(0.1)
    assert daemon.client.job(JOB)["state"] == "queued"
    daemon.client.end(first["id"], 0, None)
    until(lambda: daemon.client.job(JOB)["state"] == "running")
    assert again.status() == 200, "the later call is answered: its job is there already"
    again.sock.close()


def test_without_a_wrapper_nobody_has_a_queued_job(daemon: InProcess) -> None:
    """As after a restart whose wrapper has gone; the job is about to be dropped."""
    daemon.client.register(FULL)
    call = Call(daemon, WAITS)
    until(lambda: len(daemon.client.jobs()) == 2)
    record = daemon.shell.registry.get(JOB)
    wrapper, record.wrapper = record.wrapper, None
    assert refused(daemon, **WAITS) == (400, "bad_request", f"job {JOB} still waits for room")
    record.wrapper = wrapper
    call.sock.close()
    until(lambda: daemon.shell.registry.get(JOB) is None)


# ---- failures ---------------------------------------------------------------------------------------


def test_a_caller_that_cannot_be_seen_is_told_why(daemon: InProcess, monkeypatch) -> None:
    monkeypatch.setattr(submit_routes.Process, "open", lambda pid: None)
    assert refused(daemon)[:2] == (403, "invisible_process")
    assert refused(daemon)[2] == "the daemon cannot see the calling process" and daemon.client.jobs() == []


@pytest.mark.parametrize("where", ["core", "later"])
def test_a_submission_on_which_the_core_fails_leaves_nothing(daemon: InProcess, monkeypatch, where: str) -> None:
    kind = "JobSubmitted" if where == "core" else "JobAdmitted"
    before, handle = descriptors(), type(daemon.shell.core).handle
    if where == "core":

        def fails(core: Any, event: Any, now: float) -> Any:
            if type(event).__name__ == kind:
                raise RuntimeError("a bug")
            return handle(core, event, now)

        monkeypatch.setattr(type(daemon.shell.core), "handle", fails)
    else:
        admitted = next(one for one in daemon.shell.core_loop.effects if one.__name__ == kind)
        monkeypatch.setitem(daemon.shell.core_loop.effects, admitted, lambda done: 1 / 0)
    status, code, words = refused(daemon, name="x", job=JOB)
    assert (status, code, words) == (500, "internal", "the daemon failed on this request")
    monkeypatch.undo()
    assert daemon.shell.registry.get(JOB) is None and daemon.client.jobs() == []
    until(lambda: descriptors() <= before + 1)
    daemon.call(lambda: setattr(daemon.shell.core_loop, "errors", 0))
    assert post(daemon, name="x", job=JOB)[0] == 201


def test_a_refusal_leaves_neither_a_record_nor_a_handle(daemon: InProcess) -> None:
    daemon.client.register(FULL)
    size, before = daemon.shell.limits.bytes.of(os.geteuid()), descriptors()
    for _ in range(5):
        assert refused(daemon, request="6Gi", limit="6Gi", devices=["0"])[:2] == (409, "not_admitted")
        assert refused(daemon, request="99Gi", limit="99Gi")[1] == "too_large"
        assert refused(daemon, request="8Gi", limit="4Gi")[1] == "request_over_limit"
        assert refused(daemon, colour="blue")[1] == "unknown_field"
    assert len(list(daemon.shell.registry.all())) == 1 and daemon.shell.limits.bytes.of(os.geteuid()) == size
    until(lambda: descriptors() <= before + 1)


def test_how_soon_to_try_again_grows_with_the_queue(daemon: InProcess) -> None:
    daemon.client.register(FULL)
    body = json.dumps({"request": "6Gi", "limit": "6Gi", "devices": ["0"]}).encode()

    def retry_after() -> float:
        return float(json.loads(daemon.http("POST", "/v1/jobs", body)[1])["error"]["retry_after"])

    alone = retry_after()
    calls = [Call(daemon, WAITS | {"job": f"{number:016x}"}) for number in (1, 2)]
    until(lambda: len(daemon.client.jobs()) == 3)
    assert retry_after() == 3 * alone > 0
    for call in calls:
        call.sock.close()
    until(lambda: len(daemon.client.jobs()) == 1)


def test_a_job_that_waits_is_withdrawn_by_a_stop_and_its_caller_hears_so(daemon: InProcess) -> None:
    daemon.client.register(FULL)
    call = Call(daemon, WAITS)
    until(lambda: len(daemon.client.jobs()) == 2)
    notes = daemon.directory / "state.json"
    until(lambda: JOB in json.loads(notes.read_text())["jobs"])
    stopped = daemon.client.stop(JOB, now=False)
    assert (stopped["job"]["state"], stopped["processes"], stopped["spared"]) == ("queued", 0, 0)
    assert JOB not in json.loads(notes.read_text())["jobs"], "it is answered when it is noted"
    assert daemon.shell.registry.get(JOB) is None and JOB not in daemon.shell.core.jobs
    call.sock.settimeout(10)
    assert b"409" in call.sock.recv(4096).partition(b"\r\n")[0]
    call.sock.close()


def handles() -> int:
    """Of processes."""
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += "pidfd" in str(one.readlink())
    return found


def test_a_second_call_for_a_job_that_waits_takes_over_and_the_job_keeps_its_wrapper(daemon: InProcess) -> None:
    before = handles()
    first = daemon.client.register(FULL)
    call = Call(daemon, WAITS)
    until(lambda: len(daemon.client.jobs()) == 2)
    assert handles() == before + 2, "of the wrapper of each job"
    admission = daemon.shell.registry.get(JOB).admission
    again = Call(daemon, WAITS)
    until(lambda: daemon.shell.registry.get(JOB).admission is not admission)
    daemon.client.end(first["id"], 0, None)
    again.sock.settimeout(10)
    assert again.sock.recv(4096).startswith(b"HTTP/1.1 200")
    for one in (call, again):
        one.sock.close()
    until(lambda: not daemon.daemon.api.guard.listener._connections)
    until(lambda: handles() <= before + 1)
    wrapper = daemon.shell.registry.get(JOB).wrapper
    assert handles() == before + 1 and wrapper.alive(), "the end of the first call is not the end of the job's wrapper"


@pytest.mark.parametrize(
    ("method", "what", "body"),
    [("PUT", "/main", {"pid": os.getpid()}), ("POST", "/stop", {}), ("PATCH", "", {"priority": 3})],
)
def test_nothing_is_done_with_a_job_that_has_ended(daemon: InProcess, method, what, body) -> None:
    job = daemon.client.register({"name": "train", "command": ["x"]})["id"]
    daemon.client.end(job, 3, None)
    status, said = daemon.http(method, f"/v1/jobs/{job}{what}", json.dumps(body).encode())
    error = json.loads(said)["error"]
    assert (status, error["code"], error["message"]) == (404, "no_such_job", f"job train ({job}) has ended")
    record = daemon.shell.registry.get(job)
    assert record.main is None and record.spec.priority == 0 and record.ending.exit_code == 3


def test_a_job_that_is_admitted_while_its_caller_hangs_up_is_ended(daemon: InProcess) -> None:
    first = daemon.client.register(FULL)
    call = Call(daemon, WAITS)
    until(lambda: len(daemon.client.jobs()) == 2)
    call.sock.close()
    until(lambda: daemon.shell.registry.get(JOB) is None)
    daemon.client.end(first["id"], 0, None)
    assert daemon.client.jobs() == [] and daemon.call(lambda: dict(daemon.shell.core.jobs)) == {}


def test_its_patience_is_counted_from_its_submission(make_daemon) -> None:
    daemon = make_daemon(FixedGpus([GpuInfo(GPU, 0, "Test GPU", 16 * GIB)]))
    daemon.client.register(FULL)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(post(daemon, **WAITS | {"wait": 0.2})))
    thread.start()
    until(lambda: daemon.shell.registry.get(JOB) is not None)
    record = daemon.shell.registry.get(JOB)
    assert record.patience == pytest.approx(record.began + 0.2) and record.state is JobState.QUEUED
    thread.join(5)
    assert answers[0][1]["error"]["code"] == "wait_over" and daemon.shell.registry.get(JOB) is None
    assert Path(daemon.directory / "state.json").exists()
