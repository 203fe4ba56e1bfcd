"""Jobs that are idle for long: when they give memory back, what they keep, and who is asked first."""

from __future__ import annotations

import pytest

from core.tale import job_of, spec, start, told, used
from gpushared.core.policy import MIB, Policy
from property.world import World, mib

GIB = 1024 * MIB
LONG = 600.0


def node(**more: object) -> World:
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300), **more))  # type: ignore[arg-type]
    world.shows_busy = True
    return world


@pytest.fixture
def world() -> World:
    one = node()
    yield one
    one.node.validate()


def holder(world: World, name: str, size: int, *, cache: int = 0, **more: object) -> int:
    """A program that uses `size`, of which it only keeps `cache`; its policy gives it ten minutes, if not said."""
    budget = more.pop("budget", ("8Gi", "8Gi"))
    process = start(world, name, *budget, **{"idle_release": LONG, **more})  # type: ignore[misc]
    one = world.programs[process]
    one.listens, one.caches["GPU-0"] = True, cache
    world.allocate(process, "GPU-0", size)
    return process


def is_aside(world: World, process: int) -> bool:
    return job_of(world, process).aside is not None


def test_after_that_time_it_gives_back_what_it_only_keeps(world: World) -> None:
    a = holder(world, "A", 6 * GIB, cache=2 * GIB)
    world.wait(LONG - 5)
    assert used(world, a) == 6 * GIB and not is_aside(world, a)
    world.wait(10)
    assert used(world, a) == 4 * GIB and is_aside(world, a)
    assert told(world, a)[-2:] == ["idle", "idle_gave"]
    assert [one.kind for one in world.told] == ["idle"]
    assert world.node.counters.idle_bytes == 2 * GIB
    world.wait(3 * LONG)
    assert told(world, a)[-2:] == ["idle", "idle_gave"], "it is asked once"


def test_what_it_gave_is_lent_and_is_its_own(world: World) -> None:
    a = holder(world, "A", 6 * GIB, cache=2 * GIB)
    b = start(world, "B", "7Gi", "15Gi", on_reclaim=("kill",))
    world.allocate(b, "GPU-0", 7 * GIB - mib(300))
    world.wait(LONG + 5)
    world.allocate(b, "GPU-0", 3 * GIB)
    assert used(world, b) == 10 * GIB - mib(300), "on loan"
    world.allocate(a, "GPU-0", 3 * GIB)
    world.wait(30.0)
    assert used(world, a) == 7 * GIB, "it claims its request"
    assert not is_aside(world, a) and told(world, a).count("active") == 1


def test_who_computes_is_not_idle(world: World) -> None:
    a = holder(world, "A", 6 * GIB, cache=2 * GIB)
    world.programs[a].computes = True
    world.wait(3 * LONG)
    assert used(world, a) == 6 * GIB and not is_aside(world, a)
    world.programs[a].computes = False
    world.wait(LONG + 5)
    assert is_aside(world, a)
    world.programs[a].computes = True
    world.wait(2.0)
    assert not is_aside(world, a) and told(world, a)[-1] == "active"


def test_who_frees_and_takes_as_much_again_is_not_idle(world: World) -> None:
    """Each time the daemon looks, it uses what it used before."""
    a = holder(world, "A", 6 * GIB, cache=2 * GIB)
    while world.now < 3 * LONG:
        world.wait(10.0)
        world.free(a, "GPU-0", GIB)
        world.allocate(a, "GPU-0", GIB)
        assert used(world, a) == 6 * GIB and not is_aside(world, a)
    world.wait(LONG + 5)
    assert is_aside(world, a)
    world.free(a, "GPU-0", GIB)
    world.allocate(a, "GPU-0", GIB)
    world.wait(2.0)
    assert not is_aside(world, a) and told(world, a)[-1] == "active"


def test_it_is_asked_again_when_it_was_idle_again(world: World) -> None:
    a = holder(world, "A", 6 * GIB, cache=2 * GIB)
    world.wait(LONG + 5)
    world.allocate(a, "GPU-0", GIB)
    world.programs[a].caches["GPU-0"] = GIB
    world.wait(LONG - 5)
    assert used(world, a) == 5 * GIB
    world.wait(10)
    assert used(world, a) == 4 * GIB and told(world, a).count("idle_gave") == 2


def test_where_nobody_can_tell_who_computes_nobody_is_idle(world: World) -> None:
    world.shows_busy = False
    a = holder(world, "A", 6 * GIB, cache=2 * GIB)
    world.wait(3 * LONG)
    assert used(world, a) == 6 * GIB and not is_aside(world, a)


