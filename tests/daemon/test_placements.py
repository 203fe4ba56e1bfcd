"""Placements: an engine says what runs on which GPUs, and programs belong to them by where they run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_harness import GIB, GPU, GPU2, HERE, PYTHONPATH, InProcess, Subprocess, until
from other_user import ALICE, BOB, as_user, needs_root

from gpushare.errors import GpushareError, NoSuchJob, Refused, UsageError
from gpushare.history import JOBS
from gpushared.api.placement_routes import PlacementRoutes
from gpushared.clients.clients import Clients
from gpushared.core.persistence import OddNote
from gpushared.gpus.foreign_processes import UnhookedFinder, open_unhooked
from gpushared.jobs.placements import Placement, Placements

JOB = "00000000000000aa"
ME = os.geteuid()
GUEST = f"""
import json, os, subprocess, sys
sys.path.insert(0, {str(HERE)!r})
from pathlib import Path
from shim_client import ShimClient
from gpushare.client import Client
"""


def body(attempt: int = 1, gpus: tuple[str, ...] = (GPU,), **more: Any) -> dict[str, Any]:
    return {"attempt": attempt, "uid": ME, "gpus": list(gpus), "request": "2Gi", "limit": "3Gi", "job": JOB, **more}


class Guest:
    """A process of its own, with a session of its own, that connects as the library does when it is told to."""

    def __init__(self, shim: Path, uid: int | None = None) -> None:
        become = "" if uid is None else f"os.setgroups([]); os.setgid({uid}); os.setuid({uid})"
        line = f"""{GUEST}
{become}
for words in sys.stdin:
    words = json.loads(words)
    if "leave the session" in words:
        if child := os.fork():
            os._exit(os.waitpid(child, 0)[1])
        os.setsid()
    if "cgroup" in words:
        Path(words["cgroup"], "cgroup.procs").write_text(str(os.getpid()))
    if "hello" in words:
        client = ShimClient(Path({str(shim)!r}))
        welcome = client.hello(**words["hello"])
        print(json.dumps([welcome.status, f"{{welcome.job_id:016x}}", welcome.text]), flush=True)
    elif "main" in words:
        api, job = words["main"]
        child = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        Client(Path(api)).set_main(job, child.pid)
        print(child.pid, flush=True)
    elif "register" in words:
        api, body = words["register"]
        print(json.dumps(Client(Path(api)).register(body)), flush=True)
    else:
        print(os.getpid(), flush=True)
