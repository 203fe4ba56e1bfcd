"""The API server as the scheduler follows it: lists, watches, what is forgotten, what is away; and who leads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from kube_cluster import PODS, Program
from scheduler_stage import GIB, WITHIN, Scheduler

from gpushare.cluster.engines.kubernetes import cache
from gpushare.cluster.engines.kubernetes.names import QUEUES
from gpushare.cluster.engines.seam import Accepted, Answer, Deposed, Start, Unanswered
from gpushare.cluster.model import Place


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(cache, "MOST", 0.05)


def listed(cluster, path: str = "/api/v1/pods") -> int:
    return sum(one == ("GET", path) for one in cluster.api.requests)


def test_a_collection_is_listed_once_in_pages_and_then_watched(cluster, monkeypatch):
    monkeypatch.setattr(cache, "PAGE", 3)
    uids = [cluster.submit(f"p{number}") for number in range(7)]
    scheduler = Scheduler(cluster)
    try:
        assert {one.job.id for one in scheduler.engine.snapshot().jobs} == set(uids)
        assert listed(cluster) == 3
        uids.append(cluster.submit("later"))
        scheduler.settle()
        cluster.api.remove(f"{PODS}/p0")
        scheduler.settle()
        assert {one.job.id for one in scheduler.engine.snapshot().jobs} == set(uids[1:])
        assert listed(cluster) == 3
    finally:
        scheduler.close()


def test_a_version_that_is_forgotten_is_listed_again(cluster, ruled):
    kept = cluster.submit("kept")
    ruled.settle()
    cluster.api.stop()
    gone = cluster.submit("gone")
    cluster.api.remove(f"{PODS}/gone")
    cluster.api.forget()
    later = cluster.submit("later")
    cluster.api.start()
    ruled.settle()
    seen = {one.job.id for one in ruled.engine.snapshot().jobs}
    assert kept in seen and later in seen and gone not in seen
    assert listed(cluster) >= 2


def test_a_collection_whose_version_is_forgotten_is_not_taken_for_one_that_is_not_served(cluster, ruled, monkeypatch):
    """Queues: while they are listed again, the cluster still keeps them."""
    cluster.api.put(f"{QUEUES}/a", {"metadata": {"name": "a"}, "spec": {}})
    ruled.settle()
    queues = ruled.api.watched[QUEUES]
    seen = []
    own = queues._list

    def slow():
        seen.append((queues.absent, ruled.api.listed_queues()))
        own()

    monkeypatch.setattr(queues, "_list", slow)
    cluster.submit("another")
    cluster.api.forget()
    cluster.api.put(f"{QUEUES}/a", {"metadata": {"name": "a"}, "spec": {"quota": 1}})
    ruled.settle()
    assert seen and not any(absent or listed is None for absent, listed in seen)


def test_watches_that_end_go_on_where_they_were(cluster, ruled):
    before = listed(cluster)
    for number in range(3):
        cluster.api.stop()
        cluster.api.start()
        uid = cluster.submit(f"p{number}")
        ruled.settle()
        assert ruled.job(uid) is not None
    assert listed(cluster) == before, "nothing was forgotten, so nothing is listed again"


def test_nothing_is_lost_while_the_api_server_is_away_for_a_minute(cluster, ruled):
    runs = [cluster.submit(f"runs{number}", Program(requeue=False), memory=None, queue="a") for number in range(4)]
    waits = cluster.submit("waits", memory=None, queue="b")
    ruled.go(lambda: sum(cluster.programs[f"runs{number}"].began for number in range(4)) >= 2)
    began = {name: program.began for name, program in cluster.programs.items()}
    cluster.api.stop()
    with pytest.raises(Unanswered):
        for _ in range(1000):  # it sees that at once, or when it asks who leads
            cluster.now += 1.0
            ruled.engine.lead(ruled.holder, 15.0)
            ruled.engine.snapshot()
    for _ in range(60):
        ruled.round()
    meanwhile = cluster.submit("meanwhile", memory="1Gi", queue="b")
    cluster.api.start()
    ruled.settle()
    ruled.go(lambda: ruled.job(meanwhile) and ruled.job(waits))
    assert {ruled.job(uid).job.id for uid in runs if ruled.job(uid)} <= set(runs)
    ruled.go(lambda: cluster.programs["waits"].began == 1, 500)
    for name, count in began.items():
        assert cluster.programs[name].began >= count
    assert all(program.began <= 1 for program in cluster.programs.values()), "nothing was started twice"


def test_what_was_answered_is_seen_at_once_and_not_undone_by_older_news(cluster, ruled):
    uid = cluster.submit("train", memory=None, queue="a")
    ruled.settle()
    ruled.engine.snapshot()
    assert ruled.start(uid, amount=80 * 2**30)
    (task,) = ruled.job(uid).tasks
    assert task.phase == "starting"
    pods = ruled.api.watched["/api/v1/pods"]
    old = {"metadata": {**cluster.pod("train")["metadata"], "resourceVersion": "1"}, "spec": {"schedulerName": "other"}}
    pods.put(old)
    assert ruled.job(uid).tasks, "an older version counts for nothing"
    gone = {"metadata": {"namespace": "team-a", "name": "old", "uid": "x", "resourceVersion": "1"}, "spec": {}}
    pods.put(gone)
    assert pods.get(("team-a", "old")) is None, "what was deleted meanwhile stays so"


def silence(scheduler: Scheduler, monkeypatch) -> None:
    """Its watch of pods tells nothing more. That of claims does."""
    scheduler.settle()
    monkeypatch.setattr(scheduler.api.watched["/api/v1/pods"], "_note", lambda _: None)
    scheduler.engine.snapshot()


def test_what_was_written_counts_before_a_watch_tells_of_it(cluster, ruled, monkeypatch):
    """Nothing is written twice, and what is being stopped is not taken for what runs."""
    uids = [cluster.submit("train"), cluster.submit("other")]
    silence(ruled, monkeypatch)
    for uid in uids:
        assert begin(ruled, uid) == Accepted()
    before = changes(cluster)
    assert read_again(ruled) == {uids[0]: ["starting"], uids[1]: ["starting"]}
    assert changes(cluster) == before
    assert ruled.evict(uids[0]) == Accepted()
    before = changes(cluster)
    assert read_again(ruled) == {uids[0]: ["stopping"], uids[1]: ["starting"]}
    assert changes(cluster) == before


def test_what_was_written_counts_although_the_next_write_was_not_answered(cluster, ruled, monkeypatch):
    """After the allocation of a start, and after an eviction. The watch is late, so nothing else tells of them."""
    uid = cluster.submit("train")
    silence(ruled, monkeypatch)
    with unanswered(cluster, "/pods/train/binding"), pytest.raises(Unanswered):
        begin(ruled, uid)
    assert read_again(ruled) == {uid: []}
    assert not cluster.claim_of("train")["status"].get("allocation"), "it has undone its own start"
    assert begin(ruled, uid) == Accepted()
    assert read_again(ruled) == {uid: ["starting"]}
    with unanswered(cluster, "/pods/train"), pytest.raises(Unanswered):
        ruled.evict(uid)
    assert read_again(ruled) == {uid: ["stopping"]}


def begin(scheduler: Scheduler, uid: str) -> Answer:
    return scheduler.engine.start(Start(uid, 1, (Place(0, 0, "n1", (0,), 8 * GIB, 0),), 0), scheduler.token())


@contextlib.contextmanager
def unanswered(cluster, path: str) -> Iterator[None]:
    """No change of an object whose path has these words."""
    cluster.api.refuses = lambda method, asked, _: (
        (503, {"message": "away"}) if method != "GET" and path in asked and "eviction" not in asked else None
    )
    yield
    cluster.api.refuses = lambda *_: None


def changes(cluster) -> list[tuple[str, str]]:
    return [one for one in cluster.api.requests if one[0] not in ("GET", "WATCH") and "/leases" not in one[1]]


def touch(claim) -> None:
    claim["metadata"]["labels"] = {"version": claim["metadata"]["resourceVersion"]}


def read_again(scheduler: Scheduler) -> dict[str, list[str]]:
    """Phases of the tasks by job, after a change of all claims."""
    api, claims = scheduler.cluster.api, scheduler.api.watched["/apis/resource.k8s.io/v1/resourceclaims"]
    for path in [path for path in api.objects if "/resourceclaims/" in path]:
        api.change(path, touch)
    deadline = time.monotonic() + WITHIN
    while claims.seen < api.newest(claims.path):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return {one.job.id: [task.phase for task in one.tasks] for one in scheduler.engine.snapshot().jobs}


def test_a_watch_ends_in_time_for_the_lease(cluster):
    scheduler = Scheduler(cluster)
    waited = []
    scheduler.engine._woken = Woken(waited)
    try:
        scheduler.engine.watch(30.0)
        scheduler.engine.watch(1.0)
    finally:
        scheduler.close()
    assert waited == [5.0, 1.0], "half of what the loop asks for is 7.5 s"


class Woken:
    def __init__(self, waited: list[float]) -> None:
        self.wait, self.clear, self.set = waited.append, lambda: None, lambda: None


# ---- who leads -----------------------------------------------------------------------------------------


def test_one_leads_and_another_takes_over_when_it_falls_silent_or_says_so(cluster):
    first, second = Scheduler(cluster), Scheduler(cluster)
    try:
        assert first.engine.lead("one", 10.0) == 1 and second.engine.lead("two", 10.0) is None
        cluster.now += 8.0
        assert first.engine.lead("one", 10.0) == 1 and second.engine.lead("two", 10.0) is None
        cluster.now += 14.0
        assert second.engine.lead("two", 10.0) is None, "it has seen the lease change 14 s ago, and that lasts 15"
        cluster.now += 2.0
        assert second.engine.lead("two", 10.0) == 2
        assert first.engine.lead("one", 10.0) is None
        with pytest.raises(Deposed):
            first.start("nobody", token=(1, 5))
        second.engine.close()
        assert first.engine.lead("one", 10.0) == 3, "at once"
    finally:
        first.close()


def test_a_restarted_service_leads_at_once_in_a_new_term(cluster):
    first = Scheduler(cluster)
    assert first.engine.lead("one", 10.0) == 1
    second = Scheduler(cluster)
    try:
        assert second.engine.lead("one", 10.0) == 2
        assert first.engine.lead("one", 10.0) == 1, "it has asked a moment ago"
        cluster.now += 6.0
        assert first.engine.lead("one", 10.0) == 3, "one of the two has the cluster's file, and is alone"
    finally:
        first.close()
        second.close()


def test_a_lease_that_is_changed_at_the_same_moment_is_the_others(cluster):
    scheduler = Scheduler(cluster)
    try:
        assert scheduler.engine.lead("one", 10.0) == 1
        cluster.now += 6.0
        cluster.api.refuses = lambda method, path, _: (409, {"message": "x"}) if method == "PUT" else None
        assert scheduler.engine.lead("one", 10.0) is None
    finally:
        cluster.api.refuses = lambda *_: None
        scheduler.close()


def test_the_term_is_above_that_of_all_marks(cluster):
    first = Scheduler(cluster)
    uid = cluster.submit("train")
    try:
        assert first.start(uid, token=(first.engine.lead("one", 10.0), 1))
    finally:
        first.close()
    (lease,) = [path for path in cluster.api.objects if "/leases/" in path]
    cluster.api.remove(lease)
    second = Scheduler(cluster)
    try:
        second.engine.snapshot()
        assert second.engine.lead("two", 10.0) == 2
    finally:
        second.close()
