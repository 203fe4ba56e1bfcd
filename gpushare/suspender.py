"""The process that asks the driver to suspend one job: `python -m gpushare.suspender JOB SOCKET`.

`gpushare run` starts it beside a program whose job may be suspended (follower.py). It is of the same user, which the
driver asks for, and is loaded and ready before memory is wanted back. It answers each command with where the job's
processes are (daemon/gpushared/runtime/suspenders.py).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpushare import api, checkpoint, host_memory, standstill, suspend_check
from gpushare.client import Client, Events
from gpushare.follower import LONGEST_PROBLEM, Follower

__all__ = ["Suspender"]


class Suspender(Follower[api.SuspendCommand]):
    """Follows one job's commands."""

    def __init__(self, client: Client, job: str, driver: checkpoint.Checkpoints | None, problem: str = "") -> None:
        """`driver` None: there is none, and `problem` says why."""
        super().__init__(client, job)
        self.driver = driver
        self.problem = problem

    def commands(self) -> Events[api.SuspendCommand]:
        return self.client.suspender(self.job)

    def answer(self, command: api.SuspendCommand) -> None:
        """Do it, and say where the processes are."""
        began = time.monotonic()
        result = self._do(command)
        answer = {
            "number": command["number"],
            "where": result.where,
            "problem": result.problem[:LONGEST_PROBLEM] or None,
            "pid": os.getpid(),
            "milliseconds": int((time.monotonic() - began) * 1000),
        }
        self.client.suspender_answers(self.job, answer)

    def _do(self, command: Mapping[str, Any]) -> checkpoint.Result:
        pids = [int(pid) for pid in command["pids"]]
        if self.driver is None:
            return checkpoint.Result("unknown", self.problem)
        if command["command"] != "report" and any(map(standstill.stays_still, pids)):
            where = checkpoint.whereabouts(self.driver, pids) if command["command"] == "resume" else "running"
            return checkpoint.Result(where, standstill.PROBLEM)
        match command["command"]:
            case "suspend":
                short = host_memory.shortage(pids[0], int(command["bytes"])) if pids else ""
                if short:
                    return checkpoint.Result("running", short)
                return checkpoint.suspend(self.driver, pids, float(command["within"]))
            case "resume":
                return checkpoint.resume(self.driver, pids)
        return checkpoint.Result(checkpoint.settle(self.driver, pids), self.problem)


def _proved(driver: checkpoint.DriverCheckpoints) -> str:
    """Why this driver must not suspend programs; "": it has passed the check. The software driver needs no check."""
    if os.environ.get("GPUSHARE_DRIVER") == "sim":
        return ""
    file = suspend_check.result_file(os.environ)
    result = suspend_check.kept(file, driver.version()) or suspend_check.check(driver, file)
    return "" if result["good"] else f"this driver has failed the check: {result['problem']}"


def main(job: str, api_socket: str) -> None:
    driver, problem = None, ""
    try:
        driver = checkpoint.DriverCheckpoints()
        problem = _proved(driver)
    except checkpoint.DriverError as error:
        problem = str(error)
    Suspender(Client(Path(api_socket)), job, driver, problem).run()


if __name__ == "__main__":
    main(*sys.argv[1:3])
    os._exit(0)  # at once, even if a thread of the driver hangs
