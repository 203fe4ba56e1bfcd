"""Corner cases, one by one: each has a test here or is named with the one that it has elsewhere.

`ROWS` is the list; a row whose test is gone fails. What the product does not do yet is marked as expected to fail, and
says so when that is no longer true.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from core.tale import spec, start, used
from gpushare.quantity import Quantity
from gpushare.reasons import Code
from gpushared.core.events import AskCancelled, BudgetChanged, CreditAsked, Event, GpuFound, ProcessJoined
from gpushared.core.instructions import Instruction, Persist
from gpushared.core.policy import MIB, Policy
from property.world import Program, Waiting, World, mib

GIB = 1024 * MIB
TESTS = Path(__file__).resolve().parents[1]
HERE = "core/test_corner_cases"

ROWS = [
    ("an owner claims while a borrower is inside its allocation", f"{HERE}::test_a_loan_does_not_overtake_a_claim"),
    ("a borrower frees of its own accord", f"{HERE}::test_what_a_borrower_frees_goes_to_the_claim"),
    ("freed, but kept by a cache", "integration/test_trimming::test_a_cache_is_given_back_and_nobody_is_asked_to_stop"),
    ("a victim ignores SIGTERM", "integration/test_lending::test_a_borrower_that_does_nothing_is_killed_and_told_why"),
    ("a victim cannot be killed", f"{HERE}::test_after_one_that_cannot_be_killed_comes_the_next"),
    ("a victim with a longer grace than a claim can wait", f"{HERE}::test_a_long_grace_does_not_break_a_guarantee"),
    (
        "a victim is stopped",
        "integration/test_real_corner_cases::test_a_stopped_program_is_continued_to_take_sigterm_and_is_told_why_it_ended",
    ),
    ("a claim larger than all loans", "core/test_story::test_nobody_is_killed_when_killing_cannot_help"),
    ("two owners claim at once", f"{HERE}::test_two_claims_are_one_shortfall"),
    ("a borrower wants more", "core/test_story::test_a_loan_never_evicts_anyone"),
    ("a victim on two GPUs", f"{HERE}::test_a_job_on_two_gpus_goes_as_a_whole"),
    ("the daemon crashes", "integration/test_crash::test_a_daemon_killed_under_load_disturbs_nobody"),
    ("the daemon stays away", "shim/test_shim_daemon::test_a_daemon_that_goes_and_comes_back"),
    ("there never was a daemon", "shim/test_shim_daemon::test_no_daemon_is_said_once"),
    ("a program outside appears", f"{HERE}::test_memory_outside_stops_nobody_without_a_claim"),
    ("a program outside has gone", f"{HERE}::test_memory_that_was_outside_and_has_come_back_is_used"),
    ("the shim is taken away", "hosts/test_outside::test_a_program_that_escaped_its_job"),
    ("another PID namespace", "hosts/test_namespaces::test_the_daemon_names_and_kills_the_right_process"),
    ("fork after cuInit", "shim/test_shim_daemon::test_a_forked_child_is_not_its_parent"),
    (
        "fork, and the parent is killed",
        "integration/test_real_corner_cases::test_a_child_holds_nothing_of_its_dead_parent",
    ),
    ("exec", "integration/test_real_corner_cases::test_exec_gives_everything_back"),
    ("exec, and a slow driver", f"{HERE}::test_what_was_before_exec_is_not_the_new_programs"),
    ("a process dies without cleaning up", "hosts/test_kill_anywhere::test_a_kill_at_any_instruction"),
    ("a context is destroyed", "shim/test_shim_families::test_the_end_of_a_context_credits_what_was_in_it"),
    (
        "a notebook's kernel is killed",
        "notebook/test_kernels::test_a_reclaimed_kernel_dies_and_its_server_starts_it_again",
    ),
    ("a limit below the usage", "core/test_story::test_a_lower_limit_takes_nothing_away_but_stops_growth"),
    ("a limit below the usage, and a claim", f"{HERE}::test_what_is_above_a_lowered_limit_can_be_claimed"),
    ("a request is raised", "core/test_story::test_a_request_is_changed_by_a_new_admission"),
    ("a MIG instance", "daemon/test_pages::test_a_page_is_found_again_with_its_words"),
    ("an owner waits inside cuMemAlloc", "shim/test_shim_daemon::test_a_claim_waits_and_others_do_not"),
    ("a signal comes while it waits", "shim/test_shim_daemon::test_signals_do_not_disturb_a_wait"),
    ("a trim that does not begin", "core/test_trim::test_who_has_not_begun_after_half_of_the_time_is_not_waited_for"),
    ("a GPU becomes smaller", f"{HERE}::test_a_gpu_that_has_become_smaller_is_noticed"),
    ("a driver that fails", f"{HERE}::test_a_driver_that_fails_for_no_known_reason_is_counted"),
    ("a clock that goes back", f"{HERE}::test_time_never_goes_back"),
]
"""Left to the system as it is: MPS, whose clients are seen, and stopped, like any other process."""


@pytest.mark.parametrize(("row", "test"), ROWS)
def test_each_row_has_its_test(row: str, test: str) -> None:
    file, _, name = test.partition("::")
    path = TESTS / f"{file}.py"
    assert path.exists(), f"{row}: {path} is not there"
    assert f"def {name}(" in path.read_text(), f"{row}: no {name} in {path.name}"


@pytest.fixture
def world() -> World:
    """One GPU of 16 GiB; a context costs 300 MiB. The state is checked again when the test is over."""
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    yield world
    world.node.validate()


def terminated(world: World) -> list[str]:
    return [world.node.jobs[one.job].spec.name for one in world.terminated]


def test_a_loan_does_not_overtake_a_claim(world: World) -> None:
    a = start(world, "A", "none", "max")
    c = start(world, "C", "none", "max")
    world.allocate(a, "GPU-0", 9 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    assert len(world.waiting) == 1, "B waits; some GiB are free meanwhile"
    world.allocate(c, "GPU-0", 2 * GIB)
    assert [one.reason.code for one in world.refusals] == [Code.NOT_FREE], "C's loan is refused at once"
    world.free(a, "GPU-0", 8 * GIB)
    world.wait(0.1)
    assert used(world, b) == 7 * GIB


def test_what_a_borrower_frees_goes_to_the_claim(world: World) -> None:
    a = start(world, "A", "none", "max", grace=10.0)
    c = start(world, "C", "none", "max", grace=10.0)
    world.allocate(a, "GPU-0", 7 * GIB)
    world.allocate(c, "GPU-0", 6 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 6 * GIB)
    assert terminated(world) == ["C"]
    world.free(a, "GPU-0", 5 * GIB)
    world.wait(0.1)
    assert used(world, b) == 6 * GIB
    world.wait(20.0)
    assert not world.killed, "C, which has been asked, is left in peace"


def test_after_one_that_cannot_be_killed_comes_the_next(world: World) -> None:
    a = start(world, "A", "none", "max", grace=1.0)
    c = start(world, "C", "none", "max", grace=1.0)
    world.allocate(a, "GPU-0", 6 * GIB)
    world.allocate(c, "GPU-0", 7 * GIB)
    world.programs[a].stubborn = world.ever_stubborn = True
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 6 * GIB)
    world.wait(12.0)
    assert terminated(world) == ["A", "C"]
    assert used(world, b) == 6 * GIB
    assert not world.refusals


def test_that_a_job_cannot_be_killed_is_told(world: World) -> None:
    test_after_one_that_cannot_be_killed_comes_the_next(world)
    assert "unkillable" in {record.event for record in world.node.records}


def test_a_long_grace_does_not_break_a_guarantee(world: World) -> None:
    a = start(world, "A", "none", "max", grace=60.0)
    world.allocate(a, "GPU-0", 13 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.ever_protected = True  # or the world would say so first
    world.allocate(b, "GPU-0", 6 * GIB)
    world.wait(61.0)
    assert not world.refusals
    assert used(world, b) == 6 * GIB


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_grace_ends_before_the_first_claim_that_needs_it_does(world: World, cancelled: bool) -> None:
    """Though the borrower was told to stop when a later claim came, which has more time."""
    timeout = world.node.state.policy.claim_timeout
    a = start(world, "A", "none", "max", grace=60.0, min_run_time=0.5 * timeout)
    world.allocate(a, "GPU-0", 14 * GIB)
    b, c = start(world, "B", "6Gi", "6Gi"), start(world, "C", "6Gi", "6Gi")
    world.allocate(b, "GPU-0", 5 * GIB)
    world.wait(0.4 * timeout)
    world.allocate(c, "GPU-0", 5 * GIB)
    world.wait(0.2 * timeout)
    assert terminated(world) == ["A"]
    if cancelled:
        world.exit(c)
    world.wait(0.5 * timeout)
    assert used(world, b) == 5 * GIB
    assert not world.refusals


def test_a_grace_is_not_cut_for_a_claim_that_others_meet(world: World) -> None:
    timeout = world.node.state.policy.claim_timeout
    a = start(world, "A", "none", "max", grace=60.0)
    d = start(world, "D", "none", "max", grace=60.0, priority=1)
    world.allocate(a, "GPU-0", 7 * GIB)
    world.allocate(d, "GPU-0", 7 * GIB)
    b, c = start(world, "B", "6Gi", "6Gi"), start(world, "C", "6Gi", "6Gi")
    world.allocate(b, "GPU-0", 5 * GIB)
    world.wait(0.5 * timeout)
    assert terminated(world) == ["A"]
    world.allocate(c, "GPU-0", 5 * GIB)
    assert terminated(world) == ["A", "D"]
    first, second = (one.reason.data["grace"] for one in world.terminated)
    assert first == second == timeout - world.node.state.policy.teardown


def test_nobody_is_stopped_beside_one_whose_grace_is_too_long(world: World) -> None:
    """A's loan will not come in time, and without it C's is not enough: C is stopped for nothing."""
    a = start(world, "A", "none", "max", grace=60.0)
    c = start(world, "C", "none", "max", grace=1.0)
    world.allocate(a, "GPU-0", 9 * GIB)
    world.allocate(c, "GPU-0", 3 * GIB)
    b = start(world, "B", "15Gi", "15Gi")
    world.ever_protected = True
    world.allocate(b, "GPU-0", 13 * GIB)
    world.wait(40.0)
    assert not world.killed or not world.refusals, "stopped in vain"


def test_a_process_that_joins_a_killed_job_is_no_gift(world: World) -> None:
    """One process does not die at once; before it is gone its launcher has started another one."""
    a = start(world, "A", "none", "max", grace=1.0)
    world.allocate(a, "GPU-0", 13 * GIB)
    world.programs[a].stubborn = world.ever_stubborn = True
    b = start(world, "B", "8Gi", "8Gi")
    ask = world.allocate(b, "GPU-0", 4 * GIB)
    world.wait(2.0)
    assert len(world.killed) == 1
    assert ask is not None
    del world.waiting[ask]
    world.send(AskCancelled(ask))
    late = world.join(world.programs[a].job)
    world.attach(late, "GPU-0")
    world.programs[a].stubborn = False
    world.wait(1.0)
    assert a not in world.programs
    assert late not in world.programs, "the job is over: who starts in it now goes with it"
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(1.0)
    assert used(world, b) >= 7 * GIB


def test_two_claims_are_one_shortfall(world: World) -> None:
    small = start(world, "small", "none", "max", grace=1.0)
    large = start(world, "large", "none", "max", grace=1.0)
    world.allocate(small, "GPU-0", 3 * GIB)
    world.allocate(large, "GPU-0", 10 * GIB)
    b = start(world, "B", "6Gi", "6Gi")
    c = start(world, "C", "6Gi", "6Gi")
    world.allocate(b, "GPU-0", 4 * GIB)
    world.allocate(c, "GPU-0", 4 * GIB)
    world.wait(3.0)
    assert (used(world, b), used(world, c)) == (4 * GIB, 4 * GIB)
    assert len(world.killed) == len({one.job for one in world.killed}) <= 2
    assert not world.refusals


@pytest.fixture
def two() -> World:
    world = World([16 * GIB] * 2, [mib(300)] * 2, Policy(overhead_guess=mib(300)))
    yield world
    world.node.validate()


def both(world: World) -> tuple[int, int]:
    """A job on both GPUs, of two processes: one on each."""
    job = world.submit(spec("X", "none", "max", gpus=2))
    first, second = world.join(job), world.join(job)
    world.attach(first, "GPU-0")
    world.attach(second, "GPU-1")
    return first, second


def test_a_job_on_two_gpus_goes_as_a_whole(two: World) -> None:
    first, second = both(two)
    two.allocate(first, "GPU-0", 12 * GIB)
    two.allocate(second, "GPU-1", 12 * GIB)
    owner = start(two, "B", "8Gi", "8Gi")
    two.allocate(owner, "GPU-0", 6 * GIB)
    (asked,) = two.terminated
    assert set(asked.processes) == {first, second}
    two.wait(6.0)
    assert not {first, second} & set(two.programs), "both have gone"
    assert used(two, owner) == 6 * GIB


def test_what_is_lost_on_another_gpu_counts(two: World) -> None:
    first, second = both(two)
    two.allocate(first, "GPU-0", 6 * GIB)
    two.allocate(second, "GPU-1", 14 * GIB)
    other = start(two, "Y", "none", "max")
    two.allocate(other, "GPU-0", 7 * GIB)
    assert "GPU-0" in two.programs[other].contexts
    two.wait(10.0)
    owner = start(two, "B", "8Gi", "8Gi")
    two.allocate(owner, "GPU-0", 6 * GIB)
    assert terminated(two) == ["Y"], "it holds 7 GiB, X holds 20"


def test_memory_outside_stops_nobody_without_a_claim(world: World) -> None:
    a = start(world, "A", "none", "max")
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(a, "GPU-0", 9 * GIB)
    world.occupy("GPU-0", 5 * GIB)
    world.wait(60.0)
    assert not world.terminated
    assert not world.trim_count
    world.allocate(b, "GPU-0", 2 * GIB)
    assert terminated(world) == ["A"]


def borrowed_beside_an_outsider(world: World, outside: int) -> int:
    """A has 7 GiB on loan and does not listen; B's request is of 8 GiB, of which 6 are missing with 5 outside."""
    a = start(world, "A", "none", "max")
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(a, "GPU-0", 7 * GIB)
    world.occupy("GPU-0", outside)
    world.wait(3.5)
    return b