"""
        self.process = subprocess.Popen(
            [sys.executable, "-c", line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": PYTHONPATH, "PATH": os.environ["PATH"]},
            start_new_session=True,
        )
        self.pid = self.process.pid
        self("")

    def __call__(self, what: str, value: Any = None) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({what: value}).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline() or b'"it has ended"')

    def hello(self, **what: Any) -> tuple[str, str, str]:
        """("ok" or "refused", the job's id, the words)."""
        status, job, text = self("hello", what)
        return ("ok" if status == 0 else "refused", job, text)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def guest() -> Iterator[Callable[..., Guest]]:
    made: list[Guest] = []

    def make(*arguments: Any, **named: Any) -> Guest:
        made.append(Guest(*arguments, **named))
        return made[-1]

    yield make
    for one in made:
        one.end()


# ---- what an engine says -------------------------------------------------------------------------------


def test_a_placement_is_a_job_with_exactly_its_gpus_and_amounts(daemon: InProcess) -> None:
    made = daemon.client.place("slurm/17.0", body(gpus=(GPU2,), priority=7, grace=4.0, name="train"))
    assert (made["id"], made["attempt"], made["state"], made["pids"]) == ("slurm/17.0", 1, "placed", [])
    job = made["job"]
    assert (job["id"], job["name"], job["uid"], job["priority"], job["grace"]) == (JOB, "train", ME, 7, 4.0)
    assert job["command"] == ["slurm/17.0"], "what `gpushare ps` shows in place of a command"
    (gpu,) = job["gpus"]
    assert (gpu["uuid"], gpu["request"], gpu["limit"]) == (GPU2, 2 * GIB, 3 * GIB)
    assert daemon.client.placements() == [made]
    assert [one["id"] for one in daemon.client.jobs()] == [JOB]


def test_it_stays_without_a_program_until_its_engine_ends_it(daemon: InProcess, guest) -> None:
    one = guest(daemon.shim)
    daemon.client.place("a", body(session=one.pid))
    assert one.hello()[:2] == ("ok", JOB)
    one.end()
    until(lambda: daemon.client.placements()[0]["pids"] == [])
    assert daemon.client.placements()[0]["state"] == "placed" and daemon.client.job(JOB)["gpus"]
    daemon.client.displace("a", 1)
    assert daemon.client.placements() == [] and daemon.client.job(JOB)["state"] == "ended"


def test_the_same_again_changes_nothing_and_other_amounts_count_at_once(daemon: InProcess) -> None:
    first = daemon.client.place("a", body())
    assert daemon.client.place("a", body()) == first
    changed = daemon.client.place("a", body(request="1Gi", limit="6Gi", priority=3))
    gpu = changed["job"]["gpus"][0]
    assert (gpu["request"], gpu["limit"], changed["job"]["priority"]) == (GIB, 6 * GIB, 3)
    assert len(daemon.client.jobs()) == 1


def what_to_do(daemon: InProcess, id: str, **what: Any) -> tuple[str, str]:
    """Why it is refused, and the hint."""
    with pytest.raises(GpushareError) as found:
        daemon.client.place(id, body(**what))
    return str(found.value.code), str(found.value.hint)


def refused(daemon: InProcess, id: str, **what: Any) -> str:
    return what_to_do(daemon, id, **what)[0]


def test_an_attempt_that_is_over_is_never_taken_again(daemon: InProcess, guest) -> None:
    one = guest(daemon.shim)
    daemon.client.place("a", body(2, session=one.pid))
    assert one.hello()[0] == "ok"
    assert refused(daemon, "a", attempt=1) == "stale_attempt"
    assert what_to_do(daemon, "a", attempt=3, job=None) == ("attempt_runs", "end it first")
    with pytest.raises(Refused, match="attempt 1 of a is over"):
        daemon.client.displace("a", 1)
    assert daemon.client.displace("a", 2)["state"] == "leaving"
    its_program_runs = ("attempt_runs", "try again when its processes have ended")
    assert what_to_do(daemon, "a", attempt=3, job=None) == its_program_runs
    assert refused(daemon, "a", attempt=2) == "stale_attempt"
    one.end()
    until(lambda: not daemon.client.placements())
    assert refused(daemon, "a", attempt=2) == "stale_attempt"
    assert daemon.client.place("a", body(3, job=None))["attempt"] == 3


def test_what_does_not_fit_is_refused_and_leaves_nothing(daemon: InProcess) -> None:
    daemon.client.place("a", body(request="10Gi", limit="max"))
    assert refused(daemon, "b", request="10Gi", limit="max", job=None) == "not_admitted"
    assert refused(daemon, "c", request="99Gi", limit="max", job=None) == "too_large"
    assert refused(daemon, "d", gpus=("GPU-none",), job=None) == "no_such_gpu"
    assert refused(daemon, "e", gpus=(GPU, GPU), job=None) == "no_such_gpu"
    assert refused(daemon, "a", gpus=(GPU2,)) == "placed"
    assert refused(daemon, "f", job=JOB) == "bad_request", "that job is another's"
    assert [one["id"] for one in daemon.client.placements()] == ["a"] and len(daemon.client.jobs()) == 1
    assert daemon.client.place("b", body(gpus=(GPU2,), request="10Gi", limit="max", job=None))["state"] == "placed"


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempt": 0},
        {"attempt": None},
        {"uid": -1},
        {"uid": None},
        {"gpus": []},
        {"request": None},
        {"request": "4Gi", "limit": "2Gi"},
        {"job": "xyz"},
        {"cgroup": "a"},
        {"cgroup": "/"},
        {"cgroup": "/a/../b"},
        {"session": 4194300},
        {"colour": "blue"},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(daemon: InProcess, wrong) -> None:
    with pytest.raises((UsageError, Refused)):
        daemon.client.place("a", {**body(), **wrong})
    assert daemon.client.placements() == [] and daemon.client.jobs() == []


def test_a_placement_that_is_not_there(daemon: InProcess) -> None:
    with pytest.raises(NoSuchJob, match="no placement 'a'"):
        daemon.client.displace("a", 1)


# ---- who may say it ------------------------------------------------------------------------------------


@needs_root
def test_only_engines_place_and_others_see_their_own(make_daemon) -> None:
    daemon = make_daemon(system=True)
    daemon.client.place("a", body(uid=ALICE))
    for call in (lambda: daemon.client.place("b", body(job=None)), lambda: daemon.client.displace("a", 1)):
        code, words = as_user(ALICE, call)
        assert code == "no_engine" and "only engines place jobs" in words
    assert as_user(ALICE, lambda: [one["id"] for one in daemon.client.placements()]) == ["a"]
    assert as_user(BOB, daemon.client.placements) == []


@needs_root
def test_its_user_cannot_raise_it_nor_end_it(make_daemon, guest) -> None:
    daemon = make_daemon(system=True)
    daemon.client.place("a", body(uid=ALICE))
    code, _ = as_user(ALICE, lambda: daemon.client.change(JOB, {"limit": "16Gi"}))
    assert code == "placed"
    code, _ = as_user(
        ALICE, lambda: daemon.client.register({"name": "x", "limit": "max", "job": JOB, "command": ["x"]})
    )
    assert code == "placed", "who does not run there does not come back as its wrapper"
    as_user(ALICE, lambda: daemon.client.end(JOB, 0, None))
    (still,) = daemon.client.placements()
    assert still["state"] == "placed" and still["job"]["gpus"][0]["limit"] == 3 * GIB


@needs_root
def test_where_only_placements_may_run_nobody_else_has_a_job(make_daemon, guest) -> None:
    daemon = make_daemon(system=True, placed_only=True)
    code, words = as_user(ALICE, lambda: daemon.client.register({"name": "x", "command": ["x"]}))
    assert code == "placed" and "only jobs that an engine has placed" in words
    one = guest(daemon.shim, ALICE)
    status, _, words = one.hello(limit="max")
    assert status == "refused" and "only jobs that an engine has placed" in words
    daemon.client.place("a", body(uid=ALICE, session=one.pid))
    assert one.hello(limit="max")[:2] == ("ok", JOB)


# ---- which programs belong to it -----------------------------------------------------------------------


def limit_of(daemon: InProcess, job: str) -> int:
    return daemon.client.job(job)["gpus"][0]["limit"]


@needs_root
def test_no_environment_takes_a_program_out_of_its_placement(make_daemon, guest) -> None:
    """Its own budget, another job's id, none at all: what HELLO says is what the environment says."""
    daemon = make_daemon(system=True)
    one = guest(daemon.shim, ALICE)
    daemon.client.place("a", body(uid=ALICE, session=one.pid))
    daemon.client.place("b", body(uid=ALICE, job="00000000000000bb", gpus=(GPU2,), request="8Gi", limit="16Gi"))
    for said in ({}, {"limit": "max", "request": 8 * GIB}, {"job": "bb"}, {"job": "feed", "limit": "max"}):
        assert one.hello(**said)[:2] == ("ok", JOB), said
    assert limit_of(daemon, JOB) == 3 * GIB and len(daemon.client.jobs()) == 2


@needs_root
def test_nobody_enters_a_placement_by_naming_its_job(make_daemon, guest) -> None:
    daemon = make_daemon(system=True)
    inside, outside = guest(daemon.shim, ALICE), guest(daemon.shim, ALICE)
    daemon.client.place("a", body(uid=ALICE, session=inside.pid))
    status, _, words = outside.hello(job=JOB)
    assert status == "refused" and "does not run where" in words
    other = guest(daemon.shim, BOB)
    assert other.hello(job=JOB)[0] == "refused"


@needs_root
def test_a_session_is_left_by_no_setsid(make_daemon, guest) -> None:
    daemon = make_daemon(system=True)
    one = guest(daemon.shim, ALICE)
    daemon.client.place("a", body(uid=ALICE, session=one.pid))
    child = one("leave the session")
    assert os.getsid(child) == child != one.pid
    assert one.hello(limit="max")[:2] == ("ok", JOB), "it still descends from the session"


@needs_root
def test_another_users_program_in_it_is_refused_and_roots_is_not(make_daemon, guest) -> None:
    daemon = make_daemon(system=True)
    bobs, roots = guest(daemon.shim, BOB), guest(daemon.shim)
    daemon.client.place("a", body(uid=ALICE, session=bobs.pid))
    daemon.client.place("a", body(uid=ALICE, session=roots.pid))
    status, _, words = bobs.hello()
    assert status == "refused" and "placed for another user" in words
    assert roots.hello()[:2] == ("ok", JOB)


@needs_root
def test_a_placement_of_root_holds_programs_of_all_users_as_a_container_does(make_daemon, guest) -> None:
    daemon = make_daemon(system=True)
    one = guest(daemon.shim, ALICE)
    daemon.client.place("pod/1", body(uid=0, session=one.pid))
    assert one.hello()[:2] == ("ok", JOB)


def test_a_wrapper_inside_is_given_the_placements_job(daemon: InProcess, guest) -> None:
    """`gpushare run --limit max` in a job of the queue."""
    one = guest(daemon.shim)
    daemon.client.place("a", body(session=one.pid))
    ask = {"name": "mine", "command": ["x"], "request": "none", "limit": "max", "job": "feed" * 4}
    job = one("register", [str(daemon.client.api_socket), ask])
    assert job["id"] == JOB and job["gpus"][0]["limit"] == 3 * GIB
    daemon.client.end(JOB, 3, None)
    assert daemon.client.placements()[0]["state"] == "placed", "its engine ends it, not one of its programs"
    daemon.client.displace("a", 1)
    with pytest.raises(NoSuchJob):
        daemon.client.displace("a", 1)
    assert daemon.client.job(JOB)["outcome"]["exit_code"] == 3


@pytest.fixture
def quickly(monkeypatch) -> None:
    monkeypatch.setattr("gpushared.jobs.placements.DESERTED", 0.5)


def test_it_ends_by_itself_when_none_of_its_holders_lives_and_may_be_placed_again(
    daemon: InProcess, guest, quickly
) -> None:
    """Its engine is away. What it has ended itself, or holds by nothing, is left to it."""
    first, second = guest(daemon.shim), guest(daemon.shim)
    daemon.client.place("a", body(holder=first.pid))
    assert daemon.client.place("a", body(holder=second.pid))["holders"] == [first.pid, second.pid]
    daemon.client.place("b", body(job="00000000000000bb", gpus=(GPU2,)))
    first.end()
    time.sleep(2.5)
    assert [one["id"] for one in daemon.client.placements()] == ["a", "b"]
    second.end()
    until(lambda: [one["id"] for one in daemon.client.placements()] == ["b"])
    assert daemon.client.job(JOB)["state"] == "ended"
    assert daemon.client.place("a", body())["attempt"] == 1, "its engine knows better"


def test_it_does_not_end_by_itself_while_a_program_of_it_lives(daemon: InProcess, guest, quickly) -> None:
    holder, one = guest(daemon.shim), guest(daemon.shim)
    daemon.client.place("a", body(holder=holder.pid))
    daemon.client.place("a", body(session=one.pid))
    assert one.hello()[0] == "ok"
    holder.end()
    time.sleep(2.5)
    assert daemon.client.placements()[0]["state"] == "placed"
    one.end()
    until(lambda: daemon.client.placements() == [])


def test_another_holder_in_time_keeps_it(daemon: InProcess, guest, monkeypatch) -> None:
    monkeypatch.setattr("gpushared.jobs.placements.DESERTED", 4.0)
    first, second = guest(daemon.shim), guest(daemon.shim)
    daemon.client.place("a", body(holder=first.pid))
    for one, other in ((first, second), (second, None)):
        one.end()
        time.sleep(2.5)
        if other is not None:
            daemon.client.place("a", body(holder=other.pid))
    assert daemon.client.placements()[0]["state"] == "placed", "the time counts from the end of the last"


def test_a_wrapper_in_it_holds_it_and_its_programs_stay_inside_when_the_first_holder_is_killed(
    node: Subprocess, guest
) -> None:
    node.start()
    keeper = guest(node.directory / "shim.sock")
    node.client.place("a", body(session=keeper.pid, holder=keeper.pid))
    wrapper = keeper("leave the session")
    assert wrapper != keeper.pid, "its child, which goes on when it is killed"
    ask = {"name": "mine", "command": ["x"], "request": "none", "limit": "max", "job": JOB}
    assert keeper("register", [str(node.client.api_socket), ask])["id"] == JOB
    try:
        os.kill(keeper.pid, signal.SIGKILL)
        node.kill()
        node.start()
        (found,) = node.client.placements()
        assert wrapper in found["holders"] and wrapper in found["sessions"]
        assert keeper.hello()[:2] == ("ok", JOB)
    finally:
        os.kill(wrapper, signal.SIGKILL)


def test_nothing_starts_in_a_placement_that_was_ended(daemon: InProcess, guest) -> None:
    one, late = guest(daemon.shim), guest(daemon.shim)
    daemon.client.place("a", body(session=one.pid))
    daemon.client.place("a", body(session=late.pid))
    assert one.hello()[0] == "ok"
    daemon.client.displace("a", 1)
    status, _, words = late.hello(limit="max")
    assert status == "refused" and "has been ended" in words


# ---- cgroups -------------------------------------------------------------------------------------------


@pytest.fixture
def cgroups() -> Iterator[Path]:
    """A cgroup v2 file system, and two cgroups in it."""
    if os.geteuid() != 0:
        pytest.skip("only root makes cgroups")
    with tempfile.TemporaryDirectory(prefix="gs-cgroup-") as directory:
        if subprocess.run(["mount", "-t", "cgroup2", "none", directory], capture_output=True).returncode:
            pytest.skip("no cgroup v2 can be mounted here")
        root = Path(directory)
        made = [root / f"gpushare-test-{os.getpid()}", root / f"gpushare-test-{os.getpid()}" / "inner"]
        made.append(root / f"gpushare-test-{os.getpid()}-other")
        try:
            for one in made:
                one.mkdir()
            yield root
        finally:
            for one in reversed(made):
                for pid in (one / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                until(lambda one=one: not (one / "cgroup.procs").read_text().split())
                one.rmdir()
            subprocess.run(["umount", directory], check=True)


@needs_root
def test_programs_belong_to_a_placement_by_their_cgroup(make_daemon, guest, cgroups) -> None:
    daemon = make_daemon(system=True)
    name = f"gpushare-test-{os.getpid()}"
    daemon.client.place("a", body(uid=ALICE, cgroup=f"/{name}"))
    inner, other = "00000000000000bb", f"{name}-other"
    daemon.client.place("b", body(uid=ALICE, job=inner, cgroup=f"/{name}/inner", request="1Gi"))
    for where, job in ((name, JOB), (f"{name}/inner", inner)):
        one = guest(daemon.shim, ALICE)
        Path(cgroups, where, "cgroup.procs").write_text(str(one.pid))
        assert one.hello(job="feed", limit="max")[:2] == ("ok", job), where
    outside = guest(daemon.shim, ALICE)
    Path(cgroups, other, "cgroup.procs").write_text(str(outside.pid))
    assert outside.hello(job=JOB)[0] == "refused"
    assert outside.hello(limit=GIB)[1] not in (JOB, inner)


# ---- a restart -----------------------------------------------------------------------------------------


def test_placements_outlive_the_daemon_and_so_do_their_attempts(node: Subprocess, guest) -> None:
    node.start()
    one = guest(node.directory / "shim.sock")
    node.client.place("a", body(4, session=one.pid))
    node.client.place("b", body(1, job="00000000000000bb", gpus=(GPU2,)))
    node.client.place("c", body(9, job="00000000000000cc", gpus=(GPU2,)))
    node.client.displace("c", 9)
    node.kill()
    node.start()
    assert [(found["id"], found["attempt"]) for found in node.client.placements()] == [("a", 4), ("b", 1)]
    assert node.client.job(JOB)["gpus"][0]["limit"] == 3 * GIB
    assert one.hello(limit="max")[:2] == ("ok", JOB), "it is found by its session again"
    for id, attempt in (("a", 3), ("c", 9)):
        with pytest.raises(Refused):
            node.client.place(id, body(attempt, job=None, gpus=(GPU2,)))
    assert node.client.place("c", body(10, job=None, gpus=(GPU2,)))["attempt"] == 10


def test_the_end_of_its_program_ends_no_placement_after_a_restart_either(node: Subprocess, guest) -> None:
    node.start()
    one = guest(node.directory / "shim.sock")
    node.client.place("a", body(session=one.pid))
    program = one("main", [str(node.client.api_socket), JOB])
    node.kill()
    node.start()
    os.kill(program, signal.SIGKILL)
    time.sleep(1.0)
    assert [(found["id"], found["state"]) for found in node.client.placements()] == [("a", "placed")]
    assert node.client.place("a", body())["attempt"] == 1


NOTE: dict[str, object] = {"id": "a", "attempt": 4, "cgroups": ["/one", "/two"], "sessions": [[7, 70], [8, 80]]}


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, {}),
        ({"cgroups": []}, {"cgroups": ()}),
        ({"more": 1}, {}),
        ({"holders": [[9, 90], [9]]}, {"holders": ((9, 90),)}),
        ({"sessions": []}, {"sessions": ()}),
        (
            {"sessions": [[7, 70], [8, "80"], ["8", 80], [8], [8, 80, 800], [True, 80], None, {}]},
            {"sessions": ((7, 70),)},
        ),
    ],
)
def test_a_note_of_a_placement_is_read_without_the_sessions_that_are_none(changes, fields) -> None:
    found = Placement.noted(JOB, NOTE | changes)
    sound = Placement("a", 4, JOB, ("/one", "/two"), ((7, 70), (8, 80)))
    assert found == replace(sound, **fields)
    assert Placement.noted(JOB, found.note()) == found


