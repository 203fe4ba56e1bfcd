"""The commands that are a few lines: what they start, what they say, and what they refuse."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace

import pytest
from fake_api import GIB, UUID, make_job

from gpushare.cli import attach, daemon, docs, logs, queued, resume, run, screen, shim_path, suspend, wait
from gpushare.cli import set as set_command
from gpushare.follower import OWN_GPUS, SUSPENDER

# ---- other programs that take this one's place ----------------------------------------------------


@pytest.fixture
def became(monkeypatch):
    found: list[list[str]] = []

    def execv(path, words):
        assert path == words[0] == sys.executable
        found.append(words[1:])

    monkeypatch.setattr(os, "execv", execv)
    return found


@pytest.mark.parametrize(
    ("typed", "given"),
    [
        ([], []),
        (["--help-daemon"], ["--help"]),
        (["--user", "--driver", "sim"], ["--user", "--driver", "sim"]),
        (["--dir", "status"], ["--dir", "status"]),
    ],
)
def test_the_daemon_has_the_words_that_are_not_our_own(gpushare, became, typed, given):
    assert gpushare("daemon", *typed)[0] == 0
    assert became == [["-P", "-m", "gpushared", *given]]


@pytest.mark.parametrize("typed", [["--help"], ["--engine", "local", "--system"], []])
def test_the_service_has_all_words(gpushare, became, typed):
    assert gpushare("cluster", "serve", *typed)[0] == 0
    assert became == [["-P", "-m", "gpushared.cluster", *typed]]


# ---- the daemon -----------------------------------------------------------------------------------


def job_of(id: str) -> dict:
    body = {"name": "train", "command": ["x"], "priority": 0, "lend": True, "request": "1Gi", "limit": "2Gi", "gpus": 1}
    return make_job(id, {**body, "request_source": None, "limit_source": None})


@pytest.mark.parametrize("scope", ["user", "system"])
@pytest.mark.parametrize("there", [True, False])
def test_where_the_daemon_writes_is_told_of_ones_own(gpushare, fake, scope, there):
    fake.scope = scope
    log = fake.directory / "daemon.log"
    if there:
        log.touch()
    code, out, _ = gpushare("daemon", "status")
    words = f"gpushared 0.1.0 (pid {os.getpid()}, {scope}, driver sim), up 3m20s"
    assert (code, out.splitlines()[:2]) == (0, [words, f"  {fake.socket}"])
    assert out.splitlines()[2:] == ([f"  {log}"] if scope == "user" and there else [])


@pytest.fixture
def stopping(fake, monkeypatch):
    """What `daemon stop` does to this process, which the fake daemon is a part of; `then`: what follows."""
    one = SimpleNamespace(sent=[], then=lambda: None, now=0.0)

    def send(_descriptor, number):
        one.sent.append(number)
        one.then()

    monkeypatch.setattr(daemon.signal, "pidfd_send_signal", send)
    clock = SimpleNamespace(monotonic=lambda: one.now, sleep=lambda seconds: setattr(one, "now", one.now + seconds))
    monkeypatch.setattr(daemon, "time", clock)
    return one


def test_a_daemon_of_the_system_is_not_stopped(gpushare, fake, stopping):
    fake.scope = "system"
    code, _, err = gpushare("daemon", "stop")
    assert code == 1 and "this is the system's daemon" in err and "systemctl stop gpushared" in err
    assert stopping.sent == []


def test_a_daemon_that_does_not_end_is_told_after_ten_seconds(gpushare, fake, stopping):
    code, _, err = gpushare("daemon", "stop")
    assert (code, stopping.sent) == (1, [15])
    assert err == f"gpushare: the daemon (pid {os.getpid()}) did not end within 10 s\n"
    assert 10.0 <= stopping.now < 10.1


@pytest.mark.parametrize(
    ("jobs", "more"),
    [
        (0, ""),
        (1, "; 1 job runs on, and each starts another daemon"),
        (2, "; 2 jobs run on, and each starts another daemon"),
    ],
)
def test_who_runs_on_without_the_daemon(gpushare, fake, stopping, jobs, more):
    fake.jobs = {str(number): job_of(str(number)) for number in range(jobs)}
    stopping.then = fake.stop
    code, _, err = gpushare("daemon", "stop")
    assert (code, err) == (0, f"stopped gpushared (pid {os.getpid()}){more}\n")
    assert stopping.now == 0.0, "it is asked at once"
    fake.start()


@pytest.mark.parametrize(("error", "code"), [(ProcessLookupError(), 0), (PermissionError(), 4)])
def test_a_daemon_that_has_ended_already_or_is_another_users(gpushare, fake, stopping, error, code):
    def then():
        raise error

    stopping.then = then
    found, out, err = gpushare("daemon", "stop")
    assert (found, out) == (code, "")
    assert err == ("" if code == 0 else f"gpushare: the daemon (pid {os.getpid()}) belongs to another user\n")


# ---- jobs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suspender", [True, False])
def test_a_job_that_resumes_has_somebody_who_asks_the_driver(gpushare, fake, monkeypatch, suspender):
    started = []
    monkeypatch.setattr(resume, "KeptFollower", lambda *given: started.append(given))
    fake.jobs["a1"] = job_of("a1")
    on_job = fake._on_job

    def resumed(method, job, rest, body):
        if (method, rest) == ("POST", ["resume"]):
            return 200, {"job": job, "suspender": suspender, "note": "it goes on"}
        return on_job(method, job, rest, body)

    fake._on_job = resumed
    assert gpushare("resume", "train") == (0, "job train (a1): it goes on\n", "")
    if suspender:
        assert started == []
        return
    ((module, environ, job, socket, without),) = started
    assert (module, job, socket, without) == (SUSPENDER, "a1", fake.socket, OWN_GPUS)
    assert environ["GPUSHARE_DRIVER"] == "sim" and "LD_LIBRARY_PATH" in environ


class Queue:
    """A service that does as it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def hold(self, name: str) -> None:
        self.asked.append(("hold", name))


