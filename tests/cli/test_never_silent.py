"""`gpushare run` without the protection that was asked for: it says why, or does not start the program."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fake_api import FakeDaemon, starts

from gpushare import doctor, locate, paths
from gpushare.cli import main
from gpushare.config import load_settings
from gpushare.env import Settings
from gpushare.errors import DaemonUnreachable, GpushareError
from gpushare.start_daemon import last_error

AT_SYSTEM = """
import sys
from pathlib import Path
from gpushare import paths
paths.SYSTEM_DIR, paths.SYSTEM_UNITS = Path(sys.argv[1]), ()
from gpushare.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def system(tmp_path, environ, monkeypatch):
    """A directory in place of /run/gpushare, for this process."""
    directory = tmp_path / "system"
    for module in (paths, locate):
        monkeypatch.setattr(module, "SYSTEM_DIR", directory)
        monkeypatch.setattr(module, "SYSTEM_UNITS", (tmp_path / "gpushared.service",))
    monkeypatch.setattr(locate, "RESTARTS_WITHIN", 0.2)
    return directory


def settings(environ, driver: str) -> Settings:
    return Settings({"GPUSHARE_DRIVER": driver}, environ)


@pytest.mark.parametrize("sign", ["directory", "unit"])
def test_no_daemon_of_ours_starts_beside_a_system_daemon_on_real_gpus(system, environ, tmp_path, sign):
    (system if sign == "directory" else tmp_path / "gpushared.service").mkdir()
    with pytest.raises(DaemonUnreachable) as caught:
        locate.for_run(settings(environ, "nvidia"))
    assert caught.value.code == "system_daemon_away"
    assert f"no daemon listens at {system}/api.sock" in caught.value.message
    found = str(system if sign == "directory" else tmp_path / "gpushared.service")
    assert caught.value.facts == (("found", found), ("log", "journalctl -u gpushared"))
    assert not (Path(environ["XDG_RUNTIME_DIR"]) / "gpushare").exists()


def test_a_system_daemon_that_restarts_is_waited_for(system, environ, monkeypatch):
    monkeypatch.setattr(locate, "RESTARTS_WITHIN", 20.0)
    system.mkdir()
    daemon = FakeDaemon(system, driver="nvidia")
    timer = threading.Timer(0.5, daemon.start)
    timer.start()
    try:
        node = locate.for_run(settings(environ, "nvidia"))
    finally:
        timer.join()
        daemon.stop()
    assert (node.runtime.directory, node.starter) == (system, None)


def test_a_daemon_of_ours_beside_a_system_daemon_of_software_gpus_is_said(system, own_daemon, environ, run_at):
    system.mkdir()
    began = time.monotonic()
    result = run_at(system, "run", "--driver", "sim", "true")
    assert (result.returncode, len(starts(own_daemon))) == (0, 1)
    assert f"this user's daemon is used, not the system's: no daemon listens at {system}/api.sock" in result.stderr
    assert time.monotonic() - began < 15


def test_another_driver_was_asked_for_and_is_not_worth_a_word(system, own_daemon, environ, run_at):
    system.mkdir()
    daemon = FakeDaemon(system, driver="nvidia").start()
    try:
        result = run_at(system, "run", "--driver", "sim", "true")
        assert (result.returncode, result.stderr) == (0, "")
        assert "not the system's" in run_at(system, "run", "-v", "--driver", "sim", "true").stderr
    finally:
        daemon.stop()


def test_software_gpus_of_another_user_are_not_ours(system, environ, monkeypatch, gpushare):
    """The software driver makes GPUs for each user: those of the daemon are not there for our programs."""
    if os.getuid() != 0:
        pytest.skip("needs root to give a socket away")
    system.mkdir()
    daemon = FakeDaemon(system, driver="sim").start()
    monkeypatch.setattr(locate, "_bring_up", lambda starter: None)
    try:
        assert locate.for_run(settings(environ, "sim")).runtime.directory == system
        os.chown(daemon.socket, 61001, 61001)
        node = locate.for_run(settings(environ, "sim"))
        assert node.runtime.directory == Path(environ["XDG_RUNTIME_DIR"]) / "gpushare-sim"
        assert node.passed_over.code == "foreign_software_gpus"
        assert "software GPUs of user 61001" in node.passed_over.message
        shared = {**environ, "GPUSHARE_SIM": f"pool={system}/pool"}
        assert locate.for_run(settings(shared, "sim")).runtime.directory == system
        # Commands that only look show a daemon of ours first, and else this one with a word about it.
        assert locate.find(settings(environ, "sim")).runtime.directory == system
        code, out, _ = gpushare("status")
        assert code == 0
        assert "software GPUs of user 61001" in out
        found = doctor.check_daemon(doctor.Surroundings(environ))
        assert (found.state, found.detail.count("software GPUs of user 61001")) == ("warn", 1)
        assert "`gpushare run` starts a daemon of yours" in found.hint
        own = FakeDaemon(Path(environ["XDG_RUNTIME_DIR"]) / "gpushare-sim", driver="sim").start()
        try:
            assert doctor.check_daemon(doctor.Surroundings(environ)).state == "ok"
            assert locate.find(settings(environ, "sim")).runtime.directory != system
        finally:
            own.stop()
    finally:
        daemon.stop()


