"""The daemon ends while something is under way for a job that takes longer than the next daemon waits for a process
that is not there: nobody is stopped for that."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from integration.node import Node, wait_for
from integration.test_suspending import GPU, PART, borrower, state


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_is_suspended_although_the_daemon_ends_in_the_middle(tmp_path: Path, puppets: Path, how: int) -> None:
    """The software driver takes eight seconds."""
    with Node(tmp_path, puppets, sim=f"{GPU},checkpoint_rate=384Mi") as node:
        a = borrower(node)
        b = node.puppet("B", "--request", "2Gi", "--limit", "2Gi")
        b.send(f"alloc {5 * PART}")
        wait_for(lambda: state(node, "A") == "suspending", "A to be suspended")
        os.kill(node.daemon_pid() or 0, how)
        assert b.answer()[0] == "ok", "the owner gets its memory"
        assert state(node, "A") == "suspended"
        assert b.end() == 0
        wait_for(lambda: state(node, "A") == "borrowing", "A to go on", 30.0)
        assert a.do("filled 7") == []
        assert a.end() == 0
        story = node.gpushare("explain", "A").stdout
        assert "is not suspended" not in story and "SIGTERM" not in story
