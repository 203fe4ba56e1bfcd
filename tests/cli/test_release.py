"""gpushare release: a reservation of the node, or a job that is held in the service's queue."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fake_api import GIB, UUID, refusal

from gpushare.cluster import client as cluster_client
from gpushare.errors import DaemonUnreachable, NoSuchJob


@pytest.fixture
def node(fake, monkeypatch):
    """Answers to DELETE of a reservation."""
    handle = fake.handle

    def answered(method, path, body):
        if method == "DELETE" and "/reservations/" in path:
            fake.calls.append((method, path, body))
            return fake.released
        return handle(method, path, body)

    fake.handle = answered
    fake.released = refusal(404, "no_such_reservation", "no reservation 17")
    return fake


@pytest.fixture
def service(monkeypatch):
    """What it was asked to release; `answer`: an error that it raises, or False: there is no service."""
    made = SimpleNamespace(asked=[], answer=None)

    def release(name: str) -> None:
        made.asked.append(name)
        if made.answer is not None:
            raise made.answer

    monkeypatch.setattr(
        cluster_client, "find", lambda *_: None if made.answer is False else SimpleNamespace(release=release)
    )
    return made


def kept(*amounts: int, jobs: int = 0) -> dict:
    gpus = [{"uuid": UUID.format(n), "index": n, "amount": 9 * GIB, "remainder": one} for n, one in enumerate(amounts)]
    more = {"since": 0.0, "until": None, "jobs": [f"{n:016x}" for n in range(jobs)], "uid": 1, "user": "alice"}
    return {"id": "e5f6000000000001", "name": "mine", "gpus": gpus, **more}


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        (kept(2 * GIB), "released 2.0 GiB on GPU 0\n"),
        (kept(2 * GIB, jobs=1), "released 2.0 GiB on GPU 0; 1 job runs on with what it had of it\n"),
        (
            kept(GIB, 3 * GIB, jobs=2),
            "released 1.0 GiB on GPU 0, 3.0 GiB on GPU 1; 2 jobs run on with what it had of it\n",
        ),
    ],
)
def test_a_reservation_is_released(gpushare, node, service, gone, told):
    node.released = 200, gone
    assert gpushare("release", "mine") == (0, told, "")
    assert [path for _, path, _ in node.calls if "reservations" in path] == ["/v1/reservations/mine"]
    assert service.asked == []


@pytest.mark.parametrize("name", ["17", "17_3"])
def test_a_number_may_be_a_job_of_the_queue(gpushare, node, service, name):
    assert gpushare("release", name) == (0, f"released {name}\n", "")
    assert service.asked == [name]


@pytest.mark.parametrize("name", ["mine", "1_2_3", "a_3", "-1", "1.5"])
def test_other_names_may_be_names_of_jobs_else_the_nodes_answer_counts(gpushare, node, service, name):
    assert gpushare("release", "--", name) == (0, f"released {name}\n", "")
    assert service.asked == [name]
    service.answer = NoSuchJob(f"no job {name} in the queue")
    code, out, err = gpushare("release", "--", name)
    assert (code, out) == (5, "") and "no reservation 17" in err and "in the queue" not in err


@pytest.mark.parametrize("answer", [False, DaemonUnreachable("the service does not answer")])
def test_without_a_service_the_nodes_answer_counts(gpushare, node, service, answer):
    service.answer = answer
    code, out, err = gpushare("release", "17")
    assert (code, out) == (5, "") and "no reservation 17" in err and "does not answer" not in err


def test_without_a_node_daemon_too(gpushare, environ, tmp_path, monkeypatch, service):
    monkeypatch.setenv("GPUSHARE_SOCKET", str(tmp_path / "none.sock"))
    assert gpushare("release", "17")[:2] == (0, "released 17\n")
    service.answer = False
    assert gpushare("release", "17")[0] == 3


def test_what_the_service_refuses_is_told(gpushare, node, service):
    service.answer = NoSuchJob("no job 17 in the queue")
    code, _, err = gpushare("release", "17")
    assert code == 5 and "no job 17 in the queue" in err


def test_an_empty_name_is_neither(gpushare, node, service):
    code, out, err = gpushare("release", "")
    assert (code, out, service.asked) == (2, "", [])
    assert err.startswith("gpushare: the name of a reservation is empty\n") and "`gpushare reserve --list`" in err
    assert not [path for _, path, _ in node.calls if "reservations" in path]


def test_anothers_reservation_is_no_job(gpushare, node, service):
    node.released = refusal(403, "not_permitted", "it is bob's")
    code, _, err = gpushare("release", "17")
    assert code == 4 and "it is bob's" in err and service.asked == []
