"""What a job is charged and may not have: measured without being misled, and no ground for a refusal."""

from __future__ import annotations

import pytest

from core.tale import siblings, spec, start, used
from gpushare.reasons import Code
from gpushared.core.events import CreditAsked, MemorySampled
from gpushared.core.instructions import SampleMemory
from gpushared.core.policy import MIB, Policy
from property.world import Waiting, World

GIB = 1024 * MIB
GPU = "GPU-0"


@pytest.fixture
def world() -> World:
    """16 GiB; a context is guessed at 512 MiB and costs 100."""
    made = World([16 * GIB], [100 * MIB], Policy(chunk=0))
    made.ever_tight = True
    return made


def sample(world: World, process: int, overhead: int, contexts: int = 1) -> None:
    """NVML shows so much beside what the process uses; its page has said that so many contexts are open."""
    one = world.programs[process]
    amount = one.words[GPU].used
    shown = {one.pid: amount + overhead}
    said = {process: contexts}
    world.send(MemorySampled(GPU, amount + overhead, shown, {process: amount}, begun=world.now, contexts=said))


def charged(world: World, process: int) -> int:
    return world.node.gpus[GPU].shares[process].overhead


def settled(world: World) -> int:
    process = start(world, "job", "4Gi", "4Gi")
    world.wait(3.0)
    assert charged(world, process) == 100 * MIB
    world.now += 1.0
    return process


def test_more_is_charged_at_once(world: World) -> None:
    process = settled(world)
    sample(world, process, 700 * MIB)
    assert charged(world, process) == 700 * MIB


def test_less_is_charged_when_nvml_has_shown_no_more_for_a_while(world: World) -> None:
    """What a call is about to allocate is in the word already, and hides as much of the overhead."""
    process = settled(world)
    sample(world, process, 60 * MIB)
    assert charged(world, process) == 100 * MIB
    world.now += 0.1
    sample(world, process, 70 * MIB)
    assert charged(world, process) == 100 * MIB
    world.now += 0.2
    sample(world, process, 0)
    assert charged(world, process) == 70 * MIB, "the most of these"
    world.now += 0.1
    sample(world, process, 0)
    assert charged(world, process) == 70 * MIB
    world.now += 0.25
    sample(world, process, 0)
    assert charged(world, process) == 0


def test_one_sample_that_shows_too_little_changes_nothing(world: World) -> None:
    process = settled(world)
    sample(world, process, 0)
    world.now += 0.3
    sample(world, process, 100 * MIB)
    world.now += 0.3
    sample(world, process, 100 * MIB)
    assert charged(world, process) == 100 * MIB
    assert world.node.state.overheads["software GPU"] == 100 * MIB


def test_a_guess_stands_until_nvml_has_been_seen_twice(world: World) -> None:
    process = start(world, "job", "4Gi", "4Gi")
    sample(world, process, 40 * MIB)
    world.now += 0.2
    sample(world, process, 90 * MIB)
    assert charged(world, process) == 512 * MIB and not world.node.state.overheads
    world.now += 0.1
    sample(world, process, 90 * MIB)
    assert charged(world, process) == 90 * MIB and world.node.state.overheads["software GPU"] == 90 * MIB


def test_a_guess_stands_longer_while_nothing_of_it_is_there(world: World) -> None:
    process = start(world, "job", "4Gi", "4Gi")
    for _ in range(3):
        sample(world, process, 0)
        world.now += 0.3
    assert charged(world, process) == 512 * MIB


def test_an_ask_waits_until_the_guess_has_been_measured_however_long_that_takes(world: World) -> None:
    """The driver's answers are late; the ask is within the limit all the same."""
    process = start(world, "job", "4Gi", "4Gi")
    real, world._sample = world._sample, lambda gpu: MemorySampled(gpu, 0, {}, {})  # type: ignore[method-assign]
    world.programs[process].contexts[GPU] = 100 * MIB
    world.node.gpus[GPU].shares[process].since += 100.0  # NVML does not list it yet
    world.allocate(process, GPU, 3900 * MIB)
    world.wait(10.0)
    assert world.waiting and not world.refusals
    world._sample = real  # type: ignore[method-assign]
    world.wait(1.0)
    assert used(world, process) == 3900 * MIB and not world.refusals


def test_nor_longer_than_a_claim(world: World) -> None:
    process = start(world, "job", "4Gi", "4Gi")
    world._sample = lambda gpu: MemorySampled(gpu, 0, {}, {})  # type: ignore[method-assign]
    world.programs[process].contexts[GPU] = 512 * MIB
    world.node.gpus[GPU].shares[process].since += 100.0
    world.allocate(process, GPU, 3900 * MIB)
    world.wait(world.policy.claim_timeout + 0.1)
    assert [one.reason.code for one in world.refusals] == [Code.OVER_LIMIT]
    world.allocate(process, GPU, 3900 * MIB)
    assert len(world.refusals) == 2, "from then on the guess stands"


