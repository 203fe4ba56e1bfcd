"""11: the lending story: a borrower that is killed, one that gives back on SIGTERM, and the accounts beside NVML."""

from __future__ import annotations

import time

from gpuday.day import Day
from integration.node import MIB, wait_for


def run(day: Day) -> None:
    unit = day.unit
    node = day.node
    borrower = node.puppet("killed", "--request", 4 * unit, "--limit", 14 * unit, "--grace", "1s")
    borrower.do("term ignore")
    for _ in range(12):
        borrower.alloc(unit)
    owner = node.puppet("owner", "--request", 8 * unit)
    owner.alloc(unit)
    day.answer("a borrower is seen as one", node.job("killed")["state"] == "borrowing")
    day.answer("ms for a claim by a kill, of which 1,000 are grace", round(owner.alloc(5.5 * unit), 1))
    day.answer("exit status of the killed borrower", borrower.wait())
    day.answer("exit status of its owner", owner.end())
    borrower = node.puppet("gives", "--request", 4 * unit, "--limit", 14 * unit)
    for _ in range(12):
        borrower.alloc(unit)
    borrower.do("term free 7")
    owner = node.puppet("owner2", "--request", 8 * unit)
    owner.alloc(unit)
    day.answer("ms for a claim by freeing on SIGTERM", round(owner.alloc(5.5 * unit), 1))
    day.answer("exit status of the one that gave back", borrower.end())
    day.answer("exit status of the second owner", owner.end())
    accounts(day)


def accounts(day: Day) -> None:
    """What is accounted and measured as overhead is what NVML shows of the program."""
    node, size = day.node, 256 * MIB
    program = node.puppet("counted", "--limit", "50%")
    for _ in range(4):
        program.alloc(size)
    wait_for(lambda: node.gpu()["unmanaged"] < 64 * MIB, "the sample", 10)
    time.sleep(1.0)
    gpu = node.job("counted")["gpus"][0]
    seen = day.by_pid().get(int(program.do("pid")[0]))
    day.answer("MiB accounted of 1,024", gpu["accounted"] // MIB)
    day.answer("MiB measured as overhead", gpu["overhead"] // MIB)
    day.answer("MiB that NVML shows of it", None if seen is None else seen // MIB)
    if seen is None:
        day.skip("NVML by process", "NVML does not show this program by its pid")
    else:
        day.answer("MiB between the account and NVML", abs(gpu["accounted"] + gpu["overhead"] - seen) // MIB)
    day.answer("exit status of the counted program", program.end())
