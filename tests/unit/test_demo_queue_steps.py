"""The demo of the queue where things go wrong: what it waits for, what it says, and what it leaves behind."""

from __future__ import annotations

import json
import signal
import sys
from types import SimpleNamespace

import pytest

from gpushare import demo_queue
from gpushare.demo_queue import PAUSE, WITHIN, Stage
from gpushare.errors import GpushareError


class Commands:
    """What the stage's commands answer: (exit status, output), the last one again and again."""

    def __init__(self, monkeypatch, **answers) -> None:
        self.answers = {"queue": [(0, json.dumps({"jobs": []}))], **answers}
        self.typed: list[list[str]] = []
        monkeypatch.setattr(demo_queue.subprocess, "run", self.run)
        self.now = 0.0
        monkeypatch.setattr(demo_queue.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(demo_queue.time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, line, **_how):
        words = line[4:]
        self.typed.append(words)
        left = self.answers.get(words[0], [(0, "")])
        code, out = left.pop(0) if len(left) > 1 else left[0]
        return SimpleNamespace(returncode=code, stdout=out, stderr="no such thing\n")


@pytest.fixture
def stage(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_queue, "examples", lambda: tmp_path / "examples")
    monkeypatch.setenv("GPUSHARE_LIMIT", "1Gi")
    return Stage(tmp_path)


def queue_of(*jobs) -> tuple[int, str]:
    return 0, json.dumps({"jobs": [{"state": "running", "evictions": 0, **one} for one in jobs]})


class Service:
    def __init__(self, code=None) -> None:
        self.code, self.did = code, []

    def poll(self):
        return self.code

    def send_signal(self, number) -> None:
        self.did.append(number)

    def wait(self, within) -> None:
        self.did.append(within)


def test_it_has_a_directory_two_gpus_and_none_of_the_users_settings(stage, tmp_path):
    given = {name: value for name, value in stage.environment.items() if name.startswith(("GPUSHARE_", "XDG_"))}
    assert {name: given[name] for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME")} == {
        "XDG_RUNTIME_DIR": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    assert {name: value for name, value in given.items() if name.startswith("GPUSHARE_")} == {
        "GPUSHARE_DRIVER": "sim",
        "GPUSHARE_SIM": f"gpus=2,memory=4Gi,pool={tmp_path}/pool",
    }
    assert (stage.runs, stage.steps) == (4, {"ada": 100_000, "ben": 100}), "ada's runs outlast all waiting"
    assert stage.steps["ada"] * PAUSE > 10 * WITHIN > stage.steps["ben"] * PAUSE


FIRST = "from step 0\nstopped at step 7, saved\n"
BEFORE_AND_AFTER = {
    "two of ada's runs": ({"a1": "running", "a2": "pending"}, {"a1": "running", "a2": "running"}),
    "ben's run": ({"a2": "running", "b1": "pending"}, {"a2": "evicted", "b1": "running"}),
    "ben's end": ({"a2": "evicted", "b1": "running"}, {"a2": "evicted"}),
    "the run that was stopped": ({"a2": "evicted"}, {"a2": "running again"}),
    "its second attempt": (FIRST, f"{FIRST}from step 7\n"),
}
"""What is waited for: the queue, or the log, while it is not so yet, and when it is."""


class Cluster:
    """What is typed, and two GPUs for which that is waited that comes next."""

    def __init__(self, stage, monkeypatch, logs) -> None:
        self.did: list[object] = []
        self.now: dict[str, str] = {}
        self.last_logs, self.logs = logs, ""
        for name in ("say", "submit", "show", "ask", "jobs", "until"):
            monkeypatch.setattr(stage, name, getattr(self, name))
        monkeypatch.setattr(demo_queue, "typed", lambda: "bin/gpushare")

    def say(self, text: str) -> None:
        self.did.append(text.partition(":")[0].partition(". ")[0])

    def submit(self, queue: str, name: str) -> str:
        self.did.append(("submit", queue, name))
        return name

    def show(self, *words: str) -> None:
        self.did.append(words)

    def ask(self, *words: str) -> str:
        assert words == ("logs", "a2")
        return self.logs

    def jobs(self):
        states = {"running again": "running", "evicted": "pending"}
        return {
            name: {"id": name, "state": states.get(state, state), "evictions": int(state in states)}
            for name, state in self.now.items()
        }

    def until(self, what: str, true) -> None:
        self.did.append(f"until {what}")
        for state, ready in zip(BEFORE_AND_AFTER[what], (False, True), strict=True):
            if isinstance(state, str):
                self.logs = state
            else:
                self.now = state
            assert bool(true()) is ready, what
        self.logs = self.last_logs


@pytest.mark.parametrize("good", [True, False])
def test_three_acts_and_whether_nothing_was_lost(stage, monkeypatch, good):
    cluster = Cluster(stage, monkeypatch, f"{FIRST}from step {7 if good else 0}\n")
    assert stage.play() == (0 if good else 1)
    assert cluster.did == [
        "Two GPUs, two queues with half of them each",
        *[("submit", "ada", f"a{number}") for number in (1, 2, 3, 4)],
        "until two of ada's runs",
        ("queue",),
        "Act 2",
        ("submit", "ben", "b1"),
        "until ben's run",
        ("queue",),
        ("queue", "--shares"),
        "Act 3",
        "until ben's end",
        "until the run that was stopped",
        "until its second attempt",
        ("logs", "a2"),
        ("queue", "--all"),
        "That is all; ada's runs would go on.",
        ("cancel", "a2"),
        "Now your own" if good else "That went wrong.",
    ]


def test_a_run_is_submitted_as_a_user_would_type_it(stage, tmp_path, monkeypatch, capsys):
    commands = Commands(monkeypatch, submit=[(0, "12\n")])
    assert stage.submit("ben", "b1") == "12"
    (words,) = commands.typed
    assert words[:5] == ["submit", "--queue", "ben", "--name", "b1"] and words[5] == "--"
    script, state, *rest = words[7:]
    assert (script, state) == (str(tmp_path / "examples" / "training.py"), str(tmp_path / "b1.json"))
    assert rest == ["--steps", "100", "--pause", str(PAUSE)]
    typed = "$ gpushare submit --queue ben --name b1 -- python training.py b1.json --steps 100"
    assert capsys.readouterr().out == f"{typed}\n12\n"


def test_a_command_that_fails_is_named_with_what_it_said(stage, monkeypatch):
    Commands(monkeypatch, cancel=[(2, "")])
    with pytest.raises(GpushareError, match="`gpushare cancel` failed: no such thing") as caught:
        stage.ask("cancel", "1")
    assert caught.value.hint == "see `gpushare doctor`"


def test_what_does_not_come_is_waited_for_a_minute_and_named(stage, monkeypatch):
    commands = Commands(monkeypatch)
    for text, last in (("", "nothing"), ("started\nno room\n\n", "no room")):
        stage.log.write_text(text)
        began = commands.now
        with pytest.raises(GpushareError, match="waited 60 s for ben's run") as caught:
            stage.until("ben's run", lambda: False)
        assert caught.value.hint == f"the service says: {last}"
        assert WITHIN <= commands.now - began < WITHIN + 1


def test_what_comes_is_waited_for_no_longer(stage, monkeypatch):
    commands = Commands(monkeypatch)
    stage.until("three looks", lambda: commands.now > 0.5)
    assert commands.now < 1.0


def test_the_run_that_was_stopped_is_the_one_with_an_eviction(stage, monkeypatch):
    commands = Commands(monkeypatch, queue=[queue_of({"id": "1"}, {"id": "2", "evictions": 1, "state": "pending"})])
    assert stage.stopped() == "2" and stage.running() == ["1"]
    commands.answers["queue"] = [queue_of({"id": "1"})]
    assert stage.stopped() == ""


@pytest.mark.parametrize(("code", "words"), [(1, "no room"), (None, "no room")])
def test_a_service_that_ends_or_hangs_at_its_start_is_told(stage, monkeypatch, code, words):
    commands = Commands(monkeypatch, queue=[(2, "")])
    service = Service(code)

    def popen(line, *, env, stdout, stderr):
        assert line[4:] == ["cluster", "serve", "--engine", "local"] and env is stage.environment
        stdout.write(b"no room\n")
        return service

    monkeypatch.setattr(demo_queue.subprocess, "Popen", popen)
    with pytest.raises(GpushareError, match=f"the service does not start: {words}") as caught:
        stage.start_service()
    assert caught.value.hint == "see `gpushare doctor`"
    assert (commands.now > WITHIN) is (code is None), "one that has ended is not waited for"


def test_a_service_that_answers_gets_the_queues(stage, monkeypatch):
    commands = Commands(monkeypatch, queue=[(2, ""), (2, ""), (0, "")])
    monkeypatch.setattr(demo_queue.subprocess, "Popen", lambda line, **how: Service())
    stage.start_service()
    assert commands.now == pytest.approx(0.2)
    assert commands.typed[-1] == ["cluster", "apply", str(stage.directory / "queues.yaml")]
    assert "ada" in (stage.directory / "queues.yaml").read_text()


def test_at_the_end_its_jobs_its_service_and_its_daemon_are_gone(stage, monkeypatch):
    jobs = queue_of({"id": "1"}, {"id": "2"})
    commands = Commands(monkeypatch, queue=[jobs, jobs, jobs, queue_of()])
    stage.service = Service()
    stage.clear()
    assert commands.typed[0] == ["queue", "--json"]
    assert [words for words in commands.typed if words[0] != "queue"] == [
        ["cancel", "--now", "1"],
        ["cancel", "--now", "2"],
        ["daemon", "stop"],
    ]
    assert commands.now == pytest.approx(0.4), "until no job is left"
    assert stage.service.did == [signal.SIGTERM, WITHIN]


def test_jobs_that_do_not_end_are_waited_for_a_minute(stage, monkeypatch):
    commands = Commands(monkeypatch, queue=[queue_of({"id": "1"})])
    stage.service = Service()
    stage.clear()
    assert WITHIN <= commands.now < WITHIN + 1 and commands.typed[-1] == ["daemon", "stop"]


def test_of_a_service_that_has_ended_nothing_is_asked(stage, monkeypatch):
    commands = Commands(monkeypatch)
    stage.service = Service(1)
    stage.clear()
    assert commands.typed == [["daemon", "stop"]]
    commands.typed.clear()
    stage.service = None
    stage.clear()
    assert commands.typed == []


def test_whatever_happens_it_is_cleared(monkeypatch, tmp_path):
    did = []
    made = []

    class Broken:
        def __init__(self, directory) -> None:
            made.append(directory)

        def start_service(self) -> None:
            did.append("start")

        def play(self) -> int:
            did.append("play")
            raise GpushareError("that went wrong")

        def clear(self) -> None:
            did.append("clear")

    monkeypatch.setattr(demo_queue, "Stage", Broken)
    monkeypatch.setattr(demo_queue, "has_binding", lambda: True)
    with pytest.raises(GpushareError, match="that went wrong"):
        demo_queue.main()
    assert did == ["start", "play", "clear"] and not made[0].exists()


def test_without_a_binding_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(demo_queue, "has_binding", lambda: False)
    with pytest.raises(GpushareError, match="need a Python binding"):
        demo_queue.main()


@pytest.mark.parametrize(
    ("tty", "no_color", "colour", "shown"),
    [
        (True, "", "1", "\033[1ma\033[0m\n"),
        (True, "1", "1", "a\n"),
        (False, "", "1", "a\n"),
        (True, "", None, "a\n"),
    ],
)
def test_colours_are_for_terminals(stage, monkeypatch, capsys, tty, no_color, colour, shown):
    monkeypatch.setattr(demo_queue.sys.stdout, "isatty", lambda: tty, raising=False)
    monkeypatch.setenv("NO_COLOR", no_color)
    stage.print("a", colour)
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("output", "good"),
    [
        ("from step 0\nstopped at step 7, saved\nfrom step 7\n", True),
        ("from step 0\nstopped at step 1, saved\nfrom step 1\n", True),
        ("from step 0\nstopped at step 0, saved\nfrom step 0\n", False),
        ("from step 0\nstopped at step 7, saved\nfrom step 0\n", False),
        ("from step 0\nstopped at step 7, saved\nfrom step 70\n", False),
        ("from step 0\n", False),
    ],
)
def test_nothing_is_lost_if_the_second_attempt_goes_on_where_the_first_stopped(output, good):
    assert demo_queue.lost_nothing(output) is good


@pytest.mark.parametrize("worked", [0, 1])
def test_what_the_demo_ends_with_is_its_status(monkeypatch, tmp_path, worked):
    did = []

    class Played:
        def __init__(self, directory) -> None:
            assert directory.is_dir()

        def start_service(self) -> None:
            did.append("start")

        def play(self) -> int:
            did.append("play")
            return worked

        def clear(self) -> None:
            did.append("clear")

    monkeypatch.setattr(demo_queue, "Stage", Played)
    monkeypatch.setattr(demo_queue, "has_binding", lambda: True)
    assert demo_queue.main() == worked and did == ["start", "play", "clear"]


def test_a_line_is_out_before_the_output_of_the_command_that_it_names(stage, monkeypatch):
    """Also where all of it goes into a file."""
    done = []
    output = SimpleNamespace(write=done.append, flush=lambda: done.append("flush"), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(demo_queue.subprocess, "run", lambda line, **how: done.append("run"))
    stage.show("ps")
    monkeypatch.undo()
    assert "".join(done) == "$ gpushare ps\nflushrun"


def test_a_command_is_shown_as_it_would_be_typed_and_run_in_the_demos_place(stage, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(demo_queue.subprocess, "run", lambda line, **how: ran.append((line[3:], how["env"])))
    stage.say("Act 9")
    stage.show("queue", "--all")
    assert capsys.readouterr().out == "\nAct 9\n$ gpushare queue --all\n"
    assert ran == [(["gpushare", "queue", "--all"], stage.environment)]


# ---- with commands of the shell in place of gpushare -------------------------------------------------------------


def shell(stage, monkeypatch, script: str) -> None:
    monkeypatch.setattr(stage, "gpushare", lambda *words: ["/bin/sh", "-c", script, "gpushare", *words])


def test_what_a_command_answers_is_read_and_not_shown(stage, monkeypatch, capfd):
    shell(stage, monkeypatch, 'echo "$1 $GPUSHARE_DRIVER"; echo note >&2')
    assert stage.ask("logs") == "logs sim\n"
    assert capfd.readouterr() == ("", "")


def test_a_command_that_fails_is_told_by_its_own_words(stage, monkeypatch, capfd):
    shell(stage, monkeypatch, "echo no room >&2; exit 3")
    with pytest.raises(GpushareError, match=r"^`gpushare logs` failed: no room$"):
        stage.ask("logs")
    assert capfd.readouterr() == ("", "")


def test_a_command_that_is_shown_may_fail(stage, monkeypatch, capfd):
    shell(stage, monkeypatch, 'echo "$1 $GPUSHARE_DRIVER"; exit 3')
    stage.show("queue")
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "$ gpushare queue", "queue sim"]


def test_while_the_service_comes_up_nothing_is_shown(stage, monkeypatch, capfd, tmp_path):
    """The queue is asked for until it is there; the service writes into its own log."""
    script = f"""
    case "$*" in
    "cluster serve --engine local") echo it starts; echo with a note >&2; exec sleep 60;;
    queue) echo asked >> {tmp_path}/asked; echo no service >&2; test $(wc -l < {tmp_path}/asked) = 2;;
    "cluster apply {tmp_path}/queues.yaml") cp {tmp_path}/queues.yaml {tmp_path}/applied;;
    esac
    """
    shell(stage, monkeypatch, script)
    try:
        stage.start_service()
        assert (tmp_path / "asked").read_text() == "asked\n" * 2
        assert (tmp_path / "applied").read_text() == demo_queue.QUEUES
        assert capfd.readouterr() == ("", "")
    finally:
        stage.service.kill()
        stage.service.wait()
    assert stage.last_words() == "with a note"


def test_that_the_daemon_has_stopped_already_is_nothing_to_show(stage, monkeypatch, capfd):
    shell(stage, monkeypatch, "echo no daemon >&2; exit 3")
    stage.service = Service(0)
    stage.clear()
    assert capfd.readouterr() == ("", "")
