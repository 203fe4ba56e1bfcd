"""Two claims lend on one GPU: programs with what their CDI files say, in the cgroups of their pods."""

from __future__ import annotations

import pytest
from claims import budget
from enforced_stage import Program, enforced_node
from kube_stage import until

MIB = 2**20
OUT_OF_MEMORY = 2


@pytest.fixture
def cluster():
    """The node, with cgroups that are real."""
    with enforced_node() as node:
        node.refresh()
        yield node


@pytest.fixture
def program(cluster):
    made: list[Program] = []

    def start(*arguments, **more):
        made.append(Program(cluster, *arguments, **more))
        return made[-1]

    yield start
    for one in made:
        one.end()


def test_a_borrower_gives_way_when_the_owner_comes_and_its_claim_says_so(cluster, program):
    cluster.claim("owner", "2Gi")
    cluster.claim("other", "1Gi", config=[budget(limit="3Gi", grace="1s", onReclaim=["term"])])
    answers = cluster.kubelet.prepare("owner", "other")
    assert [answer.error for answer in answers.values()] == ["", ""]
    borrower = program("other")
    assert borrower.do("total") == 3072
    assert borrower.do(2200) == 0, "1 GiB of its own, the rest on loan"
    used = {one["job"]["name"]: one["job"] for one in cluster.placed()}
    assert used["team-a/claim-other"]["gpus"][0]["loan"] > 1000 * MIB
    owner = program("owner")
    assert owner.do("total") == 2048
    assert owner.do(1700) == 0, "its own memory, within the grace"
    assert borrower.process.wait(30) == -15
    assert owner.do(1000) == OUT_OF_MEMORY, "above its limit"


def test_what_a_pod_writes_into_its_environment_changes_nothing(cluster, program):
    cluster.claim("c-1", "512Mi", config=[budget(limit="1Gi")])
    cluster.kubelet.prepare("c-1")
    said = {"GPUSHARE_LIMIT": "4Gi", "GPUSHARE_REQUEST": "4Gi", "GPUSHARE_MODE": "off", "LD_PRELOAD": ""}
    first = program("c-1", **said)
    assert first.do("total") == 1024
    inside = ("env", "GPUSHARE_LIMIT=max", "GPUSHARE_REQUEST=3Gi", "GPUSHARE_JOB=00000000000000ee")
    second = program("c-1", *inside)
    assert (second.do("total"), second.do(1500)) == (1024, OUT_OF_MEMORY)
    assert len(cluster.client.jobs()) == 1, "both programs are the claim's"
    assert second.do(400) == 0 and first.do(400) == OUT_OF_MEMORY, "and share its limit"


def test_a_program_in_a_container_cannot_reach_the_daemons_api(cluster):
    cluster.claim("c-1")
    cluster.kubelet.prepare("c-1")
    look = cluster.container("c-1", ["find", "/run/gpushare", "-printf", "%P %y\n"])
    out, err = look.communicate(timeout=30)
    assert out.split("\n") == [" d", "shim.sock s", ""], err


def test_everything_is_killed_and_started_again_and_the_limit_holds(cluster, program):
    cluster.claim("c-1", "512Mi", config=[budget(limit="1Gi")])
    first = cluster.kubelet.prepare("c-1")
    runs = program("c-1")
    assert runs.do(100) == 0
    for process in (cluster.daemon, cluster.plugin):
        cluster.kill(process)
    cluster.api.stop()
    cluster.start_daemon()
    cluster.start_plugin()
    cluster.kubelet.register()
    assert cluster.kubelet.prepare("c-1") == first
    assert (runs.do(100), runs.do(900)) == (0, OUT_OF_MEMORY)
    fresh = program("c-1")
    assert (fresh.do("total"), fresh.do(900)) == (1024, OUT_OF_MEMORY), "through the socket that the daemon made again"
    said = cluster.kubelet.unprepare("c-1")["c-1"]
    assert said.startswith("claim team-a/claim-c-1: programs of kubernetes/c-1/"), "they still run"
    for one in (runs, fresh):
        one.end()
    until(lambda: cluster.kubelet.unprepare("c-1") == {"c-1": ""}, "it to be unprepared")
    assert cluster.leftovers() == []