def test_a_note_of_an_earlier_version_has_one_cgroup_or_none() -> None:
    earlier = {name: value for name, value in NOTE.items() if name != "cgroups"}
    for cgroup, cgroups in (("/one", ("/one",)), ("", ()), (None, ())):
        assert Placement.noted(JOB, earlier | {"cgroup": cgroup}).cgroups == cgroups


@pytest.mark.parametrize(
    "odd",
    [
        *({"id": 1}, {"id": None}, {"attempt": "4"}, {"attempt": True}, {"attempt": None}, {"cgroups": "/one"}),
        *({"cgroups": ["/one", 2]}, {"cgroups": None}, {"sessions": None}, {"sessions": {}}, {"sessions": "7"}),
        {"holders": 7},
    ],
)
def test_a_note_that_is_no_placements(odd) -> None:
    with pytest.raises(OddNote):
        Placement.noted(JOB, NOTE | odd)


def test_a_daemon_that_lost_its_notes_is_told_again(node: Subprocess, guest) -> None:
    node.start()
    one = guest(node.directory / "shim.sock")
    node.client.place("a", body(session=one.pid))
    assert one.hello()[0] == "ok"
    node.kill()
    (node.directory / "state.json").unlink()
    node.start()
    assert node.client.placements() == [] and node.client.job(JOB)["state"] == "running"
    made = node.client.place("a", body(session=one.pid))
    assert made["job"]["id"] == JOB and made["state"] == "placed"


