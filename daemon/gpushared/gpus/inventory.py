"""The GPUs of this node: their names, their sizes, and which processes use how much.

`Driver` is the interface; nvml.py implements it for real GPUs and for the software driver.
`Inventory` adds names as users write them, and the last samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpushare.errors import UsageError
from gpushared.clients.pages import uuid_bytes
from gpushared.core.health_issues import HealthIssue
from gpushared.gpus import pid_names
from gpushared.system.logs import Sparingly, facts, log


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A GPU or a MIG instance."""

    uuid: str
    index: int
    name: str
    total: int
    reserved: int = 0
    """What the driver keeps for itself, not part of `total - used`."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory of one GPU at one moment, without what the driver keeps."""

    used: int
    by_pid: Mapping[int, int] | None
    busy: frozenset[int] | None = None
    """Processes that have computed since the sample before; None: the driver does not say."""
    computing: Mapping[int, float] | None = None
    """The part of the time, up to 1, in which each process had the GPU compute; None: the driver does not say."""


@dataclass(frozen=True, slots=True)
class Examination:
    """A GPU's health."""

    issues: tuple[HealthIssue, ...]
    recovered: bool = False
    """The driver itself says that nothing needs to be done about the GPU."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A report of the driver: an Xid, or (None) a reason to examine these GPUs."""

    gpus: tuple[str, ...]
    xid: int | None = None


class Driver(Protocol):
    """The GPU driver's management interface."""

    kind: str
    """nvidia or sim."""

    def list(self) -> list[GpuInfo]:
        """All GPUs that programs can open, MIG instances in place of the GPU that they divide."""

    def sample(self, uuid: str) -> Sample | None:
        """None: the driver does not answer for this GPU now."""

    def examine(self, uuid: str) -> Examination | None:
        """None: the driver does not answer, and does not say why."""

    def wait_for_fault(self, timeout: float) -> Fault | None:
        """Wait until the driver reports something, at most so many seconds. Call this on a thread of its own."""

    def reopen(self) -> None:
        """List the GPUs again: one that was lost may be back. No other question may run meanwhile."""

    def close(self) -> None:
        """The end."""


class Inventory:
    """The GPUs by their names."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.infos: dict[str, GpuInfo] = {}
        self.by_bytes: dict[bytes, str] = {}
        self.samples: dict[str, Sample] = {}  # the last of each GPU
        self.present: set[str] = set()
        self.failures = 0
        self._sparingly = Sparingly()
        self._names = pid_names.PidNames(driver.kind == "sim" or pid_names.in_first_namespace())

    def note(self, found: list[GpuInfo]) -> list[GpuInfo]:
        """Take over the present GPUs. Earlier ones stay known by their UUIDs."""
        self.present = {info.uuid for info in found}
        for info in found:
            self.infos[info.uuid] = info
            self.by_bytes[uuid_bytes(info.uuid)] = info.uuid
        return found

    def sample(self, uuid: str) -> Sample | None:
        sample = self.driver.sample(uuid)
        if sample is not None and not self._may_be_true(uuid, sample):
            if self._sparingly.allow(uuid) is not None:
                log.error("the driver's figures cannot be true", extra=facts(gpu=uuid, figures=repr(sample)[:500]))
            sample = None
        if sample is None:
            self.failures += 1
            self.samples.pop(uuid, None)
        else:
            self.samples[uuid] = sample
        return sample

    def named(self, uuid: str, sample: Sample, held: Mapping[int, int]) -> Sample:
        """The sample, with its processes only if its pids are those of this namespace: see pid_names.py."""
        if sample.by_pid is not None and not self._names.are_ours(uuid, sample.used, sample.by_pid, held):
            sample = self.samples[uuid] = replace(sample, by_pid=None, busy=None, computing=None)
        return sample

    def _may_be_true(self, uuid: str, sample: Sample) -> bool:
        """No figure is negative, or above the GPU's size. Sums are not compared: shared memory may count twice, and the
        total and the list are read one after the other."""
        info = self.infos.get(uuid)
        if info is None:
            return True
        figures = (sample.used, *(sample.by_pid or {}).values())
        return all(0 <= figure <= info.total + info.reserved for figure in figures)

    def resolve(self, devices: Sequence[str]) -> tuple[str, ...]:
        """What CUDA_VISIBLE_DEVICES names, as UUIDs: indices, UUIDs, or beginnings of UUIDs that fit one GPU."""
        chosen: list[str] = []
        for device in devices:
            found = self._resolve_one(device.strip())
            if found in chosen:
                raise UsageError(f"GPU {device} is named twice", code="no_such_gpu")
            chosen.append(found)
        return tuple(chosen)

    def _resolve_one(self, device: str) -> str:
        # One that has gone may have had the index of another that is there.
        infos = sorted(self.infos.values(), key=lambda info: info.uuid in self.present)
        by_index = {str(info.index): info.uuid for info in infos if not info.uuid.startswith("MIG-")}
        if device.isdecimal() and str(int(device)) in by_index:
            return by_index[str(int(device))]
        wanted = device.lower()
        fitting = [uuid for uuid in self.infos if wanted and uuid.lower().startswith(wanted)]
        if len(fitting) == 1 and len(wanted) > len("GPU-"):
            return fitting[0]
        why = "more than one GPU of this node begins like that" if len(fitting) > 1 else "this node has no such GPU"
        raise UsageError(
            f"cannot use GPU {device!r}: {why}",
            code="no_such_gpu",
            facts=[(f"GPU {info.index}", f"{info.uuid}  {info.name}") for info in ordered(self.infos.values())],
            hint="name one that is there by its number or UUID: --gpu 0, or CUDA_VISIBLE_DEVICES=0,1 for several",
        )


def ordered(infos: Iterable[GpuInfo]) -> list[GpuInfo]:
    return sorted(infos, key=lambda info: (info.index, info.uuid))
