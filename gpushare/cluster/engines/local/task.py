"""The first process of a task: what `gpushare run` does, on exactly the GPUs that the task was given.

It never starts a program without the daemon, and takes amounts and GPUs from the placement, not from the environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from gpushare.errors import DaemonUnreachable, GpushareError, NotPermitted, Refused
from gpushare.launch import Options, run

__all__ = ["main", "options"]

KEEPER_WITHIN = 15.0
"""Seconds."""
BOOT = """import sys
root = sys.argv.pop(1)
root in sys.path or sys.path.insert(0, root)
from gpushare.cluster.engines.local.task import main
main()"""
"""For `python -I -c`: neither the user's variables nor the current directory may replace a module."""


def options(spec: dict[str, Any], folder: int) -> Options:
    """`spec` is what the runner wrote; `folder` a descriptor of the task's folder."""
    return Options(
        command=list(spec["command"]),
        flags={
            "GPUSHARE_REQUEST": str(spec["request"]),
            "GPUSHARE_LIMIT": str(spec["limit"]),
            "GPUSHARE_NAME": spec["name"],
            "GPUSHARE_PRIORITY": str(spec["priority"]),
            "GPUSHARE_GRACE": spec["grace"],
            "GPUSHARE_MODE": "enforce",
            "GPUSHARE_REQUIRE_DAEMON": "1",
        },
        gpus=len(spec["devices"]),
        devices=tuple(spec["devices"]),
        wait=spec["wait"],
        report=Path(f"/proc/self/fd/{folder}/report"),
        job=spec["job"],
        started=lambda: _note(folder, "running", {}),
    )


def main() -> None:
    spec, folder = json.loads(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(folder, False)
    try:
        code = _run(options(spec, folder))
    except GpushareError as error:
        sys.stderr.write(f"{error.render()}\n")
        words = error.message + (f" ({error.hint})" if error.hint else "")
        by_node = isinstance(error, DaemonUnreachable | Refused)
        _note(folder, "refused.json", {"message": words, "exit": error.exit_code, "node": by_node})
        code = error.exit_code
    sys.stderr.flush()
    os._exit(code)


def _run(wanted: Options) -> int:
    """Where the keeper was killed just now, the daemon does not know this process before the next one comes."""
    patience = time.monotonic() + KEEPER_WITHIN
    while True:
        try:
            return run(wanted)
        except NotPermitted as error:
            if error.code != "placed" or time.monotonic() >= patience:
                raise
            time.sleep(0.2)


def _note(folder: int, name: str, value: dict[str, Any]) -> None:
    fresh = f".{name}.{os.getpid()}"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
