"""The loop around the core: what comes after what, and what becomes of everybody when an event or an effect fails.

The core is a script here: it notes what it is told and answers what the test says. A core that is made after a failure
gets another script, if the test has one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from gpushared.core import instructions as do
from gpushared.core.events import (
    AttachAsked,
    BudgetChanged,
    Checkpointed,
    CreditAsked,
    JobEnded,
    MemorySampled,
    ProcessGone,
    Revoked,
    TimePassed,
    UsedSeen,
)
from gpushared.core.node import NodeState
from gpushared.runtime import core_loop as module
from gpushared.runtime.core_loop import CoreLoop

GPU = "GPU-1"
FAILS = "fails"


class Core:
    """Answers each event by its type; FAILS: it raises."""

    policy = NodeState().policy

    def __init__(self, **answers: object) -> None:
        self.answers, self.seen, self.valid = answers, [], True
        self.jobs, self.processes = {}, {}

    def handle(self, event: object, now: float) -> list[do.Instruction]:
        assert abs(now - time.monotonic()) < 5
        self.seen.append(event)
        answer = self.answers.get(type(event).__name__, [])
        if answer == FAILS:
            raise RuntimeError("the core fails")
        return answer

    def validate(self) -> None:
        if not self.valid:
            raise AssertionError("the sums are wrong")


class Stand:
    def __init__(self, core: Core, *successors: Core) -> None:
        self.done: list[object] = []
        self.told: list[object] = []
        self.failed_cores: list[object] = []
        self.successors = list(successors)
        self.loop = CoreLoop(core, self.rebuild, self.told.append)
        for kind in (do.Log, do.Trim, do.Kill, do.Revoke, do.LookUsed, do.Publish, do.Persist, do.Notify, do.JobQueued):
            self.loop.effects[kind] = self.done.append  # which answers None

    def rebuild(self, earlier: NodeState) -> None:
        assert isinstance(self.loop.core, NodeState) and self.loop.core.policy is earlier.policy
        self.failed_cores.append(earlier)
        self.loop.core = self.successors.pop(0) if self.successors else Core()

    def fail(self, kind: type[do.Instruction]) -> None:
        def effect(instruction: do.Instruction) -> None:
            self.done.append(instruction)
            raise OSError("the effect fails")

        self.loop.effects[kind] = effect


def run(test: Callable[[], None], seconds: float = 0.0) -> None:
    async def main() -> None:
        test()
        await asyncio.sleep(seconds)

    asyncio.run(main())


def log_of(text: str) -> do.Log:
    return do.Log(text, ())


def kill(job: str) -> do.Kill:
    return made(do.Kill, job=job)


def made(kind: type, **fields: object) -> object:
    """One of these with the fields that count here; the others are not read."""
    one = object.__new__(kind)
    for name in kind.__dataclass_fields__:
        object.__setattr__(one, name, fields.get(name))
    return one


def credit(number: int) -> CreditAsked:
    return CreditAsked(number, number, GPU, 1)


# ---- order ---------------------------------------------------------------------------------------------


def test_instructions_are_carried_out_in_order_and_the_answer_of_an_effect_is_the_next_event():
    def test() -> None:
        first, second, seen = kill("a"), kill("b"), UsedSeen(GPU, {})
        core = Core(JobEnded=[do.LookUsed(GPU), first], UsedSeen=[second])
        stand = Stand(core)
        stand.loop.effects[do.LookUsed] = lambda instruction: stand.done.append(instruction) or seen
        stand.loop.feed(JobEnded("x"))
        assert core.seen == [JobEnded("x"), seen]
        assert stand.done == [do.LookUsed(GPU), first, second]
        assert stand.loop.errors == 0 and stand.told == []

    run(test)


def test_an_event_that_comes_while_another_is_handled_waits_for_its_end():
    def test() -> None:
        core = Core(JobEnded=[kill("a"), kill("b")])
        stand = Stand(core)

        def effect(instruction: do.Kill) -> None:
            stand.done.append(instruction.job)
            if len(stand.done) == 1:
                stand.loop.feed(Checkpointed("y"))
                stand.loop.check()  # in the middle: the sums need not be right
                assert core.seen == [JobEnded("x")]

        stand.loop.effects[do.Kill] = effect
        core.valid = False
        stand.loop.feed(JobEnded("x"))
        assert stand.done == ["a", "b"] and core.seen == [JobEnded("x"), Checkpointed("y")]
        assert stand.loop.errors == 0

    run(test)


def test_what_is_restored_goes_before_all_that_waits():
    def test() -> None:
        core = Core(JobEnded=[kill("a")])
        stand = Stand(core)

        def effect(_: do.Kill) -> None:
            stand.loop.feed(Checkpointed("later"))
            stand.loop.restore(Checkpointed("first"))

        stand.loop.effects[do.Kill] = effect
        stand.loop.feed(JobEnded("x"))
        assert core.seen[1:] == [Checkpointed("first"), Checkpointed("later")]

    run(test)


def test_a_call_has_the_answer_of_its_own_event():
    def test() -> None:
        noted = made(do.SuspendNoted)
        core = Core(BudgetChanged=[noted], Checkpointed=[])
        stand = Stand(core)
        assert stand.loop.call(BudgetChanged("a")) is noted
        core.answers["BudgetChanged"] = FAILS
        assert stand.loop.call(BudgetChanged("a")) is None, "not the answer of the call before"

    run(test)


@pytest.mark.parametrize(
    "kind", [do.ReservationMade, do.ReservationRefused, do.BudgetRefused, do.SuspendNoted, do.SuspendRefused]
)
def test_each_answer_of_a_call_comes_back(kind):
    def test() -> None:
        answer = made(kind)
        stand = Stand(Core(BudgetChanged=[answer]))
        assert stand.loop.call(BudgetChanged("a")) is answer

    run(test)


# ---- an effect that fails ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [do.Log, do.Notify, do.JobQueued, do.Publish, do.Persist])
def test_the_core_outlives_an_effect_that_only_tells(kind, caplog):
    def test() -> None:
        after = kill("a")
        core = Core(JobEnded=[made(kind), do.LookUsed(GPU), after])
        stand = Stand(core)
        stand.fail(kind)
        stand.loop.effects[do.LookUsed] = lambda _: UsedSeen(GPU, {})
        stand.loop.feed(JobEnded("x"))
        assert stand.loop.core is core and stand.failed_cores == [] and stand.told == []
        assert stand.done[-1] is after and core.seen[-1] == UsedSeen(GPU, {}), "the rest is carried out"
        assert stand.loop.errors == 1

    run(test)
    assert [one.getMessage() for one in caplog.records] == ["an instruction failed"]
    assert kind.__name__ in caplog.records[0].facts["instruction"] and caplog.records[0].exc_info


def test_another_core_takes_over_from_one_whose_effect_failed(caplog):
    def test() -> None:
        failing, after, later = made(do.Trim), kill("a"), Core()
        core = Core(JobEnded=[do.LookUsed(GPU), failing, after])
        stand = Stand(core, later)
        stand.fail(do.Trim)
        stand.loop.effects[do.LookUsed] = lambda _: UsedSeen(GPU, {})
        stand.loop.feed(JobEnded("x"))
        assert stand.done == [failing, after], "the other instructions of the event are right by themselves"
        assert core.seen == [JobEnded("x")], "the answers are for a core that is gone"
        assert stand.failed_cores == [core] and stand.loop.core is later
        assert later.seen == [], "the event was handled: it is not repeated"
        assert stand.told == [failing] and stand.loop.errors == 1
        stand.loop.feed(Checkpointed("y"))
        assert later.seen == [Checkpointed("y")]

    run(test)
    assert [one.getMessage() for one in caplog.records] == ["an instruction failed", "the state was rebuilt"]
    assert caplog.records[1].facts == {"jobs": 0, "processes": 0}


def test_of_two_effects_that_fail_one_rebuild_is_enough():
    def test() -> None:
        stand = Stand(Core(JobEnded=[made(do.Trim), made(do.Kill)]))
        stand.fail(do.Trim)
        stand.fail(do.Kill)
        stand.loop.feed(JobEnded("x"))
        assert len(stand.failed_cores) == 1 and stand.loop.errors == 1

    run(test)


def test_an_effect_that_failed_on_an_ask_refuses_that_ask_alone():
    def test() -> None:
        answers = []
        granted = made(do.Granted, ask=1)
        core, later = Core(Checkpointed=[granted]), Core()
        stand = Stand(core, later)
        stand.fail(do.Granted)
        for number in (1, 2):
            stand.loop.ask(credit(number), lambda answer, _line: answers.append((answer.ask, type(answer))))
        stand.loop.feed(Checkpointed("x"))
        assert answers == [(1, do.Denied)]
        assert [one.ask for one in later.seen] == [2] and stand.loop.asks.open[2].failures == 0

    run(test)


# ---- an event that fails -------------------------------------------------------------------------------

SAMPLE = made(MemorySampled, gpu=GPU)

REPEATED = [JobEnded("x"), ProcessGone(1), Checkpointed("x")]
LOOKS_ITSELF = [UsedSeen(GPU, {}), made(Revoked), SAMPLE, TimePassed()]


@pytest.mark.parametrize("event", REPEATED, ids=lambda one: type(one).__name__)
def test_an_event_that_failed_is_told_to_the_next_core_and_to_none_after_it(event):
    def test() -> None:
        name = type(event).__name__
        third = Core()
        stand = Stand(Core(**{name: FAILS}), Core(**{name: FAILS}), third)
        stand.loop.feed(event)
        assert [one.seen for one in stand.failed_cores] == [[event], [event]]
        assert stand.loop.core is third and third.seen == []
        assert stand.loop.errors == 2 and stand.told == [event, event]
        stand.loop.feed(type(event)(*(getattr(event, name) for name in event.__dataclass_fields__)))
        assert third.seen == [event], "another one of the same kind comes as ever"

    run(test)


@pytest.mark.parametrize("event", [*LOOKS_ITSELF, BudgetChanged("x")], ids=lambda one: type(one).__name__)
def test_a_new_core_is_not_told_what_it_looks_at_itself_nor_what_its_caller_repeats(event):
    def test() -> None:
        later = Core()
        stand = Stand(Core(**{type(event).__name__: FAILS}), later)
        stand.loop.feed(event)
        assert stand.loop.core is later and later.seen == [] and stand.told == [event]

    run(test)


def test_what_waits_meanwhile_comes_to_the_new_core_after_what_failed_and_the_open_asks():
    def test() -> None:
        core, later = Core(Checkpointed=[kill("a")], JobEnded=FAILS), Core()
        stand = Stand(core, later)
        open_ask = AttachAsked(1, 1, GPU, waited=3.0)
        stand.loop.ask(open_ask, lambda *_: None)

        def effect(_: do.Kill) -> None:
            stand.loop.feed(JobEnded("x"))
            stand.loop.ask(credit(2), lambda *_: None)
            stand.loop.feed(ProcessGone(7))

        stand.loop.effects[do.Kill] = effect
        stand.loop.feed(Checkpointed("y"))
        assert [type(one) for one in later.seen] == [JobEnded, AttachAsked, CreditAsked, ProcessGone]
        assert 3.0 <= later.seen[1].waited < 8.0, "with the time that it has waited"

    run(test)


def test_an_ask_that_was_open_at_two_failures_of_unknown_cause_is_refused():
    def test() -> None:
        answers: list[object] = []
        stand = Stand(Core(TimePassed=FAILS), Core(TimePassed=FAILS), Core())
        stand.loop.ask(credit(1), lambda answer, line: answers.append((answer, line)))
        stand.loop.feed(TimePassed())
        assert answers == [] and stand.loop.asks.open[1].failures == 1
        stand.loop.feed(TimePassed())
        ((answer, line),) = answers
        assert isinstance(answer, do.Denied) and answer.ask == 1 and line is None
        assert "the daemon failed on this request" in answer.reason.message
        assert stand.loop.asks.open == {} and stand.loop.core.seen == []

    run(test)


def test_failures_with_a_caller_of_their_own_do_not_count_against_asks():
    def test() -> None:
        stand = Stand(*(Core(BudgetChanged=FAILS) for _ in range(4)), Core())
        stand.loop.ask(credit(1), lambda *_: pytest.fail("it is not refused"))
        for _ in range(4):
            assert stand.loop.call(BudgetChanged("x")) is None
        assert stand.loop.asks.open[1].failures == 0
        assert [one.ask for one in stand.loop.core.seen] == [1]

    run(test)


def test_an_ask_on_which_the_core_fails_is_refused_and_not_repeated():
    def test() -> None:
        answers: list[object] = []
        later = Core()
        stand = Stand(Core(CreditAsked=FAILS), later)
        stand.loop.ask(credit(1), lambda answer, _line: answers.append(type(answer)))
        assert answers == [do.Denied] and later.seen == [] and stand.loop.asks.open == {}

    run(test)


# ---- the sums ------------------------------------------------------------------------------------------


def test_right_sums_are_left_alone_and_wrong_ones_replaced():
    def test() -> None:
        core, later = Core(), Core()
        stand = Stand(core, later)
        stand.loop.ask(credit(1), lambda *_: None)
        stand.loop.check()
        assert stand.failed_cores == [] and stand.loop.errors == 0
        core.valid = False
        stand.loop.check()
        assert stand.failed_cores == [core] and stand.loop.errors == 1 and stand.told == []
        assert [one.ask for one in later.seen] == [1], "open asks go on at once"
        stand.loop.feed(Checkpointed("x"))
        assert later.seen[-1] == Checkpointed("x")

    run(test)


class Ended(BaseException):
    """In the place of the process's end."""


