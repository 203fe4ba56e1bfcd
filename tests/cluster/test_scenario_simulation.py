"""Files as nouns of the model, and the clock that jobs run on."""

from __future__ import annotations

import pytest

from gpushare.cluster import scenario, scenario_checks, spec_parser
from gpushare.cluster.amounts import capacity
from gpushare.cluster.model import (
    Job,
    JobSubmitted,
    Node,
    NodeAdded,
    NodeLost,
    Policy,
    Preempt,
    Queue,
    QueueAdded,
    Selector,
    Start,
    Tasks,
)
from gpushare.cluster.quantity import MICRO, gpus
from gpushare.cluster.simulation import Simulation
from gpushare.cluster.spec_parser import Seats, Submission
from gpushare.cluster.yaml_source import FileError, parse


def simulation(policy: Policy | None = None, nodes: int = 1) -> Simulation:
    found = Simulation(policy, check=True)
    found.hand(*(NodeAdded(Node(f"n{n}", 2)) for n in range(nodes)))
    found.hand(QueueAdded(Queue("a", quota=0)), QueueAdded(Queue("b", quota=gpus(2 * nodes))))
    return found


def one(name: str, queue: str = "a", amount: int = 1, *, at: float = 0, duration: float | None = None) -> Submission:
    return Submission(Job(name, queue, (Tasks(gpus=amount),)), at, duration)


def starts(run: Simulation) -> list[tuple[float, str]]:
    return [(time, action.job) for time, action in run.actions if isinstance(action, Start)]


# ---- the clock ----------------------------------------------------------------------------------------


def test_jobs_come_run_and_end_at_their_times() -> None:
    run = simulation()
    run.submit([one("first", amount=2, duration=10), one("second", at=3, duration=5), one("third", at=4, duration=5)])
    run.finish()
    assert starts(run) == [(0, "first"), (10, "second"), (10, "third")]
    assert run.now == 15
    assert not run.allocator.jobs
    assert run.timeline.used() == pytest.approx((2 * 10 + 2 * 5) / (2 * 15))
    assert [happening.kind for happening in run.timeline.happenings].count("end") == 3


def test_time_after_the_last_decision_counts() -> None:
    run = simulation()
    run.submit([one("first", amount=2)])
    run.advance(30)
    assert (run.now, run.timeline.end) == (30, 30)
    assert run.timeline.used() == pytest.approx(1)


def test_a_queue_that_has_no_job_yet_is_in_the_record_as_well() -> None:
    run = simulation()
    run.submit([one("first", at=5, duration=10)])
    run.hand(QueueAdded(Queue("c")))
    run.finish()
    assert {name: (run.timeline.held(name, 0), run.timeline.mean(name)) for name in run.timeline.queues} == {
        "a": (0, pytest.approx(10 / 15)),
        "b": (0, 0.0),
        "c": (0, 0.0),
    }


def test_a_job_that_was_stopped_starts_from_its_beginning() -> None:
    run = simulation()
    run.submit([one("loser", amount=2, duration=10), one("owner", "b", 2, at=4, duration=3)])
    run.finish()
    assert [action.job for _, action in run.actions if isinstance(action, Preempt)] == ["loser"]
    assert starts(run) == [(0, "loser"), (4, "owner"), (7, "loser")]
    assert run.now == 17, "the end that was planned for its first attempt does not count"


def test_with_reports_a_victim_holds_its_gpus_until_it_is_gone() -> None:
    run = simulation(Policy(endings="reported"))
    run.submit([one("loser", amount=2), one("owner", "b", 2, at=4)])
    run.advance(5)
    assert run.allocator.jobs["owner"].state == "starting"
    run.hand(run.stopped("loser"))
    assert run.allocator.jobs["owner"].state == "running"


def test_one_bad_job_does_not_keep_the_others_out() -> None:
    run = simulation()
    bad = Submission(Job("bad", "none"))
    run.submit([one("good"), bad, one("good too")])
    assert set(run.allocator.jobs) == {"good", "good too"}
    assert [(job, error.exit_code) for _, job, error in run.refused] == [("bad", 2)]


