"""The world of the benchmark over time keeps honest books, and its schedulers do what their names say.

Its bars are for `make bench-time`: they need hours of simulated time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

import over_time  # noqa: E402
import over_time_bounds  # noqa: E402
import over_time_schedulers  # noqa: E402
from over_time_judge import Picture, plan  # noqa: E402
from over_time_picture import bars  # noqa: E402
from over_time_traces import GENERATORS, HOUR, NODE, Job, Trace, bursty, with_checkpoints  # noqa: E402
from over_time_world import RESTORE, Move, Start, Stop, World, figures, fits, place  # noqa: E402

TASKS, GPUS = 1, 4


def job(name: str, queue: str = "a", arrival: float = 0.0, work: float = 1000.0, *, tasks=TASKS, gpus=GPUS, every=None):
    return Job(name, queue, arrival, tasks, gpus, work, every)


def trace(*jobs: Job, nodes: int = 2, until: float = 2000.0, **quotas: int) -> Trace:
    return Trace("made", 0, 1.0, nodes, quotas or {"a": 8, "b": 8}, jobs, until)


class Script:
    """Does at each moment what it was told beforehand, and may ask to be woken."""

    def __init__(self, **commands) -> None:
        self.at = {float(moment[1:]): found for moment, found in commands.items()}

    def decide(self, now, *_):
        return self.at.pop(now, [])

    def wake(self):
        return min(self.at, default=None)


def played(of: Trace, scheduler) -> World:
    world = World(of)
    world.play(scheduler(world) if callable(scheduler) else scheduler)
    return world


# ---- the books ----------------------------------------------------------------------------------------


def test_work_that_a_stop_loses_is_not_useful() -> None:
    script = Script(t0=[Start("j", (0,))], t300=[Stop("j")], t400=[Start("j", (1,))])
    world = played(trace(job("j")), script)
    book = world.books["j"]
    assert book.ended == 1400
    assert book.lost == 4 * 300
    assert figures(world)["useful"] == pytest.approx(4 * 1000 / (16 * 2000))
    assert figures(world)["delay"]["mean"] == 400


def test_what_was_saved_is_useful_and_the_restore_is_not() -> None:
    script = Script(t0=[Start("j", (0,))], t350=[Stop("j")], t400=[Start("j", (1,))])
    world = played(trace(job("j", every=100.0)), script)
    book = world.books["j"]
    assert book.lost == 4 * 50
    assert book.ended == 400 + RESTORE + 700
    assert book.useful == [(0.0, 300.0), (400 + RESTORE, 400 + RESTORE + 700)]


def test_useful_work_after_the_last_arrival_does_not_count() -> None:
    world = played(trace(job("j"), until=500.0), Script(t0=[Start("j", (0,))]))
    assert figures(world)["useful"] == pytest.approx(4 * 500 / (16 * 500))


def test_a_move_costs_what_a_stop_costs() -> None:
    script = Script(t0=[Start("j", (0,))], t300=[Move("j", (1,))])
    world = played(trace(job("j")), script)
    book = world.books["j"]
    assert (book.moves, book.lost_by_moves, book.ended) == (1, 4 * 300, 1300)
    assert not book.evictions
    saved = played(trace(job("j", every=100.0)), Script(t0=[Start("j", (0,))], t300=[Move("j", (1,))]))
    assert (saved.books["j"].lost_by_moves, saved.books["j"].ended) == (4 * RESTORE, 1000 + RESTORE)


def test_two_jobs_may_change_places_at_one_moment() -> None:
    jobs = job("j", gpus=8), job("k", gpus=8)
    script = Script(t0=[Start("j", (0,)), Start("k", (1,))], t10=[Move("j", (1,)), Move("k", (0,))])
    assert played(trace(*jobs), script).books["k"].moves == 1


def test_a_start_that_is_undone_at_once_and_evictions_of_a_day_are_counted() -> None:
    script = Script(t0=[Start("j", (0,))], t30=[Stop("j")], t40=[Start("j", (0,))], t140=[Stop("j")])
    script.at[90_000.0] = [Start("j", (0,))]
    found = figures(played(trace(job("j"), until=100_000.0), script))
    assert (found["undone"], found["evictions"], found["evictions_of_one_in_a_day"]) == (1, 2, 2)


def test_an_eviction_is_needless_only_while_the_taker_fits_elsewhere() -> None:
    jobs = job("old", gpus=8), job("new", "b", 10.0)
    commands = [Stop("old", "new"), Start("new", (0,))]
    script = Script(t0=[Start("old", (0,))], t10=commands, t2000=[Start("old", (1,))])
    assert played(trace(*jobs), script).needless == 1
    third = job("third", gpus=8)
    script = Script(t0=[Start("old", (0,)), Start("third", (1,))], t10=commands, t2000=[Start("old", (1,))])
    assert played(trace(*jobs[:1], third, *jobs[1:]), script).needless == 0


def test_only_who_waits_within_its_quota_is_owed_something() -> None:
    """a-2 fits into a's quota of 8 beside a-1, a-3 does not; b-1 is larger than b's quota."""
    jobs = [job("a-1"), job("a-2"), job("a-3"), job("b-1", "b", gpus=8)]
    script = Script(
        t0=[Start("a-1", (0,))],
        t100=[Start("a-2", (0,))],
        t200=[Start("b-1", (1,))],
        t1200=[Start("a-3", (1,))],
    )
    world = played(trace(*jobs, a=8, b=4), script)
    # a-1 has ended at 1000, so a-3 is within quota from then on.
    assert {name: book.owed for name, book in world.books.items()} == {"a-1": 0, "a-2": 100, "a-3": 200, "b-1": 0}


def test_commands_that_break_the_books_are_refused() -> None:
    for wrong in ([Start("j", (0,)), Start("k", (0,))], [Start("j", (0, 1))], [Start("j", (0,), ((0, 0, 1, 2),))]):
        with pytest.raises(AssertionError):
            played(trace(job("j", gpus=8 if len(wrong) > 1 else 4), job("k", gpus=8)), Script(t0=wrong))


def test_a_scheduler_that_forgets_a_job_is_found_out() -> None:
    with pytest.raises(AssertionError, match="wait for ever"):
        played(trace(job("j")), Script())


def test_a_place_is_the_fullest_node_that_has_room() -> None:
    assert place(job("j"), [8, 4, 5]) == (1,)
    assert place(job("j", tasks=3), [8, 4, 3]) == (1, 0, 0)
    assert not fits(job("j", gpus=8), [7, 7])


# ---- what could have been done instead ------------------------------------------------------------------


def picture(of: Trace, **where: tuple[int, ...]) -> Picture:
    """Who runs on which nodes, a number for each task."""
    found = Picture(of.quotas, [NODE] * of.nodes)
    for one in of.jobs:
        if one.name in where:
            found.start(one, where[one.name])
    found.fresh.clear()
    return found


def test_a_plan_takes_from_queues_above_quota_alone() -> None:
    jobs = [job("more", gpus=8), job("rest", gpus=4), job("theirs", "b", gpus=4), job("own", "c", gpus=4)]
    of = trace(*jobs, a=8, b=4, c=4)
    assert plan(picture(of, more=(0,), rest=(1,), theirs=(1,)), of.jobs[3]) in (["more"], ["rest"])
    assert plan(picture(of, more=(0,), rest=(1,), theirs=(1,)), of.jobs[3], {"more", "rest"}) is None
    assert plan(picture(of, more=(0,), theirs=(1,)), of.jobs[3]) == [], "there is room"
    full = trace(*jobs, a=12, b=4, c=4)
    assert plan(picture(full, more=(0,), rest=(1,), theirs=(1,)), jobs[3]) is None, "nobody is above its quota"


def test_a_plan_may_not_cost_more_of_quotas_than_it_brings() -> None:
    """a holds 12 of 9: without `small` it is 1 below, without `large` 5."""
    jobs = [
        job("large", gpus=8),
        job("small", gpus=4),
        job("one", "b", gpus=1),
        job("four", "b"),
        job("b8", "b", gpus=8),
    ]
    of = trace(*jobs, a=9, b=8)
    where = picture(of, large=(0,), small=(1,))
    assert plan(where, jobs[2]) == []
    assert plan(where, jobs[4], {"small"}) == ["large"]
    assert plan(where, jobs[4], {"large"}) == ["small"]
    tight = trace(*jobs, job("more", "b", gpus=4), a=9, b=8)
    assert plan(picture(tight, large=(0,), small=(1,), more=(1,)), jobs[2]) is None
    oversized = trace(*jobs, job("more", "b", gpus=4), a=7, b=8)
    assert plan(picture(oversized, large=(0,), small=(1,), more=(1,)), jobs[2]) == ["large"], (
        "it is not in quota at all"
    )


def test_who_has_just_started_is_in_no_plan() -> None:
    of = trace(job("more", gpus=8), job("own", "b", gpus=8), job("fill", "b", gpus=8), a=4, b=16)
    where = picture(of, more=(0,), fill=(1,))
    assert plan(where, of.jobs[1]) == ["more"]
    where.fresh.add("more")
    assert plan(where, of.jobs[1]) is None


def judged(of: Trace, script: Script) -> World:
    world = World(of, judged=True)
    world.play(script)
    return world


@pytest.mark.parametrize("other", [True, False])
def test_a_fourth_eviction_in_a_day_is_forced_if_nobody_else_could_go(other: bool) -> None:
    jobs = [job("often", gpus=8, work=5000.0)]
    jobs += [job(f"own-{n}", "b", arrival=100.0 * n, gpus=8, work=50.0) for n in range(1, 5)]
    jobs[1:1] = [job("beside", "a" if other else "b", gpus=8, work=5000.0)]
    script = Script(t0=[Start("often", (0,)), Start("beside", (1,))])
    for n in range(1, 5):
        script.at[100.0 * n] = [Stop("often", f"own-{n}"), Start(f"own-{n}", (0,))]
        script.at[100.0 * n + 60.0] = [Start("often", (0,))]
    found = figures(judged(trace(*jobs, a=4, b=16), script))
    assert found["evictions_of_one_in_a_day"] == 4
    assert (found["forced"], found["unforced_of_one_in_a_day"]) == ((0, 4) if other else (1, 3))


def test_an_owed_wait_is_neglect_only_while_there_is_a_plan() -> None:
    """At first `fill` is on the other node; later `other` is, which the owner may stop."""
    jobs = [
        job("fill", "b", gpus=8, work=300.0),
        job("base", "c", gpus=8, work=1000.0),
        job("own", "b", arrival=100.0, gpus=8),
    ]
    jobs.append(job("other", gpus=8, arrival=300.0, work=500.0))
    script = Script(
        t0=[Start("fill", (0,)), Start("base", (1,))], t300=[Start("other", (0,))], t800=[Start("own", (0,))]
    )
    book = judged(trace(*jobs, a=4, b=16, c=8), script).books["own"]
    assert (book.owed, book.neglected) == (700, 500)


# ---- who decides --------------------------------------------------------------------------------------


def test_backfill_does_not_delay_the_first_who_waits() -> None:
    jobs = [
        job("half", gpus=8, work=1000.0),
        job("wide", tasks=2, gpus=8, arrival=1.0),
        job("long", arrival=2.0, work=2000.0),
        job("short", arrival=3.0, work=500.0),
    ]
    world = played(trace(*jobs, a=16), over_time_schedulers.Backfill)
    assert {name: book.started for name, book in world.books.items()} == {
        "half": 0,
        "wide": 1000,
        "long": 2000,
        "short": 3,
    }


def test_quota_first_lets_owners_pass() -> None:
    jobs = [job("big", tasks=2, gpus=8), job("more", gpus=8, arrival=1.0), job("own", "b", arrival=2.0)]
    of = trace(*jobs, a=8, b=8)
    assert played(of, over_time_schedulers.Backfill).books["own"].started == 1000  # beside more
    quota_first = played(of, lambda world: over_time_schedulers.Backfill(world, quota_first=True))
    assert quota_first._claims() == []
    assert [quota_first.books[name].started for name in ("more", "own")] == [1000, 1000]
    jobs = [job("big", tasks=2, gpus=8), job("more", tasks=2, gpus=8, arrival=1.0), job("own", "b", arrival=2.0)]
    of = trace(*jobs, a=8, b=8)
    assert played(of, over_time_schedulers.Backfill).books["own"].started == 2000
    quota_first = played(of, lambda world: over_time_schedulers.Backfill(world, quota_first=True))
    assert quota_first.books["own"].started == 1000


def test_reclaim_stops_the_newest_that_are_needed_and_no_more() -> None:
    jobs = [job("old"), job("mid", arrival=1.0), job("new", arrival=2.0), job("last", arrival=3.0)]
    jobs.append(job("own", "b", gpus=4, arrival=10.0))
    world = played(trace(*jobs, a=4, b=8), over_time_schedulers.Reclaim)
    assert [name for name, book in world.books.items() if book.evictions] == ["last"]
    assert world.books["own"].started == 10
    assert world.books["last"].ended == 2000


def test_reclaim_leaves_what_is_within_quota() -> None:
    jobs = [job("one", gpus=8), job("two", gpus=8, arrival=1.0), job("own", "b", gpus=4, arrival=10.0)]
    world = played(trace(*jobs, a=16, b=4, nodes=2), over_time_schedulers.Reclaim)
    assert not world.books["two"].evictions
    assert world.books["own"].started == 1000


def test_fair_shares_are_taken_back_too() -> None:
    """Nobody has a quota that is used: c asks for nothing, so a and b share its 8 GPUs as they have quotas."""
    jobs = [job(f"a-{n}", arrival=float(n)) for n in range(6)] + [job("b-1", "b", arrival=10.0, gpus=8)]
    of = trace(*jobs, a=4, b=4, c=16, nodes=3)
    assert played(of, over_time_schedulers.Reclaim).books["b-1"].started == 1001
    fair = played(of, lambda world: over_time_schedulers.Reclaim(world, fair=True))
    assert fair.books["b-1"].started == 10
    assert [name for name, book in fair.books.items() if book.evictions] == ["a-4", "a-5"]


def test_fair_shares_divide_what_is_left_over_by_quota() -> None:
    world = World(trace(job("j", gpus=8), job("k", "b", gpus=2), job("l", "c", gpus=8), a=4, b=8, c=2, nodes=2))
    for one in world.trace.jobs:
        world.waiting[one.name] = one
    assert over_time_schedulers.fair_shares(world) == {"a": 8, "b": 2, "c": pytest.approx(6)}
    world.waiting.pop("l")
    assert over_time_schedulers.fair_shares(world) == {"a": 8, "b": 2, "c": 0}


def test_who_knows_durations_stops_who_loses_least_and_starts_the_largest_first() -> None:
    jobs = [job("old"), job("wide", gpus=8, arrival=1.0, work=3000.0), job("new", arrival=200.0, work=2000.0)]
    jobs.append(job("own", "b", arrival=210.0))
    world = played(trace(*jobs, a=4, b=8), over_time_schedulers.Durations)
    assert [name for name, book in world.books.items() if book.evictions] == ["new"]
    assert world.books["own"].started == 210
    waits = [job("base", tasks=2, gpus=8), job("long", arrival=1.0, work=900.0), job("short", arrival=2.0, work=100.0)]
    waits.append(job("large", gpus=8, arrival=3.0))
    waits.append(job("later", gpus=8, arrival=4.0, work=500.0))
    books = played(trace(*waits, a=1, b=8), over_time_schedulers.Durations).books
    assert [books[name].started for name in ("large", "later", "short")] == [1000, 1000, 1500]


def test_the_allocator_plays_by_the_books() -> None:
    of = with_checkpoints(bursty(2, 1.0, jobs=60), 600.0)
    world = played(of, over_time_schedulers.Gpushare)
    assert all(book.ended is not None for book in world.books.values())
    assert sum(map(len, world.free)) == of.capacity


# ---- traces and bounds --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(GENERATORS))
def test_a_trace_has_its_load_and_is_the_same_every_time(name: str) -> None:
    of = GENERATORS[name](3, 0.9)
    assert of == GENERATORS[name](3, 0.9)
    assert of.jobs != GENERATORS[name](4, 0.9).jobs
    assert sum(one.size * one.work for one in of.jobs) == pytest.approx(0.9 * of.capacity * of.until)
    assert [one.arrival for one in of.jobs] == sorted(one.arrival for one in of.jobs)
    assert of.jobs[-1].arrival == pytest.approx(of.until)
    assert sum(of.quotas.values()) == of.capacity
    assert all(one.gpus <= NODE and one.tasks <= of.nodes for one in of.jobs)


def test_philly_is_as_published() -> None:
    jobs = [one for seed in range(1, 6) for one in GENERATORS["philly"](seed, 1.0).jobs]
    assert sum(one.size == 1 for one in jobs) / len(jobs) == pytest.approx(0.824, abs=0.02)
    assert sum(one.size for one in jobs) / len(jobs) == pytest.approx(1.93, abs=0.15)
    time = sum(one.size * one.work for one in jobs)
    assert sum(one.size * one.work for one in jobs if one.size == 8) / time == pytest.approx(0.5, abs=0.12)
    work = sorted(one.work for one in jobs)
    assert 450 < work[len(work) // 2] < 900
    assert work[int(len(work) * 0.9)] == pytest.approx(4.5 * HOUR, rel=0.5)


def test_who_knows_everything_is_between_the_simple_ones_and_the_ceiling() -> None:
    of = bursty(1, 1.0, jobs=200)
    found = over_time_bounds.foreseen(of)
    top = over_time_bounds.ceiling(of)
    assert found["useful"] <= top + 1e-9 <= 1 + 1e-9
    for scheduler in (over_time_schedulers.Backfill, over_time_schedulers.Reclaim):
        assert figures(played(of, scheduler))["useful"] <= top + 1e-9
    assert found["useful"] > 0.9 * figures(played(of, over_time_schedulers.Reclaim))["useful"]


def test_the_ceiling_counts_what_cannot_have_been_done() -> None:
    late = job("late", arrival=1500.0, work=1000.0, gpus=8)
    assert over_time_bounds.ceiling(trace(late)) == pytest.approx(8 * 500 / (16 * 2000))
    crowd = [job(f"j{n}", work=4000.0, gpus=8) for n in range(5)]
    assert over_time_bounds.ceiling(trace(*crowd)) == 1


def test_a_job_above_quota_cannot_begin_where_owners_surely_run() -> None:
    """a's two jobs run from GRACE after they came at the latest, so 16 GPUs are free for `wide` only at 4000."""
    jobs = [job("one", gpus=4, work=4000.0), job("two", gpus=4, work=4000.0), job("wide", "b", tasks=2, gpus=8)]
    of = trace(*jobs, a=8, b=8, until=4500.0)
    assert over_time_bounds.ceiling(of) == pytest.approx((8 * 4000 + 16 * 1000) / (16 * 4500))
    assert over_time_bounds.kept(of) == pytest.approx((8 * 4000 + 16 * 500) / (16 * 4500))
    brief = trace(job("one", gpus=4, work=900.0), jobs[2], a=8, b=8, until=4500.0)
    assert over_time_bounds.kept(brief) == over_time_bounds.ceiling(brief), "within GRACE nothing is sure"