def test_jobs_that_are_held_are_named(gpushare, monkeypatch):
    service = Queue()
    monkeypatch.setattr(queued, "service", lambda: service)
    assert gpushare("hold", "17", "train") == (0, "held 17\nheld train\n", "")
    assert service.asked == [("hold", "17"), ("hold", "train")]


def ended(how: str, exit: int | None) -> dict:
    result = {"how": how, "exit": exit, "text": ""}
    return {"id": "17", "name": "train", "state": "ended", "started": 1.0, "ended": 3.0, "result": result}


@pytest.mark.parametrize(
    ("job", "status"), [(ended("done", 0), 0), (ended("failed", 3), 3), (ended("failed", -9), 137)]
)
def test_who_attaches_ends_as_the_job_does(gpushare, monkeypatch, job, status):
    asked = []
    monkeypatch.setattr(logs, "show", lambda name, **how: asked.append((name, how)) or job)
    code, out, err = gpushare("attach", "train")
    assert (code, out, err) == (status, "", f"gpushare: {queued.ending(job)}\n")
    assert asked == [("train", {"follow": True, "last": attach.LAST})] and attach.LAST == 10


def test_ctrl_c_ends_only_the_command_that_attaches(gpushare, monkeypatch):
    def interrupted(_name, **_how):
        raise KeyboardInterrupt

    monkeypatch.setattr(logs, "show", interrupted)
    assert gpushare("attach", "17") == (130, "", "gpushare: job 17 goes on; `gpushare cancel 17` stops it\n")


def states(*of_jobs: list[dict]):
    """What is seen of each job, one after the other."""
    left = list(of_jobs)
    return lambda _client, _id: iter(left.pop(0))


def held(message: str) -> dict:
    return {"id": "17", "state": "held", "reason": {"message": message}}


@pytest.fixture
def waiting(monkeypatch):
    monkeypatch.setattr(queued, "service", lambda: None)
    monkeypatch.setattr(queued, "named", lambda _client, name: [{"id": one} for one in name.split("+")])
    now = SimpleNamespace(now=0.0)
    monkeypatch.setattr(wait, "time", SimpleNamespace(monotonic=lambda: now.now))

    def waiting(*of_jobs: list[dict]):
        monkeypatch.setattr(queued, "until", states(*of_jobs))
        return now

    return waiting


