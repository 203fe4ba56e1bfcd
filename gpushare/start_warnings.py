"""Warnings when a job starts: it was admitted, but something will not go as asked."""

from __future__ import annotations

from collections.abc import Iterator

from gpushare.api import Job
from gpushare.quantity import format_bytes, format_duration

__all__ = ["start_warnings"]


def start_warnings(job: Job) -> Iterator[str]:
    """The warnings for a job that was just admitted, one line each."""
    grace, longest = job["grace"], job.get("longest_grace")
    if grace is not None and longest is not None and grace > longest:
        yield (
            f"the grace of {format_duration(grace)} is cut to {format_duration(longest)}:"
            " an owner's claim waits no longer for its memory"
        )
    for gpu in job["gpus"]:
        context = gpu.get("context")
        if context is not None and gpu["limit"] < context:
            yield (
                f"a limit of {format_bytes(gpu['limit'])} is too small for CUDA on GPU {gpu['index']}:"
                f" its context alone takes about {format_bytes(context)}; write --limit 1Gi or more"
            )
