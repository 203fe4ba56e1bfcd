"""Who takes whose seat: each task of a job has one pod at a time, whatever comes, goes, and is read first."""

from __future__ import annotations

from dataclasses import replace
from itertools import count, permutations

import pytest

from gpushare.cluster.engines.kubernetes import mark as marks
from gpushare.cluster.engines.kubernetes.groups import NONE, Group, line_of
from gpushare.cluster.engines.kubernetes.groups import read as group_of
from gpushare.cluster.engines.kubernetes.mark import Mark
from gpushare.cluster.engines.kubernetes.names import GROUP as GROUP_LABEL
from gpushare.cluster.engines.kubernetes.names import SIZE
from gpushare.cluster.engines.kubernetes.seats import KEPT_FREE, Seat, Seats, Sitter
from gpushare.errors import UsageError

SET = ("owner", "a-replica-set")
GROUP = ("group", "lab", "train")
numbers = count()


def pod(uid, line=SET, *, job="", size=1, leaves=False, over=False, task=0):
    created = float(next(numbers))
    group = Group(line, size, size)
    return Sitter(uid, group, created, uid, Mark(job=job, task=task), leaves=leaves, over=over)


def jobs(seats):
    return {uid: (seat.job, seat.task) for uid, seat in seats.taken.items()}


@pytest.fixture
def seats():
    return Seats()


def test_pods_of_one_owner_are_jobs_of_their_own(seats):
    seats.look([pod("a"), pod("b")], 0.0)
    assert jobs(seats) == {"a": ("a", 0), "b": ("b", 0)}


@pytest.mark.parametrize("goes", ["a", "b"])
def test_the_next_pod_of_the_owner_takes_the_seat_of_the_one_that_is_gone(seats, goes):
    both = {"a": pod("a"), "b": pod("b")}
    seats.look(both.values(), 0.0)
    del both[goes]
    seats.look(both.values(), 1.0)
    assert [(seat.job, seat.task) for seat in seats.free] == [(goes, 0)]
    seats.look([*both.values(), pod("c")], 2.0)
    assert jobs(seats)["c"] == (goes, 0) and seats.free == []


def test_a_seat_is_kept_free_for_a_while_and_for_pods_of_the_same_owner(seats):
    first = pod("a")
    seats.look([first], 0.0)
    seats.look([], 1.0)
    other = pod("b", ("owner", "another"))
    seats.look([other], 2.0)
    assert jobs(seats) == {"b": ("b", 0)}
    seats.look([other], 1.0 + KEPT_FREE - 0.1)
    assert [seat.job for seat in seats.free] == ["a"]
    seats.look([other, pod("c")], 1.0 + KEPT_FREE)
    assert jobs(seats)["c"] == ("c", 0), "too late"


def test_a_pod_that_is_being_deleted_leaves_its_seat_once(seats):
    stays, leaves = pod("a"), pod("b")
    seats.look([stays, leaves], 0.0)
    leaves = pod("b", leaves=True)
    seats.look([stays, leaves], 1.0)
    takes = pod("c")
    seats.look([stays, leaves, takes], 2.0)
    seats.look([stays, takes], 3.0)
    seats.look([stays, takes, pod("d")], 4.0)
    assert jobs(seats) == {"a": ("a", 0), "c": ("b", 0), "d": ("d", 0)}


@pytest.mark.parametrize("order", [*permutations("acd")])
def test_a_service_that_starts_again_gives_no_seat_to_two_pods(seats, order):
    """`a` is being deleted, `c` has been given its seat and is marked so, `d` is new."""
    pods = {"a": pod("a", job="a", leaves=True), "c": pod("c", job="a"), "d": pod("d")}
    seats.look([pods[uid] for uid in order], 0.0)
    assert (jobs(seats)["c"], jobs(seats)["d"]) == (("a", 0), ("d", 0))
    assert seats.free == []


@pytest.mark.parametrize("marked", [1, 2, 3])
def test_a_service_that_starts_again_completes_a_group_of_which_some_pods_have_marks(seats, marked):
    """The others were not marked when the earlier one was killed, or came instead of evicted ones: none waits for
    others."""
    pods = [pod(f"p{task}", GROUP, job="p0", size=3, task=task) for task in range(marked)]
    pods += [pod(f"p{task}", GROUP, size=3) for task in range(marked, 3)]
    seats.look(reversed(pods), 0.0)
    assert jobs(seats) == {"p0": ("p0", 0), "p1": ("p0", 1), "p2": ("p0", 2)}
    assert seats.free == [] and seats.short == {}
    assert [seat.attempt for seat in seats.taken.values()] == [0, 0, 0]


def test_a_seat_of_a_group_that_was_begun_earlier_is_free_for_a_while(seats):
    first = pod("p0", GROUP, job="p0", size=2)
    seats.look([first], 0.0)
    assert [(seat.job, seat.task) for seat in seats.free] == [("p0", 1)]
    seats.look([first], KEPT_FREE)
    assert seats.free == []
    seats.look([first, pod("late", GROUP, size=2)], KEPT_FREE + 1)
    assert seats.short == {"late": (1, 2)}


