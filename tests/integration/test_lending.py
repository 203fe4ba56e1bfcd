"""The lending story with real processes, the real daemon and the real shim, on one software GPU of 16 GiB."""

from __future__ import annotations

import json
import re
from pathlib import Path

from integration.node import GIB, MIB, Node, Puppet, wait_for

OUT_OF_MEMORY = "2"


def test_a_borrower_that_does_nothing_is_killed_and_told_why(node: Node, tmp_path: Path) -> None:
    a = node.puppet("A", "--request", "4Gi", "--limit", "14Gi", "--grace", "1s", "--report", tmp_path / "a.json")
    a.do("term ignore")
    for _ in range(12):
        a.alloc(GIB)
    loan = node.job("A")["gpus"][0]["loan"]
    assert 8 * GIB <= loan <= 9 * GIB

    b = node.puppet("B", "--request", "8Gi")
    refused = node.gpushare("run", "--name", "C", "--request", "6Gi", "true")
    assert refused.returncode == 125
    assert "no room for a request of 6.0 GiB" in refused.stderr
    assert "B (" in refused.stderr
    assert "8.0 GiB" in refused.stderr
    assert "--wait" in refused.stderr

    b.alloc(2 * GIB)
    assert node.job("A")["state"] == "borrowing"
    assert a.try_("info")[0] == "ok"

    b.send(f"alloc {5 * GIB}")
    wait_for(lambda: node.job("A")["state"] == "asked_back", "A to be asked")
    answer = b.answer()
    assert answer[0] == "ok", "B's call returns success, never out-of-memory"
    assert float(answer[2]) > 900, "after A's grace of 1 s"
    assert a.wait() == 137
    told = a.errors()
    assert "was stopped to return borrowed memory (exit 137)" in told
    assert re.search(r"owed +5\.0 GiB to B \(.+\) at ", told)
    assert "5.0 GiB" in told
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["outcome"]["killed"]["owner"] == "B"
    assert b.end() == 0


def test_a_borrower_that_gives_back_in_time_lives_on(node: Node) -> None:
    a = node.puppet("A", "--request", "4Gi", "--limit", "14Gi")
    for _ in range(12):
        a.alloc(GIB)
    a.do("term free 6")
    b = node.puppet("B", "--request", "8Gi")
    b.alloc(2 * GIB)
    assert b.alloc(5 * GIB) < 2000
    assert a.do("info")
    assert node.job("A")["state"] in {"running", "borrowing"}
    assert a.end() == 0
    assert b.end() == 0


def test_a_loan_never_evicts_anyone(node: Node) -> None:
    a = node.puppet("A", "--request", "1Gi", "--limit", "15Gi")
    a.alloc(10 * GIB)
    b = node.puppet("B", "--request", "1Gi", "--limit", "15Gi")
    answer = b.try_(f"alloc {8 * GIB}")
    assert answer[:2] == ["error", OUT_OF_MEMORY]
    assert float(answer[2]) < 1000, "a loan is refused at once"
    assert node.job("A")["state"] == "borrowing"
    assert b.end() == 0
    told = b.errors()
    assert "cannot allocate" in told
    assert "A (" in told
    assert a.end() == 0


def test_of_two_borrowers_the_one_whose_loan_covers_it_alone_goes(node: Node) -> None:
    small = node.puppet("small", "--request", "1Gi", "--limit", "15Gi", "--grace", "200ms")
    large = node.puppet("large", "--request", "1Gi", "--limit", "15Gi", "--grace", "200ms")
    within = node.puppet("within", "--request", "1Gi", "--limit", "15Gi", "--grace", "200ms")
    small.alloc(2 * GIB)
    large.alloc(8 * GIB)
    within.alloc(0.25 * GIB)
    # Far more than small's loan, whatever contexts are charged while they are being measured.
    owner = node.puppet("owner", "--request", "8Gi")
    owner.alloc(7 * GIB)
    assert large.wait() in {137, 143}
    assert small.end() == 0
    assert within.end() == 0
    assert owner.end() == 0


