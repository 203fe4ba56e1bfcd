"""The demo act by act: what it starts, what it waits for, and when it says that it went wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare import demo
from gpushare.demo import Program, Stage
from gpushare.errors import DaemonUnreachable, GpushareError

GIB = 2**30


@pytest.fixture
def stage(tmp_path, monkeypatch):
    (tmp_path / "examples").mkdir()
    monkeypatch.setattr(demo, "examples", lambda: tmp_path / "examples")
    monkeypatch.setenv("GPUSHARE_SOCKET", "/x/api.sock")
    monkeypatch.delenv("GPUSHARE_SIM", raising=False)
    return Stage(tmp_path, "sim")


def test_it_has_a_place_of_its_own_and_one_software_gpu(stage, tmp_path, monkeypatch):
    given = stage.environment
    assert (given["XDG_RUNTIME_DIR"], given["XDG_STATE_HOME"]) == (str(tmp_path), str(tmp_path / "state"))
    assert given["GPUSHARE_SIM"] == f"memory=16Gi,pool={tmp_path}/pool" and given["PYTHONUNBUFFERED"] == "1"
    assert "GPUSHARE_SOCKET" not in given, "another daemon's"
    monkeypatch.setenv("GPUSHARE_SIM", "memory=80Gi")
    assert Stage(tmp_path, "sim").environment["GPUSHARE_SIM"] == "memory=80Gi"


@pytest.mark.parametrize("driver", ["sim", "auto"])
def test_only_run_is_told_the_driver(stage, driver):
    stage.driver = driver
    assert stage.gpushare("run", "-q") == [sys.executable, "-P", "-m", "gpushare", "run", "-q", "--driver", driver]
    assert stage.gpushare("ps") == [sys.executable, "-P", "-m", "gpushare", "ps"]


# ---- the play -------------------------------------------------------------------------------------------------


class Actor:
    """A program that says what it should; how it ends."""

    def __init__(self, acts, name, status=0) -> None:
        self.acts, self.name, self.status = acts, name, status

    def hears(self, text, times=1) -> None:
        self.acts.append((self.name, text, times))

    def ends(self) -> int:
        self.acts.append((self.name, "ends"))
        return self.status

    def stops(self) -> int:
        self.acts.append((self.name, "stops"))
        return 0


@pytest.fixture
def acts(stage, monkeypatch):
    """What happens, in order; `status`: how programs end."""
    one = SimpleNamespace(done=[], status={"serve": 0, "late": 0, "stubborn": 137}, said=[])

    def run(name, request, limit, script, *arguments, grace="5s"):
        one.done.append((name, "starts", request, limit, script, arguments, grace))
        return Actor(one.done, name, one.status.get(name, 0))

    monkeypatch.setattr(stage, "run", run)
    monkeypatch.setattr(stage, "gpu_size", lambda: 32.0)
    monkeypatch.setattr(stage, "show", lambda *words: one.done.append(words))
    monkeypatch.setattr(stage, "say", one.said.append)
    monkeypatch.setattr(demo, "typed", lambda: "bin/gpushare")
    return one


def test_four_acts_in_sixteenths_of_the_gpu(stage, acts):
    assert stage.play() == 0
    assert acts.done == [
        ("train", "starts", "25%", "90%", "borrower.py", (24.0, "--block", 2.0, "--keep", 6.0), "5s"),
        ("train", "working with", 1),
        ("ps",),
        ("serve", "starts", "50%", "50%", "owner.py", (4.0, 9.0, "--pause", 3), "5s"),
        ("serve", "took", 1),
        ("serve", "took", 2),
        ("train", "working on with", 1),
        ("ps",),
        ("serve", "ends"),
        ("train", "stops"),
        ("stubborn", "starts", "25%", "90%", "borrower.py", (24.0, "--block", 2.0, "--stubborn"), "2s"),
        ("stubborn", "working with", 1),
        ("late", "starts", "50%", "50%", "owner.py", (14.0, "--pause", 1), "5s"),
        ("late", "took", 1),
        ("stubborn", "ends"),
        ("late", "ends"),
    ]
    assert [said.partition(":")[0] for said in acts.said[:-2]] == ["Act 1", "Act 2", "Act 3", "Act 4"]
    assert acts.said[-2] == "stubborn was stopped with exit status 137; late never saw an error."
    assert (
        acts.said[-1]
        == f"Now your own: bin/gpushare run --request 4Gi --limit 14Gi {Path(sys.executable).name} train.py"
    )


@pytest.mark.parametrize("wrong", [{"serve": 1}, {"late": 1}, {"stubborn": 0}, {"stubborn": 143}])
def test_whatever_ends_otherwise_went_wrong(stage, acts, wrong):
    acts.status |= wrong
    assert stage.play() == 1 and acts.said[-1] == "That went wrong."


def test_what_goes_over_its_budget_would_not_show_anything(stage, acts):
    """Within their limits; above the borrower's request; and both do not fit."""
    stage.play()
    total = 32.0
    for name, _, request, limit, _, arguments, _ in [one for one in acts.done if one[1:2] == ("starts",)]:
        takes = [one for one in arguments[:2] if isinstance(one, float)]
        assert sum(takes) <= float(limit.rstrip("%")) / 100 * total, name
        if request == "25%":
            assert takes[0] > 0.25 * total
    assert 24.0 + 4.0 < total < 24.0 + 4.0 + 9.0 and total < 24.0 + 14.0


