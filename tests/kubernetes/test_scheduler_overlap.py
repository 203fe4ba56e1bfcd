"""Starts of different jobs overlap, and keep what each promises."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from kube_cluster import CLAIMS, PODS, KubeCluster
from scheduler_stage import GIB, Ruled, Scheduler

from gpushare.cluster.engines.kubernetes.api import AT_ONCE
from gpushare.cluster.engines.kubernetes.stepwise import Stepwise
from gpushare.cluster.engines.seam import Accepted, Deposed, Gone, Refused, Start
from gpushare.cluster.model import Place

MANY = 3 * AT_ONCE
WITHIN = 20.0


@pytest.fixture
def large(tmp_path):
    """A cluster with room for all."""
    made = KubeCluster(tmp_path, nodes=("n1", "n2", "n3"), gpus=8)
    yield made
    made.close()
    assert not made.unread


@pytest.fixture
def scheduler(large):
    made = Scheduler(large)
    yield made
    made.close()


def submitted(cluster, count: int = MANY) -> list[str]:
    return [cluster.submit(f"p{number}", memory="80Gi", queue="a") for number in range(count)]


def commands(scheduler, uids):
    """Each on a GPU of its own."""
    places = [(node, gpu) for node in scheduler.cluster.gpus for gpu in range(8)]
    scheduler.settle()
    scheduler.engine.snapshot()
    for uid, (node, gpu) in zip(uids, places, strict=False):
        yield Start(uid, 1, (Place(0, 0, node, (gpu,), 80 * GIB, 0),), 0), scheduler.token()


def bound(cluster) -> Counter[str]:
    """How often each pod was bound."""
    asked = [path.removesuffix("/binding") for method, path in cluster.api.requests if path.endswith("/binding")]
    assert {path for path, pod in cluster.pods() if pod["spec"].get("nodeName")} <= set(asked)
    return Counter(path.removeprefix(f"{PODS}/") for path in asked)


def taken(cluster) -> list[tuple[str, str]]:
    """GPUs that claims have."""
    claims = [one for path, one in cluster.api.objects.items() if "/resourceclaims/" in path]
    return [
        (one["pool"], one["device"])
        for claim in claims
        for one in ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", ())
    ]


def test_as_many_as_there_are_threads_write_at_once(large, scheduler, monkeypatch):
    """The first request of each waits until all of the others have begun."""
    together, ask = threading.Barrier(AT_ONCE, timeout=WITHIN), scheduler.api.server.ask
    uids, first = submitted(large, AT_ONCE), set()

    def asks(method, path, *more):
        if method == "PATCH" and path.startswith(CLAIMS) and path not in first:
            first.add(path)
            together.wait()
        return ask(method, path, *more)

    scheduler.token()
    monkeypatch.setattr(scheduler.api.server, "ask", asks)
    answers = dict(scheduler.engine.start_all(commands(scheduler, uids)))
    assert list(answers.values()) == [Accepted()] * AT_ONCE
    assert bound(large) == Counter({f"p{number}": 1 for number in range(AT_ONCE)})


def test_between_two_changes_of_a_claim_those_of_others_have_their_turn(large, scheduler, monkeypatch):
    """Else the API server has not seen the first in its own cache when it is asked for the second, and works twice."""
    uids, ask = submitted(large, 3), scheduler.api.server.ask
    begun, claims = threading.Event(), []

    def drawn():
        yield from commands(scheduler, uids)
        begun.set()

    def asks(method, path, *more):
        if method == "PATCH" and path.startswith(CLAIMS):
            assert begun.wait(WITHIN)
            claims.append(path.removeprefix(f"{CLAIMS}/"))
        return ask(method, path, *more)

    one_thread = Stepwise(1)
    monkeypatch.setattr(scheduler.api, "stepwise", one_thread)
    monkeypatch.setattr(scheduler.api.server, "ask", asks)
    assert [answer for _, answer in scheduler.engine.start_all(drawn())] == [Accepted()] * 3
    one_thread.close()
    names = claims[:3]
    assert len(set(names)) == 3
    assert claims == [*names, *(f"{name}/status" for name in names)]


def is_of_a_start(method: str, path: str) -> bool:
    words_for_users = path.startswith(PODS) and path.endswith("/status")
    return path.endswith("/binding") or (method == "PATCH" and not words_for_users)


@pytest.mark.parametrize("point", [0, 1, 11, 40, 3 * MANY - 1])
def test_killed_at_any_point_the_next_service_goes_on(large, tmp_path, point):
    """After so many writes the API server does not answer any more, and this service is gone."""
    ruled, left = Ruled(large, tmp_path), point
    submitted(large)
    ruled.settle()

    def refuses(method, path, _):
        nonlocal left
        if is_of_a_start(method, path):
            left -= 1
            return (503, {"message": "away"}) if left < 0 else None
        return None

    large.api.refuses = refuses
    ruled.round()
    ruled.engine.close()
    ruled.store.close()
    large.api.refuses = lambda *_: None
    (tmp_path / "other").mkdir()
    other = Ruled(large, tmp_path / "other")
    try:
        other.go(lambda: all(pod["status"]["phase"] == "Running" for _, pod in large.pods()))
    finally:
        other.close()
    assert len(taken(large)) == len(set(taken(large))) == MANY
    assert max(bound(large).values()) <= 2, "a binding that was not answered is asked for once more"


def test_one_that_is_refused_leaves_its_room_to_others(large, scheduler):
    uids = submitted(large)
    large.api.refuses = lambda _, path, __: (403, {"message": "no"}) if path.endswith("/p3/binding") else None
    answers = dict(scheduler.engine.start_all(commands(scheduler, uids)))
    refused = [command for command, answer in answers.items() if isinstance(answer, Refused)]
    assert [command.uid for command in refused] == [uids[3]]
    assert [*answers.values()].count(Accepted()) == MANY - 1
    late = large.submit("late", memory="80Gi")
    place = refused[0].places[0]
    assert scheduler.start(late, place.node, place.gpus[0], 80 * GIB) == Accepted()


def test_two_that_are_given_one_gpu_do_not_both_have_it(large, scheduler):
    uids = submitted(large, 2)
    scheduler.settle()
    scheduler.engine.snapshot()
    same = [(Start(uid, 1, (Place(0, 0, "n1", (0,), 80 * GIB, 0),), 0), scheduler.token()) for uid in uids]
    first, second = [answer for _, answer in scheduler.engine.start_all(same)]
    assert {type(first), type(second)} == {Accepted, Refused}
    assert len(taken(large)) == 1


def test_what_is_gone_is_gone_for_the_others_nothing_changes(large, scheduler):
    uids = submitted(large, 4)
    said = list(commands(scheduler, uids))
    large.cancel("p1")
    answers = {command.uid: answer for command, answer in scheduler.engine.start_all(said)}
    assert [answers[uid] for uid in uids] == [Accepted(), Gone(), Accepted(), Accepted()]


def test_another_leader_ends_all_of_them(large, scheduler):
    """No command is begun after it is known; what was begun is over when that is said."""
    uids = submitted(large)
    said, asked = list(commands(scheduler, uids)), []

    def drawn():
        for number, one in enumerate(said):
            if number == 4:
                scheduler.engine._leadership.newest = one[1][0] + 1
            asked.append(number)
            yield one

    with pytest.raises(Deposed):
        list(scheduler.engine.start_all(drawn()))
    assert asked == [0, 1, 2, 3, 4]
    assert sum(bound(large).values()) == 4 == len(taken(large))


def test_commands_are_drawn_only_while_the_term_lasts(large, tmp_path):
    ruled = Ruled(large, tmp_path)
    submitted(large)
    ruled.settle()
    asked = ruled.loop.clock
    ruled.loop.clock = lambda: asked() + (100.0 if sum(1 for _, pod in large.pods() if marked(pod)) >= 2 else 0.0)
    ruled.loop.step()
    assert 2 <= sum(1 for _, pod in large.pods() if marked(pod)) <= 2 + 2 * AT_ONCE < MANY
    ruled.close()


def marked(pod) -> bool:
    return "gpushare.dev/start" in pod["metadata"]["annotations"]


def test_one_that_the_allocator_refuses_keeps_no_other_from_being_queued(large, tmp_path):
    """What a look shows of many jobs is handed in together."""
    ruled = Ruled(large, tmp_path)
    before = ruled.store.seq
    wrong = large.submit("wrong", queue="nowhere")
    uids = submitted(large, 5)
    ruled.settle()
    ruled.round()
    assert set(ruled.store.allocator.jobs) == set(uids) and wrong in ruled.loop.notes.wrong
    more = [large.submit(f"q{number}", queue="a") for number in range(5)]
    ruled.settle()
    after = ruled.store.seq
    ruled.round()
    assert set(more) <= set(ruled.store.allocator.jobs) and ruled.store.seq - after < 5 < ruled.store.seq - before
    ruled.close()
