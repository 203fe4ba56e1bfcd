"""A runner whose hooks do nothing: fake_hook_runner.py JOB SOCKET. It makes a file when the daemon knows it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpushare import api
from gpushare.client import Client
from gpushare.hook_runner import HookRunner
from gpushare.hook_settings import Hook, Hooks


class Fake(HookRunner):
    def answer(self, command: api.HookCommand) -> None:
        super().answer(command)
        ready_file(Path(sys.argv[2]), self.job).touch()


def ready_file(socket: Path, job: str) -> Path:
    return socket.with_name(f"{job}.ready")


if __name__ == "__main__":
    hooks = Hooks(Hook(cmd="sleep 0.2"), Hook(cmd="true"))
    Fake(Client(Path(sys.argv[2])), sys.argv[1], hooks, dict(os.environ)).run()
