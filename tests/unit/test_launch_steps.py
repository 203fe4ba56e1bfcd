"""`gpushare run` step by step, beside a daemon that answers as it is told: how it registers its job, waits in the
queue while daemons come and go, withdraws, and reports."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare import launch
from gpushare.advice import NOTHING_SEEN
from gpushare.daemon_link import AWAY, FOREVER, RETRY_FIRST, WAITED_FOR
from gpushare.errors import CommandNotFound, DaemonUnreachable, GpushareError, Refused, UsageError
from gpushare.exit_message import Ending
from gpushare.launch import Launch, Options, default_name, working_directory
from gpushare.paths import library

GIB = 2**30
KEPT = {signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD}
"""Signals that do not end a process."""
GPU = {"uuid": "GPU-a", "index": 0, "name": "sim", "total": 16 * GIB, "request": GIB, "limit": 4 * GIB}
JOB = {
    "id": "00000000000000a1",
    "name": "true",
    "gpus": [GPU],
    "request_source": "--request",
    "limit_source": None,
    "grace": None,
}


class Daemon:
    """Each registration has the next answer; an error is raised. Also the node that it is on."""

    driver, runtime = "sim", None

    def __init__(self, *answers, starter=None, takes=0.0, reserved=()) -> None:
        self.answers, self.starter, self.takes, self.reserved = list(answers), starter, takes, reserved
        self.asked: list[tuple[dict[str, object], float | None]] = []
        self.did: list[tuple[object, ...]] = []
        self.clock: Clock | None = None

    def client(self, timeout: float = 10.0):
        self.timeout = timeout
        return self

    def register(self, body, wait=None):
        self.asked.append((body, wait))
        if self.clock is not None:
            self.clock.now += self.takes
        answer = self.answers.pop(0) if self.answers else JOB
        if isinstance(answer, Exception):
            raise answer
        return answer

    def reservations(self):
        return list(self.reserved)

    def set_main(self, job, pid) -> None:
        self.did.append(("main", job, pid))

    def end(self, job, code, number) -> None:
        self.did.append(("end", job, code, number))
        if self.answers:
            raise self.answers.pop(0)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


class Starter:
    def __init__(self) -> None:
        self.starts = 0

    def start(self) -> None:
        self.starts += 1


@pytest.fixture(autouse=True)
def _never_replaced(monkeypatch):
    """A program in the place of these tests would end them, as if all were well."""
    monkeypatch.setattr(launch.spawn, "exec_program", lambda *_: AssertionError("the tests would be replaced"))


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(launch, "time", clock)
    return clock


def launched(daemon: Daemon | None, *, environ=None, flags=None, **options) -> Launch:
    environ = {"XDG_CONFIG_HOME": "/nowhere", **(environ or {})}
    one = Launch(Options(["true"], {"GPUSHARE_LIMIT": "4Gi", **(flags or {})}, **options), environ)
    one.node = daemon  # type: ignore[assignment]
    return one


def gone(code="hung_up") -> DaemonUnreachable:
    return DaemonUnreachable("it hung up", code=code)


OFF, OBSERVE = {"GPUSHARE_MODE": "off", "GPUSHARE_LIMIT": None}, {"GPUSHARE_MODE": "observe"}


# ---- the job is registered ------------------------------------------------------------------------------


def test_a_job_has_an_id_of_the_wrappers_own_unless_one_is_given(monkeypatch):
    daemon = Daemon()
    one = launched(daemon)
    one._admit()
    assert one.job is JOB
    (body, wait), *_ = daemon.asked
    assert wait is None and body["wait"] is None
    assert len(body["job"]) == 16 and int(body["job"], 16) > 0
    monkeypatch.setattr(launch.os, "urandom", bytes)
    launched(daemon)._admit()
    assert daemon.asked[-1][0]["job"] == f"{1:016x}", "an id is never 0"
    launched(daemon, job="00000000000000ff")._admit()
    assert daemon.asked[-1][0]["job"] == "00000000000000ff"


def test_a_daemon_that_ends_after_its_last_job_is_followed_by_the_next_and_the_job_is_the_same(monkeypatch):
    first, second = Daemon(gone(), starter=Starter()), Daemon(gone(), JOB, starter=Starter())
    monkeypatch.setattr(launch.locate, "for_run", lambda _settings: second)
    one = launched(first)
    one._admit()
    assert one.job is JOB and one.node is second
    assert len({body["job"] for body, _ in (*first.asked, *second.asked)}) == 1
    assert (len(first.asked), len(second.asked)) == (1, 2)


@pytest.mark.parametrize(
    ("codes", "starter", "asked"),
    [
        (["hung_up"] * 9, Starter(), 4),
        (["hung_up"] * 9, None, 1),
        (["timed_out"] * 9, Starter(), 1),
        (["hung_up", "garbage"], Starter(), 2),
    ],
)
def test_but_a_few_times_only_and_not_one_that_hangs_or_is_none_of_ours(monkeypatch, codes, starter, asked):
    daemon = Daemon(*[gone(code) for code in codes], starter=starter)
    monkeypatch.setattr(launch.locate, "for_run", lambda _settings: daemon)
    with pytest.raises(DaemonUnreachable):
        launched(daemon)._admit()
    assert len(daemon.asked) == asked


def test_the_budget_is_told_with_v_and_a_caution_unless_q(capfd, monkeypatch):
    monkeypatch.setattr(launch, "start_warnings", lambda job, options: ["mind the gap"])
    budget = "gpushare: job true (00000000000000a1) on GPU 0 (sim): request 1.0 GiB (from --request), limit 4.0 GiB\n"
    caution = "gpushare: mind the gap\n"
    for verbosity, said in ((-1, ""), (0, caution), (1, budget + caution)):
        launched(Daemon(), verbosity=verbosity)._admit()
        assert capfd.readouterr().err == said, verbosity
    one = Launch(Options(["true"], {"GPUSHARE_MODE": "observe"}), {"XDG_CONFIG_HOME": "/nowhere"})
    one.node = Daemon()  # type: ignore[assignment]
    one._admit()
    assert capfd.readouterr().err == "", "nothing can happen to a job that is only observed"


# ---- it waits in the queue --------------------------------------------------------------------------------


FULL = Refused("no room:\nGPU 0 is full", facts=[("GPU 0", "2 GiB left")])


def test_without_wait_a_refusal_is_the_answer():
    daemon = Daemon(FULL)
    with pytest.raises(Refused):
        launched(daemon)._admit()
    assert len(daemon.asked) == 1


@pytest.mark.parametrize(
    ("wait", "words", "asked"),
    [(90.0, "waiting up to 1m30s: ", 90.0), (float("inf"), "waiting until there is room: ", FOREVER)],
)
def test_with_wait_the_refusal_is_told_and_the_job_queued(capfd, wait, words, asked):
    daemon = Daemon(FULL, JOB)
    one = launched(daemon, wait=wait)
    one._admit()
    assert one.job is JOB
    (first, no_wait), (second, waits) = daemon.asked
    assert (no_wait, waits) == (None, wait)
    assert second == {**first, "wait": asked}, "it is the same job"
    err = capfd.readouterr().err
    assert err.startswith(f"gpushare: {words}no room:\\nGPU 0 is full\n") and "2 GiB left" in err


def test_a_job_for_which_there_is_room_waits_for_nothing(capfd):
    daemon = Daemon()
    launched(daemon, wait=5.0)._admit()
    assert len(daemon.asked) == 1 and capfd.readouterr().err == ""


def test_a_queued_job_outlives_a_daemon_that_is_started_again(clock):
    starter = Starter()
    daemon = Daemon(FULL, gone(), gone(), gone(), JOB, starter=starter)
    one = launched(daemon, wait=600.0)
    one._admit()
    assert one.job is JOB
    assert starter.starts == 3 and clock.pauses == [RETRY_FIRST] * 3


def test_a_system_daemon_is_waited_for_and_not_started(clock):
    daemon = Daemon(FULL, gone(), JOB)
    launched(daemon, wait=600.0)._admit()
    assert clock.pauses == [RETRY_FIRST]


def test_a_daemon_that_stays_away_is_given_up_after_a_while(clock):
    daemon = Daemon(FULL, *[gone()] * 1000)
    with pytest.raises(DaemonUnreachable):
        launched(daemon, wait=600.0)._admit()
    assert AWAY < clock.now - 1000.0 < AWAY + 1.0


def test_time_in_the_queue_is_not_time_without_a_daemon(clock):
    """A daemon that answered for long was there: the patience begins with each that goes."""
    daemon = Daemon(FULL, gone(), gone(), gone(), JOB, takes=AWAY + 1)
    daemon.clock = clock
    one = launched(daemon, wait=600.0)
    one._admit()
    assert one.job is JOB


@pytest.mark.parametrize("code", ["timed_out", "garbage"])
def test_one_that_hangs_or_is_none_of_ours_is_not_waited_for(clock, code):
    daemon = Daemon(FULL, gone(code), JOB)
    with pytest.raises(DaemonUnreachable):
        launched(daemon, wait=600.0)._admit()
    assert clock.pauses == []


# ---- reservations -----------------------------------------------------------------------------------------


def reserved(*amounts: int, name="night") -> dict[str, object]:
    return {"name": name, "id": f"r-{name}", "gpus": [{"amount": amount} for amount in amounts]}


@pytest.mark.parametrize("said", ["night", "r-night"])
@pytest.mark.parametrize(
    ("flags", "limit", "source"),
    [({}, "2Gi", "reservation {}"), ({"GPUSHARE_LIMIT": "max"}, "max", "--limit")],
)
def test_a_reservation_gives_the_request_the_least_of_its_gpus(said, flags, limit, source):
    daemon = Daemon(reserved=[reserved(9 * GIB, name="day"), reserved(3 * GIB, 2 * GIB)])
    one = launched(daemon, reservation=said, flags={"GPUSHARE_LIMIT": None, **flags})
    one._ask_for_reserved()
    body = one.registration()
    assert (body["request"], body["request_source"]) == ("2Gi", f"reservation {said}")
    assert (body["limit"], body["limit_source"]) == (limit, source.format(said))
    assert body["reservation"] == said


@pytest.mark.parametrize(
    ("there", "flags", "name"),
    [
        ([], {}, "night"),
        ([reserved(GIB), reserved(GIB)], {}, "night"),
        ([reserved()], {}, "night"),
        ([reserved(GIB)], {}, None),
        ([reserved(GIB)], {"GPUSHARE_REQUEST": "3Gi"}, "night"),
        ([reserved(GIB)], {"GPUSHARE_LIMIT": "3Gi"}, "night"),
    ],
)
def test_else_the_budget_is_what_was_said_and_the_daemon_says_what_is_wrong(there, flags, name):
    one = launched(Daemon(reserved=there), flags={"GPUSHARE_LIMIT": "max", **flags}, reservation=name)
    before = one.registration()
    one._ask_for_reserved()
    assert one.registration() == before


def test_who_names_no_reservation_asks_for_none():
    one = launched(SimpleNamespace(client=lambda: pytest.fail("it is asked")), flags={"GPUSHARE_LIMIT": "max"})
    one._ask_for_reserved()
    launched(None, reservation="night", flags={"GPUSHARE_LIMIT": "max"})._ask_for_reserved()


# ---- it starts the program, or does not ---------------------------------------------------------------------


@pytest.fixture
def steps(monkeypatch):
    """The steps of a launch, in their order."""
    did = []

    def step(name, answer=None):
        return lambda self, *more: did.append((name, *more)) or answer

    for name, answer in (
        ("_check", None),
        ("_find_daemon", "node"),
        ("_ask_for_reserved", None),
        ("_admit", None),
        ("program_environ", {"A": "1"}),
        ("_replace", None),
        ("_supervise", 7),
    ):
        monkeypatch.setattr(Launch, name, step(name, answer))
    monkeypatch.setattr(launch, "_contained", lambda one: did.append(("contained",)) or {"A": "2"})
    monkeypatch.setattr(launch.spawn, "find_program", lambda name, environ: f"/bin/{name}")
    return did


def test_the_program_is_looked_for_before_the_daemon_and_runs_once_its_job_is_admitted(steps):
    one = launched(None)
    assert one.run() == 7 and one.node == "node"
    assert steps == [
        *(("_check",), ("_find_daemon",), ("_ask_for_reserved",), ("_admit",), ("program_environ",)),
        ("_supervise", "/bin/true", {"A": "1"}),
    ]


def test_without_a_daemon_it_runs_without_a_job(steps, monkeypatch):
    monkeypatch.setattr(Launch, "_find_daemon", lambda self: None)
    assert launched(None).run() == 7
    assert [name for name, *_ in steps] == ["_check", "program_environ", "_supervise"]


def test_a_container_has_its_environment_from_its_engine(steps):
    assert launched(None, container=True).run() == 7
    assert steps[-2:] == [("contained",), ("_supervise", "/bin/true", {"A": "2"})]


def test_only_exec_replaces_the_wrapper(steps):
    launched(None, replace=True).run()
    assert ("_replace", "/bin/true", {"A": "1"}) in steps


def test_a_program_that_is_not_there_asks_for_no_daemon(steps, monkeypatch):
    def missing(name, environ):
        raise CommandNotFound(f"command not found: {name}")

    monkeypatch.setattr(launch.spawn, "find_program", missing)
    with pytest.raises(CommandNotFound):
        launched(None).run()
    assert steps == [("_check",)]


@pytest.mark.parametrize("given", [True, False])
def test_the_environment_is_this_processs_unless_another_is_given(monkeypatch, given):
    monkeypatch.setenv("GPUSHARE_NAME", "of the process")
    monkeypatch.setattr(Launch, "run", lambda self: self.name)
    environ = {"GPUSHARE_NAME": "given", "XDG_CONFIG_HOME": "/nowhere"} if given else None
    assert launch.run(Options(["true"]), environ) == ("given" if given else "of the process")


def test_a_job_of_which_nothing_more_is_said_is_on_one_gpu_and_lends(monkeypatch):
    monkeypatch.setattr(launch, "working_directory", lambda: "/here")
    body = launched(None).registration()
    said = {name: body[name] for name in ("gpus", "devices", "lend", "reservation", "wait", "job", "cwd", "command")}
    assert said == {
        **{"gpus": 1, "devices": None, "lend": True, "reservation": None, "wait": None, "job": None},
        **{"cwd": "/here", "command": ["true"]},
    }
    assert "mode" not in body, "an older daemon knows no modes"
    body = launched(None, gpus=2, lend=False).registration()
    assert (body["gpus"], body["lend"]) == (2, False)


@pytest.mark.parametrize(
    ("flags", "budget", "sources"),
    [
        ({"REQUEST": "1Gi", "LIMIT": "4Gi"}, ("1Gi", "4Gi"), ("--request", "--limit")),
        ({"LIMIT": "4Gi"}, ("4Gi", "4Gi"), ("--limit", "--limit")),
        ({"REQUEST": "1Gi"}, ("1Gi", "1Gi"), ("--request", "--request")),
        ({"LIMIT": "max"}, ("none", "max"), (None, "--limit")),
        ({"REQUEST": "none"}, ("none", "max"), ("--request", None)),
        ({}, ("none", "max"), (None, None)),
    ],
)
def test_each_amount_comes_from_the_setting_that_says_it(flags, budget, sources):
    flags = {"GPUSHARE_LIMIT": None, **{f"GPUSHARE_{name}": text for name, text in flags.items()}}
    body = launched(None, flags=flags).registration()
    assert ((body["request"], body["limit"]), (body["request_source"], body["limit_source"])) == (budget, sources)


def test_a_library_that_is_not_built_is_told_before_a_daemon_is_asked(monkeypatch):
    def preload(_environ):
        raise GpushareError("the library is not there", code="not_built")

    monkeypatch.setattr(launch.spawn, "preload", preload)
    monkeypatch.setattr(Launch, "_find_daemon", lambda self: pytest.fail("it is asked"))
    with pytest.raises(GpushareError, match="the library is not there"):
        launched(None).run()


@pytest.mark.parametrize("reachable", [True, False])
def test_a_program_that_does_not_start_takes_its_job_back(monkeypatch, reachable):
    daemon = Daemon()
    one = launched(daemon)
    monkeypatch.setattr(one, "_find_daemon", lambda: daemon)

    def fails(*_arguments):
        if not reachable:
            daemon.answers.append(gone())
        raise OSError(12, "no memory")

    monkeypatch.setattr(one, "_supervise", fails)
    with pytest.raises(OSError, match="no memory"):
        one.run()
    assert daemon.did == [("end", JOB["id"], None, None)]
    assert daemon.timeout == 1.0, "nobody waits long for that"


def test_with_exec_this_process_is_the_jobs_program(monkeypatch):
    daemon = Daemon()
    one = launched(daemon, replace=True)
    monkeypatch.setattr(one, "_find_daemon", lambda: daemon)
    executed = []

    def exec_program(*arguments):
        executed.append(arguments)
        return SystemExit(7)

    monkeypatch.setattr(launch.spawn, "exec_program", exec_program)
    with pytest.raises(SystemExit):
        one.run()
    assert daemon.did[0] == ("main", JOB["id"], os.getpid())
    ((program, command, environ),) = executed
    assert Path(program).name == "true" and command == ["true"] and "libgpushare" in environ["LD_PRELOAD"]


def test_in_mode_off_nothing_of_gpushare_is_in_the_programs_way(monkeypatch):
    executed = []

    def exec_program(*arguments):
        executed.append(arguments)
        return SystemExit(7)

    monkeypatch.setattr(launch.spawn, "exec_program", exec_program)
    environ = {"XDG_CONFIG_HOME": "/nowhere", "LD_PRELOAD": f"{library()} /y/other.so", "PATH": os.environ["PATH"]}
    one = Launch(Options(["true"], {"GPUSHARE_MODE": "off"}), environ)
    monkeypatch.setattr(one, "_find_daemon", lambda: pytest.fail("no daemon is asked"))
    with pytest.raises(SystemExit):
        one.run()
    ((_, _, given),) = executed
    assert given["LD_PRELOAD"] == "/y/other.so"


@pytest.mark.parametrize(
    ("flags", "options", "words"),
    [
        *[({f"GPUSHARE_{name}": "x"}, {}, "'x' is none of ") for name in ("DRIVER", "VISIBLE", "LOG", "MODE", "FOR")],
        ({"GPUSHARE_REQUIRE_DAEMON": "x"}, {}, "'x' is neither 1 nor 0"),
        ({"GPUSHARE_PRIORITY": "x"}, {}, "'x' is not a whole number"),
        ({"GPUSHARE_GRACE": "x"}, {}, "cannot read 'x' as a duration"),
        ({"GPUSHARE_ON_RECLAIM": "x"}, {}, "'x' is no reclaim step"),
        ({"GPUSHARE_REQUEST": "1Gi", **OFF}, {}, "--request means nothing with --mode off"),
        (OBSERVE, {}, "--limit means nothing with --mode observe"),
        (OFF, {"report": Path("/r")}, "--report needs the wrapper to stay, --mode off runs the program in its place"),
        ({}, {"report": Path("/r"), "replace": True}, "--report needs the wrapper to stay, --exec replaces it"),
        ({}, {"report": Path("/")}, "cannot write the report to /"),
    ],
)
def test_what_can_be_refused_is_refused_before_a_daemon_is_asked(monkeypatch, flags, options, words):
    monkeypatch.setattr(Launch, "_find_daemon", lambda self: pytest.fail("it is asked"))
    with pytest.raises(UsageError) as caught:
        launched(None, flags=flags, **options).run()
    assert words in caught.value.message


def test_without_a_budget_nothing_is_guaranteed_and_nothing_limited(capfd):
    environ = {"GPUSHARE_REQUEST": "1Gi", "GPUSHARE_LIMIT": "4Gi"}
    one = launched(None, environ=environ, flags={"GPUSHARE_LIMIT": None, **OBSERVE})
    one._check()
    body = one.registration()
    assert [body[name] for name in ("request", "limit", "request_source", "limit_source", "mode")] == [
        *("none", "max", None, None, "observe"),
    ]
    assert capfd.readouterr().err == "", "variables of a site are for the jobs that have one"


@pytest.mark.parametrize(("options", "shown"), [({}, True), ({"verbosity": -1}, False)])
def test_a_variable_that_is_not_ours_is_told_unless_q(capfd, options, shown):
    launched(None, environ={"GPUSHARE_LIMTI": "1Gi"}, **options)._check()
    assert ("GPUSHARE_LIMTI" in capfd.readouterr().err) is shown


# ---- the report and the advice --------------------------------------------------------------------------------


def ending(**more) -> Ending:
    outcome = {
        "exit_code": 3,
        "signal": None,
        "killed": None,
        "peak": {"GPU-a": 3 * GIB},
        "refusals": 0,
        "duration": 1.0,
    }
    return Ending(**({"status": 3 << 8, "program": "true[7]", "outcome": outcome} | more))


def finished(one: Launch, job, end: Ending) -> int:
    one.job = job
    return one._finish(end)


def test_an_observed_job_ends_with_what_to_ask_for_and_so_does_its_report(tmp_path, capfd, clock):
    options = Options(["true"], {"GPUSHARE_MODE": "observe"}, report=tmp_path / "r.json")
    one = Launch(options, {"XDG_CONFIG_HOME": "/nowhere"})
    one._check()
    clock.now += 2.5
    assert finished(one, JOB, ending()) == 3
    assert capfd.readouterr().err == "gpushare: peak 3.0 GiB on GPU 0: ask for it with --limit 4Gi\n"
    report = json.loads(options.report.read_text())
    assert (report["duration"], report["recommended_limit"], report["mode"]) == (2.5, "4Gi", "daemon")
    assert (report["exit_code"], report["gpus"][0]["peak"]) == (3, 3 * GIB)


def test_of_a_gpu_whose_peak_nobody_knows_nothing_was_seen():
    one = Launch(Options(["true"], {"GPUSHARE_MODE": "observe"}), {"XDG_CONFIG_HOME": "/nowhere"})
    outcome = {**ending().outcome, "peak": {}}
    assert one._advice(ending()) is None, "no job"
    one.job = JOB
    assert one._advice(ending(outcome=None)) is None
    assert one._advice(ending(outcome=outcome)) == (NOTHING_SEEN, None)


def test_an_enforced_job_gets_no_advice(tmp_path, capfd):
    one = launched(None, report=tmp_path / "r.json")
    assert finished(one, JOB, ending(status=0)) == 0
    assert capfd.readouterr().err == ""
    assert json.loads((tmp_path / "r.json").read_text())["recommended_limit"] is None


def test_a_report_that_cannot_be_written_is_told_and_the_programs_status_is_ours(tmp_path, capfd):
    one = launched(None, report=tmp_path / "gone" / "r.json")
    assert finished(one, None, ending()) == 3
    assert capfd.readouterr().err == (
        f"gpushare: cannot write the report to {tmp_path}/gone/r.json: No such file or directory\n"
    )


def test_where_a_report_cannot_go_nothing_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(launch.os, "access", lambda path, _mode: Path(path) != tmp_path / "closed")
    (tmp_path / "closed").mkdir()
    (tmp_path / "old.json").touch()
    for path, why in (
        (tmp_path, "it is a directory"),
        (tmp_path / "closed" / "r.json", "its directory must be there"),
    ):
        with pytest.raises(UsageError, match="cannot write the report") as caught:
            launch._check_report(path, replace=False)
        assert caught.value.hint.startswith(why)
    for path in (tmp_path / "r.json", tmp_path / "old.json"):
        launch._check_report(path, replace=False)


def test_a_working_directory_that_was_removed(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    before = Path.cwd()
    os.chdir(here)
    try:
        assert working_directory() == str(here)
        here.rmdir()
        assert working_directory() is None
        with pytest.raises(UsageError, match=r"cannot write the report to r\.json"):
            launch._check_report(Path("r.json"), replace=False)
    finally:
        os.chdir(before)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "-u", "a/train.py", "--epochs", "3"], "train"),
        (["/usr/bin/python3.11", "x.py", "y.py"], "x"),
        (["python", "-m", "pkg"], "python"),
        (["train.py"], "train.py"),
        (["/opt/bin/serve", "x.py"], "serve"),
    ],
)
def test_the_name_of_a_job_that_nobody_named(command, name):
    assert default_name(command) == name


def test_a_name_that_the_environment_gives_to_the_job_around_this_one_is_not_this_ones():
    assert launched(None, environ={"GPUSHARE_NAME": "outer"}).name == "outer"
    assert launched(None, environ={"GPUSHARE_NAME": "outer", "GPUSHARE_JOB": "1"}).name == "true"
    inner = launched(None, environ={"GPUSHARE_JOB": "1"}, flags={"GPUSHARE_NAME": "inner"})
    assert inner.name == "inner"


def test_a_job_that_is_registered_again_names_the_gpus_that_it_has():
    one = launched(None, environ={"CUDA_VISIBLE_DEVICES": "1"})
    assert (one.registration()["devices"], one.registration()["job"]) == (["1"], None)
    assert launched(None).registration()["devices"] is None
    one.job = JOB
    assert (one.registration()["devices"], one.registration()["job"]) == (["GPU-a"], JOB["id"])
    one = launched(None, environ={"CUDA_VISIBLE_DEVICES": "1"}, devices=("2", "3"))
    assert one.registration()["devices"] == ["2", "3"]


# ---- the program ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "setting", "driver"),
    [
        (SimpleNamespace(driver="sim", runtime="/run/x"), "nvidia", "sim"),
        (None, "sim", "sim"),
        (None, "nvidia", "nvidia"),
        (None, "auto", "detected"),
    ],
)
def test_a_program_is_given_its_job_and_the_driver_of_its_daemon_or_else_the_one_that_is_here(
    monkeypatch, node, setting, driver
):
    given = []
    monkeypatch.setattr(launch.locate, "detect_driver", lambda: "detected")
    monkeypatch.setattr(launch.spawn, "program_environ", lambda *some, **more: given.append((some, more)) or {"A": "1"})
    one = launched(node, flags={"GPUSHARE_DRIVER": setting, "GPUSHARE_NAME": "n"}, devices=("2",))
    one.job = JOB if node else None
    assert one.program_environ() == {"A": "1"}
    assert given == [
        (
            (one.environ, one.settings, one.budget),
            {
                **{"name": "n", "devices": ("2",), "driver": driver, "job": one.job},
                "runtime": "/run/x" if node else None,
            },
        )
    ]


class Linked:
    """The job's connection: what it has learned by the end."""

    def __init__(self) -> None:
        self.job = {**JOB, "name": "changed"}
        self.killed_notice, self.stopped = "its loan is needed", True

    def end(self, status):
        assert status == signal.SIGKILL
        return {"killed": None}


