"""What makes a noun of model.py wrong by itself. Each check raises an error that names the place and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpushare.cluster.model import Job, Node, Policy, Queue, Tasks
from gpushare.cluster.nouns import MOST_GPUS_OF_NODE
from gpushare.cluster.quantity import MICRO, MOST, format_gpus
from gpushare.errors import UsageError
from gpushare.quantity import format_bytes

__all__ = [
    "MOST_BYTES",
    "bad",
    "check_job",
    "check_moment",
    "check_node",
    "check_number",
    "check_policy",
    "check_queue",
    "check_seconds",
]

MOST_TASKS = 10**6
MOST_BYTES = 2**50


def bad(place: str, what: str, hint: str, code: str = "bad_input") -> UsageError:
    """An error in the input: where, what, and the remedy."""
    return UsageError(f"{place}: {what}", hint=hint, code=code)


def check_number(place: str, value: Any, least: int, most: int, show: Callable[[int], str] = str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad(place, f"{value!r} is not a whole number", "write micro-GPUs or bytes as an int: gpus(0.5)")
    if value < least or value > most:
        raise bad(place, f"{show(value)} is not between {show(least)} and {show(most)}", "correct the number")


def check_seconds(place: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**40:
        raise bad(place, f"{value!r} is not a number of seconds", "write a number from 0 on")


def _name(place: str, value: Any) -> None:
    if not isinstance(value, str) or not value or len(value) > 253 or not value.isprintable():
        raise bad(place, f"{value!r} is not a name", "write 1 to 253 printable characters")


def check_moment(place: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
        raise bad(place, f"{value!r} is not a moment", "hand in seconds of the cluster's clock")


def check_node(node: Node) -> None:
    _name("node", node.name)
    check_number(f"node {node.name}: gpus", node.gpus, 0, MOST_GPUS_OF_NODE)
    check_number(f"node {node.name}: memory", node.memory, MICRO, MOST_BYTES, format_bytes)
    for index in sorted(node.broken):
        check_number(f"node {node.name}: broken", index, 0, node.gpus - 1)
    known = len(node.uuids) in (0, node.gpus) and len(set(node.uuids)) == len(node.uuids)
    _refuse(f"node {node.name}: ", (not known, "uuids", "they do not name each GPU once", "name all GPUs, or none"))


def check_policy(policy: Policy) -> None:
    if policy.endings not in ("instant", "reported"):
        raise bad("policy: endings", f"{policy.endings!r} is unknown", "write instant or reported")
    for name in ("grow_hold", "reserve_after", "retry_after", "back_off", "protect", "patience"):
        value = getattr(policy, name)
        if value is not None or name != "reserve_after":
            check_seconds(f"policy: {name}", value)
    check_number("policy: search_width", policy.search_width, 1, 100_000)
    check_number("policy: start_tries", policy.start_tries, 1, 1000)


def _refuse(at: str, *rules: tuple[bool, str, str, str] | tuple[bool, str, str, str, str]) -> None:
    """The first rule that is broken: (whether it is, where, what, remedy, code)."""
    for broken, where, *words in rules:
        if broken:
            raise bad(at + where, *words)


def check_queue(queue: Queue) -> None:
    """The queue by itself; the allocator checks its place in the tree."""
    _name("queue", queue.name)
    at = f"queue {queue.name}: "
    for name, least, most in (
        *((name, 0, MOST) for name in ("quota", "limit", "weight")),
        *((name, 1, MICRO) for name in ("default_limit", "max_limit")),
    ):
        value = getattr(queue, name)
        if value is not None:
            check_number(at + name, value, least, most, format_gpus)
    check_number(at + "priority", queue.priority, -(2**31), 2**31)
    if queue.min_runtime is not None:
        check_seconds(at + "min_runtime", queue.min_runtime)
    unknown, quota, limit = queue.placement not in (None, "pack", "spread"), queue.quota, queue.limit
    below_quota = limit is not None and quota is not None and limit < quota
    too_low = f"{format_gpus(limit or 0)} is below the quota of {format_gpus(quota or 0)}"
    usual, highest = queue.default_limit, queue.max_limit
    above_most = usual is not None and highest is not None and usual > highest
    _refuse(
        at,
        (unknown, "placement", f"{queue.placement!r} is unknown", "write pack or spread"),
        (below_quota, "limit", too_low, "raise the limit or lower the quota"),
        (queue.static and quota is None, "static", "a static queue needs a quota", "give it a quota"),
        (above_most, "default_limit", "it is above max_limit", "lower default_limit or raise max_limit"),
    )


def check_job(job: Job) -> None:
    """The job by itself; the allocator checks its queue."""
    _name("job", job.id)
    at = f"job {job.id}: "
    check_number(at + "priority", job.priority, -(2**31), 2**31)
    check_seconds(at + "min_runtime", job.min_runtime)
    if job.checkpoint_every is not None:
        check_seconds(at + "checkpoint_every", job.checkpoint_every)
    for index, tasks in enumerate(job.tasks):
        _check_tasks(f"{at}tasks[{index}]", tasks)
    lengths = {len(tasks.ladder) for tasks in job.tasks if tasks.ladder}
    _refuse(
        at + "tasks",
        (not job.tasks, "", "there are none", "give it at least one group of tasks"),
        (not any(tasks.top for tasks in job.tasks), "", "all groups are empty", "give it at least one task"),
        (
            not any(tasks.least for tasks in job.tasks),
            "",
            "none of its tasks has to run",
            "give one group a `least` of 1 or more",
        ),
        (len(lengths) > 1, "", "the ladders have different lengths", "give all groups as many rungs, or none"),
    )


def _check_tasks(at: str, tasks: Tasks) -> None:
    check_number(f"{at}.least", tasks.least, 0, MOST_TASKS)
    if tasks.most is not None:
        check_number(f"{at}.most", tasks.most, 0, MOST_TASKS)
    check_number(f"{at}.gpus", tasks.gpus, 0, MOST_GPUS_OF_NODE)
    both = tasks.share is not None and tasks.memory is not None
    _refuse(
        at,
        (tasks.top < tasks.least, ".most", f"{tasks.most} is below least, {tasks.least}", "raise most or lower least"),
        (both, "", "both a share and bytes are asked for", "say one of share and memory", "mixed_request"),
    )
    unit, most, show = ("share", MICRO, format_gpus) if tasks.memory is None else ("memory", MOST_BYTES, format_bytes)
    rungs = tasks.rungs
    check_number(f"{at}.{unit}", rungs[0], 1, most, show)
    for lower in rungs[1:]:
        check_number(f"{at}.ladder", lower, 1, most, show)
    if tasks.limit is not None:
        check_number(f"{at}.limit", tasks.limit, 1, most, show)
    limit = rungs[0] if tasks.limit is None else tasks.limit
    hint = "raise the limit, or leave it out: then it equals the request"
    _refuse(
        at,
        *(
            (
                lower >= higher,
                ".ladder",
                f"{show(lower)} does not come after {show(higher)}",
                "list them in falling order",
            )
            for lower, higher in zip(rungs[1:], rungs, strict=False)
        ),
        (
            limit < rungs[0],
            ".limit",
            f"{show(limit)} is below the request of {show(rungs[0])}",
            hint,
            "request_over_limit",
        ),
    )
