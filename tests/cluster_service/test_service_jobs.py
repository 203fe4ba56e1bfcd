"""What becomes of a job: submitted, started, ended, cancelled, held, evicted; and who may change it."""

from __future__ import annotations

import json

import pytest
from service_stage import ALICE, BOB, GIB, ROOT, Stage

from gpushare.cluster.engines.seam import Unanswered
from gpushare.cluster.model import Queue, QueueAdded
from gpushare.cluster.service.driver import Options
from gpushare.errors import NoSuchJob, NotPermitted, Refused, UsageError


def test_a_job_is_started_with_what_it_came_with_and_its_result_is_kept(stage: Stage) -> None:
    id = stage.submit(gpus=2, name="train", run={"command": ["python", "train.py"]})
    assert id == "1" and stage.states() == {"1": "starting"}
    stage.rounds()
    assert stage.states() == {"1": "running"}
    assert stage.said("start") == ["start 1 1 0 0 ['python', 'train.py']"]
    shown = stage.service.show("1", ALICE)
    assert (shown["user"], shown["queue"], shown["name"], shown["attempt"]) == ("alice", "alice", "train", 1)
    assert shown["run"] == {"command": ["python", "train.py"]} and "run" not in stage.service.show("1", BOB)
    assert shown["places"][0]["gpus"] == [0, 1] and shown["tasks"][0]["phase"] == "running"
    assert shown["started"] is not None and shown["ended"] is None
    stage.runner.finish("1")
    stage.rounds()
    assert stage.service.ids() == [] and not stage.store.allocator.jobs and not stage.store.allocator.leaving
    ended = stage.service.show("1", ALICE)
    assert ended["state"] == "ended" and ended["result"] == {"how": "done", "exit": 0, "text": ""}
    assert ended["submitted"] <= ended["started"] < ended["ended"] and ended["run"]
    assert stage.said("collect") == ["collect 1"]


def test_ids_are_never_used_again(stage: Stage) -> None:
    assert stage.submit() == "1"
    stage.service.cancel("1", ALICE)
    stage.rounds()
    stage.restart()
    assert stage.submit() == "2"


def test_a_task_that_fails_ends_its_job_and_the_other_tasks(stage: Stage) -> None:
    stage.submit(gpus=2, tasks=2)
    stage.rounds()
    stage.runner.finish("1", 3, task=1)
    stage.rounds(1)
    assert stage.said("evict") == ["evict 1 1 0 0 30"]
    stage.rounds()
    assert stage.service.show("1", ALICE)["result"] == {"how": "failed", "exit": 3, "text": ""}
    assert stage.states() == {} and not stage.store.allocator.jobs


def test_a_gang_is_done_when_all_its_tasks_are(stage: Stage) -> None:
    stage.submit(gpus=2, tasks=2)
    stage.rounds()
    stage.runner.finish("1", task=0)
    stage.rounds()
    assert stage.states() == {"1": "running"}
    stage.runner.finish("1", task=1)
    stage.rounds()
    assert stage.results() == {"1": "done"}


def test_a_job_that_waits_starts_when_another_ends(stage: Stage) -> None:
    for _ in range(3):
        stage.submit(gpus=2)
    stage.rounds()
    assert stage.states() == {"1": "running", "2": "running", "3": "pending"}
    stage.runner.finish("2")
    stage.rounds()
    assert stage.states() == {"1": "running", "3": "running"}


# ---- cancelling, holding ---------------------------------------------------------------------------------


def test_cancel_stops_what_runs_and_forgets_what_waits(stage: Stage) -> None:
    stage.submit(gpus=2, tasks=2)
    stage.submit(gpus=2)
    stage.rounds()
    assert stage.service.cancel("2", ALICE) == {"jobs": ["2"]}
    stage.rounds(1)
    assert stage.results() == {"2": "cancelled"} and not stage.said("evict")
    stage.service.cancel("1", ALICE)
    stage.rounds(1)
    assert len(stage.said("evict")) == 2
    stage.rounds()
    assert stage.results() == {"1": "cancelled", "2": "cancelled"} and stage.states() == {}
    with pytest.raises(NoSuchJob):
        stage.service.cancel("1", ALICE)


