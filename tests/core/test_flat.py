"""What an event costs the core does not grow with the processes and jobs that it is not about.

Measured in bytecodes, which are the same on every run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from gpushare.job_spec import JobSpec
from gpushare.quantity import Quantity
from gpushared.core.events import (
    AttachAsked,
    CreditAsked,
    Event,
    GpuFound,
    JobEnded,
    JobSubmitted,
    MemorySampled,
    ProcessGone,
    ProcessJoined,
)
from gpushared.core.node import NodeState

GIB = 2**30
GPU = "GPU-0"


def spec(name: str, request: str) -> JobSpec:
    return JobSpec(name, 1000, "ada", ("train",), Quantity.parse(request), Quantity.parse("max"))


def node(jobs: int, processes: int) -> NodeState:
    """Job 0 with so many processes, the others with one each; every context is measured."""
    core = NodeState()
    core.handle(GpuFound(GPU, 0, "large", 4000 * GIB), 0.0)
    for job in range(jobs):
        core.handle(JobSubmitted(f"{job:016x}", spec(f"job-{job}", "1Gi")), 1.0)
    for process in range(processes + jobs - 1):
        join(core, process, f"{max(0, process - processes + 1):016x}", 1.0)
    used = {process: 0 for process in core.processes}
    by_pid = {1000 + process: GIB // 4 for process in core.processes}
    for now in (5.0, 6.0):
        core.handle(MemorySampled(GPU, sum(by_pid.values()), by_pid, used), now)
    core.validate()
    return core


def join(core: NodeState, process: int, job: str, now: float) -> None:
    core.handle(ProcessJoined(process, job, 1000 + process, "train"), now)
    core.handle(AttachAsked(10_000 + process, process, GPU), now)


def bytecodes(run: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(None)
    return count


NEW = 5000
EVENTS: dict[str, tuple[list[Event], Event]] = {
    "an ask": ([], CreditAsked(1, 0, GPU, 64 * 2**20)),
    "a process that joins": ([], ProcessJoined(NEW, f"{0:016x}", 7000, "train")),
    "a context that opens": ([ProcessJoined(NEW, f"{0:016x}", 7000, "train")], AttachAsked(2, NEW, GPU)),
    "a process that goes": ([], ProcessGone(1, {GPU: 0})),
    "a job that comes": ([], JobSubmitted("f" * 16, spec("new", "1Gi"))),
    "a job that goes": ([JobSubmitted("f" * 16, spec("new", "1Gi"))], JobEnded("f" * 16)),
}


@pytest.mark.parametrize("what", EVENTS)
def test_the_cost_of(what: str) -> None:
    before, event = EVENTS[what]
    costs = []
    for core in (node(2, 2), node(2, 300), node(1000, 2)):
        for one in before:
            core.handle(one, 7.0)
        costs.append(bytecodes(lambda core=core: core.handle(event, 7.0)))  # type: ignore[misc]
        core.validate()
    few, processes, jobs = costs
    assert processes <= few * 1.1 + 20, f"{few} bytecodes, {processes} with 300 processes in the job"
    assert jobs <= few * 1.1 + 20, f"{few} bytecodes, {jobs} with 1,000 jobs"


def test_an_ask_that_fits_goes_the_short_way() -> None:
    """A hundred may come in the same moment. It was 799, and 345 more for the figures that are in it now."""
    core = node(2, 2)
    assert bytecodes(lambda: core.handle(CreditAsked(1, 0, GPU, 64 * 2**20), 7.0)) < 520


def test_what_is_published_to_one_process_costs_the_same() -> None:
    few, processes, jobs = (
        bytecodes(lambda core=core: core.published(GPU, (0,)))  # type: ignore[misc]
        for core in (node(2, 2), node(2, 300), node(1000, 2))
    )
    assert max(processes, jobs) <= few * 1.1 + 20, (few, processes, jobs)
