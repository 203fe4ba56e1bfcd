"""Caches come back before anybody is stopped: real programs, the real daemon, the real shim, one software GPU."""

from __future__ import annotations

import time

from integration.node import GIB, MIB, Node, wait_for


def test_a_cache_is_given_back_and_nobody_is_asked_to_stop(node: Node) -> None:
    a = node.puppet("A", "--request", "2Gi", "--limit", "14Gi")
    a.alloc(2 * GIB)
    a.do(f"cache {512 * MIB} 20")
    assert node.job("A")["gpus"][0]["usage"] > 12 * GIB
    b = node.puppet("B", "--request", "8Gi")
    waited = [b.alloc(2 * GIB), b.alloc(5 * GIB)]
    assert max(waited) < 1000, "no grace was waited for"
    told = [record["event"] for record in node.api("GET", "/v1/jobs/A/story")["story"]]
    assert "trimmed" in told
    assert "term" not in told
    assert 'gpushare_claim_wait_seconds_count{step="trim"} 1.0' in node.metrics()
    assert a.end() == 0
    assert "asked" not in a.errors(), "its user has lost nothing, and is not disturbed"
    assert b.end() == 0


def test_who_has_no_cache_loses_no_time_to_it(node: Node) -> None:
    a = node.puppet("A", "--request", "2Gi", "--limit", "14Gi", "--grace", "300ms")
    a.do("term ignore")
    for _ in range(12):
        a.alloc(GIB)
    b = node.puppet("B", "--request", "8Gi")
    waited = b.alloc(6 * GIB)
    assert 300 <= waited < 1300, "the grace, and not the time for trims on top of it"
    assert a.wait() == 137
    assert b.end() == 0


def test_a_job_that_wants_no_notice_gets_none(node: Node) -> None:
    a = node.puppet("A", "--limit", "14Gi", "--request", "none", "--on-reclaim", "kill")
    a.do("term ignore")
    a.do(f"cache {512 * MIB} 24")
    b = node.puppet("B", "--request", "8Gi")
    assert b.alloc(6 * GIB) < 1000
    assert a.wait() == 137
    assert b.end() == 0


def test_pressure_is_shown_while_a_claim_waits(node: Node) -> None:
    a = node.puppet("A", "--request", "2Gi", "--limit", "14Gi", "--grace", "2s")
    a.do("term ignore")
    for _ in range(12):
        a.alloc(GIB)
    b = node.puppet("B", "--request", "8Gi")
    b.send(f"alloc {6 * GIB}")
    wait_for(lambda: node.job("A")["state"] == "asked_back", "A to be asked")
    time.sleep(1.0)
    (gpu,) = node.api("GET", "/v1/pressure")["gpus"]
    assert 0.9 < gpu["some"]["total"] < 3.0
    assert 0 < gpu["some"]["avg300"] < gpu["some"]["avg10"] < 1
    assert gpu["full"]["total"] == 0, "A could go on"
    assert b.answer()[0] == "ok"
    lines = node.gpushare("events", "-o", "jsonl").stdout.splitlines()
    assert any('"event": "term"' in line for line in lines)
    assert b.end() == 0
