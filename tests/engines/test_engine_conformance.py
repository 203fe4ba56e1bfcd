"""What every engine does, in one file: each test runs on the stand of each engine that does not say that it cannot.

First commands as an allocator gives them, one by one; then the allocator itself, with its jobs, and what goes wrong.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from annotated_server_conformance import AnnotatedServerStand
from conformance_stand import COMMANDS, RUNS, SHORT, Killed, Stand, Work
from cuda_program import OPENED
from kubernetes_conformance import AnnotatedStand, KubernetesStand
from kubernetes_server_conformance import KubernetesServerStand
from local_conformance import LocalStand
from memory_stand import MemoryStand, PacedStand
from slurm_conformance import SlurmStand

from gpushare.cluster.engines.abilities import ABILITIES
from gpushare.cluster.engines.registry import ENGINES, cannot
from gpushare.cluster.engines.seam import Accepted, Answer, Busy, Deposed, Evict, Gone, Refused, Start, Unanswered
from gpushare.cluster.model import Queue, QueueChanged
from gpushare.errors import NoSuchJob, UsageError

STANDS: dict[str, type[Stand]] = {
    one.name: one
    for one in (
        *(MemoryStand, PacedStand, LocalStand, SlurmStand),
        *(KubernetesStand, AnnotatedStand, KubernetesServerStand, AnnotatedServerStand),
    )
}
PROVED: dict[str, Counter[str]] = {name: Counter() for name in STANDS}
"""Of each engine: behaviours that were seen, by the ability that they need ("" for the least)."""
ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
Test = TypeVar("Test", bound=Callable[..., None])


def needs(*abilities: str) -> Callable[[Test], Test]:
    """Only engines that can do this."""

    def mark(test: Test) -> Test:
        test.needs = abilities  # type: ignore[attr-defined]
        return test

    assert set(abilities) <= set(ABILITIES)
    return mark


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "stand" in metafunc.fixturenames:
        wanted = getattr(metafunc.function, "needs", ())
        able = [name for name, one in STANDS.items() if not any(ability in one.cannot for ability in wanted)]
        metafunc.parametrize("stand", able, indirect=True)


class Grounds:
    """What stands of one engine share: it starts with the first, and ends with the last."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self.factory = factory
        self.patch = pytest.MonkeyPatch()
        self.made: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        if name not in self.made:
            make = STANDS[name].ground
            self.made[name] = make(self.factory.mktemp(name), self.patch) if make is not None else None
        return self.made[name]

    def stop(self) -> None:
        for one in self.made.values():
            if one is not None:
                one.stop()
        self.patch.undo()


@pytest.fixture(scope="module")
def grounds(tmp_path_factory):
    made = Grounds(tmp_path_factory)
    yield made
    made.stop()


@pytest.fixture
def stand(request, grounds, tmp_path):
    kind = STANDS[request.param]
    made = kind(tmp_path, grounds.get(request.param))
    yield made
    made.clear()
    wanted = getattr(request.function, "needs", ())
    PROVED[request.param].update(wanted or ("",))


# ---- a start ------------------------------------------------------------------------------------------


def test_a_task_runs_where_it_was_placed_with_what_it_was_given(stand: Stand) -> None:
    uid = stand.submit(share=0.5)
    place = stand.place(1, share=0.5)
    assert stand.start(uid, place) == Accepted()
    task = stand.task(uid)
    assert task is not None and task.phase in ("starting", "running"), "the snapshot shows what was answered"
    assert (task.attempt, task.node, task.gpus, task.amount) == (1, place.node, (1,), place.amount)
    stand.until(lambda: stand.runs(uid))
    stand.until(lambda: stand.began(uid) == 1 and stand.alive(uid) == 1)
    assert stand.seen(uid).attempt == 1 and not stand.seen(uid).ended


def test_a_task_has_several_gpus(stand: Stand) -> None:
    uid = stand.submit(gpus=2)
    assert stand.start(uid, stand.place(0, 1)) == Accepted()
    stand.until(lambda: stand.runs(uid))
    assert sorted(stand.task(uid).gpus) == [0, 1]


def test_two_tasks_share_a_gpu(stand: Stand) -> None:
    first, second = stand.submit(share=0.4), stand.submit(share=0.5)
    assert stand.start(first, stand.place(0, share=0.4)) == Accepted()
    assert stand.start(second, stand.place(0, share=0.5)) == Accepted()
    stand.until(lambda: stand.phase(first) == stand.phase(second) == "running")
    assert stand.task(first).gpus == stand.task(second).gpus == (0,)


def test_the_same_command_twice_is_one_run(stand: Stand) -> None:
    uid, token = stand.submit(), stand.token()
    for _ in range(3):
        assert isinstance(stand.start(uid, token=token), Accepted | Busy)
    stand.until(lambda: stand.began(uid))
    stand.start(uid, token=token)
    stand.wait(1.0)
    assert (stand.began(uid), len(stand.tasks(uid))) == (1, 1)


def test_a_later_command_for_what_runs_already_starts_nothing(stand: Stand) -> None:
    uid = stand.running()
    assert stand.start(uid) == Accepted()
    stand.wait(1.0)
    assert (stand.began(uid), len(stand.tasks(uid))) == (1, 1)


