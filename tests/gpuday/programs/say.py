"""How the programs of the checks answer: one line of JSON each, at once. Standard library only."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

Program = Callable[..., Iterator[tuple[str, Any]]]


def main(programs: dict[str, Any]) -> None:
    """Runs the function that the command line names, with its arguments."""
    for question, value in programs[sys.argv[1]](*json.loads(sys.argv[2])):
        print(json.dumps([question, value]), flush=True)


def wait_line() -> str:
    """One line from the check; empty at the end."""
    return sys.stdin.readline().strip()