def test_a_mark_that_comes_later_takes_the_seat_that_was_free(seats):
    seats.look([pod("a", job="a")], 0.0)
    seats.look([], 1.0)
    seats.look([pod("c", job="a")], 2.0)
    assert seats.free == []
    seats.look([pod("c", job="a"), pod("d")], 3.0)
    assert jobs(seats) == {"c": ("a", 0), "d": ("d", 0)}


def test_a_group_is_one_job_and_its_next_pod_takes_the_task_that_is_free(seats):
    pods = [pod(uid, GROUP, size=3) for uid in "abc"]
    seats.look(pods[:2], 0.0)
    assert jobs(seats) == {} and seats.short == {"a": (2, 3), "b": (2, 3)}
    seats.look(pods, 1.0)
    assert jobs(seats) == {"a": ("a", 0), "b": ("a", 1), "c": ("a", 2)} and seats.short == {}
    seats.look([pods[0], pods[2]], 2.0)
    seats.look([pods[0], pods[2], pod("d", GROUP, size=3)], 3.0)
    assert jobs(seats) == {"a": ("a", 0), "c": ("a", 2), "d": ("a", 1)}


def test_a_group_of_one_pod_is_complete(seats):
    seats.look([pod("a", GROUP)], 0.0)
    assert jobs(seats) == {"a": ("a", 0)}


def test_a_new_pod_begins_at_nothing_and_its_evictions_go_with_the_seat(seats):
    first = pod("a")
    seats.look([first], 0.0)
    assert seats.taken["a"] == Seat("a", 0, 1, attempt=0, evictions=0, since=first.created, token=(0, 0))
    seats.evicted("a", (2, 7))
    seats.look([], 1.0)
    seats.look([pod("b")], 2.0)
    assert seats.taken["b"] == Seat("a", 0, 1, evictions=1, since=first.created, token=(2, 7), stopped=True)


def test_a_mark_says_since_when_the_job_waits_or_it_is_since_its_pod_is_there(seats):
    first, other = pod("a", job="j"), pod("b", job="k")
    seats.look([first, replace(other, mark=Mark(job="k", since=3.5))], 0.0)
    assert (seats.taken["a"].since, seats.taken["b"].since) == (first.created, 3.5)


def test_what_a_mark_leaves_out_means_nothing_to_every_version():
    """The pod keeps it while the service is replaced by a later one."""
    text = '{"job": "j", "attempt": 2, "node": "n1", "gpus": [0, 1], "amount": 1024, "token": [3, 9]}'
    mark = marks.read(text)
    assert mark == Mark("j", 0, 2, "n1", (0, 1), 1024, (3, 9), 0, False, "", False, 0, 0.0)
    assert mark.text() == text


@pytest.mark.parametrize("how", [{"leaves": True}, {"over": True}, {"leaves": True, "over": True}])
def test_a_pod_that_ends_before_it_is_known_gets_no_seat(seats, how):
    seats.look([pod("a", **how)], 0.0)
    assert jobs(seats) == {} and seats.free == []


def test_the_seat_of_a_program_that_has_ended_is_nobody_elses(seats):
    seats.look([pod("a")], 0.0)
    seats.look([pod("a", leaves=True, over=True), pod("b")], 1.0)
    assert jobs(seats) == {"a": ("a", 0), "b": ("b", 0)}


def test_nobody_takes_the_seat_of_a_pod_without_an_owner(seats):
    seats.look([pod("a", None)], 0.0)
    seats.look([], 1.0)
    assert seats.free == []
    seats.look([pod("b", None)], 2.0)
    assert jobs(seats) == {"b": ("b", 0)}


def test_two_pods_that_leave_one_seat_leave_it_to_one(seats):
    seats.look([pod("a", job="a", leaves=True), pod("c", job="a", leaves=True)], 0.0)
    seats.look([pod("d"), pod("e")], 1.0)
    assert jobs(seats) == {"d": ("a", 0), "e": ("e", 0)}


# ---- what a pod says ---------------------------------------------------------------------------------


def said(labels=(), annotations=(), owners=()):
    meta = {"namespace": "lab", "labels": dict(labels), "annotations": dict(annotations), "ownerReferences": owners}
    return {"metadata": meta}


def test_pods_of_a_group_or_of_one_controller_take_each_others_seats():
    owners = [{"uid": "1"}, {"uid": "2", "controller": True}]
    assert line_of(said(owners=owners), NONE) == ("owner", "lab", "2"), (
        "a user may write any uid: it is one of the namespace"
    )
    assert line_of(said({GROUP_LABEL: "train"}, owners=owners), NONE) == ("group", "lab", "train")
    assert line_of(said(owners=owners[:1]), NONE) is None and line_of({"metadata": {"namespace": "lab"}}, NONE) is None


@pytest.mark.parametrize(("size", "read"), [("1", 1), ("10000", 10_000)])
def test_a_group_says_how_many_pods_start_together(size, read):
    assert group_of(said({GROUP_LABEL: "train"}, {SIZE: size}), NONE).size == read
    assert group_of(said((), {SIZE: size}), NONE).size == 1, "it is in no group"


@pytest.mark.parametrize("size", ["", "0", "-1", "2.5", "two", "10001"])
def test_a_group_without_a_size_that_makes_sense_is_refused(size):
    with pytest.raises(UsageError, match="it is in a pod group, and its annotation"):
        group_of(said({GROUP_LABEL: "train"}, {SIZE: size}), NONE)
