"""gpushare run, against a daemon that is only its API."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from pathlib import Path

import pytest
from fake_api import GIB, UUID, killed, refusal

from gpushare.paths import library

SHELL = "/bin/sh"


def sh(script: str) -> list[str]:
    return [SHELL, "-c", script]


# The program and its exit code


def test_the_program_keeps_its_output_and_exit_code(run, fake):
    result = run("--limit", "4Gi", *sh("cat; echo out; echo err >&2; exit 7"), stdin=None)
    assert (result.returncode, result.stdout, result.stderr) == (7, "out\n", "err\n")
    assert fake.bodies("DELETE") == [{"exit_code": 7, "signal": None}]
    assert fake.jobs == {}


def test_a_signal_becomes_128_plus_n(run, fake):
    assert run(*sh("kill -TERM $$")).returncode == 128 + signal.SIGTERM
    assert fake.bodies("DELETE") == [{"exit_code": None, "signal": signal.SIGTERM}]


def test_sigkill_by_somebody_else_is_said_not_to_be_ours(run, fake):
    result = run(*sh("kill -KILL $$"))
    assert result.returncode == 137
    assert "killed with SIGKILL, not by the daemon (exit 137)" in result.stderr


def test_a_command_that_does_not_exist_is_127_and_registers_nothing(run, fake):
    result = run("--limit", "4Gi", "no-such-command-anywhere")
    assert result.returncode == 127
    assert result.stderr == "gpushare: command not found: no-such-command-anywhere\n"
    assert fake.calls == []


@pytest.mark.parametrize("kind", ["no x bit", "directory"])
def test_what_cannot_be_executed_is_126_and_registers_nothing(run, fake, tmp_path, kind):
    program = tmp_path / "program"
    program.mkdir() if kind == "directory" else program.write_text("#!/bin/sh\n")
    result = run(program)
    assert result.returncode == 126
    assert result.stderr.startswith(f"gpushare: cannot execute {program}: ")
    assert fake.calls == []


@pytest.mark.parametrize("content", ["#!/no/such/interpreter\n", "\x00not a program"])
def test_a_program_that_the_kernel_refuses_is_126_and_leaves_no_job(run, fake, tmp_path, content):
    program = tmp_path / "program"
    program.write_text(content)
    program.chmod(0o755)
    assert run(program).returncode == 126
    assert fake.jobs == {}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--limit", "4g", "true"], "--limit: cannot read '4g'"),
        (["--limit", "0", "true"], "--limit: cannot read '0'"),
        (["--request", "8Gi", "--limit", "4Gi", "true"], "the request 8Gi is above the limit 4Gi"),
        (["--grace", "soon", "true"], "--grace: cannot read 'soon' as a duration"),
        (["--priority", "high", "true"], "--priority: 'high' is not a whole number"),
        (["--driver", "amd", "true"], "--driver: 'amd' is none of auto, nvidia, sim"),
        (["--driver", "nvidia", "true"], "serves the driver sim, not nvidia"),
        (["--visible", "all", "true"], "--visible: 'all' is none of limit, request"),
        (["--gpus", "0", "true"], "--gpus"),
        (["--limt", "4Gi", "true"], "no such option"),
        (["--wait", "--no-wait", "true"], "contradict"),
        (["--report", "/no/such/dir/report", "true"], "cannot write the report to /no/such/dir/report"),
        (["--exec", "--report", "/tmp/x", "true"], "--exec replaces it"),
        ([], "missing argument"),
    ],
)
def test_our_own_failures_are_125(run, fake, arguments, says):
    result = run(*arguments)
    assert result.returncode == 125
    assert says in result.stderr
    assert result.stderr.startswith("gpushare: ")
    assert fake.bodies("POST") == []


def test_the_first_word_that_is_no_option_begins_the_command(run, fake):
    assert run("--limit", "4Gi", "echo", "--limit", "--wait", "-v").stdout == "--limit --wait -v\n"
    assert run("--", "echo", "--").stdout == "--\n"


# What the daemon is told, and what it says


def test_on_which_gpus(run, fake, monkeypatch):
    """--gpu comes before CUDA_VISIBLE_DEVICES, and says how many as well."""
    for arguments, gpus, devices in (
        ([], 1, ["3"]),
        (["--gpu", "1"], 1, ["1"]),
        (["--gpu", "1", "--gpu", "GPU-0"], 2, ["1", "GPU-0"]),
        (["--gpu", "1", "--gpu", "0", "--gpus", "1"], 1, ["1", "0"]),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
        run(*arguments, "true")
        body = fake.bodies("POST")[-1]
        assert (body["gpus"], body["devices"]) == (gpus, devices)


def test_registration(run, fake, tmp_path):
    run(
        *("--request", "4Gi", "--limit", "0.5", "--name", "mine", "--priority", "-3", "--grace", "500ms", "--no-lend"),
        *("--gpus", "1", "true", "arg"),
        cwd=tmp_path,
    )
    (body,) = fake.bodies("POST")
    id = body.pop("job")
    assert len(id) == 16 and int(id, 16)
    assert body == {
        "name": "mine",
        "command": ["true", "arg"],
        "request": "4Gi",
        "limit": "0.5",
        "request_source": "--request",
        "limit_source": "--limit",
        "gpus": 1,
        "devices": None,
        "priority": -3,
        "grace": 0.5,
        "lend": False,
        "reservation": None,
        "min_run_time": 0.0,
        "on_reclaim": "trim,term,kill",
        "wait": None,
        "cwd": str(tmp_path),
    }


@pytest.mark.parametrize(
    ("variables", "arguments", "request_", "limit", "sources"),
    [
        ({}, [], "none", "max", (None, None)),
        ({}, ["--limit", "4Gi"], "4Gi", "4Gi", ("--limit", "--limit")),
        ({}, ["--request", "4Gi"], "4Gi", "4Gi", ("--request", "--request")),
        ({}, ["--limit", "max"], "none", "max", (None, "--limit")),
        ({}, ["--request", "none", "--limit", "8Gi"], "none", "8Gi", ("--request", "--limit")),
        ({"RUNAI_GPU_MEMORY_LIMIT": "0.25"}, [], "none", "0.25", (None, "RUNAI_GPU_MEMORY_LIMIT=0.25")),
        (
            {"NVIDIA_GPU_MEMORY_LIMIT": "4096"},
            [],
            "4Gi",
            "4Gi",
            ("NVIDIA_GPU_MEMORY_LIMIT=4096", "NVIDIA_GPU_MEMORY_LIMIT=4096"),
        ),
        (
            {"CUDA_DEVICE_MEMORY_LIMIT": "3000m"},
            [],
            "3000Mi",
            "3000Mi",
            ("CUDA_DEVICE_MEMORY_LIMIT=3000m", "CUDA_DEVICE_MEMORY_LIMIT=3000m"),
        ),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "0"}, [], "none", "max", (None, None)),
        ({"GPUSHARE_LIMIT": "2Gi"}, ["--limit", "1Gi"], "1Gi", "1Gi", ("--limit", "--limit")),
    ],
)
def test_budget(run, fake, monkeypatch, variables, arguments, request_, limit, sources):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = run(*arguments, "true")
    (body,) = fake.bodies("POST")
    assert (result.returncode, result.stderr) == (0, "")
    assert (body["request"], body["limit"]) == (request_, limit)
    if request_ == "none" and variables.get("RUNAI_GPU_MEMORY_LIMIT"):
        assert body["limit_source"] == sources[1]
    else:
        assert (body["request_source"], body["limit_source"]) == sources


def kept(name: str, id: str, *amounts: int) -> dict:
    gpus = [{"uuid": UUID.format(n), "index": n, "amount": one, "remainder": one} for n, one in enumerate(amounts)]
    return {"id": id, "name": name, "user": "alice", "uid": 1001, "since": 0.0, "until": None, "jobs": [], "gpus": gpus}


NO_REQUEST = ("none", "max", None, None)


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("mine", [], ("3Gi", "3Gi", "reservation mine", "reservation mine")),
        ("e5f6000000000001", [], ("3Gi", "3Gi", *2 * ["reservation e5f6000000000001"])),
        ("mine", ["--limit", "max"], ("3Gi", "max", "reservation mine", "--limit")),
        ("mine", ["--request", "2Gi"], ("2Gi", "2Gi", "--request", "--request")),
        ("mine", ["--request", "none", "--limit", "8Gi"], ("none", "8Gi", "--request", "--limit")),
        ("mine", ["--limit", "4Gi"], ("4Gi", "4Gi", "--limit", "--limit")),
        ("twice", [], NO_REQUEST),
        ("e5f6", [], NO_REQUEST),
        ("nobody's", [], NO_REQUEST),
        ("empty", [], NO_REQUEST),
    ],
)
def test_a_job_in_a_reservation_requests_what_is_reserved(run, fake, name, arguments, told):
    """The least of its GPUs, unless the user says something else; the daemon judges a name that is not clear."""
    fake.reserved = [
        kept("other", "e5f6000000000000", 9 * GIB),
        kept("mine", "e5f6000000000001", 5 * GIB, 3 * GIB, 4 * GIB),
        kept("twice", "e5f6000000000002", GIB),
        kept("twice", "e5f6000000000003", 2 * GIB),
        kept("empty", "e5f6000000000004"),
    ]
    result = run("--reservation", name, *arguments, "true")
    assert (result.returncode, result.stderr) == (0, "")
    (body,) = fake.bodies("POST")
    assert body["reservation"] == name
    assert (body["request"], body["limit"], body["request_source"], body["limit_source"]) == told


def test_reservations_are_not_asked_for_without_need(run, fake):
    for words in ([], ["--reservation", "mine", "--request", "1Gi"]):
        run(*words, "true")
    assert [path for method, path, _ in fake.calls if path.endswith("reservations")] == []


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["true"], "true"),
        ([sys.executable, "-c", "pass"], Path(sys.executable).name),
        ([sys.executable, "train.py"], "train"),
    ],
)
def test_a_job_is_named_after_its_program(run, fake, command, name):
    run(*command)
    assert fake.bodies("POST")[0]["name"] == name


def test_a_job_inside_a_job_has_a_name_of_its_own(run, fake):
    run("--name", "outer", sys.executable, "-m", "gpushare", "run", "true")
    assert [body["name"] for body in fake.bodies("POST")] == ["outer", "true"]


def test_devices_that_the_user_chose(run, fake, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, GPU-abc,x,2")
    run("true")
    assert fake.bodies("POST")[0]["devices"] == ["1", "GPU-abc"]


def test_hiding_every_gpu_is_refused(run, fake, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    result = run("true")
    assert result.returncode == 125
    assert "CUDA_VISIBLE_DEVICES=-1 hides every GPU" in result.stderr


def child_environ(run, *arguments) -> dict[str, str]:
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    return json.loads(run(*arguments, sys.executable, "-c", script).stdout)


def test_environment_of_the_program(run, fake, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    monkeypatch.setenv("RUNAI_GPU_MEMORY_LIMIT", "0.25")
    monkeypatch.setenv("CUDA_DEVICE_MEMORY_LIMIT", "8g")
    found = child_environ(run, "--request", "2Gi", "--limit", "8Gi", "--name", "mine", "--visible", "request")
    assert found["LD_PRELOAD"].split(":")[0] == str(library())
    assert found["GPUSHARE_JOB"] == fake.bodies("POST")[0]["job"]
    assert found["GPUSHARE_SOCKET"] == str(fake.socket)
    assert (found["GPUSHARE_REQUEST"], found["GPUSHARE_LIMIT"]) == ("2Gi", "8Gi")
    assert found["GPUSHARE_NAME"] == "mine"
    assert found["GPUSHARE_VISIBLE"] == "request"
    assert found["CUDA_VISIBLE_DEVICES"] == UUID.format(0)
    # An alias that was overruled would make the shim warn in every process; one that agrees does no harm.
    assert "RUNAI_GPU_MEMORY_LIMIT" not in found
    assert found["CUDA_DEVICE_MEMORY_LIMIT"] == "8g"
    links, rest = found["LD_LIBRARY_PATH"].split(":", 1)
    assert rest == "/somewhere"
    assert sorted(link.name for link in Path(links).iterdir()) == [
        "libcuda.so",
        "libcuda.so.1",
        "libnvidia-ml.so",
        "libnvidia-ml.so.1",
    ]
    assert found["GPUSHARE_DRIVER"] == "sim"


def test_other_preloads_stay_behind_ours(run, fake, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", f"libc.so.6 {library()}")
    assert child_environ(run)["LD_PRELOAD"] == f"{library()}:libc.so.6"


def test_with_the_nvidia_driver_nothing_of_the_software_driver_is_set(run, fake, monkeypatch):
    fake.driver = "nvidia"
    monkeypatch.delenv("GPUSHARE_DRIVER")
    found = child_environ(run)
    assert "GPUSHARE_DRIVER" not in found
    assert str(fake.directory) not in found.get("LD_LIBRARY_PATH", "")


def test_pipes_and_signals_are_as_without_us(run, fake):
    """Python ignores SIGPIPE; a program under us must not inherit that."""
    plain = run("cat", "/proc/self/status")
    ignored = next(line for line in plain.stdout.splitlines() if line.startswith("SigIgn"))
    blocked = next(line for line in plain.stdout.splitlines() if line.startswith("SigBlk"))
    assert int(ignored.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0
    assert int(blocked.split()[1], 16) == 0


def test_a_refusal_is_told_with_its_numbers(run, fake):
    facts = [("capacity", "15.5 GiB"), ("requested", "12.0 GiB by alice/a, bob/b")]
    fake.refusals = [refusal(409, "not_admitted", "no room for a request of 6.0 GiB", facts, "add --wait")]
    result = run("--request", "6Gi", "true")
    assert result.returncode == 125
    assert result.stderr == (
        "gpushare: no room for a request of 6.0 GiB\n"
        "  capacity   15.5 GiB\n"
        "  requested  12.0 GiB by alice/a, bob/b\n"
        "hint: add --wait\n"
    )


def test_wait_asks_again_with_patience(run, fake):
    fake.refusals = [refusal(409, "not_admitted", "no room for a request of 6.0 GiB")]
    result = run("--request", "6Gi", "--wait", "90s", "true")
    assert result.returncode == 0
    assert [body["wait"] for body in fake.bodies("POST")] == [None, 90.0]
    assert "waiting up to 1m30s: no room for a request of 6.0 GiB" in result.stderr


def test_wait_needs_no_value(run, fake):
    fake.refusals = [refusal(409, "not_admitted", "no room")]
    result = run("--request", "6Gi", "--wait", "true")
    assert result.returncode == 0
    assert fake.bodies("POST")[1]["wait"] > 10**8
    assert "waiting until there is room: no room" in result.stderr


def test_notices_are_told_as_they_come(start, fake):
    process = start("run", "sleep", "30")
    fake.wait_for_call("GET", "/events")
    fake.notify("asked_back", "bob/nb-2 wants 5.0 GiB back within 10 s")
    fake.notify("denied", "the shim has said this in the program already")
    assert process.stderr.readline() == "gpushare: bob/nb-2 wants 5.0 GiB back within 10 s\n"
    process.terminate()
    assert process.wait(10) == 128 + signal.SIGTERM
    assert process.stderr.read() == ""


def test_notices_of_one_kind_are_counted_not_repeated(start, fake):
    process = start("run", "sleep", "30")
    fake.wait_for_call("GET", "/events")
    for _ in range(20):
        fake.notify("asked_back", "give back")
    assert process.stderr.readline() == "gpushare: give back\n"
    time.sleep(1.1)
    fake.notify("asked_back", "give back")
    assert process.stderr.readline() == "gpushare: give back (and 19 more like it)\n"


@pytest.mark.parametrize("program", ["exec sleep 30", "trap 'exit 0' TERM; while :; do sleep 0.05; done"])
def test_a_reclaimed_job_exits_137_and_says_who_got_its_memory(start, fake, program):
    """Also when the program took SIGTERM and exited 0: what it was started for is not done."""
    process = start("run", "--name", "train", *sh(program))
    fake.wait_for_call("GET", "/events")
    time.sleep(0.2)
    fake.killed = killed()
    fake.notify("killed", "stopped to return 5.0 GiB to bob/nb-2")
    os.kill(fake.mains[next(iter(fake.jobs))], signal.SIGTERM)
    assert process.wait(10) == 137
    first, *facts = process.stderr.read().splitlines()
    assert first.startswith("gpushare: sh[")
    assert first.endswith("] was stopped to return borrowed memory (exit 137)")
    assert facts[0].startswith("  owed      5.0 GiB to nb-2 (bob) at ")
    assert facts[0].endswith(", grace 10 s")
    assert facts[1:] == [
        "  returned  12.0 GiB",
        "  used      12.0 GiB, guaranteed 4.0 GiB, borrowed 8.0 GiB",
        "  reason    the owner's claim needs 5.0 GiB",
        "hint: ask for more with --request, or free memory on SIGTERM within the grace",
    ]


def test_the_cause_is_told_even_if_the_daemon_died_with_the_job(start, fake):
    process = start("run", "sleep", "30")
    fake.wait_for_call("GET", "/events")
    pid = next(iter(fake.mains.values()))
    fake.notify("killed", "stopped to return 5.0 GiB to bob/nb-2")
    time.sleep(0.2)
    fake.stop()
    os.kill(pid, signal.SIGKILL)
    assert process.wait(10) == 137
    said = process.stderr.read()
    assert said == f"gpushare: sleep[{pid}] was stopped (exit 137): stopped to return 5.0 GiB to bob/nb-2\n"


def test_a_killed_job_that_takes_its_time_is_not_registered_again(start, fake):
    process = start("run", *sh("trap '' TERM; sleep 1; exit 0"))
    fake.wait_for_call("GET", "/events")
    fake.killed = killed()
    fake.notify("killed", "stopped to return 5.0 GiB to bob/nb-2")
    fake._streams[0][1].put(None)
    assert process.wait(10) == 137
    assert len(fake.bodies("POST")) == 1


def test_a_job_that_was_ended_is_not_registered_again(start, fake):
    process = start("run", *sh("sleep 1"))
    fake.wait_for_call("GET", "/events")
    for job in fake.jobs.values():
        job["state"] = "ended"
    fake._streams[0][1].put(None)
    assert process.wait(10) == 0
    assert len(fake.bodies("POST")) == 1


# Signals

COUNT_SIGNALS = """
import signal, sys, time
got = []
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH"):
    signal.signal(getattr(signal, name), lambda n, f: got.append(signal.Signals(n).name))
