"""What can be wrong with a GPU, as data: how bad it is, what happened in words, and what to do about it.

nvml_health.py finds issues, health.py decides what follows; these types pass between them. xid_catalog.py has the
issues that the driver reports as Xids.

The sources are NVIDIA's NVML API reference and "GPU Memory Error Management"
(docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt): an uncorrected error that was contained, or a row that waits for its
remapping, leaves a GPU usable until it is convenient to reset it; a failed remapping does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum


class Condition(IntEnum):
    """A GPU's state, from good to bad."""

    OK = 0
    DEGRADED = 1
    """It works, with faults."""
    SICK = 2
    """What runs on it may go on; nothing new is admitted and nothing is lent."""
    LOST = 3
    """It does not answer. Its memory is lost."""

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class HealthIssue:
    """One thing that is wrong with a GPU."""

    condition: Condition
    cause: str
    """Stable: scripts read it in JSON. Two issues with one cause are one."""
    text: str
    """What happened; completes the sentence "GPU 0 is sick: ..."."""
    hint: str
    """What an administrator can do."""
    data: Mapping[str, object] = field(default_factory=dict)


RESET = "reset it when no program uses it: stop gpushared, `nvidia-smi --gpu-reset -i UUID`, start gpushared"
RESTART_NODE = "restart the machine; if it happens again, have the GPU, its power and its slot looked at"
REPLACE = "reset it; if that does not help, have it replaced: `nvidia-smi -q` has what its vendor asks for"
SEE_LOG = "`dmesg` has the driver's own words, after NVRM"


def lost() -> HealthIssue:
    """NVML: "the GPU has fallen off the bus or has otherwise become inaccessible"."""
    return HealthIssue(Condition.LOST, "lost", "it has fallen off the bus", RESTART_NODE)


def removed() -> HealthIssue:
    return HealthIssue(Condition.LOST, "removed", "it is no longer in this machine", "if it should be, see `dmesg`")


def reset_required() -> HealthIssue:
    return HealthIssue(Condition.SICK, "reset_required", "the driver refuses it until it is reset", RESET)


def uncorrected(count: int) -> HealthIssue:
    text = f"{count} uncorrected ECC error{'' if count == 1 else 's'} since the driver was loaded"
    return HealthIssue(Condition.DEGRADED, "ecc_uncorrected", text, RESET, {"count": count})


def rows_pending() -> HealthIssue:
    text = "a row of its memory is to be remapped at the next reset"
    return HealthIssue(Condition.DEGRADED, "rows_pending", text, RESET)


def rows_failed() -> HealthIssue:
    return HealthIssue(Condition.SICK, "rows_failed", "a row of its memory could not be remapped", REPLACE)


def pages_pending() -> HealthIssue:
    text = "pages of its memory are to be retired when the driver is loaded again"
    return HealthIssue(Condition.DEGRADED, "pages_pending", text, "load the driver again, or restart the machine")


def recovery(action: str) -> HealthIssue:
    """What the driver itself (R570 and later) says the GPU needs: one of RECOVERIES."""
    condition, text, hint = RECOVERIES[action]
    return HealthIssue(condition, f"recovery_{action}", text, hint, {"action": action})


RECOVERIES: Mapping[str, tuple[Condition, str, str]] = {
    "gpu_reset": (Condition.SICK, "the driver says that it must be reset", RESET),
    "bus_reset": (Condition.SICK, "the driver says that its bus must be reset", RESTART_NODE),
    "node_reboot": (Condition.SICK, "the driver says that the machine must be restarted", RESTART_NODE),
    "system_reboot": (Condition.SICK, "the driver says that the machine must be restarted", RESTART_NODE),
    "drain_and_reset": (Condition.SICK, "the driver says that it must be emptied and reset", RESET),
    "drain_p2p": (Condition.DEGRADED, "the driver says that traffic to other GPUs must stop", SEE_LOG),
    "recover_imex_domain": (Condition.DEGRADED, "the driver says that its IMEX domain must be recovered", SEE_LOG),
}


@dataclass(slots=True)
class Health:
    """What is known of a GPU's health."""

    condition: Condition = Condition.OK
    """The worst of all issues below."""
    found: tuple[HealthIssue, ...] = ()
    """Issues of the last examination. They last until an examination no longer shows them."""
    xids: dict[int, HealthIssue] = field(default_factory=dict)
    """Xids that say something about the GPU. The driver reports each once, so they last until the GPU has been
    recovered."""
    xid_at: float = float("-inf")
    """When the last of them came."""
    counts: dict[int, int] = field(default_factory=dict)
    """Counts of all Xids since the daemon's start, also of programs' errors."""
    noted: frozenset[str] = frozenset()
    """The causes that are in the log already."""
    attributed: bool = True
    """NVML says which process uses how much."""
    short: bool = False
    """It has been noted that not all guarantees can be kept."""

    @property
    def admits(self) -> bool:
        """New jobs, and loans."""
        return self.condition < Condition.SICK

    @property
    def lost(self) -> bool:
        return self.condition is Condition.LOST

    @property
    def issues(self) -> tuple[HealthIssue, ...]:
        """The worst first."""
        every = {one.cause: one for one in (*self.found, *self.xids.values())}
        return tuple(sorted(every.values(), key=lambda one: (-one.condition, one.cause)))
