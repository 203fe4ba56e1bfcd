"""Queues that an engine keeps: the ledger follows them, and the engine is told how they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations
from pathlib import Path

import pytest
from service_stage import GIB

from gpushare.cluster.engines.seam import QueueTold
from gpushare.cluster.model import Job, JobSubmitted, Node, NodeAdded, Policy, Queue, QueueAdded, Tasks
from gpushare.cluster.quantity import MICRO, gpus
from gpushare.cluster.service.driver import Options
from gpushare.cluster.service.queue_source import TELL_EVERY, QueueSource
from gpushare.cluster.store import Store


class Engine:
    """Says what a test has put down, and notes what it is told."""

    def __init__(self) -> None:
        self.said: dict[str, Queue | str] | None = {}
        self.told: list[Mapping[str, QueueTold]] = []

    def queues(self) -> Mapping[str, Queue | str] | None:
        return self.said

    def tell_queues(self, told: Mapping[str, QueueTold]) -> None:
        self.told.append(told)


class Followed:
    """A ledger that follows an engine, look by look."""

    def __init__(self, folder: Path) -> None:
        self.engine = Engine()
        self.store = Store.create(folder / "ledger.db", Policy())
        self.source = QueueSource(self.engine, self.store, lambda name: Options().own_queue(name).queue)
        self.now = 1000.0

    def look(self, said: Mapping[str, Queue | str] | None) -> Mapping[str, QueueTold]:
        """What the engine is told after it has said so."""
        self.engine.said = None if said is None else dict(said)
        self.now += TELL_EVERY
        self.source.follow(lambda events: self.store.append(events, self.now))
        before = len(self.engine.told)
        self.source.tell(self.now)
        assert len(self.engine.told) <= before + 1
        return self.engine.told[-1] if len(self.engine.told) > before else {}

    @property
    def queues(self) -> dict[str, Queue]:
        return {name: view.queue for name, view in self.store.allocator.queues.items()}


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    one = Followed(tmp_path)
    yield one
    one.store.close()


LAB, VISION, WEB = Queue("lab", quota=gpus(4)), Queue("vision", "lab", quota=gpus(2)), Queue("web", quota=gpus(1))
NOTHING = QueueTold(held=0, share=0, waiting=0, running=0)


@pytest.mark.parametrize("order", [*permutations((LAB, VISION, Queue("cats", "vision")))])
def test_parents_come_before_their_children_whatever_the_order(followed: Followed, order: tuple[Queue, ...]) -> None:
    told = followed.look({queue.name: queue for queue in order})
    assert followed.queues == {queue.name: queue for queue in order}
    assert {one.wrong for one in told.values()} == {""}


def test_it_is_told_what_its_queues_hold_and_may_hold(followed: Followed) -> None:
    followed.look({"lab": LAB, "vision": VISION, "web": WEB})
    two = (Tasks(gpus=2),)
    jobs = [Job(str(number), "vision", two) for number in range(3)]
    followed.store.append([NodeAdded(Node("n1", 4, 80 * GIB)), *map(JobSubmitted, jobs)], followed.now)
    told = followed.look({"lab": LAB, "vision": VISION, "web": WEB})
    assert told["vision"] == QueueTold(held=4 * MICRO, share=4 * MICRO, waiting=1, running=2)
    assert told["web"] == QueueTold(held=0, share=0, waiting=0, running=0)
    assert told["lab"].held == 4 * MICRO, "with the queues below it"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("quota 'x' is no number", "quota 'x' is no number"),
        (Queue("new", "nobody"), "nobody"),
        (Queue("new", "new"), "new"),
    ],
    ids=["no sense", "no parent", "itself"],
)
def test_of_a_queue_that_never_counted_is_told_why_and_nothing_else(
    followed: Followed, said: Queue | str, words: str
) -> None:
    told = followed.look({"lab": LAB, "new": said})
    assert told["lab"] == NOTHING and "new" not in followed.queues
    assert told["new"] == NOTHING._replace(wrong=told["new"].wrong) and words in told["new"].wrong
    assert followed.look({"lab": LAB, "new": Queue("new")})["new"] == NOTHING


def test_what_makes_no_sense_leaves_a_queue_as_it_was(followed: Followed) -> None:
    followed.look({"lab": LAB})
    assert followed.look({"lab": "no sense"})["lab"] == NOTHING._replace(wrong="no sense")
    assert followed.queues == {"lab": LAB}
    other = Queue("lab", quota=gpus(7))
    assert followed.look({"lab": other})["lab"] == NOTHING
    assert followed.queues == {"lab": other}


def test_a_circle_is_told_to_each_in_it(followed: Followed) -> None:
    told = followed.look({"a": Queue("a", "b"), "b": Queue("b", "a"), "lab": LAB})
    assert told["lab"] == NOTHING and all(told[name].wrong for name in ("a", "b"))
    assert followed.queues == {"lab": LAB}


def test_a_queue_that_is_removed_is_as_one_of_a_user(followed: Followed) -> None:
    followed.look({"lab": LAB, "vision": VISION})
    assert set(followed.look({"lab": LAB})) == {"lab"}, "of an object that is gone nothing is told"
    own = Options().own_queue("vision").queue
    assert followed.queues["vision"] == Queue("vision", "lab", quota=own.quota, weight=own.weight)
    before = followed.store.seq
    followed.look({"lab": LAB})
    assert followed.store.seq == before, "nothing is written again and again"


def test_an_engine_that_keeps_none_leaves_the_files_queues_alone(followed: Followed) -> None:
    followed.store.append([QueueAdded(LAB)], followed.now)
    assert followed.look(None) == {}
    assert followed.queues == {"lab": LAB} and not followed.engine.told


def test_it_is_told_now_and_then_and_at_once_when_the_clock_jumps(followed: Followed) -> None:
    followed.look({"lab": LAB})
    for seconds, times in ((0.1, 1), (TELL_EVERY - 0.1, 1), (TELL_EVERY, 2), (TELL_EVERY + 1, 2), (-1000, 3)):
        followed.source.tell(followed.now + seconds)
        assert len(followed.engine.told) == times, seconds
