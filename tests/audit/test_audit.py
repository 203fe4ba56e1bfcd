"""A short audit, and the judge itself: violations that are forged must be found, and what is allowed must not."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from audit import act, law, report
from audit.act import Act, Job, Result, Violation
from audit.book import BUCKETS, DEAD, Book, bucket_end, bucket_of
from audit.ground import TOKEN, carriers
from audit.kinds import CAPACITY, KINDS, UNIT, borrower, owner, quantity, shares
from audit.law import SECOND, Away, Ceiling

MiB = 1 << 20
GiB = 1 << 30
TESTS = Path(__file__).parent.parent


def test_short_audit(tmp_path: Path) -> None:
    """The whole tool on its gentle kind: no violation, and figures that show that something has been judged."""
    out = tmp_path / "report.json"
    command = [sys.executable, "-m", "audit", "--kind", "gentle", "--seconds", "12", "--seed", "1", "--json", str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((".", str(TESTS)))}
    done = subprocess.run(
        command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(out.read_text())["figures"]
    assert figures["violations"] == {}
    assert figures["within_request"] > 200
    assert figures["claims_that_waited"] > 0
    assert figures["samples"] > 20
    assert figures["longest_wait"] < 30


# -- the judge -------------------------------------------------------------------------------------------------


def refused(since: float, until: float) -> dict[str, Any]:
    return {
        "what": "refused",
        "code": "CUDA_ERROR_OUT_OF_MEMORY",
        "kind": "linear",
        "size": 5 * MiB,
        "reserved": 90 * MiB,
        "request": 100 * MiB,
        "since": int(since * SECOND),
        "until": int(until * SECOND),
    }


def test_refusal_within_the_request_is_a_violation() -> None:
    said = law.refusal(refused(10, 10.1), [])
    assert said is not None
    assert "CUDA_ERROR_OUT_OF_MEMORY after 0.100 s for 5 MiB" in said


@pytest.mark.parametrize(
    ("since", "until", "gone", "back", "allowed"),
    [
        (10, 40.1, 9.5, 50, True),  # it has waited as long as a claim
        (42, 42.0, 9.5, 50, True),  # the next ones fail at once
        (50.5, 50.6, 9.5, 50, True),  # the program has not noticed yet that there is one again
        (10, 12.1, 9.5, 50, False),  # it did not wait
        (10, 40.1, 9.5, 38.5, False),  # the daemon was back in time
        (52, 52.1, 9.5, 50, False),  # long back
        (5, 8, 9.5, 50, False),  # before
    ],
)
def test_refusal_without_a_daemon(since: float, until: float, gone: float, back: float, allowed: bool) -> None:
    aways = [Away(int(gone * SECOND), int(back * SECOND))]
    assert (law.refusal(refused(since, until), aways) is None) == allowed


def test_wait_longer_than_a_claim_is_a_violation() -> None:
    assert law.wait(0, 30 * SECOND, []) is None
    assert law.wait(0, 32 * SECOND, []) == "waited 32.0 s, 32.0 s of them with a daemon"


def test_wait_begins_again_with_a_new_daemon() -> None:
    away = Away(20 * SECOND, 23 * SECOND)
    assert law.wait(0, 53 * SECOND, [away]) is None
    assert law.wait(0, 55 * SECOND, [away]) is not None
    assert law.wait(24 * SECOND, 56 * SECOND, [away]) is not None


def test_stop_of_one_that_was_within_its_request() -> None:
    assert law.stop(100 * SECOND, [0], 0) == "was stopped, and has never had more than its request"
    assert law.stop(100 * SECOND, [97 * SECOND, 3], 0) == "was stopped 3.0 s after it was last above its request"
    assert law.stop(100 * SECOND, [99 * SECOND, 0], 0) is None
    assert law.stop(100 * SECOND, [0], 1) is None, "a loan may just have been granted"


def test_final_figures() -> None:
    assert law.final([0, 0], [0, 0]) is None
    assert law.final([0, 2 * MiB], [0, 0]) is not None


def test_ceiling() -> None:
    ceiling = Ceiling(4 * GiB)
    assert ceiling.judge(4 * GiB, 0) is None
    assert ceiling.judge(4 * GiB + 1, 0) == "the driver shows 4,096 MiB, above the limit of 4,096 MiB"


def test_ceiling_that_is_lowered_lets_nobody_grow() -> None:
    ceiling = Ceiling(4 * GiB)
    ceiling.lower(1 * GiB, 10 * SECOND)
    assert ceiling.judge(3 * GiB, int(10.2 * SECOND)) is None
    assert ceiling.judge(2 * GiB, int(11.2 * SECOND)) is None
    assert ceiling.judge(2 * GiB, int(11.4 * SECOND)) is None
    assert ceiling.judge(2 * GiB + UNIT, int(11.6 * SECOND)) is not None
    assert ceiling.judge(1 * GiB, int(11.8 * SECOND)) is None
    assert ceiling.judge(2 * GiB, int(12.1 * SECOND)) is None, "freed a moment ago, and taken again"
    assert ceiling.judge(1 * GiB, int(12.7 * SECOND)) is None
    assert ceiling.judge(1 * GiB, int(13.5 * SECOND)) is None
    assert ceiling.judge(1 * GiB + UNIT, int(13.9 * SECOND)) is not None
    ceiling.lift(3 * GiB)
    assert ceiling.judge(3 * GiB, 14 * SECOND) is None


def test_ceiling_begins_with_the_first_sample_after_the_change() -> None:
    ceiling = Ceiling(4 * GiB)
    ceiling.lower(1 * GiB, 10 * SECOND)
    assert ceiling.judge(3 * GiB, 12 * SECOND) is None
    assert ceiling.judge(3 * GiB + UNIT, 13 * SECOND) is not None


# -- what the judge is told ------------------------------------------------------------------------------------


@pytest.fixture
def book(tmp_path: Path) -> Book:
    book = Book.make(tmp_path / "job.book", request=100 * MiB, limit=200 * MiB, cap=200 * MiB, context=10 * MiB)
    book.enter(0, 1)
    return book


def test_book_tells_within_from_above(book: Book) -> None:
    assert book.reserve(0, 60 * MiB, 200 * MiB) is True
    assert book.header.reserved_above[0] == 0
    book.place = 1
    assert book.reserve(0, 40 * MiB, 200 * MiB) is True, "exactly the request"
    assert book.reserve(0, 2 * MiB, 200 * MiB) is False
    assert book.header.reserved_above[0] > 0
    assert book.reserve(0, 200 * MiB, 200 * MiB) is None
    assert (book.reserved(0), book.reserved(1)) == (102 * MiB, 0)


def test_book_knows_when_the_job_held_too_much(book: Book) -> None:
    book.reserve(0, 150 * MiB, 200 * MiB)
    assert book.header.held_above[0] == 0, "it has only asked"
    assert sum(book.received(0, 90 * MiB).values()) == 90 * MiB
    assert book.header.held_above[0] == 0
    book.received(0, 20 * MiB)
    first = book.header.held_above[0]
    assert first > 0
    book.returning(0, 20 * MiB)
    assert book.header.held_above[0] > first, "until it gave back"
    assert book.held(0) == 90 * MiB


def test_book_of_a_dead_process_is_cleared(book: Book) -> None:
    book.reserve(0, 60 * MiB, 200 * MiB)
    book.contents.slots[0].state = DEAD
    book.clear(0)
    assert book.reserved(0) == 0


def test_buckets_hold_durations() -> None:
    for duration in (0, 999, 1000, 1500, 12_345, 1_000_000, 30 * SECOND, 1 << 60):
        bucket = bucket_of(duration)
        assert bucket < BUCKETS
        assert duration < 2000 or bucket == BUCKETS - 1 or bucket_end(bucket - 1) <= duration < bucket_end(bucket)


# -- an act over forged jobs -----------------------------------------------------------------------------------


class Forged(Act):
    """An act without a node: its jobs are books that the test writes."""

    def __init__(self, directory: Path) -> None:
        self.result = Result("forged", "0")
        self.jobs, self.aways, self.recent = [], [], act.deque(maxlen=40)
        self.seated, self.seats, self.orphans, self.errands = {}, {}, {}, {}
        self.began = 0.0
        self.say = lambda _: None
        self.directory = directory
        self.shown: list[dict[int, int]] = [{}]
        self.nvml = self  # type: ignore[assignment]
        self.gpus = [0]
        self.ground = self  # type: ignore[assignment]
        self.keep = False

    def processes(self, gpu: int) -> dict[int, int]:
        return self.shown[gpu]

    def logged(self, job: str) -> list[str]:
        return [f"what the daemon said of {job}"]

    def job(self, plan: act.Plan) -> Job:
        path = self.directory / f"{len(self.jobs)}.book"
        book = Book.make(path, plan.request, plan.limit, plan.cap, 0)
        book.enter(0, 4_000_000)
        errors = path.with_suffix(".err")
        errors.write_text("what the program said\n")
        job = Job("forged-1", plan, book, 4_000_001, errors, 1e9, [Ceiling(plan.limit)], main=4_000_000)
        self.jobs.append(job)
        return job

    def found(self) -> list[tuple[str, str]]:
        return [(violation.law, violation.text) for violation in self.result.violations]


@pytest.fixture
def forged(tmp_path: Path) -> Iterator[Forged]:
    yield Forged(tmp_path)


RNG = random.Random(1)


def test_lowered_limit_is_in_force_a_moment_later(forged: Forged) -> None:
    """What the job frees it may use again for a tenth of a second."""
    job = forged.job(owner(1 * GiB, RNG, limit=4 * GiB))
    job.lowered = (2 * GiB, 100.0, False)
    for now in (100.5, 101.1, 101.5):
        forged.settle(job, now)
        assert job.book.header.limit == 4 * GiB
    forged.settle(job, 102.2)
    assert job.book.header.limit == 2 * GiB and job.lowered is None


def test_nor_for_a_job_that_has_more(forged: Forged) -> None:
    job = forged.job(owner(1 * GiB, RNG, limit=4 * GiB))
    job.book.enter(0, 4_000_000)
    job.book.reserve(0, 3 * GiB, 4 * GiB)
    job.lowered = (2 * GiB, 100.0, False)
    for now in (101.1, 102.2, 103.3):
        forged.settle(job, now)
        assert job.book.header.limit == 4 * GiB
    job.book.release(0, 3 * GiB)
    for now in (104.4, 105.5):
        forged.settle(job, now)
    assert job.book.header.limit == 2 * GiB


def test_refused_owner_is_found_with_its_story(forged: Forged) -> None:
    job = forged.job(owner(1 * GiB, RNG))
    job.book.write(**refused(1, 2))
    forged.hear(job)
    [violation] = forged.result.violations
    assert violation.law == "refused"
    assert violation.facts["size"] == 5 * MiB
    assert "what the program said" in violation.evidence
    assert "what the daemon said of forged-1" in violation.evidence
    assert "replay" in report.account(forged.result, violation, "replay")


def test_sample_above_the_limit_is_found(forged: Forged) -> None:
    job = forged.job(owner(1 * GiB, RNG))
    job.book.reserve(0, 2 * GiB, 3 * GiB)
    forged.shown = [{4_000_000: 1 * GiB}]
    forged.sample()
    assert forged.found() == []
    job.book.enter(1, 4_000_002)
    forged.shown = [{4_000_000: 1 * GiB, 4_000_002: UNIT, 7: 9 * GiB}]
    forged.sample()
    assert forged.found() == [("limit", "the driver shows 1,026 MiB, above the limit of 1,024 MiB")]


@pytest.mark.parametrize(("shown", "found"), [({}, []), ({4_000_002: GiB}, ["limit"])])
def test_dead_process_counts_towards_the_limit_while_the_driver_shows_it(
    forged: Forged, shown: dict[int, int], found: list[str]
) -> None:
    job = forged.job(owner(1 * GiB, RNG))
    forged.shown = [shown]
    job.book.write(
        what="over_limit", holders={os.getpid(): 600 * MiB, 4_000_002: 600 * MiB}, limit=GiB, gpu=0, size=2 * MiB
    )
    forged.hear(job)
    assert [law for law, _ in forged.found()] == found


def test_living_processes_count_towards_the_limit(forged: Forged) -> None:
    """Whatever the driver shows by now: they had it."""
    job = forged.job(owner(1 * GiB, RNG))
    job.book.write(what="over_limit", holders={os.getpid(): 1030 * MiB}, limit=GiB, gpu=0, size=2 * MiB)
    forged.hear(job)
    assert forged.found() == [("limit", "the driver had given 1,030 MiB of a limit of 1,024 MiB")]


def test_program_that_notes_less_than_it_has_is_found(forged: Forged) -> None:
    job = forged.job(owner(1 * GiB, RNG))
    job.book.reserve(0, 100 * MiB, GiB)
    forged.shown = [{4_000_000: 102 * MiB}]
    forged.sample()
    assert forged.found() == [("auditor", "the driver shows 102 MiB where the program has noted 100 MiB")]


def test_what_a_program_takes_and_frees_while_the_driver_is_asked_is_noted(forged: Forged) -> None:
    """On a busy machine the auditor may be interrupted for longer than an allocation lives."""
    job = forged.job(owner(1 * GiB, RNG))
    job.book.reserve(0, 100 * MiB, GiB)

    def churn(gpu: int) -> dict[int, int]:
        job.book.reserve(0, 50 * MiB, GiB)
        job.book.release(0, 50 * MiB)
        return {4_000_000: churn.shows * MiB}  # type: ignore[attr-defined]

    forged.processes = churn  # type: ignore[method-assign]
    churn.shows = 150  # type: ignore[attr-defined]
    forged.sample()
    assert forged.found() == []
    churn.shows = 151  # type: ignore[attr-defined]
    forged.sample()
    assert forged.found() == [("auditor", "the driver shows 151 MiB where the program has noted 150 MiB")]


def test_owner_killed_within_its_request_is_found(forged: Forged) -> None:
    job = forged.job(owner(1 * GiB, RNG))
    job.status, job.ended_at = 137, 50 * SECOND
    forged.close(job)
    assert forged.found() == [
        ("stopped", "the job ended with 137: was stopped, and has never had more than its request")
    ]


def test_owner_killed_by_the_auditor_is_no_violation(forged: Forged) -> None:
    job = forged.job(owner(1 * GiB, RNG))
    job.struck[job.main] = 1
    job.status, job.ended_at = 137, 50 * SECOND
    forged.close(job)
    assert forged.found() == []


def test_borrower_killed_for_its_loan_is_no_violation(forged: Forged) -> None:
    job = forged.job(borrower(RNG))
    job.book.reserve(0, 1 * GiB, 2 * GiB)
    job.book.received(0, 1 * GiB)
    job.status, job.ended_at = 137, 1 << 61
    forged.close(job)
    assert forged.found() == []
    assert forged.result.notes["stopped for its loan"] == 1


def test_borrower_killed_after_it_gave_back_is_found(forged: Forged) -> None:
    job = forged.job(borrower(RNG, request=512 * MiB))
    job.book.reserve(0, 1 * GiB, 2 * GiB)
    job.book.received(0, 1 * GiB)
    job.book.returning(0, 600 * MiB)
    job.status, job.ended_at = 137, job.book.header.held_above[0] + 3 * SECOND
    forged.close(job)
    assert forged.found() == [
        ("stopped", "the job ended with 137: was stopped 3.0 s after it was last above its request")
    ]


def test_sigterm_to_an_owner_is_found(forged: Forged) -> None:
    job = forged.job(owner(1 * GiB, RNG))
    job.book.write(what="term", at=9 * SECOND, held=[MiB], held_above=[0], request=GiB, in_flight=0)
    forged.hear(job)
    assert forged.found() == [("stopped", "SIGTERM: was stopped, and has never had more than its request")]


def test_allocation_that_never_returns_is_found(forged: Forged) -> None:
    job = forged.job(owner(1 * GiB, RNG))
    flight = job.book.contents.slots[0].flights[0]
    flight.since, flight.size, flight.within = SECOND, MiB, 1
    forged.watch(job, 31 * SECOND)
    assert forged.found() == []
    forged.watch(job, 33 * SECOND)
    forged.watch(job, 34 * SECOND)
    assert forged.found() == [("late", "waited 32.0 s, 32.0 s of them with a daemon")]


def test_program_that_breaks_is_found(forged: Forged) -> None:
    job = forged.job(owner(1 * GiB, RNG))
    job.status, job.ended_at = 1, SECOND
    forged.close(job)
    assert forged.found() == [("broken", "the job ended with 1")]


def test_violations_are_counted_beyond_those_that_are_told(forged: Forged) -> None:
    for _ in range(100):
        forged.violation("refused", None, "again")
    assert len(forged.result.violations) == act.MOST_VIOLATIONS
    assert forged.result.counted["refused"] == 100
    assert "refused 100" in report.text([forged.result])
    assert report.figures([forged.result])["violations"] == {"refused": 100}


def test_report_can_be_read_again(forged: Forged) -> None:
    forged.violation("final", None, "something was left")
    data = json.loads(report.as_json([forged.result]))
    assert Violation(**data["acts"][0]["violations"][0]).text == "something was left"


# -- kinds and ground ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_requests_of_a_kind_fit(kind: Any, seed: int) -> None:
    """All seats are always admitted, and each program has room for its contexts."""
    rng = random.Random(seed)
    plot = kind.plot(rng)
    plans = [seat(rng) for seat in plot.seats]
    for gpu in (0, 1):
        assert sum(plan.request for plan in plans if gpu in plan.gpus and not plan.spec.borrows) <= CAPACITY
    for plan in plans:
        assert plan.request <= plan.limit
        assert plan.spec.borrows or plan.request >= 450 * MiB * plan.spec.processes
    assert len(plot.delays) == len(plot.seats)


def test_shares_fill_what_there_is() -> None:
    parts = shares(RNG, 3, CAPACITY, 2 * GiB)
    assert CAPACITY - UNIT < sum(parts) <= CAPACITY
    assert min(parts) >= 2 * GiB
    assert all(part % UNIT == 0 for part in parts)


def test_amounts_are_exact() -> None:
    assert quantity(0) == "none"
    assert quantity(3 * GiB) == "3072Mi"


def test_only_carriers_of_the_token_are_ours() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(["cat"], env={TOKEN: "0123"}, stdin=pipe, stdout=pipe, bufsize=0) as child:
        assert child.stdin is not None and child.stdout is not None
        # The kernel shows a new program's environment a moment after exec has closed the parent's pipes:
        # a program that answers has one.
        child.stdin.write(b"?")
        assert child.stdout.read(1) == b"?"
        assert len(list(carriers("0123"))) == 1
        assert list(carriers("012")) == []
