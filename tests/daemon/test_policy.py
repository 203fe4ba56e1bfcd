"""The rules of the settings file at the daemon's doors, with jobs of several users, and while they change."""

from __future__ import annotations

import functools
import signal
import threading
import time
from pathlib import Path

import pytest
from daemon_harness import GIB, GPU, until
from other_user import ALICE, BOB, CAROL, as_user, needs_root
from shim_client import ShimClient

from gpushare._layout import lib
from gpushare.errors import Refused
from gpushared import config
from gpushared.core.rules import Rules, Who
from gpushared.limits.identities import Identities, look_up

JOB = {"name": "train", "command": ["train.py"], "request": "1Gi", "limit": "2Gi", "gpus": 1}
FILE = """\
[policy]
max_limit = "8Gi"
max_jobs = 3

[policy.groups.gpu-people]
max_limit = "12Gi"

[policy.users.61002]
request = "2Gi"
limit = "6Gi"
"""


def rules(text: str = FILE) -> Rules:
    return config.parse(text, Path("/etc/gpushare/gpushared.toml"))["rules"]


@pytest.fixture
def accounts(monkeypatch):
    """Alice is in a group, and administers; the test may make the account database slow or broken."""

    class Accounts:
        def __init__(self):
            self.groups = {ALICE: frozenset({"gpu-people", "gpu-admins"})}
            self.gate = threading.Event()
            self.asked = []

        def look_up(self, uid):
            self.asked.append(uid)
            assert self.gate.wait(10)
            return Who(uid, f"user{uid}", self.groups.get(uid, frozenset()))

    accounts = Accounts()
    accounts.gate.set()
    monkeypatch.setattr("gpushared.daemon.Identities", functools.partial(Identities, look_up=accounts.look_up))
    return accounts


# ---- admission ---------------------------------------------------------------------------------


def test_members_of_a_project_are_users_and_groups():
    found = rules('[policy.projects.p]\nmembers = ["ann", "@vision", "bob", "@nlp"]\nmax_jobs = 2\n')
    (table,) = (one for one in found.tables if one.path == "$.policy.projects.p")
    assert (table.users, table.groups) == ({"ann", "bob"}, {"vision", "nlp"})
    assert table.values["max_jobs"] == 2 and "members" not in table.values


def test_a_reservation_is_no_way_around_the_rules(make_daemon):
    daemon = make_daemon(rules=rules('[policy]\nmax_request = "4Gi"\n'))
    with pytest.raises(Refused, match="do not allow") as caught:
        daemon.client.reserve({"request": "5Gi", "name": "mine"})
    assert caught.value.code == "policy"
    assert daemon.client.reservations() == []
    assert daemon.client.reserve({"request": "4Gi", "name": "mine"})["gpus"][0]["amount"] == 4 * GIB


def test_a_job_above_its_maximum_reads_which_rule_it_was(make_daemon):
    daemon = make_daemon(rules=rules())
    with pytest.raises(Refused, match="do not allow") as caught:
        daemon.client.register(JOB | {"limit": "9Gi"})
    assert caught.value.code == "policy"
    assert caught.value.facts == (
        ("limit", "9.0 GiB; at most 8.0 GiB, by $.policy.max_limit (/etc/gpushare/gpushared.toml:2)"),
    )
    assert "at most 8.0 GiB" in caught.value.hint
    assert daemon.client.jobs() == []
    job = daemon.client.register(JOB | {"limit": "max"})
    assert job["gpus"][0]["limit"] == 8 * GIB and job["limit_source"] == "/etc/gpushare/gpushared.toml:2"


def test_the_environment_alone_is_bound_too(make_daemon):
    daemon = make_daemon(rules=rules())
    with daemon.connect() as shim:
        welcome = shim.hello(request=GIB, limit=9 * GIB)
        assert welcome.status == lib.GS_NOT_ADMITTED and "$.policy.max_limit" in welcome.text
    with daemon.connect() as shim:
        assert shim.hello(request=GIB, limit="max").status == lib.GS_OK
        assert shim.attach(GPU).status == lib.GS_OK
        assert shim.ask(9 * GIB).status == lib.GS_OVER_LIMIT
        (job,) = daemon.client.jobs()
        assert job["gpus"][0]["limit"] == 8 * GIB


def test_jobs_of_one_user_are_counted_and_ended_ones_are_not(make_daemon):
    daemon = make_daemon(rules=rules())
    jobs = [daemon.client.register(JOB) for _ in range(3)]
    with pytest.raises(Refused, match="do not allow"):
        daemon.client.register(JOB)
    with daemon.connect() as shim:
        welcome = shim.hello(request=GIB, limit=GIB)
        assert welcome.status == lib.GS_NOT_ADMITTED and "at most 3" in welcome.text
    daemon.client.end(jobs[0]["id"], 0, None)
    assert daemon.client.register(JOB)["state"] == "running"