@pytest.mark.parametrize("why", ["it is wrong, too", "it cannot be made", "it fails while it is made"])
def test_the_daemon_ends_where_no_right_core_can_be_made(why, monkeypatch, caplog):
    codes = []

    def ended(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(module.os, "_exit", ended)

    def test() -> None:
        later = Core(Checkpointed=FAILS)
        later.valid = why != "it is wrong, too"
        stand = Stand(Core(JobEnded=FAILS), later)
        rebuild = stand.loop._rebuild

        def remade(earlier: NodeState) -> None:
            rebuild(earlier)
            if why == "it cannot be made":
                raise ValueError
            if why == "it fails while it is made":
                stand.loop.restore(Checkpointed("x"))

        stand.loop._rebuild = remade
        with pytest.raises(Ended):
            stand.loop.feed(JobEnded("x"))

    run(test)
    assert codes == [70]
    assert caplog.records[-1].getMessage() == "the daemon ends: its state cannot be rebuilt"
    assert caplog.records[-1].levelname == "CRITICAL"


# ---- time ----------------------------------------------------------------------------------------------


def note_times(core: Core) -> None:
    core.at, handle = [], core.handle

    def noted(event: object, now: float) -> list[do.Instruction]:
        core.at.append(time.monotonic())
        return handle(event, now)

    core.handle = noted


def test_only_the_last_wish_to_be_woken_counts_and_it_is_never_early():
    core, wish = Core(), []
    note_times(core)

    def test() -> None:
        stand = Stand(core)
        for delay in (0.01, 0.3, 0.06):
            wish.append(time.monotonic() + delay)
            core.answers["Checkpointed"] = [do.WakeAt(wish[-1])]
            stand.loop.feed(Checkpointed("x"))

    run(test, 0.4)
    assert core.seen == [*3 * [Checkpointed("x")], TimePassed()] and core.at[-1] > wish[-1]


def test_a_core_that_fails_as_time_passes_is_not_woken_again_at_once(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_AFTER_FAILURE", 0.15)
    times, later = [], Core(Checkpointed=[do.WakeAt(0.0)])
    note_times(later)

    def test() -> None:
        stand = Stand(Core(TimePassed=FAILS), later)
        times.append(time.monotonic())
        stand.loop.feed(TimePassed())
        stand.loop.feed(Checkpointed("x"))

    run(test, 0.4)
    assert later.seen == [Checkpointed("x"), TimePassed()] and later.at[1] - times[0] >= 0.15


def test_a_clock_may_be_half_a_millisecond_early_and_a_core_that_fails_is_woken_a_second_later():
    timers = []

    def note(when: float, *_: object) -> SimpleNamespace:
        timers.append(when)
        return SimpleNamespace(cancel=lambda: None)

    def test() -> None:
        stand = Stand(Core(Checkpointed=[do.WakeAt(50.0)], TimePassed=FAILS), Core(Checkpointed=[do.WakeAt(0.0)]))
        real, stand.loop._loop = stand.loop._loop, SimpleNamespace(call_at=note)
        stand.loop.feed(Checkpointed("x"))
        before = time.monotonic()
        stand.loop.feed(TimePassed())
        after = time.monotonic()
        stand.loop.feed(Checkpointed("x"))
        assert timers[0] == 50.0005 and before + 1.0005 <= timers[-1] <= after + 1.0005
        stand.loop._loop, stand.loop._wake = real, None

    run(test)
    assert len(timers) == 2


def test_a_closed_loop_wakes_nobody():
    core = Core(Checkpointed=[do.WakeAt(0.0)])

    def test() -> None:
        stand = Stand(core)
        stand.loop.close()  # nothing to be woken for
        stand.loop.feed(Checkpointed("x"))
        stand.loop.close()

    run(test, 0.05)
    assert core.seen == [Checkpointed("x")]


# ---- callbacks -----------------------------------------------------------------------------------------


def test_a_callback_that_raises_is_counted_and_logged(caplog):
    stands = []

    def test() -> None:
        stands.append(Stand(Core()))
        loop = asyncio.get_running_loop()
        for _ in range(2):
            loop.call_soon(lambda: 1 // 0)
        loop.call_exception_handler({"message": "nothing was raised"})

    run(test, 0.01)
    assert stands[0].loop.errors == 2
    told = [one.getMessage() for one in caplog.records]
    assert told[0] == "nothing was raised" and "Exception in callback" in told[1]
