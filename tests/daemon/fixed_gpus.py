"""A driver for tests: GPUs of given sizes and memory."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field

from gpushared.core.health_issues import HealthIssue, removed
from gpushared.gpus.inventory import Examination, Fault, GpuInfo, Sample


@dataclass
class FixedGpus:
    infos: list[GpuInfo]
    samples: dict[str, Sample | None] = field(default_factory=dict)
    issues: dict[str, tuple[HealthIssue, ...]] = field(default_factory=dict)
    faults: queue.SimpleQueue[Fault] = field(default_factory=queue.SimpleQueue)
    kind: str = "sim"

    def list(self) -> list[GpuInfo]:
        return list(self.infos)

    def sample(self, uuid: str) -> Sample | None:
        return self.samples.get(uuid, Sample(0, None))

    def examine(self, uuid: str) -> Examination:
        if uuid not in {info.uuid for info in self.infos}:
            return Examination((removed(),))
        return Examination(self.issues.get(uuid, ()))

    def wait_for_fault(self, timeout: float) -> Fault | None:
        try:
            return self.faults.get(timeout=timeout)
        except queue.Empty:
            return None

    def reopen(self) -> None:
        pass

    def close(self) -> None:
        pass
