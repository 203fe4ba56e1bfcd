"""A GPU falls ill under jobs: they are told, the next one goes elsewhere, and a GPU that is well is used again."""

from __future__ import annotations

import re

from integration.node import GIB, Node, wait_for

OFTEN = '[daemon]\nhealth_interval = "0.2s"\n'
LAUNCH_FAILED = "719"


def befall(node: Node, line: str) -> None:
    with (node.directory / "pool" / "health").open("a") as file:
        file.write(f"{line}\n")


def test_a_job_on_a_lost_gpu_is_told_and_the_next_goes_to_the_other(two_gpus: Node) -> None:
    node = two_gpus
    node.start_daemon(OFTEN)
    a = node.puppet("A", "--request", "4Gi")
    a.alloc(GIB)
    assert node.job("A")["gpus"][0]["index"] == 0
    befall(node, "gpu0 xid 79")
    wait_for(lambda: "Xid 79" in str(node.gpu(0)["health"]), "the daemon to hear of it")
    assert a.try_(f"alloc {GIB}")[0] == "error"

    b = node.puppet("B", "--request", "4Gi")
    b.alloc(GIB)
    assert node.job("B")["gpus"][0]["index"] == 1
    refused = node.gpushare("run", "--gpus", "2", "--request", "1Gi", "true")
    assert refused.returncode == 125
    assert "asked for 2 GPUs, and 1 of these can be used" in refused.stderr
    assert "lost: Xid 79, it has fallen off the bus" in refused.stderr

    shown = node.gpushare("status").stdout
    assert "GPU 0 is lost: Xid 79, it has fallen off the bus" in shown
    assert "hint: restart the machine" in shown
    assert "GPU 0 is lost" in node.gpushare("explain", "A").stdout
    assert 'state="lost"} 1.0' in node.metrics()
    a.end()
    told = a.errors()
    # Once, by whichever came first: the report of the driver, or a question that it no longer answered.
    assert len(re.findall("^gpushare: GPU 0 is lost: (Xid 79, )?it has fallen off the bus$", told, re.MULTILINE)) == 1
    assert "started again it gets another GPU" in told
    assert b.end() == 0

    befall(node, "gpu0 reset")
    wait_for(lambda: node.gpu(0)["health"]["state"] == "ok", "the GPU to be well again")
    both = node.gpushare("run", "--gpus", "2", "--request", "1Gi", "true")
    assert both.returncode == 0, both.stderr


def test_on_a_sick_gpu_a_job_goes_on_within_its_request(two_gpus: Node) -> None:
    node = two_gpus
    node.start_daemon(OFTEN)
    a = node.puppet("A", "--request", "4Gi", "--limit", "12Gi")
    a.alloc(GIB)
    befall(node, "gpu0 rows failed")
    wait_for(lambda: node.gpu(0)["health"]["state"] == "sick", "the daemon to find it")
    a.alloc(2 * GIB)
    assert a.try_(f"alloc {4 * GIB}")[0] == "error"
    assert a.end() == 0
    told = a.errors()
    assert "GPU 0 is sick: a row of its memory could not be remapped" in told
    assert "nothing is lent on it" in told


def test_an_error_of_a_program_changes_nothing(node: Node) -> None:
    node.start_daemon(OFTEN)
    a = node.puppet("A", "--request", "4Gi")
    befall(node, "gpu0 xid 31")
    wait_for(lambda: "Xid 31, GPU memory page fault" in node.gpushare("explain", "A").stdout, "its story")
    assert node.gpu()["health"]["state"] == "ok"
    a.alloc(GIB)
    assert a.end() == 0
    assert "Xid" not in a.errors()


def test_a_gpu_that_is_taken_out_and_put_back(two_gpus: Node) -> None:
    """NVML looks for GPUs when it is initialised: the daemon does that again while one is missing."""
    node = two_gpus
    node.start_daemon(OFTEN)
    befall(node, "gpu0 removed")
    wait_for(lambda: any("no longer in this machine" in str(gpu["health"]) for gpu in _gpus(node)), "it to be gone")
    a = node.puppet("A", "--request", "4Gi")
    a.alloc(GIB)
    assert a.end() == 0
    befall(node, "gpu0 reset")
    wait_for(lambda: {gpu["health"]["state"] for gpu in _gpus(node)} == {"ok"}, "it to be back")
    assert sorted(gpu["index"] for gpu in _gpus(node)) == [0, 1]
    befall(node, "gpu1 xid 95")
    wait_for(lambda: node.gpu(1)["health"]["state"] == "sick", "the daemon to listen again")


def test_a_gpu_shrinks_under_its_jobs(node: Node) -> None:
    node.start_daemon(OFTEN)
    a = node.puppet("A", "--request", "12Gi")
    a.alloc(8 * GIB)
    befall(node, "gpu0 memory 10Gi")
    wait_for(lambda: node.gpu()["total"] == 10 * GIB, "the daemon to see it")
    gpu = node.gpu()
    assert gpu["health"]["state"] == "degraded"
    assert gpu["health"]["shortfall"] == gpu["requested"] - gpu["capacity"]
    assert "short of its guarantees: 12.0 GiB requested" in node.gpushare("status").stdout
    assert node.gpushare("run", "--request", "1Gi", "true").returncode == 125
    befall(node, "gpu0 memory 16Gi")
    wait_for(lambda: node.gpu()["health"]["state"] == "ok", "the daemon to see it")
    a.alloc(3 * GIB)
    assert a.end() == 0


def _gpus(node: Node) -> list[dict]:
    return list(node.api("GET", "/v1/status")["gpus"])
