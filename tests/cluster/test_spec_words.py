"""What files say of nodes, queues, jobs and the policy: the noun that each key makes, its bounds, what is refused."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from gpushare.cluster import spec_parser
from gpushare.cluster.model import Job, Node, Policy, Queue, Selector, Tasks
from gpushare.cluster.spec_parser import Seats, Submission
from gpushare.cluster.yaml_source import FileError, parse

GIB = 2**30
MICRO = 1_000_000
WHOLE = (Tasks(),)


def refused(read, text: str) -> tuple[str, str]:
    with pytest.raises(FileError) as caught:
        list(read(parse(text, "c.yaml")))
    return caught.value.message, caught.value.hint or ""


# ---- nodes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{name: n, gpus: 1}", [Node("n", 1)]),
        ("{name: n, gpus: 1024}", [Node("n", 1024)]),
        (
            "{name: n, gpus: 2, memory: 24Gi, type: A10, pool: p, labels: {b: 2, a: x}, broken: [1, 0]}",
            [Node("n", 2, 24 * GIB, "A10", "p", (("a", "x"), ("b", "2")), frozenset({0, 1}))],
        ),
        ("{name: n, gpus: 2, broken: 1}", [Node("n", 2, broken=frozenset({1}))]),
        ("{name: 'n{}', gpus: 2}", [Node("n1", 2)]),
        ("{name: 'n{}', gpus: 2, count: 3}", [Node("n1", 2), Node("n2", 2), Node("n3", 2)]),
        ("{name: 'n{}', gpus: 2, count: 2, first: 0}", [Node("n0", 2), Node("n1", 2)]),
        ("{name: 'n{}', gpus: 2, count: 2, first: 9}", [Node("n9", 2), Node("n10", 2)]),
        ("{name: n, gpus: 2, count: 1}", [Node("n", 2)]),
        ("{name: n, gpus: 2, count: 0}", []),
        ("[]", []),
    ],
)
def test_nodes(text, found):
    assert list(spec_parser.nodes(parse(text, "c.yaml"))) == found


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("{name: n}", "gpus is missing", "add `gpus: ...`"),
        ("{gpus: 1}", "name is missing", "add `name: ...`"),
        ("{name: n, gpus: 0}", "gpus: 0 is out of range", "from 1 to 1024"),
        ("{name: n, gpus: 1025}", "gpus: 1025 is out of range", "from 1 to 1024"),
        ("{name: n, gpus: 1, memory: 50%}", "memory: '50%' is not an amount of memory in bytes", "80Gi"),
        ("{name: n, gpus: 1, broken: [-1]}", "broken[0]: -1 is out of range", "from 0"),
        ("{name: n, gpus: 1, count: 2}", "name: 2 of one name", "write n-{}: {} becomes the number"),
        ("{name: n, gpus: 1, count: 1000001}", "count: 1000001 is out of range", "from 0 to 1000000"),
        ("{name: n, gpus: 1, colour: red}", "unknown key 'colour'", "it takes name, count"),
    ],
)
def test_nodes_that_are_refused(text, words, hint):
    message, way_out = refused(spec_parser.nodes, text)
    assert message == f"c.yaml:1: {words}" and hint in way_out


# ---- queues ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{name: a}", [(Queue("a"), [])]),
        ("{name: a, parent: b}", [(Queue("a", "b"), [])]),
        ("{name: a, quota: 0.5}", [(Queue("a", quota=MICRO // 2), ["quota"])]),
        ("{name: a, quota: unlimited, limit: 3}", [(Queue("a", quota=None, limit=3 * MICRO), ["quota", "limit"])]),
        ("{name: a, quota: 1, limit: unlimited}", [(Queue("a", quota=MICRO), ["quota", "limit"])]),
        ("{name: a, limit: null}", [(Queue("a"), ["limit"])]),
        ("{name: a, weight: 0}", [(Queue("a", weight=0), ["weight"])]),
        ("{name: a, weight: 2.5}", [(Queue("a", weight=2_500_000), ["weight"])]),
        ("{name: a, priority: -2147483648}", [(Queue("a", priority=-(2**31)), ["priority"])]),
        ("{name: a, priority: 2147483648}", [(Queue("a", priority=2**31), ["priority"])]),
        ("{name: a, static: true}", [(Queue("a", static=True), ["static"])]),
        ("{name: a, min_runtime: 2m}", [(Queue("a", min_runtime=120.0), ["min_runtime"])]),
        ("{name: a, placement: spread}", [(Queue("a", placement="spread"), ["placement"])]),
        ("{name: a, placement: pack}", [(Queue("a", placement="pack"), ["placement"])]),
        (
            "{name: a, default_limit: 50%, max_limit: 0.75}",
            [(Queue("a", default_limit=500_000, max_limit=750_000), ["default_limit", "max_limit"])],
        ),
        (
            "{name: a, quota: 3, queues: [{name: b, quota: 1, queues: {name: c}}, {name: d, parent: x}]}",
            [
                (Queue("a", quota=3 * MICRO), ["quota"]),
                (Queue("b", "a", quota=MICRO), ["quota"]),
                (Queue("c", "b"), []),
                (Queue("d", "x"), []),
            ],
        ),
    ],
)
def test_queues(text, found):
    item = parse(text, "c.yaml")
    assert list(spec_parser.said_of_queues(item)) == found
    assert list(spec_parser.queues(item)) == [queue for queue, _ in found]


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("{quota: 1}", "name is missing", ""),
        (
            "{name: a, quota: 50%}",
            "quota: '50%': a queue is promised GPUs, not a percentage",
            "write a number of GPUs: 4",
        ),
        ("{name: a, limit: ' 50% '}", "limit: ' 50% ': a queue is promised GPUs, not a percentage", "4"),
        ("{name: a, quota: [1]}", "quota: a list is not a number of GPUs", "write 2, 0.25 or 25%"),
        ("{name: a, weight: -1}", "weight: '-1' is below 0", "of 1 and 3 the second gets three times as much"),
        ("{name: a, weight: x}", "weight: cannot read 'x' as a number of GPUs", ""),
        ("{name: a, priority: 2147483649}", "priority: 2147483649 is out of range", ""),
        ("{name: a, priority: -2147483649}", "priority: -2147483649 is out of range", ""),
        ("{name: a, static: 'yes'}", "static: 'yes' is not true or false", ""),
        ("{name: a, placement: fill}", "placement: 'fill' is not known here", "write one of pack, spread"),
    ],
)
def test_queues_that_are_refused(text, words, hint):
    message, way_out = refused(spec_parser.queues, text)
    assert message == f"c.yaml:1: {words}" and hint in way_out


# ---- the policy -----------------------------------------------------------------------------------


SECONDS = ("grow_hold", "reserve_after", "retry_after", "back_off", "protect", "patience")


@pytest.mark.parametrize(
    ("text", "given"),
    [
        *((f"{name}: 90s", {name: 90.0}) for name in SECONDS),
        ("reserve_after: null", {"reserve_after": None}),
        ("endings: reported", {"endings": "reported"}),
        ("endings: instant", {"endings": "instant"}),
        ("consolidate: false", {"consolidate": False}),
        ("search_width: 1", {"search_width": 1}),
        ("search_width: 100000", {"search_width": 100_000}),
        ("start_tries: 1", {"start_tries": 1}),
        ("start_tries: 1000", {"start_tries": 1000}),
        ("grow_hold: 1s\npatience: 2s\nstart_tries: 4", {"grow_hold": 1.0, "patience": 2.0, "start_tries": 4}),
    ],
)
def test_the_policy(text, given):
    assert spec_parser.policy(parse(text, "c.yaml")) == Policy(**given)
    assert spec_parser.policy(None) == Policy()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((f"{name}: null", f"{name} cannot be null") for name in SECONDS if name != "reserve_after"),
        ("search_width: 0", "search_width: 0 is out of range"),
        ("search_width: 100001", "search_width: 100001 is out of range"),
        ("start_tries: 0", "start_tries: 0 is out of range"),
        ("start_tries: 1001", "start_tries: 1001 is out of range"),
        ("endings: late", "endings: 'late' is not known here"),
        ("grow_hold: soon", "grow_hold: "),
        ("grow: 1s", "unknown key 'grow'"),
    ],
)
def test_a_policy_that_is_refused(text, words):
    with pytest.raises(FileError) as caught:
        spec_parser.policy(parse(text, "c.yaml"))
    assert caught.value.message.startswith(f"c.yaml:1: {words}")


def test_each_number_of_the_policy_can_be_said():
    with pytest.raises(FileError) as caught:
        spec_parser.policy(parse("x: 1", "c.yaml"))
    assert caught.value.hint == f"it takes {', '.join(one.name for one in fields(Policy))}"


# ---- jobs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "tasks"),
    [
        ("", Tasks()),
        ("gpus: 2", Tasks(gpus=2)),
        ("gpus: 0.25", Tasks(share=250_000)),
        ("gpus: 25%", Tasks(share=250_000)),
        ("gpus: 2, share: 1", Tasks(gpus=2, share=MICRO)),
        ("gpus: 2, share: 0.000001", Tasks(gpus=2, share=1)),
        ("share: 50%", Tasks(share=500_000)),
        ("gpus: 2, memory: 40Gi", Tasks(gpus=2, memory=40 * GIB)),
        ("gpus: 0.5, limit: 0.8", Tasks(share=500_000, limit=800_000)),
        ("memory: 4Gi, limit: 8Gi", Tasks(memory=4 * GIB, limit=8 * GIB)),
        ("ladder: [1.0, 0.7, 0.4]", Tasks(share=MICRO, ladder=(700_000, 400_000))),
        ("ladder: 0.5", Tasks(share=500_000)),
        ("ladder: []", Tasks()),
        ("gpus: 0.5, ladder: [0.25]", Tasks(share=500_000, ladder=(250_000,))),
        ("memory: 4Gi, ladder: [2Gi, 1Gi]", Tasks(memory=4 * GIB, ladder=(2 * GIB, GIB))),
        ("tasks: 4", Tasks(4)),
        ("tasks: 4, min: 2", Tasks(2, 4)),
        ("tasks: 4, min: 0", Tasks(0, 4)),
        ("tasks: 4, min: 4", Tasks(4)),
        ("min: 1", Tasks(1)),
        ("tasks: 1000000", Tasks(10**6)),
    ],
)
def test_what_a_task_asks_for(said, tasks):
    (one,) = spec_parser.jobs(parse(f"{{name: j, queue: q, {said}}}", "c.yaml"))
    assert one == Submission(Job("j", "q", (tasks,)))


@pytest.mark.parametrize(
    ("said", "words", "hint"),
    [
        ("gpus: 0", "gpus: a job without a GPU needs no place here", "write 1 or more"),
        ("gpus: 1.5", "gpus: 1.5 GPUs are neither whole nor a part of one", "2 GPUs and a share of 0.75"),
        ("gpus: 0.5, share: 0.5", "gpus: a part of a GPU is said twice", "gpus: 1"),
        ("gpus: 0.5, memory: 1Gi", "gpus: a part of a GPU is said twice", "gpus: 1"),
        ("share: 0", "share: '0' is no part of a GPU", "write 0.5 or 50%"),
        ("share: 1.000001", "share: '1.000001' is no part of a GPU", "write 0.5 or 50%"),
        ("memory: 1Gi, limit: 0.5", "limit: ", ""),
        ("tasks: 0", "tasks: 0 is out of range", "from 1 to 1000000"),
        ("tasks: 1000001", "tasks: 1000001 is out of range", ""),
        ("tasks: 2, min: 3", "min: 3 is out of range", "from 0 to 2"),
        ("tasks: 2, min: -1", "min: -1 is out of range", "from 0 to 2"),
        ("min: 2", "min: 2 is out of range", "from 0 to 1"),
        ("priority: 2147483649", "priority: 2147483649 is out of range", ""),
        ("colour: red", "unknown key 'colour'", ""),
        ("on: n", "unknown key 'on'", ""),
        ("groups: [{gpus: 1}], memory: 1Gi", "memory: beside `groups`", "say it in each of the groups"),
        ("groups: [{gpus: 1, queue: q}]", "groups[0]: unknown key 'queue'", ""),
    ],
)
def test_jobs_that_are_refused(said, words, hint):
    message, way_out = refused(spec_parser.jobs, f"{{name: j, queue: q, {said}}}")
    assert message.startswith(f"c.yaml:1: {words}") and hint in way_out


@pytest.mark.parametrize(
    ("said", "given"),
    [
        ("priority: -2147483648", {"priority": -(2**31)}),
        ("priority: 2147483648", {"priority": 2**31}),
        ("min_runtime: 90s", {"min_runtime": 90.0}),
        ("checkpoint_every: 1h", {"checkpoint_every": 3600.0}),
        *(
            (f"{name}: {str(not usual).lower()}", {name: not usual})
            for name, usual in (("preemptible", True), ("wait", True), ("backfill", True), ("movable", False))
        ),
        (
            "pool: p, type: [a, b], node: [n], labels: {k: v}",
            {"selector": Selector(("p",), ("a", "b"), (("k", "v"),), ("n",))},
        ),
        (
            "groups: [{name: head, gpus: 2}, {tasks: 3, min: 1}]",
            {"tasks": (Tasks(gpus=2, name="head"), Tasks(1, 3))},
        ),
        ("groups: {memory: 1Gi}", {"tasks": (Tasks(memory=GIB),)}),
    ],
)
def test_what_a_job_says_beside(said, given):
    (one,) = spec_parser.jobs(parse(f"{{name: j, queue: q, {said}}}", "c.yaml"))
    assert one.job == Job("j", "q", **{"tasks": WHOLE, **given})


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("at: 5s", [("j", 5.0, None)]),
        ("duration: 1m", [("j", 0.0, 60.0)]),
        ("every: 10s", [("j", 0.0, None)]),
    ],
)
def test_when_a_job_comes_and_how_long_it_takes(said, found):
    text = parse(f"{{name: j, queue: q, {said}}}", "c.yaml")
    assert [(one.job.id, one.at, one.duration) for one in spec_parser.jobs(text)] == found


def test_a_series_comes_one_after_the_other():
    text = parse("{name: 'j{}', queue: q, count: 3, first: 4, every: 10s, at: 5s, duration: 1s}", "c.yaml")
    found = [(one.job.id, one.at, one.duration) for one in spec_parser.jobs(text)]
    assert found == [("j4", 5.0, 1.0), ("j5", 15.0, 1.0), ("j6", 25.0, 1.0)]


# ---- traces ---------------------------------------------------------------------------------------


LINES = {
    "t.jsonl": """{"name": "a", "queue": "q", "at": 3, "gpus": 2}

  \n{"name": "b", "queue": "q", "preemptible": false}
