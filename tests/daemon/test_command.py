"""gpushared as a command: options, settings, lock, idle exit, signals, what systemd hears."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from daemon_harness import PYTHONPATH, ROOT, until

from gpushare import unixhttp
from gpushare.errors import UsageError
from gpushared import config
from gpushared.core.policy import Policy
from gpushared.system.runtime_dir import AlreadyRunning, RuntimeDir


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "gpushared", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )


# ---- settings ----------------------------------------------------------------------------------


def test_the_sample_file_has_every_setting_at_its_default():
    sample = ROOT / "daemon" / "deploy" / "gpushared.toml"
    loaded = config.load(sample)
    assert loaded.config == config.Config()
    settable = {name for name, _ in config._KEYS.values()} | {"rules"}
    assert loaded.from_file == settable
    own = config.Config.__dataclass_fields__.keys() - Policy.__dataclass_fields__.keys()
    assert own <= settable, "what the core does not need is there to be set"


def test_who_reads_the_first_line_of_check_config_sees_no_traceback():
    read, write = os.pipe()
    os.close(read)
    line, env = [sys.executable, "-m", "gpushared", "--check-config"], {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(line, env=env, stdout=write, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_what_check_config_prints_is_a_config(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('[reclaim]\ngrace = "20s"\n[memory]\nreserve_least = "1Gi"\n')
    done = run("--check-config", "--config", file)
    assert done.returncode == 0 and done.stderr == ""
    assert f"grace = 20.0  # {file}" in done.stdout and "claim_timeout = 30.0  # default" in done.stdout
    again = config.parse(done.stdout, file)
    assert config.Config(**again) == config.Config(grace=20.0, reserve_least=2**30)


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ("[memory]\nreserv_share = 0.1", "$.memory.reserv_share", "no such key"),
        ("[memry]\nx = 1", "$.memry", "no such table"),
        ("memory = 1", "$.memory", "not a table"),
        ("[memory]\nreserve_share = 1.5", "$.memory.reserve_share", "share"),
        ("[memory]\nreserve_share = true", "$.memory.reserve_share", "share"),
        ("[memory]\nreserve_least = 4096", "$.memory.reserve_least", "quotes"),
        ('[memory]\nchunk = "4g"', "$.memory.chunk", "cannot read"),
        ('[memory]\nchunk = "50%"', "$.memory.chunk", "bytes"),
        ('[reclaim]\ngrace = "soon"', "$.reclaim.grace", "duration"),
        ("[reclaim]\ngrace = -1", "$.reclaim.grace", "short"),
        ("[reclaim]\nclaim_timeout = inf", "$.reclaim.claim_timeout", "inf is no length of time"),
        ('[daemon]\nreveal = "all"', "$.daemon.reveal", "name, user, none"),
        ('[metrics]\nlisten = "9836"', "$.metrics.listen", "host:port"),
        ("[policy.projects.p]\nmax_jobs = 3", "$.policy.projects.p", "members is not a list"),
        ("[policy.projects.p]\nmembers = []", "$.policy.projects.p.members", "members is not a list"),
        ('[policy.projects.p]\nmembers = "ann"', "$.policy.projects.p.members", "members is not a list"),
        ('[policy.projects.p]\nmembers = ["ann", 7]', "$.policy.projects.p.members", "members is not a list"),
        ('[policy.projects.p]\nmembers = ["ann", "@"]', "$.policy.projects.p.members", "members is not a list"),
        ('[policy.users.ann]\nmembers = ["bob"]', "$.policy.users.ann.members", "no such key"),
    ],
)
def test_settings_that_are_wrong_are_named_with_their_path(tmp_path, text, path, says):
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        config.load(file)
    ((place, problem),) = caught.value.facts
    line = next(number for number, line in enumerate(text.splitlines(), 1) if path.rpartition(".")[2] in line)
    assert place == f"{file}:{line}" and problem.startswith(f"{path}: ") and says in problem


def test_all_errors_of_a_file_come_at_once(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text("[a]\n[b]\n[memory]\nx = 1\n")
    done = run("--check-config", "--config", file)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert all(path in done.stderr for path in ("$.a", "$.b", "$.memory.x"))


@pytest.mark.parametrize("content", [None, b"not = = toml", b"\xff\xfe"])
def test_files_that_cannot_be_read(tmp_path, content):
    file = tmp_path / "bad.toml"
    if content is not None:
        file.write_bytes(content)
    done = run("--check-config", "--config", file)
    assert done.returncode == 2 and str(file) in done.stderr and "Traceback" not in done.stderr


# ---- starting ----------------------------------------------------------------------------------


def test_a_directory_of_somebody_else_is_refused(tmp_path):
    open_to_all = tmp_path / "d"
    open_to_all.mkdir(mode=0o777)
    open_to_all.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    for directory in (open_to_all, link, tmp_path / "no" / "such"):
        done = run("--user", "--driver", "sim", "--dir", directory)
        assert done.returncode == 4 and str(directory) in done.stderr and "hint:" in done.stderr
        assert "Traceback" not in done.stderr


def test_without_an_nvidia_driver_it_says_so(directory):
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is an NVIDIA driver")
    done = run("--user", "--driver", "nvidia", "--dir", directory / "d")
    assert done.returncode == 1 and "NVIDIA driver" in done.stderr and "--driver sim" in done.stderr


def test_options_that_do_not_exist():
    done = run("--nonsense")
    assert done.returncode == 2 and "usage:" in done.stderr


# ---- running -----------------------------------------------------------------------------------


def test_it_serves_the_software_driver_and_stops_cleanly(gpushared):
    gpushared.start()
    version = gpushared.client.version()
    assert (version["driver"], version["scope"]) == ("sim", "user")
    gpus = gpushared.client.status()["gpus"]
    assert [gpu["total"] for gpu in gpus] == [16 * 2**30] * 2 and gpus[0]["uuid"].startswith("GPU-")
    assert gpushared.stop() == 0
    assert sorted(path.name for path in gpushared.directory.iterdir() if path.suffix == ".sock") == []
    assert "Traceback" not in gpushared.log.read_text()


def test_it_imports_nothing_for_tls(gpushared):
    """aiohttp's client would read the certificates of all authorities, and the first run of a user waits for that."""
    gpushared.command[1:1] = ["-X", "importtime"]
    gpushared.start()
    assert gpushared.stop() == 0
    imported = {line.rsplit("|", 1)[1].strip() for line in gpushared.log.read_text().splitlines() if "|" in line}
    assert "aiohttp.web" in imported
    assert "_ssl" not in imported


