"""What a report says."""

from __future__ import annotations

import math

import pytest

from gpushare.errors import GpushareError
from gpushare.report import contents
from reports.recorded import (
    GIB,
    GPUS,
    JOBS,
    NAMED,
    PRESSURE,
    RECORDS,
    RESERVED,
    SERIES,
    SERVER,
    SINCE,
    TRAIN,
    UNTIL,
    WAITING,
    Client,
    job,
    job_report,
    node_report,
    point,
    record,
    series,
)

LATER = UNTIL + 3600


def test_a_node_that_is_shown_as_it_is() -> None:
    report = node_report()
    assert (report["since"], report["until"], report["job"]) == (SINCE, UNTIL, None)
    assert report["state"]["gpus"][0]["health"]["state"] == "sick"
    assert [one["id"] for one in report["state"]["jobs"]] == [TRAIN, SERVER, NAMED]
    assert report["state"]["pressure"] == PRESSURE
    assert report["state"]["reservations"] == RESERVED
    assert len(report["waiting"]) == 2
    assert report["history"]["series"] == SERIES
    assert report["state"]["time"] == UNTIL


def test_who_asked_is_the_user_and_may_change_nothing() -> None:
    about = node_report()["about"]
    assert about["read_only"] and about["key"] == "" and about["host"]


