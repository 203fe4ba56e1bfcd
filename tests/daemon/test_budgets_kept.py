"""A budget: given in shares of a GPU, shown after a change, compared with the peak, found again by a later daemon."""

from __future__ import annotations

import pytest
from daemon_harness import GIB, GPU, GPU2, until

from gpushare._layout import lib
from gpushared.clients.ledger import RECORD_BYTES, TERMS_AT


@pytest.mark.parametrize(
    ("request_share", "limit_share", "expected"),
    [("0.25", "0.5", (4 * GIB, 8 * GIB)), ("0.5", None, (8 * GIB, 8 * GIB)), (None, "0.25", (4 * GIB, 4 * GIB))],
)
def test_shares_are_of_the_gpu_that_the_program_opens(daemon, request_share, limit_share, expected):
    shim = daemon.connect()
    assert shim.hello(request=request_share, limit=limit_share).status == lib.GS_OK
    assert shim.attach(GPU).status == lib.GS_OK
    line = shim.page.line[0]
    assert (line.request * 512, line.limit * 512) == expected
    shim.close()


def test_a_job_sees_its_new_budget_when_the_change_is_answered(daemon, monkeypatch):
    """It need not wait until the figures of all jobs are published again."""
    job = daemon.client.register({"name": "a", "command": ["a"], "request": "4Gi", "limit": "8Gi", "gpus": 1})
    shim = daemon.connect()
    assert shim.hello(job["id"], request=4 * GIB, limit=8 * GIB).status == lib.GS_OK
    assert shim.attach(GPU).status == lib.GS_OK
    line = shim.page.line[0]
    until(lambda: line.limit * 512 == 8 * GIB)
    monkeypatch.setattr("gpushared.runtime.publisher.PUBLISH_EVERY", 3600.0)
    daemon.client.change(job["id"], {"request": "5Gi", "limit": "9Gi"})
    assert (line.request * 512, line.limit * 512) == (5 * GIB, 9 * GIB)
    shim.close()


def test_a_peak_between_two_looks_is_in_the_report(make_daemon, program):
    """It came and went while nobody looked, and the program is gone when somebody asks."""
    daemon = make_daemon(sample_interval=3600.0)
    job = daemon.client.register({"name": "a", "command": ["a"], "request": "4Gi", "limit": "8Gi", "gpus": 1})
    one = program(daemon.shim)
    assert one.call("hello", job["id"], request=4 * GIB, limit=8 * GIB)["status"] == lib.GS_OK
    assert one.call("attach", GPU)["status"] == lib.GS_OK
    one.call("allocate", 6 * GIB)
    one.call("free", 6 * GIB)
    one.close()
    until(lambda: daemon.call(lambda: len(list(daemon.shell.clients)) == 0))
    assert daemon.client.end(job["id"], 0, None)["outcome"]["peak"][GPU] >= 6 * GIB


def test_what_two_processes_used_side_by_side_is_the_peak_though_nobody_asked_then(make_daemon, program):
    daemon = make_daemon(sample_interval=0.1)
    job = daemon.client.register({"name": "a", "command": ["a"], "request": "4Gi", "limit": "8Gi", "gpus": 1})
    both = [program(daemon.shim) for _ in range(2)]
    for one in both:
        assert one.call("hello", job["id"], request=4 * GIB, limit=8 * GIB)["status"] == lib.GS_OK
        assert one.call("attach", GPU)["status"] == lib.GS_OK
        one.call("allocate", 2 * GIB)
    until(lambda: daemon.call(lambda: daemon.shell.registry.get(job["id"]).totals.peak.get(GPU, 0)) >= 4 * GIB)
    for one in both:
        one.call("free", 2 * GIB)
        one.close()
    assert daemon.client.end(job["id"], 0, None)["outcome"]["peak"][GPU] >= 4 * GIB


@pytest.mark.parametrize("gpus", [(GPU,), (GPU, GPU2)], ids=["one", "two"])
def test_without_notes_and_terms_a_job_keeps_what_its_pages_say(node, program, gpus):
    """As an older daemon left it."""
    node.start()
    one = program(node.shim)
    welcome = one.call("hello", request=2 * GIB, limit=6 * GIB)
    for gpu in gpus:
        assert one.call("attach", gpu)["status"] == lib.GS_OK
    one.call("allocate", GIB)
    node.kill()
    (node.directory / "state.json").unlink(missing_ok=True)
    with (node.directory / "ledger").open("r+b") as ledger:
        ledger.seek(TERMS_AT)
        ledger.write(bytes(RECORD_BYTES - TERMS_AT))
    node.start()
    shown = {gpu["uuid"]: gpu for gpu in node.client.job(f"{welcome['job_id']:016x}")["gpus"]}
    assert {(gpu["request"], gpu["limit"]) for gpu in shown.values()} == {(2 * GIB, 6 * GIB)}
    assert set(shown) == set(gpus)


def test_without_notes_a_job_keeps_what_it_was_changed_to(node, program):
    """Its budget and its reclaim options are in the ledger as soon as the change is answered."""
    node.start()
    body = {"name": "a", "command": ["a"], "request": "4Gi", "limit": "8Gi", "gpus": 1, "on_reclaim": "term,kill"}
    job = node.client.register(body)["id"]
    one = program(node.shim)
    assert one.call("hello", job, request=4 * GIB, limit=8 * GIB)["status"] == lib.GS_OK
    assert one.call("attach", GPU)["status"] == lib.GS_OK
    node.client.change(job, {"request": "2Gi", "limit": "5Gi"})
    node.kill()
    (node.directory / "state.json").unlink()
    node.start()
    found = node.client.job(job)
    assert (found["gpus"][0]["request"], found["gpus"][0]["limit"]) == (2 * GIB, 5 * GIB)
    assert found["on_reclaim"] == ["term", "kill"]