def test_memory_that_was_outside_and_has_come_back_is_used(world: World) -> None:
    b = borrowed_beside_an_outsider(world, 5 * GIB)
    world.foreign["GPU-0"] = 0  # it ends between two samples
    world.allocate(b, "GPU-0", 6 * GIB)
    assert not world.terminated, "there is enough, if one looks"
    assert used(world, b) == 6 * GIB


def test_nobody_is_stopped_for_what_an_outsider_has_just_taken(world: World) -> None:
    a = start(world, "A", "none", "5Gi")
    b = start(world, "B", "8Gi", "8Gi")
    c = start(world, "C", "4Gi", "4Gi")
    world.allocate(a, "GPU-0", 4 * GIB + 512 * MIB)
    world.allocate(c, "GPU-0", 3 * GIB + 512 * MIB)
    world.wait(3.5)
    world.foreign["GPU-0"] = 8 * GIB  # it comes between two samples
    world.allocate(b, "GPU-0", 7 * GIB + 512 * MIB)
    world.wait(0.5)
    assert not world.terminated, "A's loan cannot make up for 8 GiB"


def test_what_is_above_a_lowered_limit_can_be_claimed(world: World) -> None:
    a = start(world, "A", "1Gi", "max")
    world.allocate(a, "GPU-0", 12 * GIB)
    one = Quantity.parse("1Gi")
    world.send(BudgetChanged(world.programs[a].job, one, one))
    world.wait(60.0)
    assert not world.terminated, "a lower limit by itself stops nobody"
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 6 * GIB)
    assert terminated(world) == ["A"]


