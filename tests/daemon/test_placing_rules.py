"""What an engine may say of a placement, field by field, and what a change of one does."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any
from urllib.parse import quote

import pytest
from daemon_harness import GIB, GPU, GPU2, InProcess, Subprocess, until
from other_user import ALICE, BOB, as_user, needs_root

from gpushare.errors import GpushareError

JOB = "00000000000000aa"
ME = os.geteuid()


def body(attempt: int = 1, gpus: tuple[str, ...] = (GPU,), **more: Any) -> dict[str, Any]:
    return {"attempt": attempt, "uid": ME, "gpus": list(gpus), "request": "2Gi", "limit": "3Gi", "job": JOB, **more}


def put(daemon: InProcess, id: str, **what: Any) -> tuple[int, dict[str, Any]]:
    status, answer = daemon.http("PUT", f"/v1/placements/{quote(id)}", json.dumps(body() | what).encode())
    return status, json.loads(answer)


def said(daemon: InProcess, id: str = "a", **what: Any) -> tuple[int, str, str]:
    """The status, the code and the message of a refusal."""
    status, answer = put(daemon, id, **what)
    assert "error" in answer, answer
    return status, answer["error"]["code"], answer["error"]["message"]


# ---- the fields -------------------------------------------------------------------------------------

NEEDED = "attempt, uid, gpus and request are needed"
CGROUP = "cgroup is not a path below the root, as /proc/PID/cgroup has it"
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"attempt": None}, "bad_request", NEEDED),
    ({"uid": None}, "bad_request", NEEDED),
    ({"gpus": None}, "bad_request", NEEDED),
    ({"gpus": []}, "bad_request", NEEDED),
    ({"request": None, "limit": "3Gi"}, "bad_request", NEEDED),
    ({"request": None, "limit": None}, "bad_request", NEEDED),
    ({"attempt": 2**62 + 1}, "bad_request", f"attempt is not a whole number from 1 to {2**62}"),
    ({"uid": 2**32 - 1}, "bad_request", f"uid is not a whole number from 0 to {2**32 - 2}"),
    ({"gpus": ["x" * 129]}, "bad_request", "gpus has a text of more than 128 characters"),
    ({"gpus": ["0"] * 65}, "bad_request", "gpus is not a list of at most 64 texts"),
    ({"request": "2g"}, "bad_quantity", "the request: "),
    ({"request": "9" * 65}, "bad_request", "request is not a text of at most 64 characters"),
    ({"limit": "2g"}, "bad_quantity", "the limit: "),
    ({"limit": "9" * 65}, "bad_request", "limit is not a text of at most 64 characters"),
    ({"name": "x" * 257}, "bad_request", "name is not a text of at most 256 characters"),
    ({"job": "a" * 17}, "bad_request", "job is not a text of at most 16 characters"),
    ({"job": "0" * 16}, "bad_request", "'0000000000000000' is not a job's id"),
    ({"job": "A" * 16}, "bad_request", "'AAAAAAAAAAAAAAAA' is not a job's id"),
    ({"job": "a" * 15}, "bad_request", "'aaaaaaaaaaaaaaa' is not a job's id"),
    ({"cgroup": "/a/./b"}, "bad_request", CGROUP),
    ({"cgroup": "/a/"}, "bad_request", CGROUP),
    ({"cgroup": "/" + "x" * 256}, "bad_request", CGROUP),
    ({"cgroups": ["/a", "/a/../b"]}, "bad_request", CGROUP),
    ({"cgroups": ["/a"] * 257}, "bad_request", "cgroups is not a list of at most 256 texts"),
    ({"cgroups": ["/a" * 2049]}, "bad_request", "cgroups has a text of more than 4096 characters"),
    ({"session": 1}, "bad_request", f"session is not a whole number from 2 to {2**22}"),
    ({"holder": 1}, "bad_request", f"holder is not a whole number from 2 to {2**22}"),
    ({"session": 2**22 + 1}, "bad_request", f"session is not a whole number from 2 to {2**22}"),
    ({"holder": 2**22}, "no_such_process", f"there is no process {2**22}"),
    ({"compute": 0.5}, "unknown_field", "the request has an unknown field 'compute'"),
    ({"exclusive": 1.0}, "unknown_field", "the request has an unknown field 'exclusive'"),
]


def test_what_makes_no_sense_is_named(daemon: InProcess) -> None:
    for wrong, code, message in WRONG:
        status, found, words = said(daemon, **wrong)
        assert (status, found) == (400, code) and words.startswith(message), (wrong, words)
    assert daemon.client.placements() == [] and daemon.client.jobs() == []


def test_what_is_just_right_is_taken(daemon: InProcess) -> None:
    right = [
        {"attempt": 2**62, "name": "n" * 256, "cgroup": "/" + "x" * 255},
        {"uid": 2**32 - 2, "cgroups": ["/a"] * 255 + ["/" + "/".join(["x" * 255] * 15 + ["y" * 255])]},
    ]
    for number, what in enumerate(right):
        status, made = put(daemon, f"{number}", **what, job=f"{number + 1:016x}")
        assert status == 201, made
        assert made["job"]["name"] == what.get("name", f"{number}") and made["attempt"] == what.get("attempt", 1)
    assert len(daemon.client.placements()) == 2


@pytest.mark.parametrize("id", ["", "a b", "ü", "x" * 201, "a\tb"])
def test_an_id_of_other_signs_is_refused(daemon: InProcess, id: str) -> None:
    status, answer = put(daemon, id)
    assert status == (404 if not id else 400)
    if id:
        assert answer["error"]["message"] == "a placement's id has 1 to 200 letters, digits and signs"
    assert daemon.client.placements() == []


def test_the_longest_id_names_a_job(daemon: InProcess) -> None:
    id = "pod/" + "x" * 196
    status, made = put(daemon, id, limit=None, job=None)
    assert status == 201 and made["id"] == id and made["job"]["command"] == [id] and made["job"]["name"] == id
    (gpu,) = made["job"]["gpus"]
    assert gpu["limit"] == gpu["request"] == 2 * GIB, "without a limit of its own it may not borrow"
    assert (made["job"]["request_source"], made["job"]["limit_source"]) == (id, id)
    status, shown = daemon.http("GET", f"/v1/placements/{id}")
    assert (status, json.loads(shown)) == (200, made)
    assert daemon.client.displace(id, 1)["state"] == "leaving"


@pytest.mark.parametrize("attempt", ["", "-1", "1.5", "x", "9" * 5000, str(2**62 + 1)])
def test_the_attempt_that_is_over_is_a_number(daemon: InProcess, attempt: str) -> None:
    put(daemon, "a")
    status, answer = daemon.http("DELETE", f"/v1/placements/a?attempt={attempt}")
    error = json.loads(answer)["error"]
    assert (status, error["code"]) == (400, "bad_request")
    assert error["message"] == f"attempt={attempt[:20]} is not a whole number from 0 to {2**62}"
    assert daemon.client.placements()[0]["state"] == "placed"


def test_a_placement_that_is_not_there_is_no_such_placement(daemon: InProcess) -> None:
    for method, target in (("GET", "/v1/placements/none"), ("DELETE", "/v1/placements/none?attempt=1")):
        status, answer = daemon.http(method, target)
        assert (status, json.loads(answer)["error"]["code"]) == (404, "no_such_placement"), method


# ---- a change ---------------------------------------------------------------------------------------


def test_the_same_attempt_with_other_gpus_or_another_user_is_another_task(daemon: InProcess) -> None:
    put(daemon, "a", gpus=[GPU, GPU2])
    for other in ({"gpus": [GPU]}, {"gpus": [GPU2]}, {"gpus": [GPU, GPU2], "uid": ME + 1}):
        assert said(daemon, **other)[:2] == (409, "placed"), other
    status, again = put(daemon, "a", gpus=[GPU2, GPU], request="1Gi")
    assert status == 200 and [gpu["request"] for gpu in again["job"]["gpus"]] == [GIB, GIB], "their order is no matter"


@pytest.mark.parametrize("change", [{"request": "1Gi"}, {"limit": "5Gi"}, {"priority": 4}], ids=str)
def test_each_amount_may_change_alone(daemon: InProcess, change: dict[str, Any]) -> None:
    put(daemon, "a")
    before = daemon.client.job(JOB)
    status, made = put(daemon, "a", **change)
    (gpu,) = made["job"]["gpus"]
    assert status == 200
    assert gpu["request"] == (GIB if "request" in change else 2 * GIB)
    assert gpu["limit"] == (5 * GIB if "limit" in change else 3 * GIB)
    assert made["job"]["priority"] == change.get("priority", 0)
    assert daemon.client.job(JOB)["gpus"] == made["job"]["gpus"] != before["gpus"] or "priority" in change
    assert daemon.shell.registry.get(JOB).spec.priority == change.get("priority", 0)
    assert daemon.shell.registry.get(JOB).spec.devices == (GPU,), "it is still told which GPUs it was placed on"


def test_the_same_again_is_no_change_of_a_budget(daemon: InProcess) -> None:
    put(daemon, "a")
    put(daemon, "a")
    assert not [one for one in daemon.client.records() if "budget is now" in one["text"]]


def test_a_change_that_does_not_fit_is_refused_and_changes_nothing(daemon: InProcess) -> None:
    put(daemon, "a")
    put(daemon, "b", request="12Gi", limit="12Gi", job=None)
    status, code, _ = said(daemon, request="8Gi", limit="8Gi")
    assert (status, code) == (409, "not_admitted")
    (gpu,) = daemon.client.job(JOB)["gpus"]
    assert (gpu["request"], gpu["limit"]) == (2 * GIB, 3 * GIB)


def test_what_is_refused_may_come_again_later(daemon: InProcess) -> None:
    """Its answer says so, and nothing of it is kept: neither the job nor the attempt."""
    put(daemon, "a", request="12Gi", limit="12Gi")
    status, answer = put(daemon, "b", attempt=7, request="12Gi", limit="12Gi", job="00000000000000bb")
    assert status == 409 and answer["error"]["retry_after"] > 0
    assert daemon.shell.registry.get("00000000000000bb") is None
    daemon.client.displace("a", 1)
    assert put(daemon, "b", attempt=7, request="12Gi", limit="12Gi", job="00000000000000bb")[0] == 201


def test_a_job_of_a_wrapper_is_not_taken_for_a_placement(daemon: InProcess) -> None:
    job = daemon.client.register({"name": "mine", "command": ["x"], "request": "1Gi", "limit": "2Gi"})
    assert said(daemon, job=job["id"]) == (400, "bad_request", f"there is a job {job['id']} already")
    assert daemon.client.job(job["id"])["state"] == "running" and daemon.client.placements() == []
    daemon.client.end(job["id"], 0, None)
    assert said(daemon, job=job["id"], uid=ME + 1)[2] == f"there is a job {job['id']} already", "it was another user's"
    assert put(daemon, "a", job=job["id"])[0] == 201, "one that has ended may run again, placed"


@needs_root
def test_engines_see_all_placements_and_a_user_one_of_its_own(make_daemon) -> None:
    daemon = make_daemon(system=True)
    daemon.client.place("a", body(uid=ALICE))

    def see() -> list[Any]:
        status, answer = daemon.http("GET", "/v1/placements/a")
        shown = json.loads(answer)
        return [status, shown["id"] if status == 200 else shown["error"]["code"]]

    assert see() == as_user(ALICE, see) == [200, "a"] and as_user(BOB, see) == [404, "no_such_placement"]


# ---- notes that cannot be written -------------------------------------------------------------------


def test_a_placement_that_cannot_be_noted_is_none(daemon: InProcess, monkeypatch) -> None:
    put(daemon, "a")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(daemon.shell._state_file, "write", full)
    status, answer = put(daemon, "b", job="00000000000000bb")
    assert (status, answer["error"]["code"]) == (507, "not_noted")
    assert [one["id"] for one in daemon.client.placements()] == ["a"]
    until(lambda: [job["id"] for job in daemon.client.jobs()] == [JOB])
    monkeypatch.undo()
    assert put(daemon, "b", job="00000000000000bb")[0] == 201


def test_a_core_that_fails_on_a_placement_leaves_nothing_of_it(daemon: InProcess, monkeypatch) -> None:
    handle = type(daemon.shell.core).handle

    def fails(core: Any, event: Any, now: float) -> Any:
        if getattr(event, "job", "") == JOB and type(event).__name__ == "JobSubmitted":
            raise RuntimeError("a bug")
        return handle(core, event, now)

    monkeypatch.setattr(type(daemon.shell.core), "handle", fails)
    with pytest.raises(GpushareError, match="the daemon failed on this request"):
        daemon.client.place("a", body())
    monkeypatch.undo()
    assert daemon.client.placements() == [] and daemon.client.jobs() == []
    assert daemon.client.place("a", body())["state"] == "placed"
    daemon.call(lambda: setattr(daemon.shell.core_loop, "errors", 0))


def test_after_lost_notes_the_engines_word_is_the_jobs_budget(node: Subprocess, program) -> None:
    """The job lives on with what its page says, and the engine places it again with what it should have."""
    node.start()
    one = program(node.directory / "shim.sock")
    node.client.place("a", body(session=one.pid))
    with subprocess.Popen(["sleep", "100"]) as other:
        node.client.place("a", body(session=other.pid))
        one.call("hello")
        one.call("attach", GPU)
        node.kill()
        (node.directory / "state.json").unlink()
        node.start()
        made = node.client.place("a", body(4, request="1Gi", limit="4Gi", session=other.pid))
        assert (made["attempt"], made["sessions"], made["job"]["id"]) == (4, [other.pid], JOB)
        (gpu,) = made["job"]["gpus"]
        assert (gpu["uuid"], gpu["request"], gpu["limit"]) == (GPU, GIB, 4 * GIB)
        assert [job["id"] for job in node.client.jobs()] == [JOB]
        other.kill()


def test_after_lost_notes_a_gpu_that_its_programs_have_not_opened_is_its_own_again(node: Subprocess, program) -> None:
    """Its page names the GPUs that a program has opened, the engine those on which it was placed."""
    node.start()
    one = program(node.directory / "shim.sock")
    both = (GPU, GPU2)
    node.client.place("a", body(gpus=both, session=one.pid))
    one.call("hello")
    one.call("attach", GPU2)
    node.kill()
    (node.directory / "state.json").unlink()
    node.start()
    assert node.client.place("a", body(gpus=both, session=one.pid))["job"]["id"] == JOB
    assert node.client.place("a", body(gpus=both, request="1Gi"))["state"] == "placed"
    with pytest.raises(GpushareError, match="has other GPUs"):
        node.client.place("a", body(gpus=(GPU2,)))
    one.call("reconnect", str(node.directory / "shim.sock"))
    assert one.call("hello", present=True)["status"] == 0 and one.call("attach", GPU)["status"] == 0


def test_a_note_that_does_not_say_on_which_gpus_it_was_placed_leaves_those_that_it_has(node: Subprocess) -> None:
    """As an earlier version may have written it."""
    node.start()
    node.client.place("a", body())
    node.kill()
    path = node.directory / "state.json"
    state = json.loads(path.read_text())
    assert state["jobs"][JOB]["note"]["spec"].pop("devices") == [GPU]
    path.write_text(json.dumps(state))
    node.start()
    assert node.client.place("a", body(limit="5Gi"))["job"]["gpus"][0]["limit"] == 5 * GIB
    node.kill()
    path.write_text(json.dumps(state))
    node.start()
    with pytest.raises(GpushareError, match="has other GPUs"):
        node.client.place("a", body(gpus=(GPU2,)))