print("ready", flush=True)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end and "SIGTERM" not in got:
    time.sleep(0.02)
time.sleep(0.1)
print(*got, flush=True)
"""


def test_signals_are_forwarded(start, fake):
    process = start("run", sys.executable, "-c", COUNT_SIGNALS, "20")
    assert process.stdout.readline() == "ready\n"
    sent = ["SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGTERM"]
    for name in sent:
        process.send_signal(getattr(signal, name))
        time.sleep(0.05)
    assert process.stdout.readline().split() == sent
    assert process.wait(10) == 0


# What a shell with job control does around one command.
TINY_SHELL = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    _, status = os.waitpid(pid, os.WUNTRACED)
    os.tcsetpgrp(0, os.getpgrp())
    if not os.WIFSTOPPED(status):
        print("exit", os.waitstatus_to_exitcode(status), flush=True)
        break
    print("stopped", flush=True)
    sys.stdin.readline()
    os.tcsetpgrp(0, pid)
    os.killpg(pid, signal.SIGCONT)
"""


def on_a_terminal(arguments: list[str], through: list[str] = []) -> tuple[int, int]:  # noqa: B006
    """Start as a shell would, in the foreground of a terminal of its own: pid and the terminal's other end."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        try:
            command = [*through, sys.executable, "-m", "gpushare", "run", *arguments]
            os.execv(command[0], command)
        finally:
            os._exit(99)
    return pid, terminal


def read_until(terminal: int, text: str, within: float = 15.0) -> str:
    import select

    found, end = "", time.monotonic() + within
    while text not in found and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            found += os.read(terminal, 4096).decode()
    assert text in found, found
    return found


def test_ctrl_c_reaches_the_program_once(fake, run):
    pid, terminal = on_a_terminal([sys.executable, "-c", COUNT_SIGNALS, "1.0"])
    try:
        read_until(terminal, "ready")
        os.write(terminal, b"\x03")
        assert read_until(terminal, "SIGINT").count("SIGINT") == 1
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        os.close(terminal)


def test_ctrl_z_stops_both_and_both_continue(fake, run):
    # No shell: one that is stopped between vfork and exec of its child is not stopped but in state D.
    program = "import time; print('ready', flush=True); time.sleep(0.5); print('done')"
    line = [sys.executable, "-c", program]
    pid, terminal = on_a_terminal(line, through=[sys.executable, "-c", TINY_SHELL])
    try:
        read_until(terminal, "ready")
        os.write(terminal, b"\x1a")
        read_until(terminal, "stopped")
        program = fake.mains[next(iter(fake.jobs))]
        wait_for_state(program, "T")
        os.write(terminal, b"fg\n")
        read_until(terminal, "done")
        read_until(terminal, "exit 0")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def test_ctrl_z_without_a_shell_freezes_nobody(fake, run):
    """As the first process of a container: nobody could continue us."""
    pid, terminal = on_a_terminal(sh("echo ready; sleep 0.5; echo done"))
    try:
        read_until(terminal, "ready")
        os.write(terminal, b"\x1a")
        read_until(terminal, "done")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        os.close(terminal)


def wait_for_state(pid: int, state: str, within: float = 5.0) -> None:
    end = time.monotonic() + within
    while state_of(pid) != state and time.monotonic() < end:
        time.sleep(0.02)
    assert state_of(pid) == state


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_a_signal_while_the_program_ends_does_not_swallow_its_exit_code(start, fake):
    for _ in range(5):
        process = start("run", *sh("trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done"))
        assert process.stdout.readline() == "ready\n"
        for _ in range(20):
            process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 3


# --exec and --report


def test_exec_becomes_the_program(start, fake):
    process = start("run", "--exec", "--limit", "4Gi", *sh("echo $$; exit 3"))
    stdout, stderr = process.communicate(timeout=10)
    assert (process.returncode, stdout, stderr) == (3, f"{process.pid}\n", "")
    assert list(fake.mains.values()) == [process.pid]
    assert fake.bodies("DELETE") == []


def test_report(run, fake, tmp_path):
    report = tmp_path / "report.json"
    fake.killed = killed()
    result = run("--request", "4Gi", "--limit", "14Gi", "--report", report, *sh("exit 9"))
    found = json.loads(report.read_text())
    assert result.returncode == found["exit_code"] == 137
    assert found["schema"] == "gpushare.report/1"
    assert (found["mode"], found["child_exit_code"], found["child_signal"]) == ("daemon", 9, None)
    assert found["reclaimed"] is True
    assert found["job"] == {"id": fake.bodies("POST")[0]["job"], "name": "sh"}
    assert (found["gpus"][0]["request"], found["gpus"][0]["limit"]) == (4 * GIB, 14 * GIB)
    assert found["outcome"]["killed"]["owner"] == "nb-2"
    assert found["outcome"]["peak"] == {UUID.format(0): 0}
    assert found["gpus"][0]["peak"] == 0
    assert [path.name for path in tmp_path.glob(".report*")] == []


def test_a_report_needs_a_working_directory_that_is_there(run, fake, tmp_path):
    gone = tmp_path / "gone"
    script = f"mkdir {gone} && cd {gone} && rmdir {gone} && exec {sys.executable} -m gpushare run --report r.json true"
    result = run(*sh(script))
    assert result.returncode == 125
    assert "cannot write the report to r.json" in result.stderr and "Traceback" not in result.stderr


def test_a_report_into_a_pipe(start, fake, tmp_path):
    """It is whole where somebody reads, also late; a pipe without a reader holds the wrapper for seconds at most."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = start("run", "--report", pipe, *sh("exit 3"))
    fake.wait_for_call("DELETE", "")
    time.sleep(0.3)
    assert process.poll() is None
    assert json.loads(pipe.read_text())["exit_code"] == 3
    assert process.wait(10) == 3
    assert process.stderr.read() == ""