def test_a_cancelled_job_is_there_until_nothing_of_it_runs(stage: Stage) -> None:
    stage.runner.stubborn = True
    stage.submit(gpus=2)
    stage.rounds()
    stage.service.cancel("1", ALICE)
    stage.rounds()
    assert stage.states() == {"1": "stopping"}
    assert stage.said("evict")[0].endswith(" 30")
    stage.service.cancel("1", ALICE, now=True)
    stage.rounds()
    assert stage.said("evict")[-1].endswith(" 0")
    assert stage.results() == {"1": "cancelled"}


def test_what_ignores_its_grace_is_killed(stage: Stage) -> None:
    stage.runner.stubborn = True
    stage.submit(gpus=2)
    stage.rounds()
    stage.service.cancel("1", ALICE)
    stage.rounds(40)
    assert stage.states() == {"1": "stopping"} and not any(line.endswith(" 0") for line in stage.said("evict"))
    stage.rounds(130)
    assert stage.results() == {"1": "cancelled"}


def test_a_held_job_waits_for_its_release(stage: Stage) -> None:
    stage.submit(hold=True)
    stage.rounds()
    assert stage.states() == {"1": "held"} and not stage.said("start")
    stage.restart()
    stage.rounds()
    assert stage.states() == {"1": "held"}
    assert stage.service.release("1", ALICE) == {"jobs": ["1"]}
    stage.rounds()
    assert stage.states() == {"1": "running"}
    with pytest.raises(UsageError, match="runs already"):
        stage.service.hold("1", ALICE)


def test_a_job_that_waits_is_held_later(stage: Stage) -> None:
    for _ in range(3):
        stage.submit(gpus=2)
    stage.service.hold("3", ALICE)
    stage.runner.finish("1")
    stage.rounds()
    stage.runner.finish("1")
    stage.rounds()
    assert stage.states() == {"2": "running", "3": "held"}
    stage.service.release("3", ALICE)
    stage.rounds()
    assert stage.states()["3"] == "running"


# ---- arrays and dependencies -----------------------------------------------------------------------------


def test_an_array_has_one_number_and_many_jobs(stage: Stage) -> None:
    answer = stage.service.submit({"job": {"gpus": 1}, "array": 1000, "run": {"command": ["x"]}}, ALICE)
    assert answer["id"] == "1" and answer["jobs"][:2] == ["1_0", "1_1"] and len(answer["jobs"]) == 1000
    stage.rounds()
    assert sorted(line.split()[1] for line in stage.said("start")) == ["1_0", "1_1", "1_2", "1_3"]
    shown = stage.service.show("1_3", ALICE)
    assert (shown["array"], shown["index"], shown["run"]) == ("1", 3, {"command": ["x"]})
    with pytest.raises(UsageError, match="1000 jobs"):
        stage.service.show("1", ALICE)
    stage.service.cancel("1_7", ALICE)
    assert len(stage.service.cancel("1", ALICE)["jobs"]) == 1000
    stage.rounds()
    assert stage.states() == {}


def test_a_round_does_not_look_at_jobs_that_only_wait(stage: Stage) -> None:
    stage.submit(array=300)
    stage.rounds(2)
    looked = []
    glance = stage.service.work.hosted.glance
    stage.service.work.hosted.glance = lambda uids: looked.append(len(uids)) or glance(uids)
    stage.rounds(1)
    stage.runner.finish("1_0")
    stage.rounds(3)
    assert looked and max(looked) <= 6 and "1_4" in stage.states()
    assert stage.states()["1_4"] == "running"


def test_a_job_follows_others_that_succeed(stage: Stage) -> None:
    first = stage.submit(array=2)
    second = stage.submit(after=[first])
    third = stage.submit(after=[second, "1_0"])
    stage.rounds()
    assert stage.states() == {"1_0": "running", "1_1": "running", "2": "held", "3": "held"}
    stage.runner.finish("1_0")
    stage.rounds()
    assert stage.states() == {"1_1": "running", "2": "held", "3": "held"}
    stage.restart()
    stage.runner.finish("1_1")
    stage.rounds()
    assert stage.states() == {"2": "running", "3": "held"}
    stage.runner.finish("2")
    stage.rounds()
    assert stage.states() == {third: "running"}
    assert stage.submit(after=["1", "2"]) == "4"
    stage.rounds()
    assert stage.states()["4"] == "running", "those that it follows have succeeded already"


