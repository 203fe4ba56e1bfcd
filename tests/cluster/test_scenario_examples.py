"""The worked examples: each file in examples/cluster is played, and all must follow that it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.cluster import scenario

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples" / "cluster").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path) -> None:
    read = scenario.read(path)
    assert any(step.then is not None for step in read.steps), "an example that checks nothing"
    _, failures = scenario.run(read)
    assert not failures, "\n".join(map(str, failures))


def test_all_nine_examples_are_there() -> None:
    assert {path.stem[:2] for path in EXAMPLES} == {f"a{n}" for n in range(1, 10)}


def test_a_run_is_the_same_twice() -> None:
    """Same events, same decisions; tests/cluster also compares hash seeds."""
    for path in EXAMPLES:
        first, second = (scenario.run(scenario.read(path))[0] for _ in range(2))
        assert first.actions == second.actions