def test_what_nvml_has_shown_of_a_context_is_certain(world: World) -> None:
    """So what does not fit beside that is refused at once."""
    world.cost[GPU] = 400 * MIB
    process = start(world, "job", "4Gi", "4Gi")
    sample(world, process, 400 * MIB)
    world.allocate(process, GPU, 3700 * MIB)
    assert [one.reason.code for one in world.refusals] == [Code.OVER_LIMIT]
    world.allocate(process, GPU, 3600 * MIB)
    assert world.waiting and len(world.refusals) == 1, "the guess is 512"


def test_a_sample_from_before_the_ask_is_no_fact(world: World) -> None:
    """A program without a page has just ended: what NVML was asked before that does not count."""
    job = world.submit(spec("job", "4Gi", "4Gi"))
    process = world.join(job)
    world.attach(process, GPU)
    world.wait(3.0)
    pid = world.escape(job, GPU, 3 * GIB)
    world.wait(3.0)
    old = world._sample(GPU)
    del world.unhooked[pid]
    world.now += 1.0
    asked: list[SampleMemory] = []
    real, world._sample = world._sample, lambda gpu: asked.append(SampleMemory(gpu))  # type: ignore[method-assign,func-returns-value]
    world.allocate(process, GPU, 3 * GIB)
    assert asked and world.waiting
    world.send(MemorySampled(GPU, old.used, old.by_pid, old.steady, old.unhooked, begun=world.now - 0.5))
    assert not world.refusals and len(asked) == 2, "asked again"
    world._sample = real  # type: ignore[method-assign]
    world.send(world._sample(GPU))
    assert used(world, process) == 3 * GIB and not world.refusals
    assert not world.waiting


def test_memory_of_the_dead_counts_for_the_limit_until_the_driver_has_returned_it(world: World) -> None:
    """The driver would show more than the limit else."""
    first, second = siblings(world, "two", "none", "6Gi")
    world.wait(3.0)
    world.allocate(first, GPU, 4 * GIB)
    world.exit(first, lag=2.0)
    assert world.node.published(GPU)[second].grantable < 3 * GIB
    world.allocate(second, GPU, 3 * GIB)
    world.wait(1.5)
    assert world.waiting and not world.refusals
    world.wait(1.0)
    assert used(world, second) == 3 * GIB and not world.refusals


def test_what_it_could_not_have_beside_them_either_is_refused_at_once(world: World) -> None:
    first, second = siblings(world, "two", "none", "6Gi")
    world.wait(3.0)
    world.allocate(first, GPU, 2 * GIB)
    world.exit(first, lag=2.0)
    world.allocate(second, GPU, 7 * GIB)
    assert [one.reason.code for one in world.refusals] == [Code.OVER_LIMIT]


def test_a_driver_that_returns_nothing_breaks_no_guarantee(world: World) -> None:
    """After the patience of a claim the limit gives way, not the request."""
    first, second = siblings(world, "two", "6Gi", "6Gi")
    world.wait(3.0)
    world.allocate(first, GPU, 4 * GIB)
    world.exit(first, lag=300.0)
    world.allocate(second, GPU, 3 * GIB)
    world.wait(world.policy.claim_timeout - 0.1)
    assert world.waiting
    world.wait(0.2)
    assert used(world, second) == 3 * GIB and not world.refusals


def test_idle_credit_of_its_own_keeps_no_context_out(world: World) -> None:
    """A process that closed its context, with credit that it does not use, opens it again."""
    process = settled(world)
    world.allocate(process, GPU, 3800 * MIB)
    world.free(process, GPU, 3800 * MIB)
    word = world.programs[process].words[GPU]
    world.detach(process, GPU)
    assert word.credit == 3800 * MIB
    world.node.state.overheads["software GPU"] = 450 * MIB
    world.attach(process, GPU)
    assert GPU in world.programs[process].contexts and not world.refusals


def test_contexts_that_wait_side_by_side_are_not_refused_for_their_guesses() -> None:
    """Five of 100 MiB fit into a request of 2 GiB; five guesses of 512 do not."""
    world = World([16 * GIB], [0], Policy(chunk=0))
    borrowing = start(world, "other", "none", "max", grace=0.5)
    world.wait(3.0)
    world.allocate(borrowing, GPU, world.node.published(GPU)[borrowing].grantable)
    world.node.state.overheads.clear()
    world.cost[GPU] = 100 * MIB
    world.ever_tight = True
    job = world.submit(spec("owner", "2Gi", "4Gi"))
    processes = [world.join(job) for _ in range(5)]
    for process in processes:
        world.attach(process, GPU)
    assert len(world.waiting) == 5 and not world.refusals
    world.wait(8.0)
    assert all(GPU in world.programs[process].contexts for process in processes) and not world.refusals