@pytest.mark.parametrize(
    ("words", "driver", "began"), [(["--sim"], "sim", True), ([], "auto", False), (["--simulate"], "auto", False)]
)
def test_with_sim_it_has_its_own_daemon_and_in_any_case_it_is_cleared(monkeypatch, words, driver, began):
    did = []

    class Played:
        def __init__(self, directory, driver) -> None:
            did.append((directory.is_dir(), driver))

        def start_daemon(self) -> None:
            did.append("daemon")

        def play(self) -> int:
            did.append("play")
            raise GpushareError("that went wrong")

        def clear(self) -> None:
            did.append("clear")

    monkeypatch.setattr(demo, "Stage", Played)
    with pytest.raises(GpushareError):
        demo.main(words)
    assert did == [(True, driver), *(["daemon"] if began else []), "play", "clear"]


# ---- its daemon ------------------------------------------------------------------------------------------------


@pytest.fixture
def daemon(monkeypatch):
    """It answers after so many questions."""
    one = SimpleNamespace(answers_after=0, asked=0, starts=0, coming_up=True, now=0.0)

    class Starts:
        def __init__(self, runtime, driver, environ) -> None:
            self.runtime = runtime
            assert driver == "sim"

        @property
        def coming_up(self):
            return one.coming_up

        def start(self) -> None:
            one.starts += 1

    def version():
        one.asked += 1
        if one.asked <= one.answers_after:
            raise DaemonUnreachable("no daemon")

    monkeypatch.setattr(demo, "Starter", Starts)
    monkeypatch.setattr(demo, "Client", lambda socket: SimpleNamespace(version=version))
    monkeypatch.setattr(demo, "did_not_start", lambda starter, within: GpushareError(f"not within {within:g} s"))
    monkeypatch.setattr(demo.time, "monotonic", lambda: one.now)
    monkeypatch.setattr(demo.time, "sleep", lambda seconds: setattr(one, "now", one.now + seconds))
    return one


def test_its_daemon_is_started_once_and_waited_for(stage, daemon, tmp_path):
    daemon.answers_after = 5
    stage.start_daemon()
    assert (daemon.starts, daemon.asked) == (1, 6) and daemon.now == pytest.approx(0.1)
    assert stage.environment["GPUSHARE_SOCKET"] == str(tmp_path / "own" / "api.sock")


@pytest.mark.parametrize("coming_up", [True, False])
def test_one_that_does_not_answer_is_given_up_and_one_that_has_ended_at_once(stage, daemon, coming_up):
    daemon.answers_after, daemon.coming_up = 10**6, coming_up
    with pytest.raises(GpushareError, match="not within 20 s"):
        stage.start_daemon()
    assert (daemon.now > 20.0) is coming_up and daemon.now < 21.0


# ---- how large the GPU is ------------------------------------------------------------------------------------------


def sized(stage, monkeypatch, code, stdout="", stderr=""):
    asked = []

    def run(line, **how):
        asked.append((line, how["cwd"], how["env"]))
        return subprocess.CompletedProcess(line, code, stdout, stderr)

    monkeypatch.setattr(demo.subprocess, "run", run)
    return asked


def test_the_size_is_what_a_program_with_all_of_it_sees(stage, monkeypatch):
    asked = sized(stage, monkeypatch, 0, f"{24 * GIB}\n")
    assert stage.gpu_size() == 24.0
    ((line, cwd, environ),) = asked
    assert line[4] == "run" and line[line.index("--limit") + 1] == "max" and "-q" in line
    assert cwd == stage.scripts and environ is stage.environment


@pytest.mark.parametrize(("driver", "hinted"), [("sim", False), ("auto", True)])
def test_a_policy_that_refuses_is_told(stage, monkeypatch, driver, hinted):
    stage.driver = driver
    sized(stage, monkeypatch, 125, stderr="gpushare: too much\nhint: ask for less\n")
    with pytest.raises(GpushareError, match=r"^the demo wants all of a GPU: too much$") as caught:
        stage.gpu_size()
    assert (caught.value.hint is not None) is hinted


