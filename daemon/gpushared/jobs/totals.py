"""What a job has used so far, for the API, the metrics and its outcome."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Totals:
    """By GPU, except `refusals`."""

    peak: dict[str, int] = field(default_factory=dict)
    """Bytes."""
    gpu_time: dict[str, float] = field(default_factory=dict)
    """Seconds of each GPU's time in which this daemon has seen the job compute."""
    computing: dict[str, float] = field(default_factory=dict)
    """The part of the time, up to 1, in which the job had the GPU compute at the last sample."""
    refusals: int = 0
    """Of processes that have ended; living processes count in their pages."""

    def note_peak(self, gpu: str, usage: int) -> None:
        if usage > self.peak.get(gpu, 0):
            self.peak[gpu] = usage

    def note_computing(self, gpu: str, part: float, seconds: float) -> None:
        """The job had the GPU compute for this part of the last seconds."""
        self.computing[gpu] = part
        self.gpu_time[gpu] = self.gpu_time.get(gpu, 0.0) + part * seconds
