"""What a page may ask of the daemon, and that it is asked with the rights of the user who runs the command."""

from __future__ import annotations

import pytest
from daemon_harness import GIB
from other_user import ALICE, as_user, needs_root

from dashboard.conftest import Dashboard, daemon_process
from gpushare.client import Client

JOB = {"name": "train", "command": ["train.py", "--secret"], "request": "4Gi", "limit": "14Gi"}
NOBODYS = "0" * 16


@pytest.fixture(scope="module")
def node():
    """One daemon for all of these: none of them ends it."""
    with daemon_process() as one:
        yield one


@pytest.fixture(scope="module")
def page(node):
    one = Dashboard(node.directory / "api.sock").start().log_in()
    yield one
    one.stop()


@pytest.fixture
def job(node):
    made = node.client.register(JOB)["id"]
    yield made
    node.client.end(made, 0, None)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/jobs"),
        ("PUT", f"/v1/jobs/{NOBODYS}/main"),
        ("DELETE", f"/v1/jobs/{NOBODYS}"),
        ("POST", f"/v1/jobs/{NOBODYS}/checkpointed"),
        ("GET", f"/v1/jobs/{NOBODYS}/events"),
        ("POST", "/v1/reservations"),
        ("GET", "/v1/jobs/train"),
        ("GET", f"/v1/jobs/{NOBODYS}/../../status"),
        ("GET", f"/v1/jobs/{NOBODYS}%2f..%2f..%2fstatus"),
        ("GET", "/v1/"),
        ("GET", "/metrics"),
        ("HEAD", "/v1/version"),
        ("OPTIONS", "/v1/version"),
    ],
)
def test_what_is_not_on_the_list_is_not_passed_on(page, method, path):
    assert page.ask(method, path).status in (404, 405)


@pytest.mark.parametrize(
    "target",
    ["/v1/events?follow=1", "/v1/events?since=x", "/v1/events?since=1&since=y", "/v1/jobs?ended=2", "/v1/version?x=1"],
)
def test_a_query_of_another_shape_is_not_passed_on(page, target):
    """400: for 401 the page would ask for its session again."""
    answer = page.ask("GET", target)
    assert (answer.status, answer.code) == (400, "bad_query")


@pytest.mark.parametrize(
    "target", ["/v1/version", "/v1/jobs?ended=1", "/v1/events?since=1700000000.123", "/v1/explain"]
)
def test_what_is_on_the_list_is(page, node, target):
    answer = page.ask("GET", target)
    assert answer.status == 200 and "error" not in answer.json


@pytest.mark.parametrize(
    "body", [{"limit": 1}, {"limit": "8Gi", "x": 1}, {"dry_run": 1}, {"priority": True}, [], b"{", b"[" * 4000, "x"]
)
def test_a_body_of_another_shape_is_not_passed_on(page, body):
    answer = page.ask("PATCH", f"/v1/jobs/{NOBODYS}", body)
    assert (answer.status, answer.code) == (400, "bad_body")


def test_a_large_body_is_not_read(page):
    assert page.ask("PATCH", f"/v1/jobs/{NOBODYS}", b" " * 5000).status == 413


def test_a_body_where_none_belongs_is_refused(page):
    answer = page.ask("DELETE", f"/v1/reservations/{NOBODYS}", {})
    assert (answer.status, answer.code) == (400, "bad_body")


def test_a_job_is_changed_and_stopped_as_by_the_command(page, node, job):
    would = page.ask("PATCH", f"/v1/jobs/{job}", {"limit": "8Gi", "dry_run": True})
    assert would.status == 200 and would.json["after"]["gpus"][0]["limit"] == 8 * GIB
    assert node.client.job(job)["gpus"][0]["limit"] == 14 * GIB
    assert page.ask("PATCH", f"/v1/jobs/{job}", {"limit": "8Gi"}).status == 200
    assert node.client.job(job)["gpus"][0]["limit"] == 8 * GIB
    assert page.ask("POST", f"/v1/jobs/{job}/stop", {}).json == {
        "job": node.client.job(job),
        "processes": 0,
        "spared": 0,
    }


def test_a_refusal_of_the_daemon_comes_back_whole(page, node):
    answer = page.ask("PATCH", f"/v1/jobs/{NOBODYS}", {"limit": "8Gi"})
    assert (answer.status, answer.code) == (404, "no_such_job")


