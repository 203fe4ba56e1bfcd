"""NVIDIA's Xids: the meaning of each number, and the state of the GPU that follows. Data.

An Xid is an error report of the driver in the kernel's log; NVML reports its number. Numbers and meanings are from
NVIDIA's public catalogue, and the state follows from its column "Immediate Action":

    https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html

    RESTART_APP, IGNORE, none of the GPU's    ok: an error of a program, or one without consequence for the GPU
    RESET_GPU, RESTART_VM                     sick
    RESTART_BM                                lost (79, fallen off the bus)

with these exceptions, which are degraded:

    63, 92, 94      memory errors that were corrected or contained. The catalogue lets programs go on, and start, until
                    a reset is convenient
    74, 144-150     NVLink: what it means is in registers that NVML does not show, and a program on one GPU does not
                    use the link
    109             a reset in the catalogue; one of the application errors that NVIDIA's own device plugin for
                    Kubernetes ignores (github.com/NVIDIA/k8s-device-plugin, in its health check)
    155             comes with intended transitions of a link as well
    171, 172        details of memory errors that come with 48, 94, 95 or 140
    54, 78, 121, 157, 160, 161, 168    hardware or firmware that works, and that an administrator should check

The others on that plugin's list (13, 31, 43, 45, 68) are ok in this table too. A number that is not in here is new, or
one that the catalogue calls unused: degraded, so that an administrator checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpushared.core.health_issues import RESET, RESTART_NODE, SEE_LOG, Condition, HealthIssue

OK, DEGRADED, SICK, LOST = Condition
RESTART_PROGRAM = "restart the program"


@dataclass(frozen=True, slots=True)
class Xid:
    """One line of the catalogue."""

    number: int
    meaning: str
    condition: Condition
    hint: str


def of_xid(number: int) -> HealthIssue:
    """What an Xid says of the GPU. Condition.OK: it is about a program, not about the GPU."""
    xid = XIDS.get(number) or Xid(number, "which this version does not know", DEGRADED, SEE_LOG)
    cause = "lost" if xid.condition is LOST else f"xid_{number}"
    return HealthIssue(xid.condition, cause, f"Xid {number}, {xid.meaning}", xid.hint, {"xid": number})


def _table(rows: Iterable[tuple[Iterable[int], str, Condition, str]]) -> Mapping[int, Xid]:
    return {
        number: Xid(number, meaning, condition, hint)
        for numbers, meaning, condition, hint in rows
        for number in numbers
    }


_COPY_ENGINES = (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))
_DECODERS = (68, 83, 84, 88, 89, 96, 97, 98)
_JPEG = (82, *range(99, 106))

XIDS: Mapping[int, Xid] = _table(
    (
        ((8, 43), "GPU stopped processing", OK, RESTART_PROGRAM),
        ((11, 25, 32), "invalid or corrupted push buffer stream", OK, RESTART_PROGRAM),
        ((13,), "graphics engine exception", OK, RESTART_PROGRAM),
        ((14, 106, 107), "a test of the driver", OK, SEE_LOG),
        ((31,), "GPU memory page fault", OK, RESTART_PROGRAM),
        ((37, 38), "driver firmware error", OK, SEE_LOG),
        (_COPY_ENGINES, "copy engine exception", OK, RESTART_PROGRAM),
        ((44,), "graphics engine fault during context switch", OK, SEE_LOG),
        ((45,), "preemptive cleanup, due to previous errors", OK, RESTART_PROGRAM),
        ((60,), "security engine exception", OK, RESTART_PROGRAM),
        ((66, 67), "illegal access by the driver", OK, SEE_LOG),
        (_DECODERS, "video processor exception", OK, RESTART_PROGRAM),
        ((69,), "graphics engine class error", OK, RESTART_PROGRAM),
        ((80,), "corrupted data sent to the GPU", OK, RESTART_PROGRAM),
        (_JPEG, "JPEG engine exception", OK, RESTART_PROGRAM),
        ((86, 139), "optical flow engine exception", OK, RESTART_PROGRAM),
        ((93,), "wear limit of its InfoROM exceeded", OK, SEE_LOG),
        ((108, 137), "illegal access over NVLink", OK, SEE_LOG),
        ((141,), "fast path error", OK, SEE_LOG),
        ((142,), "video encoder exception", OK, RESTART_PROGRAM),
        ((154,), "the driver has changed its mind on how to recover", OK, SEE_LOG),  # which nvml_health.py asks for
        ((54,), "auxiliary power is not connected", DEGRADED, "check the GPU's power cables"),
        ((63,), "a row of its memory is remapped, or a page retired", DEGRADED, RESET),
        ((74, *range(144, 151), 155), "NVLink error", DEGRADED, SEE_LOG),
        ((78,), "a virtual GPU could not be started", DEGRADED, "update the driver and the GPU's firmware"),
        ((92,), "high rate of corrected ECC errors", DEGRADED, SEE_LOG),
        ((94,), "memory error, contained to one program", DEGRADED, RESET),
        ((109,), "context switch timeout", DEGRADED, RESET),
        ((121,), "chip-to-chip link error", DEGRADED, SEE_LOG),
        ((157,), "a part of it could not be retired", DEGRADED, SEE_LOG),
        ((160, 161), "a memory channel was retired, or could not be", DEGRADED, SEE_LOG),
        ((168,), "it has less memory than it should have", DEGRADED, SEE_LOG),
        ((171, 172), "uncorrectable memory error", DEGRADED, RESET),
        ((46,), "GPU stopped processing, and could not be recovered", SICK, RESET),
        ((48,), "double-bit ECC error", SICK, RESET),
        ((62,), "internal micro-controller halt", SICK, RESET),
        ((64,), "a row of its memory could not be remapped, or a page not retired", SICK, RESET),
        ((95,), "memory error, not contained", SICK, RESET),
        ((110,), "security fault", SICK, RESET),
        ((119,), "its system processor (GSP) does not answer", SICK, RESET),
        ((120,), "error of its system processor (GSP)", SICK, RESET),
        ((136,), "NVLink training failed", SICK, RESET),
        ((140,), "unrecovered ECC error", SICK, RESET),
        ((143,), "it could not be initialised", SICK, RESET),
        ((151,), "key rotation error", SICK, "restart the virtual machine"),
        ((156,), "a part of it was retired", SICK, RESET),
        ((158, 167), "fatal timeout", SICK, RESET),
        ((79,), "it has fallen off the bus", LOST, RESTART_NODE),
    )
)
