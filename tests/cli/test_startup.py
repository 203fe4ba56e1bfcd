"""What `gpushare run` costs, as a multiple of what Python with click costs on the same machine at the same time."""

from __future__ import annotations

import os
import sys

ROUNDS = 8
AT_MOST = 2.0


def cpu_seconds(line: list[str]) -> float:
    """Of the process and those it waits for. Not the time on the clock: other tests run beside this one."""
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    _, status, usage = os.wait4(os.posix_spawn(line[0], line, os.environ, file_actions=quiet), 0)
    assert status == 0
    return usage.ru_utime + usage.ru_stime


def test_a_run_costs_at_most_twice_what_importing_click_does(fake):
    click = [sys.executable, "-c", "import click"]
    run = [sys.executable, "-m", "gpushare", "run", "--limit", "1Gi", "/bin/true"]
    pairs = [(cpu_seconds(click), cpu_seconds(run)) for _ in range(ROUNDS)]
    least_click, least_run = map(min, zip(*pairs, strict=True))
    assert least_run <= AT_MOST * least_click, f"{least_run / least_click:.2f} times, {pairs}"
