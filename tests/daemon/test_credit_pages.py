"""What the daemon writes into pages and reads from them; a page that has gone stops nothing."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from daemon_harness import GIB, GPU, GPU2

from gpushare._layout import ffi, lib
from gpushared.clients.credit import PINNED, CreditPages
from gpushared.clients.pages import UNIT, Pages
from gpushared.clients.turn_words import TurnWords
from gpushared.core.instructions import Published
from gpushared.system.processes import Process

MIB = 2**20
FIGURES = Published(grantable=3 * GIB, limit=14 * GIB, request=4 * GIB, overhead=300 * MIB, job_usage=2 * GIB)
GONE = 99


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
    made = pages.create(owner, 1000, job="00000000000000ff", priority=0, grace_ms=0, name="train")
    yield made
    made.close(remove=True)


@pytest.fixture
def credit(page):
    made = CreditPages()
    made.pages[1] = page
    made.open_share(1, GPU, 64 * MIB, 256 * MIB)
    return made


def use(page, size: int) -> None:
    """As the library does it, as far as there is credit."""
    assert lib.gs_reserve(page.lines[GPU], size // UNIT)


def test_a_grant_is_credit_and_the_figures_are_told(credit, page):
    assert credit.credit(1, GPU) == 64 * MIB and credit.used_by([1], GPU) == {1: 0}
    credit.grant(1, GPU, GIB, FIGURES)
    assert credit.credit(1, GPU) == GIB + 64 * MIB
    line = page.lines[GPU]
    told = Published(
        *(amount * UNIT for amount in (line.grantable, line.limit, line.request, line.overhead, line.job_usage))
    )
    assert told == FIGURES


def test_figures_that_are_told_already_are_not_written_again(credit, page):
    """Of every process on a GPU, at each event of the core."""
    line = page.lines[GPU]
    credit.publish(1, GPU, FIGURES)
    line.limit = line.grantable = 7
    credit.publish(1, GPU, FIGURES)
    assert (line.limit, line.grantable) == (7, 7)
    credit.grant(1, GPU, MIB, FIGURES)
    assert line.limit * UNIT == FIGURES.limit, "with credit they are"
    line.limit = 7
    credit.publish(1, GPU, replace(FIGURES, limit=GIB))
    assert line.limit * UNIT == GIB


def test_a_copy_of_the_driver_and_what_is_shared_keep_a_process_on_the_gpu(credit, page):
    line = page.lines[GPU]
    assert credit.pinned([1], GPU) == {}
    for name, text in PINNED.items():
        setattr(line, name, 1)
        assert credit.pinned([1], GPU) == {1: text}
        setattr(line, name, 0)
    page._struct.copies = 1
    assert credit.pinned([1], GPU) == {1: "it uses a second copy of the driver"}
    line.ipc = 1
    assert credit.pinned([1], GPU) == {1: PINNED["ipc"]}, "one reason is enough"


def test_what_a_process_uses_stays_and_the_rest_is_taken_back(credit, page):
    credit.grant(1, GPU, GIB, FIGURES)
    use(page, 512 * MIB)
    assert page.used() == {GPU: 512 * MIB} and credit.used_by([1, GONE], GPU) == {1: 512 * MIB}
    assert credit.revoke(1, GPU, 256 * MIB) == (256 * MIB, 512 * MIB)
    taken, used = credit.revoke(1, GPU, 8 * GIB)
    assert (taken, used) == (GIB + 64 * MIB - 256 * MIB - 512 * MIB, 512 * MIB)
    assert credit.credit(1, GPU) == 512 * MIB


def test_a_gate_that_is_open_is_not_turned_and_a_closed_one_is_opened(credit, page):
    line = page.lines[GPU]
    credit.turn_gate(1, closed=False)
    assert not line.gate
    credit.turn_gate(1, closed=True)
    closed = line.gate
    credit.turn_gate(1, closed=True)
    assert closed and line.gate not in (0, closed), "who waits there sees that a daemon lives"
    credit.turn_gate(1, closed=False)
    assert not line.gate


def test_what_failed_without_an_answer_is_told_once(credit, page):
    line = page.lines[GPU]
    assert credit.take_unmet(1) == {}
    line.unmet += 3
    assert credit.take_unmet(1) == {GPU: 3} and credit.take_unmet(1) == {}
    line.unmet_told = 2**32 - 1
    line.unmet = 1
    assert credit.take_unmet(1) == {GPU: 2}, "the counter begins again at nought"


def test_a_process_is_asked_to_trim_or_to_be_quiet_within_a_time(credit, page):
    line, struct = page.lines[GPU], page._struct
    credit.trim(1, GPU, 5 * MIB, 1.5)
    asked = struct.trim_asked
    assert asked and (struct.trim_ms, line.trim_units * UNIT) == (1500, 5 * MIB)
    credit.ask_quiet(1, 2.0)
    assert struct.trim_ms == 2000 and struct.trim_asked not in (0, asked)
    assert line.trim_units * UNIT == 5 * MIB, "it has not ended that trim"
    struct.trim_done = struct.trim_asked
    credit.ask_quiet(1, 2.0)
    assert line.trim_units == 0, "a trim of nothing"


def test_what_a_process_says_of_itself_is_told_of_each(credit, page):
    line = page.lines[GPU]
    assert credit.asking([1, GONE], GPU) == {} and credit.contexts([1, GONE], GPU) == {1: 0}
    line.asking, line.contexts, line.releases, line.refusals, line.peak = 2, 3, 7, 4, 9
    use(page, 3 * UNIT)
    assert credit.asking([1, GONE], GPU) == {1: 2} and credit.contexts([1, GONE], GPU) == {1: 3}
    assert credit.stamps([1, GONE], GPU) == {1: (3 * UNIT, 7)} and credit.refusals(1) == 4


def test_figures_of_a_gpu_that_the_process_has_not_opened_go_nowhere(credit, page):
    credit.grant(1, GPU2, GIB, FIGURES)
    credit.publish(1, GPU2, FIGURES)
    assert list(page.lines) == [GPU] and page.used() == {GPU: 0}
    assert credit.revoke(1, GPU2, GIB) == (GIB, 0), "nobody can have used it"


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (lambda credit: credit.grant(GONE, GPU, GIB, FIGURES), None),
        (lambda credit: credit.publish(GONE, GPU, FIGURES), None),
        (lambda credit: credit.revoke(GONE, GPU, GIB), (0, 0)),
        (lambda credit: credit.close_share(GONE, GPU), None),
        (lambda credit: credit.trim(GONE, GPU, GIB, 1.0), None),
        (lambda credit: credit.ask_quiet(GONE, 1.0), None),
        (lambda credit: credit.turn_gate(GONE, closed=True), None),
        (lambda credit: credit.credit(GONE, GPU), 0),
        (lambda credit: credit.refusals(GONE), 0),
        (lambda credit: credit.take_unmet(GONE), {}),
        (lambda credit: credit.used_by([GONE], GPU), {}),
        (lambda credit: credit.stamps([GONE], GPU), {}),
        (lambda credit: credit.asking([GONE], GPU), {}),
        (lambda credit: credit.trims_of([GONE]), {}),
        (lambda credit: credit.contexts([GONE], GPU), {}),
        (lambda credit: credit.pinned([GONE], GPU), {}),
    ],
)
def test_a_process_whose_page_has_gone_is_passed_over(credit, page, asked, answer):
    """Its end is an event that the core handles after those before it, which may still be about it."""
    before = bytes(ffi.buffer(page.lines[GPU]))
    assert asked(credit) == answer
    assert bytes(ffi.buffer(page.lines[GPU])) == before


def test_the_word_of_turns_tells_what_was_launched_since_it_was_written(credit, page):
    words, line = TurnWords(credit), page.lines[GPU]
    flags = lib.GS_TURN_HELD | lib.GS_TURN_QUIET | lib.GS_TURN_CLOSED | lib.GS_TURN_PROBE | lib.GS_TURN_WANTED
    words.say(1, GPU, closed=True)
    assert line.turn == 0, "launches of this process cannot be held back"
    line.turn = lib.GS_TURN_HELD
    assert words.read(1, GPU) == (True, False, False, True), "nobody has looked yet"
    words.say(1, GPU, closed=True)
    assert line.turn & flags == lib.GS_TURN_HELD | lib.GS_TURN_QUIET | lib.GS_TURN_CLOSED
    assert words.read(1, GPU) == (True, False, False, True)
    line.turn = lib.GS_TURN_HELD | lib.GS_TURN_CLOSED | lib.GS_TURN_WANTED
    assert words.read(1, GPU) == (True, True, True, True), "it has launched, and waits"
    words.say(1, GPU, closed=False, ask=True)
    assert line.turn & flags == lib.GS_TURN_HELD | lib.GS_TURN_QUIET | lib.GS_TURN_PROBE
    assert words.read(1, GPU) == (True, False, False, False), "it has not answered"
    line.turn = lib.GS_TURN_HELD
    words.release(1, GPU)
    assert words.read(1, GPU) == (True, False, False, True), "it is not watched any more"
    assert words.read(GONE, GPU) == (False, False, False, True)
