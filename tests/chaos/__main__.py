"""`python -m chaos --rounds 2000 --seed 1`: real programs, the real daemon, and nobody is kind (make chaos)."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from math import inf
from pathlib import Path

from chaos.rounds import CLAIM_TIMEOUT, Chaos
from chaos.stage import ROOT, Stage

PUPPET = ROOT / "tests" / "integration" / "puppet.c"


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=inf, help="stop after so long, whatever the rounds")
    parser.add_argument("--verbose", action="store_true", help="say what is done")
    parser.add_argument("--keep", action="store_true", help="keep the logs")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    chaos = play(directory, options.rounds, options.seed, options.seconds, verbose=options.verbose)
    good = not chaos.faults
    if good and not options.keep:
        shutil.rmtree(directory)
    report(chaos, directory)
    return 0 if good else 1


def build(directory: Path) -> Path:
    puppet = directory / "puppet"
    compiler = [os.environ.get("CC", "cc"), "-O1", "-DBY_DLOPEN", "-o", str(puppet), str(PUPPET), "-ldl"]
    subprocess.run(compiler, check=True)
    return puppet


def play(directory: Path, rounds: int, seed: int, seconds: float, *, verbose: bool = False) -> Chaos:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f}  {text}", flush=True)

    gpus = 1 if seed % 3 else 2
    stage = Stage(directory, build(directory), gpus=gpus, memory="16Gi", claim_timeout=CLAIM_TIMEOUT)
    chaos = Chaos(stage, seed, say if verbose else lambda _: None)
    try:
        chaos.begin()
        chaos.play(rounds, began + seconds)
    finally:
        stage.close()
    chaos.counts["seconds"] = round(time.monotonic() - began)
    return chaos


def report(chaos: Chaos, directory: Path) -> None:
    """What there was to see; the verdict is the last line."""
    print(", ".join(f"{what} {count}" for what, count in sorted(chaos.counts.items())))
    violations = sum(count for what, count in chaos.counts.items() if what.startswith("violation"))
    judged = chaos.oracle.judged if hasattr(chaos, "oracle") else 0
    seen = f"{chaos.round} rounds, seed {chaos.seed}, {judged} stops judged, {violations} injected violations"
    if not chaos.faults:
        print(f"PASS: {seen}, 0 other violations, 0 needless kills, 0 leaks")
        return
    print("the last actions:", *chaos.history, sep="\n  ")
    for fault in chaos.faults:
        print(f"FAULT {fault}")
    print(f"logs: {directory}")
    print(f"again: make chaos ROUNDS={chaos.round} SEED={chaos.seed}")
    print(f"FAIL: {seen}: {chaos.faults[0]}")


if __name__ == "__main__":
    sys.exit(main())