def test_the_status_is_that_of_the_first_job_that_did_not_end_well(gpushare, waiting):
    waiting([ended("done", 0)], [ended("failed", 3)], [ended("failed", 4)])
    code, out, _ = gpushare("wait", "1+2", "3")
    assert (code, len(out.splitlines())) == (3, 3)
    waiting([ended("failed", 3)], [ended("done", 0)])
    assert gpushare("wait", "-q", "1", "2") == (3, "", "")


def test_a_job_that_is_held_is_named_once_for_each_reason(gpushare, waiting):
    told = [held("by its user"), held("by its user"), held("it failed"), ended("done", 0)]
    waiting(told)
    code, out, err = gpushare("wait", "17")
    way = "`gpushare release 17`, or `gpushare cancel 17`"
    assert code == 0 and out == f"{queued.ending(ended('done', 0))}\n"
    assert err.splitlines() == [
        f"gpushare: job 17 does not start by itself: by its user; {way}",
        f"gpushare: job 17 does not start by itself: it failed; {way}",
    ]
    waiting(told)
    assert gpushare("wait", "-q", "17") == (0, "", "")


@pytest.mark.parametrize(("most", "code"), [("10s", 124), ("11s", 0)])
def test_who_waits_long_enough_stops(gpushare, waiting, most, code):
    now = waiting([])

    def until(_client, _id):
        yield {"id": "17", "state": "running"}
        now.now = 10.0
        yield {"id": "17", "state": "running"}
        now.now = 10.5
        yield ended("done", 0)

    queued.until = until  # type: ignore[assignment]  the fixture puts it back
    found, _, err = gpushare("wait", "17", "--time", most)
    assert found == code
    assert err == ("gpushare: job 17 has not ended: it is running\n" if code else "")


def test_an_end_in_time_counts_when_the_time_is_over(gpushare, waiting):
    waiting([ended("done", 0)], [ended("done", 0)]).now = 0.0
    assert gpushare("wait", "--time", "0s", "1", "2")[0] == 0


# ---- reservations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_what_was_reserved_is_told_in_words_or_for_programs(gpushare, fake, monkeypatch, words):
    gpus = [{"uuid": UUID.format(number), "index": number, "amount": GIB, "remainder": GIB} for number in (0, 1)]
    made = {"id": "e1", "name": "mine", "gpus": gpus, "jobs": [], "since": 0.0, "until": None, "uid": 1, "user": "a"}
    handle = fake.handle

    def answered(method, path, body):
        if (method, path) == ("POST", "/v1/reservations"):
            fake.calls.append((method, path, body))
            return 201, made
        return handle(method, path, body)

    fake.handle = answered
    code, out, err = gpushare("reserve", "1Gi", "--for", "90s", *words)
    assert (code, err) == (0, "")
    if words:
        assert json.loads(out) == {"schema": "gpushare.reservation/1", **made}
    else:
        assert out == "reserved 1.0 GiB on GPU 0, 1.0 GiB on GPU 1 as mine, for 1m30s\n"
    (body,) = [body for method, path, body in fake.calls if path == "/v1/reservations"]
    assert (body["request"], body["lasting"], body["devices"]) == ("1Gi", 90, None)


# ---- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["run", "--wait", "1s", "--no-wait", "true"], 125, "--wait and --no-wait contradict each other"),
        (["run", "--wait", "--no-wait", "true"], 125, "--wait and --no-wait contradict each other"),
        (["kernel", "list", "--prefix", "/x", "--sys-prefix"], 2, "--prefix and --sys-prefix contradict each other"),
        (["kernel", "remove", "a", "--prefix", "/x", "--sys-prefix"], 2, "contradict each other"),
        (["daemon", "restart"], 2, "no such command 'daemon restart'"),
        (["cluster", "simulate", "a.yaml", "--cluster", "b.yaml"], 2, "--cluster is for traces"),
        (["cluster", "simulate", "a.csv"], 2, "a.csv is a trace: where does it run?"),
        (["cluster", "simulate", "a.jsonl"], 2, "a.jsonl is a trace: where does it run?"),
        (["cluster", "simulate", "a.yaml", "--beside", "b.yaml"], 2, "--beside is for --report"),
        (["cluster", "simulate", "a.yaml", "--report", "b.pdf"], 2, "b.pdf: this report is HTML"),
    ],
)
def test_what_contradicts_itself_is_refused(gpushare, environ, words, status, said):
    code, out, err = gpushare(*words)
    assert (code, out) == (status, "")
    assert said in err


