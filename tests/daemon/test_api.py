"""The HTTP+JSON API: what it answers, and how it refuses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from daemon_harness import GIB, GPU, GPU2, until
from fixed_gpus import FixedGpus
from prometheus_client.parser import text_string_to_metric_families

from gpushare._layout import lib
from gpushare.errors import NoSuchJob, NotPermitted, Refused, UsageError
from gpushared.gpus.inventory import GpuInfo, Sample

JOB = {"name": "train", "command": ["train.py", "--fast"], "request": "4Gi", "limit": "14Gi", "gpus": 1}


def register(daemon, **fields):
    return daemon.client.register(JOB | fields)


def test_version_and_status(daemon):
    version = daemon.client.version()
    assert version["pid"] == os.getpid() and version["scope"] == "user" and version["protocol"] == 1
    register(daemon)
    status = daemon.client.status()
    assert [gpu["uuid"] for gpu in status["gpus"]] == [GPU, GPU2]
    gpu = status["gpus"][0]
    assert gpu["capacity"] == gpu["total"] - gpu["reserve"] == gpu["free"]
    assert sum(one["requested"] for one in status["gpus"]) == 4 * GIB
    assert status["daemon"]["jobs"] == len(status["jobs"]) == 1


def test_a_job_from_registration_to_its_end(daemon):
    job = register(daemon, request_source="--request", limit_source="--limit", priority=2, grace=7, cwd="/tmp")
    assert job["state"] == "running" and job["uid"] == os.getuid() and job["command"] == ["train.py", "--fast"]
    assert (job["gpus"][0]["request"], job["gpus"][0]["limit"]) == (4 * GIB, 14 * GIB)
    assert job["priority"] == 2 and job["grace"] == 7 and job["request_source"] == "--request"
    assert job["gpus"][0]["grantable"] == 14 * GIB
    for name in (job["id"], job["id"][:4], job["id"][:4].upper(), "train"):
        assert daemon.client.job(name)["id"] == job["id"]
    with pytest.raises(NoSuchJob):
        daemon.client.job(job["id"][:3])
    ended = daemon.client.end(job["id"], 3, None)
    assert ended["outcome"]["exit_code"] == 3 and ended["outcome"]["killed"] is None
    assert ended["job"]["state"] == "ended"
    assert daemon.client.jobs() == [] and daemon.client.job("train")["outcome"]["exit_code"] == 3
    again = daemon.client.end(job["id"], 9, None)
    assert again["outcome"]["exit_code"] == 3, "the first word counts"
    events = [record["event"] for record in daemon.client.story(job["id"])["story"]]
    assert events[0] == "admitted" and events[-1] == "ended"


def test_a_job_that_has_opened_no_gpu_has_nothing_there(daemon):
    (gpu,) = register(daemon)["gpus"]
    nothing = {"usage", "accounted", "overhead", "loan", "credit", "peak", "suspended", "gpu_time"}
    assert {name: gpu[name] for name in nothing} == dict.fromkeys(nothing, 0)
    assert (gpu["computing"], gpu["turn"]) == (None, None)


def test_two_gpus_and_their_names(daemon):
    assert [gpu["uuid"] for gpu in register(daemon, gpus=2)["gpus"]] == [GPU, GPU2]
    assert [gpu["uuid"] for gpu in register(daemon, gpus=2, devices=["1", GPU])["gpus"]] == [GPU2, GPU]
    assert register(daemon, devices=["gpu-00000000-0000-0000-0000-000000000002"])["gpus"][0]["uuid"] == GPU2


@pytest.mark.parametrize(
    ("devices", "says"),
    [
        (["7"], "no such GPU"),
        (["GPU-0000"], "more than one"),
        (["GPU-"], "more than one"),
        (["0", GPU], "twice"),
        ([], "hides every GPU"),
        ([""], "no such GPU"),
        (["-1"], "no such GPU"),
    ],
)
def test_devices_that_are_not_there(daemon, devices, says):
    with pytest.raises(UsageError, match=says) as caught:
        register(daemon, devices=devices)
    assert caught.value.code == "no_such_gpu"
    assert daemon.client.jobs() == []


def test_a_request_without_room_names_who_holds_it(daemon):
    register(daemon, name="first", request="12Gi", devices=["0"])
    with pytest.raises(Refused, match="no room") as caught:
        register(daemon, request="6Gi", devices=["0"])
    assert caught.value.code == "not_admitted" and "first" in str(caught.value.facts)
    assert caught.value.hint.endswith("or queue for room with --wait")
    with pytest.raises(Refused) as caught:
        register(daemon, request="17Gi", limit="17Gi")
    assert caught.value.code == "too_large"
    assert len(daemon.client.jobs()) == 1


def test_waiting_for_room(daemon):
    first = register(daemon, request="12Gi", devices=["0"])
    admitted = []

    def wait():
        admitted.append(
            daemon.client.register(JOB | {"name": "second", "request": "6Gi", "devices": ["0"], "wait": 10}, 10)
        )

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: len(daemon.client.jobs()) == 2)
    assert daemon.client.job("second")["state"] == "queued" and not admitted
    daemon.client.end(first["id"], 0, None)
    thread.join(5)
    assert admitted and admitted[0]["state"] == "running"


def test_waiting_in_vain_ends_with_the_reason(daemon):
    register(daemon, request="12Gi", devices=["0"])
    started = time.monotonic()
    with pytest.raises(Refused) as caught:
        daemon.client.register(JOB | {"request": "6Gi", "devices": ["0"], "wait": 0.3}, 0.3)
    assert 0.25 < time.monotonic() - started < 3 and caught.value.code == "wait_over"
    assert len(daemon.client.jobs()) == 1


def test_hanging_up_while_waiting_withdraws(daemon):
    register(daemon, request="12Gi", devices=["0"])
    body = json.dumps(JOB | {"request": "6Gi", "devices": ["0"], "wait": 60}).encode()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(daemon.directory / "api.sock"))
        sock.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        until(lambda: len(daemon.client.jobs()) == 2)
    until(lambda: len(daemon.client.jobs()) == 1)
    assert daemon.call(lambda: dict(daemon.shell.core.state.queue)) == {}
    daemon.validate()


def test_a_queued_job_can_be_ended_from_elsewhere(daemon):
    register(daemon, request="12Gi", devices=["0"])
    caught = []

    def wait():
        try:
            daemon.client.register(JOB | {"name": "second", "request": "6Gi", "devices": ["0"], "wait": 60}, 60)
        except Refused as refusal:
            caught.append(refusal)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: len(daemon.client.jobs()) == 2)
    queued = daemon.client.job("second")["id"]
    shim = daemon.connect()
    assert shim.hello(queued, request=GIB, limit=GIB).status == lib.GS_NOT_ADMITTED
    shim.close()
    assert daemon.client.end(queued, None, None)["job"]["state"] == "ended"
    thread.join(5)
    assert caught and "withdrawn" in caught[0].message and len(daemon.client.jobs()) == 1


def test_changing_a_budget(daemon):
    job = register(daemon)
    change = daemon.client.change(job["id"], {"limit": "15Gi", "dry_run": True})
    assert (change["before"]["gpus"][0]["limit"], change["after"]["gpus"][0]["limit"]) == (14 * GIB, 15 * GIB)
    assert daemon.client.job(job["id"])["gpus"][0]["limit"] == 14 * GIB, "a dry run changes nothing"
    change = daemon.client.change(job["id"], {"limit": "15Gi", "priority": 5})
    assert change["after"]["gpus"][0]["limit"] == 15 * GIB and change["note"] is not None
    assert daemon.client.job(job["id"])["priority"] == 5
    with pytest.raises(Refused):
        daemon.client.change(job["id"], {"request": "15.9Gi", "limit": "15.9Gi"})
    with pytest.raises(UsageError):
        daemon.client.change(job["id"], {"request": "15Gi", "limit": "1Gi"})
    with pytest.raises(UsageError, match="nothing to change"):
        daemon.client.change(job["id"], {})
    assert daemon.client.job(job["id"])["gpus"][0]["request"] == 4 * GIB
    daemon.client.end(job["id"], 0, None)
    with pytest.raises(NoSuchJob):
        daemon.client.change(job["id"], {"limit": "15Gi"})


def test_a_changed_budget_is_in_the_page_when_the_caller_is_told(daemon):
    job = register(daemon)
    shim = daemon.connect()
    assert shim.hello(job["id"], request=4 * GIB, limit=14 * GIB).status == lib.GS_OK
    line = shim.page.line[shim.attach(GPU).line]
    daemon.call(
        lambda: setattr(daemon.shell._credit_effects._publisher, "_not_before", daemon.loop.time() + 3600)
    )  # as after a costly round
    daemon.client.change(job["id"], {"request": "5Gi", "limit": "6Gi"})
    unit = lib.GS_UNIT_BYTES
    assert (line.request * unit, line.limit * unit) == (5 * GIB, 6 * GIB)
    shim.close()


def test_the_main_process_must_be_the_callers_child(daemon):
    job = register(daemon)
    with subprocess.Popen(["sleep", "30"]) as child:
        daemon.client.set_main(job["id"], child.pid)
        child.kill()
    daemon.client.set_main(job["id"], os.getpid())  # `run --exec` becomes the program itself
    with pytest.raises(NotPermitted):
        daemon.client.set_main(job["id"], os.getppid())
    with pytest.raises(UsageError, match="no process"):
        daemon.client.set_main(job["id"], 2**22)


def test_notices_come_as_they_happen_and_end_with_the_job(daemon):
    job = register(daemon)
    events = daemon.client.events(job["id"])
    assert list(events.read()) == []
    daemon.client.end(job["id"], 0, None)
    until(lambda: list(events.read()) is not None and events.ended)
    assert events.clean
    events.close()


def test_listeners_that_hang_up_at_once_are_no_errors(daemon):
    job = register(daemon)
    request = f"GET /v1/jobs/{job['id']}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(daemon.directory / "api.sock"))
            sock.sendall(request)
    daemon.client.end(job["id"], 0, None)
    until(lambda: daemon.call(lambda: not daemon.shell.registry.get(job["id"]).notices.listeners))
    assert daemon.shell.core_loop.errors == 0


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "code"),
    [
        ("GET", "/v1/nothing", None, 404, "http_404"),
        ("PUT", "/v1/jobs", b"{}", 405, "http_405"),
        ("POST", "/v1/jobs", b"{", 400, "bad_request"),
        ("POST", "/v1/jobs", b"\xff\xfe", 400, "bad_request"),
        ("POST", "/v1/jobs", b"[]", 400, "bad_request"),
        ("POST", "/v1/jobs", b"[" * 100_000, 400, "bad_request"),
        ("POST", "/v1/jobs", None, 400, "bad_request"),
        ("POST", "/v1/jobs", b'{"request": 4}', 400, "bad_request"),
        ("POST", "/v1/jobs", b'{"request": "4g"}', 400, "bad_quantity"),
        ("POST", "/v1/jobs", b'{"request": "8Gi", "limit": "4Gi"}', 400, "request_over_limit"),
        ("POST", "/v1/jobs", b'{"request": "0.9", "limit": "4Gi"}', 400, "bad_budget"),
        ("POST", "/v1/jobs", b'{"gpus": 0}', 400, "bad_request"),
        ("POST", "/v1/jobs", b'{"gpus": true}', 400, "bad_request"),
        ("POST", "/v1/jobs", b'{"gpus": 3}', 409, "too_large"),
        ("POST", "/v1/jobs", b'{"priority": 1e99}', 400, "bad_request"),
        ("POST", "/v1/jobs", b'{"grace": NaN}', 400, "bad_request"),
        ("POST", "/v1/jobs", b'{"grace": -1}', 400, "bad_request"),
        ("POST", "/v1/jobs", b'{"wait": "long"}', 400, "bad_request"),
        ("POST", "/v1/jobs", b'{"command": "ls"}', 400, "bad_request"),
        ("POST", "/v1/jobs", b'{"lend": 1}', 400, "bad_request"),
        ("POST", "/v1/jobs", b'{"limits": "4Gi"}', 400, "unknown_field"),
        ("POST", "/v1/jobs", b'{"job": "xyz"}', 400, "bad_request"),
        ("POST", "/v1/jobs", b'{"job": "0000000000000000"}', 400, "bad_request"),
        ("POST", "/v1/jobs", b" " * 300_000, 413, "http_413"),
        ("GET", "/v1/jobs/none", None, 404, "no_such_job"),
        ("GET", "/v1/jobs/%1b%5b31m", None, 404, "no_such_job"),
        ("DELETE", "/v1/jobs/none", None, 404, "no_such_job"),
        ("PATCH", "/v1/jobs/train", b'{"limit": "4g"}', 400, "bad_quantity"),
        ("PUT", "/v1/jobs/train/main", b'{"pid": "1"}', 400, "bad_request"),
        ("PUT", "/v1/jobs/train/main", b"{}", 400, "bad_request"),
        ("PUT", "/v1/jobs/train/main", b'{"pid": 1}', 403, "not_a_child"),
        ("DELETE", "/v1/jobs/train", b'{"exit_code": 4711}', 400, "bad_request"),
    ],
)
def test_errors_have_one_shape(daemon, method, target, body, status, code):
    register(daemon)
    got, answer = daemon.http(method, target, body)
    error = json.loads(answer)["error"]
    assert (got, error["code"]) == (status, code)
    assert error["message"] and not error["message"].endswith(".") and "\n" not in error["message"]
    assert "\x1b" not in error["message"]
    assert set(error) == {"code", "message", "facts", "hint"}
    assert len(daemon.client.jobs()) == 1


def test_what_names_a_job(daemon):
    """As PARAMETERS says it. A pid does not: the client looks it up in the list of jobs."""
    job, shim = register(daemon), daemon.connect()
    shim.hello(job["id"], request=4 * GIB, limit=14 * GIB)
    shim.attach(GPU)
    for name in (job["id"], job["id"][:4], job["id"][:4].upper(), "train"):
        assert daemon.client.job(name)["id"] == job["id"]
    (pid,) = [str(process["pid"]) for process in daemon.client.job("train")["processes"]]
    for name in (job["id"][:3], job["id"][1:], "trai", pid):
        assert daemon.http("GET", f"/v1/jobs/{name}")[0] == 404
    assert daemon.client.find_job(pid)["id"] == job["id"]
    shim.close()


def test_names_that_fit_several_jobs(daemon):
    register(daemon), register(daemon)
    with pytest.raises(UsageError, match="fits 2 jobs") as caught:
        daemon.client.job("train")
    assert len(caught.value.facts) == 2


@pytest.mark.parametrize(
    "garbage", [b"\0" * 100, b"GPUSHARE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01" * 50, b""]
)
def test_foreign_bytes_on_the_socket(daemon, garbage):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(daemon.directory / "api.sock"))
        sock.sendall(garbage)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(4096):
            pass
    assert daemon.client.version()["pid"] == os.getpid()


def test_a_reservation_begins_now_and_ends_when_it_was_asked_to(daemon):
    """In the time of the calendar, as all of the API."""
    with pytest.raises(UsageError, match="unknown field 'until'"):
        daemon.client.reserve({"name": "night", "request": "2Gi", "until": time.time() + 3600})
    before = time.time()
    made = daemon.client.reserve({"name": "night", "request": "2Gi", "lasting": 3600.0})
    after = time.time()
    assert before - 1 <= made["since"] <= after + 1
    assert before + 3599 <= made["until"] <= after + 3601


def test_metrics(daemon):
    job = register(daemon)
    shim = daemon.connect()
    shim.hello(job["id"], request=4 * GIB, limit=14 * GIB)
    shim.attach(GPU)
    shim.allocate(5 * GIB)
    shim.ask(12 * GIB)
    status, body = daemon.http("GET", "/metrics")
    text = body.decode()
    assert status == 200
    labels = f'gpu_uuid="{GPU}",name="train",user="{job["user"]}"'
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}

    def value(name, text=""):
        wanted = set(filter(None, text.split(",")))
        found = [
            v for k, v in values.items() if k.split("{")[0] == name and wanted <= set(k[len(name) + 1 : -1].split(","))
        ]
        assert len(found) == 1, (name, text, found)
        return found[0]

    assert value("gpushare_job_memory_request_bytes", labels) == 4 * GIB
    assert value("gpushare_job_memory_limit_bytes", labels) == 14 * GIB
    usage = value("gpushare_job_memory_usage_bytes", labels)
    assert usage > 5 * GIB and value("gpushare_job_memory_loan_bytes", labels) == usage - 4 * GIB
    assert value("gpushare_gpu_memory_usage_bytes", f'gpu_uuid="{GPU}"') == usage
    assert value("gpushare_denials_total", 'reason="over_limit"') == 1
    assert value("gpushare_round_trips_total") == 2
    assert value("gpushare_clients", 'state="connected"') == 1
    assert value("gpushare_clients", 'state="detached"') == 0
    assert value("gpushare_jobs", 'state="borrowing"') == 1
    assert 'job="' not in text and 'instance="' not in text and 'pid="' not in text
    shim.close()


def test_the_buckets_of_a_wait_are_for_prometheus(daemon):
    """Each class has its bound in seconds, and the one without a bound is named as Prometheus wants it: `+Inf`."""
    text = daemon.http("GET", "/metrics")[1].decode()
    (waits,) = [
        family for family in text_string_to_metric_families(text) if family.name == "gpushare_claim_wait_seconds"
    ]
    for step in ("trim", "kill"):
        bounds = [
            sample.labels["le"]
            for sample in waits.samples
            if sample.name.endswith("_bucket") and sample.labels["step"] == step
        ]
        seconds = [float(bound) for bound in bounds]
        assert bounds[-1] == "+Inf" and bounds[0] == "0.001" and seconds == sorted(set(seconds)), bounds


def test_metrics_over_tcp_and_nothing_else_there(make_daemon):
    import urllib.error
    import urllib.request

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    make_daemon(metrics_listen=f"127.0.0.1:{port}")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert b"gpushare_build_info" in answer.read()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/jobs")
    assert caught.value.code == 404
    caught.value.close()


AS_NOBODY = """if 1:
    import json, os, sys
    from pathlib import Path
    from gpushare import unixhttp
    os.setgid(65534); os.setuid(65534)
    path, *calls = sys.argv[1:]
    for call in calls:
        method, target, body = call.split(" ", 2)
        status, answer = unixhttp.exchange(Path(path), method, target, body.encode() or None, 5.0)
        print(json.dumps([status, json.loads(answer)]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to be two users")
@pytest.mark.parametrize("reveal", ["name", "user", "none"])
def test_other_users_may_look_but_not_touch(make_daemon, directory, reveal):
    daemon = make_daemon(reveal=reveal)
    job = register(daemon)
    directory.chmod(0o711)
    (directory / "api.sock").chmod(0o666)
    target = f"/v1/jobs/{job['id']}"
    calls = [f"GET {target} ", f'PATCH {target} {{"limit": "15Gi"}}', f"DELETE {target} ", f"GET {target}/story "]
    calls += [f"GET {target}/events ", f'PUT {target}/main {{"pid": 1}}']
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(directory / "api.sock"), *calls],
        env={"PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        check=True,
    )
    (status, shown), *others = [json.loads(line) for line in done.stdout.splitlines()]
    assert status == 200 and shown["command"] == [] and shown["gpus"][0]["request"] == 4 * GIB
    assert shown["name"] == ("train" if reveal == "name" else "-")
    assert shown["user"] == ("-" if reveal == "none" else job["user"])
    assert [status for status, _ in others] == [403] * 5
    assert daemon.client.job(job["id"])["gpus"][0]["limit"] == 14 * GIB


def test_memory_outside_gpushare_shows(make_daemon):
    gpus = FixedGpus([GpuInfo(GPU, 0, "Test GPU", 16 * GIB)], {GPU: Sample(3 * GIB, {1: 3 * GIB})})
    daemon = make_daemon(gpus)
    until(lambda: daemon.client.status()["gpus"][0]["unmanaged"] == 3 * GIB)
    with pytest.raises(Refused):
        register(daemon, request="14Gi")


def test_a_driver_that_fails_or_hangs_stops_nothing(make_daemon):
    class Broken(FixedGpus):
        mode = "fails"

        def sample(self, uuid):
            if self.mode == "hangs":
                time.sleep(0.3)
            return None  # noqa: RET501

    gpus = Broken([GpuInfo(GPU, 0, "Test GPU", 16 * GIB)])
    daemon = make_daemon(gpus, sample_interval=0.05)
    job = register(daemon)
    until(lambda: daemon.shell.gpus.failures > 2)
    unlucky, other = daemon.connect(), daemon.connect()
    for shim in (unlucky, other):
        shim.hello(job["id"], request=4 * GIB, limit=14 * GIB)
        shim.attach(GPU)
    gpus.mode = "fails"
    assert unlucky.ask(4096, flags=lib.GS_ASK_DRIVER_FAILED).status == lib.GS_OK
    gpus.mode = "hangs"
    # "The driver said out-of-memory although there was credit": that is looked into, and takes its time.
    unlucky.send_ask(4096, flags=lib.GS_ASK_DRIVER_FAILED)
    slowest = 0.0
    for _ in range(50):
        started = time.monotonic()
        assert other.ask(2**20).status == lib.GS_OK
        slowest = max(slowest, time.monotonic() - started)
        time.sleep(0.005)
    assert slowest < 0.2
    assert unlucky.answer().status == lib.GS_OK
    for shim in (unlucky, other):
        shim.close()


def test_ended_jobs_are_listed_for_who_wants_them(daemon):
    living, gone = register(daemon), register(daemon)
    daemon.client.end(gone["id"], 3, None)
    assert [job["id"] for job in daemon.client.jobs()] == [living["id"]]
    shown = {job["id"]: job for job in daemon.client.jobs(ended=True)}
    assert shown.keys() == {living["id"], gone["id"]}
    assert shown[gone["id"]]["state"] == "ended" and shown[gone["id"]]["outcome"]["exit_code"] == 3
    assert shown[living["id"]]["outcome"] is None
