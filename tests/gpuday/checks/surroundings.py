"""1: what runs here, whether NVML names our processes, what doctor finds."""

from __future__ import annotations

import json
import platform
from pathlib import Path

from gpuday.day import Day

MIB = 2**20


def run(day: Day) -> None:
    day.answer("kernel", platform.release())
    day.answer("sandbox", "gVisor" if "gVisor" in Path("/proc/version").read_text() else "none seen")
    day.answer("container", Path("/.dockerenv").exists() or Path("/run/.containerenv").exists())
    for name, value in day.ask("driver.identity").items():
        day.answer(name, value)
    day.answer("driver", str(day.nvml.nvmlSystemGetDriverVersion()))
    day.answer("GPUs", day.nvml.nvmlDeviceGetCount())
    before = day.settled()
    holder = day.holder(256 * MIB)
    seen = day.by_pid()
    day.answer("NVML names our process by our pid", holder.pid in seen)
    day.answer("NVML tells what our process uses", seen.get(holder.pid, 0) >= 256 * MIB)
    day.answer("NVML's total follows an allocation", day.settled() - before >= 256 * MIB)
    holder.end()
    found = json.loads(day.node.gpushare("doctor", "--output", "json").stdout)["checks"]
    day.answer("doctor", {check["id"]: check["state"] for check in found})
    day.answer("checks of doctor that fail", [check["id"] for check in found if check["state"] == "fail"])