def test_words_that_changed_while_they_were_read_are_read_again(world: World) -> None:
    """What one process freed and another took may have been counted twice: that refuses nothing."""
    first, second = siblings(world, "two", "4Gi", "4Gi")
    world.wait(3.0)
    world.allocate(first, GPU, 3 * GIB)
    world.moving = {first}
    world.allocate(second, GPU, GIB)
    assert world.waiting and not world.refusals
    world.wait(0.1)
    assert [one.reason.code for one in world.refusals] == [Code.OVER_LIMIT], "now they held still"


def test_guesses_and_credit_that_is_not_taken_yet_are_no_ground_for_a_refusal_together_either() -> None:
    """Each alone is too small to explain what the ask lacks."""
    world = World([16 * GIB], [64 * MIB], Policy(chunk=0))
    first, second = siblings(world, "two", "4Gi", "4Gi")
    world.programs[first].slow = True
    for process in (first, second):
        sample(world, process, 64 * MIB)
    world.allocate(first, GPU, 530 * MIB)
    world.pause(first, True)
    world.allocate(second, GPU, 3448 * MIB)
    assert world.waiting and not world.refusals
    world.wait(3.0)
    assert used(world, second) == 3448 * MIB and not world.refusals, "the first has not taken its credit in time"


def test_what_the_context_itself_may_cost_less_is_no_ground_for_a_refusal() -> None:
    """Siblings look dearer than they are, because calls are under way: this type is not measured yet."""
    world = World([16 * GIB], [300 * MIB], Policy(chunk=0))
    first, second = siblings(world, "job", "4504Mi", "4504Mi")
    world.allocate(first, GPU, 2694 * MIB)
    world.allocate(second, GPU, 600 * MIB)
    for _ in range(2):
        world.now += 0.1
        shown = {one.pid: one.words[GPU].used + 400 * MIB for one in world._on(GPU)}
        words = {one.id: one.words[GPU].used for one in world._on(GPU)}
        world.send(MemorySampled(GPU, sum(shown.values()), shown, words, begun=world.now))
    third = world.join(world.programs[first].job)
    world.attach(third, GPU)
    world.wait(3.0)
    assert not world.refusals and GPU in world.programs[third].contexts


def test_a_sample_from_before_a_death_does_not_return_its_memory(world: World) -> None:
    """The process had not begun when the sample did: NVML knew nothing of it then."""
    process = start(world, "job", "4Gi", "4Gi")
    world.allocate(process, GPU, 3 * GIB)
    begun = world.now - 1.0
    world.exit(process, lag=5.0)
    assert world.node.gpus[GPU].returning_total >= 3 * GIB
    world.send(MemorySampled(GPU, 0, {}, {}, begun=begun))
    assert world.node.gpus[GPU].returning_total >= 3 * GIB
    world.send(MemorySampled(GPU, 0, {}, {}, begun=world.now))
    assert world.node.gpus[GPU].returning_total == 0


def test_what_the_driver_has_refused_hides_nothing_of_the_context(world: World) -> None:
    """It is charged, and the driver has not given it: the context has not become cheaper by as much."""
    process = settled(world)
    gpu, word = world.node.gpus[GPU], world.programs[process].words[GPU]
    world.node.state.change(gpu.shares[process], credit=80 * MIB - gpu.shares[process].credit)
    word.used = word.credit = 80 * MIB
    ask = world.next_id()
    world.waiting[ask] = Waiting(process, GPU, 80 * MIB, world.now, attach=False)
    outside = {1: gpu.capacity}  # so the ask waits
    world.foreign[GPU], world.ever_foreign = gpu.capacity, True
    world.send(world._sample(GPU))
    world.send(CreditAsked(ask, process, GPU, 80 * MIB, allocation=80 * MIB, driver_failed=True))
    for _ in range(4):
        world.now += 0.3
        shown = {world.programs[process].pid: 100 * MIB, **outside}
        world.send(MemorySampled(GPU, sum(shown.values()), shown, {process: 80 * MIB}, begun=world.now))
    assert ask in world.waiting
    assert charged(world, process) == 100 * MIB


def test_another_context_is_charged_before_it_opens(world: World) -> None:
    """As much as the first one cost, until NVML shows both; the cost of two is not taken for that of one."""
    process = settled(world)
    world.attach(process, GPU, another=True)
    assert charged(world, process) == 200 * MIB
    for shown in [100] * 10 + [150] * 10:  # it is not there yet, and then in part
        sample(world, process, shown * MIB)
        world.now += 0.3
    assert charged(world, process) == 200 * MIB
    sample(world, process, 180 * MIB, contexts=2)
    world.now += 0.3
    sample(world, process, 180 * MIB, contexts=2)
    assert charged(world, process) == 180 * MIB
    assert world.node.state.overheads["software GPU"] == 100 * MIB


