"""Memory past the account: it is seen at the next sample, named, and charged to whom it belongs."""

from __future__ import annotations

import pytest

from core.tale import spec, start, used
from gpushare.reasons import Code
from gpushared.core.events import MemorySampled, Unhooked
from gpushared.core.policy import MIB, Policy
from gpushared.core.visibility import OPERATOR
from property.world import World, mib

GIB = 1024 * MIB


def node(on_breach: str = "deny") -> World:
    return World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300), on_breach=on_breach))


def told(world: World, job: str) -> list[str]:
    return [record.event for record in world.node.story(job)]


def test_a_static_program_of_a_job_is_charged_to_it() -> None:
    world = node()
    a = start(world, "A", "4Gi", "8Gi")
    job = world.programs[a].job
    world.escape(job, "GPU-0", 3 * GIB)
    world.wait(1.0)
    gpu = world.node.gpus["GPU-0"]
    assert world.node.state.usage(world.node.jobs[job], "GPU-0") >= 3 * GIB + mib(300)
    assert gpu.unmanaged == 0
    (line,) = [record for record in world.node.story(job) if record.event == "unhooked"]
    assert "static[" in OPERATOR.words(line.text)
    assert "3.0 GiB of GPU 0" in OPERATOR.words(line.text)
    world.allocate(a, "GPU-0", 5 * GIB)
    assert [one.reason.code for one in world.refusals] == [Code.OVER_LIMIT]
    world.allocate(a, "GPU-0", 4 * GIB)
    assert used(world, a) >= 4 * GIB
    assert "breach" not in told(world, job), "it is within its limit"


def test_what_cannot_fit_is_not_told_to_raise_its_limit() -> None:
    world = node()
    a = start(world, "A", "1Gi", "2Gi")
    total = world.node.gpus["GPU-0"].capacity
    world.allocate(a, "GPU-0", 3 * GIB)
    world.allocate(a, "GPU-0", total)
    first, second = [OPERATOR.words(one.reason.hint) for one in world.refusals]
    assert first.startswith("raise it while it runs: `gpushare set A --limit ")
    assert second.startswith("it cannot fit: GPU 0 can give ")


def test_it_is_forgotten_when_the_driver_no_longer_shows_it() -> None:
    world = node()
    a = start(world, "A", "4Gi", "8Gi")
    job = world.programs[a].job
    pid = world.escape(job, "GPU-0", 3 * GIB)
    del world.unhooked[pid]
    world.wait(1.1)
    assert world.node.state.usage(world.node.jobs[job], "GPU-0") == mib(300)
    assert set(world.node.jobs[job].processes) == {a}


def test_what_a_program_leaves_behind_at_exec_is_not_the_next_ones() -> None:
    world = node()
    a = start(world, "A", "4Gi", "8Gi")
    world.allocate(a, "GPU-0", 5 * GIB)
    start(world, "B", "4Gi", "max")
    job = world.programs[a].job
    fresh = world.exec(a, lag=1.0)
    assert fresh is not None
    assert "unhooked" not in told(world, job)
    assert world.node.state.usage(world.node.jobs[job], "GPU-0") == 0
    assert sum(entry.amount for entry in world.node.gpus["GPU-0"].returning.values()) == 5 * GIB + mib(300)
    world.attach(fresh, "GPU-0")
    world.allocate(fresh, "GPU-0", 3 * GIB)
    world.wait(0.9)
    assert used(world, fresh) < GIB, "both together would be above its limit, as the driver shows it"
    world.wait(0.3)
    assert used(world, fresh) == 3 * GIB and not world.refusals
    world.wait(2.1)
    assert not world.node.gpus["GPU-0"].returning


def test_what_it_left_behind_is_not_forgotten_with_the_daemon() -> None:
    """Then NVML's figure for the pid is all that tells of it, even where it is small."""
    world = node()
    world.cost["GPU-0"] = mib(62)
    a = start(world, "A", "4Gi", "8Gi")
    fresh = world.exec(a, lag=2.0)
    assert fresh is not None
    world.attach(fresh, "GPU-0")
    world.restart()
    gpu = world.node.gpus["GPU-0"]
    assert gpu.usage >= 2 * mib(62), "the context's, and what the driver has not taken back"
    for _ in range(3):
        world.wait(world.policy.settling)
        world.send(world._sample("GPU-0"))
    assert gpu.usage == mib(62)


