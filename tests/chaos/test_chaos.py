"""A few rounds of chaos in the ordinary run; `make chaos ROUNDS=2000 SEED=1` plays as many as one wants."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chaos.__main__ import play

SEED = int(os.environ.get("GPUSHARE_TEST_SEED", "1"))
SECONDS = 15.0


@pytest.mark.timeout(180)
def test_a_little_chaos(tmp_path: Path) -> None:
    """As many of forty rounds as a busy machine gets to in its time, and nothing at fault."""
    chaos = play(tmp_path, 40, SEED, SECONDS)
    again = f"make chaos ROUNDS={chaos.round} SEED={SEED}"
    assert not chaos.faults, "\n".join([*chaos.history, *map(str, chaos.faults), f"logs: {tmp_path}", again])
    assert chaos.round >= 10
    assert chaos.counts["allocated"] > 0
