"""GS_HELLO: whose job a process joins, what of its frame is believed, and what becomes of the page that it shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from daemon_harness import GIB, GPU, GPU2, InProcess, until

from gpushare._layout import ffi, lib
from gpushare.quantity import MAX, NOTHING, Budget, Kind, Quantity
from gpushare.reclaim_steps import JOB_STEPS, ReclaimStep
from gpushared.jobs.registry import JobState
from gpushared.shims import handshake as handshake_
from gpushared.shims.handshake import Handshake, Refusal

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
ANCESTORS = 32

ADA, BOB = 70001, 70002
BUDGET, OTHER = Budget(NOTHING, MAX), Budget(NOTHING, Quantity.plain(Kind.BYTES, GIB))


def thing(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


# ---- the job of a parent ----------------------------------------------------------------------------


class Family:
    """Process 50 and its ancestors 40, 30, 20, 1. `joins` is the job that 50 joins, if it is ADA's with BUDGET."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parents: dict[int, int | None] = {50: 40, 40: 30, 30: 20, 20: 1, 1: 0, 60: 0, 70: None}
        self.clients: dict[int, list[Any]] = {}
        self.records: dict[str, Any] = {}
        self.asked: list[int] = []
        monkeypatch.setattr(handshake_, "parent_of", self._parent_of)
        shell = thing(clients=thing(of_pid=lambda pid: self.clients.get(pid, [])), registry=thing(get=self.records.get))
        self.handshake: Any = thing(shell=shell)

    def _parent_of(self, pid: int) -> int | None:
        self.asked.append(pid)
        return self.parents.get(pid)

    def has(self, pid: int, job: str, **more: Any) -> None:
        client = {"uid": ADA, "budget": BUDGET}
        record = {"wrapper": None, "state": JobState.RUNNING}
        client |= {key: value for key, value in more.items() if key in client}
        record |= {key: value for key, value in more.items() if key in record}
        self.clients.setdefault(pid, []).append(thing(job=job, **client))
        self.records[job] = thing(**record)

    def joins(self, pid: int = 50) -> str | None:
        return Handshake._parents_job(self.handshake, thing(pid=pid), ADA, BUDGET)


def test_a_child_joins_the_job_of_its_nearest_ancestor(monkeypatch) -> None:
    family = Family(monkeypatch)
    assert family.joins() is None and family.asked == [50, 40, 30, 20], "beyond the first process there is none"
    family.has(20, "far")
    assert family.joins() == "far"
    family.has(30, "near")
    assert family.joins() == "near"
    family.has(50, "own")
    assert family.joins() == "near", "another program that it was itself is no parent"


@pytest.mark.parametrize(
    "other",
    [{"uid": BOB}, {"budget": OTHER}, {"wrapper": object()}, {"state": JobState.ENDED}, {"state": JobState.QUEUED}],
    ids=("user", "budget", "wrapper", "ended", "queued"),
)
def test_a_job_of_another_kind_is_passed_over(monkeypatch, other) -> None:
    family = Family(monkeypatch)
    family.has(40, "other", **other)
    assert family.joins() is None
    family.has(40, "mine")
    assert family.joins() == "mine", "a process may have several pages"
    family.clients[40].pop()
    family.has(20, "far")
    assert family.joins() == "far"


def test_a_job_that_is_gone_is_passed_over(monkeypatch) -> None:
    family = Family(monkeypatch)
    family.has(40, "gone")
    family.records.clear()
    assert family.joins() is None


def test_the_first_process_is_nobodys_parent(monkeypatch) -> None:
    """It adopts those whose parent has ended: in a container it may be a program with a budget."""
    family = Family(monkeypatch)
    family.has(1, "first")
    assert family.joins() is None and family.joins(20) is None
    family.has(0, "kernel")
    family.has(None, "none")  # type: ignore[arg-type]
    assert family.joins(60) is None and family.joins(70) is None


def test_so_many_ancestors_are_looked_at(monkeypatch) -> None:
    family = Family(monkeypatch)
    family.parents = {pid: pid + 1 for pid in range(100, 1000)}
    family.has(100 + ANCESTORS, "last")
    assert family.joins(100) == "last"
    family.clients = {101 + ANCESTORS: family.clients[100 + ANCESTORS]}
    assert family.joins(100) is None


# ---- what a frame says ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "amount"),
    [
        (lib.GS_AMOUNT_UNSET, 7, None),
        (lib.GS_AMOUNT_MAX, 7, MAX),
        (lib.GS_AMOUNT_BYTES, 0, NOTHING),
        (lib.GS_AMOUNT_BYTES, 1, Quantity.plain(Kind.BYTES, 1)),
        (lib.GS_AMOUNT_BYTES, 2**50, Quantity.plain(Kind.BYTES, 2**50)),
        (lib.GS_AMOUNT_SHARE, 1, Quantity.plain(Kind.SHARE, 1)),
        (lib.GS_AMOUNT_SHARE, 10**9, Quantity.plain(Kind.SHARE, 10**9)),
    ],
)
def test_amounts_of_a_frame(kind, value, amount) -> None:
    assert handshake_._amount(kind, value) == amount


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (lib.GS_AMOUNT_BYTES, 2**50 + 1),
        (lib.GS_AMOUNT_SHARE, 0),
        (lib.GS_AMOUNT_SHARE, 10**9 + 1),
        (9, 1),
    ],
)
def test_what_is_no_amount_of_memory(kind, value) -> None:
    with pytest.raises(Refusal) as refusal:
        handshake_._amount(kind, value)
    assert refusal.value.status == lib.GS_NOT_ADMITTED
    assert refusal.value.text == f"no amount of memory: kind {kind}, value {value}"