@pytest.mark.parametrize("binding", [True, False])
def test_a_program_that_fails_has_the_way_to_what_it_lacks(stage, monkeypatch, capsys, binding):
    sized(stage, monkeypatch, 1, stderr="Traceback: no cuda\n")
    monkeypatch.setattr(demo, "has_binding", lambda: binding)
    with pytest.raises(GpushareError, match="cannot use a GPU, nor the software driver") as caught:
        stage.gpu_size()
    assert capsys.readouterr().err == "Traceback: no cuda\n"
    assert (caught.value.hint == "see `gpushare doctor`") is binding


# ---- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tty", "no_color", "colour", "shown"),
    [
        (True, "", "35", "\033[35ma\033[0m\n"),
        (True, "1", "35", "a\n"),
        (False, "", "35", "a\n"),
        (True, "", None, "a\n"),
    ],
)
def test_colours_are_for_terminals(stage, monkeypatch, capsys, tty, no_color, colour, shown):
    monkeypatch.setattr(demo.sys.stdout, "isatty", lambda: tty, raising=False)
    monkeypatch.setenv("NO_COLOR", no_color)
    stage.print("a", colour)
    assert capsys.readouterr().out == shown


def test_a_line_is_out_before_the_output_of_the_command_that_it_names(stage, monkeypatch):
    """Also where all of it goes into a file."""
    done = []
    output = SimpleNamespace(write=done.append, flush=lambda: done.append("flush"), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(demo.subprocess, "run", lambda line, **how: done.append("run"))
    stage.show("ps")
    monkeypatch.undo()
    assert "".join(done) == "$ gpushare ps\nflushrun"


def test_a_command_is_shown_as_it_would_be_typed_and_run_in_the_demos_place(stage, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(demo.subprocess, "run", lambda line, **how: ran.append((line, how["env"])))
    stage.say("Act 9")
    stage.show("ps", "-o", "a b")
    assert capsys.readouterr().out == "\nAct 9\n$ gpushare ps -o 'a b'\n"
    assert ran == [([sys.executable, "-P", "-m", "gpushare", "ps", "-o", "a b"], stage.environment)]


# ---- programs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def says(stage):
    """A program of the shell."""
    started = []

    def says(text: str) -> Program:
        started.append(Program(stage, "train", ["/bin/sh", "-c", text]))
        return started[-1]

    yield says
    for one in started:
        one.process.kill()
        one.process.wait()
        one.reader.join(20.0)
        one.process.stdout.close()


def test_a_program_is_shown_as_it_would_be_typed_and_started_as_it_is(stage, monkeypatch, capsys):
    made = []
    monkeypatch.setattr(demo, "Program", lambda stage, name, line: made.append((name, line)) or "program")
    assert stage.run("train", "25%", "90%", "borrower.py", 12.0, 0.75, "--keep", 3) == "program"
    assert stage.programs == ["program"]
    typed = "gpushare run --name train --request 25% --limit 90% --grace 5s python borrower.py 12 0.75 --keep 3"
    assert capsys.readouterr().out == f"$ {typed}\n"
    ((name, line),) = made
    assert name == "train" and line[:5] == [sys.executable, "-P", "-m", "gpushare", "run"]
    assert line[-6:] == [sys.executable, str(stage.scripts / "borrower.py"), "12", "0.75", "--keep", "3"]


def test_each_line_is_printed_with_its_time_and_its_program(says, capsys):
    one = says("echo one; echo two >&2")
    assert one.ends(20.0) == 0
    for line, text in zip(capsys.readouterr().out.splitlines(), ("one", "two"), strict=True):
        seconds, rest = line.split("s ", 1)
        assert float(seconds) < 60 and rest == f"   train | {text}"
    assert one.lines == ["one\n", "two\n", ""]


def test_a_line_is_waited_for_as_often_as_it_should_come(says):
    one = says("echo took 2; sleep 0.05; echo took 2")
    one.hears("took", times=2, patience=20.0)
    assert sum("took" in line for line in one.lines) == 2
    with pytest.raises(GpushareError, match="train should have said 'took' by now") as caught:
        one.hears("took", times=3, patience=20.0)
    assert caught.value.hint == "see `gpushare doctor`"
    one.ends(20.0)


def test_a_line_that_does_not_come_in_time(says):
    one = says("exec sleep 60")
    with pytest.raises(GpushareError, match="should have said"):
        one.hears("took", patience=0.05)
    assert one.stops() == 0 and one.process.returncode is not None


def test_an_output_that_stays_open_keeps_the_demo_from_no_end(says):
    one = says("echo up; exec sleep 60")
    one.hears("up", patience=20.0)
    assert one.reader.daemon and one.reader.is_alive()


def test_a_program_is_stopped_as_by_ctrl_c(says, monkeypatch):
    one = says("exec sleep 60")
    sent, send = [], one.process.send_signal
    monkeypatch.setattr(one.process, "send_signal", lambda number: sent.append(number) or send(signal.SIGKILL))
    assert one.stops() == 0 and sent == [signal.SIGINT]


def test_one_that_does_not_heed_ctrl_c_is_killed(says, monkeypatch):
    one = says("trap '' INT; echo up; exec sleep 60")
    one.hears("up", patience=20.0)
    real = one.process.wait

    def wait(timeout=None):
        return real(0.05 if timeout == 2 else timeout)

    monkeypatch.setattr(one.process, "wait", wait)
    assert one.stops() == 0 and one.process.returncode == -signal.SIGKILL
    assert one.stops() == 0, "it has ended"


def test_at_the_end_all_programs_and_the_daemon_are_stopped(stage, monkeypatch):
    did = []
    stage.programs = [SimpleNamespace(stops=lambda name=name: did.append(name)) for name in ("a", "b")]
    monkeypatch.setattr(demo.subprocess, "run", lambda line, **how: did.append((line[4:], how["env"])))
    stage.clear()
    assert did == ["a", "b", (["daemon", "stop"], stage.environment)]


# ---- what there is --------------------------------------------------------------------------------------------------


def test_where_the_scripts_are(monkeypatch, tmp_path):
    found = demo.examples()
    assert (found / "borrower.py").is_file() and (found / "owner.py").is_file()
    (tmp_path / "borrower.py").touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "none"), str(tmp_path)])
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: spec if name == "gpushare_examples" else None)
    assert demo.examples() == tmp_path
    one_file = SimpleNamespace(submodule_search_locations=None)  # a module of this name that is no folder
    for nothing in (one_file, None):
        monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name, found=nothing: found)
        assert demo.examples().samefile(found)
    monkeypatch.setattr(demo, "__file__", str(tmp_path / "a" / "b" / "demo.py"))
    with pytest.raises(GpushareError, match="the examples are not installed"):
        demo.examples()


