"""Published stories of shares, played with real processes: the engine ends where the simulator does.

The numbers are those of the files in examples/cluster, which the simulator passes. Here each job is a program that runs
until its story says otherwise, and evictions are those that the engine has counted.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import kubernetes_server_conformance
import pytest
import slurm_conformance
import slurm_stage
import yaml
from conformance_stand import RUNS, Stand, Work
from kube_cluster import KubeCluster
from kubernetes_conformance import KubernetesStand
from kubernetes_server_conformance import KubernetesServerStand
from local_conformance import LocalStand, ground
from memory_stand import PacedStand
from real_api_server import missing as no_server
from real_nodes import missing, too_old
from slurm_conformance import SlurmStand

from gpushare.cluster.engines.seam import SeenJob
from gpushare.cluster.model import Action, Event, Move, Node, Queue, QueueAdded
from gpushare.cluster.quantity import MICRO, gpus

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "cluster"
GIB = 2**30
STORIES = ("a1-netapp", "a2-greedy", "a4-blocked")
EQUAL = {"a1-netapp": {"c": "b", "c-4": "b-4"}}
"""Queues, and jobs of theirs, between which nothing decides but the order in which they came. In the file all jobs of a
step come at one moment, real ones one after the other. One stands for both."""
PLAYED = [(engine, name) for engine in ("paced", "local") for name in STORIES]
NODES = ("a3-packed", "a3-one-move", "a3-nothing-movable")
"""Stories of several nodes, so not of one machine."""
PLAYED += [("paced", name) for name in NODES] + [("slurm", name) for name in STORIES + NODES]
STAY = ("a3-packed", "a3-nothing-movable")
"""Of these, those in which nothing moves: pods do not."""
PLAYED += [(engine, name) for engine in ("kubernetes", "server") for name in STORIES + STAY]
MOST_GPUS = 16
"""Of the software driver."""
KNOWN = {"held", "running", "queued", "evicted", "started", "shares", "evicted_in_all"}
KNOWN |= {"node_use", "moved", "moved_in_all", "reason"}


class Loader(yaml.SafeLoader):
    """`on` is a word, as the project's own reader has it."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in pairs if first not in "oO"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


@dataclass(frozen=True)
class Story:
    name: str
    given: dict[str, Any]
    steps: list[dict[str, Any]]

    @classmethod
    def read(cls, name: str) -> Story:
        text = yaml.load((EXAMPLES / f"{name}.yaml").read_text(), Loader)
        return cls(name, text["given"], text["steps"])

    def small(self) -> Story:
        """The same with two GPUs in place of five, and so everything else, where the software driver has not so many.
        Of jobs that were stopped it says how many they are."""
        if self.gpus <= MOST_GPUS:
            return self
        given = {
            "nodes": [{**one, "gpus": fifths(one["gpus"])} for one in self.given["nodes"]],
            "queues": [{**one, "quota": fifths(one["quota"])} for one in self.given["queues"]],
        }
        return Story(self.name, given, [smaller(step) for step in self.steps])

    @property
    def gpus(self) -> int:
        return sum(one.get("count", 1) * one["gpus"] for one in self.given["nodes"])

    def nodes(self) -> list[Node]:
        """As the file has them."""
        return [
            Node(one["name"].replace("{}", str(number)), one["gpus"], 80 * GIB)
            for one in self.given["nodes"]
            for number in range(1, one.get("count", 1) + 1)
        ]

    def queues(self) -> list[QueueAdded]:
        return [QueueAdded(Queue(one["name"], quota=gpus(one["quota"]))) for one in self.given["queues"]]

    def there(self) -> dict[int, list[dict[str, Any]]]:
        """By number of the node: jobs that run when the story begins."""
        found: dict[int, list[dict[str, Any]]] = {}
        names = [node.name for node in self.nodes()]
        for one in self.given.get("jobs", ()):
            words = dict(one)
            found.setdefault(names.index(words.pop("on")), []).append(words)
        return found


def fifths(number: int) -> int:
    assert number * 2 % 5 == 0
    return number * 2 // 5


