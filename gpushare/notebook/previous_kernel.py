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
    found = predecessor(jobs, file, name, os.getuid(), os.environ.get("GPUSHARE_JOB"))
    return ending(found) if found is not None else None


def predecessor(jobs: Iterable[Job], file: str, name: str | None, uid: int, own: str | None = None) -> Job | None:
    """This user's latest ended job with this connection file, or with this notebook's name; else the one before in the
    same kernelspec. `own`: the id of this kernel's job."""
    mine = [job for job in jobs if job["uid"] == uid]
    known = [job for job in mine if _has_file(job["command"], file) or job["name"] == name]
    ended = [job for job in known if job["outcome"] is not None]
    return max(ended, key=_start, default=None) or _before(mine, own)


def _before(jobs: Iterable[Job], own: str | None) -> Job | None:
    """The kernel of the same kernelspec, which gives its jobs their name, that started last before this one. None if
    it lives: then it is another notebook's, and what came before it has been told there."""
    this = next((job for job in jobs if job["id"] == own), None)
    if this is None:
        return None
    earlier = [job for job in jobs if job["name"] == this["name"] and job["since"] < this["since"]]
    last = max((job for job in earlier if connection_file(job["command"])), key=_start, default=None)
    return last if last is not None and last["outcome"] is not None else None


def _start(job: Job) -> float:
    return job["since"]


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
