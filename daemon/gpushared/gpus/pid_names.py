"""Whether NVML's pids are those of this daemon's PID namespace.

In a container NVML may use the pids of another namespace, or show none. In some containers (gVisor) the pids are ours
although the namespace looks like another. No file tells which it is. So the daemon looks for programs with a page: NVML
must list the memory that one of them holds under its pid.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpushared.system.logs import facts, log

HOST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the first PID namespace, fixed in the kernel. NVML usually names processes as that one does."""

MISSES = 3
"""After so many samples of a GPU in a row without any of our programs, the pids are of another namespace. One sample is
not enough: a program that has just ended or begun may be missing."""


def in_first_namespace() -> bool:
    """Whether this process is."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == HOST_PID_NAMESPACE
    except OSError:
        return False


class PidNames:
    """What was found so far."""

    def __init__(self, believed: bool) -> None:
        """`believed`: the answer until a program of ours holds memory."""
        self._ours = believed
        self._misses: dict[str, int] = {}

    def are_ours(self, gpu: str, used: int, by_pid: Mapping[int, int], held: Mapping[int, int]) -> bool:
        """Whether the pids of this sample of a GPU may be taken for ours.

        used: bytes of the GPU in use. by_pid: bytes, by the driver's numbers. held: bytes that programs of ours are
        charged for on this GPU, by our numbers, no contexts among them.
        """
        holders = {pid: amount for pid, amount in held.items() if amount > 0}
        if any(by_pid.get(pid, 0) >= amount for pid, amount in holders.items()):
            self._found(gpu)
        elif any(pid in by_pid for pid in holders):  # it holds less than it is charged for, or it is a coincidence
            self._misses.pop(gpu, None)
        elif holders and used >= sum(holders.values()):  # else the sample is older than what they hold
            self._missed(gpu)
        return self._ours

    def _found(self, gpu: str) -> None:
        self._misses.pop(gpu, None)
        if not self._ours:
            log.info("the driver names processes as we do", extra=facts(gpu=gpu))
        self._ours = True

    def _missed(self, gpu: str) -> None:
        self._misses[gpu] = self._misses.get(gpu, 0) + 1
        if self._ours and self._misses[gpu] >= MISSES:
            self._ours = False
            log.warning("the driver does not name our processes", extra=facts(gpu=gpu, samples=MISSES))
