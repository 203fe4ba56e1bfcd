"""17: memory of two processes, by IPC and by descriptor: whom NVML charges for it."""

from __future__ import annotations

import subprocess

from gpuday.day import Day, Talk

SIZE = 1 << 30
MIB = 2**20


def run(day: Day) -> None:
    for how in ("ipc", "descriptor"):
        size = min(SIZE, int(day.nvml.nvmlDeviceGetMemoryInfo(day.nvml.nvmlDeviceGetHandleByIndex(0)).free) // 4)
        size = size // (2 * MIB) * (2 * MIB)
        pipe = subprocess.PIPE
        line = day.line("driver.share", how, size)
        process = subprocess.Popen(line, env=day.plain(), stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1)
        one = Talk(how, process)
        maker, opener = one.expect("shared")
        day.settled()
        total, before = day.used(), day.by_pid()
        one.tell()
        code, taken = one.expect("opened")
        day.settled()
        after = day.by_pid()
        day.answer(f"{how}: code of opening it", code, "bare")
        day.answer(f"{how}: MiB that opening it takes of the device", (day.used() - total) // MIB, "bare")
        day.answer(f"{how}: MiB that it takes of what is free, for the opener", taken, "bare")
        if maker in before and opener in before:
            for whom, pid in (("maker", maker), ("opener", opener)):
                more = (after.get(pid, 0) - before[pid]) / size
                day.answer(f"{how}: part of it that NVML adds to its {whom}", round(more, 1), "bare")
        else:
            day.skip(f"NVML by process, {how}", "NVML does not show these programs by their pids")
        one.end()
