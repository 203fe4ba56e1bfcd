"""The daemon that `gpushare run` starts for its user, stood in for by fake_api.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from fake_api import starts

from gpushare import locate
from gpushare.client import Client
from gpushare.errors import DaemonUnreachable
from gpushare.launch import Launch, Options
from gpushare.paths import Runtime


def calls(directory) -> list:
    log = directory / "calls"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def wait_until(condition, within: float = 15.0):
    end = time.monotonic() + within
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {within} s")


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_job_whose_answer_was_lost_is_registered_again_as_the_same(fake, environ, monkeypatch):
    """The daemon has noted it and died before it answered; its successor knows the job."""
    node = locate.Node(Runtime(fake.socket.parent), "sim", starter=object())
    register, lost = Client.register, [1]

    def register_and_lose(client, body, wait=None):
        job = register(client, body, wait)
        if lost:
            lost.pop()
            raise DaemonUnreachable("the daemon hung up", code="hung_up")
        return job

    monkeypatch.setattr(Client, "register", register_and_lose)
    monkeypatch.setattr(locate, "for_run", lambda settings: node)
    first, second = Launch(Options(["true"]), environ), Launch(Options(["true"]), environ)
    first.node = second.node = node
    first._admit()
    assert [body["job"] for body in fake.bodies("POST")] == [first.job["id"]] * 2
    assert list(fake.jobs) == [first.job["id"]]
    second._admit()
    assert list(fake.jobs) == [first.job["id"], second.job["id"]]


def test_run_starts_a_daemon_that_ends_after_the_last_job(run, own_daemon):
    result = run("--driver", "sim", "--limit", "4Gi", "true")
    assert (result.returncode, result.stderr) == (0, "")
    (pid,) = starts(own_daemon)
    wait_until(lambda: is_gone(pid))


def test_the_software_driver_is_announced_when_nobody_asked_for_it(run, own_daemon, monkeypatch):
    if Path("/dev/nvidiactl").exists():
        return
    assert "the software driver stands in" in run("true").stderr


def test_wrappers_that_start_together_share_one_daemon(start, own_daemon):
    processes = [start("run", "--driver", "sim", "sleep", "1.5") for _ in range(6)]
    assert [process.wait(30) for process in processes] == [0] * 6
    assert len(starts(own_daemon)) == 1
    registered = [call for call in calls(own_daemon) if call[0] == "POST"]
    assert len(registered) == 6


def test_a_killed_daemon_is_started_again_with_the_same_job(start, own_daemon):
    process = start("run", "--driver", "sim", "--limit", "4Gi", "sh", "-c", "sleep 3; exit 11")
    wait_until(lambda: any(call[1].endswith("/events") for call in calls(own_daemon)))
    (first,) = starts(own_daemon)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: len(starts(own_daemon)) == 2)
    assert process.wait(20) == 11
    assert process.stderr.read() == ""
    posts = [call[2]["job"] for call in calls(own_daemon) if call[0] == "POST"]
    assert len(posts) == 2 and len(set(posts)) == 1
    mains = {call[2]["pid"] for call in calls(own_daemon) if call[0] == "PUT"}
    assert len(mains) == 1


def test_the_daemon_holds_nothing_of_the_wrappers(start, own_daemon, tmp_path):
    """It outlives the wrapper: a pipe or a lock that a build tool left open must not hang on it."""
    reader, writer = os.pipe()
    process = start("run", "--driver", "sim", "sleep", "2", pass_fds=[writer])
    os.close(writer)
    (pid,) = wait_until(lambda: starts(own_daemon))
    held = [str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()]
    assert not any(name.startswith("pipe:") for name in held), held
    assert Path(f"/proc/{pid}/fd/1").readlink() == own_daemon / "daemon.log"
    assert os.getsid(pid) == pid
    assert process.wait(10) == 0
    os.close(reader)


def test_the_daemon_is_not_part_of_the_job_that_started_it(run, own_daemon, monkeypatch):
    monkeypatch.setenv("GPUSHARE_NAME", "outer")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = run("--driver", "sim", "sh", "-c", f"cat /proc/$(cat {own_daemon}/starts)/environ").stdout
    names = {item.split("=", 1)[0] for item in found.split("\0")}
    assert "PATH" in names
    assert not {"LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "GPUSHARE_NAME", "GPUSHARE_JOB"} & names


def test_files_of_the_user_do_not_break_the_daemon(run, own_daemon, tmp_path):
    for name in ("queue.py", "types.py", "argparse.py", "gpushared.py"):
        (tmp_path / name).write_text("raise SystemExit('this is the user's own')\n")
    # -P: the installed command does not look for modules in the current directory either.
    code = "import sys; from gpushare.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", code, "run", "--driver", "sim"]
    result = subprocess.run([*command, "--require-daemon", "true"], cwd=tmp_path, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_directory_that_is_not_ours_alone_is_refused(run, own_daemon):
    own_daemon.mkdir(mode=0o755)
    own_daemon.chmod(0o755)
    result = run("--driver", "sim", "true")
    assert result.returncode == 125
    assert f"{own_daemon} is open to others (mode 0755)" in result.stderr
    assert "hint: " in result.stderr


def test_a_daemon_that_does_not_start_shows_its_log(run, own_daemon, tmp_path, monkeypatch):
    broken = tmp_path / "broken" / "gpushared"
    broken.mkdir(parents=True)
    (broken / "__init__.py").touch()
    (broken / "__main__.py").write_text("import sys; sys.exit('no such GPU driver')")
    monkeypatch.setenv("PYTHONPATH", f"{broken.parent}:{os.environ['PYTHONPATH']}")
    result = run("--driver", "sim", "--require-daemon", "true", timeout=40)
    assert result.returncode == 125
    assert "the daemon did not start" in result.stderr
    assert "no such GPU driver" in result.stderr
