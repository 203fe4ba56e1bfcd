"""The judge of chaos is itself judged: it finds each kind of needless stop, and lets the needed ones pass."""

from __future__ import annotations

import pytest

from chaos.oracle import Oracle, Record
from chaos.truth import Ask, Job, Span, Truth

GIB = 1 << 30
NOW = 100.0


@pytest.fixture
def truth() -> Truth:
    """Of 16 GiB, A and B borrow 4 and 8, and O claims 6 of the 8 that were promised to it: 2 are missing."""
    one = Truth({0: 16 * GIB})
    one.jobs = {
        "O": Job("O", {0: (8 * GIB, 8 * GIB)}),
        "A": Job("A", {0: (0, 16 * GIB)}, grace=1.0),
        "B": Job("B", {0: (0, 16 * GIB)}, grace=1.0),
    }
    one.add(Span("A", 1, 0, 4 * GIB, 10, 11))
    one.add(Span("B", 2, 0, 8 * GIB, 10, 11))
    one.asks.append(Ask("O", 3, 0, 6 * GIB, NOW - 1, ended=NOW + 3, ok=True))
    return one


def event(what: str, job: str, time: float = NOW) -> Record:
    return Record(time, what, job, 0, {})


def kinds(truth: Truth, *records: Record) -> list[str]:
    return [fault.kind for fault in Oracle(truth).judge(records)]


def test_the_stop_that_is_needed(truth: Truth) -> None:
    assert kinds(truth, event("term", "A")) == []


def test_without_a_claim(truth: Truth) -> None:
    truth.asks.clear()
    assert kinds(truth, event("term", "A")) == ["nobody waited"]


def test_of_a_loan_that_somebody_else_wants(truth: Truth) -> None:
    truth.jobs["O"].bounds[0] = (GIB, 8 * GIB)
    assert kinds(truth, event("term", "A")) == ["nobody waited"]


def test_with_memory_to_spare(truth: Truth) -> None:
    truth.spans[1].down_from = truth.spans[1].down_by = NOW - 1
    assert kinds(truth, event("term", "A")) == ["no shortfall"]


def test_memory_that_may_have_been_there_a_moment_ago_is_no_fault(truth: Truth) -> None:
    truth.spans[1].down_from, truth.spans[1].down_by = NOW - 1, NOW + 1
    assert kinds(truth, event("term", "A")) == []


def test_of_a_job_without_a_loan(truth: Truth) -> None:
    truth.jobs["A"].bounds[0] = (4 * GIB, 16 * GIB)
    assert kinds(truth, event("term", "A")) == ["no borrower"]


def test_of_a_job_that_never_borrows(truth: Truth) -> None:
    truth.jobs["A"].bounds[0] = (2 * GIB, 2 * GIB)
    assert kinds(truth, event("term", "A")) == ["no borrower"]


def test_of_a_protected_job(truth: Truth) -> None:
    truth.jobs["A"].since, truth.jobs["A"].protected = NOW - 5, 20.0
    assert kinds(truth, event("term", "A")) == ["no borrower"]


def test_with_caches_that_nobody_was_asked_for(truth: Truth) -> None:
    truth.add(Span("B", 2, 0, 3 * GIB, 10, 11, cache=True))
    truth.spans[1].size -= 3 * GIB
    assert kinds(truth, event("term", "A")) == ["caches left"]
    assert kinds(truth, event("trim", "B", NOW - 0.1), event("term", "A")) == ["caches left"], "not waited for"
    over = event("trimmed", "B", NOW - 0.05)
    assert kinds(truth, event("trim", "B", NOW - 0.1), over, event("term", "A")) == []
    truth.jobs["B"].rungs = ("term", "kill")
    assert kinds(truth, event("term", "A")) == []


def test_in_vain(truth: Truth) -> None:
    truth.add(Span(None, 9, 0, 3 * GIB, 10, 11))
    truth.jobs["B"].bounds[0] = (8 * GIB, 8 * GIB)
    assert kinds(truth, event("term", "A")) == ["in vain"]


def test_two_where_one_would_do(truth: Truth) -> None:
    assert kinds(truth, event("term", "A"), event("term", "B")) == ["too many"]
    assert kinds(truth, event("term", "A"), event("term", "B", NOW + 1)) == ["too many"], "one is on its way"


def test_the_dearer_of_two(truth: Truth) -> None:
    assert kinds(truth, event("term", "B")) == ["too dear"], "it has more to lose"
    truth.jobs["A"].priority = 1
    assert kinds(truth, event("term", "B")) == []
    assert kinds(truth, event("term", "A")) == ["too dear"]