@needs("resize")
def test_what_runs_takes_another_amount(stand: Stand) -> None:
    uid = stand.running(RUNS, stand.place(0, share=0.5), share=0.5)
    assert stand.start(uid, stand.place(0, share=0.75)) == Accepted()
    assert stand.task(uid).amount == stand.place(share=0.75).amount
    assert stand.start(uid, stand.place(0, share=0.25)) == Accepted()
    assert stand.task(uid).amount == stand.place(share=0.25).amount
    assert stand.began(uid) == 1


def test_what_runs_is_not_started_elsewhere(stand: Stand) -> None:
    uid = stand.running()
    assert isinstance(stand.start(uid, stand.place(1)), Refused)
    assert stand.task(uid).gpus == (0,) and stand.began(uid) == 1


def test_an_attempt_that_is_older_is_never_started(stand: Stand) -> None:
    uid = stand.submit()
    stand.start(uid, attempt=3)
    stand.until(lambda: stand.began(uid))
    assert isinstance(stand.start(uid, attempt=2), Refused | Busy)
    assert stand.task(uid).attempt == 3
    stand.evict(uid, attempt=3, grace=0.0)
    stand.until(lambda: not stand.holds(uid))
    assert stand.began(uid) == 1


def test_an_attempt_waits_while_an_earlier_one_runs(stand: Stand) -> None:
    uid = stand.running()
    assert stand.start(uid, stand.place(1), attempt=2) == Busy()
    assert [task.attempt for task in stand.tasks(uid)] == [1] and stand.began(uid) == 1


def test_a_job_that_is_not_there_is_gone(stand: Stand) -> None:
    assert stand.start("99999") == Gone()
    assert isinstance(stand.evict("99999"), Gone | Accepted)


def test_a_job_that_has_ended_is_gone(stand: Stand) -> None:
    uid = stand.submit(SHORT)
    stand.start(uid)
    stand.until(lambda: stand.seen(uid) is None or stand.seen(uid).ended)
    assert isinstance(stand.start(uid, attempt=2), Gone)
    assert stand.began(uid) == 1


def test_what_does_not_fit_is_refused_and_the_node_is_named(stand: Stand) -> None:
    stand.running(RUNS, stand.place(0, share=0.6), share=0.6)
    uid = stand.submit(share=0.6)
    answer = stand.start(uid, stand.place(0, share=0.6))
    assert isinstance(answer, Refused) and answer.node == stand.node
    assert not stand.holds(uid)
    assert stand.start(uid, stand.place(1, share=0.6)) == Accepted()


def test_a_gpu_or_a_node_that_is_not_there_is_refused(stand: Stand) -> None:
    uid = stand.submit()
    for place in (stand.place(7), stand.place(0)._replace(node="nowhere")):
        assert isinstance(stand.start(uid, place), Refused), place
    assert not stand.holds(uid) and not stand.began(uid)


def test_what_cannot_start_says_why(stand: Stand) -> None:
    uid = stand.submit(Work(broken=True))
    stand.start(uid)
    stand.until(lambda: stand.phase(uid) == "failed" or stand.result(uid) is not None)
    assert not stand.holds(uid) and not stand.began(uid)
    assert all(task.why for task in stand.tasks(uid))


def test_tasks_of_a_gang_start_together(stand: Stand) -> None:
    uid = stand.submit(tasks=2)
    assert stand.start(uid, stand.place(0), stand.place(1, task=1)) == Accepted()
    stand.until(lambda: stand.runs(uid, 2))
    assert sorted((task.task, task.gpus) for task in stand.tasks(uid)) == [(0, (0,)), (1, (1,))]


@needs("nodes")
@pytest.mark.parametrize(("gpu", "other"), [(0, 0), (1, 0)], ids=["same GPU", "other GPUs"])
def test_tasks_of_a_gang_run_on_several_nodes(stand: Stand, gpu: int, other: int) -> None:
    """On each with the GPU that is free there."""
    first, second = (one.node.name for one in stand.nodes()[:2])
    uid = stand.submit(tasks=2)
    assert stand.start(uid, stand.place(gpu, node=first), stand.place(other, node=second, task=1)) == Accepted()
    stand.until(lambda: stand.runs(uid, 2))
    assert {(task.node, task.gpus) for task in stand.tasks(uid)} == {(first, (gpu,)), (second, (other,))}


# ---- an end --------------------------------------------------------------------------------------------


def test_a_job_whose_program_ends_is_over(stand: Stand) -> None:
    uid = stand.submit(SHORT)
    stand.start(uid)
    stand.until(lambda: (found := stand.result(uid)) is not None and found[0] == "done")
    assert not stand.holds(uid) and stand.began(uid) == 1 and not stand.alive(uid)


@needs("exit")
def test_an_exit_status_is_known(stand: Stand) -> None:
    uid = stand.submit(Work(seconds=0.1, exit=7))
    stand.start(uid)
    stand.until(lambda: stand.result(uid) is not None)
    assert stand.result(uid) == ("failed", 7)


