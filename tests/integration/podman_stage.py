"""The real Podman and runc, as root, with a tree of this machine's files as the root of containers."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.node import wait_for


@pytest.fixture
def podman(tmp_path: Path) -> Iterator[list[str]]:
    """Podman as far as `run`, with a folder of its own, and the root of containers behind it."""
    lacking = [name for name in ("podman", "runc", "conmon") if shutil.which(name) is None]
    if lacking or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(lacking) or 'nothing else'}")
    short = tempfile.mkdtemp(prefix="gs-")  # podman wants a short path
    top = tmp_path / "tree"
    top.mkdir()
    mounts = [["mount", "-t", "tmpfs", "none", str(top)], ["mkdir", *(f"{top}/{name}" for name in ("up", "work", "m"))]]
    options = f"lowerdir=/,upperdir={top}/up,workdir={top}/work"
    mounts.append(["mount", "-t", "overlay", "none", "-o", options, f"{top}/m"])
    try:
        if any(subprocess.run(line, capture_output=True).returncode for line in mounts):
            pytest.skip("no overlay can be mounted here")
        store = ["--root", str(tmp_path / "store"), "--runroot", short, "--storage-driver", "vfs"]
        line = ["podman", *store, "--cgroup-manager", "cgroupfs", "--runtime", "runc"]
        works = [*line, "run", "--rm", *LIMITS, "--rootfs", f"{top}/m", "/bin/true"]
        found = subprocess.run(works, capture_output=True, text=True, timeout=60)
        if found.returncode:
            pytest.skip(f"podman does not run here: {found.stderr.strip()[-200:]}")
        yield [*line, f"{top}/m"]
    finally:
        try:
            wait_for(lambda: not _uses(short), "podman to clean up")
        finally:
            subprocess.run(["umount", "-l", f"{top}/m"], capture_output=True)
            subprocess.run(["umount", "-l", str(top)], capture_output=True)
            shutil.rmtree(short, ignore_errors=True)


LIMITS = ("--network=host", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000")


def _uses(folder: str) -> bool:
    """Some process names it."""
    return subprocess.run(["pgrep", "-f", folder], capture_output=True).returncode == 0