def test_it_answers_with_metrics(gpushared):
    """The module that writes them is imported for the first request, and needs what the start went without."""
    gpushared.start()
    status, body = unixhttp.exchange(gpushared.directory / "api.sock", "GET", "/metrics", None, 10.0)
    assert status == 200 and b"gpushare_" in body


def test_garbage_is_collected_once_it_serves(make_daemon):
    gc.disable()
    try:
        make_daemon()
        assert until(gc.isenabled)
    finally:
        gc.enable()


def test_of_many_started_at_once_one_stays(gpushared):
    started = [gpushared.spawn() for _ in range(4)]
    pid = until(lambda: answering(gpushared), 10)
    winner = next(one for one in started if one.pid == pid)
    for one in started:
        if one is not winner:
            assert one.wait(10) == 0
    assert winner.poll() is None
    gpushared.process = winner
    assert gpushared.stop() == 0
    assert "error" not in gpushared.log.read_text().lower()


def answering(node):
    try:
        return node.client.version()["pid"]
    except Exception:
        return None


def test_one_that_comes_while_another_ends_takes_over(gpushared):
    gpushared.start()
    old = gpushared.process
    old.send_signal(signal.SIGTERM)
    gpushared.start()
    assert old.wait(5) == 0 and gpushared.process.poll() is None


def test_a_loser_makes_sure_that_there_is_a_winner(tmp_path):
    first, second = (RuntimeDir(tmp_path / "d", system=False) for _ in range(2))
    first.take()
    with first.bind("api.sock", socket.SOCK_STREAM) as serving:
        serving.listen()
        with pytest.raises(AlreadyRunning):
            second.take()
    # It holds the lock and no longer answers: it is about to end.
    threading.Timer(0.3, first.release).start()
    started = time.monotonic()
    second.take()
    assert time.monotonic() - started > 0.2
    second.release()


def test_it_ends_after_its_last_job(gpushared, tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('[daemon]\nidle_exit = "0.5s"\n')
    gpushared.start("--config", str(file))
    job = gpushared.client.register({"name": "a", "command": ["a"], "request": "1Gi", "limit": "1Gi", "gpus": 1})
    time.sleep(1.2)
    assert gpushared.process.poll() is None
    gpushared.client.end(job["id"], 0, None)
    assert gpushared.process.wait(5) == 0
    assert not (gpushared.directory / "api.sock").exists()


def test_a_program_with_a_page_keeps_it_alive(gpushared, tmp_path, program):
    file = tmp_path / "a.toml"
    file.write_text('[daemon]\nidle_exit = "0.3s"\n')
    gpushared.start("--config", str(file))
    job = gpushared.client.register({"name": "a", "command": ["a"], "request": "1Gi", "limit": "1Gi", "gpus": 1})
    one = program(gpushared.shim)
    one.call("hello", request=2**30, limit=2**30)
    one.call("disconnect")
    gpushared.client.end(job["id"], 0, None)
    time.sleep(1.0)
    assert gpushared.process.poll() is None
    one.close()
    assert gpushared.process.wait(5) == 0


def test_what_systemd_hears(gpushared, directory):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(directory / "notify"))
        manager.settimeout(10)
        gpushared.start(NOTIFY_SOCKET=str(directory / "notify"), WATCHDOG_USEC="200000")
        heard = [manager.recv(4096).decode()]
        assert heard[0].startswith("READY=1\nSTATUS=2 GPUs, 0 jobs")
        gpushared.client.register({"name": "a", "command": ["a"], "request": "1Gi", "limit": "1Gi", "gpus": 1})
        while "STATUS=2 GPUs, 1 job, 0 B lent" not in heard or "WATCHDOG=1" not in heard:
            heard.append(manager.recv(4096).decode())
        gpushared.process.send_signal(signal.SIGHUP)
        while not heard[-1].startswith("READY=1"):
            heard.append(manager.recv(4096).decode())
        assert any(one.startswith("RELOADING=1\nMONOTONIC_USEC=") for one in heard)
        gpushared.process.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in heard:
            heard.append(manager.recv(4096).decode())
        assert gpushared.process.wait(5) == 0


def test_settings_are_read_again_and_bad_ones_change_nothing(gpushared, tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("")
    gpushared.start("--config", str(file), "--log-format", "json")
    file.write_text('[reclaim]\ngrace = "9s"\n')
    gpushared.process.send_signal(signal.SIGHUP)
    until(lambda: "grace: 5 s -> 9 s" in gpushared.log.read_text())
    file.write_text("[reclaim]\ngrace = 'never'\n")
    gpushared.process.send_signal(signal.SIGHUP)
    until(lambda: "the settings stay as they were" in gpushared.log.read_text())
    assert gpushared.client.version()["pid"] == gpushared.process.pid
    assert gpushared.stop() == 0
    lines = [json.loads(line) for line in gpushared.log.read_text().splitlines()]
    assert {"ready", "stopped"} <= {line["message"] for line in lines}