def test_without_the_policy_nobody_is_asked(world: World) -> None:
    a = holder(world, "A", 6 * GIB, cache=2 * GIB, idle_release=None)
    world.wait(3 * LONG)
    assert used(world, a) == 6 * GIB and "idle" not in told(world, a)


@pytest.mark.parametrize("but", [{"on_reclaim": ("term", "kill")}, {"lend": False}])
def test_who_does_not_want_it_gives_nothing(world: World, but: dict[str, object]) -> None:
    a = holder(world, "A", 6 * GIB, cache=2 * GIB, **but)
    world.wait(LONG + 5)
    assert used(world, a) == 6 * GIB


def test_one_that_does_not_answer_is_left_alone(world: World) -> None:
    a = holder(world, "A", 6 * GIB, cache=2 * GIB)
    world.programs[a].dawdle = 1e6
    world.wait(2 * LONG)
    assert used(world, a) == 6 * GIB and told(world, a)[-1] == "idle"
    assert not world.terminated and not world.killed


def test_one_that_asks_while_it_gives_back_is_not_idle(world: World) -> None:
    a = holder(world, "A", 6 * GIB, cache=2 * GIB)
    world.programs[a].dawdle = 1.0
    world.wait(LONG - 1.0)
    for _ in range(40):
        if not is_aside(world, a):
            world.wait(0.1)
    assert is_aside(world, a) and world.trims, "the trim is under way"
    world.allocate(a, "GPU-0", GIB)
    world.wait(5.0)
    assert not is_aside(world, a) and told(world, a)[-1] == "active"


def test_its_own_trim_does_not_make_it_active(world: World) -> None:
    a = holder(world, "A", 6 * GIB, cache=2 * GIB)
    world.programs[a].dawdle = 1.5
    world.wait(LONG + 10)
    assert used(world, a) == 4 * GIB and is_aside(world, a)


def test_who_waits_for_memory_is_not_idle(world: World) -> None:
    """Its program computes nothing because it waits for its claim."""
    b = start(world, "B", "none", "15Gi", on_reclaim=("kill",), min_run_time=40.0)
    a = holder(world, "A", 6 * GIB, cache=2 * GIB, idle_release=10.0)
    world.allocate(b, "GPU-0", 8 * GIB)
    world.allocate(a, "GPU-0", 2 * GIB - mib(300))
    world.wait(20.0)
    assert used(world, a) >= 6 * GIB and not is_aside(world, a)
    world.ever_protected = True


def test_an_earlier_daemons_idle_time_is_not_counted(world: World) -> None:
    a = holder(world, "A", 6 * GIB, cache=2 * GIB)
    world.wait(LONG - 5)
    world.restart()
    world.wait(LONG - 5)
    assert used(world, a) == 6 * GIB
    world.wait(10)
    assert used(world, a) == 4 * GIB


# ---- hooks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wakes", "left"), [(False, 0), (True, 6 * GIB)])
def test_a_hook_is_called_only_for_a_program_that_wakes_by_itself(world: World, wakes: bool, left: int) -> None:
    a = holder(world, "A", 6 * GIB, on_reclaim=("trim", "hook", "kill"))
    world.hooks.come(job_of(world, a).id, "ok", wakes=wakes)
    world.hooks.takes = 5.0
    world.wait(LONG + 20)
    assert used(world, a) == left and is_aside(world, a)
    assert world.node.counters.idle_bytes == 6 * GIB - left
    world.allocate(a, "GPU-0", GIB)
    world.wait(3.0)
    assert used(world, a) == left + GIB and not is_aside(world, a)


def test_no_hook_is_called_within_the_minimum_run_time(world: World) -> None:
    a = holder(world, "A", 6 * GIB, on_reclaim=("hook", "kill"), idle_release=3.0, min_run_time=20.0)
    world.hooks.come(job_of(world, a).id, "ok", wakes=False)
    world.wait(15.0)
    assert used(world, a) == 6 * GIB and not world.hooks.reliefs
    world.wait(15.0)
    assert used(world, a) == 0 and is_aside(world, a)


