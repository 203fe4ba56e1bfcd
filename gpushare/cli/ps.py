"""gpushare ps: the jobs, one line for each of their GPUs."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from dataclasses import replace

import click

from gpushare.api import Gpu, Job, JobGpu, Outcome, Reservation, UnmanagedProcess
from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.cli.output import Column
from gpushare.config import load_settings
from gpushare.errors import UsageError
from gpushare.killed import cause
from gpushare.locate import find
from gpushare.offline_history import OfflineHistory, ask
from gpushare.quantity import format_bytes

COLUMNS = [
    Column("GPU", right=True),
    Column("JOB", shrink=True),
    Column("USER", shrink=True, spare=2),
    Column("PID", right=True, spare=5),
    Column("AGE", right=True, spare=6),
    Column("USAGE", right=True),
    Column("REQUEST", right=True, spare=3),
    Column("LIMIT", right=True, spare=4),
    Column("LOAN", right=True, spare=1),
    Column("STATE"),
]
WIDE = [
    Column("ID"),
    Column("PRIORITY", right=True),
    Column("PEAK", right=True),
    Column("GPU TIME", right=True),
    Column("TURN"),
    Column("UUID"),
    Column("LIMIT FROM"),
    Column("GPU HEALTH"),
]
ENDED = [Column("ID", spare=4), Column("ENDED"), Column("WHY", shrink=True)]
"""With --all: for ended jobs."""
COMPUTING = Column("GPU%", right=True, spare=8)
"""In `top`: the part of the time in which the job has the GPU compute."""
COMMAND = Column("COMMAND", shrink=True, spare=7)


@click.command(short_help="List jobs and what they use.")
@click.option("-a", "--all", "ended", is_flag=True, help="Ended jobs, too: how they ended, and the most they used.")
@click.option(
    "--gpu",
    metavar="GPU",
    shell_complete=complete.gpus,
    help="Only this GPU: its number, its UUID, or the beginning of its UUID.",
)
@click.option("--user", metavar="USER", help="Only this user's jobs: name or uid.")
@_output.option("table", "wide", "json", "jsonl")
def command(*, ended: bool, gpu: str | None, user: str | None, output: str) -> None:
    """List the jobs of this node: for each of their GPUs what they use, what is guaranteed, and what is on loan.

    A reservation has its own line; its REQUEST is the reserved amount. For an ended job, AGE is how long it ran and
    USAGE the most that it used. While no daemon runs, -a lists the jobs of the history that the last one has written.
    """
    settings = load_settings()
    client = ask(settings, lambda source: source, _output.note) if ended else find(settings).client()
    jobs = [job for job in client.jobs(ended=ended) if user is None or user in (job["user"], str(job["uid"]))]
    kept = [] if isinstance(client, OfflineHistory) else client.reservations()
    kept = [one for one in kept if user is None or user in (one["user"], str(one["uid"]))]
    if gpu is not None:
        jobs = [_only_on(job, gpu) for job in jobs]
        jobs = [job for job in jobs if job["gpus"]]
        kept = [_kept_on(one, gpu) for one in kept]
        kept = [one for one in kept if one["gpus"]]
    if output == "json":
        _output.print_json("ps", {"jobs": jobs, "reservations": kept})
    elif output == "jsonl":
        _output.jsonl("ps", jobs)
    elif jobs or kept or output == "wide":
        outsiders = [] if output != "wide" or isinstance(client, OfflineHistory) else client.status()["gpus"]
        _print(jobs, kept, _outsiders(outsiders, gpu, user), wide=output == "wide", ended=ended)
    else:
        gpus = [] if gpu is None or isinstance(client, OfflineHistory) else client.status()["gpus"]
        if gpus and gpu is not None and not any(_is(gpu, one["index"], one["uuid"]) for one in gpus):
            numbers = ", ".join(str(one["index"]) for one in gpus)
            raise UsageError(f"this node has no GPU {gpu!r}", hint=f"there are: {numbers}; see `gpushare status`")
        _output.echo("no jobs" + (" like that" if gpu or user else ""), err=True)


def _only_on(job: Job, gpu: str) -> Job:
    return {**job, "gpus": [one for one in job["gpus"] if _is(gpu, one["index"], one["uuid"])]}


def _kept_on(one: Reservation, gpu: str) -> Reservation:
    return {**one, "gpus": [amount for amount in one["gpus"] if _is(gpu, amount["index"], amount["uuid"])]}


def _is(wanted: str, index: int, uuid: str) -> bool:
    return wanted == str(index) or (not wanted.isdecimal() and uuid.lower().startswith(wanted.lower()))


def _outsiders(gpus: list[Gpu], wanted: str | None, user: str | None) -> list[tuple[Gpu, UnmanagedProcess]]:
    return [
        (gpu, one)
        for gpu in gpus
        if wanted is None or _is(wanted, gpu["index"], gpu["uuid"])
        for one in gpu["unmanaged_processes"]
        if user is None or user in (one["user"], str(one["uid"]))
    ]


def _print(
    jobs: list[Job],
    kept: list[Reservation],
    outsiders: list[tuple[Gpu, UnmanagedProcess]],
    *,
    wide: bool,
    ended: bool,
) -> None:
    lines = [(job["uid"], row) for job in jobs for row in rows(job, wide=wide, ended=ended)]
    more = 2 if ended and wide else 3 if ended else 0
    lines += [(one["uid"], row) for one in kept for row in _kept(one, wide=wide, ended=ended)]
    lines += [(one["uid"], _outsider(gpu, one, more)) for gpu, one in outsiders]
    columns = [*COLUMNS, *(ENDED if ended else []), COMMAND]
    if wide:  # all of it, on as many lines as it takes
        columns = [replace(one, spare=0) for one in (*COLUMNS, *(ENDED[1:] if ended else []), *WIDE, COMMAND)]
    _output.print_table(
        columns,
        [row for _, row in lines],
        dim=lambda index: lines[index][0] != os.getuid(),
    )


def _kept(one: Reservation, *, wide: bool, ended: bool) -> list[list[str]]:
    """A line for each GPU with reserved memory."""
    found = []
    for gpu in one["gpus"]:
        start = [str(gpu["index"]), one["name"], one["user"], "-", _output.age(one["since"]), "-"]
        row = [*start, format_bytes(gpu["amount"]), "-", "-", "reserved"]
        if ended:
            row += ["-", "-"] if wide else [one["id"], "-", "-"]
        if wide:
            row += [one["id"], "-", "-", "-", "-", gpu["uuid"], "-", "-"]
        found.append([*row, ""])
    return found


def _outsider(gpu: Gpu, process: UnmanagedProcess, more: int) -> list[str]:
    """The line of a program with memory on the GPU and no budget; `escaped` if a job started it."""
    state = "escaped" if process["job"] else "unmanaged"
    if process["reason"] == "observed":
        state = "observed"
    row = [str(gpu["index"]), "-", process["user"], str(process["pid"]), "-", format_bytes(process["bytes"])]
    wide = [process["job"] or "-", "-", "-", "-", "-", gpu["uuid"], "-", gpu["health"]["state"]]
    return [*row, "-", "-", "-", state, *(["-"] * more), *wide, process["command"]]


def rows(job: Job, *, wide: bool = False, ended: bool = False, live: bool = False) -> list[list[str]]:
    """A line for each of its GPUs. `live`: with the part of the time in which it computes now."""
    pids = [str(process["pid"]) for process in job["processes"]]
    pid = pids[0] + (f"+{len(pids) - 1}" if len(pids) > 1 else "") if pids else "-"
    outcome = job["outcome"]
    age = _output.age(job["since"]) if outcome is None else _lasted(outcome)
    state = job["state"] if outcome is None else _ending(outcome)
    past = _past(job, wide=wide) if ended else []
    start, command = [job["name"], job["user"], pid, age], shlex.join(job["command"])
    found = []
    for gpu in job["gpus"]:
        usage = gpu["usage"] if outcome is None else outcome["peak"].get(gpu["uuid"], 0)
        loan = format_bytes(gpu["loan"]) if gpu["loan"] and outcome is None else "-"
        row = [str(gpu["index"]), *start, *map(format_bytes, (usage, gpu["request"], gpu["limit"])), loan, state]
        row += past
        if live:
            row.append(_part(gpu.get("computing")))
        if wide:
            row += [job["id"], str(job["priority"]), format_bytes(gpu["peak"]), gpu_time(gpu)]
            row += [gpu.get("turn") or "-", gpu["uuid"]]
            row += [job["limit_source"] or "-", gpu["health"]]
        found.append([*row, command])
    if not found:  # it is queued, or never had a GPU
        row = ["-", *start, "-", "-", "-", "-", state, *past, *(["-"] if live else [])]
        if wide:
            row += [job["id"], str(job["priority"]), "-", "-", "-", "-", job["limit_source"] or "-", "-"]
        found.append([*row, command])
    return found


def gpu_time(gpu: JobGpu) -> str:
    """For how long it had the GPU compute."""
    seconds = gpu.get("gpu_time")
    return "-" if seconds is None else _output.lasted(seconds)  # an older daemon does not say


def _part(computing: float | None) -> str:
    return "-" if computing is None else f"{computing:.0%}"


def _lasted(outcome: Outcome) -> str:
    return _output.lasted(outcome["duration"]) if outcome.get("seen", True) else "-"


def _past(job: Job, *, wide: bool) -> list[str]:
    """When it ended, and why the daemon stopped it, if it did."""
    outcome = job["outcome"]
    at = outcome.get("ended") if outcome is not None else None
    cells = [_output.clock(at) if at else "-", _why(outcome) if outcome is not None else "-"]
    return cells if wide else [job["id"], *cells]


def _why(outcome: Outcome) -> str:
    killed = outcome["killed"]
    return "-" if killed is None else cause(killed["code"]).brief(killed)


def _ending(outcome: Outcome) -> str:
    """How it ended, in short; `gpushare explain JOB` has the details."""
    if not outcome.get("seen", True):
        return "not seen"
    if outcome["killed"] is not None:
        return cause(outcome["killed"]["code"]).ending
    if outcome["signal"] is not None:
        with contextlib.suppress(ValueError):
            return signal.Signals(outcome["signal"]).name
        return f"signal {outcome['signal']}"
    return "ended" if outcome["exit_code"] is None else f"exit {outcome['exit_code']}"