@needs_root
def test_what_a_job_gets_that_says_nothing(make_daemon):
    daemon = make_daemon(rules=rules(), system=True)

    def register(**said):
        return daemon.client.register({"name": "a", "command": ["a"], "gpus": 1} | said)

    as_the_wrapper_says_it = {"request": "none", "limit": "max", "request_source": None, "limit_source": None}
    for said in ({}, as_the_wrapper_says_it):
        job = as_user(BOB, lambda said=said: register(**said))
        assert (job["gpus"][0]["request"], job["gpus"][0]["limit"]) == (2 * GIB, 6 * GIB)
        assert job["limit_source"] == "/etc/gpushare/gpushared.toml:10"
    job = as_user(BOB, lambda: register(**as_the_wrapper_says_it | {"limit_source": "--limit"}))
    assert (job["gpus"][0]["request"], job["gpus"][0]["limit"]) == (0, 8 * GIB)
    assert as_user(CAROL, register)["gpus"][0]["limit"] == 8 * GIB

    def alone():
        with ShimClient(daemon.shim) as shim:
            shim.hello()
            shim.attach(GPU)
            return shim.line().limit * 512

    assert as_user(BOB, alone) == 6 * GIB


# ---- users and groups --------------------------------------------------------------------------


@needs_root
def test_a_user_changes_its_own_jobs_within_the_rules_and_an_administrator_any(make_daemon, accounts):
    daemon = make_daemon(rules=rules(), system=True, admin_group="gpu-admins")
    mine = daemon.client.register(JOB)  # of root

    def own():
        client = daemon.client
        job = client.register(JOB | {"name": "own"})
        answers = [client.change(job["id"], {"limit": "4Gi"})["after"]["gpus"][0]["limit"]]
        for call in (
            lambda: client.change(job["id"], {"limit": "13Gi"}),
            lambda: client.change(job["id"], {"limit": "13Gi", "dry_run": True}),
            lambda: client.change(mine["id"], {"limit": "3Gi"}),
            lambda: client.end(mine["id"], 0, None),
            lambda: client.story(mine["id"]),
        ):
            try:
                call()
                answers.append("done")
            except Exception as error:
                answers.append(error.code)
        answers.append(sorted(one["name"] for one in client.jobs()))
        return answers

    refused = ["policy", "policy", "not_permitted", "not_permitted", "not_permitted"]
    assert as_user(CAROL, own) == [4 * GIB, *refused, ["-", "own"]]
    # Alice is in the group: her own job may be larger, other people's are hers to see and to end.
    assert as_user(ALICE, own) == [4 * GIB, "done", "done", "done", "done", "done", ["own"]]


@needs_root
def test_a_group_gives_more(make_daemon, accounts):
    daemon = make_daemon(rules=rules(), system=True)

    def large():
        return daemon.client.register(JOB | {"limit": "11Gi"})["gpus"][0]["limit"]

    assert as_user(ALICE, large) == 11 * GIB
    assert as_user(CAROL, large)[0] == "policy"
    assert set(accounts.asked) == {ALICE, CAROL}
    asked = len(accounts.asked)
    as_user(ALICE, large)
    assert len(accounts.asked) == asked, "known already"
    accounts.groups = {CAROL: frozenset({"gpu-people"})}
    daemon.call(daemon.daemon._identities.forget)
    assert as_user(CAROL, large) == 11 * GIB


@needs_root
def test_a_slow_account_database_holds_up_only_who_is_not_known_yet(make_daemon, accounts, program):
    daemon = make_daemon(rules=rules(), system=True)
    shim = daemon.connect()  # of root, which is looked up here
    assert shim.hello(request=4 * GIB, limit=8 * GIB).status == lib.GS_OK
    assert shim.attach(GPU).status == lib.GS_OK
    accounts.gate.clear()
    answers = []

    def stranger():
        def call():
            with ShimClient(daemon.shim) as other:
                return other.hello(request=GIB, limit=11 * GIB).status

        answers.append(as_user(ALICE, call))

    thread = threading.Thread(target=stranger)
    thread.start()
    until(lambda: ALICE in accounts.asked)
    for _ in range(20):
        started = time.monotonic()
        assert shim.ask(4096).status == lib.GS_OK
        assert daemon.client.version()["protocol"] == 1
        assert time.monotonic() - started < 5, "it would be held up until the gate opens, which is after this"
    assert not answers
    accounts.gate.set()
    thread.join(10)
    assert answers == [lib.GS_OK], "her group is known by now"
    shim.close()


