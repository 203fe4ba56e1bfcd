"""The README's first command, without the virtual environment around it: the demo plays to its end."""

from __future__ import annotations

from integration.node import Node


def test_the_demo_tells_its_story(node: Node) -> None:
    done = node.gpushare("demo", "--sim")
    assert done.returncode == 0, done.stdout + done.stderr
    for line in ("working on with", "was stopped to return borrowed memory", "late never saw an error"):
        assert line in done.stdout
    assert "That went wrong" not in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
