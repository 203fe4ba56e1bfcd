"""Programs that `gpushare run` and container engines start beside a job, and a daemon that does not start."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from gpushare import checkpoint, container_hook, follower, start_daemon
from gpushare.cdi import CREATED, OVER
from gpushare.errors import DaemonUnreachable, NoSuchJob


class Follows(follower.Follower):
    """One whose daemon answers as it is told: a job's state, or an error."""

    def __init__(self, *answers):
        self.answers, self.pauses, self.did = list(answers), [], []
        super().__init__(SimpleNamespace(job=self.state), "j1")

    def state(self, _job):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"state": answer}

    def commands(self):
        reader, writer = os.pipe()
        os.write(writer, b"x")
        stream = SimpleNamespace(ended=False, fileno=lambda: reader, closed=False)

        def read():
            stream.ended = True
            return [{"do": 1}, {"do": 2}]

        def close():
            os.close(reader)
            os.close(writer)

        stream.read, stream.close = read, close
        return stream

    def answer(self, command):
        self.did.append(command["do"])


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(follower.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(follower.time, "sleep", sleep)
    return pauses


def test_a_follower_does_each_command_until_the_job_is_over(clock):
    one = Follows("running", "running", "ended")
    one.run()
    assert one.did == [1, 2, 1, 2] and one.answers == [] and clock == [0.1, 0.1]


def test_a_follower_ends_with_a_job_that_the_daemon_does_not_know(clock):
    one = Follows(NoSuchJob("j1"), "running")
    one.run()
    assert one.did == [] and clock == []


def test_a_follower_tries_again_more_and_more_seldom_and_from_the_start_after_an_answer(clock):
    gone = DaemonUnreachable("gone")
    one = Follows(*[gone] * 6, "running", OSError("gone"), "ended")
    one.run()
    assert clock == [0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 0.1, 0.2]


def test_without_wrapper_and_daemon_a_follower_ends_after_ten_minutes(clock):
    gone = DaemonUnreachable("gone")
    one = Follows(*[gone] * 1000)
    one.parent = 0
    one.run()
    assert 600 <= sum(clock) < 602
    one = Follows(*[gone] * 1000, "ended")
    one.run()
    assert one.answers == [], "with its wrapper it waits on"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", []),
        ("\n \n", []),
        ("one\n", ["one"]),
        ("one\ntwo\n\n", ["two"]),
        (
            "gpushared: no driver  \n  looked in: /x\nhint: install it\n\n",
            ["no driver", "looked in: /x", "hint: install it"],
        ),
        ("gpushared: first\nINFO x\ngpushared: last\n", ["last"]),
        ("gpushared: no driver\nTraceback\n", ["Traceback"]),
        ("gpushared: many\n" + "  more\n" * 9, ["many", *["more"] * 5]),
    ],
)
def test_what_a_daemon_said_last(log, said):
    assert start_daemon.last_error(log) == said


@pytest.mark.parametrize(
    ("coming_up", "said", "why"),
    [(True, [], "no answer within 2.5 s"), (False, ["no driver", "x"], "it ended at once")],
)
def test_why_a_daemon_did_not_start(coming_up, said, why):
    starter = SimpleNamespace(coming_up=coming_up, last_error=lambda: said, runtime=SimpleNamespace(log="/run/log"))
    error = start_daemon.did_not_start(starter, 2.5)
    assert error.message == f"the daemon did not start: {why}" and error.code == "did_not_start"
    assert list(error.facts) == [*([("it says", "no driver\nx")] if said else []), ("log", "/run/log")]
    assert "gpushare doctor" in error.hint


class Placing:
    """A client with these placements; it notes what it is asked."""

    def __init__(self, *placements):
        self.there, self.did = list(placements), []

    def placements(self):
        return self.there

    def place(self, id, body):
        self.did.append(("place", id, body))

    def displace(self, id, attempt):
        self.did.append(("displace", id, attempt))
        raise NoSuchJob(id)


def placement(id, *, pids=(), sessions=(), cgroups=()):
    return {"id": id, "attempt": 3, "pids": list(pids), "sessions": list(sessions), "cgroups": list(cgroups)}


CONTAINER = "abcdef0123456789" * 4


def test_a_container_is_over_by_its_own_id_alone():
    client = Placing(
        placement(f"container/{CONTAINER}/1"), placement("container/other/1"), placement(f"x/{CONTAINER}/1")
    )
    container_hook.leave(client, CONTAINER)
    assert client.did == [("displace", f"container/{CONTAINER}/1", 3)]