@pytest.fixture
def run_at(environ):
    """`gpushare ...` to its end, with another directory in place of /run/gpushare."""

    def run_at(system, *arguments):
        line = [sys.executable, "-c", AT_SYSTEM, str(system), *arguments]
        return subprocess.run(line, capture_output=True, text=True, timeout=60)

    return run_at


def test_what_is_not_protected_is_said_even_when_quiet(run_at, environ, tmp_path):
    """With the cause, the log and the way out; the program runs with its own limit."""
    system = tmp_path / "system"
    system.mkdir()
    (system / "api.sock").write_text("")  # nobody listens there
    arguments = ("--driver", "nvidia", "--request", "1Gi", "--limit", "4Gi", "sh", "-c", "echo $GPUSHARE_LIMIT; exit 3")
    result = run_at(system, "run", "-q", *arguments)
    assert (result.returncode, result.stdout) == (3, "4Gi\n")
    first, *rest = result.stderr.splitlines()
    assert first.startswith(f"gpushare: the system daemon of this node cannot be used: no daemon listens at {system}")
    assert first.endswith(
        "the limit holds for each process by itself, and nothing is lent; the request is not guaranteed"
    )
    assert rest[0] == f"  found  {system}"
    assert rest[1] == "  log    journalctl -u gpushared"
    assert rest[2].startswith("hint: `systemctl start gpushared` as root")
    assert rest[2].endswith("with --require-daemon this is an error")
    result = run_at(system, "run", "--driver", "nvidia", "--limit", "4Gi", "true")
    assert "nothing is lent\n" in result.stderr  # no request was asked for
    result = run_at(system, "run", "--driver", "nvidia", "--mode", "observe", "true")
    assert "; nothing is observed\n" in result.stderr


@pytest.mark.parametrize(
    ("variable", "user", "machine", "arguments", "code"),
    [
        (None, None, None, [], 0),
        ("1", None, None, [], 125),
        ("yes", None, None, [], 125),
        ("0", "true", "true", [], 0),
        (None, "true", None, [], 125),
        (None, None, "true", [], 125),
        (None, "false", "true", [], 0),
        (None, "true", None, ["--no-require-daemon"], 0),
        ("0", None, None, ["--require-daemon"], 125),
    ],
)
def test_a_site_can_demand_a_daemon(environ, tmp_path, monkeypatch, capfd, variable, user, machine, arguments, code):
    monkeypatch.setenv("GPUSHARE_SOCKET", str(tmp_path / "nowhere" / "api.sock"))
    files = {"user": tmp_path / "config" / "gpushare" / "config.toml", "machine": tmp_path / "system.toml"}
    monkeypatch.setattr("gpushare.config.SYSTEM_FILE", files["machine"])
    for name, value in (("user", user), ("machine", machine)):
        if value is not None:
            files[name].parent.mkdir(parents=True, exist_ok=True)
            files[name].write_text(f"require_daemon = {value}\n")
    if variable is not None:
        monkeypatch.setenv("GPUSHARE_REQUIRE_DAEMON", variable)
    started = []
    monkeypatch.setattr("gpushare.launch.Launch._supervise", lambda *_: started.append(1) or 0)
    assert main(["run", *arguments, "true"]) == code
    assert len(started) == (code == 0)
    assert "no daemon listens at" in capfd.readouterr().err


def test_a_value_that_is_neither_yes_nor_no(run, fake, monkeypatch):
    monkeypatch.setenv("GPUSHARE_REQUIRE_DAEMON", "maybe")
    result = run("true")
    assert result.returncode == 125
    assert "GPUSHARE_REQUIRE_DAEMON=maybe: 'maybe' is neither 1 nor 0" in result.stderr