def three_lenders(truth: Truth) -> None:
    """C borrows 1 of the 4 that were free: now 3 are missing, and A's 4 or B's 8 cover them."""
    truth.jobs["C"] = Job("C", {0: (0, 16 * GIB)}, grace=1.0)
    truth.add(Span("C", 4, 0, GIB, 10, 11))


def test_one_of_high_priority_where_two_of_low_would_do(truth: Truth) -> None:
    three_lenders(truth)
    truth.jobs["B"].priority = 1
    truth.spans[0].size = 2 * GIB  # A's; with B's 8, C's 1 and the claim 1 is missing
    truth.asks[0].size = 8 * GIB  # and now 3
    assert kinds(truth, event("term", "B")) == ["too dear"]
    assert kinds(truth, event("term", "A"), event("term", "C")) == []
    truth.jobs["B"].priority = 0
    assert kinds(truth, event("term", "A"), event("term", "C")) == ["too dear"], "two where one of the class would do"


def test_more_of_the_highest_class_than_needed(truth: Truth) -> None:
    three_lenders(truth)
    truth.jobs["O"].bounds[0] = (12 * GIB, 12 * GIB)
    for name, priority in (("A", 0), ("B", 1), ("C", 1)):
        truth.jobs[name].priority = priority
    truth.asks[0].size = 8 * GIB
    truth.spans[0].size, truth.spans[1].size, truth.spans[2].size = 2 * GIB, 5 * GIB, 5 * GIB  # 4 are missing
    assert kinds(truth, event("term", "B"), event("term", "C")) == ["too many"]
    truth.spans[0].size, truth.spans[1].size, truth.spans[2].size = 4 * GIB, 3 * GIB, 5 * GIB
    assert kinds(truth, event("term", "A")) == []
    truth.asks[0].size = 9 * GIB  # 5 are missing: A and one of the others, or C alone
    assert kinds(truth, event("term", "A"), event("term", "B")) == ["too dear"], "C alone has fewer below"
    assert kinds(truth, event("term", "C")) == []


def test_one_above_its_lowered_limit_may_go_first(truth: Truth) -> None:
    truth.jobs["B"].priority = 1
    assert kinds(truth, event("term", "B")) == ["too dear"]
    truth.jobs["B"].bounds[0] = (0, 7 * GIB)
    assert kinds(truth, event("term", "B")) == []


def test_a_change_of_a_moment_ago_may_not_have_counted(truth: Truth) -> None:
    truth.jobs["B"].priority, truth.jobs["B"].changed = 1, NOW - 0.5
    assert kinds(truth, event("term", "B")) == []


def test_killed_although_one_of_low_priority_was_told_and_would_do(truth: Truth) -> None:
    truth.jobs["B"].priority = 1
    truth.jobs["O"].bounds[0] = (16 * GIB, 16 * GIB)
    truth.asks[0].size = 8 * GIB
    truth.asks.append(Ask("O", 4, 0, 5 * GIB, NOW - 1, ended=NOW + 3))  # together 9 are missing
    told = [event("term", "A"), event("term", "B")]
    assert kinds(truth, *told, event("kill", "B", NOW + 1.0)) == []
    truth.asks[1].ended = NOW + 0.5  # then only 4 are missing, and A would do
    assert kinds(truth, *told, event("kill", "B", NOW + 1.0)) == ["too dear"]
    assert kinds(truth, *told, event("kill", "A", NOW + 1.0)) == []


def test_killed_before_its_time(truth: Truth) -> None:
    assert kinds(truth, event("term", "A"), event("kill", "A", NOW + 0.5)) == ["hasty"]
    assert kinds(truth, event("term", "A"), event("kill", "A", NOW + 1.0)) == []


def test_a_grace_that_the_claim_could_not_wait_for_is_cut(truth: Truth) -> None:
    truth.longest_grace = 1.5  # and the claim is a second old
    assert kinds(truth, event("term", "A"), event("kill", "A", NOW + 0.5)) == []
    assert kinds(truth, event("term", "A"), event("kill", "A", NOW + 0.4)) == ["hasty"]


def test_killed_although_it_is_no_longer_needed(truth: Truth) -> None:
    truth.spans[1].down_from = truth.spans[1].down_by = NOW + 0.5
    assert kinds(truth, event("term", "A"), event("kill", "A", NOW + 1.0)) == ["no shortfall"]


def test_killed_without_notice(truth: Truth) -> None:
    assert kinds(truth, event("kill", "A")) == []
    assert kinds(truth, event("kill", "B")) == ["too dear"]