def test_a_node_that_is_shown_as_it_was() -> None:
    """Of the present nothing is left but what GPUs there are."""
    report = node_report(until=UNTIL, now=LATER)
    first, second = report["state"]["gpus"]
    assert (first["usage"], first["requested"], first["lent"]) == (3 * GIB, 4 * GIB, 0)
    assert (second["usage"], second["free"]) == (GIB, 14 * GIB + GIB // 2)
    assert first["unmanaged_processes"] == [] and first["returning"] == 0 and first["health"]["state"] == "ok"
    assert report["waiting"] == report["state"]["pressure"] == report["state"]["reservations"] == []


@pytest.mark.parametrize(("ago", "now"), [(-5.0, True), (0.0, True), (2.0, True), (2.25, False), (60.0, False)])
def test_a_report_that_ended_just_before_it_is_made_shows_the_present(ago: float, now: bool) -> None:
    report = node_report(now=UNTIL + ago)
    assert bool(report["waiting"]) is bool(report["state"]["pressure"]) is now
    assert (report["state"]["gpus"][0]["health"]["state"] == "sick") is now


def test_memory_outside_of_gpushare_is_not_free() -> None:
    found = Client(series=[series("", [point(SINCE, 3, 4, 15.5)]), series("outside", [point(SINCE, 2, 0, 0)])])
    gpu = node_report(found, now=LATER)["state"]["gpus"][0]
    assert (gpu["unmanaged"], gpu["free"]) == (2 * GIB, 10 * GIB + GIB // 2)


def test_a_gpu_of_which_nothing_is_known() -> None:
    gpu = node_report(Client(series=[series("", [point(SINCE, 3), [SINCE + 5]])]), now=LATER)["state"]["gpus"][0]
    assert (gpu["usage"], gpu["free"], gpu["requested"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("points", "state"), [([point(SINCE, 6)], "borrowing"), ([point(SINCE, 2)], "running"), ([], "running")]
)
def test_a_job_that_lived_at_the_end(points: list[list[float]], state: str) -> None:
    """It has ended since; the report does not know that."""
    found = [job(TRAIN, "train", ended=UNTIL + 60)]
    kept = [series(TRAIN, points, "train")] if points else []
    (one,) = node_report(Client(jobs=found, series=kept), now=LATER)["state"]["jobs"]
    assert (one["state"], one["outcome"], one["processes"]) == (state, None, [])
    assert one["gpus"][0]["usage"] == (points[0][1] if points else 0)
    assert one["gpus"][0]["limit"] == (14 * GIB if points else 0)


@pytest.mark.parametrize(
    ("used", "state"), [((6, 2), "borrowing"), ((2, 6), "borrowing"), ((6, 6), "borrowing"), ((2, 3), "running")]
)
def test_a_job_on_two_gpus_borrows_if_it_does_on_one(used: tuple[float, float], state: str) -> None:
    both = job(TRAIN, "train")
    both["gpus"] += job(TRAIN, "train", gpu=1)["gpus"]
    kept = [series(TRAIN, [point(SINCE, amount)], "train", gpu=number) for number, amount in enumerate(used)]
    (one,) = node_report(Client(jobs=[both], series=kept), now=LATER)["state"]["jobs"]
    assert one["state"] == state
    assert [gpu["usage"] // GIB for gpu in one["gpus"]] == list(used)
    assert [gpu["loan"] // GIB for gpu in one["gpus"]] == [max(0, amount - 4) for amount in used]


def test_a_job_that_had_ended_by_then_has_its_outcome() -> None:
    (one,) = [one for one in node_report(now=LATER)["state"]["jobs"] if one["id"] == TRAIN]
    assert one["state"] == "ended" and one["outcome"] is not None


@pytest.mark.parametrize(("since", "ended"), [(SINCE - 9, SINCE - 1), (UNTIL, None), (UNTIL + 5, UNTIL + 9)])
def test_jobs_of_other_times_are_not_in_it(since: float, ended: float | None) -> None:
    assert node_report(Client(jobs=[job(TRAIN, "train", since=since, ended=ended)]))["state"]["jobs"] == []


def test_the_peak_of_a_job_is_that_of_the_time() -> None:
    peaks = {one["id"]: one["gpus"][0]["peak"] for one in node_report()["state"]["jobs"]}
    assert peaks == {TRAIN: 12 * GIB, SERVER: 7 * GIB, NAMED: GIB}
    (short,) = node_report(Client(series=[], jobs=[JOBS[1]]))["state"]["jobs"]
    assert short["gpus"][0]["peak"] == 12 * GIB, "too short for the history"


def test_the_gpu_time_of_a_job_is_that_of_the_time() -> None:
    points = [[*point(SINCE, 1), 0.5], [*point(SINCE + 100, 1), 0.0], [*point(UNTIL - 60, 1), 1.0]]
    on = [series(TRAIN, points, "train")]
    older = [series(TRAIN, [point(SINCE, 1), point(SINCE + 100, 1)], "train")]
    for kept, since, ended, seconds in (
        (on, SINCE - 1, None, 110.0),
        (on, SINCE, UNTIL - 1, 7.0),
        (on, SINCE, UNTIL, 7.0),
        (on, SINCE, UNTIL + 1, 110.0),
        (older, SINCE - 1, None, 7.0),  # its history does not say
        ([*older, *on], SINCE - 1, None, 110.0),
    ):
        one = job(TRAIN, "train", since=since, ended=ended)
        one["gpus"][0]["gpu_time"] = 7.0  # of all its life, by the daemon
        (found,) = node_report(Client(series=kept, jobs=[one]))["state"]["jobs"]
        assert found["gpus"][0]["gpu_time"] == pytest.approx(seconds), (since, ended)


def test_jobs_that_the_daemons_list_has_lost_are_looked_up() -> None:
    client = Client(jobs=[], earlier=[JOBS[0]])
    assert [one["id"] for one in node_report(client)["state"]["jobs"]] == [TRAIN]
    assert client.looked_up == [TRAIN, SERVER, NAMED], "each job once, and neither sums nor what is outside"


def test_a_report_of_a_job_has_nothing_of_others() -> None:
    client = Client()
    report = job_report(SERVER, client)
    assert report["job"] == SERVER
    assert client.asked == [(SINCE, UNTIL, 12, SERVER)]
    assert [one["id"] for one in report["state"]["jobs"]] == [SERVER]
    assert [one["uuid"] for one in report["state"]["gpus"]] == [GPUS[0]]
    assert report["waiting"] == WAITING[:1]
    assert report["state"]["pressure"] == report["state"]["reservations"] == []


def test_what_happened_is_that_of_the_time() -> None:
    assert job_report(TRAIN)["happenings"] == RECORDS[1:]
    assert node_report(until=SINCE + 3590)["happenings"] == RECORDS[1:3]


def test_only_the_latest_of_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MOST_HAPPENINGS", 2)
    assert node_report()["happenings"] == RECORDS[2:]


def test_the_story_of_another_users_job_is_not_told() -> None:
    assert job_report(TRAIN, Client(closed=True))["happenings"] == []


def test_a_step_is_what_a_chart_can_show_unless_one_is_named() -> None:
    client = Client()
    contents.of_node(client, contents.Asked(UNTIL - 30, UNTIL, None, UNTIL))
    contents.of_node(client, contents.Asked(SINCE, UNTIL, 60.0, UNTIL))
    contents.of_node(client, contents.Asked(UNTIL - 7 * 86400, UNTIL, None, UNTIL))
    assert [step for _, _, step, _ in client.asked] == [1, 60, 1008], "600 values of a week"


@pytest.mark.parametrize(
    ("cut_below", "steps"), [(0, [12]), (60, [12, 60]), (3600, [12, 60, 3600]), (9999, [12, 60, 3600])]
)
def test_what_the_daemon_cuts_is_asked_at_a_coarser_step(cut_below: int, steps: list[float]) -> None:
    client = Client(cut_below=cut_below)
    report = node_report(client)
    assert [step for _, _, step, _ in client.asked] == steps
    assert report["history"]["cut"] is (cut_below == 9999)


def test_a_daemon_without_a_history_says_so() -> None:
    with pytest.raises(GpushareError, match="has no history"):
        node_report(Client(kept=False))


def test_when_a_job_ended() -> None:
    assert contents.end_of(JOBS[0]) == UNTIL - 600  # type: ignore[arg-type]
    assert contents.end_of(JOBS[1]) == math.inf  # type: ignore[arg-type]


def test_a_record_at_either_end_is_in_it() -> None:
    ends = [record(SINCE, "trim", TRAIN, "first"), record(UNTIL, "trim", TRAIN, "last")]
    beyond = [record(SINCE - 0.1, "trim", TRAIN, "before"), record(UNTIL + 0.1, "trim", TRAIN, "after")]
    assert job_report(TRAIN, Client(records=[*beyond, *ends]))["happenings"] == ends