def smaller(step: dict[str, Any]) -> dict[str, Any]:
    submits = [one["submit"] for one in step["when"]]
    when = [{**one, "count": fifths(one["count"]), "first": fifths(one.get("first", 1) - 1) + 1} for one in submits]
    then = {}
    for name, value in step["then"].items():
        amounts = isinstance(value, dict)
        number = len(value) if isinstance(value, list) else value
        then[name] = {queue: fifths(one) for queue, one in value.items()} if amounts else fifths(number)
    return {"when": [{"submit": one} for one in when], "then": then}


class OfStory:
    """A stand on which a story is played."""

    story: Story

    def queues(self) -> list[QueueAdded]:
        return self.story.queues()


class WithPipes(OfStory):
    """Its programs end when somebody writes into their pipes."""

    def __init__(self, directory: Path, ground: Any, story: Story) -> None:
        self.story = story
        self.ends: dict[str, Path] = {}
        super().__init__(directory, ground)  # type: ignore[call-arg]

    def end(self, uid: str) -> None:
        """Its program ends by itself."""
        with self.ends[uid].open("w") as file:
            file.write("end\n")


class OnNodes(WithPipes):
    """On nodes of a cluster, where programs may be another user's."""

    def begin(self, **asks: Any) -> str:
        end = self.marks / f"end{self.count}"
        os.mkfifo(end)
        end.chmod(0o666)
        uid = self.submit(Work(script=f"read line < {end}"), **asks)
        self.ends[uid] = end
        self.round()  # as in the simulator each is decided when it comes; of several at once another order is fair
        return uid

    def evictions_of(self, uids: Iterable[str]) -> dict[str, int]:
        return seen_evictions(self, uids)


def seen_evictions(stand: Any, uids: Iterable[str]) -> dict[str, int]:
    seen = {one.job.id: one.evictions for one in stand.look().jobs}
    return {uid: seen.get(uid, 0) for uid in uids}


class OfLocal(WithPipes, LocalStand):
    """One machine with all GPUs of the story."""

    def begin(self, **asks: Any) -> str:
        end = self.directory / f"end{self.count}"
        os.mkfifo(end)
        uid = self.submit(Work(script=f"read line < {end}", grace=2.0), **asks)
        self.ends[uid] = end
        return uid


class OfSlurm(OnNodes, SlurmStand):
    """A cluster with as many GPUs on as many nodes as in the file."""

    within = 200.0
    counts_moves = True
    """As evictions: Slurm stops the job and starts it again."""


class OfKubernetes(OfStory, KubernetesStand):
    """On the stand-in for the API server."""

    def __init__(self, directory: Path, ground: Any, story: Story) -> None:
        self.story = story
        super().__init__(directory, ground)

    def make_cluster(self) -> KubeCluster:
        names = tuple(node.name for node in self.story.nodes())
        return KubeCluster(self.directory, names, self.story.nodes()[0].gpus)

    def begin(self, **asks: Any) -> str:
        uid = self.submit(RUNS, **of_claims(asks))
        self.round()
        return uid

    def end(self, uid: str) -> None:
        self.cluster.programs[self.owners[uid]].seconds = 0.0

    def evictions_of(self, uids: Iterable[str]) -> dict[str, int]:
        return seen_evictions(self, uids)


class OfServer(OnNodes, KubernetesServerStand):
    """On a real API server with as many nodes as the story has."""

    within = 300.0

    def begin(self, **asks: Any) -> str:
        return super().begin(**of_claims(asks))


def of_claims(asks: dict[str, Any]) -> dict[str, Any]:
    """A part of a GPU is one of its memory."""
    return asks if asks["gpus"] >= 1 else {**asks, "gpus": 1, "share": asks["gpus"]}


class OfMemory(OfStory, PacedStand):
    def __init__(self, directory: Path, ground: Any, story: Story) -> None:
        self.story = story
        super().__init__(directory, None, tuple(story.nodes()))

    def begin(self, **asks: Any) -> str:
        self.now += 0.01
        return self.submit(RUNS, **asks)

    def end(self, uid: str) -> None:
        self.memory.jobs[uid].duration = 0.0


