"""The words in which the stories about the core are told."""

from __future__ import annotations

from gpushare.job_spec import JobSpec
from gpushare.quantity import Quantity
from gpushared.core.model import Job
from property.world import World


def spec(name: str, request: str, limit: str, **more: object) -> JobSpec:
    return JobSpec(name, 1000, "alice", ("python",), Quantity.parse(request), Quantity.parse(limit), **more)


def start(world: World, name: str, request: str, limit: str, **more: object) -> int:
    """A job with one program that has a context on the GPU."""
    job = world.submit(spec(name, request, limit, **more))
    assert job in world.node.jobs, "not admitted"
    process = world.join(job)
    world.attach(process, "GPU-0")
    return process


def siblings(world: World, name: str, request: str, limit: str, **more: object) -> tuple[int, int]:
    """A job with two programs that have a context each."""
    job = world.submit(spec(name, request, limit, **more))
    first, second = world.join(job), world.join(job)
    for process in (first, second):
        world.attach(process, "GPU-0")
    return first, second


def used(world: World, process: int) -> int:
    return world.programs[process].words["GPU-0"].used


def job_of(world: World, process: int) -> Job:
    return world.node.jobs[world.programs[process].job]


def told(world: World, process: int) -> list[str]:
    """The events of its job's story, in order."""
    return [record.event for record in job_of(world, process).story]