""",
    "t.csv": " name ,queue,at,gpus,preemptible\na,q, 3 ,2,\n\nb,q,,,false\n",
}


@pytest.mark.parametrize("name", LINES)
def test_a_trace_has_a_job_in_each_line(tmp_path: Path, name):
    path = tmp_path / name
    path.write_text(LINES[name])
    a, b = Job("a", "q", (Tasks(gpus=2),)), Job("b", "q", preemptible=False)
    assert spec_parser.trace(path) == [Submission(a, 3.0), Submission(b)]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.jsonl", "", " has no jobs"),
        ("t.csv", "", " has no jobs"),
        ("t.csv", "name,queue\n", " has no jobs"),
        ("t.jsonl", '{"name": "a", "queue": "q"}\n{"name": 1,\n', ":2: not JSON: "),
        ("t.jsonl", '\n{"name": "a", "queue": "q", "gpus": 0}\n', ":2: gpus: a job without a GPU"),
        ("t.csv", "name,queue\na,q\na,q,2\n", ":3: 3 values for 2 columns"),
        ("t.csv", "name,queue\na\n", ":2: 1 values for 2 columns"),
        ("t.csv", "name,queue,gpus\na,q,1\na,q,0\n", ":3: gpus: a job without a GPU"),
    ],
)
def test_traces_that_are_refused(tmp_path: Path, name, text, words):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(FileError) as caught:
        spec_parser.trace(path)
    assert caught.value.message.startswith(f"{path}{words}")


# ---- jobs that run already ------------------------------------------------------------------------


def seats(*nodes: Node) -> Seats:
    one = Seats()
    for node in nodes:
        one.add(node)
    return one


def seated(text: str, *nodes: Node, now: float = 100.0):
    return list(spec_parser.restored(parse(text, "c.yaml"), seats(*nodes), now))


TWO = Node("n", 2, 80 * GIB)


def test_jobs_that_run_already_take_the_fullest_gpu_that_has_room():
    found = seated(
        "[{name: a, queue: q, gpus: 0.5, on: n}, {name: b, queue: q, gpus: 0.25, on: n}, {name: c, queue: q, on: n}]",
        TWO,
    )
    assert [(event.job.id, event.places[0].gpus) for event, _ in found] == [("a", (0,)), ("b", (0,)), ("c", (1,))]


@pytest.mark.parametrize(
    ("said", "since", "rung", "duration"),
    [
        ("", 100.0, 0, None),
        ("ran: 30s", 70.0, 0, None),
        ("duration: 5s", 100.0, 0, 5.0),
        ("ladder: [1, 0.5], rung: 1", 100.0, 1, None),
    ],
)
def test_since_when_they_run_and_on_which_rung(said, since, rung, duration):
    ((event, lasts),) = seated(f"{{name: a, queue: q, on: n, {said}}}", TWO)
    assert (event.since, event.rung, lasts) == (since, rung, duration)


def test_tasks_have_a_node_each_or_one_for_all():
    nodes = [Node("n", 2), Node("m", 2)]
    for on, where in (("n", "nn"), ("[m, n]", "mn"), ("[m]", "mm")):
        ((event, _),) = seated(f"{{name: a, queue: q, tasks: 2, on: {on}}}", *nodes)
        assert [(place.group, place.task, place.node) for place in event.places] == [(0, 0, where[0]), (0, 1, where[1])]
    ((event, _),) = seated("{name: a, queue: q, tasks: 3, min: 1, on: [n, m]}", *nodes)
    assert [place.task for place in event.places] == [0, 1], "an elastic job may have fewer"
    ((event, _),) = seated("{name: a, queue: q, groups: [{gpus: 2}, {tasks: 2}], on: [n, m, m]}", *nodes)
    assert [place[:4] for place in event.places] == [(0, 0, "n", (0, 1)), (1, 0, "m", (0,)), (1, 1, "m", (1,))]


def test_the_gpus_that_are_named_are_taken():
    ((event, _),) = seated("{name: a, queue: q, on: n, gpu: 1}", TWO)
    assert event.places[0].gpus == (1,)
    ((event, _),) = seated("{name: a, queue: q, gpus: 2, on: n, gpu: [0, 2]}", Node("n", 4))
    assert event.places[0].gpus == (0, 2)


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("{name: a, queue: q, on: m}", "on: no node m", "there are: n"),
        ("{name: a, queue: q, on: [n, n]}", "on: 2 nodes for 1 tasks", "one for each task"),
        ("{name: a, queue: q, gpus: 3, on: n}", "on: there is no room on n", "name another node"),
        ("{name: a, queue: q, on: n, gpu: 2}", "on: there is no room on n", ""),
        ("{name: 'a{}', count: 3, queue: q, on: n}", "on: there is no room on n", ""),
        ("{name: a, queue: q, memory: 81Gi, on: n}", "on: there is no room on n", ""),
        ("{name: a, queue: q, ladder: [1, 0.5], rung: 2, on: n}", "on: there is no room on n", ""),
        ("{name: a, queue: q, rung: 101, on: n}", "rung: 101 is out of range", "from 0 to 100"),
        ("{name: a, queue: q}", "on is missing", ""),
    ],
)
def test_jobs_that_cannot_run_there(text, words, hint):
    message, way_out = refused(lambda item: spec_parser.restored(item, seats(TWO), 0.0), text)
    assert message == f"c.yaml:1: {words}" and hint in way_out


def test_broken_gpus_have_no_room_and_memory_is_counted_to_the_byte():
    one = seats(Node("n", 2, 80 * GIB, broken=frozenset({0})))
    assert one.take("n", Tasks(memory=50 * GIB), 0) == (1,)
    assert one.take("n", Tasks(memory=30 * GIB + 1), 0) is None
    assert one.take("n", Tasks(memory=30 * GIB), 0) == (1,) and one.free["n"] == [0, 0]
    assert one.take("m", Tasks(), 0) is None