def test_a_job_that_follows_a_failed_one_is_cancelled_and_so_on(stage: Stage) -> None:
    stage.submit()
    stage.submit(after=["1"])
    stage.submit(after=["2"])
    stage.rounds()
    stage.runner.finish("1", 1)
    stage.rounds(5)
    assert stage.results() == {"1": "failed", "2": "cancelled", "3": "cancelled"}
    assert stage.service.show("2", ALICE)["result"]["text"] == "job 1, which it was to follow, has not succeeded"
    with pytest.raises(UsageError, match="job 1, which this is to follow, has not succeeded"):
        stage.submit(after=["1"])
    with pytest.raises(NoSuchJob):
        stage.submit(after=["99"])


def test_a_job_that_follows_and_is_held_needs_both(stage: Stage) -> None:
    stage.submit()
    stage.submit(after=["1"], hold=True)
    stage.service.release("2", ALICE)
    stage.rounds()
    assert stage.states()["2"] == "held"
    stage.service.hold("2", ALICE)
    stage.runner.finish("1")
    stage.rounds()
    assert stage.states() == {"2": "held"}
    stage.service.release("2", ALICE)
    stage.rounds()
    assert stage.states() == {"2": "running"}


# ---- sharing ---------------------------------------------------------------------------------------------


def test_users_without_a_file_share_evenly(stage: Stage) -> None:
    stage.submit(array=6, gpus=1)
    stage.rounds()
    assert list(stage.states().values()).count("running") == 4
    stage.submit(BOB, array=6, gpus=1)
    stage.rounds(6)
    running = [id for id, state in stage.states().items() if state == "running"]
    assert sorted(id.split("_")[0] for id in running) == ["1", "1", "2", "2"]
    assert len(stage.said("evict")) == 2 and not stage.said("overlap")
    assert set(stage.store.allocator.queues) == {"alice", "bob"}


def test_an_evicted_job_waits_again_or_has_ended_as_it_was_said(stage: Stage) -> None:
    stage.submit(array=2, gpus=2)
    stage.rounds()
    stage.submit(BOB, gpus=2)
    stage.rounds(6)
    (evicted,) = (id for id, state in stage.states().items() if state == "pending")
    assert stage.service.show(evicted, ALICE)["evictions"] == 1
    stage.runner.finish("2")
    stage.rounds(6)
    assert stage.states()[evicted] == "running"
    assert f"start {evicted} 2 0 0 None" in stage.said("start")

    once = Stage(stage.directory / "once") if (stage.directory / "once").mkdir() is None else None
    assert once is not None
    once.submit(array=2, gpus=2, requeue=False)
    once.rounds()
    once.submit(BOB, gpus=2)
    once.rounds(6)
    assert list(once.results().values()) == ["evicted"] and "pending" not in once.states().values()
    once.store.close()


def test_a_job_that_ends_by_itself_before_its_eviction_begins_has_the_result_that_it_had(stage: Stage) -> None:
    """It is not to wait again, so an eviction would be its end."""
    stage.submit(array=2, gpus=2, requeue=False)
    stage.rounds()
    stage.submit(BOB, gpus=2)
    while not (evicted := [id for id, job in stage.store.allocator.jobs.items() if job.evictions]):
        stage.rounds(1)
    (id,) = evicted
    assert not stage.said("evict")
    stage.runner.finish(id, 7)
    stage.rounds()
    (ended,) = stage.service.shown_ended()
    assert (ended["id"], ended["result"]["how"], ended["result"]["exit"]) == (id, "failed", 7)