def test_a_daemon_that_lost_its_notes_and_saw_no_program_is_told_again(gpushared: Subprocess) -> None:
    """It has read from its history that the job has ended."""
    again, history = body(gpus=("0",)), str(gpushared.directory / "history")
    gpushared.start("--history", history)
    gpushared.client.place("a", again)
    until(lambda: any(path.stat().st_size for path in Path(history).rglob(f"*.{JOBS}")))
    gpushared.kill()
    (gpushared.directory / "state.json").unlink()
    gpushared.start("--history", history)
    assert gpushared.client.placements() == [] and gpushared.client.job(JOB)["state"] == "ended"
    assert gpushared.client.place("a", again)["job"]["state"] == "running"
    with pytest.raises(UsageError, match="there is a job"):
        gpushared.client.place("b", again)


def test_a_placement_may_have_several_cgroups_and_all_are_remembered(node: Subprocess) -> None:
    node.start()
    made = node.client.place("a", body(cgroups=["/x/pod1", "/x/pod2"]))
    assert made["cgroups"] == ["/x/pod1", "/x/pod2"]
    assert node.client.place("a", body())["cgroups"] == ["/x/pod1", "/x/pod2"], "none said: they stay"
    assert node.client.place("a", body(cgroup="/x/pod3"))["cgroups"] == ["/x/pod3"]
    node.kill()
    node.start()
    assert node.client.placements()[0]["cgroups"] == ["/x/pod3"]


