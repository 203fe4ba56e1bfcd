"""18: what calls cost with and without the preload library, and a training loop."""

from __future__ import annotations

import subprocess

from gpuday.day import Day

RUNS = 5
THREADS = (1, 8)
LIMIT = "4Gi"


def run(day: Day) -> None:
    day.part("calls", lambda: calls(day))
    day.part("torch", lambda: training(day))


def calls(day: Day) -> None:
    """Nanoseconds: the least of several runs, which alternate."""
    binary = day.compiled("cost")
    for threads in THREADS:
        least: dict[str, dict[str, float]] = {"bare": {}, "shim": {}}
        for _ in range(max(1, round(RUNS * day.machine.scale))):
            for side, env in (("bare", day.plain()), ("shim", day.preloaded(LIMIT))):
                line = [str(binary), str(threads), str(max(5, round(100 * day.machine.scale)))]
                done = subprocess.run(line, env=env, capture_output=True, text=True, check=True)
                for name, value in (text.split("\t") for text in done.stdout.splitlines()):
                    least[side][name] = min(float(value), least[side].get(name, 1e18))
        on = f"{threads} thread{'s' * (threads > 1)}"
        for side, found in least.items():
            for name, value in found.items():
                day.answer(f"ns, {name}, {on}", value, side)
        for name, value in least["shim"].items():
            if name != "floor":
                added = (value - least["bare"][name]) / least["bare"]["floor"]
                day.answer(f"added to {name}, in floors of 3 CAS + 1 xadd, {on}", round(added, 2))


def training(day: Day) -> None:
    """Steps a second of the best of three runs each, which alternate."""
    day.needs_module("torch")
    best = {"bare": 0.0, "shim": 0.0}
    for _ in range(3):
        for side, limit in (("bare", None), ("shim", LIMIT)):
            best[side] = max(best[side], day.ask("with_torch.training", 2.0, limit=limit)["steps a second"])
    for side, value in best.items():
        day.answer("training, steps a second", round(value, 2), side)
    day.answer("training with the preload library, as a part of without", round(best["shim"] / best["bare"], 4))
