"""gpushare submit and what follows, as people type it: the service, the local engine, the software driver."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpushare.cli import main
from gpushare.cli.queued import Tail, ending, exit_status
from gpushare.cli.submit import submission
from gpushare.errors import CommandNotFound, UsageError
from gpushare.paths import SYSTEM_DIR, library

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ("queue", "request", "limit", "priority", "min_run_time", "limit_time", "grace", "log", "name", "array")
PLAIN = {**dict.fromkeys(OPTIONS), "gpus": 1, "after": (), "hold": False, "requeue": None}
WITHIN = 60.0


class Service:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        runtime = directory / "run"
        runtime.mkdir(mode=0o700)
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "XDG_RUNTIME_DIR": str(runtime),
            "XDG_STATE_HOME": str(directory / "state"),
            "XDG_CONFIG_HOME": str(directory / "config"),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}",
            "GPUSHARE_SIM": f"gpus=2,memory=1Gi,pool={directory}/pool",
            "COLUMNS": "200",
        }
        self.log = (directory / "service.log").open("ab")

    def line(self) -> list[str]:
        return [sys.executable, "-P", "-m", "gpushare", "cluster", "serve", "--engine", "local"]

    def start(self) -> None:
        out = self.log
        self.process = subprocess.Popen(self.line(), env=self.environ, cwd=self.directory, stderr=out, stdout=out)
        deadline = time.monotonic() + WITHIN
        while self("queue").returncode:
            assert self.process.poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.1)

    def __call__(self, *words: str) -> subprocess.CompletedProcess:
        """A command, in this process: starting one takes longer than what it does."""
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with contextlib.chdir(self.directory), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(words)
        said = [stream.buffer.getvalue().decode() for stream in (out, err)]
        return subprocess.CompletedProcess(words, status, *said)

    def submit(self, *words: str) -> str:
        done = self("submit", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, id: str) -> dict:
        jobs = json.loads(self("queue", "-a", "--json").stdout)["jobs"]
        return next(job for job in jobs if job["id"] == id)

    def until(self, id: str, *states: str) -> dict:
        deadline = time.monotonic() + WITHIN
        while (job := self.job(id))["state"] not in states:
            assert time.monotonic() < deadline, (job, self.said())
            time.sleep(0.1)
        return job

    def said(self) -> str:
        return (self.directory / "service.log").read_text()

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait()


@pytest.fixture(scope="module")
def queue(tmp_path_factory):
    if not library().exists():
        pytest.skip(f"{library()} is not built")
    if SYSTEM_DIR.exists():
        pytest.skip("a system daemon's directory exists on this machine and comes first")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("GPUSHARE_")]:
            patch.delenv(name)
        service = Service(tmp_path_factory.mktemp("queue"))
        for name, value in service.environ.items():
            patch.setenv(name, value)
        service.start()
        yield service
        clear(service)


def clear(service: Service) -> None:
    for job in json.loads(service("queue", "--json").stdout)["jobs"]:
        service("cancel", "--now", job["id"])
    deadline = time.monotonic() + WITHIN
    while json.loads(service("queue", "--json").stdout)["jobs"] and time.monotonic() < deadline:
        time.sleep(0.1)
    service.stop()
    service.log.close()


def test_a_job_from_its_submission_to_its_end(queue) -> None:
    id = queue.submit("--time", "1m", "--name", "greet", "--", "sh", "-c", "echo hello; pwd; exit 3")
    assert id.isdecimal()
    done = queue("wait", id)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith(f"job {id} (greet) has failed after ") and "exit status 3" in done.stdout
    assert queue("logs", id).stdout == f"hello\n{queue.directory}\n"
    assert (queue.directory / "state" / "gpushare" / "logs" / f"{id}.log").exists()
    assert "greet" not in queue("queue").stdout
    lines = queue("queue", "-a").stdout.splitlines()
    assert lines[0].split()[:4] == ["JOB", "NAME", "USER", "QUEUE"]
    row = next(line for line in lines if line.startswith(f"{id} "))
    assert "greet" in row and "ended" in row and "has failed after" in row


def test_an_array_and_what_follows_it(queue) -> None:
    array = queue.submit(
        "--array", "3", "--request", "30%", "--", "sh", "-c", "echo n $GPUSHARE_ARRAY_INDEX $GPUSHARE_QUEUE_JOB"
    )
    last = queue.submit("--after", array, "--log", "last-%j.out", "--", "echo", "last")
    attached = queue("attach", last)
    assert (attached.returncode, attached.stdout) == (0, "last\n")
    assert f"job {last} (echo) is done" in attached.stderr
    assert (queue.directory / f"last-{last}.out").read_text() == "last\n"
    assert queue("wait", array).stdout.count(" is done after ") == 3
    assert [queue("logs", f"{array}_{n}").stdout for n in range(3)] == [f"n {n} {array}\n" for n in range(3)]
    ambiguous = queue("logs", array)
    assert ambiguous.returncode == 2 and f"{array}_0" in ambiguous.stderr


def test_hold_release_and_cancel(queue) -> None:
    id = queue.submit("--hold", "--", "sleep", "60")
    assert queue.job(id)["state"] == "held"
    assert queue("logs", id).stderr.startswith(f"gpushare: job {id} (sleep) has not started: ")
    assert queue("release", id).stdout == f"released {id}\n"
    queue.until(id, "running")
    assert queue("hold", id).returncode == 2
    assert queue("wait", "--time", "1s", id).returncode == 124
    assert queue("cancel", id).stdout == f"cancelled {id}\n"
    waited = queue("wait", id)
    assert waited.returncode == 1 and "was cancelled" in waited.stdout
    other = queue.submit("--", "sleep", "60")
    queue.until(other, "starting", "running")
    assert queue("cancel", "--now", other).returncode == 0
    queue.until(other, "ended")
    assert queue("release", "nothing").returncode != 0


def test_a_node_is_closed_emptied_and_opened_while_the_service_runs(queue) -> None:
    (node,) = (one["node"]["name"] for one in json.loads(queue("cluster", "nodes", "--json").stdout)["nodes"])
    runs = queue.submit("--requeue", "--", "sleep", "60")
    queue.until(runs, "running")
    assert queue("cluster", "cordon", node).returncode == 0
    waits = queue.submit("--", "sleep", "60")
    assert queue.job(runs)["state"] == "running" and queue.job(waits)["state"] == "pending"
    assert queue("cluster", "drain", node).returncode == 0
    queue.until(runs, "pending")
    assert queue("cluster", "uncordon", node).returncode == 0
    for id in (runs, waits):
        queue.until(id, "running")
        queue("cancel", "--now", id)


def test_the_service_is_killed_and_the_job_does_not_notice(queue) -> None:
    id = queue.submit("--", "sh", "-c", "echo up; while [ ! -e go ]; do sleep 0.05; done; echo end; exit 4")
    queue.until(id, "running")
    follow = subprocess.Popen(
        [sys.executable, "-P", "-m", "gpushare", "attach", id],
        env=queue.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follow.stdout.readline() == "up\n"
    queue.stop(signal.SIGKILL)
    queue.start()
    assert queue.job(id)["state"] == "running"
    (queue.directory / "go").touch()
    rest, _ = follow.communicate(timeout=WITHIN)
    assert (rest, follow.returncode) == ("end\n", 4)
    (queue.directory / "go").unlink()


def test_a_user_has_a_queue_and_a_share_without_any_file(queue) -> None:
    queue.submit("--hold", "--", "true")
    shares = queue("queue", "-s").stdout.splitlines()
    assert shares[0].split() == ["QUEUE", "USES", "FAIR", "SHARE", "ASKS", "FOR"]
    assert len(shares) == 2
    assert json.loads(queue("queue", "-s", "--json").stdout)["queues"][0]["queue"]["weight"] == 1_000_000


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["submit", "--", "no-such-program"], 127, "command not found: no-such-program"),
        (["submit", "--queue", "nowhere", "--", "true"], 2, "nowhere"),
        (["submit", "--request", "300%", "--", "true"], 2, "300%"),
        (["submit", "--time", "soon", "--", "true"], 2, "--time"),
        (["submit", "--after", "999", "--", "true"], 5, "999"),
        (["submit", "--time", "0s", "--", "true"], 2, "between 1 s and 3650d"),
        (["submit", "--log", "/dev/null", "--", "true"], 2, "/dev/null is no regular file"),
        (["submit", "--log", "/proc/self/exe", "--", "true"], 2, "/proc/self/exe is no regular file"),
        (["submit", "--log", "/etc/passwd/no/such", "--", "true"], 2, "/etc/passwd is no directory"),
        (["submit"], 2, "COMMAND"),
        (["cancel", "999"], 5, "no job '999'"),
        (["wait", "999"], 5, "no job '999'"),
        (["logs", "999"], 5, "no job '999'"),
    ],
)
def test_what_is_wrong_is_named(queue, words, status, said) -> None:
    done = queue(*words)
    assert (done.returncode, done.stdout) == (status, ""), done
    assert said in done.stderr


def test_a_job_that_has_ended_is_found_by_its_name(queue) -> None:
    first = queue.submit("--name", "twice", "--", "false")
    assert queue("wait", first).returncode == 1
    assert "job 'twice' has ended" not in queue("wait", "twice").stdout
    second = queue.submit("--name", "twice", "--", "echo", "second")
    assert queue("wait", "twice").returncode == 0, "the one that is not over, else the latest"
    assert queue("wait", "twice").stdout.startswith(f"job {second} (twice) is done")
    assert queue("logs", "twice").stdout == "second\n"
    assert "has ended" in queue("cancel", "twice").stderr


def test_waiting_for_a_job_that_cannot_start_says_so(queue) -> None:
    place = queue.directory / "gone"
    place.mkdir()
    with contextlib.chdir(place):
        out = subprocess.run(
            [sys.executable, "-P", "-m", "gpushare", "submit", "--hold", "--", "true"],
            env=queue.environ,
            capture_output=True,
            text=True,
        )
    id = out.stdout.strip()
    place.rmdir()
    queue("release", id)
    waited = queue("wait", "--time", "45s", id)
    assert waited.returncode == 124
    said = f"job {id} does not start by itself: "
    assert waited.stderr.count(said) == 1 and f"cannot enter {place}" in waited.stderr, waited.stderr
    queue("cancel", id)


def test_what_can_never_start_is_told_at_once(queue) -> None:
    done = queue("submit", "--gpus", "3", "--", "true")
    assert done.returncode == 0 and "as it is it can never start: " in done.stderr
    queue("cancel", done.stdout.strip())


# ---- without a service -------------------------------------------------------------------------------


def test_without_a_service_the_command_that_starts_one_is_named(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("GPUSHARE_CLUSTER_SOCKET", raising=False)
    for words in (["submit", "--", "true"], ["queue"], ["logs", "1"], ["cancel", "1"], ["hold", "1"], ["wait", "1"]):
        assert main(words) == 3
        said = capsys.readouterr()
        assert said.out == ""
        assert "no service runs jobs here" in said.err and "gpushare cluster serve --engine local" in said.err


def test_a_submission_is_what_the_shell_has(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COLOUR": "blue"}
    said = {"limit": "80%", "limit_time": "8h", "grace": "5s", "array": 3, "after": ("4", "5"), "min_run_time": "10m"}
    old = os.umask(0o027)
    try:
        body = submission(("python3", "-u", "train.py"), {**PLAIN, **said, "gpus": 2, "queue": "a"}, environ)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(old)
    assert body["job"] == {
        "gpus": 2,
        "name": "train",
        "queue": "a",
        "request": "80%",
        "limit": "80%",
        "min_runtime": "10m",
    }
    assert (body["array"], body["after"], body["hold"], body["requeue"]) == (3, ["4", "5"], False, None)
    run = body["run"]
    assert (run["cwd"], run["umask"], run["env"], run["time"], run["grace"]) == (
        str(tmp_path),
        0o027,
        environ,
        28800,
        5,
    )
    assert run["output"] == f"{tmp_path}/.local/state/gpushare/logs/%j.log"
    assert run["command"] == ["python3", "-u", "train.py"]
    assert "RLIMIT_NOFILE" in run["rlimits"]
    odd = tmp_path / "my program"
    odd.write_text("#!/bin/sh\n")
    odd.chmod(0o755)
    assert submission((str(odd),), PLAIN, environ)["job"]["name"] == "my_program"
    body = submission(("true",), {**PLAIN, "request": "1Gi", "log": "out/%j", "name": "n", "requeue": False}, environ)
    assert body["job"] == {"gpus": 1, "name": "n", "request": "1Gi"}
    assert (body["requeue"], body["run"]["output"], body["run"]["time"]) == (False, f"{tmp_path}/out/%j", None)


def test_a_user_without_a_home_is_told_where_output_can_go(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = {"PATH": os.environ["PATH"]}
    for more, words in (({}, "HOME is not set"), ({"HOME": "/nowhere"}, "your home directory /nowhere is not there")):
        with pytest.raises(UsageError, match=words) as caught:
            submission(("true",), PLAIN, {**path, **more})
        assert caught.value.hint == "name one: --log /scratch/logs/%j.log"
        assert submission(("true",), {**PLAIN, "log": "x"}, {**path, **more})["run"]["output"] == f"{tmp_path}/x"
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make"):
        submission(("true",), PLAIN, {**path, "XDG_STATE_HOME": f"{tmp_path}/file"})
    with pytest.raises(UsageError, match="is a directory") as caught:
        submission(("true",), {**PLAIN, "log": str(tmp_path)}, path)
    assert caught.value.hint.endswith("%j.log")


def test_a_huge_environment_never_leaves_the_shell(tmp_path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    with pytest.raises(UsageError, match="a job may have"):
        submission(("true",), PLAIN, {**environ, **{f"V{n}": "x" * 100_000 for n in range(100)}})
    with pytest.raises(CommandNotFound):
        submission(("no-such-program",), PLAIN, environ)


def test_a_script_that_is_not_there_is_a_warning(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    submission(("python3", "tarin.py"), PLAIN, environ)
    assert "there is no tarin.py here now" in capsys.readouterr().err
    (tmp_path / "tarin.py").write_text("")
    submission(("python3", "tarin.py"), PLAIN, environ)
    submission(("cat", "other.py"), PLAIN, environ)
    assert capsys.readouterr().err == ""


# ---- words -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "status", "words"),
    [
        (("done", 0, ""), 0, "job 7 (n) is done after 1 min 5 s"),
        (("failed", 3, ""), 3, "job 7 (n) has failed after 1 min 5 s: exit status 3"),
        (("failed", -9, "signal 9"), 137, "job 7 (n) has failed after 1 min 5 s: signal 9"),
        (("failed", -15, "time limit"), 143, "job 7 (n) has failed after 1 min 5 s: signal 15, time limit"),
        (("cancelled", None, "by bob"), 1, "job 7 (n) was cancelled after 1 min 5 s: by bob"),
        (("evicted", 0, ""), 1, "job 7 (n) was evicted after 1 min 5 s: exit status 0"),
    ],
)
def test_how_a_job_has_ended(result, status, words) -> None:
    how, code, text = result
    job = {"id": "7", "name": "n", "started": 10.0, "ended": 75.0, "result": {"how": how, "exit": code, "text": text}}
    assert exit_status(job) == status
    from gpushare.quantity import format_duration

    assert ending(job) == words.replace("1 min 5 s", format_duration(65.0))


def test_a_log_is_followed_through_its_replacement(tmp_path) -> None:
    path = tmp_path / "1.log"
    tail = Tail(path, None)
    assert tail.read() == b""
    path.write_bytes(b"one\n")
    assert tail.read() == b"one\n"
    assert tail.read() == b""
    with path.open("ab") as file:
        file.write(b"two\n")
    path.rename(tmp_path / "1.log.1")
    path.write_bytes(b"three\n")
    assert tail.read() == b"two\nthree\n"
    assert Tail(path, None).read() == b"one\ntwo\nthree\n"
    assert Tail(path, 2).read() == b"two\nthree\n"
    assert Tail(path, 0).read() == b""
    assert Tail(path, 99).read() == b"one\ntwo\nthree\n"


def test_when_it_ran_and_which_attempt_is_known_after_a_kill_of_the_service(queue) -> None:
    """It ends while no service runs, or just then; the next one finds it."""
    runs = queue.submit("--request", "30%", "--", "sh", "-c", "echo up; sleep 3")
    queue.until(runs, "running")
    began = queue.job(runs)["started"]
    queue.stop(signal.SIGKILL)
    time.sleep(4.5)
    queue.start()
    job = queue.until(runs, "ended")
    assert (job["attempt"], job["result"]["how"]) == (1, "done")
    assert 2.5 < job["ended"] - job["started"] < 4.4, "as long as it ran, not until somebody looked"
    assert abs(job["started"] - began) < 1.0


def test_a_service_that_was_killed_knows_since_when_a_job_runs(queue) -> None:
    runs = queue.submit("--request", "30%", "--", "sleep", "600")
    queue.until(runs, "running")
    began = queue.job(runs)["started"]
    queue.stop(signal.SIGKILL)
    time.sleep(2.0)
    queue.start()
    job = queue.until(runs, "running")
    assert abs(job["started"] - began) < 1.0 and job["attempt"] == 1
    queue.stop(signal.SIGKILL)
    queue.start()
    assert queue("cancel", "--now", runs).returncode == 0
    assert queue.until(runs, "ended")["attempt"] == 1


def test_the_times_of_a_job_that_was_stopped_for_another_are_those_of_its_latest_attempt(queue) -> None:
    low = queue.submit("--gpus", "2", "--priority", "1", "--grace", "1", "--name", "low", "--", "sleep", "4")
    queue.until(low, "running")
    time.sleep(1.5)
    first = queue.job(low)["started"]
    high = queue.submit("--gpus", "2", "--priority", "99", "--", "sleep", "1")
    queue.until(high, "ended")
    assert queue.until(low, "running")["attempt"] == 2
    job = queue.until(low, "ended")
    assert job["started"] > first + 2.0 and job["ended"] - job["started"] < 7.0


def test_a_name_stands_for_its_job_where_it_is_released_and_explained(queue) -> None:
    id = queue.submit("--hold", "--name", "kept", "--", "true")
    said = queue("cluster", "explain", "kept")
    assert said.returncode == 0 and said.stdout.startswith(f"job {id} of queue "), said
    assert queue("release", "kept").stdout == "released kept\n"
    queue.until(id, "ended")
    none = queue("release", "no such thing")
    assert none.returncode == 5 and "no reservation" in none.stderr
    over = queue("cluster", "explain", "kept")
    assert over.returncode == 5 and "has ended" in over.stderr


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        (["--request", "inf"], "--request: cannot read 'inf'", "max"),
        (["--limit", "-5%"], "--limit: cannot read '-5%'", "or max"),
        (["--limit", "0"], "--limit: cannot read '0'", "or max"),
        (["--request", ""], "--request: an amount of memory is empty", "or max"),
        (["--request", "none"], "--request: a job of the queue needs memory", "or max"),
        (["--request", "25%", "--limit", "8Gi"], "have different units", "both in bytes"),
        (["--request", "4Gi", "--limit", "max"], "have different units", "in bytes, too"),
        (["--log", ""], "--log: the name of the file is empty", "run-%j.log"),
    ],
)
def test_amounts_that_make_no_sense_are_named_by_their_option(queue, options, said, hint) -> None:
    done = queue("submit", *options, "--", "true")
    assert done.returncode == 2 and said in done.stderr and hint in done.stderr.split("hint: ")[1], done.stderr


@pytest.mark.parametrize(
    ("options", "asked", "limit"),
    [
        (["--request", "max"], None, None),
        (["--limit", "max"], None, None),
        (["--request", "25%", "--limit", "max"], 250_000, 1_000_000),
        (["--request", "25%", "--limit", "0.8"], 250_000, 800_000),
    ],
)
def test_max_is_all_of_a_gpu(queue, options, asked, limit) -> None:
    id = queue.submit("--hold", *options, "--", "true")
    (asks,) = queue.job(id)["asks"]
    assert (asks["share"] or None) in (asked, asked or 1_000_000)
    assert asks["limit"] in (limit, limit or 1_000_000)
    assert queue("cancel", id).returncode == 0


def test_what_is_empty_is_called_so(queue) -> None:
    for words in (["cancel", ""], ["hold", ""], ["set", "", "--limit", "2Gi"]):
        done = queue(*words)
        assert done.returncode == 2 and "the name of a job is empty" in done.stderr, done.stderr
    done = queue("submit", "--", "")
    assert done.returncode == 127 and "the command is empty" in done.stderr, done.stderr


def test_a_file_of_queues_is_enough_for_a_service_and_a_job_without_a_command_is_not(queue) -> None:
    file = queue.directory / "queues.yaml"
    file.write_text("queues:\n- {name: vision, quota: 1}\n")
    done = queue("cluster", "apply", str(file))
    assert done.returncode == 0 and done.stderr == "" and "1 new queue" in done.stdout, done
    done = queue("cluster", "submit", "--gpus", "1", "--name", "none")
    assert done.returncode == 2 and "gpushare submit -- COMMAND" in done.stderr, done.stderr


def test_a_node_that_is_cordoned_is_named_where_a_job_waits(queue) -> None:
    node = json.loads(queue("cluster", "nodes", "-o", "json").stdout)["nodes"][0]["node"]["name"]
    queue("cluster", "cordon", node)
    try:
        id = queue.submit("--", "true")
        assert "nothing may start on 1 node now" in queue("queue").stdout
        said = queue("cluster", "explain", id).stdout
        assert f"{node} is cordoned" in said and f"hint: uncordon {node}" in said
    finally:
        queue("cluster", "uncordon", node)
    assert queue.until(id, "ended")["result"]["how"] == "done"


def test_programs_beside_the_queue_are_named_where_a_job_waits(queue) -> None:
    queue("ps")
    beside = [sys.executable, "-P", "-m", "gpushare", "run", "--request", "700Mi", "--gpu"]
    runs = [subprocess.Popen([*beside, str(gpu), "sleep", "60"], env=queue.environ) for gpu in range(2)]
    try:
        deadline = time.monotonic() + WITHIN
        while len((shown := json.loads(queue("cluster", "nodes", "-o", "json").stdout)["nodes"][0])["foreign"]) < 2:
            assert time.monotonic() < deadline, shown
            time.sleep(0.2)
        id = queue.submit("--", "true")
        deadline = time.monotonic() + WITHIN
        while "programs beside the queues use 700.0 MiB of GPU 0" not in (
            said := queue("cluster", "explain", id).stdout
        ):
            assert time.monotonic() < deadline, said
            time.sleep(0.2)
        assert "hint: end the programs beside the queues on GPU 0 of" in said
    finally:
        for one in runs:
            one.terminate()
            one.wait()
    assert queue.until(id, "ended")["result"]["how"] == "done"
