"""gpushare ps: the jobs, one line for each of their GPUs."""

from __future__ import annotations

import os
import shlex

import click

from gpushare.api import Gpu, Job, UnmanagedProcess
from gpushare.cli import output as _output
from gpushare.cli.output import Column
from gpushare.config import load_settings
from gpushare.locate import find
from gpushare.quantity import format_bytes

COLUMNS = [
    Column("GPU", right=True),
    Column("JOB"),
    Column("USER"),
    Column("PID", right=True),
    Column("AGE", right=True),
    Column("USAGE", right=True),
    Column("REQUEST", right=True),
    Column("LIMIT", right=True),
    Column("LOAN", right=True),
    Column("STATE"),
]
WIDE = [
    Column("ID"),
    Column("PRIORITY", right=True),
    Column("PEAK", right=True),
    Column("UUID"),
    Column("LIMIT FROM"),
    Column("GPU HEALTH"),
]
COMMAND = Column("COMMAND", shrink=True)


@click.command(short_help="List jobs and what they use.")
@_output.option("table", "wide", "json", "jsonl")
def command(output: str) -> None:
    """List the jobs of this node: for each of their GPUs what they use, what is guaranteed, and what is on loan."""
    client = find(load_settings()).client()
    jobs = client.jobs()
    if output == "json":
        _output.print_json("ps", {"jobs": jobs})
    elif output == "jsonl":
        _output.jsonl("ps", jobs)
    elif jobs or output == "wide":
        _print(jobs, client.status()["gpus"] if output == "wide" else [], wide=output == "wide")
    else:
        click.echo("no jobs", err=True)


def _print(jobs: list[Job], gpus: list[Gpu], *, wide: bool) -> None:
    lines = [(job["uid"], row) for job in jobs for row in _rows(job, wide=wide)]
    lines += [(one["uid"], _outsider(gpu, one)) for gpu in gpus for one in gpu["unmanaged_processes"]]
    _output.print_table(
        [*COLUMNS, *(WIDE if wide else []), COMMAND],
        [row for _, row in lines],
        dim=lambda index: lines[index][0] != os.getuid(),
    )


def _outsider(gpu: Gpu, process: UnmanagedProcess) -> list[str]:
    """A program with memory on the GPU and no budget; `escaped` if it was started under a job all the same."""
    state = "escaped" if process["job"] else "unmanaged"
    row = [str(gpu["index"]), "-", process["user"], str(process["pid"]), "-", format_bytes(process["bytes"])]
    wide = [process["job"] or "-", "-", "-", gpu["uuid"], "-", gpu["health"]["state"]]
    return [*row, "-", "-", "-", state, *wide, process["command"]]


def _rows(job: Job, *, wide: bool) -> list[list[str]]:
    pids = [str(process["pid"]) for process in job["processes"]]
    pid = pids[0] + (f"+{len(pids) - 1}" if len(pids) > 1 else "") if pids else "-"
    rows = []
    for gpu in job["gpus"]:
        amounts = [format_bytes(amount) for amount in (gpu["usage"], gpu["request"], gpu["limit"])]
        loan = format_bytes(gpu["loan"]) if gpu["loan"] else "-"
        row = [
            str(gpu["index"]),
            job["name"],
            job["user"],
            pid,
            _output.age(job["since"]),
            *amounts,
            loan,
            job["state"],
        ]
        if wide:
            row += [job["id"], str(job["priority"]), format_bytes(gpu["peak"]), gpu["uuid"]]
            row += [job["limit_source"] or "-", gpu["health"]]
        rows.append([*row, shlex.join(job["command"])])
    return rows or [_without_gpu(job, pid, wide=wide)]


def _without_gpu(job: Job, pid: str, *, wide: bool) -> list[str]:
    """A job that is queued has no GPU yet."""
    row = ["-", job["name"], job["user"], pid, _output.age(job["since"]), "-", "-", "-", "-", job["state"]]
    if wide:
        row += [job["id"], str(job["priority"]), "-", "-", job["limit_source"] or "-", "-"]
    return [*row, shlex.join(job["command"])]