def test_another_context_that_never_opens_is_charged_for_a_moment_only(world: World) -> None:
    process = settled(world)
    world.attach(process, GPU, another=True)
    for _ in range(40):
        sample(world, process, 100 * MIB)
        world.now += 0.3
    assert charged(world, process) == 100 * MIB


def test_another_context_is_refused_above_the_limit(world: World) -> None:
    process = settled(world)
    world.allocate(process, GPU, 4 * GIB - 250 * MIB)
    world.attach(process, GPU, another=True)
    assert charged(world, process) == 200 * MIB and not world.refusals
    world.attach(process, GPU, another=True)
    world.wait(1.0)
    assert [refusal.reason.code for refusal in world.refusals] == [Code.OVER_LIMIT]
    assert world.node.gpus[GPU].shares[process].usage <= 4 * GIB


def test_a_process_with_several_contexts_does_not_tell_what_one_costs(world: World) -> None:
    """Where the first alone costs much, the mean of two would let in twice as many processes as fit. What fits gets
    in all the same: a guess refuses nothing."""
    process = start(world, "job", "1Gi", "1Gi")
    world.attach(process, GPU, another=True)
    world.wait(6.0)
    assert charged(world, process) == 200 * MIB and not world.node.state.overheads
    for number in range(3, 7):
        world.attach(process, GPU, another=True)
        world.wait(3.0)
        assert world.programs[process].contexts[GPU] == number * 100 * MIB and not world.waiting
    assert not world.refusals


def test_a_context_that_opens_slowly_teaches_nothing_until_it_is_open(world: World) -> None:
    """NVML shows the first one, or a part of the second, for longer than it takes for a measurement."""
    process = start(world, "job", "4Gi", "4Gi")
    world.attach(process, GPU, another=True)
    before = charged(world, process)
    for _ in range(20):
        sample(world, process, 100 * MIB)
        world.now += 0.3
    assert charged(world, process) == before and not world.node.state.overheads


def test_another_context_of_a_process_that_the_daemon_does_not_know_is_its_first(world: World) -> None:
    process = start(world, "job", "4Gi", "4Gi")
    world.detach(process, GPU)
    world.attach(process, GPU, another=True)
    share = world.node.gpus[GPU].shares[process]
    assert share.contexts == 1 and share.overhead > 0


def full_beside_two(world: World) -> int:
    """A process with two contexts that have been measured, and memory up to its limit."""
    process = settled(world)
    world.attach(process, GPU, another=True)
    world.wait(3.0)
    assert charged(world, process) == 200 * MIB
    world.allocate(process, GPU, 4 * GIB - 200 * MIB)
    assert world.programs[process].words[GPU].used == 4 * GIB - 200 * MIB
    return process


def test_what_one_of_several_contexts_had_is_there_for_the_next_call(world: World) -> None:
    """It was measured, and is closed: nobody has told the daemon."""
    process = full_beside_two(world)
    world.close_one(process, GPU)
    world.allocate(process, GPU, 80 * MIB)
    world.wait(3.0)
    assert not world.refusals and not world.waiting
    assert world.programs[process].words[GPU].used == 4 * GIB - 120 * MIB
    assert (charged(world, process), world.node.gpus[GPU].shares[process].contexts) == (100 * MIB, 1)


def test_where_one_of_several_contexts_was_the_next_one_fits(world: World) -> None:
    process = full_beside_two(world)
    world.close_one(process, GPU)
    world.attach(process, GPU, another=True)
    world.wait(3.0)
    assert not world.refusals and world.open_contexts(process, GPU) == 2
    assert charged(world, process) == 200 * MIB


def test_more_than_the_closed_context_had_is_refused(world: World) -> None:
    process = full_beside_two(world)
    world.close_one(process, GPU)
    world.allocate(process, GPU, 120 * MIB)
    world.wait(3.0)
    assert [refusal.reason.code for refusal in world.refusals] == [Code.OVER_LIMIT]
    world.allocate(process, GPU, 60 * MIB)
    assert len(world.refusals) == 1


def test_contexts_that_are_all_open_are_not_measured_again(world: World) -> None:
    process = full_beside_two(world)
    world.allocate(process, GPU, 80 * MIB)
    share = world.node.gpus[GPU].shares[process]
    assert share.measured and share.contexts == 2
    assert [refusal.reason.code for refusal in world.refusals] == [Code.OVER_LIMIT]
