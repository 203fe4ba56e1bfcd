"""Warnings when a job starts: it was admitted, but something will not go as asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpushare.api import Job
from gpushare.quantity import format_bytes, format_duration

__all__ = ["start_warnings"]


def start_warnings(job: Job, options: Mapping[str, object]) -> Iterator[str]:
    """The warnings for a job that was just admitted, one line each. `options`: those that it was started with."""
    grace, longest = job["grace"], job.get("longest_grace")
    if grace is not None and longest is not None and grace > longest:
        yield (
            f"the grace of {format_duration(grace)} is cut to {format_duration(longest)}:"
            " an owner's claim waits no longer for its memory"
        )
    protection, protected = job.get("longest_protection"), options.get("min_run_time")
    if protection is not None and isinstance(protected, float) and protected > protection:
        yield (
            f"for the first {format_duration(protected)} other jobs' allocations within their requests may fail"
            f" because of this job's loan: a --min-run-time up to {format_duration(protection)} avoids that"
        )
    for gpu in job["gpus"]:
        context = gpu.get("context")
        if context is not None and gpu["limit"] < context:
            yield (
                f"a limit of {format_bytes(gpu['limit'])} is too small for CUDA on GPU {gpu['index']}:"
                f" its context alone takes about {format_bytes(context)}; write --limit 1Gi or more"
            )