def test_a_flag_in_a_file_may_be_a_truth_value_and_nothing_else_may(tmp_path, environ, monkeypatch):
    path = tmp_path / "config.toml"
    monkeypatch.setenv("GPUSHARE_CONFIG", str(path))
    path.write_text("require_daemon = true\n")
    assert load_settings().flag("GPUSHARE_REQUIRE_DAEMON") is True
    path.write_text("limit = true\n")
    with pytest.raises(GpushareError, match=r"\$.limit must be a text or a number"):
        load_settings()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "import sys; sys.exit('gpushared: no such GPU driver\\n  driver  none\\nhint: buy one')",
            "no such GPU driver",
        ),
        ("import no_such_module_anywhere", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
    ],
)
def test_the_last_error_of_a_daemon_that_does_not_start_is_shown(run, own_daemon, tmp_path, monkeypatch, source, says):
    broken = tmp_path / "broken" / "gpushared"
    broken.mkdir(parents=True)
    (broken / "__init__.py").touch()
    (broken / "__main__.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", f"{broken.parent}:{os.environ['PYTHONPATH']}")
    own_daemon.mkdir(mode=0o700)
    (own_daemon / "daemon.log").write_text("12:00:00 error of an earlier daemon\n")
    result = run("--driver", "sim", "--limit", "1Gi", "sh", "-c", "exit 4", timeout=40)
    assert result.returncode == 4
    lines = result.stderr.splitlines()
    assert lines[0].startswith("gpushare: the daemon did not start: it ended at once; the limit holds")
    assert lines[1] == f"  it says  {says}"
    assert f"  log      {own_daemon}/daemon.log" in lines
    assert "earlier" not in result.stderr
    assert "hint: `gpushare doctor` looks for the cause; with --require-daemon this is an error" in lines


def test_a_log_that_cannot_be_written_is_said(run, own_daemon):
    own_daemon.mkdir(mode=0o700)
    (own_daemon / "daemon.log").mkdir()
    result = run("--driver", "sim", "sh", "-c", "exit 4")
    assert result.returncode == 4
    assert f"cannot start the daemon: {own_daemon}/daemon.log: Is a directory" in result.stderr


def test_a_real_daemon_names_the_module_that_is_missing(run, own_daemon, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(locate.__file__).parents[1] / 'daemon'}")
    (tmp_path / "pynvml.py").write_text("raise ModuleNotFoundError('no pynvml', name='pynvml')\n")
    result = run("--driver", "sim", "--require-daemon", "true", timeout=60)
    assert result.returncode == 125
    assert f"  it says  the Python module pynvml is not installed for {sys.executable}\n" in result.stderr
    assert "hint: the installation of gpushare is not whole" in result.stderr


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has NVIDIA's driver")
def test_nvidias_driver_that_is_not_there_is_said(run, own_daemon, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(locate.__file__).parents[1] / "daemon"))
    result = run("--driver", "nvidia", "sh", "-c", "exit 4", timeout=60)
    assert result.returncode == 4
    assert "  it says  the NVIDIA driver does not answer: " in result.stderr


@pytest.mark.parametrize(
    ("log", "found"),
    [
        ("", []),
        ("\n\n", []),
        ("12:00:00 info ready\n", ["12:00:00 info ready"]),
        ("Traceback (most recent call last):\n  File x\n    import y\nNameError: y\n", ["NameError: y"]),
        ("gpushared: it fails\n  a  1\n     2\nhint: try\n", ["it fails", "a  1", "2", "hint: try"]),
        ("gpushared: it fails\nTraceback:\n  File x\nNameError: y\n", ["NameError: y"]),
        ("NameError: y\ngpushared: it fails\n", ["it fails"]),
        ("  all\n  indented\n", ["  all"]),
        ("gpushared: it fails\n" + "  a  1\n" * 20, ["it fails", *["a  1"] * 5]),
    ],
)
def test_the_last_thing_that_a_log_says(log, found):
    assert last_error(log) == found


def test_a_daemon_that_is_away_for_long_is_told_once(start, fake, monkeypatch, tmp_path):
    """The program runs on and gets no more memory: after a while that is worth a word."""
    code = "import sys; from gpushare import cli, daemon_link; daemon_link.AWAY = 0.3; sys.exit(cli.main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "run", "sh", "-c", "sleep 4; exit 6"], stderr=subprocess.PIPE, text=True
    )
    fake.wait_for_call("GET", "/events")
    fake.stop()
    _, said = process.communicate(timeout=20)
    assert process.returncode == 6
    assert said.count("the program keeps the memory that it has and gets no more") == 1
    assert "the log: journalctl -u gpushared" in said
