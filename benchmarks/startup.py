"""What `gpushare run` adds to a program that does nothing, and what the first run of a user waits for its daemon.

`gpushare run true` beside `true`, and beside `python -c 'import click'`, which is the least that any command line with
click costs: their runs alternate, so that a busy machine slows all of them. With the daemon up, but for the last line.

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BAR_MS = 60.0
BAR_RATIO = 2.0
BAR_FIRST_MS = 400.0
DAEMONS = 3


def milliseconds(line: list[str], env: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(line, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1e3


def command() -> list[str]:
    """The installed script, as users type it."""
    script = Path(sys.executable).with_name("gpushare")
    return [str(script)] if script.exists() else [sys.executable, "-m", "gpushare"]


@contextmanager
def no_daemon_yet() -> Iterator[dict[str, str]]:
    """The environment of a user whose daemon does not run; it is stopped at the end."""
    with tempfile.TemporaryDirectory() as directory:
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("GPUSHARE_") and key != "PYTHONDONTWRITEBYTECODE"
        }
        env |= {"XDG_RUNTIME_DIR": directory, "XDG_STATE_HOME": directory}
        env |= {"GPUSHARE_SIM": f"memory=16Gi,pool={directory}/pool"}
        try:
            yield env
        finally:
            subprocess.run([*command(), "daemon", "stop"], env=env, check=False, capture_output=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=25)
    options = parser.parse_args()
    run = [*command(), "run", "--driver", "sim", "--limit", "1Gi", "true"]
    lines = {"true": ["true"], "import click": [sys.executable, "-c", "import click"], "gpushare run true": run}
    firsts = []
    for number in range(DAEMONS):
        with no_daemon_yet() as env:
            first = milliseconds(run, env)
            took: dict[str, list[float]] = {name: [] for name in lines}
            milliseconds(run, env)
            for _ in range(options.runs if number == DAEMONS - 1 else 3):
                for name, line in lines.items():
                    took[name].append(milliseconds(line, env))
            firsts.append(first - statistics.median(took["gpushare run true"]))
    middle = {name: statistics.median(times) for name, times in took.items()}
    added = middle["gpushare run true"] - middle["true"]
    ratio = middle["gpushare run true"] / middle["import click"]
    print(f"{'milliseconds':40} {'median':>8} {'least':>8}")
    for name, times in took.items():
        print(f"{name:40} {middle[name]:8.1f} {min(times):8.1f}")
    print(f"{'added to true':40} {added:8.1f}            at most {BAR_MS:.0f}")
    print(f"{'as a multiple of import click':40} {ratio:8.2f}            at most {BAR_RATIO:.0f}")
    print(f"{'beside that, the start of the daemon':40} {min(firsts):8.1f}            at most {BAR_FIRST_MS:.0f}")
    print(f"{'  as a multiple of import click':40} {min(firsts) / min(took['import click']):8.2f}")
    return 0 if added <= BAR_MS and ratio <= BAR_RATIO and min(firsts) <= BAR_FIRST_MS else 1


if __name__ == "__main__":
    sys.exit(main())
