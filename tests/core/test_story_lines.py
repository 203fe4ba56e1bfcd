"""How long stories get: what is kept of all jobs together is bounded."""

from __future__ import annotations

import pytest

from core.tale import spec
from gpushared.core.events import Checkpointed
from gpushared.core.policy import MIB
from gpushared.core.transaction import ALL_STORIES, LEAST_LINES, STORY_LINES
from property.world import World, mib


@pytest.mark.parametrize(("jobs", "most"), [(1, STORY_LINES), (40, STORY_LINES), (80, 200), (1000, LEAST_LINES)])
def test_the_more_jobs_the_shorter_their_stories(jobs, most):
    world = World([16 * 1024 * MIB], [mib(300)])
    ids = [world.submit(spec("a", "1Mi", "1Mi")) for _ in range(jobs)]
    lengths = []
    for _ in range(2 * STORY_LINES + 2):
        world.node.handle(Checkpointed(ids[0]), world.now)
        lengths.append(len(world.node.story(ids[0])))
    assert max(lengths) == 2 * most and lengths[-1] >= most
    after = lengths.index(max(lengths)) + 1
    assert lengths[after] == most, "the oldest go, down to what is kept"
    assert len(world.node.records) <= 2 * STORY_LINES
    assert most * jobs <= ALL_STORIES or most == LEAST_LINES


def test_the_youngest_lines_stay():
    world = World([16 * 1024 * MIB], [mib(300)])
    job = world.submit(spec("a", "1Mi", "1Mi"))
    for _ in range(3 * STORY_LINES):
        world.now += 1.0
        world.node.handle(Checkpointed(job), world.now)
    assert world.node.story(job)[-1].time == world.now
    assert world.node.story(job)[0].event == "checkpointed"