@needs("exit", "programs")
def test_an_end_by_a_signal_is_known(stand: Stand) -> None:
    uid = stand.submit(Work(seconds=0.1, signal=9))
    stand.start(uid)
    stand.until(lambda: stand.result(uid) is not None)
    assert stand.result(uid) == ("failed", -9)


@needs("programs")
def test_a_programs_words_are_kept(stand: Stand) -> None:
    uid = stand.submit(Work(script="echo out; echo err >&2"))
    stand.start(uid)
    stand.until(lambda: stand.result(uid) is not None)
    stand.until(lambda: {"out", "err"} <= set(stand.output(uid).splitlines()), stand.output(uid))


@needs("programs")
def test_a_program_has_directory_and_variables_of_its_submission(stand: Stand) -> None:
    uid = stand.submit(Work(script='echo "$COLOUR"; pwd', env={"COLOUR": "blue and green"}))
    stand.start(uid)
    stand.until(lambda: len(stand.output(uid).splitlines()) >= 2)
    colour, where = stand.output(uid).splitlines()[-2:]
    assert colour == "blue and green" and "work" in where


# ---- an eviction ---------------------------------------------------------------------------------------


def test_an_evicted_task_is_shown_until_nothing_of_it_runs(stand: Stand) -> None:
    uid = stand.running()
    assert stand.evict(uid) == Accepted()
    assert stand.phase(uid) in ("stopping", "nothing")
    stand.until(lambda: not stand.holds(uid))
    assert not stand.alive(uid) and stand.began(uid) == 1
    assert not stand.seen(uid).ended, "it is to wait again"


@needs("programs")
def test_a_program_is_asked_to_stop_and_has_its_grace(stand: Stand) -> None:
    uid = stand.running(Work(script="trap 'sleep 0.3; echo saved; exit 0' TERM; sleep 1000 & wait", endless=True))
    stand.evict(uid, grace=20.0)
    stand.until(lambda: not stand.holds(uid))
    assert "saved" in stand.output(uid)
    assert not stand.seen(uid).ended, "a task that ends because it was evicted is not done"


def test_what_ignores_its_grace_is_killed(stand: Stand) -> None:
    uid = stand.running(Work(stubborn=True, grace=1.0))
    stand.evict(uid, grace=1.0)
    if "programs" not in stand.cannot:
        assert stand.holds(uid) and stand.alive(uid)
    stand.until(lambda: not stand.holds(uid) or (stand.evict(uid, grace=0.0) and False))
    assert not stand.alive(uid)


@needs("hasten")
def test_without_grace_it_is_killed_at_once_though_it_has_some(stand: Stand) -> None:
    uid = stand.running(Work(stubborn=True, grace=1000.0))
    stand.evict(uid, grace=1000.0)
    stand.wait(0.2)
    assert stand.holds(uid)
    stand.evict(uid, grace=0.0)
    stand.until(lambda: not stand.holds(uid) and not stand.alive(uid))


@needs("programs")
def test_what_a_program_leaves_behind_is_stopped_with_it(stand: Stand) -> None:
    uid = stand.running(Work(child=True, grace=1.0))
    stand.until(lambda: stand.alive(uid) == 2)
    stand.evict(uid, grace=1.0)
    stand.until(lambda: not stand.holds(uid))
    assert not stand.alive(uid)


def test_an_eviction_before_it_runs_leaves_nothing(stand: Stand) -> None:
    uid = stand.submit()
    stand.start(uid)
    assert stand.evict(uid, grace=0.0) == Accepted()
    stand.until(lambda: not stand.holds(uid))
    began = stand.began(uid)
    stand.wait(1.0)
    assert not stand.alive(uid) and stand.began(uid) == began <= 1


def test_an_eviction_of_what_does_not_run_changes_nothing(stand: Stand) -> None:
    uid = stand.submit()
    assert isinstance(stand.evict(uid), Gone | Accepted)
    assert stand.start(uid) == Accepted()
    stand.until(lambda: stand.began(uid) == 1)


@needs("parts")
def test_one_task_is_evicted_and_the_others_stay(stand: Stand) -> None:
    uid = stand.running(RUNS, stand.place(0), stand.place(1, task=1), tasks=2)
    assert stand.evict(uid, tasks=[1], grace=0.0) == Accepted()
    stand.until(lambda: [task.task for task in stand.tasks(uid) if task.holds] == [0])
    assert stand.phase(uid) == "running" and stand.alive(uid) == 1


def test_an_evicted_job_starts_again_in_a_later_attempt(stand: Stand) -> None:
    uid = stand.running()
    stand.evict(uid, grace=0.0)
    stand.until(lambda: not stand.holds(uid))
    stand.until(lambda: stand.start(uid, stand.place(1), attempt=2) == Accepted())
    stand.until(lambda: stand.runs(uid, 2))
    assert [(task.attempt, task.gpus) for task in stand.tasks(uid)] == [(2, (1,))]


# ---- commands that are late ----------------------------------------------------------------------------


def test_a_job_that_starts_again_elsewhere_leaves_its_first_gpu_to_others(stand: Stand) -> None:
    uid, other = stand.running(RUNS, stand.place(0)), stand.submit()
    stand.evict(uid)
    stand.until(lambda: not stand.holds(uid), "it is gone")
    stand.until(lambda: stand.start(uid, stand.place(1), attempt=2) == Accepted(), "it starts on another GPU")
    stand.until(lambda: stand.phase(uid) == "running", "it runs there")
    assert stand.start(other, stand.place(0)) == Accepted()
    stand.until(lambda: stand.phase(other) == "running", "its first GPU is free")


