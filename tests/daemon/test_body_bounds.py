"""How long, how many and how large what a request says may be: the last value that is taken, and the first that is not.

A value that is not taken is refused by its name, before anything else is looked at; one that is taken may be refused
for another reason.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from daemon_harness import InProcess

from gpushare.job_spec import MOST_NAME

JOB = {"name": "train", "command": ["x"], "request": "1Gi", "limit": "2Gi"}
PLACED = {"attempt": 1, "uid": 0, "gpus": ["0"], "request": "1Gi"}
MOST_PID = 2**22
OUT_OF_BOUNDS = ("is not a text of", "is not a list of", "is not a whole number from", "has a text of more than")


def letters(most: int) -> list[tuple[Any, bool]]:
    return [("x" * most, True), ("x" * (most + 1), False)]


def numbers(least: int, most: int) -> list[tuple[Any, bool]]:
    return [(least, True), (least - 1, False), (most, True), (most + 1, False)]


def texts(most: int, longest: int) -> list[tuple[Any, bool]]:
    many = [(["x"] * most, True), (["x"] * (most + 1), False)]
    return [*many, *(([text], taken) for text, taken in letters(longest))]


AMOUNT = letters(64)
BOUNDS: dict[tuple[str, str], tuple[dict[str, Any], dict[str, list[tuple[Any, bool]]]]] = {
    ("POST", "/v1/jobs"): (
        JOB,
        {
            **{"request": AMOUNT, "limit": AMOUNT, "job": letters(16), "name": letters(MOST_NAME)},
            **{"gpus": numbers(1, 64), "devices": texts(64, 128), "reservation": letters(64)},
            "priority": numbers(-(2**31), 2**31 - 1),
        },
    ),
    ("PATCH", "/v1/jobs/JOB"): (
        {},
        {"request": AMOUNT, "limit": AMOUNT, "priority": numbers(-(2**31), 2**31 - 1)},
    ),
    ("PUT", "/v1/jobs/JOB/main"): ({}, {"pid": numbers(1, MOST_PID)}),
    ("POST", "/v1/jobs/JOB/hooks"): (
        {"number": 0},
        {"number": numbers(0, 2**53), "milliseconds": numbers(0, 2**40), "problem": letters(300)},
    ),
    ("POST", "/v1/jobs/JOB/suspender"): (
        {"number": 0, "where": "running"},
        {
            **{"number": numbers(0, 2**53), "milliseconds": numbers(0, 2**40), "pid": numbers(1, MOST_PID)},
            **{"problem": letters(300), "where": letters(16)},
        },
    ),
    ("POST", "/v1/reservations"): (
        {"request": "1Gi"},
        {"request": AMOUNT, "gpus": numbers(1, 64), "devices": texts(64, 128), "name": letters(MOST_NAME)},
    ),
    ("PUT", "/v1/placements/p"): (
        PLACED,
        {
            **{"attempt": numbers(1, 2**62), "uid": numbers(0, 2**32 - 2), "gpus": texts(64, 128)},
            **{"request": AMOUNT, "limit": AMOUNT, "name": letters(MOST_NAME), "job": letters(16)},
            **{"cgroups": texts(256, 4096), "cgroup": letters(4096)},
            **{"session": numbers(2, MOST_PID), "holder": numbers(2, MOST_PID)},
        },
    ),
    # The last one: it ends the job.
    ("DELETE", "/v1/jobs/JOB"): ({}, {"exit_code": numbers(0, 255), "signal": numbers(1, 64)}),
}


@pytest.mark.parametrize("call", BOUNDS, ids=" ".join)
def test_a_body_is_taken_up_to_its_bounds(daemon: InProcess, call) -> None:
    job = daemon.client.register(JOB)["id"]
    (method, path), (body, fields) = call, BOUNDS[call]
    wrong = []
    for name, values in fields.items():
        for value, taken in values:
            status, said = daemon.http(method, path.replace("JOB", job), json.dumps({**body, name: value}).encode())
            error = json.loads(said).get("error", {"message": "", "code": ""})
            refused = error["message"].startswith(tuple(f"{name} {what}" for what in OUT_OF_BOUNDS))
            if refused is taken or (refused and (status, error["code"]) != (400, "bad_request")):
                wrong.append((name, str(value)[:20], status, error["message"][:80]))
    assert wrong == []


@pytest.mark.parametrize(
    "call",
    [*BOUNDS, *(("POST", f"/v1/jobs/JOB/{what}") for what in ("stop", "checkpointed", "suspend", "resume"))],
    ids=" ".join,
)
def test_a_field_that_nobody_knows_is_refused_and_nothing_is_done(daemon: InProcess, call) -> None:
    """A misspelt option must not be one that is left out."""
    job = daemon.client.register(JOB)["id"]
    (method, path), (body, _) = call, BOUNDS.get(call, ({}, {}))
    before = daemon.client.job(job)["state"], len(daemon.client.jobs()), len(daemon.shell.core.reservations)
    status, said = daemon.http(method, path.replace("JOB", job), json.dumps({**body, "colour": 1}).encode())
    assert (status, json.loads(said)["error"]["code"]) == (400, "unknown_field")
    assert (daemon.client.job(job)["state"], len(daemon.client.jobs()), len(daemon.shell.core.reservations)) == before
    assert daemon.client.placements() == []


def test_an_attempt_in_a_query_has_the_bound_of_one_in_a_body(daemon: InProcess) -> None:
    for attempt, status in ((2**62, 404), (2**62 + 1, 400)):
        assert daemon.http("DELETE", f"/v1/placements/p?attempt={attempt}")[0] == status
