"""What a daemon believes of a page that its ledger does not know, and whom it tells of it."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_harness import GIB, GPU, GPU2

from gpushare._layout import lib
from gpushare.quantity import MAX, Kind, Quantity
from gpushared.clients.pages import UNIT, Page, Pages, uuid_bytes
from gpushared.core.events import JobRestored
from gpushared.shims import handshake as handshake_
from gpushared.shims.handshake import Handshake
from gpushared.system.processes import Process

ADA = 70001
OTHER = "GPU-00000000-0000-0000-0000-000000000003"


def thing(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


@pytest.fixture
def page(directory) -> Any:
    """Of a process that uses 30 of its 100 units on the first GPU, and 50 of 50 on the second."""
    pages = Pages(directory / "pages")
    owner = Process.open(os.getpid())
    assert owner is not None
    made = pages.create(owner, os.getuid(), job="1f", priority=0, grace_ms=0, name="x")
    for gpu, credit, used, overhead in ((GPU, 100, 30, 7), (GPU2, 50, 50, 9)):
        made.line_of(gpu)
        line = made.lines[gpu]
        lib.gs_grant(line, credit)
        assert lib.gs_reserve(line, used)
        line.attached, line.overhead = 1, overhead
    assert made.account is not None
    made.account.lines.clear()  # the ledger was lost
    yield made
    made.close(remove=True)
    pages.close()
    owner.close()


def entered(page: Page, most: dict[str, int]) -> list[tuple[int, int]]:
    """The credit and overhead in the ledger, by line. `most`: units to believe, by GPU."""
    page.claimed_lines({uuid_bytes(gpu): amount * UNIT for gpu, amount in most.items()})
    assert page.account is not None
    return [(line.credit, line.overhead) for line in page.account.lines]


@pytest.mark.parametrize(
    ("most", "believed"),
    [
        ({GPU: 1000, GPU2: 1000}, [(100, 7), (50, 9)]),
        ({GPU: 80, GPU2: 40}, [(80, 7), (40, 5)]),
        ({GPU: 100, GPU2: 72}, [(100, 7), (50, 9)]),
        ({GPU: 55, GPU2: 71}, [(55, 6), (50, 8)]),
        ({GPU: 1000}, [(100, 7)]),
        ({GPU2: 1000}, []),
        ({}, []),
    ],
    ids=["enough", "less", "just enough", "a unit too few", "one GPU", "not the first", "none"],
)
def test_a_page_is_believed_up_to_what_its_job_may_have(page: Page, most, believed) -> None:
    assert entered(page, most) == believed


def test_what_was_used_is_believed_even_without_credit(page: Page) -> None:
    lib.gs_revoke(page.lines[GPU], 70)
    page.lines[GPU2].attached = 0
    assert entered(page, {GPU: 1000, GPU2: 1000}) == [(30, 7), (50, 0)], "a closed context is not charged"


def test_a_gpu_that_is_named_twice_is_believed_once(page: Page) -> None:
    page._struct.line[1].uuid = page._struct.line[0].uuid
    assert entered(page, {GPU: 1000, GPU2: 1000}) == [(100, 7)]


# ---- adopting it ------------------------------------------------------------------------------------


class Adopting:
    """A program that presents a page whose job the registry has or has not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: Quantity | None) -> None:
        self.done: list[Any] = []
        self.fed: list[Any] = []
        header = thing(pid=5, start_time=6, uid=ADA, job_id=7)
        self.page = thing(id=9, header=header, account=None, claimed_lines=self.done.append)
        account = thing(set_terms=lambda terms: self.done.append(("terms", terms)))
        spec = thing(uid=ADA, limit=limit)
        self.record = None if limit is None else thing(id=f"{7:016x}", spec=spec)
        registry = thing(get=lambda job: self.record if job == f"{7:016x}" else None)
        self.core = thing(
            gpus={GPU: thing(total=16 * GIB, capacity=15 * GIB), GPU2: thing(total=8 * GIB, capacity=7 * GIB)}, jobs={}
        )
        shell = thing(
            clients=thing(get=lambda id: None),
            registry=registry,
            core=self.core,
            gpus=thing(by_bytes={b"1": GPU, b"2": GPU2, b"3": OTHER}),
            feed=self.fed.append,
            outside="outside",
            processes=thing(adopt="adopt"),
        )
        self.client = thing(job=f"{7:016x}", restored=lambda: "restored")
        monkeypatch.setattr(handshake_, "take_in", self._take_in)
        monkeypatch.setattr(handshake_.Terms, "of", lambda spec: spec.limit)
        monkeypatch.setattr(handshake_, "new_to_core", lambda record, clients: ("new", record, clients))
        self.takes = True
        self.handshake: Any = object.__new__(Handshake)
        self.handshake.shell = shell
        ledger = thing(open=lambda header: self.done.append("opened") or account)
        self.handshake.pages = thing(adopt=lambda descriptor: self.page, ledger=ledger)

    def _take_in(self, *told: Any) -> Any:
        self.done.append(told)
        return self.client if self.takes else None

    def adopt(self) -> Any:
        hello = thing(flags=lib.GS_HELLO_HAS_PAGE, page_id=9)
        return self.handshake._known(thing(pid=5, start_time=6), ADA, hello, 3)


@pytest.mark.parametrize("limit", [Quantity.plain(Kind.BYTES, 4 * GIB), Quantity.plain(Kind.BYTES, 12 * GIB), MAX])
def test_a_page_is_adopted_with_the_terms_of_its_job(monkeypatch, limit) -> None:
    """Believed is what the job may have of each GPU that is there; a job that the core has is not told again."""
    adopting = Adopting(monkeypatch, limit)
    adopting.core.jobs[f"{7:016x}"] = object()
    assert adopting.adopt() is adopting.client
    opened, terms, most, taken = adopting.done
    assert opened == "opened" and terms == ("terms", limit)
    first, second = {MAX: (15, 7)}.get(limit, (4, 4) if limit.value == 4 * GIB else (12, 7))
    assert most == {b"1": first * GIB, b"2": second * GIB}
    assert taken[:3] == ("outside", "adopt", adopting.page) and adopting.fed == ["restored"]


def test_a_job_that_the_core_has_forgotten_is_made_again(monkeypatch) -> None:
    adopting = Adopting(monkeypatch, MAX)
    adopting.adopt()
    assert adopting.fed == [("new", adopting.record, [adopting.client]), "restored"]


def test_a_page_of_an_unknown_job_is_believed_up_to_the_whole_gpu(monkeypatch) -> None:
    adopting = Adopting(monkeypatch, None)
    assert adopting.adopt() is adopting.client
    opened, most, _ = adopting.done
    assert opened == "opened" and most == {b"1": 15 * GIB, b"2": 7 * GIB} and adopting.fed == ["restored"]
    adopting = Adopting(monkeypatch, None)
    adopting.takes = False
    assert adopting.adopt() is None and adopting.fed == [], "it names no job"


def test_the_event_that_makes_a_job_again_says_all_that_the_pages_say() -> None:
    from gpushared.runtime.rebuild import new_to_core

    record: Any = thing(id="a", spec="spec", began=0.0, over=True)
    clients: Any = [thing(page=thing(gpus=gpus)) for gpus in ([GPU, GPU2], [GPU2], [])]
    event = new_to_core(record, clients)
    assert isinstance(event, JobRestored)
    assert (event.job, event.spec, event.gpus, event.open) == ("a", "spec", (GPU, GPU2), False)
