"""`gpushare cluster` where a service has the cluster: what is asked of it, and what is told of its answers."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from gpushare.cli import cluster, cluster_state, cluster_submit, main
from gpushare.cli import cluster_views as views
from gpushare.cli.cluster_state import Served
from gpushare.cluster import snapshot
from gpushare.cluster.allocator import Allocator
from gpushare.cluster.client import ClusterClient
from gpushare.cluster.codec import decode_events, encode, plain
from gpushare.cluster.model import (
    Job,
    JobEnded,
    JobHeld,
    JobReleased,
    JobSubmitted,
    JobWithdrawn,
    Node,
    NodeAdded,
    NodeCordoned,
    NodeDrained,
    NodeUncordoned,
    Policy,
    Queue,
    QueueAdded,
    QueueChanged,
    Tasks,
)
from gpushare.cluster.quantity import MICRO
from gpushare.errors import UsageError

GIB = 2**30


class Service:
    """It keeps what it was asked, and starts each job on the node that it has."""

    def __init__(self, engine="slurm") -> None:
        self.engine, self.asked = engine, []
        self.allocator = Allocator(Policy())
        self.now = 500.0
        vision = Queue("vision", quota=2 * MICRO)
        self.allocator.handle([NodeAdded(Node("n1", 2, 80 * GIB)), QueueAdded(vision)], self.now)

    def __getattr__(self, name):
        def asked(*arguments):
            self.asked.append((name, *arguments))
            return {}

        return asked

    def status(self):
        return {"engine": self.engine}

    def state(self):
        return {"now": self.now, "policy": encode(Policy(), Policy), "state": snapshot.take(self.allocator)}

    def submitted(self, body):
        self.asked.append(("submitted", body))
        words = body["job"]
        job = Job(words["name"], words["queue"], (Tasks(gpus=int(words.get("gpus", "1"))),))
        actions = self.allocator.handle(JobSubmitted(job), self.now)
        never = self.allocator.never([job])
        return {"id": words["name"], "actions": plain(actions), "never": plain(never)}

    def change(self, events):
        self.asked.append(("change", [type(one).__name__ for one in decode_events(events)]))
        return {"actions": plain(self.allocator.handle(decode_events(events), self.now))}

    def explain(self, name):
        self.asked.append(("explain", name))
        return {"job": "train"}


@pytest.fixture
def service(monkeypatch):
    return served(monkeypatch, Service())


def served(monkeypatch, service):
    @contextmanager
    def opened(_store, **_how):
        yield Served(service)

    for where in (cluster_submit, cluster):
        monkeypatch.setattr(where, "opened", opened)
    return service


def told(capsys, *words, code=0):
    assert main(["cluster", *words]) == code
    return capsys.readouterr()


# ---- what goes to the service -----------------------------------------------------------------------------


def test_what_has_an_address_of_its_own_goes_there_and_the_rest_together(service):
    events = [
        JobWithdrawn("a"),
        QueueChanged(Queue("vision", quota=MICRO)),
        JobHeld("b", "by hand"),
        JobReleased("c"),
        NodeCordoned("n1"),
        NodeDrained("n2"),
        NodeUncordoned("n3"),
        QueueAdded(Queue("speech", quota=MICRO)),
    ]
    assert Served(service).append(events, 0.0) == []
    assert service.asked == [
        ("cancel", "a"),
        ("hold", "b"),
        ("release", "c"),
        ("cordon", "n1"),
        ("drain", "n2"),
        ("uncordon", "n3"),
        ("change", ["QueueChanged", "QueueAdded"]),
    ]


def test_without_such_a_rest_nothing_more_is_asked(service):
    assert Served(service).append([NodeDrained("n1")], 0.0) == []
    assert [name for name, *_ in service.asked] == ["drain"]


def test_what_follows_is_told_by_the_service(service):
    actions = Served(service).append([JobSubmitted(Job("train", "vision"))], 0.0)
    assert [(type(one).__name__, one.job) for one in actions] == [("Start", "train")]


def test_that_a_job_has_ended_the_service_sees_by_itself(service):
    with pytest.raises(UsageError, match="sees by itself") as caught:
        Served(service).append([JobEnded("train")], 0.0)
    assert caught.value.hint == "cancel it: `gpushare cluster cancel train`" and service.asked == []


def test_its_time_goes_on_with_this_machines_clock_and_never_back(service, monkeypatch):
    monkeypatch.setattr(cluster_state.time, "time", lambda: 9000.0)
    one = Served(service)
    assert [one.at(clock) for clock in (9000.0, 9007.5, 8000.0)] == [500.0, 507.5, 500.0]


def test_its_allocator_is_a_copy(service):
    one = Served(service)
    assert one.policy == Policy() and set(one.allocator.queues) == {"vision"}
    one.allocator.handle(JobSubmitted(Job("train", "vision")), one.at(time.time()))
    assert not service.allocator.jobs


# ---- a job is submitted -----------------------------------------------------------------------------------


def test_the_options_go_as_words_and_the_answer_is_told(service, capsys):
    line = ["submit", "-q", "vision", "--name", "train", "--gpus", "1", "--label", "rack=r1", "--no-backfill"]
    found = told(capsys, *line)
    assert service.asked == [
        (
            "submitted",
            {
                "job": {
                    "queue": "vision",
                    "name": "train",
                    "gpus": "1",
                    "labels": {"rack": "r1"},
                    "preemptible": True,
                    "backfill": False,
                    "movable": False,
                    "wait": True,
                }
            },
        )
    ]
    first, second = found.out.splitlines()
    assert first == "submitted train"
    assert "start" in second and "train" in second and "n1" in second


def test_for_programs(service, capsys):
    found = told(capsys, "submit", "-q", "vision", "--name", "train", "-o", "json")
    answer = json.loads(found.out)
    assert answer["schema"] == "gpushare.cluster.submit/1"
    ((one,),) = (answer["submitted"],)
    assert (one["id"], one["actions"][0]["action"]) == ("train", "start")


def test_each_job_of_a_file_goes_by_its_own_name_and_without_the_words_of_a_series(service, capsys, tmp_path):
    file = tmp_path / "jobs.yaml"
    file.write_text("- {name: 'a{}', queue: vision, count: 2, first: 3}\n- {name: b, queue: vision, gpus: 2}\n")
    found = told(capsys, "submit", str(file))
    sent = [body["job"] for _, body in service.asked]
    assert [one["name"] for one in sent] == ["a3", "a4", "b"]
    assert sent[0] == {"name": "a3", "queue": "vision"} and sent[2]["gpus"] == "2"
    lines = [line for line in found.out.splitlines() if line.startswith("submitted")]
    assert lines == ["submitted a3", "submitted a4", "submitted b"]


def test_a_service_that_runs_programs_wants_a_command(monkeypatch, capsys):
    service = served(monkeypatch, Service("local"))
    found = told(capsys, "submit", "-q", "vision", "--name", "train", code=2)
    assert "no command is said" in found.err and "gpushare submit -- COMMAND" in found.err
    assert found.out == "" and service.asked == []


def test_a_dry_run_asks_the_service_for_its_state_alone(service, capsys):
    found = told(capsys, "submit", "-q", "vision", "--name", "train", "--dry-run")
    assert "train" in found.out and "submitted" not in found.out
    assert not service.asked and not service.allocator.jobs


def test_a_job_that_can_never_start_is_told(service, capsys):
    assert told(capsys, "submit", "-q", "vision", "--name", "train").err == ""
    found = told(capsys, "submit", "-q", "vision", "--name", "wide", "--gpus", "3")
    assert found.out.startswith("submitted wide\n") and "wide" in found.err


# ---- other words --------------------------------------------------------------------------------------------


def test_what_is_cancelled_is_told_once_each(service, capsys):
    assert told(capsys, "cancel", "a", "b", "a").out == "cancelled a, b\n"
    assert service.asked == [("cancel", "a"), ("cancel", "b")]


def test_a_name_that_only_the_service_knows_is_asked_of_it(service, capsys):
    service.allocator.handle(JobSubmitted(Job("train", "vision")), service.now)
    for name, asked in (("train", []), ("nightly", [("explain", "nightly")])):
        service.asked.clear()
        assert told(capsys, "explain", name).out.startswith("job train of queue vision has run for 0 s\n")
        assert service.asked == asked


@pytest.fixture
def stored(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(cluster_state, "find", lambda _store: None)
    file = tmp_path / "c.yaml"
    file.write_text("nodes: [{name: n1, gpus: 2, memory: 80Gi}]\nqueues: [{name: vision, quota: 4}]\n")
    told(capsys, "apply", str(file))
    return file


def test_lists_of_jobs_for_programs_and_none(stored, capsys):
    assert told(capsys, "jobs").err == "no jobs\n"
    assert told(capsys, "jobs", "-o", "jsonl").out == ""
    for name in ("a", "b"):
        told(capsys, "submit", "-q", "vision", "--name", name)
    lines = [json.loads(line) for line in told(capsys, "jobs", "-o", "jsonl").out.splitlines()]
    assert [(one["schema"], one["job"]["id"]) for one in lines] == [
        ("gpushare.cluster.jobs/1", "a"),
        ("gpushare.cluster.jobs/1", "b"),
    ]


def test_a_cluster_that_promises_more_than_it_has_is_told_so(stored, capsys):
    assert told(capsys, "apply", str(stored)).err.startswith("gpushare: ")


def test_names_that_are_taken_are_passed_over(stored, capsys):
    told(capsys, "submit", "-q", "vision", "--name", "vision-2")
    assert "vision-3" in told(capsys, "submit", "-q", "vision").out


def test_several_ways_out_are_told_one_by_one(stored, capsys):
    for name in ("a", "b"):
        told(capsys, "submit", "-q", "vision", "--name", name, "--min-runtime", "10m")
    told(capsys, "submit", "-q", "vision", "--name", "c", "--gpus", "2", "--priority", "90")
    lines = told(capsys, "explain", "c").out.splitlines()
    ways = [line for line in lines if line.startswith(("hint: ", "  or: "))]
    assert ways[0].startswith("hint: ") and all(line.startswith("  or: ") for line in ways[1:])
    assert len(ways) == len(set(ways)) and len(ways) > 1


def test_a_job_that_waits_is_explained_as_of_now(service, capsys, monkeypatch):
    """Not as of the moment of which the service told."""
    vision = QueueChanged(Queue("vision", quota=4 * MICRO))
    held = JobSubmitted(Job("a", "vision", (Tasks(gpus=2),), min_runtime=600.0))
    waits = JobSubmitted(Job("b", "vision", (Tasks(gpus=2),), priority=90))
    service.allocator.handle([vision, held], service.now)
    service.allocator.handle(waits, service.now)
    monkeypatch.setattr(cluster_state, "time", SimpleNamespace(time=lambda: 9000.0))
    for now, left in ((9000.0, "10m"), (9300.0, "5m")):
        monkeypatch.setattr(cluster, "time", SimpleNamespace(time=lambda now=now: now))
        assert f"hint: wait {left}: then a minimum run time is over" in told(capsys, "explain", "b").out


@pytest.mark.parametrize(("gpus", "never"), [(1, False), (2, False), (3, True)])
def test_whether_a_job_can_ever_start(stored, capsys, gpus, never):
    told(capsys, "submit", "-q", "vision", "--name", "a", "--gpus", "1")
    told(capsys, "submit", "-q", "vision", "--name", "b", "--gpus", str(gpus))
    for name, expected in (("a", False), ("b", never)):
        assert json.loads(told(capsys, "explain", name, "-o", "json").out)["never"] is expected


def test_what_follows_from_a_word_to_a_node_is_told_where_it_is_decided(stored, capsys):
    told(capsys, "cordon", "n1")
    told(capsys, "submit", "-q", "vision", "--name", "a")
    said, start = told(capsys, "uncordon", "n1").out.splitlines()
    assert said == "open again: n1" and start.startswith("start   a ")


def test_who_only_reads_leaves_no_file(stored, tmp_path):
    with cluster_state.opened(None) as found:
        assert set(found.allocator.queues) == {"vision"}
    folder = cluster_state.default_path().parent
    for lock in folder.glob("*.lock"):
        lock.unlink()
    with cluster_state.opened(None):
        assert list(folder.glob("*.lock")) == []
    with cluster_state.opened(None, read_only=False):
        assert len(list(folder.glob("*.lock"))) == 1


@pytest.mark.parametrize(("name", "near"), [("visoin", True), ("speech", False), ("vision", False)])
def test_a_new_queue_with_nearly_the_name_of_another_is_asked_about(stored, capsys, name, near):
    err = told(capsys, "plan", "--what-if", f"queue: {{name: {name}, quota: 1}}").err
    assert err == ("gpushare: visoin is a new queue: did you mean vision?\n" if near else "")


def test_where_a_service_has_the_cluster_no_file_is_made(service, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(cluster, "find", lambda _store: service)
    file = tmp_path / "c.yaml"
    file.write_text("queues: [{name: vision, quota: 1}, {name: speech, quota: 1}]\n")
    found = told(capsys, "apply", str(file))
    assert found.out.startswith("changed ") and "0 nodes, 1 new queue, 1 changed queue" in found.out
    assert service.asked == [("change", ["QueueChanged", "QueueAdded"])]
    assert not list(tmp_path.glob("state/**/*.db"))


def test_what_a_changed_file_lets_start_is_told(stored, capsys):
    told(capsys, "submit", "-q", "vision", "--name", "a", "--gpus", "3")
    stored.write_text(stored.read_text().replace("name: n1, gpus: 2", "name: n2, gpus: 4"))
    first, second = told(capsys, "apply", str(stored)).out.splitlines()
    assert first.startswith("changed ") and second.startswith("start   a ")


def test_a_look_at_the_file_is_a_look_at_now(stored, capsys, monkeypatch):
    told(capsys, "submit", "-q", "vision", "--name", "a", "--gpus", "2", "--min-runtime", "10m")
    told(capsys, "submit", "-q", "vision", "--name", "b", "--gpus", "2", "--priority", "90")

    def states() -> dict[str, str]:
        lines = [json.loads(line) for line in told(capsys, "jobs", "-o", "jsonl").out.splitlines()]
        return {one["job"]["id"]: one["state"] for one in lines}

    assert states() == {"a": "running", "b": "pending"}
    later = time.time() + 700
    monkeypatch.setattr(cluster_state, "time", SimpleNamespace(time=lambda: later))
    assert states() == {"a": "pending", "b": "running"}


@pytest.mark.parametrize("about", ["", "what it shows, in many words " * 6])
def test_a_scenario_says_first_what_it_is_about(capsys, tmp_path, about):
    file = tmp_path / "s.yaml"
    lines = ["scenario: two jobs", "given:", "  nodes: [{name: n1, gpus: 2, memory: 80Gi}]"]
    lines += ["  queues: [{name: vision, quota: 2}]", "steps:", "  - when: [{submit: {name: a, queue: vision}}]"]
    file.write_text("\n".join([lines[0], *([f"about: {about}"] if about else []), *lines[1:]]) + "\n")
    head, _, steps = told(capsys, "simulate", str(file)).out.partition("\n\n1.")
    assert head == "two jobs" + (f"\n\n{views.wrapped(about)}" if about else "") and "start" in steps


def test_a_cluster_is_told_by_its_file_or_by_the_service_of_another_one(monkeypatch, tmp_path):
    store = tmp_path / "cluster.db"
    assert cluster_state.place(store) == str(store)
    monkeypatch.setattr(cluster_state, "default_path", lambda: store)
    monkeypatch.setattr(cluster_state, "find", lambda _: ClusterClient(tmp_path / "own.sock"))
    monkeypatch.setattr(cluster_state, "serving", lambda _: tmp_path / "own.sock")
    assert cluster_state.place(None) == str(store)
    monkeypatch.setattr(cluster_state, "serving", lambda _: None)
    assert cluster_state.place(None) == f"the cluster of the service at {tmp_path}/own.sock"
