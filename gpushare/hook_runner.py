"""The process that calls one job's hooks: `python -m gpushare.hook_runner JOB SOCKET`.

`gpushare run` starts it beside a program whose job has the reclaim step hook (follower.py). What to call is in its
environment (hook_settings.py). It says of each call how that has ended. The daemon believes only the job's account
(daemon/gpushared/core/hooks.py).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from gpushare import api, hook_call, hook_settings
from gpushare.client import Client, Events
from gpushare.follower import LONGEST_PROBLEM, Follower
from gpushare.printable import one_line

__all__ = ["HookRunner"]


class HookRunner(Follower[api.HookCommand]):
    """Calls them, one at a time."""

    def __init__(self, client: Client, job: str, hooks: hook_settings.Hooks, environ: dict[str, str]) -> None:
        """`environ`: of the hooks, beside what says why they are called."""
        super().__init__(client, job)
        self.hooks = hooks
        self.environ = environ

    def commands(self) -> Events[api.HookCommand]:
        return self.client.hooks(self.job)

    def answer(self, command: api.HookCommand) -> None:
        began = time.monotonic()
        problem = self._call(command)
        answer = {
            "number": command["number"],
            "problem": one_line(problem)[:LONGEST_PROBLEM] or None,
            "wakes": self.hooks.resume is not None,
            "milliseconds": int((time.monotonic() - began) * 1000),
        }
        self.client.hook_answers(self.job, answer)

    def _call(self, command: api.HookCommand) -> str:
        """Why it has failed; empty: it has not."""
        hook = {"relief": self.hooks.relief, "resume": self.hooks.resume}.get(command["command"])
        if hook is None:
            return ""  # it is only asked whether it is there
        told = {
            "GPUSHARE_HOOK": command["command"],
            "GPUSHARE_HOOK_BYTES": str(command["bytes"]),
            "GPUSHARE_HOOK_GPU": command["gpu"],
            "GPUSHARE_HOOK_SECONDS": f"{command['within']:.3f}",
        }
        return hook_call.call(hook, self.environ | told, command["within"])


def main(job: str, api_socket: str) -> None:
    environ = dict(os.environ)
    hooks = hook_settings.from_environ(environ)
    for name in hooks.environ():
        del environ[name]
    HookRunner(Client(Path(api_socket)), job, hooks, environ).run()


if __name__ == "__main__":
    main(*sys.argv[1:3])
