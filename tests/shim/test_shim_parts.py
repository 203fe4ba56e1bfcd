"""Single parts of the library, each in a program of its own with everything that it calls made up.

So a part meets what the software driver never does: a driver that fails, or says something else than before; another
thread between any two steps; a table that is full. The programs see what a part keeps, and count its locks.
"""

from __future__ import annotations

import subprocess

import pytest

PARTS = (
    *("packet", "device", "graph_pool", "pool", "limit", "copies", "stream", "entry", "symbols", "loader"),
    *("block", "charge", "linear", "async", "account", "python"),
    *("gate", "client", "array", "vmm", "trim", "info", "context", "graph", "nvml", "borrower", "thread"),
)
STRICT = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.mark.parametrize("part", PARTS)
def test_a_part_by_itself(compile_c, part) -> None:
    program = compile_c(f"part_{part}.c", *STRICT)
    done = subprocess.run([program], capture_output=True, text=True, timeout=30, env={})
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr
