"""What a daemon has written down and the next one reads: amounts of time, and entries that make no sense."""

from __future__ import annotations

import pytest

from core.tale import spec, start
from gpushared.core import persistence
from gpushared.core.events import Checkpointed, SuspendWanted
from gpushared.core.policy import MIB, Policy
from gpushared.core.sleep import Sleep, SleepState
from property.world import World, mib

GIB = 1024 * MIB


def notes_with_reservations() -> dict[str, object]:
    """One that ends 60 s after it was asked for, and one without an end, 10 s later."""
    world = World([16 * GIB], [mib(300)], Policy())
    assert world.reserve(spec("ends", "2Gi", "max"), 60.0) and world.reserve(spec("stays", "2Gi", "max"))
    world.wait(10.0)
    return world.node.notes()


@pytest.mark.parametrize(("passed", "left"), [(0.0, 50.0), (20.0, 30.0), (49.0, 1.0), (70.0, 0.0)])
def test_a_reservation_ends_when_it_was_to_end_though_no_daemon_was_there(passed: float, left: float) -> None:
    ends, stays = persistence.restore_reservations(notes_with_reservations(), passed)
    assert [one.spec.name for one in (ends, stays)] == ["ends", "stays"]
    assert ends.left == pytest.approx(left) and stays.left is None
    assert ends.age == pytest.approx(10.0 + passed) == stays.age


def test_what_is_said_of_a_job_counts_the_time_without_a_daemon() -> None:
    """Its age, its last checkpoint, since when it is suspended, and since when its hook was called."""
    world = World([16 * GIB], [mib(300)], Policy())
    process = start(world, "A", "1Gi", "15Gi", on_reclaim=("hook", "suspend", "term", "kill"))
    world.allocate(process, "GPU-0", 2 * GIB)
    job = world.programs[process].job
    world.send(Checkpointed(job))
    world.suspender_comes(job, "ok")
    world.send(SuspendWanted(job))
    world.node.state.set_sleep(world.node.jobs[job], Sleep(SleepState.ASLEEP, world.now, 0, {}, {}))
    world.wait(10.0)
    (read,) = persistence.restore(world.node.notes(), 20.0)
    assert read.suspended is not None and read.asleep is not None
    for seconds in (read.age, read.saved, read.suspended.age, read.asleep.age):
        assert seconds == pytest.approx(30.0)


@pytest.mark.parametrize("wrong", [{"since": "yesterday"}, {"amounts": {"GPU-0": -1}}, {"spec": 7}])
def test_what_is_odd_is_left_out_and_named_and_the_rest_is_read(wrong: dict[str, object]) -> None:
    notes = notes_with_reservations()
    first = notes["reservations"][0]  # type: ignore[index]
    first.update(wrong)
    told: list[str] = []
    read = persistence.restore_reservations(notes, 0.0, lambda what, why: told.append(what) if str(why) else None)
    assert [one.spec.name for one in read] == ["stays"]
    assert told == [f"reservation {first['reservation']}"]
    with pytest.raises(persistence.OddNote, match=f"reservation {first['reservation']}: "):
        persistence.restore_reservations(notes, 0.0)


def test_a_cost_of_contexts_that_is_odd_is_left_out_and_named() -> None:
    told: list[str] = []
    known = persistence.restore_overheads({"overheads": {"A": 5, "B": "much"}}, lambda what, _: told.append(what))
    assert known == {"A": 5} and told == ["overhead of B"]
