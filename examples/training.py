"""A training run that can be stopped and loses almost nothing: `training.py run.json --steps 200`.

It writes a checkpoint every --every steps, and when it gets SIGTERM, which gpushare sends before it takes borrowed
memory back. Started again it goes on from its checkpoint. It ends with status 0 when all steps are done, and with 75
when it was stopped and wants to be started again.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from pathlib import Path

from gpu import GIB, open_gpu

try:
    import gpushare
except ImportError:  # the program runs without it just as well
    gpushare = None  # type: ignore[assignment]

START_AGAIN = 75


def load(path: Path) -> dict[str, float]:
    return json.loads(path.read_text()) if path.exists() else {"step": 0, "loss": 1.0}


def save(path: Path, state: dict[str, float]) -> None:
    """All of it or nothing: the file is there under its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(state))
    part.replace(path)
    if gpushare is not None:
        gpushare.checkpointed()  # of two borrowers the one that loses less is stopped first


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="where the run is saved")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--rate", type=float, default=0.02, help="how fast it learns")
    parser.add_argument("--gib", type=float, default=1.0, help="GiB of the model and its batches")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds of a step")
    options = parser.parse_args()

    asked = False

    def on_sigterm(_signal: int, _frame: object) -> None:
        nonlocal asked
        asked = True

    signal.signal(signal.SIGTERM, on_sigterm)
    gpu = open_gpu()
    for _ in range(round(options.gib * 4)):
        gpu.take(GIB // 4)
    state = load(options.checkpoint)
    print(f"{options.checkpoint.stem}: from step {state['step']}", flush=True)
    while state["step"] < options.steps:
        time.sleep(options.pause)
        state = {"step": state["step"] + 1, "loss": state["loss"] * (1 - options.rate)}
        if asked or state["step"] % options.every == 0 or state["step"] == options.steps:
            save(options.checkpoint, state)
        if asked and state["step"] < options.steps:
            print(f"{options.checkpoint.stem}: stopped at step {state['step']}, saved", flush=True)
            return START_AGAIN
    print(f"{options.checkpoint.stem}: done, loss {state['loss']:.6f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
