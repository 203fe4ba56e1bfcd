"""Memory that is kept for jobs to come, from the command line to the daemon's notes; and the stream of what happens."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time

from integration.node import GIB, PATIENCE, Node, gone, wait_for


def reservations(node: Node) -> list[dict[str, object]]:
    return list(json.loads(node.gpushare("reserve", "--list", "-o", "json").stdout)["reservations"])


def test_what_is_reserved_is_there_for_the_job_in_it_and_lent_until_then(node: Node) -> None:
    made = node.gpushare("reserve", "8Gi", "--name", "mine")
    assert made.returncode == 0, made.stderr
    assert made.stdout == "reserved 8.0 GiB on GPU 0 as mine, until it is released\n"

    other = node.gpushare("run", "--name", "other", "--request", "8Gi", "true")
    assert other.returncode == 125
    assert "reserved as mine (" in other.stderr
    nowhere = node.gpushare("run", "--reservation", "yours", "true")
    assert nowhere.returncode == 125
    assert "no reservation 'yours'" in nowhere.stderr
    again = node.gpushare("reserve", "1Gi", "--name", "mine")
    assert again.returncode == 2
    assert "there is a reservation mine already" in again.stderr

    borrower = node.puppet("borrower", "--request", "1Gi", "--limit", "15Gi", "--grace", "300ms")
    borrower.alloc(12 * GIB)
    owner = node.puppet("owner", "--reservation", "mine", "--request", "6Gi")
    owner.alloc(5 * GIB)
    assert borrower.wait() in {137, 143}
    (line,) = node.gpushare("reserve", "--list").stdout.splitlines()[1:]
    assert line.split()[:2] == ["0", "mine"]
    assert "8.0 GiB" in line
    assert "2.0 GiB" in line, "what is left of it for others"
    assert line.split()[-1] == "1", "job"

    freed = node.gpushare("release", "mine")
    assert freed.stdout == "released 2.0 GiB on GPU 0; 1 job runs on with what it had of it\n"
    assert node.gpushare("release", "mine").returncode == 5
    assert node.gpushare("reserve", "--list").stderr == "no reservations\n"
    assert node.job("owner")["gpus"][0]["request"] == 6 * GIB
    assert owner.end() == 0


def test_it_outlives_a_daemon_that_is_killed(node: Node) -> None:
    assert node.gpushare("reserve", "8Gi", "--name", "mine", "--for", "1h").returncode == 0
    inside = node.puppet("inside", "--reservation", "mine", "--request", "5Gi")
    (before,) = reservations(node)
    node.kill_daemon()
    wait_for(lambda: node.job("inside")["state"] == "running", "its wrapper to start another daemon, which knows it")
    (after,) = reservations(node)
    assert (after["id"], after["name"], after["jobs"]) == (before["id"], "mine", before["jobs"])
    assert abs(float(after["until"]) - float(before["until"])) < 5.0, "the time goes on meanwhile"  # type: ignore[arg-type]
    assert after["gpus"] == before["gpus"]
    refused = node.gpushare("run", "--request", "9Gi", "true")
    assert refused.returncode == 125
    assert "reserved as mine" in refused.stderr
    inside.alloc(4 * GIB)
    assert inside.end() == 0


def test_a_daemon_of_ones_own_stays_while_something_is_reserved(node: Node) -> None:
    pid = node.start_daemon('[daemon]\nidle_exit = "2s"\n')
    assert node.gpushare("reserve", "1Gi").returncode == 0
    time.sleep(3.5)
    assert not gone(pid), "it would forget what it has promised"
    assert node.gpushare("release", "reserved").returncode == 0
    wait_for(lambda: gone(pid), "the daemon to go idle and end")


def test_a_reservation_ends_with_its_time(node: Node) -> None:
    assert node.gpushare("reserve", "8Gi", "--for", "2s").returncode == 0
    waiting = node.run("--name", "late", "--request", "10Gi", "--wait", "20s", "true")
    assert waiting.wait(20) == 0
    assert reservations(node) == []


def test_events_are_followed_as_they_come_until_interrupted(node: Node) -> None:
    a_while = node.run("--name", "first", "--request", "1Gi", "sleep", "1000")
    wait_for(lambda: node.job("first")["state"] == "running", "it to be admitted")
    follower = node.spawn([sys.executable, "-m", "gpushare", "events", "--follow", "-n", "1", "-o", "jsonl"])
    before = _next(follower)
    assert (before["event"], before["name"], before["schema"]) == ("admitted", "first", "gpushare.event/1")
    assert node.gpushare("reserve", "2Gi", "--name", "mine").returncode == 0
    assert _next(follower)["event"] == "reserved"
    a_while.terminate()
    assert _next(follower)["event"] == "ended"
    follower.send_signal(signal.SIGINT)
    out, err = follower.communicate(timeout=PATIENCE)
    assert follower.returncode == 130
    assert err.strip() == "", "no traceback; an empty line closes the terminal's ^C"
    assert out == ""


def test_events_of_one_job_in_words(node: Node) -> None:
    for name in ("one", "two"):
        assert node.gpushare("run", "--name", name, "--request", "1Gi", "true").returncode == 0
    follower = node.spawn([sys.executable, "-m", "gpushare", "events", "--follow", "--job", "two"])
    assert follower.stdout is not None
    line = follower.stdout.readline().split(None, 2)
    assert line[1] == "admitted"
    assert line[2] == "two: admitted on GPU 0 (1.0 GiB requested, limit 1.0 GiB)\n"
    node.kill_daemon()
    out, err = follower.communicate(timeout=PATIENCE)
    assert "one" not in out
    assert follower.returncode == 3
    assert err.startswith("gpushare: the daemon has ended this stream")


def _next(follower: subprocess.Popen[str]) -> dict[str, object]:
    """The record that comes next, within the patience of a test."""
    assert follower.stdout is not None
    ready, _, _ = select.select([follower.stdout], [], [], PATIENCE)
    assert ready, "no record came"
    return dict(json.loads(follower.stdout.readline()))