def test_who_borrows_leaves_in_time() -> None:
    """long would still run when own comes, so it waits although all is free; short borrows."""
    jobs = [
        job("base", gpus=8, work=5000.0),
        job("long", gpus=8, arrival=1.0, work=3000.0),
        job("short", gpus=8, arrival=2.0, work=90.0),
        job("own", "b", gpus=8, arrival=100.0),
    ]
    of = trace(*jobs, a=8, b=8)
    starts = over_time_bounds._improved(of, over_time_bounds.ORDERS[0])
    assert starts == {"base": 0.0, "long": 1100.0, "short": 2.0, "own": 100.0}
    assert over_time_bounds.own_starts(of)["long"] == 5000.0


# ---- the programme ------------------------------------------------------------------------------------


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(over_time.GENERATORS, "bursty", lambda seed, load: bursty(seed, load, jobs=30))
    wanted = list(over_time.games(["bursty"], 2, [1.0], ["fifo", "foreseen"]))
    assert len(wanted) == 8
    file = tmp_path / "results.json"
    known: dict = {}
    over_time.run(wanted, known, file, -1.0)
    assert not known
    over_time.run(wanted, known, file, 1000.0)
    kept = json.loads(file.read_text())
    assert set(kept) == {one.key for one in wanted} == set(known)
    marked = {key: {"useful": 7} for key in kept}
    over_time.run(wanted, marked, None, 1000.0)
    assert set(map(str, marked.values())) == {"{'useful': 7}"}


