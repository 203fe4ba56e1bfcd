"""A job that its node has stopped, because an owner wanted memory back that the job had borrowed: it waits again.

The Epilog of the node has Slurm requeue it while it is still COMPLETING, so that no job begins that waits for its end.
Only then Slurm takes a comment for it: until then it counts as finished. Its user finds why in its output, too.

A job whose script ends with status 0 is done: Slurm does not tell an Epilog whether it was cancelled, and a script may
have started its program once more by itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpushare.api import Killed
from gpushare.cluster.engines.seam import Unanswered
from gpushare.cluster.engines.slurm import mark as marks
from gpushare.cluster.engines.slurm import request
from gpushare.cluster.engines.slurm.commands import Commands, NoJob
from gpushare.killed import cause, stopped

__all__ = ["is_ours", "record_of", "requeue", "tell"]

BY_ITSELF = ("NonZeroExitCode", "JobLaunchFailure")
"""Slurm's reasons of a job that has failed: nobody has cancelled it, and its time is not over. A script that was killed
counts as not launched."""
TRIES = 5
PAUSE = 1.0
"""Seconds between two of them: the controller may be away, or still busy with the end of the job."""
WRITE_WITHIN = 5.0


def is_ours(record: Mapping[str, str]) -> bool:
    """The allocator places it: only operators change an AdminComment."""
    return record.get("AdminComment") == request.FIRST


def record_of(shown: str, number: str) -> Mapping[str, str]:
    """Of `scontrol show job`: words of the job with this number, and its comment. An array is shown as a whole."""
    for text in shown.split("\n\n"):
        said = dict(re.findall(r"(\w+)=(\S*)", text))
        if said.get("JobId") == number:
            comment = re.search(r"^ *Comment=(.*)$", text, re.MULTILINE)
            output = re.search(r"^ *StdErr=(.*)$", text, re.MULTILINE)
            array = "ArrayJobId" in said and "ArrayTaskId" in said
            id = f"{said['ArrayJobId']}_{said['ArrayTaskId']}" if array else number
            texts = {"Comment": comment[1] if comment else "", "StdErr": output[1].strip() if output else ""}
            return {**said, **texts, "id": id}
    return {}


def requeue(commands: Commands, number: str, attempt: int, killed: Killed, node: str) -> None:
    """Raises Unanswered or Refusal where it should wait again, and does not."""
    for last in reversed(range(TRIES)):
        try:
            _requeue(commands, number, attempt, killed, node)
        except Unanswered:
            if not last:
                raise
            time.sleep(PAUSE)
        except NoJob:
            return
        else:
            return


def _requeue(commands: Commands, number: str, attempt: int, killed: Killed, node: str) -> None:
    record = record_of(commands.run("scontrol", "show", "job", number), number)
    mark, words = marks.read(record.get("Comment", "")), stopped(killed, f" on {node}")
    ours = is_ours(record)
    begun = (max(1, mark.attempt) if mark.place else 0) if ours else int(record.get("Restarts", -1)) + 1
    if record.get("Reason") not in BY_ITSELF or begun != attempt:
        return  # it was cancelled or evicted, another of its nodes has done this, or it has begun again
    tell(record, words)
    if not cause(killed["code"]).again or "0" in (record["Requeue"], record["BatchFlag"]):
        return
    if not ours:
        commands.run("scontrol", "requeue", record["id"])  # Slurm starts it again, after two minutes
        return
    commands.run("scontrol", "requeuehold", record["id"])
    noted = replace(mark, stop=True, stopped=words, evictions=mark.evictions + 1)
    commands.update(record["id"], [("Comment", noted.text())])


def tell(record: Mapping[str, str], words: str) -> None:
    """In its output, written as its user."""
    uid, gid = (re.fullmatch(r".*\((\d+)\)", record.get(name, "")) for name in ("UserId", "GroupId"))
    if uid is None or gid is None or not record["StdErr"]:
        return
    identity: dict[str, Any] = {"user": int(uid[1]), "group": int(gid[1]), "extra_groups": [int(gid[1])]}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            ["/bin/sh", "-c", 'test -f "$1" && cat >> "$1"', "sh", record["StdErr"]],
            input=f"gpushare: {words}\n".encode(),
            stderr=subprocess.DEVNULL,
            timeout=WRITE_WITHIN,
            check=False,
            **(identity if os.geteuid() == 0 else {}),
        )
