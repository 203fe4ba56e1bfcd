"""2: the addresses that dlsym and cuGetProcAddress give, for all hooked functions and both stream flags."""

from __future__ import annotations

from functions_def import rows
from gpuday.day import Day


def run(day: Day) -> None:
    hooked = [(row.base, row.symbol, row.since, row.stream) for row in rows() if row.rule == "HOOK"]
    for side, limit in (("bare", None), ("shim", "2Gi")):
        for name, value in day.ask("driver.look_ups", hooked, limit is not None, limit=limit).items():
            day.answer(name, value, side)