def test_of_placements_with_the_same_cgroup_a_program_has_the_one_that_it_names(monkeypatch) -> None:
    """Two containers of a pod with a claim each. Without a name it has the first, and never one from elsewhere."""
    table = Placements()
    for number, cgroup in ((1, "/pod"), (2, "/pod"), (3, "/elsewhere")):
        table.put(Placement(f"p{number}", 1, f"{number:016x}", (cgroup,)))
    monkeypatch.setattr("gpushared.jobs.placements.cgroups_of", lambda _: ["/pod/container"])
    found = [table.of_process(1, f"{number:016x}") for number in (1, 2, 3, 0)]
    assert [one.id for one in found if one is not None] == ["p1", "p2", "p1", "p1"]
    table.put(Placement("inner", 1, "00000000000000ff", ("/pod/container",)))
    assert table.of_process(1, f"{2:016x}").id == "inner", "the nearer one counts first"


def test_notes_of_an_earlier_version_have_one_cgroup() -> None:
    note = {"id": "a", "attempt": 1, "cgroup": "/pod", "sessions": []}
    assert Placement.noted(JOB, note).cgroups == ("/pod",)
    assert Placement.noted(JOB, note | {"cgroup": ""}).cgroups == ()


def test_an_engine_says_all_that_users_may_say_of_a_job(daemon: InProcess) -> None:
    said = {"on_reclaim": "term", "min_run_time": 5.0, "lend": False, "priority": 3, "grace": 2.0}
    job = daemon.client.place("a", body(**said))["job"]
    assert (job["on_reclaim"], job["lend"], job["priority"], job["grace"]) == (["term", "kill"], False, 3, 2.0)
    assert daemon.shell.core.jobs[JOB].spec.min_run_time == 5.0