def test_a_job_of_another_user_is_not_changed(stage: Stage) -> None:
    stage.submit(ALICE, hold=True)
    for change in (stage.service.cancel, stage.service.hold, stage.service.release):
        with pytest.raises(NotPermitted, match="job 1 belongs to alice"):
            change("1", BOB)
    with pytest.raises(NotPermitted, match="queue alice"):
        stage.submit(BOB, queue="alice")
    with pytest.raises(NotPermitted):
        stage.service.cordon("n1", False, ALICE)
    with pytest.raises(NotPermitted):
        stage.service.change([], ALICE)
    assert stage.service.release("1", ROOT) == {"jobs": ["1"]}
    assert stage.service.cancel("1", ROOT) == {"jobs": ["1"]}


def test_a_user_has_only_so_many_jobs(tmp_path) -> None:
    stage = Stage(tmp_path, options=Options(most_jobs=3))
    stage.submit(array=2)
    with pytest.raises(Refused, match="alice has 2 jobs and may have 3: 2 more are too many") as refused:
        stage.submit(array=2)
    assert refused.value.hint == "cancel some, or wait until some have ended"
    stage.submit()
    stage.submit(BOB)
    with pytest.raises(Refused, match="bob has 1 job and may have 3: 4 more are too many") as refused:
        stage.submit(BOB, array=4)
    assert refused.value.hint == "submit 3 at most"
    stage.service.cancel("1", ALICE)
    stage.rounds(5)
    stage.submit()
    stage.restart()
    with pytest.raises(Refused):
        stage.submit(array=2)
    stage.store.close()


def test_a_queue_below_one_that_is_not_there_is_not_made_and_the_settings_are_named(tmp_path) -> None:
    stage = Stage(tmp_path, options=Options(queues_below="users"))
    with pytest.raises(Refused, match="below 'users', and there is no such queue") as refused:
        stage.submit()
    assert "`queues_below`" in str(refused.value.hint)
    stage.service.change([QueueAdded(Queue("users", None, quota=0))], ROOT)
    stage.submit()
    assert stage.service.store.allocator.queues["alice"].queue.parent == "users"
    stage.store.close()


def test_a_user_keeps_its_place_only_for_so_long(tmp_path) -> None:
    stage = Stage(tmp_path, options=Options(max_min_run_time=7200.0))
    with pytest.raises(UsageError, match=r"minimum run time of 3h is more than 2h, the most here"):
        stage.submit(min_runtime="3h")
    stage.submit(min_runtime="2h")
    stage.submit(ROOT, min_runtime="3h")
    stage.store.close()


def test_what_is_refused_leaves_no_trace(stage: Stage) -> None:
    stage.submit(gpus=2, tasks=2)
    before = stage.service.notices.seq
    with pytest.raises(Refused, match="no room"):
        stage.submit(wait=False)
    for wrong in (
        {"queue": "nowhere"},
        {"gpu": 1},
        {"request": "25%", "share": 0.5},
        {"limit": "10%", "request": "20%"},
    ):
        with pytest.raises(UsageError):
            stage.submit(**wrong)
    stage.runner.refuse = "no command"
    with pytest.raises(UsageError, match="no command"):
        stage.submit()
    assert stage.states() == {"1": "starting"} and set(stage.store.allocator.jobs) == {"1"}
    assert not [one for one in stage.service.notices.since(before) if one["event"] == "submitted"]
    stage.restart()
    assert stage.states() == {"1": "starting"}


def test_a_request_is_a_share_or_memory(stage: Stage) -> None:
    stage.submit(request="25%", limit="80%")
    stage.submit(request="20Gi")
    stage.rounds()
    assert [place["amount"] for id in ("1", "2") for place in stage.service.show(id, ALICE)["places"]] == [20 * GIB] * 2


def test_a_job_is_found_by_its_name_while_it_lives(stage: Stage) -> None:
    stage.submit(name="train")
    stage.submit(name="train")
    stage.submit(name="eval")
    assert stage.service.show("eval", BOB)["id"] == "3"
    with pytest.raises(UsageError, match="2 jobs"):
        stage.service.show("train", BOB)
    with pytest.raises(NoSuchJob):
        stage.service.show("other", BOB)


# ---- nodes -----------------------------------------------------------------------------------------------


