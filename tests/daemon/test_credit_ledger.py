"""The ledger has at each moment at least what the page says: a daemon that starts believes the ledger alone."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_harness import GIB, GPU, GPU2

from gpushare._layout import lib
from gpushare.quantity import MAX, NOTHING, Kind, Quantity
from gpushare.reclaim_steps import JOB_STEPS, USUAL_STEPS
from gpushared.clients import pages as pages_module
from gpushared.clients.credit import CreditPages
from gpushared.clients.ledger import Ledger, Terms
from gpushared.clients.pages import LINES, UNIT, OtherVersion, Page, Pages, cut, map_checked
from gpushared.core.events import TrimSeen
from gpushared.core.instructions import Published
from gpushared.system.processes import Process

MIB = 2**20
FIGURES = Published(grantable=3 * GIB, limit=14 * GIB, request=4 * GIB, overhead=300 * MIB, job_usage=2 * GIB)
JOB = "00000000000000ff"


@pytest.fixture
def pages(directory):
    made = Pages(directory / "pages")
    yield made
    made.close()


@pytest.fixture
def owner():
    process = Process.open(os.getpid())
    yield process
    process.close()


@pytest.fixture
def page(pages, owner):
    made = pages.create(owner, 1000, job=JOB, priority=-3, grace_ms=2500, name="train")
    yield made
    if made._struct is not None:
        made.close(remove=True)


@pytest.fixture
def credit(page):
    made = CreditPages()
    made.pages[1] = page
    return made


def entered(page: Page, number: int = 0) -> tuple[int, int]:
    """Credit and overhead in the ledger, in bytes; from the file, as the next daemon reads it."""
    account = page.account.ledger._read(page.account.number)
    line = account.lines[number]
    kept = page.account.lines[number]
    assert (line.uuid, line.credit, line.overhead) == (kept.uuid, kept.credit, kept.overhead)
    return line.credit * UNIT, line.overhead * UNIT


def use(page: Page, size: int, gpu: str = GPU) -> None:
    assert lib.gs_reserve(page.lines[gpu], size // UNIT)


def test_each_change_of_credit_is_in_the_ledger(credit, page):
    assert credit.open_share(1, GPU, 64 * MIB, 256 * MIB) == 0
    line = page.lines[GPU]
    assert entered(page) == (64 * MIB, 256 * MIB)
    assert (line.attached, line.overhead * UNIT, credit.credit(1, GPU)) == (1, 256 * MIB, 64 * MIB)
    credit.grant(1, GPU, GIB, FIGURES)
    assert entered(page) == (GIB + 64 * MIB, 300 * MIB) and credit.credit(1, GPU) == GIB + 64 * MIB
    credit.publish(1, GPU, replace(FIGURES, overhead=310 * MIB))
    assert entered(page) == (GIB + 64 * MIB, 310 * MIB), "to tell figures gives nothing"
    assert credit.revoke(1, GPU, GIB) == (GIB, 0)
    assert entered(page) == (64 * MIB, 310 * MIB)
    use(page, 64 * MIB)
    assert credit.revoke(1, GPU, GIB) == (0, 64 * MIB) and entered(page) == (64 * MIB, 310 * MIB)


def test_a_context_that_is_charged_already_is_not_charged_again(credit, page):
    credit.open_share(1, GPU, 0, 256 * MIB)
    credit.open_share(1, GPU, 5 * MIB, 0)
    assert entered(page) == (5 * MIB, 256 * MIB) and page.lines[GPU].overhead * UNIT == 256 * MIB


def test_a_line_is_closed_when_nothing_of_the_process_is_left_there(credit, page):
    credit.open_share(1, GPU, 64 * MIB, 256 * MIB)
    use(page, 64 * MIB)
    credit.close_share(1, GPU)
    assert page.lines[GPU].attached == 1 and entered(page) == (64 * MIB, 256 * MIB), "a pool needs no context"
    lib.gs_release(page.lines[GPU], 64 * MIB // UNIT)
    credit.close_share(1, GPU)
    assert page.lines[GPU].attached == 0 and entered(page) == (64 * MIB, 0), "its credit stays, its context does not"


def test_lines_run_out_and_no_share_is_opened(credit, page):
    names = [f"GPU-00000000-0000-0000-0000-{number:012x}" for number in range(1, LINES + 2)]
    assert [credit.open_share(1, name, MIB, 0) for name in names] == [*range(LINES), None]
    assert credit.open_share(1, names[3], MIB, 0) == 3 and entered(page, 3)[0] == 2 * MIB
    assert names[-1] not in page.lines and len(page.account.lines) == LINES


def test_a_page_without_a_record_is_written_all_the_same(credit, page):
    page.account.strike_out()
    page.account = None
    credit.open_share(1, GPU, MIB, 256 * MIB)
    credit.grant(1, GPU, MIB, FIGURES)
    assert credit.credit(1, GPU) == 2 * MIB and page.lines_seen() == []


def test_what_a_process_has_had_most(credit, page):
    credit.open_share(1, GPU, 64 * MIB, 256 * MIB)
    page.lines[GPU].peak = 40 * MIB // UNIT
    share: Any = SimpleNamespace(process=1, gpu=GPU, overhead=7, parked=None)
    assert credit.peak(share) == 40 * MIB + 7
    share.parked = SimpleNamespace(overhead=9)
    assert credit.peak(share) == 40 * MIB + 9, "what its context will be again"
    share.gpu = GPU2
    assert credit.peak(share) == 9


def test_usage_by_job_counts_contexts_and_what_is_parked_as_the_core_has_it(credit, page):
    credit.open_share(1, GPU, 64 * MIB, 0)
    use(page, 48 * MIB)

    def share(process: int, job: str, used: int, parked: object = None) -> Any:
        return SimpleNamespace(process=process, job=job, used=used, overhead=10, parked=parked)

    gpu: Any = SimpleNamespace(id=GPU, shares={1: share(1, "a", 5), 2: share(2, "a", 6), 3: share(3, "b", 7)})
    assert credit.usage_by_job(gpu) == {"a": 48 * MIB + 10 + 6 + 10, "b": 7 + 10}
    gpu.shares[1].parked = object()
    assert credit.usage_by_job(gpu)["a"] == 5 + 10 + 6 + 10


def test_refusals_asks_and_contexts_are_read_of_each_line(credit, page):
    for gpu in (GPU, GPU2):
        credit.open_share(1, gpu, 0, 0)
    page.lines[GPU].refusals, page.lines[GPU2].refusals = 2, 3
    assert credit.refusals(1) == 5
    page.lines[GPU2].asking = 4
    assert credit.asking([1, 9], GPU) == {} and credit.asking([1, 9], GPU2) == {1: 4}
    page.lines[GPU].contexts = 1
    assert credit.contexts([1, 9], GPU) == {1: 1} and credit.contexts([1, 9], GPU2) == {1: 0}
    use_before = credit.stamps([1, 9], GPU)
    page.lines[GPU].releases += 1
    assert use_before == {1: (0, 0)} and credit.stamps([1, 9], GPU) == {1: (0, 1)}


# ---- asks to trim -----------------------------------------------------------------------------------


def test_an_unfinished_trim_of_another_gpu_stays_asked_for(credit, page):
    for gpu in (GPU, GPU2):
        credit.open_share(1, gpu, 0, 0)
    struct = page._struct
    credit.trim(1, GPU, 3 * MIB, 1.5)
    assert (page.lines[GPU].trim_units * UNIT, struct.trim_ms, struct.trim_asked) == (3 * MIB, 1500, 1)
    credit.trim(1, GPU2, MIB, 0.25)
    assert [page.lines[gpu].trim_units * UNIT for gpu in (GPU, GPU2)] == [3 * MIB, MIB]
    assert (struct.trim_ms, struct.trim_asked) == (250, 2)
    struct.trim_done = 2
    credit.trim(1, GPU2, 2 * MIB, 10.0**9)
    assert [page.lines[gpu].trim_units * UNIT for gpu in (GPU, GPU2)] == [0, 2 * MIB]
    assert struct.trim_ms == 2**32 - 1, "as long as the word can say"


def test_how_far_a_process_is_with_the_last_trim(page):
    assert page.trim_seen() is None
    page.may_be_asked_to_trim()
    assert page._struct.trim_ms == lib.GS_TRIM_MS and page.trim_seen() is None, "its library says when it is ready"
    page._struct.trim_ready = 1
    assert page.trim_seen() == TrimSeen(True, True), "nothing was asked"
    page._struct.trim_asked = 4
    assert page.trim_seen() == TrimSeen(False, False)
    page._struct.trim_begun = 4
    assert page.trim_seen() == TrimSeen(True, False)
    page._struct.trim_done = 4
    assert page.trim_seen() == TrimSeen(True, True)


# ---- records ----------------------------------------------------------------------------------------

SIX, HALF = Quantity.plain(Kind.BYTES, 6 * GIB), Quantity.parse("0.5")


@pytest.mark.parametrize(
    "terms",
    [
        Terms(NOTHING, MAX, USUAL_STEPS, 0.0),
        Terms(SIX, MAX, tuple(JOB_STEPS), 1.5),
        Terms(HALF, HALF, tuple(JOB_STEPS)[:1], 3600.0),
        Terms(HALF, SIX, tuple(JOB_STEPS)[-1:], 0.001),
    ],
)
def test_the_terms_of_a_job_are_read_as_they_were_written(pages, page, terms):
    page.account.set_terms(terms)
    found = pages.ledger._read(page.account.number)
    assert found.terms == terms == page.account.terms
    assert found.header == page.header and found.header.priority == -3 and found.header.grace_ms == 2500


def test_terms_are_not_said_by_an_older_daemon_and_a_long_time_has_a_bound(pages, page):
    assert pages.ledger._read(page.account.number).terms is None
    page.account.set_terms(Terms(SIX, MAX, USUAL_STEPS, 10.0**9))
    assert pages.ledger._read(page.account.number).terms.min_run_time == (2**32 - 1) / 1000
    page.account.set_terms(Terms(SIX, MAX, (), 0.0))
    assert pages.ledger._read(page.account.number).terms.on_reclaim == USUAL_STEPS


def test_amounts_in_the_ledger_have_bounds(page):
    page.line_of(GPU)
    page.account.enter(0, 5, None)
    page.account.enter(0, -9, None)
    assert entered(page) == (0, 0)
    page.account.enter(0, 2**33, 7)
    assert entered(page) == ((2**32 - 1) * UNIT, 7 * UNIT)
    page.account.correct(0, 12)
    assert entered(page) == (12 * UNIT, 7 * UNIT)
    page.account.enter(0, 0, 0)
    assert entered(page) == (12 * UNIT, 0)


def test_a_record_that_is_struck_out_is_used_again_and_begins_empty(directory, page):
    ledger = Ledger(directory / "other")
    first = ledger.open(page.header)
    first.open_line(b"x" * 16)
    first.enter(0, 5, 6)
    first.set_terms(Terms(SIX, MAX, USUAL_STEPS, 1.0))
    first.strike_out()
    assert ledger._read(first.number) is None
    again = ledger.open(page.header)
    assert again.number == first.number
    found = ledger._read(again.number)
    assert found.lines == [] and found.terms is None and found.header == page.header
    ledger.close()
    later = Ledger(directory / "other")
    assert list(later.found) == [page.header.page_id]
    later.forget_found()
    assert later.found == {} and later._read(again.number) is None
    later.close()


# ---- the file of a page -----------------------------------------------------------------------------


def test_of_an_earlier_daemons_page_no_more_is_believed_than_the_ledger_has(page, credit):
    credit.open_share(1, GPU, 8 * MIB, 2 * MIB)
    line = page.lines[GPU]
    line.request, line.limit = 3, 4
    for used, said, shown in ((2, 8, (2, 8)), (6, 99, (6, 8)), (50, 99, (8, 8)), (5, 1, (5, 5)), (0, 0, (0, 0))):
        line.word = (used * MIB // UNIT) << 32 | said * MIB // UNIT
        (seen,) = page.lines_seen()
        assert (seen.used // MIB, seen.credit // MIB) == shown, (used, said)
        assert (seen.overhead, seen.request, seen.limit, seen.index) == (2 * MIB, 3 * UNIT, 4 * UNIT, 0)


def test_a_file_that_is_no_page_is_closed(directory, page):
    def opened(size: int) -> int:
        fd = os.open(directory / f"page{size}", os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, size)
        return fd

    whole = os.fstat(page.fd).st_size
    for size in (0, whole - 1, whole + 1, whole):
        fd = opened(size)
        assert map_checked(fd, None) is None
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(fd)
    read, write = os.pipe()
    os.close(write)
    assert map_checked(read, None) is None


class Later:
    """The library of a later daemon, which takes pages of version 3 and later ones."""

    GS_PAGE_OLDEST, GS_PAGE_VERSION = 3, 4

    def __getattr__(self, name: str) -> Any:
        return getattr(lib, name)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 5])
def test_a_page_that_is_too_old_is_told_apart_from_one_that_is_none(page, monkeypatch, version):
    """The first may be wanted by the daemon that made it."""
    monkeypatch.setattr(pages_module, "lib", Later())
    page._struct.version = version
    if version == 0:
        assert map_checked(os.dup(page.fd), None) is None
    elif version < 3:
        with pytest.raises(OtherVersion, match=f"a page of version {version}") as raised:
            map_checked(os.dup(page.fd), None)
        assert raised.value.version == version
    else:
        again = map_checked(os.dup(page.fd), None)
        assert again is not None and again.header == page.header
        again.close(remove=False)
    page._struct.magic = 5
    assert page.version == 0 and map_checked(os.dup(page.fd), None) is None


def test_the_record_of_a_page_that_is_too_old_stays_for_the_daemon_that_made_it(pages, owner, directory, monkeypatch):
    old, lost = (pages.create(owner, 1000, job=JOB, priority=0, grace_ms=0, name="x") for _ in range(2))
    number = old.account.number
    lost.path.unlink()
    monkeypatch.setattr(pages_module, "lib", Later())
    with old.for_its_process():
        later = Pages(directory / "pages")
        assert list(later.reopen()) == []
    assert later.ledger._read(number) is not None and old.path.exists()
    assert later.ledger._read(lost.account.number) is None, "a page that is not there has no record any more"
    later.close()
    monkeypatch.undo()
    with old.for_its_process():
        again = Pages(directory / "pages")
        ((found, process),) = again.reopen()
        assert found.id == old.id
        process.close()
        found.close(remove=False)
    again.close()


@pytest.mark.parametrize(
    ("text", "size", "kept"),
    [
        ("train", 5, b"train"),
        ("train", 4, b"trai"),
        ("tür", 2, b"t"),
        ("tür", 3, b"t\xc3\xbc"),
        ("a\x1bb", 9, b"a\\x1bb"),
    ],
)
def test_a_text_is_cut_to_whole_characters(text, size, kept):
    assert cut(text, size) == kept


def test_a_page_that_is_closed_for_good_leaves_neither_file_nor_record(pages, owner):
    page = pages.create(owner, 1000, job=JOB, priority=0, grace_ms=2**40, name="x" * 60)
    assert page._read_header().grace_ms == 2**32 - 1 and page._read_header().job_name == "x" * 47
    path, number = page.path, page.account.number
    page.close(remove=False)
    assert path.exists() and pages.ledger._read(number) is not None
    page = pages.create(owner, 1000, job=JOB, priority=0, grace_ms=0, name="y")
    path, number = page.path, page.account.number
    page.close(remove=True)
    assert not path.exists() and pages.ledger._read(number) is None and page.account is None


def test_spare_pages_are_made_ahead_and_removed_with_the_daemon(pages, owner, directory):
    pages.make_spares()
    spares = list((directory / "spare-pages").iterdir())
    assert spares and not list((directory / "pages").iterdir())
    page = pages.create(owner, 1000, job=JOB, priority=0, grace_ms=0, name="y")
    assert len(list((directory / "spare-pages").iterdir())) == len(spares) - 1
    assert [path.name for path in (directory / "pages").iterdir()] == [f"{page.id:016x}"]
    page.close(remove=True)
    pages.make_spares()
    assert len(list((directory / "spare-pages").iterdir())) == len(spares)
    while pages._spares:
        pages._spares.pop()[-1].close(remove=True)
    assert not list((directory / "spare-pages").iterdir())