def test_an_account_database_that_fails_leaves_what_everybody_may(make_daemon, accounts):
    daemon = make_daemon(rules=rules())
    daemon.call(lambda: setattr(daemon.daemon._identities, "_look_up", lambda uid: 1 // 0))
    with pytest.raises(Refused, match="do not allow"):
        daemon.client.register(JOB | {"limit": "9Gi"})
    assert daemon.client.register(JOB)["state"] == "running"


def test_without_rules_about_groups_nobody_is_looked_up(make_daemon, accounts):
    daemon = make_daemon(rules=rules("[policy]\nmax_gpus = 1\n"))
    daemon.client.register(JOB)
    with daemon.connect() as shim:
        assert shim.hello(request=GIB, limit=GIB).status == lib.GS_OK
    assert accounts.asked == []


def test_this_users_own_groups_are_found():
    import grp
    import os

    who = look_up(os.getuid())
    assert grp.getgrgid(os.getgid()).gr_name in who.groups and str(os.getgid()) in who.groups
    assert look_up(CAROL) == Who(CAROL, str(CAROL))


# ---- reading the file again --------------------------------------------------------------------


def test_reading_again_leaves_jobs_alone_and_a_broken_file_changes_nothing(gpushared, tmp_path, program):
    file = tmp_path / "gpushared.toml"
    file.write_text('[reclaim]\ngrace = "5s"\n')
    gpushared.start("--config", str(file))
    gpu = gpushared.client.status()["gpus"][0]["uuid"]
    job = gpushared.client.register(JOB | {"limit": "14Gi", "priority": 7, "devices": [gpu]})
    one = program(gpushared.shim)
    assert one.call("hello", job=job["id"])["status"] == lib.GS_OK
    one.call("attach", gpu)

    def reload(text: str, expected: str) -> None:
        file.write_text(text)
        gpushared.process.send_signal(signal.SIGHUP)
        until(lambda: expected in gpushared.log.read_text())

    reload('[policy]\nmax_limit = "4Gi"\nmax_priority = 0\n', "$.policy.max_limit: not said -> ")
    # The job keeps its limit, and grows beyond what a new one could have.
    now = gpushared.client.job(job["id"])
    assert now["gpus"][0]["limit"] == 14 * GIB and now["priority"] == 7
    assert one.call("allocate", 10 * GIB)["status"] == lib.GS_OK
    with pytest.raises(Refused, match="do not allow"):
        gpushared.client.register(JOB | {"limit": "5Gi"})
    # A wrapper that comes back is not a new job.
    again = gpushared.client.register(JOB | {"limit": "14Gi", "priority": 7, "job": job["id"]})
    assert again["gpus"][0]["limit"] == 14 * GIB

    reload("[policy]\n\nmax_limit = 4096\n", "the settings stay as they were")
    log = gpushared.log.read_text()
    assert f"{file}:3 $.policy.max_limit: " in log
    reload("[policy\n", f"{file}:1 is not TOML")
    file.unlink()
    gpushared.process.send_signal(signal.SIGHUP)
    until(lambda: f"cannot read {file}" in gpushared.log.read_text())
    with pytest.raises(Refused, match="do not allow"):
        gpushared.client.register(JOB | {"limit": "5Gi"})
    assert gpushared.client.job(job["id"])["gpus"][0]["limit"] == 14 * GIB

    reload("[memory]\nreserve_share = 0.5\n", "reserve_share: 0.03 -> 0.5 (at the next start)")
    assert gpushared.client.register(JOB | {"limit": "5Gi"})["state"] == "running"
    assert gpushared.client.job(job["id"])["gpus"][0]["usage"] >= 10 * GIB


def test_the_last_rung_is_the_last(make_daemon, program):
    """A borrower that does not give back is asked, and by these settings not killed."""
    daemon = make_daemon(last_step="term", claim_timeout=1.5)
    job = daemon.client.register(JOB | {"name": "lender", "request": "12Gi", "limit": "12Gi", "devices": ["0"]})
    borrower = program(daemon.shim)
    borrower.call("ignore_sigterm")
    borrower.call("hello", request=0, limit=15 * GIB)
    borrower.call("attach", GPU)
    assert borrower.call("allocate", 12 * GIB)["status"] == lib.GS_OK
    owner = daemon.connect()
    owner.hello(job=job["id"])
    owner.attach(GPU)
    answer = owner.ask(10 * GIB)
    assert answer.status == lib.GS_TIMED_OUT and "never killed" in answer.text
    assert borrower.process.poll() is None
    counters = daemon.call(lambda: daemon.shell.core.counters)
    assert (counters.terms, counters.kills) == (1, 0) and counters.violations == {"policy": 1}
    owner.close()