def test_a_job_that_has_nothing_more_is_not_asked_for_more(world: World) -> None:
    a = holder(world, "A", 6 * GIB, cache=2 * GIB, on_reclaim=("trim", "hook", "kill"))
    job = job_of(world, a)
    world.wait(LONG + 5)
    assert is_aside(world, a)
    world.detach(a, "GPU-0")
    world.hooks.come(job.id, "ok", wakes=False)
    world.wait(30.0)
    assert job.aside is None, "it has freed memory just now"
    world.wait(2 * LONG)
    assert job.aside is None and not world.hooks.calls and world.node.counters.hooks == 0


def test_the_hook_is_called_at_the_end_of_the_minimum_run_time(world: World) -> None:
    a = holder(world, "A", 6 * GIB, on_reclaim=("hook", "kill"), idle_release=20.0, min_run_time=20.0)
    world.hooks.come(job_of(world, a).id, "ok", wakes=False)
    world.wait(19.9)
    assert world.node.counters.hooks == 0
    world.wait(0.1)
    assert world.now == job_of(world, a).since + 20.0 and world.node.counters.hooks == 1


def test_no_hook_is_called_that_nobody_can_call(world: World) -> None:
    a = holder(world, "A", 6 * GIB, on_reclaim=("hook", "kill"))
    world.wait(LONG + 20)
    assert is_aside(world, a) and used(world, a) == 6 * GIB and world.node.counters.hooks == 0
    world.hooks.come(job_of(world, a).id, "ok", wakes=False)
    world.wait(5.0)
    assert used(world, a) == 0, "its runner has come since"


def test_a_hook_that_failed_a_moment_ago_is_not_called(world: World) -> None:
    a = holder(world, "A", 6 * GIB, on_reclaim=("hook", "kill"), idle_release=3.0)
    world.hooks.come(job_of(world, a).id, "fails", "ok", wakes=False)
    world.wait(20.0)
    assert world.node.counters.hooks == 1 and used(world, a) == 6 * GIB
    world.allocate(a, "GPU-0", GIB)
    world.wait(20.0)
    assert world.node.counters.hooks == 1 and is_aside(world, a), "idle once more, and soon after"
    world.allocate(a, "GPU-0", GIB)
    world.wait(world.node.policy.hook_again)
    assert world.node.counters.hooks == 2 and used(world, a) == 0


def test_the_hook_is_told_a_gpu_on_which_the_job_has_memory() -> None:
    world = World([16 * GIB] * 2, [mib(300)] * 2, Policy(overhead_guess=mib(300)))
    world.shows_busy = True
    job = world.submit(spec("A", "4Gi", "4Gi", gpus=2, idle_release=LONG, on_reclaim=("hook", "kill")))
    process = world.join(job)
    world.attach(process, "GPU-1")
    world.allocate(process, "GPU-1", 3 * GIB)
    world.hooks.come(job, "ok", wakes=False)
    world.wait(LONG - 5.0)
    called = len(world.hooks.calls)
    seen = []
    begin = world.hooks.begin
    world.hooks.begin = lambda wish: (seen.append((wish.gpu, wish.size)), begin(wish))[1]  # type: ignore[method-assign]
    world.wait(10.0)
    assert called == 0 and seen == [("GPU-1", 3 * GIB + mib(300))]
    assert world.programs[process].words["GPU-1"].used == 0


def test_the_settings_say_how_far_it_goes() -> None:
    world = node(last_step="trim")
    a = holder(world, "A", 6 * GIB, on_reclaim=("trim", "hook", "kill"))
    world.hooks.come(job_of(world, a).id, "ok", wakes=False)
    world.wait(LONG + 10)
    assert used(world, a) == 6 * GIB


# ---- claims ---------------------------------------------------------------------------------------------


def test_a_claim_asks_those_who_are_idle_first(world: World) -> None:
    """Whatever their priority: nobody is stopped for that. Of these, notebooks come first."""
    trimmed = ("trim", "term", "kill")
    idle, notebook, busy = (
        holder(world, name, 3 * GIB, budget=("1Gi", "15Gi"), on_reclaim=trimmed, priority=priority)
        for name, priority in (("idle", 5), ("notebook", 5), ("busy", 0))
    )
    job = job_of(world, notebook)
    job.spec = job.spec._replace(command=("python", "-m", "ipykernel_launcher", "-f", "x.json"))
    world.programs[busy].computes = True
    world.wait(LONG + 10)
    assert is_aside(world, idle) and is_aside(world, notebook)
    for one in (idle, notebook, busy):
        world.programs[one].caches["GPU-0"] = 2 * GIB
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(3.0)
    assert used(world, b) == 7 * GIB and not world.terminated
    assert used(world, notebook) < 3 * GIB and used(world, busy) == 3 * GIB