def test_nobody_is_killed_when_killing_cannot_help(node: Node, puppets: Path) -> None:
    node.start_daemon('[reclaim]\nclaim_timeout = "2s"\n')
    b = node.puppet("B", "--request", "8Gi")
    a = node.puppet("A", "--request", "2Gi", "--limit", "4Gi", "--grace", "100ms")
    a.alloc(3 * GIB)
    outsider = Puppet("outsider", node.spawn([str(puppets / "puppet-dlopen")], LD_LIBRARY_PATH=str(node.drivers)))
    outsider.do("open 0")
    outsider.alloc(10 * GIB)
    wait_for(lambda: node.gpu()["unmanaged"] > 10 * GIB, "NVML to show the outsider")
    assert b.try_(f"alloc {7 * GIB}")[:2] == ["error", OUT_OF_MEMORY]
    assert a.end() == 0
    assert b.end() == 0
    assert "outside gpushare" in b.errors()


def test_a_limit_refuses_with_one_clear_line(node: Node) -> None:
    a = node.puppet("A", "--request", "4Gi", "--limit", "14Gi")
    assert a.try_(f"alloc {15 * GIB}")[:2] == ["error", OUT_OF_MEMORY]
    assert a.end() == 0
    told = a.errors()
    assert told.count("cannot allocate") == 1
    assert "over this job's limit" in told
    assert "14.0 GiB" in told


def test_the_limit_is_the_jobs_not_the_process(node: Node, puppets: Path) -> None:
    orders = f"(echo open 0; echo alloc {2 * GIB}; sleep 1; echo quit)"
    script = f"for i in 1 2 3; do {orders} | {puppets}/puppet-dlopen & done; wait"
    job = node.run("--name", "three", "--limit", "6Gi", "sh", "-c", script)
    out, _ = job.communicate(timeout=30)
    answers = [line.split()[0] for line in out.splitlines() if len(line.split()) > 1]
    assert sorted(answers) == ["error", "ok", "ok"]
    assert job.returncode == 0


def test_the_same_pair_on_each_of_two_gpus(two_gpus: Node) -> None:
    a = two_gpus.puppet("A", "--gpus", "2", "--limit", "6Gi")
    assert a.do("info")[1] == str(6 * GIB)
    a.alloc(5 * GIB)
    a.do("open 1")
    assert a.do("info")[1] == str(6 * GIB)
    a.alloc(5 * GIB)
    assert a.try_(f"alloc {GIB}")[:2] == ["error", OUT_OF_MEMORY]
    usages = [gpu["usage"] for gpu in two_gpus.job("A")["gpus"]]
    assert all(5 * GIB <= usage <= 6 * GIB for usage in usages)
    assert a.end() == 0


def test_a_waiting_job_gets_the_place_of_one_that_ends(node: Node) -> None:
    a = node.puppet("A", "--request", "12Gi")
    waiting = node.run("--name", "late", "--request", "8Gi", "--wait", "20s", "true")
    wait_for(lambda: any(job["state"] == "queued" for job in node.api("GET", "/v1/jobs")["jobs"]), "it to queue")
    assert a.end() == 0
    assert waiting.wait(20) == 0


def test_usage_told_to_the_program_agrees(node: Node) -> None:
    a = node.puppet("A", "--request", "4Gi", "--limit", "14Gi")
    free, total = map(int, a.do("info"))
    assert total == 14 * GIB
    assert int(a.do("total 0")[0]) == total
    a.alloc(3 * GIB)
    free_after, _ = map(int, a.do("info"))
    assert free - free_after == 3 * GIB
    a.do("free all")
    assert int(a.do("info")[0]) == free
    assert a.end() == 0


def test_growth_costs_at_most_one_round_trip_per_64_mib(node: Node) -> None:
    a = node.puppet("A", "--limit", "8Gi")
    before = asks(node)
    for _ in range(512):
        a.alloc(2 * MIB)
    assert asks(node) - before <= 1024 // 64 + 1
    between = asks(node)
    a.do("free all")
    for _ in range(512):
        a.alloc(2 * MIB)
    assert asks(node) == between, "what was granted once is there again without asking"
    assert a.end() == 0


def asks(node: Node) -> int:
    """How often any process has asked the daemon for credit."""
    line = next(line for line in node.metrics().splitlines() if line.startswith("gpushare_round_trips_total"))
    return int(float(line.split()[-1]))
