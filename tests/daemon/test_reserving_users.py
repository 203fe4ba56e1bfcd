"""A reservation is its user's: others see how much is kept, and can neither use nor end it; nor read who waits."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from other_user import ALICE, CAROL, as_user, needs_root

from gpushare.client import Client
from gpushare.errors import GpushareError

pytestmark = needs_root


@pytest.fixture
def shared(make_daemon):
    return make_daemon(system=True)


def test_another_users_reservation_is_neither_used_nor_released(shared):
    client = shared.client
    made = as_user(ALICE, lambda: client.reserve({"request": "8Gi", "name": "thesis"}))
    assert made["uid"] == ALICE

    def attempts(name: str) -> list[Callable[[], object]]:
        job = {"name": "x", "command": ["x"], "request": "1Gi", "reservation": name}
        return [lambda: client.register(job), lambda: client.release(name)]

    for name in ("thesis", made["id"]):
        for attempt in attempts(name):
            code, text = as_user(CAROL, attempt)
            assert code == "no_such_reservation"
            assert "ALICE" not in text and str(ALICE) not in text
    (seen,) = as_user(CAROL, client.reservations)
    assert seen["name"] == "-" and seen["jobs"] == []
    assert seen["gpus"][0]["amount"] == 8 * 2**30, "that it is taken is everybody's business"
    same_name = as_user(CAROL, lambda: client.reserve({"request": "1Gi", "name": "thesis"}))
    assert same_name["id"] != made["id"], "a name is its user's, too"
    assert as_user(ALICE, lambda: client.release("thesis"))["id"] == made["id"]
    assert as_user(CAROL, lambda: client.release("thesis"))["id"] == same_name["id"]


def test_who_waits_is_told_to_its_user_and_to_administrators(shared):
    client: Client = shared.client

    def queue() -> None:
        with suppress(GpushareError):
            client.register({"name": "secret", "command": ["x"], "request": "90%", "wait": 2.0, "gpus": 2})

    def waiting(uid: int) -> list[str]:
        return [one["name"] for one in as_user(uid, client.explain)["waiting"]]

    as_user(ALICE, lambda: client.reserve({"request": "90%", "gpus": 2, "name": "all"}))
    queuing = threading.Thread(target=as_user, args=(ALICE, queue))
    queuing.start()
    until = time.monotonic() + 10
    while not (seen := client.explain()["waiting"]) and time.monotonic() < until:
        time.sleep(0.01)
    assert [one["name"] for one in seen] == ["secret"], "an administrator"
    assert waiting(ALICE) == ["secret"]
    assert waiting(CAROL) == []
    queuing.join()
    assert "secret" not in json.dumps(as_user(CAROL, client.explain))
    told = [one for one in as_user(ALICE, client.explain)["records"] if one["name"] == "secret"]
    assert [one["event"] for one in told] == ["queued", "refused"], "by which its user finds it"
