"""`gpushare explain` answers, from the story: who held what when, who was asked for what, and what ends a wait."""

from __future__ import annotations

import json

from integration.node import GIB, Node, wait_for


def test_who_waits_for_what_who_holds_it_and_what_would_end_the_wait(node: Node) -> None:
    a = node.puppet("train", "--request", "4Gi", "--limit", "14Gi", "--grace", "4s")
    a.do("term ignore")
    a.alloc(12 * GIB)
    b = node.puppet("serve", "--request", "8Gi")
    assert "no job waits for memory" in node.gpushare("explain").stdout
    b.send(f"alloc {7 * GIB}")
    late = node.run("--name", "late", "--request", "6Gi", "--wait", "60s", "true")
    wait_for(lambda: node.job("late").get("state") == "queued", "the third to queue")
    wait_for(lambda: node.job("train")["state"] == "asked_back", "train to be asked")

    said = node.gpushare("explain").stdout
    assert "for 7.0 GiB of GPU 0, which is within its request" in said
    assert "train (" in said
    assert "of it on loan" in said
    assert "train was asked with SIGTERM" in said
    assert "hint: it goes on when train gives" in said
    assert "queued" in said
    assert "for a request of 6.0 GiB" in said
    assert "it starts when jobs that hold requests end" in said
    assert "owners have waited" in said, "the stall time of the GPU"
    own = node.gpushare("explain", "serve").stdout
    assert own.startswith("job serve (")
    assert "waiting" in own.splitlines()[0]
    assert "hint: it goes on when train gives" in own
    assert "late (" not in own, "others' waits are not its story"
    found = json.loads(node.gpushare("explain", "-o", "json").stdout)
    assert [(one["name"], one["code"]) for one in found["waiting"]] == [
        ("serve", "claim_waits"),
        ("late", "not_admitted"),
    ]
    assert found["waiting"][0]["data"]["cause"] == "grace"

    assert b.answer()[0] == "ok"
    assert a.wait() == 137
    assert late.wait(30) == 0, "train's request is free again"
    assert "no job waits for memory" in node.gpushare("explain").stdout

    story = node.gpushare("explain", "train").stdout
    assert "ended" in story.splitlines()[0]
    assert "used 12." in story, "at most"
    assert "to return borrowed memory: 7.0 GiB owed to" in story
    for said in (
        "admitted on GPU 0 (4.0 GiB requested, limit 14.0 GiB)",
        "asked with SIGTERM to give back: serve wants 7.0 GiB of GPU 0, and this job has 8.",
        "killed: its grace of 4 s is over, and its loan of 8.",
        "it was killed",
        "the job is over",
    ):
        assert said in story, said
    owner = node.gpushare("explain", "serve").stdout
    assert "waits for 7.0 GiB on GPU 0, which is within its request; " in owner
    assert "claim of 7.0 GiB on GPU 0 met after 4." in owner
    assert "by kill" in owner
    queued = node.gpushare("explain", "late").stdout
    assert "no room for a request of 6.0 GiB on GPU 0" in queued
    assert queued.index("no room") < queued.index("admitted on GPU 0")
    assert "ended after" in queued
    assert "exit 0" in queued
    assert b.end() == 0


def test_what_a_job_could_get_now_has_the_credit_that_it_has_and_does_not_use(node: Node) -> None:
    a = node.puppet("train", "--request", "2Gi", "--limit", "14Gi")
    a.alloc(10 * GIB)
    a.do("free all")
    most = node.job("train")["gpus"][0]
    assert most["grantable"] >= 10 * GIB and "could get 1" in node.gpushare("explain", "train").stdout
    a.alloc(most["grantable"] // GIB * GIB)
    assert node.job("train")["gpus"][0]["grantable"] < GIB
    assert a.end() == 0