def test_a_start_that_comes_after_its_eviction_is_void(stand: Stand) -> None:
    uid, early = stand.submit(), stand.token()
    stand.evict(uid, grace=0.0)
    stand.start(uid)
    stand.until(lambda: stand.began(uid))
    stand.evict(uid, grace=0.0)
    stand.until(lambda: not stand.holds(uid))
    stand.start(uid, token=early)
    stand.wait(1.0)
    assert not stand.holds(uid) and stand.began(uid) == 1


def test_an_eviction_that_comes_after_a_later_start_is_void(stand: Stand) -> None:
    uid = stand.submit()
    early = stand.token()
    stand.start(uid)
    stand.until(lambda: stand.began(uid))
    stand.evict(uid, grace=0.0, token=early)
    stand.wait(1.0)
    assert stand.phase(uid) == "running" and stand.alive(uid) == 1


def test_an_earlier_leader_is_not_heard(stand: Stand) -> None:
    uid, (term, number) = stand.running(), stand.token()
    for command in (stand.start, stand.evict):
        with suppress(Deposed):
            answer = command(uid, token=(term - 1, number + 100))
            assert isinstance(answer, Busy | Refused | Gone | Accepted)
    stand.wait(1.0)
    assert stand.runs(uid, 1)


# ---- nodes, and programs of others ---------------------------------------------------------------------


def test_nodes_show_what_they_have(stand: Stand) -> None:
    nodes = stand.nodes()
    assert nodes and all(one.node.gpus == 2 and one.node.memory > 0 and one.state == "ready" for one in nodes)
    assert not any(one.foreign or one.cordoned or one.draining for one in nodes)


@needs("foreign")
def test_what_others_take_is_foreign_until_it_is_gone(stand: Stand) -> None:
    uid = stand.running(RUNS, stand.place(0, share=0.5), share=0.5)
    stand.foreign(stand.node, 1, 256 * MIB)
    stand.until(lambda: stand.nodes()[0].foreign == ((1, 256 * MIB),))
    stand.foreign(stand.node, 1, 0)
    stand.until(lambda: not stand.nodes()[0].foreign)
    assert stand.phase(uid) == "running", "what is ours is not foreign"


@needs("nodes")
def test_a_silent_node_keeps_what_runs_there(stand: Stand) -> None:
    uid = stand.running()
    node = stand.task(uid).node
    stand.silence(node)
    stand.until(lambda: {one.node.name: one.state for one in stand.nodes()}[node] == "unknown")
    assert stand.holds(uid)
    stand.bring_back(node)
    stand.until(lambda: {one.node.name: one.state for one in stand.nodes()}[node] == "ready")
    assert stand.runs(uid, 1)


@needs("nodes")
def test_nothing_runs_on_a_lost_node(stand: Stand) -> None:
    uid = stand.running()
    node = stand.task(uid).node
    stand.lose(node)
    stand.until(lambda: {one.node.name: one.state for one in stand.nodes()}.get(node, "lost") == "lost")
    stand.until(lambda: not stand.holds(uid))
    assert not stand.alive(uid)


# ---- the engine is killed ------------------------------------------------------------------------------


@needs("restart")
def test_what_runs_is_found_again(stand: Stand) -> None:
    uid = stand.running()
    stand.kill_engine()
    stand.until(lambda: stand.runs(uid))
    assert stand.alive(uid) == stand.began(uid) == 1
    assert (stand.task(uid).attempt, stand.task(uid).gpus) == (1, (0,))
    stand.evict(uid, grace=0.0)
    stand.until(lambda: not stand.holds(uid) and not stand.alive(uid))


@needs("restart", "exit")
def test_what_ended_meanwhile_is_known(stand: Stand) -> None:
    uid = stand.running(Work(seconds=0.5, exit=5))
    stand.kill_engine()
    stand.until(lambda: stand.result(uid) is not None)
    assert stand.result(uid) == ("failed", 5)


@needs("restart")
def test_an_eviction_outlives_the_engine(stand: Stand) -> None:
    uid = stand.running(Work(stubborn=True, grace=1.0))
    stand.evict(uid, grace=1.0)
    stand.kill_engine()
    stand.until(lambda: not stand.holds(uid) or (stand.evict(uid, grace=0.0) and False))
    assert not stand.alive(uid) and stand.began(uid) == 1


@needs("restart")
def test_a_command_from_before_is_void_afterwards(stand: Stand) -> None:
    uid = stand.submit()
    early = stand.token()
    stand.start(uid)
    stand.until(lambda: stand.began(uid))
    stand.kill_engine()
    with suppress(Deposed):
        stand.evict(uid, grace=0.0, token=early)
    stand.wait(1.0)
    stand.until(lambda: stand.phase(uid) == "running", "it runs: a kubelet may say so ten seconds later")
    assert stand.began(uid) == stand.alive(uid) == 1


# ---- a budget ------------------------------------------------------------------------------------------

