"""A program whose handler of SIGTERM allocates."""

from __future__ import annotations

import json
import time

from daemon_harness import GIB, GPU, until

from gpushare._layout import lib

GRACE = 1.0


def test_a_borrower_that_wants_more_when_asked_to_stop_gains_nothing(daemon, program, tmp_path):
    """No memory, and no time: the owner has its memory when the grace is over."""
    borrower = program(daemon.shim)
    borrower.call("hello", request=0, limit=15 * GIB, grace_ms=int(GRACE * 1000))
    borrower.call("attach", GPU)
    assert borrower.call("allocate", 12 * GIB)["status"] == lib.GS_OK
    result = tmp_path / "told"
    borrower.call("allocate_on_sigterm", GIB // 4, 30.0, str(result))
    with daemon.connect() as owner:
        owner.hello(request=10 * GIB, limit=10 * GIB)
        assert owner.attach(GPU).status == lib.GS_OK
        started = time.monotonic()
        answer = owner.allocate(9 * GIB)
        took = time.monotonic() - started
        assert answer is not None and answer.status == lib.GS_OK, answer
        assert GRACE * 0.9 < took < GRACE + 1.5
    until(lambda: borrower.process.poll() is not None)
    told = json.loads(result.read_text())
    assert set(told) and str(int(lib.GS_OK)) not in told, "it got nothing"
    assert daemon.shell.core.counters.violations == {}


def test_an_owner_that_is_stopped_still_gets_what_it_has_asked_for(daemon, program, tmp_path):
    """`gpushare stop` ends a job; until its grace is over its request is its own."""
    owner = program(daemon.shim)
    owner.call("hello", request=8 * GIB, limit=8 * GIB, grace_ms=1000, name="owner")
    owner.call("attach", GPU)
    owner.call("allocate", GIB)
    result = tmp_path / "told"
    owner.call("allocate_on_sigterm", GIB // 2, 0.05, str(result))
    daemon.client.stop("owner", now=False)
    until(lambda: result.exists() and result.read_text())
    assert json.loads(result.read_text()).get(str(int(lib.GS_OK)), 0) >= 1
