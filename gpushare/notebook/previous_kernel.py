"""How the kernel before this one ended. Jupyter says only that it "appears to have died"."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

from gpushare import offline_history
from gpushare.api import Job
from gpushare.config import load_settings
from gpushare.errors import GpushareError, render
from gpushare.killed import stopped
from gpushare.notebook.name import connection_file, notebook_name

__all__ = ["ending", "predecessor", "previous_end"]


def previous_end() -> str | None:
    """A text, if the kernel before this one was stopped to give memory back; else None."""
    file, name = connection_file(), notebook_name(os.environ)
    if file is None:
        return None
    try:
        jobs = offline_history.ask(load_settings(), lambda daemon: daemon.jobs(ended=True), lambda _note: None)
    except GpushareError:
        return None
    found = predecessor(jobs, file, name, os.getuid())
    return ending(found) if found is not None else None


def predecessor(jobs: Iterable[Job], file: str, name: str | None, uid: int) -> Job | None:
    """This user's latest ended job with this connection file, or with this notebook's name."""
    ended = [job for job in jobs if job["uid"] == uid and job["outcome"] is not None]
    mine = [job for job in ended if _has_file(job["command"], file) or job["name"] == name]
    return max(mine, key=lambda job: job["since"], default=None)


def ending(job: Job) -> str | None:
    """How the job ended; None if it was not stopped for others."""
    killed = job["outcome"]["killed"] if job["outcome"] else None
    if killed is None:
        return None
    today = time.localtime(killed["time"])[:3] == time.localtime()[:3]
    when = time.strftime("%H:%M" if today else "%H:%M on %Y-%m-%d", time.localtime(killed["time"]))
    return render(
        f"the previous kernel was {stopped(killed, f' at {when}')}",
        hint=f"`gpushare explain {job['id']}` tells the story; ask for more with --request to borrow less",
    )


def _has_file(command: Sequence[str], file: str) -> bool:
    return any(word.endswith(file) for word in command)
