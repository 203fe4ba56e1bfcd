"""What `gpushare cluster` prints: tables, the lines of decisions, and the same as JSON."""

from __future__ import annotations

import re
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpushare.cli import output as _output
from gpushare.cli.output import Column
from gpushare.cluster.codec import plain
from gpushare.cluster.model import Action, Code, Explanation, JobView, NodeView, Place, Reason, Tasks, WhatIf
from gpushare.cluster.quantity import MICRO, format_gpus
from gpushare.cluster.scenario import Failure, Step
from gpushare.cluster.simulation import VERBS, Simulation, describe
from gpushare.errors import render
from gpushare.quantity import count, format_bytes, format_duration

if TYPE_CHECKING:
    from gpushare.cluster.allocator import Allocator

QUEUES = [
    Column("QUEUE"),
    Column("QUOTA", right=True),
    Column("LIMIT", right=True, spare=1),
    Column("PRIORITY", right=True, spare=3),
    Column("HELD", right=True),
    Column("SHARE", right=True),
    Column("ASKED", right=True, spare=2),
    Column("RUNNING", right=True),
    Column("WAITING", right=True),
]
WIDE_QUEUES = [*QUEUES, Column("SHARE COMES FROM", wrap=True, least=30)]
NODES = [
    Column("NODE"),
    Column("POOL", spare=2),
    Column("TYPE", spare=1),
    Column("GPUS", right=True),
    Column("MEMORY", right=True),
    Column("WHOLE", right=True),
    Column("PART", right=True),
    Column("STATE"),
]
JOBS = [
    Column("JOB"),
    Column("QUEUE"),
    Column("STATE"),
    Column("PRIORITY", right=True, spare=3),
    Column("GPUS", right=True),
    Column("TASKS", right=True, spare=2),
    Column("AGE", right=True, spare=1),
    Column("WHERE, OR WHY NOT", wrap=True, least=40),
]
WHAT_IF = [Column("QUEUE"), Column("NOW", right=True), Column("THEN", right=True)]


# ---- tables -------------------------------------------------------------------------------------------


def print_queues(allocator: Allocator, *, wide: bool) -> None:
    shares = allocator.shares()
    rows = []
    for name, depth in _tree(allocator):
        view, share = allocator.queues[name], shares[name]
        row = [
            "  " * depth + name,
            _or_unlimited(view.queue.quota) + (" static" if view.queue.static else ""),
            "-" if view.queue.cap is None else format_gpus(view.queue.cap),
            str(view.queue.priority),
            format_gpus(view.allocated),
            format_gpus(share.share),
            format_gpus(view.demand),
            str(view.running),
            str(view.pending),
        ]
        rows.append([*row, share.words] if wide else row)
    _output.print_table(WIDE_QUEUES if wide else QUEUES, rows)
    if wide:
        for loan in allocator.loans():
            lender = f"from {loan.lender}" if loan.lender else "that are promised to nobody"
            _output.echo(f"{loan.borrower} borrows {format_gpus(loan.amount)} {lender}")


def broken_promises(allocator: Allocator) -> Iterator[str]:
    """Warnings about quotas that cannot all be met at once: allowed, but perhaps a mistake."""
    if not allocator.nodes:
        return
    limits: dict[str | None, tuple[str, int | None]] = {None: ("there are", _capacity(allocator))}
    limits |= {name: (f"the quota of {name} is", view.queue.quota) for name, view in allocator.queues.items()}
    for parent, (what, most) in limits.items():
        quotas = [allocator.queues[name].queue.quota or 0 for name in children(allocator, parent)]
        if most is not None and sum(quotas) > most:
            whose = f"the queues below {parent}" if parent else "the top queues"
            total, there = _gpus(format_gpus(sum(quotas))), _gpus(format_gpus(most))
            yield f"the quotas of {whose} add up to {total}, and {what} {there}: if all ask, each gets less"


def lacking(allocator: Allocator) -> Iterator[str]:
    """Warnings about what a cluster lacks before any job can run."""
    if not allocator.nodes:
        yield "no nodes: nothing can run; add `nodes: [{name: node-1, gpus: 8}]` to the file"
    if not allocator.queues:
        yield "no queues: no job can be submitted; add `queues: [{name: all, quota: 8}]` to the file"


