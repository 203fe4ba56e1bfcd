"""The demo of the queue plays to its end, and leaves nothing behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from gpushare.demo_queue import Stage, lost_nothing
from gpushare.paths import SYSTEM_DIR, library


def test_the_demo_of_the_queue_tells_its_story(monkeypatch, capfd) -> None:
    if not library().exists():
        pytest.skip(f"{library()} is not built")
    if SYSTEM_DIR.exists():
        pytest.skip("a system daemon's directory exists on this machine and comes first")
    monkeypatch.setattr(Stage, "runs", 2)
    monkeypatch.setattr(Stage, "steps", {"ada": 100_000, "ben": 10})
    with tempfile.TemporaryDirectory(prefix="gpushare-demo-") as directory:  # pytest's own are too long for a socket
        stage = Stage(Path(directory))
        try:
            stage.start_service()
            status = stage.play()
        finally:
            stage.clear()
        left = list((Path(directory) / "state" / "gpushare" / "cluster.db.local" / "tasks").iterdir())
    said = capfd.readouterr().out
    assert status == 0, said
    assert "stopped at step" in said and "--- attempt 2 ---" in said and "That went wrong" not in said
    shown = [line.partition("$ gpushare ")[2].split() for line in said.splitlines() if "$ gpushare " in line]
    told = [" ".join(words[:2] if words[0] == "queue" else words[:1]) for words in shown]
    shares = ["queue", "queue --shares"]
    assert told == ["submit", "submit", "queue", "submit", *shares, "logs", "queue --all", "cancel"]
    assert stage.service is not None and stage.service.returncode == 0
    assert left == []


def test_a_run_that_began_again_is_told_from_one_that_went_on() -> None:
    first = "a1: from step 0\na1: stopped at step 86, saved\n--- attempt 2 ---\n"
    assert lost_nothing(f"{first}a1: from step 86\n")
    assert not lost_nothing(f"{first}a1: from step 0\n")
    assert not lost_nothing("a1: from step 0\n")
    assert not lost_nothing("a1: from step 0\na1: stopped at step 0, saved\n")
