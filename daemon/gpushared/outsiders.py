"""Programs that use a GPU without us: who they are, and why the shim is not between them and the driver.

Found by NVML, which lists every process with memory on a GPU; those that have no credit page are outsiders. Most were
simply not started with gpushare. One with a GPUSHARE_JOB in its environment was, and has escaped: the library cannot
be preloaded into a static or setuid program, and a program that binds its own symbols first (RTLD_DEEPBIND), or talks
to the driver by a private door, goes past it. Nothing here is on a hot path: people ask.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpushare import api
from gpushared.identities import user_name
from gpushared.processes import command_of, has_mapped, uid_of

SHIM = "libgpushare.so"
JOB = b"GPUSHARE_JOB="
PT_INTERP = 3


def outsiders(by_pid: Mapping[int, int] | None, known: Iterable[int]) -> list[api.UnmanagedProcess]:
    """Of the processes in a sample those that are not known, the largest first."""
    inside = set(known)
    found = [(pid, used) for pid, used in (by_pid or {}).items() if used > 0 and pid not in inside]
    return [_describe(pid, used) for pid, used in sorted(found, key=lambda one: (-one[1], one[0]))]


def _describe(pid: int, used: int) -> api.UnmanagedProcess:
    uid = uid_of(pid)
    return {
        "pid": pid,
        "bytes": used,
        "command": command_of(pid),
        "user": user_name(uid) if uid is not None else "?",
        "uid": uid if uid is not None else -1,
        "job": job_of(pid),
        "reason": reason_of(pid),
    }


def job_of(pid: int) -> str | None:
    """The job under which the process was started, though it has no page."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    found = [one[len(JOB) :].decode(errors="replace") for one in environment if one.startswith(JOB)]
    return found[0] if found and found[0] else None


def reason_of(pid: int) -> str:
    """Why no credit page stands for it: not_preloaded, static, setuid, past_the_shim, or unknown."""
    loaded = has_mapped(pid, SHIM)
    if loaded:
        return "past_the_shim"  # or without a budget
    try:
        if Path(f"/proc/{pid}/exe").stat().st_mode & (stat.S_ISUID | stat.S_ISGID):
            return "setuid"
        if not has_interpreter(Path(f"/proc/{pid}/exe")):
            return "static"
    except (OSError, ValueError, struct.error):
        return "unknown"
    return "unknown" if loaded is None else "not_preloaded"


def has_interpreter(program: Path) -> bool:
    """Whether a loader starts it, which is who preloads. A static program has none, be it position-independent."""
    with program.open("rb") as file:
        head = file.read(64)
        if head[:4] != b"\x7fELF" or head[4] != 2:
            raise ValueError("not a 64-bit ELF program")
        (table,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        file.seek(table)
        headers = file.read(size * count)
    return any(struct.unpack_from("<I", headers, size * index)[0] == PT_INTERP for index in range(count))