def test_a_lost_node_takes_its_capacity_along() -> None:
    run = simulation(nodes=2)
    run.submit([one("j", amount=2, duration=10)])
    run.hand(NodeLost("n0"), NodeLost("n1"))
    run.hand(NodeAdded(Node("n1", 2)))
    assert capacity(run.allocator) == 2 * MICRO
    run.finish()
    assert starts(run)[-1] == (0, "j")
    assert run.now == 10


def test_progress_is_told() -> None:
    run = simulation()
    run.submit([one(f"j{n}", at=n, duration=1) for n in range(5)])
    told: list[tuple[int, int]] = []
    run.finish(lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1]
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_time_goes_on_without_events() -> None:
    run = simulation()
    run.advance(50)
    assert run.now == 50


# ---- files --------------------------------------------------------------------------------------------


def read(text: str, key: str):
    return parse(text, "c.yaml")[key]


def test_queues_below_queues() -> None:
    below = "{name: e, quota: 0.25, limit: 2, static: true}"
    text = f"queues: [{{name: d, quota: unlimited, queues: [{below}]}}, {{name: f, parent: d}}]"
    found = list(spec_parser.queues(read(text, "queues")))
    assert found == [Queue("d", quota=None), Queue("e", "d", 250_000, 2 * MICRO, static=True), Queue("f", "d")]


def test_nodes_of_a_series() -> None:
    text = "nodes: [{name: 'n{}', count: 2, first: 7, gpus: 4, memory: 40G, broken: [1], labels: {b: 1, a: x}}]"
    first, second = spec_parser.nodes(read(text, "nodes"))
    assert first == Node("n7", 4, 40 * 10**9, labels=(("a", "x"), ("b", "1")), broken=frozenset({1}))
    assert second.name == "n8"


@pytest.mark.parametrize(
    ("words", "tasks"),
    [
        ("gpus: 2", Tasks(gpus=2)),
        ("gpus: 0.25, limit: 0.8", Tasks(share=250_000, limit=800_000)),
        ("share: 0.5, gpus: 2", Tasks(gpus=2, share=500_000)),
        ("memory: 4Gi, gpus: 2, limit: 8Gi", Tasks(gpus=2, memory=4 * 2**30, limit=8 * 2**30)),
        ("ladder: [1.0, 0.7, 0.4]", Tasks(share=MICRO, ladder=(700_000, 400_000))),
        ("memory: 8Gi, ladder: [4Gi, 2Gi]", Tasks(memory=8 * 2**30, ladder=(4 * 2**30, 2 * 2**30))),
        ("gpus: 8, tasks: 4, min: 2", Tasks(2, 4, 8)),
        ("tasks: 3", Tasks(3)),
    ],
)
def test_what_a_job_asks_for(words: str, tasks: Tasks) -> None:
    (found,) = spec_parser.jobs(read(f"jobs: {{name: j, queue: q, {words}}}", "jobs"))
    assert found.job.tasks == (tasks,)


def test_groups_of_tasks_and_where_they_may_run() -> None:
    groups = "[{name: lead, gpus: 1}, {gpus: 8, tasks: 2}]"
    text = f"jobs: {{name: j, queue: q, groups: {groups}, pool: [p, o], labels: {{r: 1}}, type: T}}"
    (found,) = spec_parser.jobs(read(text, "jobs"))
    assert found.job.tasks == (Tasks(name="lead"), Tasks(2, gpus=8))
    assert found.job.selector == Selector(("p", "o"), ("T",), (("r", "1"),))


def test_a_series_of_jobs_in_time() -> None:
    found = list(
        spec_parser.jobs(read("jobs: {name: 'j{}', count: 3, queue: q, at: 1m, every: 10s, duration: 5s}", "jobs"))
    )
    assert [(each.job.id, each.at, each.duration) for each in found] == [("j1", 60, 5), ("j2", 70, 5), ("j3", 80, 5)]