def test_a_container_is_placed_and_those_that_are_gone_are_displaced():
    client = Placing(
        placement("container/gone/1", sessions=[2**22 + 1], cgroups=["/no/such/group"]),
        placement("container/here/1", sessions=[os.getpid()]),
        placement("container/busy/1", pids=[1]),
        placement("job/gone/1"),
    )
    container_hook.enter(client, {"name": "d", "request": 1}, CONTAINER, os.getpid())
    displaced, (did, id, body) = client.did[:-1], client.did[-1]
    assert displaced == [("displace", "container/gone/1", 3)]
    assert did == "place" and id.startswith(f"container/{CONTAINER}/")
    assert body == {"name": "d-abcdef012345", "request": 1, "session": os.getpid()}, "it has no cgroup of its own"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("0::/user.slice/x\n", []),
        (f"0::/machine.slice/libpod-{CONTAINER}.scope/container/below\n", [f"/machine.slice/libpod-{CONTAINER}.scope"]),
        (f"2:memory:/b/{CONTAINER}\n1:cpu:/a/{CONTAINER}\n0::/\n", [f"/a/{CONTAINER}", f"/b/{CONTAINER}"]),
        (f"0::/cri:x/{CONTAINER}:y/z\n", [f"/cri:x/{CONTAINER}:y"]),
        (f"2:memory:/b/{CONTAINER}\n1:cpu:/b/{CONTAINER}/x\n", [f"/b/{CONTAINER}"]),
    ],
)
def test_the_cgroups_of_a_container_itself(text, where):
    assert container_hook.where_runs(text, CONTAINER) == where


@pytest.mark.parametrize("when", [CREATED, OVER])
def test_a_hook_without_a_daemon_fails_and_says_so(tmp_path, monkeypatch, capsys, when):
    state = json.dumps({"id": CONTAINER, "pid": os.getpid()})
    monkeypatch.setattr("sys.stdin", SimpleNamespace(read=lambda: state))
    assert container_hook.main([when, str(tmp_path / "api.sock"), '{"name": "d"}']) == 1
    assert "gpushare: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "state"),
    [([], "{}"), ([CREATED, "/x", "{}"], "no json"), ([CREATED, "/x", "{}"], "{}"), ([OVER, "/x", ""], '{"pid": 1}')],
)
def test_what_is_no_hook_of_a_container(monkeypatch, capsys, arguments, state):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(read=lambda: state))
    assert container_hook.main(arguments) == 1
    assert "this is no hook of a container" in capsys.readouterr().err


def test_a_follower_that_is_killed_is_started_again_twenty_times_at_most(monkeypatch):
    pids = iter(range(1001, 1100))
    started, ended, waits = [], [], []

    def spawn(*arguments, **_more):
        started.append(arguments)
        return next(pids)

    monkeypatch.setattr(follower.os, "posix_spawn", spawn)

    def waitpid(pid, how):
        assert pid > 0, "0 would be any child, also the program"
        waits.append((pid, how))
        return pid, signal.SIGKILL

    monkeypatch.setattr(follower.os, "waitpid", waitpid)
    monkeypatch.setattr(follower.os, "kill", lambda pid, number: ended.append((pid, number)))
    environ = {"LD_PRELOAD": "x", "CUDA_VISIBLE_DEVICES": "0", "HOME": "/h"}
    kept = follower.KeptFollower(follower.SUSPENDER, environ, "j1", "/api", without=follower.OWN_GPUS)
    assert started[0][1][-3:] == ["gpushare.suspender", "j1", "/api"] and started[0][2] == {"HOME": "/h"}
    for _ in range(30):
        kept.look_after()
    assert len(started) == 21 and kept.pid == 0
    kept.end()
    assert ended == [], "there is none to end"
    other = follower.KeptFollower(follower.HOOK_RUNNER, environ, "j1", "/api")
    other.end()
    assert ended == [(1022, signal.SIGKILL)] and other.pid == 0
    assert waits[-1] == (1022, 0) and {how for _, how in waits[:-1]} == {os.WNOHANG}, "only its end is waited for"
    assert started[-1][2] == {"CUDA_VISIBLE_DEVICES": "0", "HOME": "/h"}