def test_a_drained_node_is_left_and_a_cordoned_one_is_not_entered(stage: Stage) -> None:
    stage.submit(gpus=2)
    stage.rounds()
    node = stage.service.show("1", ALICE)["places"][0]["node"]
    other = "n2" if node == "n1" else "n1"
    stage.service.cordon(other, False, ROOT)
    stage.submit(gpus=2)
    stage.rounds()
    assert stage.states() == {"1": "running", "2": "pending"}
    stage.restart()
    stage.rounds()
    assert stage.store.allocator.nodes[other].cordoned and stage.states()["2"] == "pending"
    stage.service.cordon(other, None, ROOT)
    stage.service.cancel("2", ALICE)
    stage.rounds()
    stage.service.cordon(node, True, ROOT)
    stage.rounds(5)
    assert stage.service.show("1", ALICE)["places"][0]["node"] == other
    assert [one["node"]["name"] for one in stage.service.nodes()["nodes"] if one["cordoned"]] == [node]
    with pytest.raises(UsageError, match="no node"):
        stage.service.cordon("n9", None, ROOT)


def test_a_task_that_is_in_no_record_is_left_alone_and_counts_as_foreign(stage: Stage) -> None:
    task = {"node": "n1", "gpus": (0, 1), "amount": 80 * GIB, "phase": "running"}
    stage.runner._write(stage.runner._path("77", 1, 0, 0), task)
    stage.rounds(1)
    assert dict(stage.store.allocator.nodes["n1"].foreign) == {0: 80 * GIB, 1: 80 * GIB}
    stage.submit(array=2, gpus=2)
    stage.rounds()
    assert sorted(stage.states().values()) == ["pending", "running"]
    assert not stage.said("evict") and not stage.said("overlap")


def test_programs_of_others_are_seen(stage: Stage) -> None:
    stage.runner.foreign = ((1, 5 * GIB),)
    stage.rounds(1)
    assert dict(stage.store.allocator.nodes["n2"].foreign) == {1: 5 * GIB}


# ---- questions -------------------------------------------------------------------------------------------


def test_explain_and_events_say_what_happens(stage: Stage) -> None:
    stage.submit(array=3, gpus=2)
    stage.rounds()
    explained = stage.service.explain("1_2")
    assert explained["state"] == "pending" and explained["reason"]["message"] and explained["never"] is False
    seq = stage.service.notices.seq
    stage.runner.finish("1_0", 2)
    stage.rounds()
    events = [(one["event"], one["job"]) for one in stage.service.notices.since(seq)]
    assert ("ended", "1_0") in events and ("start", "1_2") in events and ("running", "1_2") in events
    assert [one["facts"]["exit"] for one in stage.service.notices.since(seq) if one["event"] == "ended"] == [2]
    with pytest.raises(NoSuchJob, match="has ended"):
        stage.service.explain("1_0")


def test_the_state_has_the_time_that_it_is_asked_at(stage: Stage) -> None:
    stage.submit(gpus=8)
    first = json.loads(stage.service.state())
    stage.now += 60.0
    second = json.loads(stage.service.state())
    assert second["now"] - first["now"] == 60.0 and second["state"] == first["state"]


def test_an_array_that_is_over_has_ended_and_a_number_that_never_was_is_no_job(stage: Stage) -> None:
    stage.submit(array=2)
    stage.rounds()
    for id in ("1_0", "1_1"):
        stage.runner.finish(id, 0)
    stage.rounds()
    with pytest.raises(NoSuchJob, match="job 1 has ended"):
        stage.service.cancel("1", ALICE)
    for name in ("2", "9" * 40, "²"):
        with pytest.raises(NoSuchJob, match="no job"):
            stage.service.cancel(name, ALICE)


def test_a_job_may_not_follow_what_never_was(stage: Stage) -> None:
    for name in ("2", "9" * 40, "nobody"):
        with pytest.raises(NoSuchJob, match="no job"):
            stage.submit(after=[name])