class Play:
    """A story on a stand: names are the story's."""

    def __init__(self, stand: Any) -> None:
        self.stand: Stand = stand
        self.begin, self.end = stand.begin, stand.end
        self.ids: dict[str, str] = {}
        self.asks: dict[str, dict[str, Any]] = {}
        self.counted: Counter[str] = Counter()
        """Evictions until the last step."""
        self.ran: set[str] = set()
        self.moves: Counter[str] = Counter()
        """That were decided, by the engine's name of the job."""
        self.moved: Counter[str] = Counter()
        """Until the last step."""
        self.places: dict[str, Any] = {}
        """Of those that ran at the end of the last step."""
        self._tell = stand.loop.tell
        stand.loop.tell = self._told

    def _told(self, events: Sequence[Event], actions: Sequence[Action]) -> None:
        self.moves.update(action.job for action in actions if isinstance(action, Move))
        self._tell(events, actions)

    def begin_with(self) -> None:
        """Jobs that run where the story has them, because no other node took any when they came."""
        names = [one.node.name for one in self.stand.nodes()]
        for number, jobs in self.stand.story.there().items():
            others = [name for name in names if name != names[number]]
            for name in others:
                self.stand.cordon(name)
            self.stand.rounds(1)
            for words in jobs:
                self.do("submit", words)
            self.stand.go(lambda jobs=jobs: {one["name"] for one in jobs} <= set(self.facts()["running"]))
            for name in others:
                self.stand.uncordon(name)
        self.stand.rounds(1)
        self.step_over()

    def do(self, verb: str, what: Any) -> None:
        if verb == "end":
            for name in what:
                self.end(self.ids[name])
            return
        assert verb == "submit"
        words = dict(what)
        pattern, count, first = words.pop("name"), words.pop("count", 1), words.pop("first", 1)
        for number in range(first, first + count):
            name = pattern.replace("{}", str(number))
            self.asks[name] = words
            self.ids[name] = self.begin(**words)

    def facts(self) -> dict[str, Any]:
        """What the engine shows, and the processes."""
        jobs = {one.job.id: one for one in self.stand.look().jobs}
        held: Counter[str] = Counter({queue.queue.name: 0 for queue in self.stand.queues()})
        facts: dict[str, Any] = {"running": [], "queued": [], "started": [], "evicted": [], "moved": []}
        used = Counter({one.node.name: 0 for one in self.stand.nodes()})
        evictions = self.evictions()
        for name, uid in self.ids.items():
            running = uid in jobs and any(task.phase == "running" for task in jobs[uid].tasks)
            if running and self.stand.alive(uid):
                held[self.asks[name]["queue"]] += round(float(self.asks[name]["gpus"]) * MICRO)
                used.update({task.node: len(task.gpus) for task in jobs[uid].tasks})
                facts["running"].append(name)
                if name not in self.ran:
                    facts["started"].append(name)
                if self.moves[uid] > self.moved[name] and self.places[name] != places_of(jobs[uid]):
                    facts["moved"] += [name] * (self.moves[uid] - self.moved[name])
            elif uid in jobs and not jobs[uid].ended and not any(task.holds for task in jobs[uid].tasks):
                facts["queued"].append(name)
            facts["evicted"] += [name] * (evictions[name] - self.counted[name])
        facts["held"] = {queue: amount / MICRO for queue, amount in held.items()}
        facts["shares"] = {name: one.share / MICRO for name, one in self.stand.store.allocator.shares().items()}
        facts["evicted_in_all"] = evictions.total()
        facts["moved_in_all"] = self.moved.total() + len(facts["moved"])
        facts["node_use"] = sorted(used.values(), reverse=True)
        facts["reason"] = {name: self.stand.why(self.ids[name]) for name in facts["queued"]}
        return facts

    def evictions(self) -> Counter[str]:
        """As they are counted, by name."""
        counted = self.stand.evictions_of(self.ids.values())
        moves = self.moves if getattr(self.stand, "counts_moves", False) else Counter[str]()
        return Counter({name: counted[uid] - moves[uid] for name, uid in self.ids.items()})

    def is_so(self, then: dict[str, Any]) -> bool:
        facts = self.facts()
        return all(self.fits(name, wanted, facts[name]) for name, wanted in then.items())

    def fits(self, name: str, wanted: Any, found: Any) -> bool:
        if name in ("held", "shares"):
            known = {queue: found[queue] for queue in wanted}
            return sorted(self.same(known)) == sorted(self.same(wanted))
        if name in ("evicted_in_all", "moved_in_all", "node_use"):
            return bool(found == wanted)
        if name == "reason":
            return all(says(found.get(job, ""), numbers) for job, numbers in wanted.items())
        if isinstance(wanted, int):
            return len(found) == wanted
        if isinstance(wanted, dict):
            return Counter(self.asks[one]["queue"] for one in found) == Counter(wanted)
        alike = EQUAL.get(self.stand.story.name, {})
        return Counter(alike.get(one, one) for one in found) == Counter(alike.get(one, one) for one in wanted)

    def same(self, amounts: dict[str, float]) -> list[tuple[str, float]]:
        """With one name for queues that are equal."""
        alike = EQUAL.get(self.stand.story.name, {})
        return [(alike.get(queue, queue), float(amount)) for queue, amount in amounts.items()]

    def step_over(self) -> None:
        facts = self.facts()
        self.counted = self.evictions()
        self.moved.update(facts["moved"])
        self.ran |= set(facts["running"])
        jobs = {one.job.id: one for one in self.stand.look().jobs}
        self.places = {name: places_of(jobs[self.ids[name]]) for name in facts["running"]}


