"""What Slurm's lists mean for the reconcile loop: nodes, tasks, and what is in use by others. Pure.

A job of ours waits in Slurm with priority 0. It is started by a mark (mark.py) and its release; from then on Slurm has
it. Slurm counts a job's restarts: with more of them than the mark says, the start that the mark is about is over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from gpushare.cluster.engines.seam import SeenNode, SeenTask
from gpushare.cluster.engines.slurm.listing import Listed, ListedNode, counts, hosts, indices
from gpushare.cluster.engines.slurm.mark import Mark
from gpushare.cluster.engines.slurm.request import Asked
from gpushare.cluster.model import ANYWHERE, Node, Selector

__all__ = [
    "LEAVE",
    "MIB",
    "RUNS",
    "is_over",
    "node_of",
    "phase_of",
    "selector_of",
    "tasks_of",
    "used_by_others",
    "waits",
]

MIB = 2**20
OVER = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
RUNS = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
LAUNCH_FAILED = "launch failed"
LOST = frozenset({"DOWN", "POWERED_DOWN", "POWERING_DOWN", "UNKNOWN"})
CLOSED = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT", "REBOOT", "RESERVED"})
LEAVE = "gpushare-drain"
"""The reason of a closed node that jobs are to leave, too."""

Phase = Literal["starting", "running", "stopping", "done", "failed"]


# ---- nodes -------------------------------------------------------------------------------------------


def node_of(listed: ListedNode, foreign: Mapping[tuple[str, int], int]) -> SeenNode | None:
    """None: it has no counters, so it is none of ours."""
    if not listed.counters or not all(listed.counters):
        return None
    node = Node(
        name=listed.name,
        gpus=len(listed.counters),
        memory=min(listed.counters) * MIB,
        labels=tuple((feature, "") for feature in sorted(listed.features)),
    )
    return SeenNode(
        node,
        "lost" if listed.states & LOST else "ready" if listed.responds else "unknown",
        cordoned=bool(listed.states & CLOSED),
        draining=bool(listed.states & CLOSED) and listed.reason == LEAVE,
        foreign=tuple((gpu, foreign[listed.name, gpu]) for gpu in range(node.gpus) if (listed.name, gpu) in foreign),
    )


def selector_of(job: Listed, asked: Asked, nodes: Sequence[ListedNode]) -> Selector:
    """Where it may run: the nodes of its partitions, without those that it excludes, of those that it names."""
    partitions, excluded = set(job.partition.split(",")), set(hosts(job.excluded))
    named = set(hosts(asked.nodes))
    ours = [node for node in nodes if node.counters]
    may = [
        node.name
        for node in ours
        if partitions & set(node.partitions) and node.name not in excluded and (not named or node.name in named)
    ]
    return ANYWHERE if len(may) == len(ours) else Selector(nodes=tuple(may) or ("none",))


# ---- jobs --------------------------------------------------------------------------------------------


def is_over(job: Listed) -> bool:
    return job.state in OVER and "COMPLETING" not in job.flags


def waits(job: Listed, now: float) -> bool:
    """For a time or another job that its user has named. The time that Slurm names after a requeue means nothing."""
    return job.held and ("unfulfilled" in job.dependency or (job.restarts == 0 and job.started > now))


def phase_of(job: Listed, mark: Mark) -> Phase | None:
    """Of the tasks that the mark is about. None: nothing of them exists, or will."""
    if not mark.place:
        return None
    if job.state == "COMPLETING" or "COMPLETING" in job.flags or "STOPPED" in job.flags:
        return "stopping"
    if job.state in OVER:
        return "done"
    if job.state in RUNS:
        return "stopping" if mark.stop else "running"
    if job.state == "CONFIGURING" or "CONFIGURING" in job.flags:
        return "starting"
    if mark.failed:
        return "failed"
    if LAUNCH_FAILED in job.reason.replace("_", " ").lower():
        return None if mark.stop else "failed"
    return None if job.held or job.restarts > mark.restarts else "starting"


def tasks_of(job: Listed, mark: Mark) -> Iterator[SeenTask]:
    phase = phase_of(job, mark)
    if phase is None:
        return
    failed = phase == "failed"
    why = (mark.failed or f"Slurm: {job.reason}") if failed else ""
    blame = not mark.failed or bool(mark.blame)
    for number, spot in enumerate(mark.place):
        yield SeenTask(
            attempt=mark.attempt,
            group=0,
            task=number,
            node=spot.node,
            gpus=spot.gpus,
            amount=spot.request,
            phase=phase,
            why=why,
            node_to_blame=failed and blame,
            exit=job.exit if phase == "done" else None,
        )


# ---- others ------------------------------------------------------------------------------------------


def used_by_others(
    jobs: Iterable[Listed], ours: Collection[str], nodes: Iterable[ListedNode]
) -> Mapping[tuple[str, int], int]:
    """Bytes of GPUs that jobs hold which are not ours: whole GPUs, and counters."""
    memory = {node.name: node.counters for node in nodes}
    found: Counter[tuple[str, int]] = Counter()
    for job in jobs:
        if job.id in ours or job.state not in RUNS | {"COMPLETING"}:
            continue
        for name, held in zip(job.nodes, job.gres, strict=False):
            counters = memory.get(name, ())
            for gpu in _whole(held):
                if gpu < len(counters):
                    found[name, gpu] = counters[gpu] * MIB
            for gpu, count in counts(held).items():
                if gpu < len(counters):
                    found[name, gpu] += count * MIB
    return {place: min(used, memory[place[0]][place[1]] * MIB) for place, used in found.items()}


def _whole(held: str) -> Iterator[int]:
    for spans in re.findall(r"\bgpu:[^(,]*\(IDX:([\d,-]+)\)", held):
        yield from indices(spans)
