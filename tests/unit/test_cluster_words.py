"""What `gpushare cluster` prints of queues, nodes and jobs, of plans and of explanations: each cell and each line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.cli import cluster_views as views
from gpushare.cli import output
from gpushare.cluster.answers import Explanation, JobView, Loan, NodeView, QueueView, WhatIf
from gpushare.cluster.model import Code, Job, Node, Place, Queue, Start, Tasks

GIB = 2**30
MICRO = 1_000_000
WAITS = SimpleNamespace(message="no room", facts=(), code=Code.NO_SPACE)


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(views, "time", SimpleNamespace(time=lambda: 1000.0))
    monkeypatch.setattr(output, "print_table", lambda columns, rows: told.append((titles(columns), rows)))
    told: list[Any] = []
    return told


def titles(columns: Any) -> list[str]:
    return [column.title for column in columns]


def place(node: str = "n", *gpus: int, task: int = 0, group: int = 0) -> Place:
    return Place(group, task, node, gpus, 0, 0)


def job(*tasks: Tasks, places: tuple[Place, ...] = (), charge: int = 0, state: Any = "pending", **more: Any) -> JobView:
    of_job = {key: more.pop(key) for key in ("name", "priority", "preemptible") if key in more}
    made = Job("17", "vision", tasks or (Tasks(),), **of_job)
    given = {"since": 900.0, "reason": WAITS, **more}
    return JobView(made, state, 1, 0, places, charge=charge, **given)


def row(view: JobView) -> dict[str, str]:
    return dict(zip(titles(views.JOBS), views._job_row("17", view, 1000.0), strict=True))


# ---- jobs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "cells"),
    [
        (job(), {"JOB": "17", "QUEUE": "vision", "STATE": "pending", "PRIORITY": "50", "GPUS": "1", "TASKS": "-"}),
        (job(name="train"), {"JOB": "17 train"}),
        (job(held=True), {"STATE": "held"}),
        (job(priority=7, preemptible=False), {"PRIORITY": "7 fixed"}),
        (job(Tasks(4)), {"TASKS": "0/4", "GPUS": "4 x 1"}),
        (job(Tasks(1, 3)), {"TASKS": "0/3", "GPUS": "3 x 1"}),
        (job(Tasks(1), Tasks(1)), {"TASKS": "0/2"}),
        (job(Tasks(), places=(place("n", 3),), charge=MICRO, state="running"), {"TASKS": "1/1", "STATE": "running"}),
        (job(Tasks(2, 3), places=(place(), place()), charge=MICRO // 2), {"TASKS": "2/3", "GPUS": "0.5"}),
        (job(since=1000.9), {"AGE": "0s"}),
        (job(since=1e9), {"AGE": "0s"}),
        (job(since=999.5), {"AGE": "0s"}),
        (job(since=998.9), {"AGE": "1s"}),
        (job(since=939.0), {"AGE": "1m1s"}),
        (job(), {"WHERE, OR WHY NOT": "no room"}),
        (job(places=(place("n", 1),)), {"WHERE, OR WHY NOT": "n GPU 1"}),
    ],
)
def test_the_line_of_a_job(view, cells):
    assert cells.items() <= row(view).items(), row(view)


@pytest.mark.parametrize(
    ("tasks", "text"),
    [
        ((Tasks(),), "1"),
        ((Tasks(gpus=2),), "2"),
        ((Tasks(share=250_000),), "0.25"),
        ((Tasks(gpus=2, share=250_000),), "0.5"),
        ((Tasks(memory=4 * GIB),), "4.0 GiB"),
        ((Tasks(gpus=2, memory=4 * GIB),), "2 x 4.0 GiB"),
        ((Tasks(3, gpus=2, memory=4 * GIB),), "3 x 2 x 4.0 GiB"),
        ((Tasks(1, 4),), "4 x 1"),
        ((Tasks(gpus=2), Tasks(3)), "2 + 3 x 1"),
        ((Tasks(), Tasks()), "1"),
    ],
)
def test_what_a_job_asks_for(tasks, text):
    assert views.asked(job(*tasks)) == text


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ((), ""),
        ((place("n", 2, 0),), "n GPU 0,2"),
        ((place("n", 3), place("n", 1, 3)), "n GPU 1,3"),
        ((place("n"),), "n"),
        ((place("b", 0), place("a", 1)), "b GPU 0; a GPU 1"),
        (tuple(place(name, 0) for name in "abcd"), "a GPU 0; b GPU 0; c GPU 0; d GPU 0"),
        (tuple(place(name, 0) for name in "abcde"), "a GPU 0; b GPU 0; c GPU 0; d GPU 0 and 1 more node"),
        (tuple(place(name, 0) for name in "abcdef"), "a GPU 0; b GPU 0; c GPU 0; d GPU 0 and 2 more nodes"),
    ],
)
def test_where_a_job_runs(places, text):
    assert views.where(places) == text


# ---- nodes ----------------------------------------------------------------------------------------------


def node(*free: int, broken: frozenset[int] = frozenset(), **more: Any) -> NodeView:
    return NodeView(Node("n", len(free), 80, "A10", broken=broken), free, **more)


@pytest.mark.parametrize(
    ("view", "cells"),
    [
        (node(80, 80), {"GPUS": "2", "WHOLE": "2", "PART": "0", "STATE": "ok", "TYPE": "A10", "POOL": "default"}),
        (node(80, 40, 20), {"GPUS": "3", "WHOLE": "1", "PART": "0.5"}),
        (node(0, 79), {"WHOLE": "0", "PART": "0.9875"}),
        (node(80, alive=False, cordoned=True), {"STATE": "lost"}),
        (node(80, unknown=True, cordoned=True), {"STATE": "unknown, cordoned"}),
        (node(80, 0, 0, broken=frozenset({1, 2})), {"STATE": "2 broken"}),
        (node(80, foreign=((0, GIB), (1, GIB))), {"STATE": "2.0 GiB in use by others"}),
        (node(80, until=0.0), {"STATE": "rests after failed starts"}),
    ],
)
def test_the_line_of_a_node(plain, view, cells):
    views.print_nodes(SimpleNamespace(nodes={"n": view}))  # type: ignore[arg-type]
    ((names, (line,)),) = plain
    assert cells.items() <= dict(zip(names, line, strict=True)).items(), line
    assert line[:1] == ["n"]


def test_a_node_without_a_type(plain):
    views.print_nodes(SimpleNamespace(nodes={"n": NodeView(Node("n", 1, 80), (80,))}))  # type: ignore[arg-type]
    assert plain[0][1][0][:3] == ["n", "default", "-"]


# ---- queues ----------------------------------------------------------------------------------------------


class Cluster:
    """What is asked of an allocator, as a test has it."""

    def __init__(self, *queues: Queue, jobs: Any = None, loans: tuple[Loan, ...] = (), nodes: Any = None) -> None:
        self.queues = {
            one.name: QueueView(one, 1_500_000, 0, 2_250_000, number, number + 1) for number, one in enumerate(queues)
        }
        self._loans, self.jobs, self.nodes = loans, jobs or {}, nodes or {}
        self.next_wake = 7.0

    def shares(self) -> Any:
        return {name: SimpleNamespace(share=3 * MICRO, words=f"sum of {name}") for name in self.queues}

    def loans(self) -> tuple[Loan, ...]:
        return self._loans


QUEUES = (
    Queue("b", "a", quota=None, limit=0, priority=-1),
    Queue("a", quota=3 * MICRO),
    Queue("c", "b", quota=2 * MICRO, static=True),
    Queue("d", "a"),
    Queue("z"),
)


@pytest.mark.parametrize("wide", [True, False])
def test_queues_stand_below_their_parents(plain, capsys, wide):
    loans = (Loan("a", "z", 500_000), Loan("a", None, MICRO))
    views.print_queues(Cluster(*QUEUES, loans=loans), wide=wide)  # type: ignore[arg-type]
    ((names, rows),) = plain
    assert names == titles(views.QUEUES) + (["SHARE COMES FROM"] if wide else [])
    assert [line[:4] for line in rows] == [
        ["a", "3", "-", "0"],
        ["  b", "unlimited", "0", "-1"],
        ["    c", "2 static", "2", "0"],
        ["  d", "0", "-", "0"],
        ["z", "0", "-", "0"],
    ]
    assert [line[4:9] for line in rows[:2]] == [["1.5", "3", "2.25", "2", "1"], ["1.5", "3", "2.25", "1", "0"]]
    assert [line[9:] for line in rows[:2]] == ([["sum of a"], ["sum of b"]] if wide else [[], []])
    told = capsys.readouterr().out.splitlines()
    lent = ["a borrows 0.5 from z", "a borrows 1 that are promised to nobody"]
    assert told == (lent if wide else [])


def of_gpus(number: int, *, broken: int = 0, alive: bool = True) -> dict[str, Any]:
    return {"n": NodeView(Node("n", number, 80, broken=frozenset(range(broken))), (), alive=alive)}


@pytest.mark.parametrize(
    ("queues", "nodes", "words"),
    [
        ((Queue("a", quota=4 * MICRO),), of_gpus(4), []),
        (
            (Queue("a", quota=4 * MICRO),),
            of_gpus(4, broken=3),
            ["the quotas of the top queues add up to 4 GPUs, and there are 1 GPU: if all ask, each gets less"],
        ),
        (
            (Queue("a", quota=4 * MICRO),),
            of_gpus(4, alive=False),
            ["the quotas of the top queues add up to 4 GPUs, and there are 0 GPUs: if all ask, each gets less"],
        ),
        (
            (Queue("a", quota=2 * MICRO), Queue("b", "a", quota=MICRO), Queue("c", "a", quota=1_500_000)),
            of_gpus(4),
            [
                "the quotas of the queues below a add up to 2.5 GPUs, and the quota of a is 2 GPUs:"
                " if all ask, each gets less"
            ],
        ),
        ((Queue("a", quota=2 * MICRO), Queue("b", "a", quota=2 * MICRO), Queue("c", "a", quota=0)), of_gpus(4), []),
        ((Queue("a", quota=None), Queue("b", "a", quota=9 * MICRO)), of_gpus(4), []),
        ((Queue("a", quota=9 * MICRO),), {}, []),
    ],
)
def test_promises_that_cannot_all_be_kept(queues, nodes, words):
    assert list(views.broken_promises(Cluster(*queues, nodes=nodes))) == words  # type: ignore[arg-type]


def test_what_a_cluster_lacks():
    def lacks(*queues: Queue, nodes: Any = None) -> list[str]:
        return [text.partition(":")[0] for text in views.lacking(Cluster(*queues, nodes=nodes))]  # type: ignore[arg-type]

    assert lacks() == ["no nodes", "no queues"] and lacks(Queue("a"), nodes=of_gpus(1)) == []
    assert lacks(Queue("a")) == ["no nodes"] and lacks(nodes=of_gpus(1)) == ["no queues"]


# ---- plans ------------------------------------------------------------------------------------------------


def test_a_plan_has_what_is_held_then_queues_then_jobs(plain, capsys):
    jobs = {"1": job(state="running", charge=MICRO), "2": job(state="running", charge=500_000), "3": job()}
    views.print_plan(Cluster(Queue("vision"), jobs=jobs, nodes=of_gpus(4, broken=1)))  # type: ignore[arg-type]
    assert [names[0] for names, _ in plain] == ["QUEUE", "JOB"] and len(plain[0][0]) == len(views.QUEUES)
    assert [line[0] for line in plain[1][1]] == ["1", "2", "3"]
    assert capsys.readouterr().out == "1.5 of 3 GPUs held; 1 pending, 2 running\n\n\n"


def test_a_plan_of_an_empty_cluster(plain, capsys):
    views.print_plan(Cluster())  # type: ignore[arg-type]
    assert [names[0] for names, _ in plain] == ["QUEUE"]
    assert capsys.readouterr().out == "0 of 0 GPUs held; no jobs\n\n"


def what_if(*actions: Any, allocated: dict[str, int] | None = None, shares: dict[str, int] | None = None) -> WhatIf:
    return WhatIf(actions, frozenset(), allocated or {}, shares or {})


ROOM: Any = SimpleNamespace(message="there is room")
START = Start("17", 1, (place("n", 0),), 0, ROOM)


def test_what_would_be_otherwise(plain, capsys):
    cluster: Any = Cluster(Queue("a"), Queue("b"), Queue("c"))
    allocated = {"a": 1_500_000, "b": 2 * MICRO, "new": MICRO}
    outcome = what_if(START, allocated=allocated, shares={"a": 3 * MICRO, "b": MICRO, "c": 4 * MICRO})
    views.print_what_if(cluster, outcome)
    assert plain == [(titles(views.WHAT_IF), [["b", "1.5", "2"], ["c", "1.5", "-"], ["new", "-", "1"]])]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("start   17")
    assert lines[1:] == [
        "",
        "the share of b would be 1 GPU instead of 3",
        "the share of c would be 4 GPUs instead of 3",
    ]


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({}, "no job would start, move or stop, and no share would change"),
        ({"a": 3 * MICRO}, "no job would start, move or stop, and no share would change"),
        ({"a": MICRO}, "no job would start, move or stop"),
    ],
)
def test_what_would_not_be_otherwise(plain, capsys, shares, words):
    views.print_what_if(Cluster(Queue("a")), what_if(allocated={"a": 1_500_000}, shares=shares))  # type: ignore[arg-type]
    assert plain == [] and capsys.readouterr().out.splitlines()[0] == words


def test_decisions_stand_in_columns(capsys):
    long = "x" * 50
    actions = [START, Start("1", 1, (), 0, ROOM), Start(long, 1, (), 0, ROOM)]
    lines = list(views.action_lines(actions))
    assert lines[0].startswith(f"start   {'17':<40}  ") and lines[1].startswith(f"start   {'1':<40}")
    assert lines[2].startswith(f"start   {long}")
    assert next(views.action_lines(actions[:2])).startswith("start   17  ")
    assert list(views.action_lines([])) == []
    views.print_actions(actions)
    assert capsys.readouterr().out.splitlines() == lines


# ---- explanations -----------------------------------------------------------------------------------------------


def explained(capsys, view: JobView, never: bool = False, **more: Any) -> list[str]:
    given = {"reason": view.reason, "state": view.state, **more}
    cluster: Any = Cluster(Queue("vision"), jobs={"17": view})
    views.print_explanation(cluster, Explanation("17", **given), never, 1000.0)
    return capsys.readouterr().out.splitlines()


def reason(code: Code = Code.NO_SPACE, message: str = "2 are free", facts: Any = ()) -> Any:
    return SimpleNamespace(code=code, message=message, facts=facts)


def test_why_a_job_waits(capsys):
    facts = (("free", "2"), ("needed", "3"), ("empty", ""), ("more", "2.5"))
    view = job(Tasks(memory=GIB), Tasks(2), reason=reason(facts=facts))
    lines = explained(
        capsys,
        view,
        True,
        who=("one is in the way", "so is two"),
        change="end 3",
        others=(("end 4", ()), ("end 3", ()), ("", ())),
        by_itself=90.0,
    )
    assert lines == [
        "job 17 of queue vision has waited 1m40s",
        "  asks for         1.0 GiB + 2 x 1",
        "  because          2 are free",
        "  needed           3",
        "  more             2.5",
        "  never            it could not start even if it had the cluster to itself",
        "  share of vision  sum of vision",
        "  in the way       one is in the way",
        "                   so is two",
        "hint: wait 1m30s: then a minimum run time is over, and it starts",
        "  or: end 3",
        "  or: end 4",
    ]


@pytest.mark.parametrize(
    ("state", "more", "head"),
    [
        ("running", {}, "has run for 1m40s"),
        ("starting", {}, "is about to start"),
        ("pending", {"since": 2000.0}, "has waited 0 s"),
    ],
)
def test_how_long_it_waits_or_runs(capsys, state, more, head):
    assert explained(capsys, job(state=state, **more))[0] == f"job 17 of queue vision {head}"


def test_what_a_job_holds(capsys):
    lines = explained(capsys, job(Tasks(gpus=2), places=(place("n", 0, 1),), charge=2 * MICRO, state="running"))
    assert lines[1:3] == ["  asks for         2 GPUs", "  holds            2 GPUs: n GPU 0,1"]
    assert not [line for line in lines if line.startswith(("hint", "  or", "  never", "  in the way"))]


@pytest.mark.parametrize(
    ("code", "told"), [(Code.NO_SPACE, True), (Code.RESERVED, True), (Code.LIMIT, False), (Code.FREE, False)]
)
def test_what_is_in_the_way_is_told_where_room_is_what_lacks(capsys, code, told):
    lines = explained(capsys, job(reason=reason(code)), who=("this",))
    assert bool([line for line in lines if "in the way" in line]) is told


@pytest.mark.parametrize(
    ("message", "text", "says"),
    [
        ("2 are free", "2", True),
        ("12 are free", "2", False),
        ("2.5 are free", "2", False),
        ("1.2 are free", "2", False),
        ("it is 2.", "2", True),
        ("n1-a is full", "n1", True),
        ("n12 is full", "n1", False),
        ("a+b is full", "a+b", True),
    ],
)
def test_a_number_is_said_as_a_whole(message, text, says):
    assert views._says(message, text) is says


def test_paragraphs_are_a_hundred_wide():
    lines = views.wrapped("word\n  " * 60).splitlines()
    assert max(map(len, lines)) <= 100 and len(lines) == 3 and len(lines[0]) > 95
    assert [len(line) for line in views.wrapped("ab " * 40).splitlines()] == [98, 20]
    assert [len(line) for line in views.wrapped(f"{'a' * 50} {'b' * 49} c").splitlines()] == [100, 1]


def test_jobs_that_never_start_are_told_on_standard_error(capsys):
    views.print_never({"17": reason(message="no node has 9 GPUs")})
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines()[0] == (
        "gpushare: 17 can never start here, even with the cluster to itself: no node has 9 GPUs"
    )
    assert err.splitlines()[-1] == "hint: `gpushare cluster explain 17` says what would start it"


def test_each_step_of_a_scenario_has_what_was_decided_in_it(capsys):
    happened: list[str] = []
    timeline = SimpleNamespace(happenings=happened, lines=lambda since: iter(happened[since:]))
    simulation: Any = SimpleNamespace(timeline=timeline)
    step = views.StepPrinter()
    for number, (title, more) in enumerate([("two come", ["a", "b"]), ("", []), ("one goes", ["c"])]):
        happened += more
        step(number, SimpleNamespace(title=title), simulation)  # type: ignore[arg-type]
    assert capsys.readouterr().out == ("\n0. two come\n   a\n   b\n\n1.\n   nothing is decided\n\n2. one goes\n   c\n")


@pytest.mark.parametrize(
    ("encoding", "takes"), [("utf-8", True), ("ascii", False), (None, False), ("none such", False)]
)
def test_whether_blocks_can_be_shown(monkeypatch, encoding, takes):
    monkeypatch.setattr(views, "sys", SimpleNamespace(stdout=SimpleNamespace(encoding=encoding)))
    assert views._says_blocks() is takes


# ---- runs -----------------------------------------------------------------------------------------------------


def run(*verbs: str, pending: int = 0, refused: int = 0, passed: float = 60.0, failures: Any = ()) -> views.Played:
    """A simulated run with these decisions."""
    kinds: Any = {verb: kind for kind, verb in views.VERBS.items()}
    actions = [(float(number), kinds[verb](*[None] * len(kinds[verb]._fields))) for number, verb in enumerate(verbs)]
    jobs = {str(number): job(state="pending" if number < pending else "running") for number in range(pending + 2)}
    tracks = {"vision": SimpleNamespace(times=[0.0, 5.0], values=[0, MICRO])}
    timeline = SimpleNamespace(
        lines=lambda most: [f"line {number}" for number in range(min(most, 3))],
        strips=lambda plain: ["strip" if plain else "blocks"],
        used=lambda: 1 / 3,
        passed=passed,
        end=passed,
        queues=tracks,
    )
    allocator = SimpleNamespace(jobs=jobs)
    simulation: Any = SimpleNamespace(actions=actions, allocator=allocator, refused=["x"] * refused, timeline=timeline)
    return views.Played("a run", simulation, list(failures))


NONE = "0 starts, 0 evictions, 0 moves, 0 shrinks, 0 jobs left waiting"
USED = "33.3% of the GPU time used"


@pytest.mark.parametrize(
    ("played", "words"),
    [
        (run(), f"{NONE}; {USED}"),
        (
            run("start", "start", "evict", "wait", "grow", pending=1),
            f"2 starts, 1 eviction, 0 moves, 0 shrinks, 1 job left waiting; {USED}",
        ),
        (run("move", "shrink", pending=2, passed=0.0), "0 starts, 0 evictions, 1 move, 1 shrink, 2 jobs left waiting"),
        (run("refuse", refused=2, passed=0.0), NONE.replace("0 jobs", "3 refusals, 0 jobs")),
        (run(refused=1, passed=0.0), NONE.replace("0 jobs", "1 refusal, 0 jobs")),
    ],
)
def test_what_happened_in_a_run_is_counted(capsys, monkeypatch, played, words):
    for blocks in (True, False):
        monkeypatch.setattr(views, "_says_blocks", lambda blocks=blocks: blocks)
        views.print_played(played, most=0)
        assert capsys.readouterr().out == f"\n{'blocks' if blocks else 'strip'}\n\n{words}\n"
    views.print_played(played, most=2)
    assert capsys.readouterr().out.startswith("a run\n\nline 0\nline 1\n\nstrip\n")


def test_a_run_for_programs():
    found = views.played_json(run("start", "refuse", pending=1, refused=1))
    assert found["title"] == "a run" and found["failures"] == []
    assert found["summary"] == {
        **{"started": 1, "evicted": 0, "moved": 0, "shrunk": 0, "refused": 2, "waiting": 1},
        **{"used": 0.333333, "end": 60.0},
    }
    assert [(one["time"], one["action"]) for one in found["actions"]] == [(0.0, "start"), (1.0, "refuse")]
    assert found["held"] == {"vision": [(0.0, 0), (5.0, MICRO)]}