@pytest.mark.parametrize("linked", [True, False])
def test_at_the_end_all_that_is_known_is_put_together(monkeypatch, linked):
    seen = []
    monkeypatch.setattr(launch.spawn, "spawn_program", lambda *_: 17)
    monkeypatch.setattr(launch, "memory_kills", lambda: 0)
    monkeypatch.setattr(launch, "wait_for", lambda child, link: seen.append((child, link)) or signal.SIGKILL)
    monkeypatch.setattr(launch.signal, "signal", lambda *_: None)
    link = Linked() if linked else None
    monkeypatch.setattr(Launch, "_link", lambda self, child, environ: link)
    monkeypatch.setattr(Launch, "_finish", lambda self, end: seen.append((self.job, end)) or 7)
    one = launched(None)
    assert one._supervise("/bin/true", {}) == 7
    facts = {"outcome": {"killed": None}, "killed_notice": "its loan is needed", "stopped": True} if linked else {}
    assert seen == [
        (17, link),
        (link.job if link else None, Ending(status=signal.SIGKILL, program="true[17]", **facts)),
    ]


def test_only_a_job_has_a_connection_to_its_daemon_and_processes_beside_it(monkeypatch):
    made = []

    class Link:
        def __init__(self, *given) -> None:
            made.append(given)

        def start_followers(self, environ, hooks) -> None:
            made.append((environ, hooks))

    monkeypatch.setattr(launch, "Link", Link)
    assert launched(None)._link(17, {}) is None and launched(Daemon())._link(17, {}) is None
    assert made == []
    one = launched(Daemon(), flags={"GPUSHARE_RELIEF_CMD": "free"})
    one.job = JOB
    assert isinstance(one._link(17, {"A": "1"}), Link)
    assert made == [
        (one.node, JOB, 17, one.registration, one.say),
        ({"A": "1"}, {"GPUSHARE_RELIEF_CMD": "free"}),
    ]


