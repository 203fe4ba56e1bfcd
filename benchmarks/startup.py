"""What `gpushare run` adds to a program that does nothing, with the daemon up: `true` and `gpushare run true` in turn.

python benchmarks/startup.py [--runs N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BAR_MS = 60.0


def milliseconds(line: list[str], env: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(line, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1e3


def command() -> list[str]:
    """The installed script, as users type it."""
    script = Path(sys.executable).with_name("gpushare")
    return [str(script)] if script.exists() else [sys.executable, "-m", "gpushare"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=25)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("GPUSHARE_") and key != "PYTHONDONTWRITEBYTECODE"
        }
        env |= {"XDG_RUNTIME_DIR": directory, "XDG_STATE_HOME": directory}
        env |= {"GPUSHARE_SIM": f"memory=16Gi,pool={directory}/pool"}
        run = [*command(), "run", "--driver", "sim", "--limit", "1Gi", "true"]
        first = milliseconds(run, env)
        for _ in range(3):
            milliseconds(run, env)
        bare, under = [], []
        for _ in range(options.runs):
            bare.append(milliseconds(["true"], env))
            under.append(milliseconds(run, env))
        subprocess.run([*command(), "daemon", "stop"], env=env, check=False, capture_output=True)
    added = statistics.median(under) - statistics.median(bare)
    print(f"{'milliseconds':34} {'bare':>8} {'under':>8} {'added':>8} {'bar':>6}")
    print(
        f"{'gpushare run true, median':34} {statistics.median(bare):8.1f} {statistics.median(under):8.1f}"
        f" {added:8.1f} {BAR_MS:6.0f}"
    )
    print(f"{'  least':34} {min(bare):8.1f} {min(under):8.1f} {min(under) - min(bare):8.1f}")
    print(f"{'the first one, which starts the daemon':34} {first:13.1f}")
    return 0 if added <= BAR_MS else 1


if __name__ == "__main__":
    sys.exit(main())
