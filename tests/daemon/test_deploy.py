"""What a node needs to run the daemon: the unit, the rights that it leaves, the steps of the instructions."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from daemon_harness import GIB, GPU, HERE, PYTHONPATH, ROOT, until
from hostile import attack
from other_user import CAROL, needs_root
from shim_client import MIB, ShimClient

from gpushare._layout import lib
from gpushare.client import Client
from gpushare.errors import DaemonUnreachable

DEPLOY = ROOT / "daemon" / "deploy"
UNIT = DEPLOY / "gpushared.service"
SERVICE = 61009
"""Stands for the service's user."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")


def unit() -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(UNIT)
    return parser["Service"]


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *map(str, arguments)], capture_output=True, text=True, timeout=60)


# ---- the unit ----------------------------------------------------------------------------------


def test_what_the_documentation_promises_of_the_unit():
    service = unit()
    assert service["Type"] == "notify" and int(service["WatchdogSec"]) > 1
    assert service["ExecReload"] == "/bin/sh -c 'kill -HUP $MAINPID'"
    assert service["KillMode"] == "process", "jobs are not the daemon's children, but kernels may be started beside it"
    assert (service["RuntimeDirectory"], service["RuntimeDirectoryMode"]) == ("gpushare", "0711")
    assert service["RuntimeDirectoryPreserve"] == "yes"
    assert service["User"] == "gpushare"
    assert service["CapabilityBoundingSet"] == service["AmbientCapabilities"] == "CAP_KILL"
    user = (DEPLOY / "gpushared.sysusers").read_text().splitlines()[-1].split()
    assert user[:3] == ["u", service["User"], "-"]


@needs_systemd
def test_systemd_understands_the_unit(tmp_path):
    program = tmp_path / "gpushared"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/gpushare/bin/gpushared", str(program)))
    done = analyze("verify", "--man=no", copy)
    about_us = [line for line in done.stderr.splitlines() if "gpushared" in line]
    assert done.returncode == 0 and about_us == [], done.stderr


@needs_systemd
def test_systemd_finds_little_that_could_be_taken_away():
    done = analyze("security", "--offline=true", UNIT)
    if "Unknown" in done.stderr or "unrecognized" in done.stderr:
        pytest.skip("this systemd-analyze cannot look at a file")
    level = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert level is not None and float(level[1]) <= 2.0, done.stdout


# ---- the rights that it leaves -----------------------------------------------------------------


@pytest.fixture
def service(directory):
    """fixed_daemon.py as a user of its own with the given capabilities and no others, whatever happens."""
    started = []

    def start(capabilities: str) -> subprocess.Popen[bytes]:
        os.chown(directory, SERVICE, SERVICE)
        directory.chmod(0o711)
        keep = [f"--{kind}-caps=-all{capabilities}" for kind in ("inh", "ambient")]
        rights = [f"--reuid={SERVICE}", f"--regid={SERVICE}", "--clear-groups", "--no-new-privs", *keep]
        program = [sys.executable, str(HERE / "fixed_daemon.py"), str(directory), "system"]
        line = ["setpriv", *rights, f"--bounding-set=-all{capabilities}", *program]
        with (directory / "test.log").open("ab") as log:
            process = subprocess.Popen(line, env={**os.environ, "PYTHONPATH": PYTHONPATH}, stderr=log)
        started.append(process)

        def answers() -> bool:
            if process.poll() is not None:
                text = (directory / "test.log").read_text()
                if "Permission denied" in text:
                    pytest.skip("another user cannot read this checkout, or the Python that runs the tests")
                raise AssertionError(text)
            try:
                return bool(Client(directory / "api.sock").version())
            except DaemonUnreachable:
                return False

        until(answers, 60)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def borrow(directory: Path):
    """Takes all of a GPU and does not give back."""

    def nasty(ready):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        client = ShimClient(directory / "shim.sock")
        assert client.hello(request=0, limit=15 * GIB, grace_ms=200).status == lib.GS_OK
        assert client.attach(GPU).status == lib.GS_OK
        assert client.allocate(13 * GIB).status == lib.GS_OK
        ready()
        return client

    return nasty


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv here")
@pytest.mark.parametrize("capabilities", [",+kill", ""], ids=["CAP_KILL", "none"])
def test_one_right_is_enough_and_it_is_needed(service, directory, capabilities):
    """Borrowed memory comes back from a program of another user that does not give it: with CAP_KILL alone."""
    service(capabilities)
    status = Path(f"/proc/{Client(directory / 'api.sock').version()['pid']}/status").read_text()
    assert f"CapEff:\t{0x20 if capabilities else 0:016x}" in status and f"Uid:\t{SERVICE}" in status
    with attack(CAROL, borrow(directory)) as borrower, ShimClient(directory / "shim.sock", 40) as owner:
        owner.hello(request=8 * GIB, limit=8 * GIB)
        owner.attach(GPU)
        owner.sock.settimeout(4 if not capabilities else 40)
        if not capabilities:
            with pytest.raises(TimeoutError):
                owner.ask(6 * GIB)
            assert Path(f"/proc/{borrower}/status").read_text().find("zombie") < 0
            return
        assert owner.ask(6 * GIB).status == lib.GS_OK
        # Its memory comes back before it is quite gone: the kernel takes it apart first.
        until(lambda: "zombie" in Path(f"/proc/{borrower}/status").read_text())


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv here")
def test_with_that_right_alone_programs_that_become_others_are_noticed(service, directory):
    """And a daemon that comes again knows everybody: nothing of other users' memory is looked at."""
    service(",+kill").kill()
    (directory / "lock").unlink(missing_ok=True)
    service(",+kill")
    client = Client(directory / "api.sock")

    def nasty(ready):
        shim = ShimClient(directory / "shim.sock")
        assert shim.hello(request=MIB, limit=GIB).status == lib.GS_OK
        ready()
        time.sleep(2)
        os.execv("/bin/sleep", ["sleep", "60"])

    with attack(CAROL, nasty):
        assert len(client.jobs()) == 1
        until(lambda: client.jobs() == [], 10)
