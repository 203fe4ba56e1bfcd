"""What Slurm's Prolog and Epilog do on a node: `python3 -m gpushare.cluster.engines.slurm.node prolog` (or epilog).

With `prolog --enforce` jobs with shards, which Slurm's own scheduler places, get budgets, too (shards.py).

The Prolog finds in SLURM_JOB_COMMENT which GPUs the job has here and how much of them, places it at the node daemon
(docs/placements.md), and writes two files for the SPANK plug-in: the variables of the job's tasks, and the request with
which each step tells the daemon that its processes belong to the job. It fails where the daemon does not answer or
refuses. Then Slurm holds the job and drains the node. The Epilog ends what the Prolog has begun. A job that the daemon
has stopped for an owner waits again (stopped.py). `check` is a HealthCheckProgram: it sees to it that the programs of
suspended jobs stand still (suspended.py).

All run as root, for jobs of all users. The GPUs of the node daemon in their order are GPU 0, 1, ... of the allocator.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpushare import locate
from gpushare.api import Gpu, Killed, Placement
from gpushare.client import MAY_PASS, Client
from gpushare.cluster.engines.seam import Unanswered
from gpushare.cluster.engines.slurm import mark as marks
from gpushare.cluster.engines.slurm import shards, stopped, suspended
from gpushare.cluster.engines.slurm.commands import Commands, NoJob, Refusal
from gpushare.cluster.engines.slurm.mark import Mark, Spot
from gpushare.config import load_settings
from gpushare.errors import DaemonUnreachable, GpushareError, NoSuchJob, UsageError
from gpushare.paths import library, software_driver_dir

__all__ = ["DIRECTORY", "check", "epilog", "main", "prolog"]

DIRECTORY = Path("/run/gpushare-slurm")
ENFORCE = "--enforce"
COMMAND_WITHIN = 10.0
WAIT_FOR_END = 5.0
"""Seconds until the daemon has seen that all programs of a job have ended."""
WAIT_FOR_ROOM = 20.0
"""Seconds that a job waits for memory that another one is just giving back."""
AGAIN = 0.2
OVER = ".over"
"""Of files about placements that the daemon is to end."""


def main() -> None:
    what, *more = sys.argv[1:] or [""]
    enforce = ENFORCE in more
    directory = next((Path(one) for one in more if one != ENFORCE), DIRECTORY)
    try:
        if what == "prolog":
            prolog(os.environ, directory, enforce=enforce)
        elif what == "epilog":
            epilog(os.environ, directory)
        elif what == "check":
            check(os.environ)
        else:
            raise UsageError(f"say prolog, epilog or check, and perhaps {ENFORCE} and a directory")
    except GpushareError as error:
        print(error.render(), file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        print(f"gpushare: {what}: {error}", file=sys.stderr)
        sys.exit(1)


class Files:
    """Of one job on this node."""

    def __init__(self, environ: Mapping[str, str], directory: Path) -> None:
        self.node = environ.get("SLURMD_NODENAME", "")
        name = f"{int(environ['SLURM_JOB_ID'])}.{self.node}"
        self._directory = directory
        self.variables = directory / f"{name}.env"
        self.place = directory / f"{name}.place"
        """The daemon's socket, the placement's id, and the body of its request without the session."""

    def write(self, path: Path, lines: Sequence[str], mode: int) -> None:
        self._directory.mkdir(mode=0o755, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, mode)
            file.writelines(f"{line}\n" for line in lines)
        fresh.replace(path)


def prolog(environ: Mapping[str, str], directory: Path, *, enforce: bool = False) -> None:
    """Raises GpushareError where the job cannot have its budget here. A job that is none of ours is left alone."""
    files = Files(environ, directory)
    epilog(environ, directory)  # of an earlier start that had none
    mark = mark_of(environ) if enforce else marks.read(environ.get("SLURM_JOB_COMMENT", ""))
    if not mark.place or mark.stop:
        return
    spots = [spot for spot in mark.place if spot.node == files.node]
    if not spots:
        raise UsageError(f"job {environ['SLURM_JOB_ID']} has no place on {files.node}")
    node = locate_node(environ)
    body = body_of(environ, mark, spots, gpus_of(node, spots))
    id = f"slurm/{environ['SLURM_JOB_ID']}.{mark.token[0]}.{mark.token[1]}"
    placed = place(node, id, body)
    without = json.dumps(body).removesuffix("}")
    files.write(files.place, [str(node.runtime.api_socket), id, without], 0o600)
    lines = [f"{name}={value}" for name, value in variables(environ, node, placed, body).items()]
    files.write(files.variables, lines, 0o644)


def mark_of(environ: Mapping[str, str]) -> Mark:
    """Of a job of which the environment does not say who has placed it: its user may write its comment."""
    commands = Commands(environ.get("SLURM_CONF"), COMMAND_WITHIN)
    try:
        job = commands.run("scontrol", "-d", "-o", "show", "job", environ["SLURM_JOB_ID"])
        shown = commands.run("scontrol", "-o", "show", "node", environ["SLURMD_NODENAME"])
    except (Unanswered, Refusal, NoJob) as error:
        raise UsageError(f"Slurm does not say what job {environ['SLURM_JOB_ID']} has: {error}") from None
    if stopped.is_ours(stopped.record_of(job, environ["SLURM_JOB_ID"])):
        return marks.read(environ.get("SLURM_JOB_COMMENT", ""))
    found = shards.placed(environ, job, shown, [gpu["capacity"] for gpu in gpus(locate_node(environ))])
    if found is None:
        return Mark()
    if found.wrong:
        print(f"gpushare: job {environ['SLURM_JOB_ID']} has no other limit than its request: {found.wrong}")
    return found.mark


def epilog(environ: Mapping[str, str], directory: Path) -> None:
    """The daemon keeps the job's request until nothing of it runs. If it is away it is told by the next job's Prolog or
    Epilog: an Epilog that fails would close the node."""
    files = Files(environ, directory)
    files.variables.unlink(missing_ok=True)
    waiting = [path for path in directory.glob(f"*.{files.node}{OVER}*") if not _is_at_work(path)]
    for path in [files.place, *waiting]:
        over = path.with_suffix("" if path.suffix[1:].isdecimal() else OVER)
        taken = over.with_name(f"{over.name}.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):  # an Epilog beside this one has it
            path.replace(taken)
            if not _end(environ, taken):
                taken.replace(over)


def check(environ: Mapping[str, str]) -> None:
    """Raises GpushareError where nobody can say what runs."""
    commands = Commands(environ.get("SLURM_CONF"), COMMAND_WITHIN)
    try:
        names = suspended.check(commands, locate_node(environ).client(), environ.get("SLURMD_NODENAME", ""))
    except (Unanswered, Refusal, NoJob) as error:
        raise UsageError(f"Slurm does not say which jobs are suspended here: {error}") from None
    for name in names:
        print(f"gpushare: job {name} was suspended and ran: suspended again", file=sys.stderr)


def _is_at_work(path: Path) -> bool:
    """Another Epilog has taken this file, and lives."""
    return path.suffix != OVER and Path("/proc", path.suffix[1:]).exists()


def _end(environ: Mapping[str, str], path: Path) -> bool:
    """False: the daemon is away."""
    _, id, body = path.read_text().splitlines()
    attempt = json.loads(body + "}")["attempt"]
    try:
        killed = displace(locate_node(environ).client(), id, attempt)
    except DaemonUnreachable:
        return False
    path.unlink()
    if killed is not None:
        requeue(environ, path.name.partition(".")[0], attempt, killed)
    return True


def displace(client: Client, id: str, attempt: int) -> Killed | None:
    """The placement is over. Why the daemon has stopped it; None: it has not."""
    with contextlib.suppress(NoSuchJob):
        job, deadline = client.displace(id, attempt)["job"], time.monotonic() + WAIT_FOR_END
        while job["outcome"] is None and time.monotonic() < deadline:
            time.sleep(AGAIN)
            job = client.job(job["id"])
        return None if job["outcome"] is None else job["outcome"]["killed"]
    return None


def requeue(environ: Mapping[str, str], number: str, attempt: int, killed: Killed) -> None:
    """What Slurm does not do is no reason to close the node."""
    commands = Commands(environ.get("SLURM_CONF"), COMMAND_WITHIN)
    try:
        stopped.requeue(commands, number, attempt, killed, environ.get("SLURMD_NODENAME", ""))
    except (Unanswered, Refusal) as error:
        print(f"gpushare: job {number} was stopped for an owner, and is not requeued: {error}", file=sys.stderr)


def locate_node(environ: Mapping[str, str]) -> locate.Node:
    return locate.find(load_settings({}, environ))


def gpus(node: locate.Node) -> list[Gpu]:
    return sorted(node.client().status()["gpus"], key=lambda gpu: gpu["index"])


def gpus_of(node: locate.Node, spots: Sequence[Spot]) -> list[str]:
    """Their UUIDs."""
    known = [gpu["uuid"] for gpu in gpus(node)]
    wanted = sorted({gpu for spot in spots for gpu in spot.gpus})
    if wanted[-1] >= len(known):
        raise UsageError(f"this node has {len(known)} GPUs, and no GPU {wanted[-1]}", hint="compare with gres.conf")
    return [known[gpu] for gpu in wanted]


def body_of(environ: Mapping[str, str], mark: Mark, spots: Sequence[Spot], gpus: list[str]) -> dict[str, Any]:
    return {
        "attempt": max(1, mark.attempt),
        "uid": int(environ["SLURM_JOB_UID"]),
        "gpus": gpus,
        "request": str(max(spot.request for spot in spots)),
        "limit": str(max(spot.limit for spot in spots)),
        "priority": mark.priority,
        "name": f"slurm-{environ['SLURM_JOB_ID']}",
    }


def place(node: locate.Node, id: str, body: Mapping[str, Any]) -> Placement:
    deadline = time.monotonic() + WAIT_FOR_ROOM
    while True:
        try:
            return node.client().place(id, body)
        except GpushareError as error:
            if error.code not in MAY_PASS or time.monotonic() > deadline:
                raise
            time.sleep(AGAIN)


def variables(
    environ: Mapping[str, str], node: locate.Node, placed: Placement, body: Mapping[str, Any]
) -> dict[str, str]:
    """Of the job's tasks. NAME+ goes before what the user has in NAME."""
    found = {
        "LD_PRELOAD+": str(library()),
        "CUDA_VISIBLE_DEVICES": ",".join(body["gpus"]),
        "GPUSHARE_JOB": placed["job"]["id"],
        "GPUSHARE_NAME": body["name"],
        "GPUSHARE_REQUEST": body["request"],
        "GPUSHARE_LIMIT": body["limit"],
        "GPUSHARE_SOCKET": str(node.runtime.api_socket),
    }
    if node.driver == "sim":
        found |= {"GPUSHARE_DRIVER": "sim", "LD_LIBRARY_PATH+": str(software_driver_dir())}
        found |= {name: environ[name] for name in ("GPUSHARE_SIM",) if name in environ}
    return found


if __name__ == "__main__":
    main()