def test_a_program_without_the_library_after_exec_is_charged_in_the_end() -> None:
    world = node()
    a = start(world, "A", "4Gi", "8Gi")
    b = world.join(world.programs[a].job)
    world.attach(b, "GPU-0")
    world.allocate(b, "GPU-0", 2 * GIB)
    pid, job = world.programs[b].pid, world.programs[b].job
    world.exit(b, lag=100.0)
    world.unhooked[pid] = (job, "GPU-0", GIB)
    world.wait(1.1)
    usage = world.node.state.usage
    assert usage(world.node.jobs[job], "GPU-0") == GIB + mib(300), "what is more than the dead left is surely its own"
    world.wait(world.policy.unkillable_after + 1.1)
    assert usage(world.node.jobs[job], "GPU-0") == 3 * GIB + 2 * mib(300), "nobody else can hold it, after so long"


def test_to_warn_only_leaves_it_outside() -> None:
    world = node("warn")
    a = start(world, "A", "4Gi", "8Gi")
    job = world.programs[a].job
    world.escape(job, "GPU-0", 3 * GIB)
    assert world.node.gpus["GPU-0"].unmanaged == 3 * GIB
    assert world.node.state.usage(world.node.jobs[job], "GPU-0") == mib(300)
    assert told(world, job).count("unhooked") == 1
    world.wait(5.0)
    assert told(world, job).count("unhooked") == 1, "said once"


@pytest.mark.parametrize(("on_breach", "killed"), [("deny", 0), ("kill", 1)])
def test_a_job_far_above_its_limit(on_breach: str, killed: int) -> None:
    world = node(on_breach)
    a = start(world, "A", "2Gi", "2Gi")
    job = world.programs[a].job
    world.programs[a].contexts["GPU-0"] = mib(300) + 4 * GIB  # what it uses without having asked
    world.wait(0.9)
    (line,) = [record for record in world.node.story(job) if record.event == "breach"]
    assert OPERATOR.words(line.text).startswith("python[")
    assert "more of GPU 0 than the job's limit" in OPERATOR.words(line.text)
    world.wait(3.0)
    assert len(world.killed) == killed
    if killed:
        assert world.killed[0].reason.code is Code.BREACH
    else:
        world.allocate(a, "GPU-0", mib(1))
        assert [one.reason.code for one in world.refusals] == [Code.OVER_LIMIT]
    assert world.node.counters.breaches == 1


@pytest.mark.parametrize(("above", "breaches"), [(0, 0), (2, 1)])
def test_a_little_above_its_limit_is_no_breach(above: int, breaches: int) -> None:
    """The slack is what measurements may be wrong by; a job may have all of it."""
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300), breach_least=GIB, breach_share=0.0))
    a = start(world, "A", "2Gi", "2Gi")
    world.programs[a].contexts["GPU-0"] = 3 * GIB + mib(above)
    world.wait(4.0)
    assert world.node.counters.breaches == breaches


def test_a_strange_context_is_not_expected_of_the_next_one() -> None:
    world = node()
    a = start(world, "A", "4Gi", "14Gi")
    world.wait(4.0)
    world.programs[a].contexts["GPU-0"] = 6 * GIB
    world.wait(4.0)
    b = start(world, "B", "4Gi", "8Gi")
    assert world.node.gpus["GPU-0"].shares[b].overhead == mib(300)


def test_a_lowered_limit_is_no_breach() -> None:
    from gpushare.quantity import Quantity
    from gpushared.core.events import BudgetChanged

    world = node("kill")
    job = world.submit(spec("A", "1Gi", "8Gi"))
    a = world.join(job)
    world.attach(a, "GPU-0")
    world.allocate(a, "GPU-0", 6 * GIB)
    world.send(BudgetChanged(job, limit=Quantity.parse("2Gi")))
    world.wait(5.0)
    assert not world.killed
    assert world.node.counters.breaches == 0


def test_a_killed_job_whose_last_program_was_a_static_one_is_off_the_ladder_when_it_has_gone() -> None:
    world = node()
    a = start(world, "A", "1Gi", "8Gi", on_reclaim=("kill",))
    job = world.programs[a].job
    world.escape(job, "GPU-0", 6 * GIB)
    world.wait(1.0)
    world.exit(a)
    b = start(world, "B", "12Gi", "12Gi")
    world.allocate(b, "GPU-0", 11 * GIB)
    assert [one.job for one in world.killed] == [job]
    world.wait(1.1)
    assert used(world, b) == 11 * GIB
    assert "reclaimed" in told(world, job)
    assert not world.node.gpus["GPU-0"].under_reclaim
    world.end(job)
    world.node.validate()


