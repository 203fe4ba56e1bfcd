"""Slurm's lists as data: jobs of `squeue --json`, nodes of `scontrol -o show node`. Pure.

Versions differ: where 22.05 writes a number, later ones write {"set", "infinite", "number"}, and where it writes a
state, later ones write a list of states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["COUNTER", "Listed", "ListedNode", "counts", "hosts", "indices", "jobs", "nodes"]

COUNTER = "gpumem"
"""The typed counter of each GPU, in MiB: gpumem:g0, gpumem:g1, ..."""
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""Slurm writes 16384 as 16K."""
COUNT = re.compile(rf"\b{COUNTER}:g(\d+)(?::(?:no_consume:)?|\(CNT:)(\d+)([KMGT]?)")
"""Of a node gpumem:g1:16K, of a job gpumem:g1(CNT:256)."""
MOST_OF_A_RANGE = 65536
_WORD = re.compile(r"(\w+)=(\S*)")
_RANGE = re.compile(r"([^\[]*)\[([^\]]*)\](.*)")


@dataclass(frozen=True, slots=True)
class Listed:
    """A job, or a job of an array."""

    id: str
    """ "17", or "17_3" of an array: what commands take."""
    number: int
    """Slurm's own number of it. The jobs of an array that wait have one together."""
    user: str
    account: str
    partition: str
    name: str
    together: bool
    """With others of its array it waits as one job of Slurm."""
    state: str
    flags: frozenset[str]
    """Such as COMPLETING."""
    reason: str
    priority: int
    nodes: tuple[str, ...]
    """Where it runs."""
    wanted: int
    """How many nodes it takes."""
    excluded: str
    comment: str
    admin_comment: str
    restarts: int
    submitted: float
    started: float
    dependency: str
    batch: bool
    requeue: bool
    exit: int | None
    gres: tuple[str, ...]
    """Of each of its nodes: what it holds there, as gpu:2(IDX:0-1)."""

    @property
    def held(self) -> bool:
        """Slurm does not start it."""
        return self.state == "PENDING" and self.priority == 0


@dataclass(frozen=True, slots=True)
class ListedNode:
    name: str
    states: frozenset[str]
    responds: bool
    counters: tuple[int, ...]
    """MiB of GPU 0, 1, ...; () where it has no such counters."""
    partitions: tuple[str, ...]
    features: tuple[str, ...]
    reason: str
    """The first word of what an administrator has said, who closed it."""
    extra: str
    """Free text of administrators."""


# ---- jobs --------------------------------------------------------------------------------------------


def jobs(shown: Mapping[str, Any]) -> Iterator[Listed]:
    """The jobs of an array that wait are one entry there; here each is one."""
    for entry in shown["jobs"]:
        job = _job(entry)
        waiting = str(entry.get("array_task_string") or "")
        if waiting and entry.get("array_job_id"):
            array = _number(entry["array_job_id"])
            for index in indices(waiting):
                yield replace(job, id=f"{array}_{index}", together=True)
        else:
            yield job


def _job(entry: Mapping[str, Any]) -> Listed:
    states = entry["job_state"]
    first, *more = [states] if isinstance(states, str) else states
    flags = {word for word in more} | ({"COMPLETING"} if first == "COMPLETING" else set())
    number = _number(entry["job_id"])
    array, index = _number(entry.get("array_job_id")), entry.get("array_task_id")
    in_array = array and index is not None and (not isinstance(index, Mapping) or index.get("set"))
    return Listed(
        id=f"{array}_{_number(index)}" if in_array else str(number),
        number=number,
        user=entry.get("user_name") or str(entry.get("user_id", "")),
        account=entry.get("account") or "",
        partition=entry.get("partition") or "",
        name=entry.get("name") or "",
        together=False,
        state=first,
        flags=frozenset(flags),
        reason=entry.get("state_reason") or "",
        priority=_number(entry.get("priority")),
        nodes=tuple(hosts(entry.get("nodes") or "")),
        wanted=max(1, _number(entry.get("node_count"))),
        excluded=entry.get("excluded_nodes") or "",
        comment=entry.get("comment") or "",
        admin_comment=entry.get("admin_comment") or "",
        restarts=_number(entry.get("restart_cnt")),
        submitted=float(_number(entry.get("submit_time"))),
        started=float(_number(entry.get("start_time"))),
        dependency=entry.get("dependency") or "",
        batch=bool(entry.get("batch_flag")),
        requeue=bool(entry.get("requeue")),
        exit=_exit(entry.get("exit_code")),
        gres=tuple(entry.get("gres_detail") or ()),
    )


def _exit(code: Any) -> int | None:
    """As SeenTask.exit."""
    if isinstance(code, Mapping):
        signal = code.get("signal") or {}
        number = _number(signal.get("id", signal.get("signal_id")))
        return -number if number else _number(code.get("return_code"))
    if not isinstance(code, int):
        return None
    return -(code & 0x7F) if code & 0x7F else code >> 8


def _number(value: Any) -> int:
    if isinstance(value, Mapping):
        return int(value.get("number") or 0) if value.get("set", True) and not value.get("infinite") else 0
    return int(value or 0)


def indices(text: str) -> Iterator[int]:
    """Of "0-3,7,10-20:2%4"."""
    for part in text.partition("%")[0].strip("[]").split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        if first.isdecimal():
            yield from range(int(first), int(last or first) + 1, int(step or 1))


# ---- nodes -------------------------------------------------------------------------------------------


def nodes(text: str) -> Iterator[ListedNode]:
    for line in text.splitlines():
        said = dict(_WORD.findall(line))
        if "NodeName" not in said:
            continue
        state = said.get("State", "")
        words = re.findall(r"[A-Z_]+", state)
        yield ListedNode(
            name=said["NodeName"],
            states=frozenset(words),
            responds="*" not in state and "NOT_RESPONDING" not in words,
            counters=_counters(said.get("Gres", "")),
            partitions=tuple(filter(None, said.get("Partitions", "").split(","))),
            features=tuple(one for one in said.get("ActiveFeatures", "").split(",") if one not in ("", "(null)")),
            reason=said.get("Reason", ""),
            extra=said.get("Extra", "").replace("(null)", ""),
        )


def _counters(gres: str) -> tuple[int, ...]:
    found = counts(gres)
    return tuple(found.get(gpu, 0) for gpu in range(len(found))) if found else ()


def counts(gres: str) -> dict[int, int]:
    """MiB by number of the GPU, of "gpumem:g0:16K,gpumem:g1:500"."""
    return {int(gpu): int(count) * UNITS[unit] for gpu, count, unit in COUNT.findall(gres)}


def hosts(text: str) -> Iterator[str]:
    """The names in a list such as n[0-3,7],login1."""
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        match = _RANGE.fullmatch(part)
        if match is None:
            yield part
            continue
        before, spans, after = match.groups()
        for span in spans.split(","):
            first, _, last = span.partition("-")
            if not first.isdecimal() or not (last or first).isdecimal():
                yield from hosts(f"{before}{span}{after}")
                continue
            numbers = range(int(first), int(last or first) + 1)
            for number in numbers[:MOST_OF_A_RANGE]:
                yield from hosts(f"{before}{number:0{len(first)}}{after}")