# ---- the table -----------------------------------------------------------------------------------------


def test_of_placements_that_are_over_the_last_attempts_are_remembered_in_a_bounded_number() -> None:
    table = Placements()
    for number in range(10_100):
        table.put(Placement(f"p{number}", 5, f"{number:016x}"))
        table.closed(f"{number:016x}")
    assert len(table.attempts) == 10_000 and list(table) == []
    assert table.check("p0", 1) is None, "forgotten"
    with pytest.raises(Refused, match="the last was 5"):
        table.check("p10099", 5)
    assert table.check("p10099", 6) is None


def test_a_program_without_the_library_is_charged_to_the_placement_that_it_runs_in() -> None:
    """Whatever it has in its environment, and whoever its user is."""
    me, jobs = os.getpid(), {"aa": SimpleNamespace(spec=SimpleNamespace(uid=ALICE))}
    inside = UnhookedFinder(lambda pid: "aa" if pid == me else None)
    (found,) = inside.among(GPU, {me: 5 * GIB}, Clients(), jobs).items()
    assert (found[0], found[1].job) == (me, "aa")
    assert UnhookedFinder().among(GPU, {me: 5 * GIB}, Clients(), jobs) == {}
    process = open_unhooked(me, "aa", lambda _: "aa")
    assert process is not None
    process.close()
    assert open_unhooked(me, "aa", lambda _: "bb") is None