def test_a_job_is_over_when_the_last_static_program_has_gone_after_its_wrapper() -> None:
    world = node()
    a = start(world, "A", "1Gi", "8Gi")
    job = world.programs[a].job
    pid = world.escape(job, "GPU-0", 2 * GIB)
    world.exit(a)
    world.end(job)
    assert job in world.node.jobs, "its memory is still charged to it"
    del world.unhooked[pid]
    world.wait(1.1)
    assert job not in world.node.jobs


@pytest.mark.parametrize("on_breach", ["warn", "deny", "kill"])
def test_of_a_job_that_is_only_observed_the_amount_is_known_and_nothing_is_done(on_breach: str) -> None:
    world = node(on_breach)
    job = world.submit(spec("watched", "none", "max", observe=True))
    pid = world.escape(job, "GPU-0", 3 * GIB)
    other = world.escape(job, "GPU-0", 2 * GIB)
    state, gpu = world.node.state, world.node.gpus["GPU-0"]
    assert state.jobs[job].observed == {"GPU-0": 5 * GIB}
    assert (gpu.unmanaged, state.usage(state.jobs[job], "GPU-0")) == (5 * GIB, 0), "it is in nobody's budget"
    world.wait(10.0)
    assert told(world, job) == ["admitted"]
    assert not world.killed
    del world.unhooked[other]
    world.send(world._sample("GPU-0"))
    assert state.jobs[job].observed == {"GPU-0": 3 * GIB}
    del world.unhooked[pid]
    world.send(world._sample("GPU-0"))
    assert state.jobs[job].observed == {} and gpu.unmanaged == 0
    world.end(job)
    assert job not in state.jobs


def test_an_observed_job_is_no_borrower() -> None:
    """Its memory stands in the way of an owner, as that of any program outside does, and is not asked for."""
    world = node()
    world.ever_protected = True
    job = world.submit(spec("watched", "none", "max", observe=True))
    owner = start(world, "serve", "8Gi", "8Gi")
    world.escape(job, "GPU-0", 10 * GIB)
    world.allocate(owner, "GPU-0", 7 * GIB)
    world.wait(31.0)
    assert [one.reason.code for one in world.refusals] == [Code.CLAIM_TIMED_OUT]
    assert not world.killed
    assert told(world, job) == ["admitted"]


def test_overuse_that_ends_and_comes_again_is_another_one() -> None:
    """It is counted and told once more, and has its second of patience again."""
    world = node("kill")
    a = start(world, "A", "4Gi", "8Gi")
    job = world.programs[a].job
    for times in (1, 2):
        pid = world.escape(job, "GPU-0", 10 * GIB)
        assert told(world, job).count("breach") == world.node.counters.breaches == times
        assert not world.killed
        del world.unhooked[pid]
        world.wait(3.0)
        assert world.node.jobs[job].breaches == {}


def test_a_static_program_on_two_gpus_is_one_process_of_its_job_until_it_has_left_both() -> None:
    policy = Policy(overhead_guess=mib(300), on_breach="deny")
    world = World([16 * GIB, 16 * GIB], [mib(300), mib(300)], policy)
    job = world.submit(spec("A", "4Gi", "8Gi", gpus=2))
    state, pid = world.node.state, 50_000

    def shown(gpu: str, amount: int) -> None:
        there = {pid: amount} if amount else {}
        without = dict.fromkeys(there, Unhooked(job, "static"))
        world.node.handle(MemorySampled(gpu, amount, there, {}, without), world.now)

    shown("GPU-0", 3 * GIB)
    shown("GPU-1", 2 * GIB)
    assert state.jobs[job].processes == {-pid}
    assert set(state.processes[-pid].shares) == {"GPU-0", "GPU-1"}
    shown("GPU-1", 0)
    assert state.jobs[job].processes == {-pid}, "it is still on the other"
    shown("GPU-0", GIB)
    assert [state.usage(state.jobs[job], gpu) for gpu in ("GPU-0", "GPU-1")] == [GIB, 0]
    shown("GPU-0", 0)
    assert state.jobs[job].processes == set() and -pid not in state.processes
    world.node.validate()
