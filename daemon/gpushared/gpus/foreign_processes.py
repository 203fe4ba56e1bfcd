"""Foreign processes: programs that use a GPU without a credit page, and why the library is not in them.

NVML lists every process with memory on a GPU. Most processes without a page were not started with gpushare. One with
GPUSHARE_JOB in its environment was: the library cannot be preloaded into a static or setuid program, and does not see
the calls of a program that binds its own symbols first (RTLD_DEEPBIND) or uses private ways into the driver. This need
not be fast: it is asked by people.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gpushare import api
from gpushared.clients.clients import Clients
from gpushared.core.events import Unhooked
from gpushared.core.model import Job
from gpushared.limits.identities import user_name
from gpushared.system.processes import Process, command_of, has_mapped, uid_of

SHIM = "libgpushare.so"
JOB = b"GPUSHARE_JOB="
Placed = Callable[[int], str | None]
"""The job of the placement that a process runs in, whatever its environment says; None: it runs in none."""
PT_INTERP = 3


def foreign_processes(by_pid: Mapping[int, int] | None, known: Iterable[int]) -> list[api.UnmanagedProcess]:
    """The processes of a sample that are not known, the largest first."""
    inside = set(known)
    found = [(pid, used) for pid, used in (by_pid or {}).items() if used > 0 and pid not in inside]
    return [_describe(pid, used) for pid, used in sorted(found, key=lambda one: (-one[1], one[0]))]


class UnhookedFinder:
    """Finds the processes without a page that were started under a job; looks at each once."""

    def __init__(self, placed: Placed = lambda _: None) -> None:
        self._placed = placed
        self._seen: dict[str, dict[int, tuple[Unhooked, int | None] | None]] = {}

    def among(
        self, gpu: str, by_pid: Mapping[int, int] | None, clients: Clients, jobs: Mapping[str, Job]
    ) -> dict[int, Unhooked]:
        """The unhooked processes of a sample. The job in a process's environment counts only if it belongs to the
        process's user."""
        unknown = [pid for pid, used in (by_pid or {}).items() if used > 0 and not clients.of_pid(pid)]
        before = self._seen.get(gpu, {})
        seen = self._seen[gpu] = {
            pid: before[pid] if pid in before else _unhooked(pid, self._placed) for pid in unknown
        }
        found = {}
        for pid, one in seen.items():
            if one is not None and one[0].job in jobs and one[1] in (None, jobs[one[0].job].spec.uid):
                found[pid] = one[0]
        return found


def _unhooked(pid: int, placed: Placed) -> tuple[Unhooked, int | None] | None:
    """The unhooked process and its user. User None: it counts whatever its user is."""
    inside = placed(pid)
    if inside is not None:
        return Unhooked(inside, command_of(pid)), None
    job, uid = job_of(pid), uid_of(pid)
    return (Unhooked(job, command_of(pid)), uid) if job is not None and uid is not None else None


def open_unhooked(pid: int, job: str, placed: Placed = lambda _: None) -> Process | None:
    """A handle to signal it. It is opened before the check, so the checked process is the one that is signalled."""
    process = Process.open(pid)
    if process is not None and (placed(pid) or job_of(pid)) != job:
        process.close()
        return None
    return process


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
    """Why it has no credit page: not_preloaded, static, setuid, past_the_shim, or unknown."""
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
    """Whether the dynamic loader, which preloads, starts it. A static program has none, position-independent or not."""
    with program.open("rb") as file:
        head = file.read(64)
        if head[:4] != b"\x7fELF" or head[4] != 2:
            raise ValueError("not a 64-bit ELF program")
        (table,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        file.seek(table)
        headers = file.read(size * count)
    return any(struct.unpack_from("<I", headers, size * index)[0] == PT_INTERP for index in range(count))