def test_without_placements_no_process_is_looked_at(monkeypatch) -> None:
    monkeypatch.setattr("gpushared.jobs.placements.cgroups_of", lambda _: pytest.fail("it was"))
    assert Placements().of_process(os.getpid()) is None


def test_the_story_of_a_change_shows_bytes_that_an_engine_said_with_their_unit(daemon: InProcess) -> None:
    daemon.client.place("a", body(request="2000000000", limit="3000000000"))
    daemon.client.place("a", body(request="2000000000", limit="5Gi"))
    said = [one["text"] for one in daemon.client.records() if "its budget is now" in one["text"]]
    assert said == ["its budget is now: request 1.9 GiB, limit 5Gi, priority 0"]


@pytest.mark.parametrize("gone", ["placement", "record", "job"])
def test_what_is_over_for_any_of_those_who_know_it_is_not_changed(gone) -> None:
    """The answer does not depend on who has heard of its end first."""
    job = SimpleNamespace(bounds={GPU: None})
    record = SimpleNamespace(id="a", spec=SimpleNamespace(devices=None))
    shell = SimpleNamespace(
        registry=SimpleNamespace(get=lambda id: None if gone == "record" else record),
        core=SimpleNamespace(jobs={} if gone == "job" else {"a": job}),
    )
    known = None if gone == "placement" else SimpleNamespace(job="a", attempt=1, id="t")
    routes = PlacementRoutes.__new__(PlacementRoutes)
    routes.shell = shell  # type: ignore[assignment]
    with pytest.raises(Refused) as refused:
        routes._change(known, SimpleNamespace(spec=SimpleNamespace(devices=(), uid=0)))  # type: ignore[arg-type]
    assert refused.value.code == "stale_attempt"
