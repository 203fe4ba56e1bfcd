"""Runs a state machine of hypothesis in a Python process of its own.

What hypothesis draws depends on the modules that are loaded. In a process of its own these are always the same, so that
the same seed is the same run everywhere, whatever tests ran before.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections import Counter

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

__all__ = ["ROUND", "drive"]

SEED = int(os.environ.get("GPUSHARE_TEST_SEED", "1"))
SHRINK = "GPUSHARE_TEST_SHRINK" in os.environ
"""Minutes of work for a sequence of a hundred events: set it when a failure is to be understood."""
ENOUGH = 300_000
"""So many events show all that is wanted, however few are asked for."""
STEPS = 100
ROUND = 100
"""Examples per round; rounds follow with the next seed until there were enough events."""


def drive(kind: type[RuleBasedStateMachine], events: int, wanted: tuple[str, ...], examples: int = ROUND) -> None:
    """As many random events as that, as the machine's module counts them in `seen`; more, if not all of what is wanted
    has been seen by then."""
    words = ["-P", "-m", "property.driving", kind.__module__, kind.__name__, str(events), str(examples), *wanted]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "0"}
    done = subprocess.run([sys.executable, *words], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = done.stdout.decode(errors="replace")
    print(text)
    assert done.returncode == 0, "what it said is above"


def main(module: str, name: str, events: int, examples: int, *wanted: str) -> None:
    loaded = importlib.import_module(module)
    kind: type[RuleBasedStateMachine] = getattr(loaded, name)
    seen: Counter[str] = loaded.seen
    how = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        database=None,
        phases=(Phase.generate, Phase.shrink) if SHRINK else (Phase.generate,),
    )
    rounds = 0
    most = max(5 * events, ENOUGH)
    while seen["events"] < events or (seen["events"] < most and not all(seen[what] for what in wanted)):
        run_state_machine_as_test(seed(SEED + 1000 * rounds)(kind), settings=how)
        rounds += 1
    print(f"seed {SEED}:", ", ".join(f"{count} {what}" for what, count in sorted(seen.items())))
    for what in wanted:
        assert seen[what] > 0, f"{seen['events']} events, but no {what}: the test has become shallow"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