def test_jobs_that_run_already_are_seated_on_the_fullest_gpus_that_have_room() -> None:
    seats = Seats()
    seats.add(Node("n", 3, 100 * 2**20))
    half, less, whole = (
        "{name: h, queue: q, gpus: 0.5, on: n, gpu: 2}",
        "{name: s, queue: q, gpus: 0.4, on: n}",
        "{name: w, queue: q, on: n}",
    )
    text = f"jobs: [{half}, {less}, {whole}]"
    found = [event for event, _ in spec_parser.restored(read(text, "jobs"), seats, 100.0)]
    assert [event.places[0].gpus for event in found] == [(2,), (2,), (0,)]
    two = read("jobs: [{name: t, queue: q, tasks: 2, on: [n, n], ran: 1m}]", "jobs")
    with pytest.raises(FileError, match="no room on n"):
        list(spec_parser.restored(two, seats, 100.0))


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("{reserve_after: null, grow_hold: 5s}", Policy(reserve_after=None, grow_hold=5)),
        (
            "{endings: reported, consolidate: false, search_width: 8}",
            Policy("reported", consolidate=False, search_width=8),
        ),
    ],
)
def test_policies(text: str, policy: Policy) -> None:
    assert spec_parser.policy(read(f"policy: {text}", "policy")) == policy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{grow_hold: null}", "cannot be null"),
        ("{endings: sometimes}", "one of instant, reported"),
        ("{search_width: 0}", "from 1"),
    ],
)
def test_bad_policies(text: str, words: str) -> None:
    with pytest.raises(FileError) as caught:
        spec_parser.policy(read(f"policy: {text}", "policy"))
    assert words in f"{caught.value.message} {caught.value.hint}"


def test_a_check_of_every_kind_can_fail(tmp_path) -> None:
    """A check that cannot fail checks nothing."""
    path = tmp_path / "s.yaml"
    wrong = {
        "held": "{a: 3}",
        "shares": "{a: 3}",
        "whole_shares": "{a: 3}",
        "size": "{e: 0.1}",
        "idle": "0.5",
        "node_use": "[1]",
        "jobs_per_gpu": "[9, 9]",
        "running": "[x]",
        "starting": "1",
        "queued": "{a: 7}",
        "started": "[x]",
        "evicted": "1",
        "moved": "1",
        "shrunk": "1",
        "grown": "1",
        "evicted_in_all": "1",
        "moved_in_all": "1",
        "reason": "{w: quota}",
        "refused": "{x: no}",
        "retry_after": "{n: 9s}",
        "ran": "[w]",
    }
    assert set(wrong) == set(scenario_checks.CHECKS)
    then = "\n".join(f"      {name}: {value}" for name, value in wrong.items())
    path.write_text(
        f"""
given:
  nodes: [{{name: n, gpus: 2}}]
  queues: [{{name: a, quota: 2}}]
steps:
  - when:
      - submit: {{name: e, queue: a, ladder: [1.0, 0.5]}}
      - submit: {{name: j, queue: a, gpus: 1}}
      - submit: {{name: w, queue: a, gpus: 2}}
      - submit: {{name: n, queue: a, gpus: 1, wait: false}}
    then:
{then}
"""
    )
    _, failures = scenario.run(scenario.read(path))
    assert {failure.message.split(":")[0] for failure in failures} == set(wrong)
    assert {failure.step for failure in failures} == {1}
    assert str(failures[0]).startswith(f"{path}:12: step 1: held: a is 2, not 3")


def test_events_of_every_action(tmp_path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        """
given:
  nodes: [{name: n, gpus: 2}]
  queues: [{name: a, quota: 2}]
  jobs: [{name: old, queue: a, on: n, gpu: 1, duration: 5s}]
when:
  - node: {name: m, gpus: 1}
  - queue: [{name: b, quota: 1}, {name: a, quota: 1}]
  - submit: {name: j, queue: b, gpus: 1}
  - change: {job: j, priority: 9}
  - break: {node: n, gpu: 0}
  - mend: {node: n, gpu: 0}
  - lose: m
  - withdraw: j
  - submit: {name: k, queue: b, gpus: 1, duration: 3s}
  - wait: done
then:
  running: []
  held: {a: 0, b: 0}
  ran: [k]
  idle: 2
"""
    )
    run, failures = scenario.run(scenario.read(path))
    assert not failures, failures
    assert run.allocator.queues["a"].queue == Queue("a", quota=MICRO)
    assert list(run.allocator.nodes) == ["n", "m"] or not run.allocator.nodes["m"].alive


def test_a_submitted_event_is_known_by_its_queue() -> None:
    run = simulation()
    run.hand(JobSubmitted(Job("j", "b")))
    assert run.timeline.queues["b"].last == MICRO