def test_a_reservation_is_released(page, node):
    reservation = node.client.reserve({"name": "mine", "request": "2Gi"})["id"]
    assert page.ask("DELETE", f"/v1/reservations/{reservation}").status == 200
    assert node.client.reservations() == []


def test_read_only_is_read_only(make_dashboard, node, job):
    page = make_dashboard(node.directory / "api.sock", read_only=True).log_in()
    for method, path in (("PATCH", f"/v1/jobs/{job}"), ("POST", f"/v1/jobs/{job}/stop")):
        answer = page.ask(method, path, {"limit": "8Gi"} if method == "PATCH" else {})
        assert (answer.status, answer.code) == (403, "read_only")
    assert page.ask("DELETE", f"/v1/reservations/{NOBODYS}").code == "read_only"
    assert node.client.job(job)["gpus"][0]["limit"] == 14 * GIB
    assert page.ask("GET", f"/v1/jobs/{job}").json["id"] == job
    assert page.ask("POST", "/session", {"token": page.token}).json["read_only"] is True


def test_no_daemon_is_an_error_in_the_daemons_shape(dashboard):
    answer = dashboard.log_in().ask("GET", "/v1/version")
    assert (answer.status, answer.code) == (503, "no_daemon")
    assert answer.json["error"]["hint"] == "start one"


@needs_root
def test_a_page_shows_and_may_what_its_user_may(node, job):
    """Two users before one daemon: root's job, and a user whose own dashboard looks at both."""
    node.directory.chmod(0o711)
    socket = node.directory / "api.sock"
    socket.chmod(0o666)

    def look() -> dict:
        own = Client(socket).register({**JOB, "request": "1Gi"})["id"]
        page = Dashboard(socket).start().log_in()
        messages = page.live()
        jobs = {job["id"]: job for job in next(data for kind, data in messages if kind == "state")["jobs"]}
        messages.close()
        found = {}
        for name, one in (("own", own), ("other", job)):
            found[name] = [
                jobs[one]["command"],
                jobs[one]["gpus"][0]["request"] // GIB,
                page.ask("GET", f"/v1/jobs/{one}/story").status,
                page.ask("PATCH", f"/v1/jobs/{one}", {"limit": "8Gi", "dry_run": True}).status,
                page.ask("POST", f"/v1/jobs/{one}/stop", {}).status,
            ]
        found["about"] = page.ask("POST", "/session", {"token": page.token}).json["uid"]
        found["read"] = {record["job"] for record in page.ask("GET", "/v1/events?since=1").json["records"]} == {
            own,
            None,
        }
        page.stop()
        return found

    assert as_user(ALICE, look) == {
        "own": [JOB["command"], 1, 200, 200, 200],
        "other": [[], 4, 403, 403, 403],
        "about": ALICE,
        "read": True,
    }


# ---- the cluster's service -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/cluster/v1/jobs"),
        ("GET", "/cluster/v1/jobs"),
        ("GET", "/cluster/v1/state"),
        ("GET", "/cluster/v1/jobs/train/explain"),
        ("GET", "/cluster/v1/jobs/1/../state/explain"),
        ("DELETE", "/cluster/v1/jobs/1_"),
        ("POST", "/cluster/v1/nodes/n1/drain"),
        ("GET", "/cluster/metrics"),
        ("GET", f"/cluster/v1/jobs/{NOBODYS}/story"),
        ("DELETE", "/v1/jobs/1"),
    ],
)
def test_what_is_not_on_the_list_is_not_passed_on_to_the_service(page, method, path):
    assert page.ask(method, path).status in (404, 405)


def test_a_page_without_a_service_is_told_so(page):
    answer = page.ask("GET", "/cluster/v1/version")
    assert (answer.status, answer.code) == (503, "no_service")


def test_only_watching_changes_no_queue(make_dashboard, tmp_path):
    page = make_dashboard(read_only=True).log_in()
    for method, path in (("DELETE", "/cluster/v1/jobs/1"), ("POST", "/cluster/v1/changes")):
        assert page.ask(method, path).code == "read_only"


def test_what_has_no_session_reaches_no_service(dashboard):
    assert dashboard.ask("GET", "/cluster/v1/version").status == 401
    assert dashboard.ask("GET", "/cluster/live").status == 401
