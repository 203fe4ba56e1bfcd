"""Over the socket: an allocation that has to ask again keeps its place, and what no daemon answered is counted."""

from __future__ import annotations

import time

import pytest
from daemon_harness import GIB, GPU, until
from shim_client import MIB, ShimClient

from gpushare._layout import lib

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
TICKETS = 64


@pytest.fixture
def daemon(make_daemon):
    """All clients are this very process, so nobody may be stopped."""
    return make_daemon(last_step="revoke", claim_timeout=5.0)


@pytest.fixture
def clients(daemon):
    """Each is a job of its own, because no two have the same budget."""
    made = []

    def make(request: int, limit: int) -> ShimClient:
        client = daemon.connect()
        assert client.hello(request=request, limit=limit).status == lib.GS_OK
        assert client.attach(GPU).status == lib.GS_OK
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


def asks(daemon):
    return daemon.call(lambda: sorted(daemon.shell.core.state.asks.values(), key=lambda ask: ask.order))


def ask(client: ShimClient, size: int, ticket: int = 0) -> None:
    client.send(client.frame(lib.GS_ASK, ask={"bytes": size, "line": 0, "allocation": size, "ticket": ticket}))


def waiting(daemon, count: int):
    until(lambda: len(asks(daemon)) == count)
    return asks(daemon)


def test_an_allocation_that_lost_its_connection_keeps_its_place_and_its_deadline(daemon, clients):
    borrower, first, second = clients(0, 14 * GIB), clients(3 * GIB, 3 * GIB), clients(3 * GIB, 4 * GIB)
    assert borrower.allocate(13 * GIB).status == lib.GS_OK
    ask(first, 2 * GIB, ticket=7)
    (before,) = waiting(daemon, 1)
    time.sleep(0.3)
    ask(second, 2 * GIB, ticket=7)
    waiting(daemon, 2)
    first.sock.close()
    waiting(daemon, 1)
    first._connect(daemon.shim, 10.0)
    assert first.hello(present=True).status == lib.GS_OK
    ask(first, 2 * GIB, ticket=7)
    after = waiting(daemon, 2)
    assert [one.process for one in after] == [first.page_id, second.page_id]
    assert after[0].deadline == pytest.approx(before.deadline, abs=0.2), "less the time without a connection"
    assert after[0].since < after[1].since


def test_another_allocation_of_the_same_process_has_a_place_of_its_own(daemon, clients):
    borrower, first, second = clients(0, 14 * GIB), clients(3 * GIB, 3 * GIB), clients(3 * GIB, 4 * GIB)
    assert borrower.allocate(13 * GIB).status == lib.GS_OK
    ask(first, 2 * GIB, ticket=7)
    waiting(daemon, 1)
    time.sleep(0.05)
    ask(second, 2 * GIB, ticket=1)
    waiting(daemon, 2)
    first.sock.close()
    waiting(daemon, 1)
    first._connect(daemon.shim, 10.0)
    assert first.hello(present=True).status == lib.GS_OK
    ask(first, 2 * GIB, ticket=8)
    assert [one.process for one in waiting(daemon, 2)] == [second.page_id, first.page_id]


def test_an_allocation_that_was_answered_and_asks_again_keeps_its_place(daemon, clients):
    """Another thread of its process took what came; it waits on as long as it would have."""
    borrower, owner = clients(0, 14 * GIB), clients(3 * GIB, 3 * GIB)
    assert borrower.allocate(13 * GIB).status == lib.GS_OK
    ask(owner, 2 * GIB, ticket=3)
    (before,) = waiting(daemon, 1)
    time.sleep(0.4)
    borrower.free(2 * GIB)
    assert owner.answer().status == lib.GS_OK
    assert lib.gs_reserve(owner.line(), owner.word()[1] // 512), "another thread"
    for size in (1024, 512, 512, 256, 256, 128, 128, 64, 64):
        borrower.allocate(size * MIB)
    ask(owner, 256 * MIB, ticket=3)
    (after,) = waiting(daemon, 1)
    assert after.since < before.since + 0.35 and after.deadline < before.deadline + 0.35


def test_few_waits_are_remembered_for_a_process(daemon, clients):
    client = clients(3 * GIB, 3 * GIB)
    found = daemon.call(lambda: daemon.shell.clients.get(client.page_id))
    for ticket in range(1, 3 * TICKETS):
        found.remember_wait(ticket, 1.0)
    assert len(found.waits) == TICKETS and min(found.waits) == 2 * TICKETS
    found.remember_wait(0, 1.0)
    assert 0 not in found.waits, "an older library has none"


def test_a_wait_too_short_to_matter_is_not_remembered(daemon, clients):
    client = clients(3 * GIB, 3 * GIB)
    ask(client, MIB, ticket=5)
    assert client.answer().status == lib.GS_OK
    found = daemon.call(lambda: daemon.shell.clients.get(client.page_id))
    daemon.call(lambda: None)
    assert all(wait >= 0.001 for wait in found.waits.values())


def test_what_no_daemon_answered_is_counted_once(daemon, clients):
    client = clients(3 * GIB, 3 * GIB)
    client.page.line[0].unmet = 2
    violations = lambda: daemon.call(lambda: daemon.shell.core.counters.violations["no_daemon"])  # noqa: E731
    until(lambda: violations() == 2)
    time.sleep(0.5)
    assert violations() == 2
    client.page.line[0].unmet = 2**32 - 1
    client.page.line[0].unmet_told = 2**32 - 2
    until(lambda: violations() == 3)


def test_and_at_the_latest_when_the_process_ends(daemon, clients, monkeypatch):
    client = clients(3 * GIB, 3 * GIB)
    monkeypatch.setattr(daemon.shell.driver, "sample_soon", lambda _: None)
    client.page.line[0].unmet = 1
    found = daemon.call(lambda: daemon.shell.clients.get(client.page_id))
    daemon.call(lambda: daemon.shell.processes.gone(found))
    assert daemon.call(lambda: daemon.shell.core.counters.violations["no_daemon"]) == 1


def test_who_is_about_to_take_credit_is_read_from_the_page(daemon, clients):
    """Held as long as the page says that a call is under way."""
    owner, other = clients(6 * GIB, 6 * GIB), clients(9 * GIB, 9 * GIB)
    owner.page.line[0].asking = 1
    ask(owner, 4 * GIB)
    assert owner.answer().status == lib.GS_OK
    core = daemon.shell.core
    assert daemon.call(lambda: list(core.state.gpus[GPU].holds)) == [owner.page_id]
    seen = daemon.call(lambda: daemon.shell._credit_effects.used_seen(GPU).asking)
    assert seen == {owner.page_id: 1}
    owner.page.line[0].asking = 0
    assert daemon.call(lambda: daemon.shell._credit_effects.used_seen(GPU).asking) == {}
    assert other.word()[1] >= 0