def test_the_library_that_is_not_built(gpushare, monkeypatch, tmp_path):
    monkeypatch.setattr(shim_path, "library", lambda: tmp_path / "none.so")
    code, out, err = gpushare("shim-path")
    assert (
        (code, out) == (1, "") and f"the preload library {tmp_path}/none.so is not there" in err and "make build" in err
    )
    (tmp_path / "none.so").touch()
    assert gpushare("shim-path") == (0, f"{tmp_path}/none.so\n", "")


# ---- `run` ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "wait"),
    [
        (["true"], None),
        (["--wait", "true"], float("inf")),
        (["--wait", "30s", "true"], 30.0),
        (["--wait", "0s", "true"], 0.0),
        (["--wait", "forever", "true"], float("inf")),
        (["--wait=5m", "true"], 300.0),
        (["--limit", "--wait", "true"], None),  # it is the limit's value
        (["--limit", "1Gi", "--wait", "true"], float("inf")),
        (["-v", "--wait", "true"], float("inf")),
        (["-q", "--exec", "--wait", "-v", "true"], float("inf")),
        (["true", "--wait", "x"], None),
        (["--", "--wait", "x"], None),
        (["--wait"], None),
    ],
)
def test_wait_may_come_without_a_time(typed, wait):
    words = run.command._complete_wait(list(typed))
    given = [word.removeprefix("--wait=") for word in words if word.startswith("--wait=")]
    if wait is None:
        assert words == typed or (given == [run.FOREVER] and typed == ["--wait"])
        return
    text = given[0] if given else words[words.index("--wait") + 1]
    assert run._wait(None, None, text) == wait  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpus", "devices", "number"), [(None, (), 1), (None, ("0", "2"), 2), (3, ("0", "1", "2", "3"), 3), (2, (), 2)]
)
def test_how_many_gpus_are_asked_for(gpushare, monkeypatch, gpus, devices, number):
    asked = []
    monkeypatch.setattr("gpushare.launch.run", lambda options: asked.append(options) or 0)
    words = [*(["--gpus", str(gpus)] if gpus else []), *(word for one in devices for word in ("--gpu", one))]
    assert gpushare("run", *words, "true")[0] == 0
    assert (asked[0].gpus, asked[0].devices, asked[0].command) == (number, devices, ["true"])


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        (["true", "--limit", "1Gi"], True),
        (["--limit", "1Gi", "true", "--request", "1Gi"], True),
        (["--", "true", "--limit", "1Gi"], False),
        (["true", "-l", "1Gi"], False),
        (["-q", "true", "--limit", "1Gi"], False),
        (["--container", "podman", "run", "--name", "x", "i"], False),
    ],
)
def test_options_of_ours_after_the_program_are_warned_of(gpushare, monkeypatch, words, warned):
    asked = []
    monkeypatch.setattr("gpushare.launch.run", lambda options: asked.append(options.command) or 0)
    code, out, err = gpushare("run", *words)
    assert (code, out, len(asked)) == (0, "", 1) and bool(err) is warned
    assert not warned or err.startswith("gpushare: these come after the command, so true gets them")


@pytest.mark.parametrize(("words", "wait"), [([], None), (["--wait", "5s"], 5.0), (["--no-wait"], None)])
def test_whether_it_waits_for_room(gpushare, monkeypatch, words, wait):
    asked = []
    monkeypatch.setattr("gpushare.launch.run", lambda options: asked.append(options.wait) or 0)
    assert gpushare("run", *words, "true")[0] == 0 and asked == [wait]


def test_to_wait_and_not_to_wait_is_refused(gpushare):
    code, _, err = gpushare("run", "--no-wait", "--wait", "5s", "true")
    assert code == 125 and "--wait and --no-wait contradict each other" in err


