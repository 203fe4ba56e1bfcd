"""The software driver's switches (shim/sim/switches.def), and under which of them a run of tests is.

GPUSHARE_TEST_SWITCHES is put behind each GPUSHARE_SIM of tests/shim and tests/driver: `blocks=packed,reset=all`. Run as
a program, it lists what `make switches` runs the shim's tests under, a line each.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).resolve().parents[1] / "shim" / "sim" / "switches.def"


@dataclass(frozen=True)
class Switch:
    """One row of the list."""

    name: str
    usual: str
    others: tuple[str, ...]
    freedom: str


def read() -> tuple[Switch, ...]:
    """The rows, in their order."""
    rows = re.findall(r'^SIM_SWITCH\((\w+), (\w+), (\w+), (\w+),\s*"(.*)"\)$', LIST.read_text(), re.MULTILINE)
    return tuple(
        Switch(name, usual, (other, third)[: 1 if third == "_" else 2], freedom.replace('\\"', '"'))
        for name, usual, other, third, freedom in rows
    )


def settings() -> tuple[str, ...]:
    """Each switch the other way alone; then all of them together, once with the second values and once with the third.

    Not `pids`: it changes nothing but what NVML answers, and by that answer the tests themselves find the truth.
    """
    rows = [row for row in read() if row.name != "pids"]
    alone = [f"{row.name}={value}" for row in rows for value in row.others]
    return (
        *alone,
        ",".join(f"{row.name}={row.others[0]}" for row in rows),
        ",".join(f"{row.name}={row.others[-1]}" for row in rows),
    )


def of_this_run() -> str:
    """What `make switches` sets for all tests."""
    return os.environ.get("GPUSHARE_TEST_SWITCHES", "")


def chosen(name: str) -> str:
    """The value of a switch in this run, for a test whose figures depend on it."""
    (usual,) = (row.usual for row in read() if row.name == name)
    of_run = dict(part.split("=", 1) for part in of_this_run().split(",") if part)
    return of_run.get(name, usual)


def added(sim: str, more: str) -> str:
    """A value of GPUSHARE_SIM with these switches."""
    return f"{sim},{more}" if more and not sim.startswith("@") else sim


if __name__ == "__main__":
    print("\n".join(settings()))