def test_the_table_and_the_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(over_time.GENERATORS, "bursty", lambda seed, load: bursty(seed, load, jobs=60))
    schedulers = ["fifo", "reclaim", "gpushare", "foreseen"]
    known: dict = {}
    over_time.run(list(over_time.games(["bursty"], 1, [1.0], schedulers)), known, None, 1000.0)
    lines = list(over_time.table(known))
    assert sum(line.startswith("gpushare") for line in lines) == 2
    assert any("no schedule has more than" in line for line in lines)
    found = list(over_time.wanted_bars(known))
    ours = known["bursty/1/1.0/none/gpushare"]
    bar = next(bar for bar in found if "by FIFO's" in bar.what and "useful" in bar.what and "none" in bar.what)
    assert bar.value == pytest.approx(ours["useful"] / known["bursty/1/1.0/none/fifo"]["useful"])
    assert bar.holds == (bar.value >= 0.93)
    assert {bar.bar for bar in found if bar.what.endswith("useful time by FIFO's")} == {0.93, 1.0}


def test_only_seeds_that_the_allocator_has_played_are_compared() -> None:
    known = {f"bursty/{seed}/1.0/none/fifo": {"useful": seed} for seed in (1, 2, 3)}
    assert over_time.average(over_time.of(known, "bursty", 1.0, "none", "fifo"), "useful") == 2
    known["bursty/3/1.0/none/gpushare"] = {"useful": 7}
    known["bursty/1/0.8/none/gpushare"] = {"useful": 8}
    assert over_time.of(known, "bursty", 1.0, "none", "fifo") == [{"useful": 3}]
    assert over_time.of(known, "bursty", 1.0, "none", "gpushare") == [{"useful": 7}]


def test_a_picture_shows_each_value() -> None:
    picture = bars("a < b", ["one", "two"], {"x": [1.0, 2.0], "y": [3.0, float("nan")]})
    root = ElementTree.fromstring(picture)
    titles = [one.text for one in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["x, one: 1", "x, two: 2", "y, one: 3"]
    tall = [float(one.get("height")) for one in root.iter("{http://www.w3.org/2000/svg}rect") if len(one)]
    assert tall[1] == pytest.approx(2 * tall[0], rel=0.01)
    assert tall[2] == pytest.approx(3 * tall[0], rel=0.01)
