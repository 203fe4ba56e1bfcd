"""Whether the driver names processes as this daemon does.

NVML knows processes by the numbers of one PID namespace. In a container these may be other numbers than ours, or none
are told; and in some containers (gVisor) they are ours although the namespace looks like another. No file says which.
So it is decided by looking for programs of our own: what one of them holds, by its page, must be found under its
number.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpushared.system.logs import facts, log

HOST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the first PID namespace, fixed in the kernel. NVML usually names processes as that one does."""

MISSES = 3
"""So many samples of a GPU in a row without any of our programs, and the numbers are somebody else's: a program that
has just ended, or begun, may be missing in one of them."""


def in_first_namespace() -> bool:
    """Whether this process is."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == HOST_PID_NAMESPACE
    except OSError:
        return False


class PidNames:
    """What has been found out so far."""

    def __init__(self, believed: bool) -> None:
        """believed: what holds until a program of ours holds memory."""
        self._ours = believed
        self._misses: dict[str, int] = {}

    def are_ours(self, gpu: str, used: int, by_pid: Mapping[int, int], held: Mapping[int, int]) -> bool:
        """Whether the numbers of this sample of a GPU may be taken for ours.

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