@pytest.mark.parametrize(("words", "found"), [([], 0), (["-v"], 1), (["-vv"], 2), (["-q"], -1), (["-q", "-v"], -1)])
def test_how_much_is_told(gpushare, monkeypatch, words, found):
    asked = []
    monkeypatch.setattr("gpushare.launch.run", lambda options: asked.append(options.verbosity) or 0)
    assert gpushare("run", *words, "true")[0] == 0 and asked == [found]


@pytest.mark.parametrize(("words", "flag"), [([], None), (["--require-daemon"], "1"), (["--no-require-daemon"], "0")])
def test_without_a_word_the_configuration_says_whether_a_daemon_is_needed(gpushare, monkeypatch, words, flag):
    asked = []
    monkeypatch.setattr("gpushare.launch.run", lambda options: asked.append(options.flags) or 0)
    assert gpushare("run", *words, "true")[0] == 0
    assert asked[0]["GPUSHARE_REQUIRE_DAEMON"] == flag


# ---- the demos ------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--sim"]])
def test_the_demo_ends_as_it_went(gpushare, monkeypatch, words):
    asked = []
    monkeypatch.setattr("gpushare.demo.main", lambda given: asked.append(list(given)) or 1)
    assert gpushare("demo", *words)[0] == 1 and asked == [words]
    monkeypatch.setattr("gpushare.demo_queue.main", lambda: 3)
    assert gpushare("demo", "--queue")[0] == 3


# ---- keys of a terminal ---------------------------------------------------------------------------


@pytest.fixture
def typed():
    """Bytes as a terminal sends them."""
    reader, writer = os.pipe()
    yield lambda data: (os.write(writer, data), reader)[1]
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (b"q", "q"),
        (b"qqqq", "q"),
        (b"\x1b[A", "up"),
        (b"\x1bOA", "up"),
        (b"\x1b[B\x1b[B", "down"),
        (b"\x1bOB", "down"),
        (b"\x1b", "escape"),
        (b"\x1b[5~", ""),
        (b"\x04", "end"),
        (b"\xff", "�"),
    ],
)
def test_what_a_key_is(typed, data, key):
    assert screen._key(typed(data)) == key


def test_a_sequence_may_come_in_two_parts(typed, monkeypatch):
    keys = typed(b"\x1b")
    real = screen.select.select

    def select(readers, writers, errors, within):
        assert within == screen.REST_WITHIN
        typed(b"[B")
        return real(readers, writers, errors, within)

    monkeypatch.setattr(screen, "select", SimpleNamespace(select=select))
    assert screen._key(keys) == "down"


def test_a_terminal_that_is_gone():
    reader, writer = os.pipe()
    os.close(writer)
    assert screen._key(reader) == "gone", "its end"
    os.close(reader)
    assert screen._key(reader) == "gone", "an error"


def test_a_wait_ends_with_a_key_with_a_signal_or_with_its_time(typed):
    wakeup, woken = os.pipe()
    keys = typed(b"")
    assert screen._wait(wakeup, keys, 0.0) == "" and screen._wait(wakeup, None, 0.0) == ""
    os.write(woken, b"\x1c")
    typed(b"s")
    assert screen._wait(wakeup, keys, 60.0) == "s"
    assert screen.select.select([wakeup], [], [], 0)[0] == [], "the signal is read, so the next wait is one"
    os.write(woken, b"\x1c")
    assert screen._wait(wakeup, None, 60.0) == ""
    os.close(wakeup)
    os.close(woken)


# ---- `set` ----------------------------------------------------------------------------------------


def shown(priority: int, request: int, limit: int) -> dict:
    gpus = [{"index": index, "request": request * GIB, "limit": limit * GIB} for index in (0, 3)]
    return {"name": "train", "id": "a1", "priority": priority, "gpus": gpus}


