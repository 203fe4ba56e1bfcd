"""Jobs that are idle for longer than the policy lets them: real programs, the real daemon, one software GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.node import GIB, MIB, Node, wait_for

POLICY = """
[daemon]
idle_exit = 3600
[memory]
sample_interval = "200ms"
[policy]
idle_release = "2s"
"""
COMPUTES = str(Path(__file__).with_name("computes.py"))


@pytest.fixture
def node(tmp_path: Path, puppets: Path) -> Iterator[Node]:
    with Node(tmp_path, puppets) as one:
        one.start_daemon(POLICY)
        yield one


def events(node: Node, name: str) -> list[str]:
    return [record["event"] for record in node.api("GET", f"/v1/jobs/{name}/story").get("story", [])]


def test_one_that_borrows_nothing_gives_its_cache_back_and_has_it_again(node: Node) -> None:
    a = node.puppet("A", "--limit", "10Gi")
    a.alloc(2 * GIB)
    a.do(f"cache {512 * MIB} 10")
    assert node.job("A")["gpus"][0]["usage"] > 7 * GIB
    wait_for(lambda: "idle_gave" in events(node, "A"), "A to be idle for long")
    assert node.job("A")["gpus"][0]["usage"] < 3 * GIB and node.job("A")["state"] == "idle"
    assert "idle" in node.gpushare("ps").stdout
    assert "has not computed for 2 s" in node.gpushare("explain", "A").stdout
    b = node.puppet("B", "--request", "none", "--limit", "max", "--on-reclaim", "kill")
    b.alloc(10 * GIB)
    a.alloc(6 * GIB)
    assert b.wait() == 137, "what A had lent is A's own"
    assert node.job("A")["state"] == "running" and "active" in events(node, "A")
    assert a.end() == 0
    assert "this job has not computed for 2 s: 5.0 GiB that its programs only kept are lent to others now" in a.errors()


def test_one_that_frees_and_takes_as_much_again_is_not_idle(node: Node) -> None:
    """It uses the same whenever the daemon looks, and computes nothing."""
    idle = node.puppet("idle", "--limit", "2Gi")
    busy = node.puppet("busy", "--limit", "2Gi")
    while "idle" not in events(node, "idle"):
        busy.alloc(256 * MIB)
        busy.do("free last")
    assert "idle" not in events(node, "busy")
    wait_for(lambda: "idle" in events(node, "busy"), "it to be idle, too")
    busy.alloc(256 * MIB)
    busy.do("free last")
    wait_for(lambda: "active" in events(node, "busy"), "it to be seen again")
    assert (busy.end(), idle.end()) == (0, 0)


def test_one_that_computes_is_never_idle(node: Node) -> None:
    node.run("--name", "busy", "--limit", "2Gi", sys.executable, COMPUTES, 1)
    idle = node.puppet("idle", "--limit", "2Gi")
    wait_for(lambda: events(node, "idle").count("idle") == 1, "the other one to be idle")
    began = node.job("busy")["gpus"][0]["gpu_time"]
    wait_for(lambda: node.job("busy")["gpus"][0]["gpu_time"] > began + 1.5, "it to compute for more than two seconds")
    assert "idle" not in events(node, "busy")
    assert idle.end() == 0
