"""The world of the random tests, where its judges need care: what the core could know, and when."""

from __future__ import annotations

from gpushare.job_spec import JobSpec
from gpushare.quantity import Kind, Quantity
from property.world import World, mib

NOTHING, MAX = Quantity(Kind.NONE, 0, "none"), Quantity(Kind.MAX, 0, "max")
LADDER = ("trim", "term", "kill")


def test_what_nvml_has_shown_counts_from_when_the_core_hears_of_it() -> None:
    """Words that were read before are handled before a sample that is on its way."""
    world = World([mib(1024)], [mib(32)])
    world.shows_busy = True
    spec = JobSpec("job", 1000, "user", ("python",), NOTHING, MAX, 1, None, 0, None, True, 0.0, LADDER)
    idle = world.join(world.submit(spec._replace(idle_release=3.0)))
    world.programs[idle].listens = True
    world.attach(idle, "GPU-0")
    world.allocate(idle, "GPU-0", mib(10))
    world.send(world._used_seen("GPU-0"))
    world.send(world._sample("GPU-0"))
    world.now += 3.5
    world.programs[idle].computes = True
    on_its_way = world._sample("GPU-0")
    world.send(world._used_seen("GPU-0"))
    assert world.idle_trims == 1
    world.send(on_its_way)
    assert world.node.jobs[world.programs[idle].job].active_at == world.now
