"""A few rounds of chaos in the ordinary run; `make chaos ROUNDS=2000 SEED=1` plays as many as one wants."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from chaos.__main__ import build, play
from chaos.stage import Stage

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


def test_what_a_daemon_has_noted_is_judged_once_though_its_successor_tells_it_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, build(tmp_path), gpus=1, memory="1Gi", claim_timeout=5.0)
    try:
        stage.start_daemon()
        [gpu] = stage.index
        body = {"name": "a", "command": ["a"], "gpus": 1, "devices": [gpu], "request": "none", "limit": "512Mi"}
        job = stage.api("POST", "/v1/jobs", body)["id"]
        _wait_for(stage, "admitted")
        stage.stop_daemon(signal.SIGTERM)
        stage.start_daemon()
        stage.call("POST", f"/v1/jobs/{job}/checkpointed")
        _wait_for(stage, "checkpointed")
        times = Counter(one.event for one in stage.records)
        assert (times["admitted"], times["gpu"], times["restored"]) == (1, 2, 1), times
    finally:
        stage.close()


def _wait_for(stage: Stage, event: str) -> None:
    stage.pump(lambda: any(one.event == event for one in stage.records), 10.0, f"a record of '{event}'")