@pytest.mark.parametrize(
    ("there", "has"), [({"cuda.bindings"}, True), ({"cupy"}, True), ({"torch"}, False), (set(), False)]
)
def test_a_binding_of_the_driver(monkeypatch, there, has):
    def find_spec(name):
        if name == "cuda.bindings" and name not in there:
            raise ModuleNotFoundError("cuda")
        return object() if name in there else None

    monkeypatch.setattr(demo.importlib.util, "find_spec", find_spec)
    assert demo.has_binding() is has


def test_what_is_typed_for_gpushare(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    monkeypatch.setattr(demo, "sys", SimpleNamespace(executable=str(python)))
    monkeypatch.setattr(demo.shutil, "which", lambda name: None)
    assert demo.typed() == "gpushare", "there is no other"
    python.with_name("gpushare").touch()
    assert demo.typed() == "venv/bin/gpushare"
    monkeypatch.chdir("/")
    assert demo.typed() == str(python.with_name("gpushare")).removeprefix("/")
    monkeypatch.chdir(python.parent)
    assert demo.typed() == "gpushare"
    monkeypatch.setattr(demo.shutil, "which", lambda name: "/usr/bin/gpushare")
    monkeypatch.chdir(tmp_path)
    assert demo.typed() == "gpushare"


# ---- with commands of the shell in place of gpushare -----------------------------------------------------------------


def shell(stage, monkeypatch, script: str) -> None:
    monkeypatch.setattr(stage, "gpushare", lambda *words: ["/bin/sh", "-c", script, "gpushare", *words])


def test_the_size_is_read_and_not_shown(stage, monkeypatch, capfd):
    shell(stage, monkeypatch, f"echo {8 * GIB}; pwd >&2")
    assert stage.gpu_size() == 8.0
    assert capfd.readouterr() == ("", "")


def test_a_program_that_says_what_is_no_text_is_told_all_the_same(stage, monkeypatch, capfd):
    shell(stage, monkeypatch, "printf 'gpushare: \\377 too much\\nmore' >&2; exit 125")
    with pytest.raises(GpushareError, match=r"^the demo wants all of a GPU: \ufffd too much$"):
        stage.gpu_size()
    assert capfd.readouterr() == ("", "")


def test_a_command_that_is_shown_may_fail(stage, monkeypatch, capfd):
    shell(stage, monkeypatch, 'echo "$1"; exit 3')
    stage.show("ps")
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "$ gpushare ps", "ps"]


def test_that_the_daemon_has_stopped_already_is_nothing_to_show(stage, monkeypatch, capfd):
    shell(stage, monkeypatch, "echo no daemon >&2; exit 3")
    stage.clear()
    assert capfd.readouterr() == ("", "")