def test_jobs_are_chosen_by_queue_and_user(tmp_path) -> None:
    stage = Stage(tmp_path, queues=[("lab", 1)])
    stage.submit(queue="lab")
    stage.submit()
    stage.submit(BOB)
    assert stage.service.ids(queue="lab") == ["1"] and stage.service.ids(user="alice") == ["1", "2"]
    assert stage.service.ids(queue="bob", user="alice") == []
    with pytest.raises(UsageError, match="no queue"):
        stage.service.ids(queue="lap")
    stage.runner.foreign = ()
    stage.rounds()
    stage.runner.finish("1")
    stage.rounds()
    assert [job["id"] for job in stage.service.shown_ended(queue="lab", user="alice")] == ["1"]
    assert stage.service.shown_ended(queue="bob") == []
    status = stage.service.status()
    assert (status["jobs"], status["running"], status["nodes"]) == (2, 2, 2)
    stage.store.close()


@pytest.mark.parametrize(
    ("names", "asked", "hint"),
    [
        (("lab", "web"), "lap", "did you mean lab?"),
        (("lab", "web"), "zzz", "there are: lab, web"),
        (tuple(f"q{number}" for number in range(20)), "zzz", "there are: q0, q1, q2, q3, q4, q5, q6, q7"),
        ((), "lab", "there is none yet"),
    ],
)
def test_a_queue_that_is_not_there_is_said_with_those_that_are(tmp_path, names, asked, hint) -> None:
    stage = Stage(tmp_path, queues=[(name, 0) for name in names])
    with pytest.raises(UsageError) as caught:
        stage.service.ids(queue=asked)
    assert (caught.value.message, caught.value.hint) == (f"no queue {asked!r}", hint)
    with pytest.raises(UsageError) as long:
        stage.service.ids(queue="x" * 10_000)
    assert len(long.value.message) < 100
    stage.store.close()


@pytest.mark.parametrize(("node", "hint"), [("n11", "did you mean n1?"), ("gpu-17", "there are: n1, n2")])
def test_a_node_that_is_not_there_is_said_with_those_that_are(stage: Stage, node: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        stage.service.cordon(node, None, ROOT)
    assert (caught.value.message, caught.value.hint) == (f"no node {node!r}", hint)


def test_an_engine_that_does_not_answer_is_named(stage: Stage, monkeypatch) -> None:
    def nodes():
        raise Unanswered("no daemon listens at /nowhere")

    assert stage.service.status()["trouble"] == ""
    with monkeypatch.context() as patch:
        patch.setattr(stage.runner, "nodes", nodes)
        stage.rounds(1)
        assert stage.service.status()["trouble"] == "no daemon listens at /nowhere"
        large = stage.service.submit({"job": {"gpus": 3}}, ALICE)
        assert large["never"] == {}, "while its nodes are not known nobody can say that it never starts"
    stage.rounds(1)
    assert stage.service.status()["trouble"] == ""
    assert stage.service.submit({"job": {"gpus": 3}}, ALICE)["never"]


@pytest.mark.parametrize("kind", ["evicted", "cancelled", "done"])
def test_a_failure_right_after_something_was_written_loses_no_job(tmp_path, monkeypatch, kind) -> None:
    """The file has the job's end, and what was in memory has not."""
    stage = Stage(tmp_path, nodes=1, queues=[("lab", 1), ("web", 1)])
    one = stage.submit(queue="lab", gpus=2, requeue=False)
    follower = stage.submit(queue="lab", after=[one]) if kind == "cancelled" else ""
    stage.rounds()
    broken: list[str] = []
    for name in ("append", "write"):
        real = getattr(stage.store, name)

        def breaks(*arguments, real=real, name=name, **named):
            done = real(*arguments, **named)
            if not broken:
                broken.append(name)
                raise ZeroDivisionError
            return done

        monkeypatch.setattr(stage.store, name, breaks)
    if kind == "evicted":
        broken.append("not yet")
        stage.submit(queue="web")
        broken.clear()
        expected = {one: "evicted"}
    else:
        stage.runner.finish(one, 7 if follower else 0)
        expected = {one: "failed", follower: "cancelled"} if follower else {one: "done"}
    failures = 0
    for _ in range(12):
        try:
            stage.rounds(1)
        except ZeroDivisionError:
            failures += 1
            stage.service.work.begin_again()
            if failures < 4:
                broken.clear()  # the next thing that is written fails, too
    assert failures >= 2
    assert stage.results() == expected
    assert set(stage.states()) <= {"2"} - set(expected)
    stage.store.close()
