"""Another version of Slurm for these tests: that of a root of its own, such as `make slurm-root` makes.

GPUSHARE_TEST_SLURM_ROOT names the folder. Its programs then take the place of the machine's own: small scripts of their
names come first in PATH, and enter the root. It sees this machine's processes, devices, /tmp, hosts and the project:
they are mounted there for this process and what it starts alone.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

VARIABLE = "GPUSHARE_TEST_SLURM_ROOT"
NAMES = ["munged", "slurmctld", "slurmd", "slurmdbd", "scontrol", "squeue", "sbatch", "scancel", "srun", "salloc"]
NAMES += ["sinfo", "sacctmgr", "gcc"]
NEW_MOUNTS = 0x00020000
PROJECT = Path(__file__).resolve().parents[2]
HOSTS = Path("/etc/hosts")
"""A controller listens at the address of its own name."""
SEEN = (Path("/proc"), Path("/dev"), Path("/sys"), Path("/tmp"), PROJECT, HOSTS)
SCRIPT = """#!/bin/sh
PATH=${{PATH#{bin}:}}
export PATH
[ "$(id -u)" = 0 ] || own=--map-current-user
exec /usr/bin/unshare $own --root={root} --wd="$PWD" -- {program} "$@"
"""
"""A user who is not root may enter it in a user namespace of its own."""


def directory() -> Path | None:
    """None: the machine's own Slurm is meant."""
    named = os.environ.get(VARIABLE)
    return Path(named).resolve() if named else None


def wrong() -> str:
    """Why the folder cannot be used; "": it can, or none is named."""
    root = directory()
    if root is None:
        return ""
    if os.geteuid() != 0:
        return f"{VARIABLE}: only root can enter it"
    absent = [name for name in NAMES if program(root, name) is None]
    return f"{VARIABLE}: {root} has no {', '.join(absent)}: make slurm-root" if absent else ""


def program(root: Path, name: str) -> str | None:
    """As it is called inside."""
    places = (f"/usr/{part}/{name}" for part in ("sbin", "bin"))
    return next((place for place in places if os.path.lexists(root / place[1:])), None)


def hosts() -> Path:
    """As Slurm reads them."""
    return (directory() or Path("/")) / HOSTS.relative_to("/")


@functools.cache
def enter() -> str:
    """The folder of the scripts, which is to come first in PATH; "": the machine's own Slurm is meant."""
    root = directory()
    if root is None or wrong():
        return ""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "mounts of one's own")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    for path in SEEN:
        inside = root / path.relative_to("/")
        if path.is_dir():
            inside.mkdir(parents=True, exist_ok=True)
        else:
            inside.touch()
        subprocess.run(["mount", "--rbind" if path == Path("/dev") else "--bind", path, inside], check=True)
    folder = tempfile.mkdtemp(prefix="gs-slurm-bin-", dir="/tmp")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Path(folder).chmod(0o755)
    for name in NAMES:
        script = Path(folder) / name
        script.write_text(SCRIPT.format(bin=folder, root=root, program=program(root, name)))
        script.chmod(0o755)
    return folder