def test_a_gpu_that_has_become_smaller_is_noticed(world: World) -> None:
    before = world.node.gpus["GPU-0"].capacity
    world.send(GpuFound("GPU-0", 0, "software GPU", 15 * GIB))
    assert world.node.gpus["GPU-0"].capacity < before


def test_what_was_before_exec_is_not_the_new_programs(world: World) -> None:
    """One process id: for a while NVML shows the memory of both programs under it."""
    before = start(world, "A", "none", "max")
    world.allocate(before, "GPU-0", 7 * GIB)
    world.wait(3.0)
    job, pid = world.programs[before].job, world.programs[before].pid
    world.exit(before, lag=0.8)
    after = world.next_id()
    world.programs[after] = Program(after, job, pid)
    world.send(ProcessJoined(after, job, pid, "python"))
    world.attach(after, "GPU-0")
    world.wait(0.6)
    assert world.node.gpus["GPU-0"].returning_total > 6 * GIB, "it is on its way back"
    world.wait(5.0)
    assert world.node.state.overheads == {"software GPU": 300 * MIB}
    assert world.usage(job, "GPU-0") == 300 * MIB
    assert not world.node.gpus["GPU-0"].returning


def test_a_driver_that_fails_for_no_known_reason_is_counted(world: World) -> None:
    """Fragmentation, say: the account and NVML agree that there is room."""
    b = start(world, "B", "8Gi", "8Gi")
    for again in (False, True):
        ask = world.next_id()
        world.waiting[ask] = Waiting(b, "GPU-0", 0, world.now, attach=False)
        world._check_denial = lambda *_: None  # no shortage of memory is what it is refused for
        world.send(CreditAsked(ask, b, "GPU-0", GIB, driver_failed=True, allocation=GIB, again=again))
    assert world.node.counters.violations == {"driver": 1}


