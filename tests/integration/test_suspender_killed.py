"""A suspender is killed before and after each step that it has the driver take; the job loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.node import MIB, Node, wait_for
from integration.test_suspending import GPU, borrower, state

DIES = """
import os, signal, sys
if "gpushare.suspender" in sys.orig_argv:
    from gpushare.checkpoint import DriverCheckpoints
    step, when, marker = os.environ["DIES_AT"].split(":")
    take = getattr(DriverCheckpoints, step)

    def dies(*arguments):
        if os.path.exists(marker):
            return take(*arguments)
        open(marker, "w").close()
        if when == "after":
            take(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(DriverCheckpoints, step, dies)
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, puppets: Path) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("killed"), puppets, sim=GPU) as one:
        (one.directory / "sitecustomize.py").write_text(DIES)
        yield one


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["lock", "checkpoint", "restore", "unlock"])
def test_nothing_is_lost_when_a_suspender_is_killed_at_a_step(node: Node, step: str, when: str) -> None:
    name, marker = f"{step}-{when}", node.directory / f"{step}-{when}.died"
    path = f"{node.directory}:{node.env['PYTHONPATH']}"
    a = borrower(node, name, 2, PYTHONPATH=path, DIES_AT=f"{step}:{when}:{marker}")
    assert node.gpushare("suspend", name).returncode == 0
    if step in ("restore", "unlock"):
        wait_for(lambda: state(node, name) == "suspended", "it to be suspended")
        assert node.gpushare("resume", name).returncode == 0
    wait_for(marker.exists, "its suspender to be killed")
    wait_for(lambda: state(node, name) in ("suspended", "borrowing"), "another suspender to say where it is")
    if state(node, name) == "suspended":
        node.gpushare("resume", name)
    wait_for(lambda: state(node, name) == "borrowing", "it to run")
    assert a.do("filled 7") == []
    assert a.alloc(64 * MIB) < 5000
    assert a.end() == 0
    wait_for(lambda: node.gpu()["usage"] == node.gpu()["unmanaged"] == 0, "nothing to be left")