@pytest.fixture
def changing(environ, monkeypatch):
    """What is asked of the daemon; `note` is what it says beside the change."""
    one = SimpleNamespace(asked=[], note=None, after=shown(5, 4, 8))

    def change(job, body):
        one.asked.append((job, body))
        return {"before": shown(5, 4, 8), "after": one.after, "note": one.note}

    client = SimpleNamespace(find_job=lambda name: {"id": f"id of {name}"}, change=change)
    monkeypatch.setattr(set_command, "find", lambda _settings: SimpleNamespace(client=lambda: client))
    return one


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["--limit", "12Gi"], {"limit": "12Gi", "dry_run": False}),
        (["--request", "2Gi", "--dry-run"], {"request": "2Gi", "dry_run": True}),
        (["--priority", "0"], {"priority": 0, "dry_run": False}),
        (["--request", "25%", "--limit", "max", "--priority", "-3"], None),
    ],
)
def test_what_is_to_change_and_nothing_else_is_asked(gpushare, changing, words, body):
    assert gpushare("set", "train", *words)[0] == 0
    ((job, asked),) = changing.asked
    assert job == "id of train" and (
        asked == body if body else set(asked) == {"request", "limit", "priority", "dry_run"}
    )


def test_nothing_to_change_asks_nobody(gpushare, changing):
    code, _, err = gpushare("set", "train", "--dry-run")
    assert code == 2 and "nothing to change" in err and changing.asked == []


def test_what_has_changed_is_told_with_what_it_was(gpushare, changing):
    assert gpushare("set", "train", "--limit", "8Gi")[1].splitlines() == [
        "job train (a1)",
        "  GPU 0     request 4.0 GiB   limit 8.0 GiB",
        "  GPU 3     request 4.0 GiB   limit 8.0 GiB",
    ]
    changing.after, changing.note = shown(7, 2, 12), "it has to give back 1.0 GiB"
    assert gpushare("set", "train", "--limit", "12Gi", "--dry-run")[1].splitlines() == [
        "job train (a1) would change",
        "  priority  5 → 7",
        "  GPU 0     request 4.0 GiB → 2.0 GiB   limit 8.0 GiB → 12.0 GiB",
        "  GPU 3     request 4.0 GiB → 2.0 GiB   limit 8.0 GiB → 12.0 GiB",
        "it has to give back 1.0 GiB",
    ]
    told = json.loads(gpushare("set", "train", "--limit", "12Gi", "--json")[1])
    assert (told["schema"], told["dry_run"], told["after"]["priority"]) == ("gpushare.set/1", False, 7)


# ---- `docs` ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "width"), [(40, 40), (100, 100), (300, 100)])
def test_a_text_is_as_wide_as_the_terminal_and_no_wider_than_can_be_read(
    gpushare, environ, monkeypatch, columns, width
):
    shown = []
    monkeypatch.setattr(docs, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(docs._output, "terminal_size", lambda: os.terminal_size((columns, 24)))
    monkeypatch.setattr(docs._output, "markdown", lambda text, width: f"{width} {text[:1]}")
    monkeypatch.setattr(docs.click, "echo_via_pager", shown.append)
    assert gpushare("docs", "running")[0] == 0 and shown == [f"{width} #"]


def test_the_topics_are_listed_and_what_they_are_about_may_go_on_below(gpushare, environ, monkeypatch):
    drawn = []
    monkeypatch.setattr(docs._output, "print_table", lambda columns, rows: drawn.append((columns, rows)))
    assert gpushare("docs")[0] == 0
    ((columns, rows),) = drawn
    lines = docs._output.table(columns, rows, 40)
    assert len(lines) > len(rows) + 1 and not any("…" in line for line in lines)
    assert "running" in [name for name, _ in rows] and all(about for _, about in rows)


# ---- `suspend` ------------------------------------------------------------------------------------


def test_each_job_is_suspended_once_all_are_known_and_told_with_what_comes(gpushare, environ, monkeypatch):
    asked = []

    def find_job(name):
        asked.append(("find", name))
        return {"id": f"id-{name}", "name": name}

    def suspended(job):
        asked.append(("suspend", job))
        return {"note": f"{job} goes to host memory"}

    client = SimpleNamespace(find_job=find_job, suspend=suspended)
    monkeypatch.setattr(suspend, "find", lambda _settings: SimpleNamespace(client=lambda: client))
    assert gpushare("suspend", "a", "b") == (
        0,
        "job a (id-a): id-a goes to host memory\njob b (id-b): id-b goes to host memory\n",
        "",
    )
    assert asked == [("find", "a"), ("find", "b"), ("suspend", "id-a"), ("suspend", "id-b")]
