"""The engine in memory: each fault by itself, what it promises without any, and what it does not let its caller do."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from gpushare.cluster.engines.memory import START_SECONDS, Faults, Memory, Overlap, judge, used_on
from gpushare.cluster.engines.seam import Accepted, Busy, Deposed, Evict, Gone, Refused, Start, Unanswered
from gpushare.cluster.model import Job, Node, Place, Tasks

NODE = Node("n", 4, 100)


def place(task: int = 0, *, group: int = 0, node: str = "n", gpus: tuple[int, ...] = (0,), amount: int = 100) -> Place:
    return Place(group, task, node, gpus, amount, 1)


class Driven(Memory):
    """With commands that have the next token."""

    def __init__(self, **faults: float) -> None:
        super().__init__(1, Faults(**faults))
        self.add(NODE, Node("m", 1, 100))
        self.number = 0

    def with_job(self, name: str = "j", least: int = 1, most: int | None = None, duration: float = 100.0) -> Driven:
        self.submit(Job(name, "q", (Tasks(least, most),)), duration)
        return self

    def token(self) -> tuple[int, int]:
        self.number += 1
        return 1, self.number

    def starts(self, *places: Place, name: str = "j", attempt: int = 1, rung: int = 0, token: Any = None) -> Any:
        return self.start(Start(name, attempt, places or (place(),), rung), token or self.token())

    def stops(
        self, *tasks: tuple[int, int], grace: float = 0.0, again: bool = True, attempt: int = 1, token: Any = None
    ) -> Any:
        return self.evict(Evict("j", attempt, tasks or ((0, 0),), grace, again), token or self.token())

    def phases(self, name: str = "j") -> list[str]:
        return [task.seen.phase for _, task in sorted(self.jobs[name].tasks.items())]


def driven(**faults: float) -> Driven:
    return Driven(**faults).with_job()


# ---- without faults -------------------------------------------------------------------------------


def test_a_task_starts_runs_for_its_time_and_is_done():
    one = driven()
    assert one.starts() == Accepted() and one.phases() == ["starting"]
    one.tick(START_SECONDS - 0.5)
    assert one.phases() == ["starting"] and one.jobs["j"].runs == 0
    one.tick(0.5)
    assert one.phases() == ["running"] and one.jobs["j"].runs == 1
    one.tick(99.5)
    assert one.phases() == ["running"] and not one.jobs["j"].ended
    one.tick(0.5)
    assert one.phases() == ["done"] and one.jobs["j"].ended and one.evicted == 0


def test_a_gang_is_done_when_all_that_run_have_had_their_time_and_are_enough():
    one = Driven().with_job(least=2, most=3, duration=10.0)
    one.starts(place(0))
    one.tick(START_SECONDS + 20)
    assert one.phases() == ["running"], "one is not enough"
    one.starts(place(1, gpus=(1,)))
    one.tick(START_SECONDS)
    assert one.phases() == ["running", "running"], "the second has its time before it"
    one.tick(10.0)
    assert one.phases() == ["done", "done"]


def test_what_has_not_begun_when_the_job_is_done_is_stopped():
    one = Driven().with_job(least=1, most=2, duration=10.0)
    one.starts(place(0))
    one.tick(START_SECONDS)
    one.tick(9.0)
    one.starts(place(1, gpus=(1,)))
    one.tick(1.0)
    assert one.phases() == ["done", "stopping"]
    one.tick(0.0)
    assert one.phases() == ["done"] and one.evicted == 1


def test_an_eviction_asks_and_kills_within_its_grace():
    one = driven()
    one.starts()
    one.tick(START_SECONDS)
    assert one.stops(grace=10.0) == Accepted() and one.phases() == ["stopping"]
    (task,) = one.jobs["j"].tasks.values()
    assert task.kill_at is not None and one.now <= task.kill_at <= one.now + 10.0
    first = task.kill_at
    assert one.stops(grace=1e6) == Accepted() and task.kill_at == first, "never later than it was told"
    one.tick(first - one.now)
    assert one.phases() == [] and (one.evicted, one.jobs["j"].evictions, one.jobs["j"].evicted) == (1, 1, 1)


@pytest.mark.parametrize(("again", "evictions"), [(True, 1), (False, 0)])
def test_an_eviction_counts_once_if_the_job_waits_again(again, evictions):
    one = Driven().with_job(least=2)
    one.starts(place(0), place(1, gpus=(1,)))
    one.stops((0, 0), again=again)
    assert one.jobs["j"].evictions == 0, "another task of it runs"
    one.stops((0, 1), again=again)
    one.stops((0, 1), again=again)
    assert one.jobs["j"].evictions == evictions
    one.tick()
    assert one.stops((0, 0), (0, 1), again=again) == Gone()


def test_a_record_goes_with_its_eviction():
    one = driven()
    one.broken.add("j")
    one.starts()
    one.tick(START_SECONDS)
    (task,) = one.jobs["j"].tasks.values()
    assert (task.seen.phase, task.seen.why, one.jobs["j"].runs) == ("failed", "it cannot start", 0)
    assert one.stops() == Accepted() and one.phases() == [] and one.evicted == 0


def test_a_cancelled_job_stops_at_once_and_does_not_start_again():
    one = driven()
    one.starts()
    one.cancel("j")
    assert one.phases() == ["stopping"] and one.starts() == Gone()
    one.tick()
    assert one.phases() == []
    assert (
        one.starts(name="other") == Gone() and one.evict(Evict("other", 1, ((0, 0),), 0.0, True), one.token()) == Gone()
    )


def test_a_late_or_doubled_command_does_nothing():
    one = driven()
    assert one.starts(token=(1, 5)) == Accepted()
    assert one.starts(place(amount=50), token=(1, 4)) == Accepted()
    (task,) = one.jobs["j"].tasks.values()
    assert task.seen.amount == 100, "an older one"
    assert one.stops(token=(1, 5)) == Gone() and one.phases() == ["starting"]
    assert one.starts(place(amount=50), token=(1, 6)) == Accepted() and task.seen.amount == 50
    with pytest.raises(Deposed, match="term 0 is over"):
        one.starts(token=(0, 9))
    with pytest.raises(Deposed):
        one.annotate("j", "x", (0, 9))
    one.annotate("j", "it waits", one.token())
    one.annotate("gone", "it waits", one.token())
    assert one.snapshot().jobs[0].note == "it waits"


def test_where_it_runs_already_and_where_it_does_not_fit():
    one = driven().with_job("k")
    one.starts()
    assert one.starts(place(gpus=(1,))) == Refused("it runs elsewhere")
    assert one.starts(place(node="m")) == Refused("it runs elsewhere")
    assert one.starts(name="k") == Refused("it does not fit", "n") and one.guarded == 1
    assert one.starts(place(gpus=(1,), amount=101), name="k") == Refused("it does not fit", "n")
    assert one.starts(place(gpus=(4,)), name="k") == Refused("there is no GPU (4,) on n", "n")
    assert one.starts(place(gpus=(-1,)), name="k") == Refused("there is no GPU (-1,) on n", "n")
    assert one.starts(place(node="x"), name="k") == Refused("there is no GPU (0,) on x", "x")
    assert one.starts(place(gpus=(3,)), name="k") == Accepted()


def test_an_attempt_waits_for_the_earlier_one_and_an_earlier_one_is_over():
    one = driven()
    one.starts(attempt=2)
    assert one.starts(place(gpus=(1,)), attempt=3) == Busy() and one.guarded == 1
    assert one.starts(attempt=1) == Refused("a later attempt is known")
    one.stops(attempt=2)
    one.tick()
    assert one.starts(attempt=3, rung=2) == Accepted()
    seen = one.snapshot().jobs[0]
    assert (seen.attempt, seen.rung, seen.evictions, seen.submitted) == (3, 2, 1, 0.0)


def test_programs_of_others_hold_their_bytes():
    one = driven()
    one.others = {"n": {0: 30, 1: 0}}
    one.tick()
    assert one.snapshot().nodes[0].foreign == ((0, 30),)
    assert one.starts(place(amount=71)) == Refused("it does not fit", "n") and one.guarded == 0
    assert one.starts(place(amount=70)) == Accepted()
    one.others = {}
    one.tick()
    assert one.snapshot().nodes[0].foreign == ()


# ---- who leads ------------------------------------------------------------------------------------


def test_one_leads_until_its_time_is_over():
    one = driven()
    assert one.lead("a", 10.0) == 1 and one.lead("b", 10.0) is None
    one.now = 9.0
    assert one.lead("a", 10.0) == 1, "it goes on"
    one.now = 18.9
    assert one.lead("b", 10.0) is None
    one.now = 19.0
    assert one.lead("b", 10.0) == 2 and one.lead("a", 5.0) is None
    one.now = 30.0
    assert one.lead("b", 10.0) == 3, "it was over in between"


def test_a_watch_lets_time_pass():
    one = driven()
    one.watch(0.1)
    one.watch(7.0)
    assert one.now == 8.0


# ---- nodes ----------------------------------------------------------------------------------------


def test_a_node_that_is_lost_has_nothing_left_and_one_that_is_silent_keeps_it():
    one = driven().with_job("k")
    one.starts()
    one.starts(place(node="m"), name="k")
    one.stays = {"n": "unknown", "m": "lost"}
    one.tick()
    assert [node.state for node in one.snapshot().nodes] == ["unknown", "lost"]
    assert one.phases() == ["starting"] and one.phases("k") == []
    with pytest.raises(Unanswered, match="does not answer"):
        one.starts(place(gpus=(1,)))
    with pytest.raises(Unanswered, match="does not answer"):
        one.stops()
    assert one.stops((0, 1)) == Gone(), "there is nothing on that node"
    assert one.starts(place(node="m"), name="k") == Refused("it is lost", "m")
    one.stays = {}
    one.tick()
    assert [node.state for node in one.snapshot().nodes] == ["ready", "ready"]


def test_nodes_have_trouble_of_all_kinds_and_come_back():
    one, seen = driven(node_trouble=1.0), []
    for _ in range(200):
        one.tick()
        seen.append(one.nodes["n"].state)
    assert set(seen) == {"ready", "unknown", "lost"}
    changes = set(pairwise(seen))
    assert ("ready", "lost") not in changes and ("ready", "unknown") in changes and ("unknown", "ready") in changes
    assert seen.count("lost") < seen.count("unknown")


def test_what_ran_on_a_node_that_is_lost_by_fate_is_gone():
    one = driven(node_trouble=1.0)
    one.starts()
    for _ in range(100):
        one.tick()
        if one.nodes["n"].state == "lost":
            assert one.phases() == []
            return
    raise AssertionError("never lost")


# ---- faults ---------------------------------------------------------------------------------------


def tried(one: Driven, number: int = 60) -> list[str]:
    """What came of starts of many jobs: an answer, or why there was none."""
    found = []
    for n in range(number):
        one.with_job(f"j{n}")
        try:
            found.append(type(one.starts(place(gpus=(0,), amount=0), name=f"j{n}")).__name__)
        except Unanswered as error:
            found.append(str(error))
    return found


def test_a_lost_command_is_obeyed_or_not():
    one = driven(lost=1.0)
    told = tried(one)
    assert set(told) == {"the command was lost", "the answer was lost"}
    for n, words in enumerate(told):
        assert one.phases(f"j{n}") == (["starting"] if words == "the answer was lost" else [])


def test_a_late_command_comes_within_forty_seconds():
    one = driven(late=1.0)
    with pytest.raises(Unanswered, match="the command is late"):
        one.starts()
    assert one.phases() == []
    for _ in range(41):
        one.tick()
    assert one.jobs["j"].runs == 1 and not one._late
    with pytest.raises(Unanswered):
        one.starts(attempt=2)
    one.guarded = 0
    one.tick(41.0)
    assert one.guarded == 0, "that it could not be obeyed is the fault's doing"


def test_late_commands_overtake_each_other_and_the_newest_counts():
    for seed in range(20):
        one = driven(late=1.0)
        one.random.seed(seed)
        for amount in (10, 20, 30):
            with pytest.raises(Unanswered):
                one.starts(place(amount=amount))
        one.tick(41.0)
        (task,) = one.jobs["j"].tasks.values()
        assert task.seen.amount == 30


def test_a_late_command_of_a_deposed_leader_does_nothing():
    one = driven(late=1.0)
    with pytest.raises(Unanswered):
        one.starts(token=(1, 1))
    one.lead("a", 1.0), one.lead("a", 1.0)
    one._obeyed.check_term((2, 0))
    one.tick(41.0)
    assert one.phases() == []


def test_a_doubled_command_comes_once_more():
    one = driven(doubled=1.0)
    assert one.starts() == Accepted() and len(one._late) == 1
    one.tick(41.0)
    assert one.jobs["j"].runs == 1 and one.guarded == 0


@pytest.mark.parametrize(("fault", "why"), [("refused", "by fate"), ("half_done", "half of it was started")])
def test_a_start_is_refused_by_fate_for_the_job_or_its_node(fault, why):
    one, blamed = Driven(**{fault: 1.0}), set()
    for n in range(40):
        one.with_job(f"j{n}", least=2)
        answer = one.starts(place(0, amount=0), place(1, gpus=(1,), amount=0), name=f"j{n}")
        assert isinstance(answer, Refused) and answer.why == why
        blamed.add(answer.node)
        assert one.phases(f"j{n}") == ([] if fault == "refused" else ["starting"])
    assert blamed == {None, "n"}


def test_a_start_fails_later():
    one = driven(failed=1.0)
    assert one.starts() == Accepted()
    one.tick(START_SECONDS)
    (task,) = one.jobs["j"].tasks.values()
    assert (task.seen.phase, task.seen.why) == ("failed", "by fate") and one.jobs["j"].runs == 0


def test_an_eviction_is_refused():
    one = driven(stop_refused=1.0)
    one.starts()
    assert one.stops() == Refused("by fate", retry_after=20.0) and one.phases() == ["starting"]


@pytest.mark.parametrize("how", ["fault", "named"])
def test_a_stubborn_task_heeds_only_a_kill(how):
    one = driven(**({"stubborn": 1.0} if how == "fault" else {}))
    one.stubborn = {"j"} if how == "named" else set()
    one.starts()
    assert one.stops(grace=5.0) == Accepted()
    one.tick(60.0)
    assert one.phases() == ["running"]
    assert one.stops(grace=0.0) == Accepted()
    one.tick(0.0)
    assert one.phases() == []


def test_what_cannot_be_seen_and_what_vanishes():
    one = driven(blind=1.0)
    with pytest.raises(Unanswered, match="the snapshot was lost"):
        one.snapshot()
    with pytest.raises(Unanswered):
        one.glance(["j"])
    one = driven(vanish=1.0)
    one.starts()
    one.tick(START_SECONDS)
    assert one.phases() == ["running"], "it has just begun"
    one.tick()
    assert one.phases() == [] and one.evicted == 0


def test_programs_of_others_take_what_is_free_and_leave_it_again():
    one, taken = Driven(foreign=1.0).with_job(duration=1e9), set()
    one.starts(place(amount=60))
    for _ in range(300):
        one.tick()
        taken |= {(gpu, used) for gpu, used in one.nodes["n"].foreign.items()}
    assert {gpu for gpu, _ in taken} == {0, 1, 2, 3}
    assert {used for gpu, used in taken if gpu == 0} == {0, 40, 20} and {used for gpu, used in taken if gpu} == {
        0,
        100,
        50,
    }
    one.faults = Faults()
    one.tick()
    assert one.nodes["n"].foreign == {}


# ---- the judge ------------------------------------------------------------------------------------


def test_what_jobs_hold_of_each_gpu():
    one = driven().with_job("k")
    one.starts(place(gpus=(0, 2), amount=30))
    one.starts(place(gpus=(0,), amount=5), name="k")
    assert used_on("n", one.jobs.values()) == {0: 35, 2: 30} and used_on("m", one.jobs.values()) == {}
    one.cancel("k")
    assert used_on("n", one.jobs.values())[0] == 35, "it stops still"
    one.tick()
    assert used_on("n", one.jobs.values()) == {0: 30, 2: 30}


def test_two_attempts_at_once_and_more_than_a_gpu_has_are_an_overlap():
    one = driven().with_job("k")
    one.starts(place(amount=60))
    one.starts(place(amount=40), name="k")
    one.judge()
    (task,) = one.jobs["k"].tasks.values()
    task.seen = task.seen.__class__(1, 0, 0, "n", (0,), 41, "running")
    with pytest.raises(Overlap, match="GPU 0 of n holds 101 bytes"):
        judge(one.jobs.values(), one.nodes.values())
    del one.jobs["k"]
    one.jobs["j"].tasks[2, 0, 0] = task
    task.seen = task.seen.__class__(2, 0, 0, "n", (1,), 1, "starting")
    with pytest.raises(Overlap, match=r"attempts \[1, 2\] of j run at once"):
        one.judge()
    task.seen = task.seen.__class__(2, 0, 0, "n", (1,), 1, "done")
    one.judge()
