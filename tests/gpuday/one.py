"""One check, in a process of its own: `python -m gpuday.one NAME DIRECTORY MACHINE`. Its answers are lines of JSON."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from gpuday.day import Day
from gpuday.runner import Machine


def main() -> None:
    name, directory, machine = sys.argv[1:]
    with Day(Path(directory), Machine(**json.loads(machine))) as day:
        importlib.import_module(f"gpuday.checks.{name.replace('-', '_')}").run(day)


if __name__ == "__main__":
    main()