def places_of(job: SeenJob) -> list[tuple[str, tuple[int, ...]]]:
    return [(task.node, task.gpus) for task in job.tasks]


def says(sentence: str, numbers: list[int]) -> bool:
    return all(re.search(rf"(?<![\w.]){number}(?![\w]|\.\d)", sentence) for number in numbers)


@pytest.fixture(params=PLAYED, ids="-".join)
def play(request, tmp_path, tmp_path_factory):
    engine, name = request.param
    story = Story.read(name)
    with pytest.MonkeyPatch.context() as patch:
        if engine == "paced":
            stand: Any = OfMemory(tmp_path, None, story)
            yield Play(stand)
            stand.clear()
            return
        if engine == "kubernetes":
            stand = OfKubernetes(tmp_path, None, story)
            yield Play(stand)
            stand.clear()
            return
        if engine == "server":
            yield from on_server(tmp_path, story)
            return
        if engine == "slurm":
            if slurm_stage.missing():
                pytest.skip(slurm_stage.missing())
            cluster = slurm_conformance.Ground(nodes=len(story.nodes()), gpus=story.nodes()[0].gpus)
            try:
                yield Play(OfSlurm(tmp_path, cluster, story))
            finally:
                cluster.stop()
            return
        (tmp_path / "ground").mkdir()
        story = story.small()
        made = ground(tmp_path_factory.mktemp("g"), patch, gpus=story.gpus, memory="1Gi")
        stand = OfLocal(tmp_path, made, story)
        try:
            yield Play(stand)
        finally:
            stand.clear()
            made.stop()


def on_server(directory: Path, story: Story) -> Iterator[Play]:
    why = no_server() or missing() or too_old()
    if why:
        pytest.skip(why)
    nodes = story.nodes()
    made = kubernetes_server_conformance.Ground([node.name for node in nodes], nodes[0].gpus)
    try:
        stand = OfServer(directory, made, story)
        yield Play(stand)
        stand.clear()
    finally:
        made.stop()


@pytest.mark.timeout(900)
def test_a_story_ends_where_it_does_in_the_simulator(play) -> None:
    story, stand = play.stand.story, play.stand
    stand.rounds(1)  # the allocator knows the nodes
    play.begin_with()
    for step in story.steps:
        for action in step["when"]:
            for verb, what in action.items():
                play.do(verb, what)
        then = step["then"]
        assert set(then) <= KNOWN
        stand.go(lambda then=then: play.is_so(then), lambda then=then: f"{then}, but {play.facts()}")
        stand.rounds(3)
        assert play.is_so(then), (then, play.facts())
        play.step_over()
    evictions, running = play.evictions(), set(play.facts()["running"])
    for name, uid in play.ids.items():
        often = evictions[name] + play.moves[uid] + (name in running | play.ran)
        assert stand.began(uid) <= often, f"{name} has run too often"
