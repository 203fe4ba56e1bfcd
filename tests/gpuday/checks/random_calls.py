"""26: random calls of all families, the account beside what NVML shows."""

from __future__ import annotations

import subprocess

from gpuday.day import Day, Talk
from integration.node import MIB


def run(day: Day) -> None:
    most = min(4 * 2**30, int(day.nvml.nvmlDeviceGetMemoryInfo(day.nvml.nvmlDeviceGetHandleByIndex(0)).free) // 2)
    seconds = max(2.0, 45 * day.machine.scale)
    pipe = subprocess.PIPE
    line = day.line("driver.churn", seconds, 1, most // 4)
    env = day.preloaded(str(most))
    one = Talk("churn", subprocess.Popen(line, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1))
    pid = one.expect("begins")
    empty, by_pid = day.settled(), pid in day.by_pid()
    day.answer("compared with", "NVML's figure of the process" if by_pid else "NVML's total", "shim")
    base = day.by_pid()[pid] if by_pid else empty
    one.tell()
    worst, looks = 0, 0
    for name, value in one.answers():
        if name == "charged":
            seen = (day.by_pid()[pid] if by_pid else day.used()) - base
            worst, looks = max(worst, abs(seen - value)), looks + 1
            one.tell()
            continue
        day.answer(name, value, "shim")
    day.answer("comparisons", looks, "shim")
    day.answer("largest difference between account and NVML, MiB", round(worst / MIB, 1), "shim")
    one.process.wait()
