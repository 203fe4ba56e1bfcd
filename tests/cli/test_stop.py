"""gpushare stop: what it says and returns, against a daemon that is only its API."""

from __future__ import annotations

import pytest
from fake_api import make_job

from gpushare import stop
from gpushare.client import Client
from gpushare.errors import GpushareError, NoSuchJob

BODY = {"command": ["x"], "request": "1Gi", "limit": "1Gi", "gpus": 1, "priority": 0, "lend": True}
BODY |= {"request_source": "", "limit_source": ""}


@pytest.fixture
def jobs(fake):
    """Two that run, of which one has a grace."""
    for number, (name, grace) in enumerate({"train": 3.0, "serve": None}.items()):
        identity = f"{number:016x}"
        fake.jobs[identity] = make_job(identity, {**BODY, "name": name, "grace": grace})
    return fake


@pytest.fixture
def waits(monkeypatch):
    """The times for which `stop` would wait; whether a job ends the test says."""
    waits = []
    waits_ends = {}

    def wait_for_end(client, identity, seconds):
        waits.append((identity[-1], seconds))
        return waits_ends.get(len(waits), True)

    monkeypatch.setattr(stop, "wait_for_end", wait_for_end)
    return waits, waits_ends


@pytest.mark.parametrize(
    ("arguments", "waited"),
    [
        (["train"], [("0", 3.0)]),
        (["serve"], [("1", 10.0)]),
        (["serve", "train"], [("1", 10.0), ("0", 3.0)]),
        (["train", "--grace", "0.5s"], [("0", 0.5)]),
        (["train", "--now"], [("0", 0.0)]),
    ],
)
def test_how_long_it_waits(gpushare, jobs, waits, arguments, waited):
    code, out, err = gpushare("stop", *arguments)
    assert (code, err) == (0, "")
    assert waits[0] == waited
    assert [line.split()[2] for line in out.splitlines()] == [word for word in arguments if word in ("train", "serve")]
    sent = [(path, body) for method, path, body in jobs.calls if method == "POST"]
    assert sent == [(f"/v1/jobs/000000000000000{one}/stop", {"now": "--now" in arguments}) for one, _ in waited]


def test_sigkill_follows_and_is_said(gpushare, jobs, waits):
    waits[1][1] = False
    code, out, err = gpushare("stop", "train")
    assert (code, out) == (0, "stopped job train (0000000000000000)\n")
    assert err == "job train did not end within 3 s: SIGKILL\n"
    assert [body for method, _, body in jobs.calls if method == "POST"] == [{"now": False}, {"now": True}]
    assert waits[0] == [("0", 3.0), ("0", 5.0)]


def test_a_process_of_another_user_is_left_alone_and_that_is_said(gpushare, jobs, waits):
    jobs.spared = 2
    code, _, err = gpushare("stop", "train")
    assert (code, err) == (0, "job train; 2 processes left alone: another user's by now\n")
    assert stop.ask_to_stop(Client(jobs.socket), "train").endswith("; 2 processes left alone: another user's by now")


@pytest.mark.parametrize(("words", "told"), [(["train"], True), (["train", "--now"], False), (["serve"], False)])
def test_what_a_suspended_job_cannot_save_is_said(gpushare, jobs, waits, words, told):
    """Its program hears SIGTERM, and waits at its first call to the GPU."""
    jobs.jobs["0000000000000000"]["state"] = "suspended"
    code, _, err = gpushare("stop", *words)
    said = "job train is suspended: its program can save nothing from its GPU before it runs again"
    said += " (`gpushare resume 0000000000000000`)\n"
    assert (code, err) == (0, said if told else "")


def test_now_needs_no_word_about_sigkill(gpushare, jobs, waits):
    waits[1][1] = False
    assert gpushare("stop", "--now", "train") == (0, "stopped job train (0000000000000000)\n", "")


def test_a_job_that_does_not_end_is_an_error(gpushare, jobs, waits):
    waits[1].update({1: False, 2: False})
    code, out, err = gpushare("stop", "train")
    assert (code, out) == (1, "")
    assert err.startswith("gpushare: job train has not ended 5 s after SIGKILL\n")


def test_a_job_that_ends_just_before_sigkill(jobs, waits):
    waits[1][1] = False
    client = Client(jobs.socket)
    del jobs.jobs["0000000000000000"]
    assert stop.stop(client, "0000000000000000", 1.0, 1.0) is False


def test_whether_it_has_ended(jobs):
    client = Client(jobs.socket)
    assert not stop.has_ended(client, "train")
    assert not stop.wait_for_end(client, "train", 0.15)
    jobs.jobs["0000000000000000"]["state"] = "ended"
    assert stop.has_ended(client, "train")
    assert stop.wait_for_end(client, "train", 0.0)
    del jobs.jobs["0000000000000000"]
    assert stop.has_ended(client, "train")


def test_one_that_has_ended_stops_nobody(gpushare, jobs, waits):
    jobs.jobs["0000000000000001"]["state"] = "ended"
    code, _, err = gpushare("stop", "train", "serve")
    assert code == NoSuchJob.exit_code == 5
    assert "job serve (0000000000000001) has ended already" in err
    assert not [call for call in jobs.calls if call[0] == "POST"]


def test_a_daemon_that_goes_away_meanwhile_is_an_error(jobs):
    client = Client(jobs.socket)
    jobs.stop()
    with pytest.raises(GpushareError):
        stop.wait_for_end(client, "train", 1.0)


def test_the_notice_and_what_the_wrapper_does_not_say(start, fake, gpushare):
    process = start("run", "--name", "victim", "sleep", "30")
    fake.wait_for_call("GET", "/events")
    Client(fake.socket).stop("victim", now=True)
    assert process.wait(20) == 137
    assert process.stderr.read() == "gpushare: bob stops this job\n"
