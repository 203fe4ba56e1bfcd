"""Slurm's own commands, each run with a limit of time. What cannot be asked raises Unanswered, and so does a refusal
that may end by itself."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from gpushare.cluster.engines.seam import Unanswered

__all__ = ["Commands", "NoJob", "Refusal"]

PASSING = (
    "Unable to contact slurm controller",
    "Zero Bytes were transmitted",
    "Socket timed out",
    "Connection refused",
    "Connection timed out",
    "Connection reset",
    "Slurm backup controller in standby",
    "Slurm temporarily unable",
    "Resource temporarily unavailable",
    "Protocol authentication error",
    "Job is in transistional state",
    "Transport endpoint is not connected",
)
"""Of these errors nobody knows whether the command was obeyed, or another try may help."""
OVER = ("Invalid job id", "Job/step already completing or completed", "Job has already finished")


class NoJob(Exception):
    """There is no such job any more."""


class Refusal(Exception):
    """Slurm does not do it."""


class Commands:
    def __init__(self, conf: str | None, timeout: float) -> None:
        """`conf`: path of slurm.conf; None: as Slurm finds it. `timeout`: seconds for one command."""
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        self._environ["LC_ALL"] = "C"
        if conf or "SLURM_CONF" in os.environ:
            self._environ["SLURM_CONF"] = conf or os.environ["SLURM_CONF"]
        self._timeout = timeout

    def jobs(self) -> Mapping[str, Any]:
        """`squeue --json`."""
        text = self.run("squeue", "--json", "-a", "-t", "all")
        try:
            found: Mapping[str, Any] = json.loads(text)
        except ValueError as error:
            raise Unanswered(f"squeue --json: {error}") from None
        if found.get("errors") or "jobs" not in found:
            said = "; ".join(str(one.get("description") or one.get("error")) for one in found.get("errors") or ())
            raise Unanswered(f"squeue shows no jobs ({said or 'it does not say why'}): look with `scontrol ping`")
        return found

    def nodes(self) -> str:
        return self.run("scontrol", "-o", "-a", "show", "node")

    def fingerprint(self) -> str:
        """Changes whenever a job does."""
        return self.run("squeue", "-h", "-a", "-t", "all", "-o", "%i %T %r %Q %k")

    def state(self, id: str) -> str:
        return self.run("squeue", "-h", "-a", "-j", id, "-o", "%T").strip()

    def update(self, id: str, changes: Sequence[tuple[str, str]]) -> None:
        self.run("scontrol", "update", f"JobId={id}", *(f"{name}={value}" for name, value in changes))

    def run(self, *words: str) -> str:
        """Its output. Raises Unanswered, NoJob or Refusal."""
        try:
            done = subprocess.run(
                words,
                check=False,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout,
            )
        except subprocess.TimeoutExpired:
            raise Unanswered(f"no answer to `{words[0]} {words[1]}` within {self._timeout:g} s") from None
        except OSError as error:
            raise Unanswered(f"cannot run {words[0]}: {error.strerror}") from None
        if done.returncode == 0:
            return done.stdout
        said = done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}"
        last = said.splitlines()[-1].removeprefix("slurm_update error: ").removeprefix("scontrol: error: ")
        if any(words in said for words in PASSING):
            raise Unanswered(f"{words[0]} {words[1]}: {last}")
        if any(words in said for words in OVER):
            raise NoJob(last)
        raise Refusal(last)