def test_a_report_larger_than_a_pipe(start, fake, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = start("run", "--report", pipe, *sh("exit 3"), "x" * 100_000)
    reader = os.open(pipe, os.O_RDONLY)
    time.sleep(0.5)
    with os.fdopen(reader) as file:
        assert len(json.load(file)["command"][-1]) == 100_000
    assert process.wait(10) == 3


@pytest.mark.parametrize("reader", [False, True])
def test_a_report_that_nobody_reads(start, fake, tmp_path, reader):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) if reader else None
    process = start("run", "--report", pipe, *sh("exit 3"), "x" * 100_000)
    began = time.monotonic()
    assert process.wait(30) == 3
    assert 4.5 < time.monotonic() - began < 20
    why = "it was not read" if reader else "it was not opened for reading"
    assert process.stderr.read() == f"gpushare: cannot write the report to {pipe}: {why} within 5 s\n"
    if held is not None:
        os.close(held)


def test_a_signal_ends_the_wait_for_a_reports_reader(start, fake, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = start("run", "--report", pipe, *sh("exit 3"))
    fake.wait_for_call("DELETE", "")
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(3) == -signal.SIGTERM


# No daemon


def test_without_a_daemon_the_limit_holds_alone_and_that_is_said_once(run, environ, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUSHARE_SOCKET", str(tmp_path / "nowhere" / "api.sock"))
    monkeypatch.setenv("GPUSHARE_DRIVER", "sim")
    result = run("--limit", "4Gi", *sh("echo $GPUSHARE_LIMIT ${GPUSHARE_JOB-none}; exit 5"))
    assert (result.returncode, result.stdout) == (5, "4Gi none\n")
    assert result.stderr.count("no daemon listens at") == 1
    assert "the limit holds for each process by itself" in result.stderr


def test_require_daemon(run, environ, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUSHARE_SOCKET", str(tmp_path / "api.sock"))
    result = run("--require-daemon", "true")
    assert result.returncode == 125
    assert "no daemon listens at" in result.stderr


GARBAGE = [
    b"220 mail.example.org ESMTP\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{]}{[",
    b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"protocol": 1}',
    b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999999\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{",
    b"",
    os.urandom(300),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_from_the_socket(run, fake, garbage):
    fake.garbage = garbage
    result = run("--require-daemon", "true")
    assert result.returncode == 125
    assert result.stderr.startswith("gpushare: ")
    assert run("--limit", "1Gi", *sh("exit 4")).returncode == 4


def test_garbage_in_the_middle_of_a_run_disturbs_nobody(start, fake):
    process = start("run", *sh("sleep 1; exit 6"))
    fake.wait_for_call("GET", "/events")
    fake.garbage = b"\xff\xfe garbage"
    fake._streams[0][1].put(b"not json\n")
    assert process.wait(10) == 6
    assert "Traceback" not in process.stderr.read()


def test_another_protocol(run, fake):
    fake.protocol = 2
    result = run("--require-daemon", "true")
    assert result.returncode == 125
    assert "speaks protocol 2, this command 1" in result.stderr


def test_unknown_variables_are_warned_of(run, fake, monkeypatch):
    monkeypatch.setenv("GPUSHARE_LIMITS", "4Gi")
    result = run("true")
    assert result.returncode == 0
    assert result.stderr == "gpushare: there is no variable GPUSHARE_LIMITS: did you mean GPUSHARE_LIMIT?\n"
    assert run("-q", "true").stderr == ""


def test_variables_that_disagree_are_warned_of_once(run, fake, monkeypatch):
    monkeypatch.setenv("GPUSHARE_LIMIT", "4Gi")
    monkeypatch.setenv("NVIDIA_GPU_MEMORY_LIMIT", "8192")
    result = run("true")
    assert result.stderr == (
        "gpushare: GPUSHARE_LIMIT=4Gi (4.0 GiB) and NVIDIA_GPU_MEMORY_LIMIT=8192 (8.0 GiB) disagree: the first counts\n"
    )
    assert fake.bodies("POST")[0]["limit"] == "4Gi"


def test_a_bad_variable_is_named(run, fake, monkeypatch):
    monkeypatch.setenv("RUNAI_GPU_MEMORY_LIMIT", "lots")
    result = run("true")
    assert result.returncode == 125
    assert "RUNAI_GPU_MEMORY_LIMIT=lots: cannot read 'lots'" in result.stderr


def test_verbose_says_the_budget_and_where_it_comes_from(run, fake, monkeypatch):
    monkeypatch.setenv("RUNAI_GPU_MEMORY_LIMIT", "0.25")
    said = run("-v", "true").stderr
    assert said.count("\n") == 1
    assert "limit 4.0 GiB (from RUNAI_GPU_MEMORY_LIMIT=0.25)" in said


def test_a_daemon_that_comes_back_gets_the_job_again(start, fake, tmp_path):
    """The system's daemon: not ours to start, but ours to find again."""
    from fake_api import FakeDaemon

    process = start("run", "--limit", "4Gi", *sh("sleep 3; exit 8"))
    fake.wait_for_call("GET", "/events")
    (identity,), (pid,) = fake.jobs, fake.mains.values()
    fake.stop()
    second = FakeDaemon(fake.directory).start()
    try:
        second.wait_for_call("GET", "/events")
        assert second.mains == {identity: pid}
        assert second.bodies("POST")[0]["job"] == identity
        assert process.wait(10) == 8
        assert second.bodies("DELETE") == [{"exit_code": 8, "signal": None}]
    finally:
        second.stop()


def test_stat_of_links(fake, run):
    """The links to the software driver lie in a directory that is closed to others."""
    run("true")
    assert stat.S_IMODE((fake.directory / "drivers").stat().st_mode) == 0o700