def print_never(reasons: Mapping[str, Reason]) -> None:
    """Warnings about jobs that can never start by themselves."""
    for name, reason in reasons.items():
        _output.echo(
            render(
                f"{name} can never start here, even with the cluster to itself: {reason.message}",
                hint=f"`gpushare cluster explain {name}` says what would start it",
            ),
            err=True,
        )


def queues_json(allocator: Allocator) -> dict[str, Any]:
    shares = allocator.shares()
    queues = [{**plain(view), "share": plain(shares[name])} for name, view in allocator.queues.items()]
    return {"queues": queues, "loans": [plain(loan) for loan in allocator.loans()]}


def print_nodes(allocator: Allocator) -> None:
    rows = []
    for name, view in allocator.nodes.items():
        node = view.node
        whole = [free for free in view.free if free == node.memory]
        part = max((free for free in view.free if free < node.memory), default=0)
        amounts = [str(node.gpus), format_bytes(node.memory), str(len(whole)), format_gpus(part * MICRO // node.memory)]
        rows.append([name, node.pool, node.type or "-", *amounts, _node_state(view)])
    _output.print_table(NODES, rows)


def _node_state(view: NodeView) -> str:
    if not view.alive:
        return "lost"
    foreign = sum(used for _, used in view.foreign)
    said = [
        "unknown" if view.unknown else "",
        "cordoned" if view.cordoned else "",
        f"{len(view.node.broken)} broken" if view.node.broken else "",
        f"{format_bytes(foreign)} in use by others" if foreign else "",
        "rests after failed starts" if view.until is not None else "",
    ]
    return ", ".join(filter(None, said)) or "ok"


def print_jobs(allocator: Allocator, names: Sequence[str]) -> None:
    now = time.time()
    _output.print_table(JOBS, [_job_row(name, allocator.jobs[name], now) for name in names])


def _job_row(name: str, view: JobView, now: float) -> list[str]:
    wanted = sum(tasks.top for tasks in view.job.tasks)
    tasks = f"{len(view.places)}/{wanted}" if view.places or wanted > 1 else "-"
    return [
        f"{name} {view.job.name}".rstrip(),
        view.job.queue,
        "held" if view.held else view.state,
        str(view.job.priority) + ("" if view.job.preemptible else " fixed"),
        format_gpus(view.charge) if view.charge else asked(view),
        tasks,
        format_duration(float(int(max(0.0, now - view.since)))).replace(" ", ""),
        where(view.places) if view.places else view.reason.message,
    ]


def asked(view: JobView) -> str:
    """What a waiting job asks for: 2, 0.25, 8 x 40.0 GiB."""
    return " + ".join(dict.fromkeys(_tasks_text(tasks) for tasks in view.job.tasks))


def _tasks_text(tasks: Tasks) -> str:
    if tasks.memory is not None:
        each = f"{tasks.gpus} x {format_bytes(tasks.memory)}" if tasks.gpus > 1 else format_bytes(tasks.memory)
    else:
        each = format_gpus((MICRO if tasks.share is None else tasks.share) * tasks.gpus)
    return each if tasks.top == 1 else f"{tasks.top} x {each}"


def where(places: Sequence[Place]) -> str:
    """The nodes and GPUs of a job's tasks: dgx-1 GPU 0,1."""
    nodes: dict[str, list[int]] = {}
    for place in places:
        nodes.setdefault(place.node, []).extend(place.gpus)
    shown = [
        f"{node} GPU {','.join(map(str, sorted(set(gpus))))}" if gpus else node
        for node, gpus in list(nodes.items())[:4]
    ]
    return "; ".join(shown) + (f" and {count(len(nodes) - 4, 'more node')}" if len(nodes) > 4 else "")


# ---- plans --------------------------------------------------------------------------------------------


def print_plan(allocator: Allocator) -> None:
    capacity, held = _capacity(allocator), sum(view.charge for view in allocator.jobs.values())
    states = Counter(view.state for view in allocator.jobs.values())
    jobs = ", ".join(f"{number} {state}" for state, number in sorted(states.items())) or "no jobs"
    _output.echo(f"{format_gpus(held)} of {format_gpus(capacity)} GPUs held; {jobs}\n")
    print_queues(allocator, wide=False)
    if allocator.jobs:
        _output.echo()
        print_jobs(allocator, list(allocator.jobs))


def plan_json(allocator: Allocator) -> dict[str, Any]:
    return {
        "capacity": _capacity(allocator),
        **queues_json(allocator),
        "jobs": [plain(view) for view in allocator.jobs.values()],
        "next_wake": allocator.next_wake,
    }


def print_what_if(allocator: Allocator, outcome: WhatIf) -> None:
    lines = list(action_lines(outcome.actions))
    shares = list(_new_shares(allocator, outcome))
    nothing = f"no job would start, move or stop{'' if shares else ', and no share would change'}"
    _output.echo("\n".join(lines) if lines else nothing)
    now = {name: view.allocated for name, view in allocator.queues.items()}
    rows = []
    for name in dict.fromkeys([*now, *outcome.allocated]):
        before, after = now.get(name), outcome.allocated.get(name)
        if before != after:
            rows.append([name, *("-" if amount is None else format_gpus(amount) for amount in (before, after))])
    if rows:
        _output.echo()
        _output.print_table(WHAT_IF, rows)
    for name, was, then in shares:
        _output.echo(f"the share of {name} would be {_gpus(then)} instead of {was}")


def _new_shares(allocator: Allocator, outcome: WhatIf) -> Iterator[tuple[str, str, str]]:
    for name, share in allocator.shares().items():
        then = outcome.shares.get(name, share.share)
        if then != share.share:
            yield name, format_gpus(share.share), format_gpus(then)


def what_if_json(allocator: Allocator, outcome: WhatIf) -> dict[str, Any]:
    return {
        "actions": [plain(action) for action in outcome.actions],
        "running": sorted(outcome.running),
        "allocated": {
            name: {"now": allocator.queues[name].allocated if name in allocator.queues else None, "then": amount}
            for name, amount in outcome.allocated.items()
        },
        "shares": dict(outcome.shares),
    }


def action_lines(actions: Sequence[Action]) -> Iterator[str]:
    """Decisions, one a line. Many equal ones are counted in one line."""
    shown = [(VERBS[type(action)], action.job, describe(action)) for action in actions]
    width = max((len(job) for _, job, _ in shown), default=0)
    for verb, job, text in shown:
        yield f"{verb:<7} {job:<{min(width, 40)}}  {text}".rstrip()


def print_explanation(allocator: Allocator, explanation: Explanation, never: bool, now: float) -> None:
    view = allocator.jobs[explanation.job]
    age = format_duration(float(int(max(0.0, now - view.since))))
    state = {"pending": f"has waited {age}", "starting": "is about to start", "running": f"has run for {age}"}
    _output.echo(f"job {explanation.job} of queue {view.job.queue} {state[explanation.state]}")
    facts = [("asks for", asked(view) if any(one.memory is not None for one in view.job.tasks) else _gpus(asked(view)))]
    if view.places:
        facts.append(("holds", f"{_gpus(format_gpus(view.charge))}: {where(view.places)}"))
    facts.append(("because", explanation.reason.message))
    facts += [
        (label, text)
        for label, text in explanation.reason.facts
        if text and not _says(explanation.reason.message, text)
    ]
    if never:
        facts.append(("never", "it could not start even if it had the cluster to itself"))
    facts.append((f"share of {view.job.queue}", allocator.shares()[view.job.queue].words))
    if view.places or explanation.reason.code in (Code.NO_SPACE, Code.RESERVED):
        facts += [("" if number else "in the way", line) for number, line in enumerate(explanation.who)]
    width = max(len(label) for label, _ in facts)
    for label, text in facts:
        _output.echo(f"  {label:<{width}}  {text}")
    wait = explanation.by_itself
    waits = [] if wait is None else [f"wait {format_duration(wait)}: then a minimum run time is over, and it starts"]
    found = [*waits, explanation.change, *(words for words, _ in explanation.others)]
    for number, change in enumerate(dict.fromkeys(words for words in found if words)):
        _output.echo(f"  or: {change}" if number else f"hint: {change}")


# ---- simulations --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Played:
    title: str
    simulation: Simulation
    failures: list[Failure] = field(default_factory=list)


@dataclass(slots=True)
class StepPrinter:
    """Prints the decisions of each step of a scenario when the step is over."""

    shown: int = 0

    def __call__(self, number: int, step: Step, simulation: Simulation) -> None:
        _output.echo(f"\n{number}. {step.title}" if step.title else f"\n{number}.")
        timeline = simulation.timeline
        lines = list(timeline.lines(since=self.shown))
        self.shown = len(timeline.happenings)
        for line in lines or ["nothing is decided"]:
            _output.echo(f"   {line}")


def print_played(played: Played, *, most: int) -> None:
    timeline = played.simulation.timeline
    if most:
        _output.echo(f"{played.title}\n")
        for line in timeline.lines(most=most):
            _output.echo(line)
    _output.echo()
    for line in timeline.strips(plain=not _says_blocks()):
        _output.echo(line)
    numbers = _summary(played)
    counted = ", ".join(count(numbers[key], *words) for key, *words in SUMMARY if numbers[key] or key in ALWAYS)
    used = f"; {timeline.used():.1%} of the GPU time used" if timeline.passed else ""
    _output.echo(f"\n{counted}{used}")


SUMMARY = (
    ("started", "start"),
    ("evicted", "eviction"),
    ("moved", "move"),
    ("shrunk", "shrink"),
    ("refused", "refusal"),
    ("waiting", "job left waiting", "jobs left waiting"),
)
ALWAYS = ("started", "evicted", "moved", "shrunk", "waiting")


def _summary(played: Played) -> dict[str, int]:
    kinds = Counter(VERBS[type(action)] for _, action in played.simulation.actions)
    waiting = sum(view.state == "pending" for view in played.simulation.allocator.jobs.values())
    return {
        "started": kinds["start"],
        "evicted": kinds["evict"],
        "moved": kinds["move"],
        "shrunk": kinds["shrink"],
        "refused": kinds["refuse"] + len(played.simulation.refused),
        "waiting": waiting,
    }


def played_json(played: Played) -> dict[str, Any]:
    timeline = played.simulation.timeline
    return {
        "title": played.title,
        "failures": [plain(failure) for failure in played.failures],
        "summary": {**_summary(played), "used": round(timeline.used(), 6), "end": timeline.end},
        "actions": [{"time": time, **plain(action)} for time, action in played.simulation.actions],
        "held": {name: list(zip(track.times, track.values, strict=True)) for name, track in timeline.queues.items()},
    }


# ---- words --------------------------------------------------------------------------------------------


def _gpus(amount: str) -> str:
    return f"{amount} GPU{'' if amount == '1' else 's'}"


def _says(message: str, text: str) -> bool:
    """Whether a sentence contains this number or name."""
    return re.search(rf"(?<![\w.]){re.escape(text)}(?![\w]|\.\d)", message) is not None


def wrapped(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 100)


def children(allocator: Allocator, queue: str | None) -> list[str]:
    return [name for name, view in allocator.queues.items() if view.queue.parent == queue]


def _tree(allocator: Allocator, parent: str | None = None, depth: int = 0) -> Iterator[tuple[str, int]]:
    """Queues below their parents, each with its depth."""
    below: dict[str | None, list[str]] = {}
    for name, view in allocator.queues.items():
        below.setdefault(view.queue.parent, []).append(name)
    stack = [(name, depth) for name in reversed(below.get(parent, []))]
    while stack:
        name, level = stack.pop()
        yield name, level
        stack += [(child, level + 1) for child in reversed(below.get(name, []))]


def _or_unlimited(amount: int | None) -> str:
    return "unlimited" if amount is None else format_gpus(amount)


def _capacity(allocator: Allocator) -> int:
    return sum(MICRO * (view.node.gpus - len(view.node.broken)) for view in allocator.nodes.values() if view.alive)


def _says_blocks() -> bool:
    """Whether the terminal or file takes block characters."""
    try:
        "▁█".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def print_actions(actions: Sequence[Action]) -> None:
    for line in action_lines(actions):
        _output.echo(line)
