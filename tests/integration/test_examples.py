"""The examples that people copy do what they say, on the software driver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from integration.node import ROOT, Node

EXAMPLES = ROOT / "examples"


@pytest.fixture
def at_home(node: Node) -> Node:
    """With `gpushare` and `python` to be found."""
    node.put_commands_on_path()
    return node


def loss(steps: int, rate: float) -> float:
    found = 1.0
    for _ in range(steps):
        found *= 1 - rate
    return found


def test_a_sweep_of_more_runs_than_fit(at_home: Node, tmp_path: Path) -> None:
    """Ten runs of 2 GiB on a GPU that has room for seven of them."""
    out = tmp_path / "out"
    done = subprocess.run(
        ["sh", str(EXAMPLES / "sweep.sh"), str(out)],
        env=at_home.env | {"RUNS": "10", "STEPS": "30"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    assert found == {f"run-{n}": {"step": 30, "loss": loss(30, float(f"0.0{n}"))} for n in range(1, 11)}
    assert "waiting until there is room" in done.stderr, "not all fit at once"


def test_training_gives_way_to_the_server_and_loses_nothing(at_home: Node, tmp_path: Path) -> None:
    out = tmp_path / "out"
    at_home.start_daemon()
    story = subprocess.Popen(
        ["sh", str(EXAMPLES / "beside_inference.sh"), str(out)],
        env=at_home.env | {"QUIET": "4", "STEPS": "700"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    told, warned = story.communicate(timeout=100)
    assert story.returncode == 0, warned
    assert "took 7.0 GiB" in told, "the server has its memory"
    assert "training: stopped at step" in told
    assert json.loads((out / "training.json").read_text()) == {"step": 700, "loss": loss(700, 0.02)}
    assert "killed" not in warned


def test_the_rules_of_two_teams_are_taken(tmp_path: Path) -> None:
    text = (EXAMPLES / "two-teams.toml").read_text()
    there = tmp_path / "two-teams.toml"
    group = subprocess.run(["id", "-gn"], capture_output=True, text=True, check=True).stdout.strip()
    there.write_text(
        text.replace("groups.vision", f"groups.{group}").replace("[policy.groups.speech]", "[policy.groups.daemon]")
    )
    command = [sys.executable, "-m", "gpushared", "--check-config", "--config", str(there)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_example_with_pytorch_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    """On the CPU: the software driver computes nothing."""
    pytest.importorskip("torch", reason="needs PyTorch, which is large")
    whole, parts = tmp_path / "whole.pt", tmp_path / "parts.pt"

    def train(checkpoint: Path, steps: int) -> str:
        command = [sys.executable, str(EXAMPLES / "torch_training.py"), str(checkpoint)]
        command += ["--steps", str(steps), "--device", "cpu"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    last = train(whole, 120).splitlines()[-1]
    train(parts, 70)
    assert train(parts, 120).splitlines() == ["from step 70", last]


def test_each_example_is_named_in_the_list() -> None:
    named = (EXAMPLES / "README.md").read_text()
    files = [path.name for path in EXAMPLES.iterdir() if path.is_file() and path.name != "README.md"]
    assert [name for name in files if f"`{name}`" not in named] == []