def test_a_budget_that_makes_no_sense_is_refused_with_what_to_do() -> None:
    hello: Any = thing(
        request=thing(kind=lib.GS_AMOUNT_BYTES, value=2 * GIB), limit=thing(kind=lib.GS_AMOUNT_BYTES, value=GIB)
    )
    with pytest.raises(Refusal) as refusal:
        handshake_._budget(hello)
    message, _, hint = refusal.value.text.partition("\nhint: ")
    assert refusal.value.status == lib.GS_NOT_ADMITTED and "request" in message and hint
    hello.limit.value = 4 * GIB
    found = handshake_._budget(hello)
    assert (found.request.value, found.limit.value) == (2 * GIB, 4 * GIB)


def test_reclaim_steps_by_their_bits() -> None:
    assert handshake_._steps(0) == () and handshake_._steps(0xFFFF) == tuple(JOB_STEPS)
    assert handshake_._steps(lib.GS_STEP_TRIM | lib.GS_STEP_KILL) == (ReclaimStep.TRIM, ReclaimStep.KILL)
    assert handshake_._steps(lib.GS_STEP_HOOK) == (ReclaimStep.HOOK,)


def test_a_name_ends_at_its_first_zero() -> None:
    frame = ffi.new("struct gs_frame *")
    for name, text in ((b"train", "train"), (b"a\0b", "a"), (b"\xff", "\ufffd"), (b"", ""), (b"x" * 64, "x" * 64)):
        frame.u.hello.name = name.ljust(64, b"\0")
        assert handshake_._text(frame.u.hello.name) == text


# ---- whole exchanges --------------------------------------------------------------------------------


def test_a_job_of_the_environment_is_as_its_frame_says(daemon: InProcess) -> None:
    with daemon.connect() as shim:
        welcome = shim.hello(request=GIB, limit=2 * GIB, name="tr\tain", grace_ms=2500, priority=-4)
        assert welcome.status == lib.GS_OK and welcome.page_id == shim.page_id != 0
        assert welcome.patience_ms == int((daemon.config.claim_timeout + 5.0) * 1000)
        job = f"{welcome.job_id:016x}"
        spec = daemon.shell.registry.get(job).spec
        assert (spec.name, spec.priority, spec.grace, spec.gpus) == ("tr?ain", -4, 2.5, 0)
        assert (spec.request_source, spec.limit_source) == ("GPUSHARE_REQUEST", "GPUSHARE_LIMIT")
        assert (shim.page.grace_ms, shim.page.priority, shim.page.job_id) == (2500, -4, welcome.job_id)
        assert ffi.string(shim.page.job_name).decode() == "tr?ain"
        assert until(lambda: daemon.shell.clients.get(shim.page_id)).command == spec.command[0] != ""
    with daemon.connect() as shim:
        shim.hello(request=GIB, limit=2 * GIB, name="")
        (spec,) = (one.spec for one in daemon.shell.registry.live())
        assert spec.name == spec.command[0] and spec.grace is None and shim.page.grace_ms == 0


def test_a_grace_is_a_day_at_most_and_never_nought_in_the_page(daemon: InProcess) -> None:
    with daemon.connect() as shim:
        welcome = shim.hello(request=GIB, limit=2 * GIB, grace_ms=2**32 - 1)
        assert daemon.shell.registry.get(f"{welcome.job_id:016x}").spec.grace == 24 * 3600.0
    job = daemon.client.register({"name": "x", "command": ["x"], "request": "1Gi", "limit": "2Gi", "grace": 0.0})
    with daemon.connect() as shim:
        shim.hello(job["id"])
        assert shim.page.grace_ms == 1, "0 stands for the daemon's own"


def test_a_page_of_another_process_or_user_is_not_taken(daemon: InProcess, program) -> None:
    """The kernel says who it is; a page that is shown does not."""
    one = program(daemon.shim)
    theirs = one.call("hello", request=GIB, limit=2 * GIB)
    with daemon.connect() as shim:
        welcome = shim.hello(request=GIB, limit=2 * GIB, present=True, descriptor=False, page=theirs["page_id"])
        assert welcome.status == lib.GS_OK and welcome.page_id not in (0, theirs["page_id"])
        client = until(lambda: daemon.shell.clients.get(welcome.page_id))
        client.uid = 12345
        shim.reconnect(daemon.shim)
        again = shim.hello(request=GIB, limit=2 * GIB, present=True)
        assert again.page_id not in (0, welcome.page_id)
    assert one.call("attach", GPU)["status"] == lib.GS_OK


def test_a_page_that_nobody_knows_and_nobody_shows_is_none(daemon: InProcess) -> None:
    with daemon.connect() as shim:
        welcome = shim.hello(request=GIB, limit=2 * GIB, present=True, descriptor=False, page=12345)
        assert welcome.status == lib.GS_OK and welcome.page_id not in (0, 12345)
        assert shim.attach(GPU).status == lib.GS_OK


def test_most_of_a_limit_is_believed_on_each_gpu(daemon: InProcess) -> None:
    handshake, gpus = daemon.daemon.shims.handshake, daemon.shell.core.gpus
    half = thing(spec=thing(limit=Quantity.parse("0.5")))
    names = {gpu: identity for identity, gpu in daemon.shell.gpus.by_bytes.items()}
    assert handshake._limits(half) == {names[gpu]: 8 * GIB for gpu in (GPU, GPU2)}
    assert handshake._limits(None) == {names[gpu]: gpus[gpu].capacity for gpu in (GPU, GPU2)}
    lost = gpus.pop(GPU2)
    try:
        assert handshake._limits(half) == {names[GPU]: 8 * GIB}
    finally:
        gpus[GPU2] = lost
