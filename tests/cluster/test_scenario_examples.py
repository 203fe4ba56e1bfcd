"""The worked examples: each file in examples/cluster is played, and all must follow that it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.cluster import scenario

FILES = sorted((Path(__file__).resolve().parents[2] / "examples" / "cluster").glob("*.yaml"))
EXAMPLES = [path for path in FILES if path.stem != "cluster"]  # which is for `gpushare cluster apply`


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path) -> None:
    read = scenario.read(path)
    assert any(step.then is not None for step in read.steps), "an example that checks nothing"
    _, failures = scenario.run(read)
    assert not failures, "\n".join(map(str, failures))


def test_all_nine_examples_are_there() -> None:
    assert {f"a{n}" for n in range(1, 10)} <= {path.stem[:2] for path in EXAMPLES}


PRINT_ALL = """
import hashlib, sys
from gpushare.cluster import scenario
from gpushare.cluster.codec import encode_actions
for path in sys.argv[1:]:
    simulation, _ = scenario.run(scenario.read(path), check=False)
    print(hashlib.sha256(encode_actions([action for _, action in simulation.actions]).encode()).hexdigest())
"""


def test_the_same_events_are_decided_alike_whatever_the_hash_seed() -> None:
    line = [sys.executable, "-c", PRINT_ALL, *map(str, EXAMPLES)]
    seeds = [subprocess.run(line, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True) for seed in "17"]
    first, second = (run.stdout for run in seeds)
    assert first == second
    assert len(first.split()) == len(EXAMPLES), seeds[0].stderr
