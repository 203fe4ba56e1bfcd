"""Jobs that Slurm has suspended: on this node their programs stand still, or Slurm is asked once more.

Slurm suspends a job by signals to its steps. Those that come in a step's first moment are lost: Slurm calls the job
SUSPENDED, and its programs run on. The node daemon knows which programs run on its GPUs.
"""

from __future__ import annotations

from pathlib import Path

from gpushare.client import Client
from gpushare.cluster.engines.slurm.commands import Commands, NoJob, Refusal

__all__ = ["check"]

STANDS = "TtZX"
"""States in /proc of a process that does not run: stopped, traced, or over."""


def check(commands: Commands, client: Client, node: str) -> list[str]:
    """Names of the jobs that ran, and are suspended now. Raises Unanswered, or GpushareError of the daemon."""
    shown = commands.run("squeue", "-h", "-a", "-t", "SUSPENDED", "-w", node, "-o", "%A %i")
    names = dict(line.split() for line in shown.splitlines())
    if not names:
        return []
    running = set()
    for one in client.placements():
        number = one["id"].removeprefix("slurm/").partition(".")[0]
        if number in names and any(_runs(pid) for pid in one["pids"]):
            running.add(names[number])
    return [name for name in sorted(running) if _again(commands, name)]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in STANDS
    except OSError:
        return False


def _again(commands: Commands, name: str) -> bool:
    """Slurm suspends only a job that it believes to run. What somebody has resumed meanwhile is left so."""
    try:
        commands.run("scontrol", "resume", name)
        commands.run("scontrol", "suspend", name)
    except (NoJob, Refusal):
        return False
    return True