def test_a_follower_has_no_part_in_the_terminal_the_output_and_the_signals_of_its_wrapper(monkeypatch):
    given = []
    monkeypatch.setattr(follower.os, "posix_spawn", lambda *_, **more: given.append(more) or 7)
    follower.KeptFollower(follower.SUSPENDER, {}, "j1", "/api")
    (more,) = given
    assert more["setsid"] is True and set(more["setsigmask"]) == set(), "its wrapper has blocked them"
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT} <= set(more["setsigdef"])
    opened = [(how, fd, path, flags) for how, fd, path, flags, _ in more["file_actions"]]
    assert opened == [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR) for fd in (0, 1, 2)]


def test_a_follower_that_is_alive_is_left_alone(monkeypatch):
    started = []
    monkeypatch.setattr(follower.os, "posix_spawn", lambda *some, **_: started.append(some) or 7)
    monkeypatch.setattr(
        follower.os, "waitpid", lambda pid, how: (0, 0) if how == os.WNOHANG else pytest.fail("it waits")
    )
    kept = follower.KeptFollower(follower.SUSPENDER, {}, "j1", "/api")
    for _ in range(3):
        kept.look_after()
    assert len(started) == 1 and kept.pid == 7


def test_a_daemon_that_is_silent_for_a_quarter_of_a_minute_has_gone(clock, monkeypatch):
    one = Follows("running")
    closed, waited = [], []
    stream = SimpleNamespace(ended=False, close=lambda: closed.append(True))
    monkeypatch.setattr(one, "commands", lambda: stream)
    monkeypatch.setattr(follower, "select", SimpleNamespace(select=lambda *some: waited.append(some) or ([], [], [])))
    assert one._follow() is False
    assert waited == [([stream], [], [], 15.0)] and closed == [True]


def test_a_stream_is_closed_whatever_a_command_does(clock, monkeypatch):
    one = Follows("running")
    closed = []
    stream = SimpleNamespace(ended=False, close=lambda: closed.append(True), read=lambda: [{"do": 1}])

    def fails(_command):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(one, "commands", lambda: stream)
    monkeypatch.setattr(one, "answer", fails)
    monkeypatch.setattr(follower, "select", SimpleNamespace(select=lambda *_: ([stream], [], [])))
    with pytest.raises(OSError, match="Input/output error"):
        one._follow()
    assert closed == [True]


@pytest.mark.parametrize(
    ("when", "done"),
    [
        (CREATED, [("enter", "/run/api.sock", {"name": "d"}, CONTAINER, 7)]),
        (OVER, [("leave", "/run/api.sock", CONTAINER)]),
        ("prestart", []),
    ],
)
def test_a_hook_does_what_its_runtime_calls_it_for(monkeypatch, when, done):
    did = []
    state = json.dumps({"id": CONTAINER, "pid": 7})
    monkeypatch.setattr("sys.stdin", SimpleNamespace(read=lambda: state))
    monkeypatch.setattr(container_hook, "Client", str)
    monkeypatch.setattr(container_hook, "enter", lambda *given: did.append(("enter", *given)))
    monkeypatch.setattr(container_hook, "leave", lambda *given: did.append(("leave", *given)))
    assert container_hook.main([when, "/run/api.sock", '{"name": "d"}']) == 0
    assert did == done


def test_as_a_program_it_has_its_arguments_and_its_status(tmp_path):
    line = [sys.executable, "-P", "-m", "gpushare.container_hook", CREATED, str(tmp_path / "api.sock"), '{"name": "d"}']
    state = json.dumps({"id": CONTAINER, "pid": os.getpid()})
    done = subprocess.run(line, input=state, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"no daemon listens at {tmp_path}/api.sock" in done.stderr


@pytest.mark.parametrize(("module", "exits"), [(follower.SUSPENDER, [0]), (follower.HOOK_RUNNER, [])])
def test_a_followers_arguments_are_its_job_and_the_daemons_socket(monkeypatch, module, exits):
    """A suspender ends at once, even if a thread of the driver hangs."""

    def no_driver(*_):
        raise checkpoint.DriverError("no driver")

    ran, exited = [], []
    monkeypatch.setattr(checkpoint, "DriverCheckpoints", no_driver)
    monkeypatch.setattr(follower.Follower, "run", lambda self: ran.append((self.job, str(self.client.api_socket))))
    monkeypatch.setattr(os, "_exit", exited.append)
    monkeypatch.setattr(sys, "argv", [module, "j1", "/run/api.sock"])
    monkeypatch.delitem(sys.modules, module, raising=False)
    runpy.run_module(module, run_name="__main__")
    assert ran == [("j1", "/run/api.sock")] and exited == exits
