"""A private place for one act: directory, environment, the driver's memory; and its end, whatever happens.

Everything that is started here carries a token in its environment. A guardian outside of it waits until the auditor
ends, in whatever way; then it kills what carries the token, and removes what was made.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

TOKEN = "AUDIT_TOKEN"
PR_SET_CHILD_SUBREAPER = 36
BIN = Path(sys.executable).parent
TESTS = Path(__file__).parent.parent


def carriers(token: str) -> Iterator[int]:
    """Processes of ours with this token: each as a pidfd, which still means the same process when it is used."""
    mark = f"{TOKEN}={token}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                fd = os.pidfd_open(int(entry.name))
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        yield fd
                finally:
                    os.close(fd)


def sweep(token: str) -> int:
    """Kill all carriers; returns how many there were. Again and again, for one may just have started another."""
    killed = 0
    for _ in range(50):
        found = 0
        for fd in carriers(token):
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                found += 1
        killed += found
        if found == 0:
            break
    return killed


class Ground:
    def __init__(self, hardware: str, keep: bool = False) -> None:
        self.token = secrets.token_hex(8)
        self.directory = Path(tempfile.mkdtemp(prefix="gpushare-audit-"))
        self.pool = Path("/dev/shm" if Path("/dev/shm").is_dir() else self.directory) / f"audit-{self.token}"
        self.keep = keep
        for name in ("run", "jobs"):
            (self.directory / name).mkdir(mode=0o700)
        base = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSHARE_", "CUDA_", "LD_"))}
        self.guardian = subprocess.Popen(
            [sys.executable, "-m", "audit.ground", self.token, str(self.directory), str(self.pool), str(int(keep))],
            env=base | {"PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self.simulation = f"{hardware},pool={self.pool}"
        self.environment = base | {
            TOKEN: self.token,
            "GPUSHARE_SIM": self.simulation,
            "GPUSHARE_DRIVER": "sim",
            "XDG_RUNTIME_DIR": str(self.directory / "run"),
            "XDG_CONFIG_HOME": str(self.directory / "config"),
            "XDG_STATE_HOME": str(self.directory / "state"),
            "HOME": str(self.directory),
            "PYTHONPATH": str(TESTS),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        # What a killed wrapper leaves behind becomes a child of the auditor, which so learns how it ended.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def start(self, command: list[str], output: Path, environment: dict[str, str] | None = None) -> int:
        """Start a command in the background; it is reaped by whoever calls `reap`. Returns its pid."""
        fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.posix_spawn(
                command[0],
                command,
                self.environment | (environment or {}),
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, null, 0),
                    (os.POSIX_SPAWN_DUP2, fd, 1),
                    (os.POSIX_SPAWN_DUP2, fd, 2),
                ],
                setsigdef=[signal.SIGPIPE],
            )
        finally:
            os.close(fd)
            os.close(null)

    def reap(self) -> Iterator[tuple[int, int]]:
        """Processes that have ended: pid and wait status."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.guardian.pid:
                    raise RuntimeError("the guardian has ended")
                yield pid, status

    def daemons(self) -> list[int]:
        """Processes of this act that are a node daemon, by their command."""
        found = []
        mark = f"{TOKEN}={self.token}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    command = (entry / "cmdline").read_bytes().split(b"\0")
                    if b"gpushared" in command and mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def answers(self) -> bool:
        """Whether a daemon answers here: that it takes connections may be the kernel's doing alone."""
        for path in (self.directory / "run").glob("*/api.sock"):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(0.2)
                connection.connect(str(path))
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                return connection.recv(4) == b"HTTP"
        return False

    def logged(self, job: str) -> list[str]:
        """What the daemon has logged last of this job, and what it complained of."""
        lines = [
            line
            for path in (self.directory / "run").glob("*/daemon.log")
            for line in path.read_text(errors="replace").splitlines()
        ]
        of_job = [line for line in lines if f" name={job} " in f"{line} "]
        complaints = [line for line in lines if " info " not in line]
        return [*of_job[-8:], *complaints[-8:]]

    def close(self) -> None:
        assert self.guardian.stdin is not None
        self.guardian.stdin.close()
        self.guardian.wait(60)


def guard(token: str, directory: str, pool: str, keep: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    sweep(token)
    shutil.rmtree(pool, ignore_errors=True)
    if keep != "1":
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    guard(*sys.argv[1:])