PROBE = (
    OPENED
    + """
import json
got = 0
while cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(32 << 20)) == 0:
    got += 32
print(json.dumps({"gpus": count.value, "total": total.value >> 20, "got": got}), flush=True)
"""
)
"""What a program sees, and how much it gets until it is refused (MiB)."""


def probe(stand: Stand, *, env: dict[str, str] | None = None, limit: float = 0.5) -> dict[str, int]:
    uid = stand.submit(Work(script=f"{sys.executable} -c '{PROBE}'", env=env), share=0.25, limit=limit)
    assert stand.start(uid, stand.place(1, share=0.25)) == Accepted()
    stand.until(lambda: stand.result(uid) is not None)
    assert stand.result(uid)[0] == "done", stand.output(uid)
    return json.loads(stand.output(uid).splitlines()[-1])


@needs("budget")
def test_a_program_is_refused_at_its_limit(stand: Stand) -> None:
    memory = stand.nodes()[0].node.memory // MIB
    found = probe(stand)
    assert (found["gpus"], found["total"]) == (1, memory // 2)
    assert memory // 4 < found["got"] <= memory // 2, "above its request, and not above its limit"


@needs("budget")
def test_its_environment_raises_no_limit(stand: Stand) -> None:
    hostile = {"GPUSHARE_LIMIT": "max", "GPUSHARE_REQUEST": "max", "GPUSHARE_MODE": "off", "GPUSHARE_JOB": "feed"}
    hostile |= {"CUDA_VISIBLE_DEVICES": "0,1", "GPUSHARE_SOCKET": "/nowhere/api.sock", "GPUSHARE_PROFILE": "none"}
    hostile |= {"GPUSHARE_REQUIRE_DAEMON": "0", "RUNAI_GPU_MEMORY_LIMIT": "1.0", "LD_PRELOAD": ""}
    memory = stand.nodes()[0].node.memory // MIB
    found = probe(stand, env=hostile)
    assert (found["gpus"], found["total"]) == (1, memory // 2) and found["got"] <= memory // 2


# ---- the allocator and its jobs ------------------------------------------------------------------------


def test_a_job_goes_from_its_submission_to_its_end(stand: Stand) -> None:
    uid = stand.submit(SHORT)
    stand.go(lambda: stand.over(uid))
    assert stand.result(uid)[0] == "done" and stand.began(uid) == 1


def test_jobs_that_have_no_room_wait_and_are_told_why(stand: Stand) -> None:
    running = stand.fill()
    uid = stand.submit(SHORT)
    stand.go(lambda: stand.why(uid))
    assert not stand.holds(uid) and stand.view(uid).state == "pending"
    stand.cancel(running[0])
    stand.go(lambda: stand.over(uid))
    assert stand.result(uid)[0] == "done"


def test_a_held_job_waits_for_its_release(stand: Stand) -> None:
    uid = stand.submit(SHORT, held=True)
    stand.rounds(4)
    assert not stand.holds(uid) and not stand.began(uid)
    stand.release(uid)
    stand.go(lambda: stand.over(uid))
    assert stand.began(uid) == 1


def cancelled(stand: Stand, uid: str) -> None:
    stand.cancel(uid)
    stand.go(lambda: stand.over(uid))
    assert stand.result(uid)[0] == "cancelled" and not stand.alive(uid)


def test_cancelled_while_it_waits(stand: Stand) -> None:
    uid = stand.submit(held=True)
    stand.rounds(2)
    cancelled(stand, uid)
    assert not stand.began(uid)


def test_cancelled_before_the_allocator_has_seen_it(stand: Stand) -> None:
    uid = stand.submit()
    cancelled(stand, uid)
    assert not stand.began(uid)


def test_cancelled_while_it_starts(stand: Stand) -> None:
    uid = stand.submit()
    stand.go(lambda: stand.holds(uid))
    cancelled(stand, uid)
    assert stand.began(uid) <= 1


def test_cancelled_while_it_runs(stand: Stand) -> None:
    uid = stand.submit()
    stand.go(lambda: stand.runs(uid, 1))
    cancelled(stand, uid)


def test_cancelled_while_it_is_being_evicted(stand: Stand) -> None:
    uids = stand.fill(work=Work(stubborn=True, grace=2.0))
    owner = stand.submit(queue="b")
    evicted = stand.go(lambda: [uid for uid in uids if stand.phase(uid) == "stopping"] or stopped(stand, uids))[0]
    cancelled(stand, evicted)
    assert stand.began(evicted) == 1
    stand.go(lambda: stand.runs(owner))


def stopped(stand: Stand, uids: list[str]) -> list[str]:
    """Those that are to stop, whether the engine shows it yet or not."""
    return [uid for uid in uids if any(uid == leaving for leaving, _ in stand.store.allocator.leaving)]


def test_cancelled_after_its_end_changes_nothing(stand: Stand) -> None:
    uid = stand.submit(SHORT)
    stand.go(lambda: stand.over(uid))
    with suppress(UsageError, NoSuchJob):
        stand.cancel(uid)
    stand.rounds(2)
    assert stand.result(uid)[0] == "done"


def test_an_array_of_a_thousand(stand: Stand) -> None:
    uids = stand.submit_array(1000)
    assert len(set(uids)) == 1000
    stand.go(lambda: sum(stand.began(uid) for uid in uids) >= stand.total)
    seen = {one.job.id for one in stand.look().jobs if any(task.holds for task in one.tasks)}
    assert len(seen) == stand.total and len(stand.store.allocator.jobs) == 1000
    stand.cancel_each(uids)
    stand.go(
        lambda: not stand.store.allocator.jobs and not any(t.holds for one in stand.look().jobs for t in one.tasks)
    )
    assert sum(stand.began(uid) for uid in uids) == stand.total and not any(stand.alive(uid) for uid in seen)


def test_each_of_an_array_runs_once(stand: Stand) -> None:
    uids = stand.submit_array(8, SHORT)
    stand.go(lambda: all(stand.over(uid) for uid in uids))
    assert [stand.began(uid) for uid in uids] == [1] * 8
    assert {stand.result(uid)[0] for uid in uids} == {"done"}


def test_a_gang_runs_together_and_is_over_together(stand: Stand) -> None:
    uid = stand.submit(Work(seconds=0.5), tasks=2)
    stand.go(lambda: stand.over(uid))
    assert (stand.result(uid)[0], stand.began(uid)) == ("done", 2)


def test_the_owner_gets_its_gpu_back_and_the_borrower_waits_again(stand: Stand) -> None:
    uids = stand.fill("a")
    owner = stand.submit(queue="b")
    stand.go(lambda: stand.runs(owner))
    (evicted,) = [uid for uid in uids if stand.view(uid).state == "pending"]
    assert stand.began(owner) == 1 and stand.began(evicted) == 1 and not stand.alive(evicted)
    assert stand.evictions(evicted) == 1 and sum(stand.evictions(uid) for uid in uids) == 1
    stand.go(lambda: stand.why(evicted))
    stand.cancel(owner)
    stand.go(lambda: stand.runs(evicted, 2))
    assert stand.view(evicted).attempt == 2


def test_a_quota_that_is_lowered_lets_others_in(stand: Stand) -> None:
    stand.fill("a")
    waits = stand.submit(queue="b")
    stand.store.append([QueueChanged(Queue("b", quota=0))], stand.clock())
    stand.rounds(3)
    counts = Counter(view.job.queue for view in stand.store.allocator.jobs.values() if view.places)
    assert counts["b"] <= 1
    stand.store.append([QueueChanged(Queue("a", quota=0)), QueueChanged(Queue("b", quota=10**6))], stand.clock())
    stand.loop.active.update(stand.store.allocator.jobs)
    stand.go(lambda: stand.runs(waits))
    assert stand.began(waits) == 1


def test_a_job_that_never_starts_is_tried_three_times_and_held_with_the_reason(stand: Stand) -> None:
    uid = stand.submit(Work(broken=True))
    attempts = set()

    def held() -> bool:
        view = stand.view(uid)
        attempts.add(0 if view is None else view.attempt)
        return view is not None and view.held

    stand.go(held)
    assert stand.view(uid).failures == 3 and max(attempts) == 3 and not stand.began(uid)
    stand.go(lambda: stand.why(uid))
    other = stand.submit(SHORT)
    stand.go(lambda: stand.over(other))


def refusing(stand: Stand, first: str, times: int = 10**9) -> Counter[str]:
    """From now on starts of the first node named are refused, so often, and the node is to blame."""
    told: Counter[str] = Counter()

    def call(name: str, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if name == "start":
            (node, *_) = {place.node for place in arguments[0].places}
            told[node] += 1
            if node == first and told[first] <= times:
                return Refused("it does not want to", first)
        return make(*arguments)

    stand.between(call)
    return told


def test_a_node_that_refuses_rests_and_is_tried_again(stand: Stand) -> None:
    told = refusing(stand, stand.node, 1)
    uids = [stand.submit() for _ in range(stand.total)]
    stand.go(lambda: all(stand.runs(uid) for uid in uids))
    assert told[stand.node] >= 2 and [stand.began(uid) for uid in uids] == [1] * stand.total


@needs("nodes")
def test_a_job_starts_elsewhere_when_a_node_refuses_it(stand: Stand) -> None:
    refusing(stand, stand.node)
    uid = stand.submit()
    stand.go(lambda: stand.runs(uid))
    assert stand.task(uid).node != stand.node


def test_nothing_starts_on_a_cordoned_node_and_what_runs_stays(stand: Stand) -> None:
    uid = stand.submit(share=0.5)
    stand.go(lambda: stand.runs(uid))
    for one in stand.nodes():
        stand.cordon(one.node.name)
    stand.rounds(2)
    waits = stand.submit(share=0.5)
    stand.rounds(4)
    assert stand.phase(uid) == "running" and not stand.holds(waits)
    for one in stand.nodes():
        stand.uncordon(one.node.name)
    stand.go(lambda: stand.runs(waits))
    assert stand.began(uid) == 1


def test_a_drained_node_is_left(stand: Stand) -> None:
    uid = stand.submit()
    stand.go(lambda: stand.runs(uid))
    node = stand.task(uid).node
    for one in stand.nodes():
        stand.cordon(one.node.name, draining=one.node.name == node)
    stand.go(lambda: not stand.holds(uid) and stand.view(uid).state == "pending")
    assert not stand.alive(uid)
    for one in stand.nodes():
        stand.uncordon(one.node.name)
    stand.go(lambda: stand.runs(uid, 2))


@needs("foreign")
def test_nothing_starts_in_the_place_of_a_foreign_program(stand: Stand) -> None:
    amount = stand.nodes()[0].node.memory // 2
    for one in stand.nodes():
        for gpu in range(one.node.gpus):
            stand.foreign(one.node.name, gpu, amount)
    stand.until(lambda: all(len(one.foreign) == one.node.gpus for one in stand.nodes()))
    stand.rounds(2)
    uid = stand.submit()
    small = stand.submit(share=0.25)
    stand.go(lambda: stand.runs(small))
    assert not stand.holds(uid)
    free = 1 - stand.task(small).gpus[0]
    stand.foreign(stand.node, free, 0)
    stand.go(lambda: stand.runs(uid))
    assert (stand.task(uid).node, stand.task(uid).gpus) == (stand.node, (free,))


# ---- the allocator goes wrong --------------------------------------------------------------------------


def test_a_gang_of_which_half_was_started_is_stopped_and_started_whole(stand: Stand) -> None:
    halves = 1

    def call(name: str, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        nonlocal halves
        if name == "start" and halves and len(arguments[0].places) == 2:
            halves -= 1
            half: Start = arguments[0]._replace(places=arguments[0].places[:1])
            make(half, arguments[1])
            return Refused("the other half was refused", half.places[0].node)
        return make(*arguments)

    stand.between(call)
    uid = stand.submit(tasks=2)
    stand.go(lambda: stand.phase(uid) == "running" and len(stand.tasks(uid)) == 2 and stand.alive(uid) == 2)
    assert halves == 0 and len({task.attempt for task in stand.tasks(uid)}) == 1


@pytest.mark.parametrize("how", ["lost", "unheard", "doubled"])
def test_commands_go_astray_and_jobs_run_once(stand: Stand, how: str) -> None:
    """Lost before they arrive; done, and the answer is lost; done twice."""
    turn = 0

    def call(name: str, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        nonlocal turn
        if name not in COMMANDS:
            return make(*arguments)
        turn += 1
        if how == "lost" and turn % 2:
            raise Unanswered("it was lost")
        answer: Answer = make(*arguments)
        if how == "unheard" and turn % 2:
            raise Unanswered("the answer was lost")
        if how == "doubled":
            make(*arguments)
        return answer

    stand.between(call)
    uids = [stand.submit(SHORT) for _ in range(3)]
    stand.go(lambda: all(stand.over(uid) for uid in uids))
    assert [stand.began(uid) for uid in uids] == [1, 1, 1]


def test_what_is_late_by_an_attempt_is_void(stand: Stand) -> None:
    """All commands come again, in reverse, when everything is over."""
    told: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def call(name: str, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if name in COMMANDS:
            told.append((make, arguments))
        return make(*arguments)

    stand.between(call)
    uids = stand.fill("a")
    owner = stand.submit(queue="b")
    stand.go(lambda: stand.runs(owner))
    began = [stand.began(uid) for uid in (*uids, owner)]
    where = {uid: [task.where for task in stand.tasks(uid)] for uid in (*uids, owner)}
    assert any(isinstance(arguments[0], Evict) for _, arguments in told)
    for make, arguments in reversed(told):
        with suppress(Deposed, Unanswered):
            make(*arguments)
    stand.wait(1.0)
    assert [stand.began(uid) for uid in (*uids, owner)] == began
    assert {uid: [task.where for task in stand.tasks(uid)] for uid in where} == where


def test_the_allocator_is_killed_at_every_point_and_each_job_runs_once(stand: Stand) -> None:
    """Before and after each thing that a round does: a later point for each new job, until no round has so many."""
    left = 0

    def call(name: str, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed("before")
        answer = make(*arguments)
        left -= 1
        if left == 0:
            raise Killed("after")
        return answer

    uids: dict[str, int] = {}
    killed = 0
    for point in range(1, 25):
        tasks = 2 if point % 6 == 0 else 1
        uids[stand.submit(SHORT, tasks=tasks)] = tasks
        stand.between(call)
        left = point
        stand.round()
        killed += left == 0
        left = 0
        stand.wait(stand.step)
    assert killed >= 10, "points of a round"
    stand.go(lambda: all(stand.over(uid) for uid in uids))
    assert {uid: stand.began(uid) for uid in uids} == uids
    assert {stand.result(uid)[0] for uid in uids} == {"done"}


def test_jobs_go_on_while_no_allocator_is_there(stand: Stand) -> None:
    runs, ends = stand.submit(), stand.submit(Work(seconds=3.0))
    stand.go(lambda: stand.runs(runs) and stand.runs(ends))
    stand.revive()
    stand.until(lambda: not stand.holds(ends))
    stand.go(lambda: stand.over(ends) and stand.phase(runs) == "running")
    assert (stand.began(runs), stand.began(ends), stand.result(ends)[0]) == (1, 1, "done")


def test_two_allocators_at_once_and_one_acts(stand: Stand) -> None:
    uid = stand.submit()
    stand.round()
    assert stand.rival() is False
    stand.go(lambda: stand.runs(uid))
    assert stand.rival() is False
    assert stand.began(uid) == 1 and stand.task(uid).attempt == 1


@needs("forgotten")
def test_an_allocator_without_records_takes_over_what_runs(stand: Stand) -> None:
    uid, waits = stand.submit(), stand.submit(held=True)
    stand.go(lambda: stand.runs(uid))
    where = stand.task(uid).where
    stand.forget()
    stand.go(lambda: stand.view(uid) is not None and stand.view(uid).state == "running")
    assert stand.task(uid).where == where and stand.began(uid) == 1
    assert stand.view(waits).held
    other = stand.submit(SHORT)
    stand.go(lambda: stand.over(other))


@pytest.mark.parametrize("seconds", [86400.0, -86400.0], ids=["forward", "back"])
def test_the_clock_jumps_and_jobs_go_on(stand: Stand, seconds: float) -> None:
    runs, waits = stand.submit(), stand.submit(held=True)
    stand.go(lambda: stand.runs(runs))
    stand.shift += seconds
    stand.rounds(3)
    stand.release(waits)
    stand.go(lambda: stand.runs(waits))
    assert stand.phase(runs) == "running"
    stand.cancel(runs)
    stand.go(lambda: stand.over(runs))
    assert (stand.began(runs), stand.began(waits)) == (1, 1)


def test_an_engine_that_cannot_be_seen_is_told_nothing(stand: Stand) -> None:
    blind = False
    told = 0

    def call(name: str, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        nonlocal told
        if blind and name in ("snapshot", "glance"):
            raise Unanswered("it cannot be seen")
        told += blind and name in COMMANDS
        return make(*arguments)

    stand.between(call)
    runs = stand.submit()
    stand.go(lambda: stand.runs(runs))
    blind = True
    waits = stand.submit()
    stand.rounds(4)
    assert not told and stand.phase(runs) == "running"
    blind = False
    stand.go(lambda: stand.runs(waits))
    assert (stand.began(runs), stand.began(waits)) == (1, 1)


@needs("nodes")
def test_a_silent_node_keeps_its_jobs_and_gets_none(stand: Stand) -> None:
    uid = stand.submit()
    stand.go(lambda: stand.runs(uid))
    node = stand.task(uid).node
    stand.silence(node)
    stand.go(lambda: stand.store.allocator.nodes[node].unknown)
    others = [stand.submit() for _ in range(stand.total)]
    stand.go(lambda: sum(stand.phase(one) == "running" for one in others) == stand.total - 2)
    stand.rounds(5)
    assert all(task.node != node for one in others for task in stand.tasks(one)) and stand.began(uid) == 1
    stand.bring_back(node)
    stand.go(lambda: sum(stand.phase(one) == "running" for one in others) == stand.total - 1)
    assert stand.runs(uid, 1)


@needs("nodes")
def test_jobs_of_a_lost_node_run_elsewhere(stand: Stand) -> None:
    uid = stand.submit()
    stand.go(lambda: stand.runs(uid))
    node = stand.task(uid).node
    stand.lose(node)
    stand.go(lambda: stand.phase(uid) == "running" and stand.task(uid).node != node)
    assert (stand.began(uid), stand.alive(uid), stand.view(uid).attempt) == (2, 1, 2)
    stand.bring_back(node)
    stand.go(lambda: stand.store.allocator.nodes[node].alive)


@needs("takeover")
def test_another_takes_over_when_the_leader_falls_silent(stand: Stand) -> None:
    uid = stand.submit()
    stand.go(lambda: stand.runs(uid))
    term, number = stand.engine.lead("one", 15.0), 1000
    stand.until(lambda: stand.engine.lead("two", 15.0) is not None)
    with pytest.raises(Deposed):
        stand.evict(uid, token=(term, number))
    assert stand.runs(uid, 1)


# ---- what was proved -----------------------------------------------------------------------------------


def test_the_page_says_which_engine_can_do_what() -> None:
    rows = (ROOT / "docs" / "service.md").read_text().split("## What engines can do")[1].split("\n## ")[0].splitlines()
    for ability, words in ABILITIES.items():
        able = ", ".join(f"`{name}`" for name in ENGINES if ability not in cannot(name))
        assert f"| {words} | {able or 'none'} |" in rows


def test_what_an_engine_cannot_do_is_known_and_has_a_reason(record_property) -> None:
    """It comes last: what each engine has shown goes to the end of the report."""
    for name in ENGINES:
        assert set(cannot(name)) <= set(ABILITIES) and all(cannot(name).values())
    asked = {one for test in globals().values() for one in getattr(test, "needs", ())}
    assert asked == set(ABILITIES), "each ability has a behaviour"
    for name, found in PROVED.items():
        if found:
            left_out = "; ".join(f"{one}: {why}" for one, why in STANDS[name].cannot.items())
            words = f"{name}: {sum(found.values())} behaviours" + (f"; not asked: {left_out}" if left_out else "")
            words += f"; {STANDS[name].about}" if STANDS[name].about else ""
            record_property("conformance", words)