def test_that_the_program_runs_is_told_to_whom_wants_to_know(monkeypatch):
    told = []

    def wait_for(child, _link):
        told.append("waits")
        return os.waitpid(child, 0)[1]

    monkeypatch.setattr(launch, "wait_for", wait_for)
    ignored = []
    monkeypatch.setattr(launch.signal, "signal", lambda number, how: ignored.append((number, how)))
    command = Options([sys.executable, "-c", "pass"], started=lambda: told.append("runs"))
    one = Launch(command, {"XDG_CONFIG_HOME": "/nowhere"})
    assert one._supervise(sys.executable, {}) == 0
    assert told == ["runs", "waits"]
    assert set(ignored) == {(number, signal.SIG_IGN) for number in WAITED_FOR - KEPT}, "what is pending was for it"
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & WAITED_FOR


def test_a_refusal_of_the_daemon_is_not_repeated():
    daemon = Daemon(GpushareError("bad words"))
    with pytest.raises(GpushareError, match="bad words"):
        launched(daemon, wait=3.0)._admit()
    assert len(daemon.asked) == 1


def test_the_container_has_the_library_that_the_job_needs(monkeypatch):
    from gpushare import container

    given = []
    monkeypatch.setattr(container, "inside", lambda node, library, environ: given.append(library) or "in")
    monkeypatch.setattr(container, "engine_command", lambda words, *_rest: [*words, "run"])
    for turns in ({"turns": True}, {"turns": False}, {}):
        one = launched(SimpleNamespace(runtime=None, driver="sim"), container=True)  # type: ignore[arg-type]
        one.job = {**JOB, **turns}
        environ = launch._contained(one)
        assert one.options.command == ["true", "run"]
        assert "LD_PRELOAD" not in environ
    assert given == [library(turns=True), library(), library()], "an older daemon knows no turns"