def test_time_never_goes_back(world: World) -> None:
    a = start(world, "A", "none", "max", grace=5.0)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(a, "GPU-0", 13 * GIB)
    world.allocate(b, "GPU-0", 6 * GIB)
    world.now -= 1000.0
    world.wait(4.0)
    assert not world.killed
    world.now += 1000.0
    world.wait(6.0)
    assert len(world.killed) == 1
    assert used(world, b) == 6 * GIB


def test_what_a_context_costs_is_written_down_when_it_is_learned(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[dict[str, int]] = []
    obey = world._obey

    def watch(instruction: Instruction) -> Event | None:
        if isinstance(instruction, Persist):
            written.append(dict(world.node.state.overheads))
        return obey(instruction)

    monkeypatch.setattr(world, "_obey", watch)
    start(world, "A", "none", "max")
    world.wait(5.0)
    assert written[-1] == {"software GPU": 300 * MIB}


def test_a_context_that_never_opens_is_no_reason_to_look_again_and_again(world: World) -> None:
    """The driver has refused it after the daemon had granted its memory: its charge ends, and so do the samples."""
    world.wait(1.0)
    idle = world.wake
    process = start(world, "A", "none", "max")
    assert world.wake is not None, "until it is measured"
    world.programs[process].contexts.clear()
    world.wait(12.0)
    assert world.node.gpus["GPU-0"].usage == 0
    assert world.wake == idle is None
