"""The parts of hints for mistyped lines: each condition by itself (tests/cli/mistakes.txt has whole lines)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from gpushare.cli import mistakes
from gpushare.cli.mistakes import LONGEST, hint, misplaced, not_one_gpu, option_as_typed, unknown_command
from gpushare.errors import CommandNotExecutable, CommandNotFound, QuantityError, UsageError


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    """What is on the PATH."""
    there = {"python3", "bash", "train", "tool"}
    monkeypatch.setattr(mistakes.shutil, "which", lambda name: f"/bin/{name}" if name in there else None)
    monkeypatch.setattr(mistakes, "_programs", lambda: sorted(there))
    return there


@pytest.fixture
def files(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, mode in (
        ("grow.py", 0o644),
        ("run.sh", 0o644),
        ("ready.sh", 0o755),
        ("tool.bin", 0o755),
        ("notes", 0o644),
    ):
        Path(name).write_text("")
        Path(name).chmod(mode)


# ---- lines ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("meant", "rest", "line"),
    [
        ("ps", ["a"], ["ps"]),
        ("stop JOB", ["a"], ["stop", "a"]),
        ("stop JOB", ["a", "b"], ["stop", "a"]),
        ("stop JOB", [], ["stop", "JOB"]),
        ("run COMMAND", ["a", "b"], ["run", "a", "b"]),
        ("run COMMAND", [], ["run"]),
        ("docs [TOPIC]", ["x"], ["docs", "x"]),
        ("docs [TOPIC]", [], ["docs"]),
        ("set JOB --limit AMOUNT", ["a", "4Gi"], ["set", "a", "--limit", "4Gi"]),
        ("set JOB --limit AMOUNT", ["a"], ["set", "a", "--limit", "AMOUNT"]),
        ("change 'lose: NODE'", ["n1"], ["change", "lose: n1"]),
        ("cluster x COMMAND", ["a"], ["cluster", "x", "a"]),
        ("list A", ["a"], ["list", "A"]),
    ],
)
def test_capitals_stand_for_what_was_typed(meant, rest, line):
    assert mistakes._filled(meant, rest) == line


@pytest.mark.parametrize("length", [LONGEST - 5, LONGEST - 4, LONGEST - 3, 500])
def test_a_line_that_is_long_is_cut(length):
    text = mistakes._line(["gpu", "x" * (length - 4)])
    whole = "gpu " + "x" * (length - 4)
    assert text == (f"did you mean `{whole}`?" if length <= LONGEST else f"did you mean `{whole[:LONGEST]} ...`?")
    assert mistakes._line(None) is None and mistakes._line(["a b", "c"]) == "did you mean `'a b' c`?"


@pytest.mark.parametrize(
    ("group", "typed", "meant"),
    [
        ("gpushare", ["kill", "a"], "gpushare stop a"),
        ("gpushare", ["KILL", "a"], "gpushare stop a"),
        ("gpushare", ["submit", "a"], "gpushare cluster submit a"),
        ("gpushare", ["statsu", "-x"], "gpushare status -x"),
        ("gpushare", ["tool", "-x"], "gpushare run tool -x"),
        ("gpushare", ["stop1", "a"], "gpushare stop a"),
        ("gpushare cluster", ["kill", "a"], "gpushare cluster cancel a"),
        ("gpushare cluster", ["tool"], None),
        ("gpushare kernel", ["rm", "x"], "gpushare kernel remove x"),
        ("gpushare", ["zzzz"], None),
    ],
)
def test_an_unknown_command(group, typed, meant):
    error = unknown_command(group, typed, ["status", "stop", "run", "ps"])
    assert error.message == f"no such command {typed[0]!r}"
    assert error.hint == (f"did you mean `{meant}`?" if meant else f"`{group} --help` lists the commands")


def test_a_program_is_meant_unless_a_command_is_very_close(programs):
    programs.add("statist")
    assert "run statist" in str(unknown_command("gpushare", ["statist"], ["start"]).hint)
    assert "gpushare status" in str(unknown_command("gpushare", ["statist"], ["status"]).hint)


# ---- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "typed"),
    [
        ("-l", ["run", "-limit=4Gi"], "-limit"),
        ("-l", ["run", "-limit", "4Gi"], "-limit"),
        ("-l", ["run", "x"], "-l"),
        ("--li", ["run", "--limit"], "--li"),
    ],
)
def test_an_option_as_it_was_typed(name, arguments, typed):
    assert option_as_typed(name, arguments) == typed


OPTIONS = [click.Option([name]) for name in ("--limit", "--name", "--gpus", "--all")]


def option_hint(arguments: list[str], typed: str, command: str = "x") -> str | None:
    return mistakes._option_meant(typed, click.Command(command, params=[*OPTIONS]), arguments)


@pytest.mark.parametrize(
    ("arguments", "typed", "said"),
    [
        (["ps", "-limit", "4"], "-l", "did you mean `gpushare ps --limit 4`?"),
        (["ps", "--mem=4Gi", "x"], "--mem", "did you mean `gpushare ps --limit=4Gi x`?"),
        (["ps", "--limti", "4Gi"], "--limti", "did you mean `gpushare ps --limit 4Gi`?"),
        (["ps", "--memory=1"], "--memory", "did you mean `gpushare ps --limit=1`?"),
        (["ps", "--zzz"], "--zzz", None),
        (["ps", "-z"], "-z", None),
        (["ps", "-4Gi"], "-4", "an amount has no sign: write 4Gi"),
        (["ps", "-.5"], "-.", "an amount has no sign: write .5"),
        (["ps", "--rm"], "--rm", "a job is no container: leave it out"),
        (["ps", "-w"], "-w", "-o wide shows more"),
        (["ps", "--watch"], "--watch", "`gpushare top` follows it live"),
        (["x", "--lim"], "--other", None),
    ],
)
def test_an_option_that_is_meant(arguments, typed, said):
    assert option_hint(arguments, typed) == said


def test_an_option_means_something_else_of_some_commands():
    command = click.Command("run", params=[click.Option(["--for"])])
    assert mistakes._option_meant("-t", command, ["run", "-t", "1h"]) == (
        "a program is ended after a time by `timeout 1h gpushare run ...`"
    )
    assert mistakes._option_meant("-t", command, ["reserve", "-t", "1h"]) == "did you mean `gpushare reserve --for 1h`?"


def group() -> tuple[click.Group, click.Context]:
    made = click.Group("gpushare", commands={"run": click.Command("run", params=[click.Option(["--limit"])])})
    return made, click.Context(made)


@pytest.mark.parametrize(
    ("typed", "arguments", "said"),
    [
        ("--limit", ["--limit", "4Gi", "run", "true"], "did you mean `gpushare run --limit 4Gi true`?"),
        ("--limit", ["--limit", "4Gi", "true"], "did you mean `gpushare run --limit 4Gi true`?"),
        ("--limit", ["--limit"], None),
        ("--other", ["--other", "x", "run"], None),
    ],
)
def test_an_option_of_run_before_it(typed, arguments, said):
    assert mistakes._of_run(typed, group()[1], arguments) == said


def extra(path: str, words: list[str], arguments: list[str], *options: str) -> str | None:
    command = click.Command(path.rpartition(" ")[2], params=[click.Option([one]) for one in options])
    context = click.Context(command, info_name=path)
    return mistakes._extra_meant(context, words, arguments)


@pytest.mark.parametrize(
    ("path", "words", "arguments", "options", "said"),
    [
        ("gpushare set", ["4Gi"], ["set", "a", "4Gi"], ["--limit"], "gpushare set a --limit 4Gi"),
        ("gpushare set", ["4Gi"], ["set", "a", "4Gi"], [], None),
        ("gpushare set", ["four"], ["set", "a", "four"], ["--limit"], None),
        ("gpushare cluster change", ["n1"], ["change", "lose:", "n1"], [], "gpushare change 'lose: n1'"),
        ("gpushare ps", ["train"], ["ps", "train"], [], "gpushare explain train"),
        ("gpushare ps", ["aux"], ["ps", "aux"], [], "gpushare ps -a"),
        ("gpushare ps", ["0"], ["ps", "0"], [], "gpushare ps --gpu 0"),
        ("gpushare ps", ["12"], ["ps", "12"], [], "gpushare ps --gpu 12"),
        ("gpushare ps", ["123"], ["ps", "123"], [], "gpushare explain 123"),
        ("gpushare doctor", ["0"], ["doctor", "0"], [], None),
    ],
)
def test_too_many_words(path, words, arguments, options, said):
    assert extra(path, words, arguments, *options) == (f"did you mean `{said}`?" if said else None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--limit", "4", "GB"], "--limit 4Gi"),
        (["run", "--limit=4", "gb"], "--limit 4Gi"),
        (["run", "--limit", "4.5", "m"], "--limit 4.5Mi"),
        (["run", "--limit", "4", "TiB"], "--limit 4Ti"),
        (["reserve", "4", "G"], "reserve 4Gi"),
        (["set", "4", "G"], None),
        (["run", "--limit", "4", "kb"], None),
        (["run", "--limit", "x4", "gb"], None),
        (["run", "--limit", "4"], None),
        (["run", "x=4", "gb"], None),
    ],
)
def test_an_amount_in_two_words(arguments, said):
    assert mistakes._in_one_word(arguments) == (f"an amount is one word: write `{said}`" if said else None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", None),
        ("12", None),
        ("GPU-1", None),
        ("gpu-1", None),
        ("MIG-1", None),
        ("all", "leave --gpu out"),
        ("ANY", "leave --gpu out"),
        ("none", "leave --gpu out"),
        ("0,1", "write --gpu 0 --gpu 1"),
        ("0;1", "write --gpu 0 --gpu 1"),
        ("cuda:1", "write --gpu 1"),
        ("CUDA:1", "write --gpu 1"),
        ("gpu0", "write --gpu 0"),
        ('"device=0,2"', "write --gpu 0 --gpu 2"),
        ("0-3", "write a number or a UUID"),
        ("first", "write a number or a UUID"),
    ],
)
def test_what_names_one_gpu(text, said):
    found = not_one_gpu(text)
    assert found is None if said is None else found is not None and found.startswith(said)


# ---- programs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "command", "ours", "line"),
    [
        ([], ["train", "--grace", "5s"], "--grace", "gpushare run --grace 5s train"),
        ([], ["train", "--grace=5s", "-x"], "--grace", "gpushare run --grace=5s train -x"),
        ([], ["train", "--no-lend", "-x"], "--no-lend", "gpushare run --no-lend train -x"),
        ([], ["/x/train", "--limit", "4Gi"], "--limit", "gpushare run --limit 4Gi /x/train"),
        (["-q"], ["train", "--limit", "4Gi"], "--limit", "gpushare run -q --limit 4Gi train"),
        ([], ["train", "--limit", "4"], None, ""),
        ([], ["train", "--limit"], None, ""),
        ([], ["train", "--grace"], None, ""),
        ([], ["train", "--epochs", "3"], None, ""),
        ([], ["train", "--", "--grace", "5s"], None, ""),
        ([], ["bash", "/x/gpushare", "--grace", "5s"], None, ""),
        (["--limit", "4Gi"], ["train", "--limit", "2Gi"], None, ""),
        (["--limit=4Gi"], ["train", "--limit", "2Gi"], None, ""),
        (
            [],
            ["train", "--reservation", "a", "x", "--min-run-time", "5s", "--", "y"],
            "--reservation, --min-run-time",
            "gpushare run --reservation a --min-run-time 5s train x -- y",
        ),
        ([], ["train", "--on-reclaim", "term"], "--on-reclaim", "gpushare run --on-reclaim term train"),
        ([], ["train", "--require-daemon", "x"], "--require-daemon", "gpushare run --require-daemon train x"),
    ],
)
def test_our_options_after_the_program(before, command, ours, line):
    said = misplaced(before, command)
    if ours is None:
        assert said is None
        return
    first = Path(command[0]).name
    assert said == (
        f"gpushare: these come after the command, so {first} gets them, not gpushare: {ours}\n\n"
        f"hint: did you mean `{line}`? If not, write -- in front of {first}"
    )


def meant(name: str, *arguments: str) -> str | None:
    return mistakes._program_meant(name, arguments or ("run", name, "x"))


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("-x", ("run", "--", "-x", "y"), "after -- comes the program"),
        ("-c", ("run", "--limit", "4Gi", "--", "-c", "y"), "after -- comes the program"),
        ("-q", ("run", "--", "-q", "y"), "did you mean `gpushare run -q y`?"),
        ("--limit=4Gi", ("run", "--", "--limit=4Gi", "y"), "did you mean `gpushare run --limit=4Gi y`?"),
        ("python a.py", (), "did you mean `gpushare run python a.py x`?"),
        ("it's a", (), None),
        ('say "a', (), None),
        ("cd", (), "it belongs to the shell: put the line into a script, or write `bash -c '...'`"),
        ("A=1", (), "did you mean `gpushare run env A=1 x`?"),
        ("1=1", (), None),
        ("python", (), "did you mean `gpushare run python3 x`?"),
        ("x/python", (), None),
        ("grow.py", (), "did you mean `gpushare run python3 grow.py x`?"),
        ("tool.bin", (), "did you mean `gpushare run ./tool.bin x`?"),
        ("notes", (), None),
        ("trian", (), "did you mean `gpushare run train x`?"),
        ("x/trian", (), None),
        ("zzzzzz", (), None),
        ("1", ("run", "--gpu", "0", "1", "tool"), "--gpu takes one word: write --gpu 0 --gpu 1"),
        ("b", ("run", "--name", "a", "b", "tool"), "--name takes one word: write --name 'a b'"),
        ("zz", ("run", "--name", "a", "zz", "zzz"), None),
        ("gone", ("run", "x"), None),
    ],
)
def test_a_program_that_does_not_exist(files, name, arguments, said):
    assert meant(name, *arguments) == said


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("grow.py", ["python3", "grow.py"]),
        ("run.sh", ["bash", "run.sh"]),
        ("ready.sh", ["bash", "ready.sh"]),
        ("./ready.sh", None),
        ("tool.bin", ["./tool.bin"]),
        ("notes", None),
        ("tool", ["tool"]),
        ("zzz", None),
    ],
)
def test_what_starts_a_program_or_script(files, word, found):
    assert mistakes._runnable(word) == found


def test_the_interpreter_that_is_there(programs):
    assert mistakes._interpreter(Path("a.py")) == "python3" and mistakes._interpreter(Path("a.txt")) is None
    programs.add("python")
    assert mistakes._interpreter(Path("a.py")) == "python"
    programs -= {"python", "python3"}
    assert mistakes._interpreter(Path("a.py")) == "python", "there is no better"


# ---- which error has which hint -------------------------------------------------------------------------------


def run(arguments: list[str], error: Any) -> str | None:
    return hint(error, arguments)


def test_each_error_has_the_hint_of_its_kind(files):
    words = ["run", "--limit", "4", "GB", "true"]
    amount = "an amount is one word: write `--limit 4Gi`"
    for error in (QuantityError("no", hint="own"), CommandNotFound("command not found: GB"), click.UsageError("no")):
        assert run(words, error) == amount
    assert run(words, UsageError("no", hint="own")) == "own"
    assert (
        run(["run", "python"], CommandNotFound("command not found: python")) == "did you mean `gpushare run python3`?"
    )
    assert run(["run", "x"], CommandNotFound("command not found: zzzz", hint="own")) == "own"
    closed = CommandNotExecutable("cannot execute run.sh: permission denied", hint="chmod +x run.sh")
    assert run(["run", "run.sh", "a"], closed) == "did you mean `gpushare run bash run.sh a`?"
    other = CommandNotExecutable("cannot execute notes: permission denied", hint="chmod +x notes")
    assert run(["run", "notes"], other) == "chmod +x notes"
    assert run(["run"], click.BadOptionUsage("--limit", "needs a value")) == "an amount: --limit 4Gi"
    assert run(["run"], click.BadOptionUsage("--other", "needs a value")) is None
    assert run(["ps"], ValueError("odd")) is None


def test_usage_errors_in_their_context():
    option = click.Option(["--limit"])
    context = click.Context(click.Command("run", params=[option]), info_name="gpushare run")
    bad = click.BadParameter("no", ctx=context, param=option)
    assert run(["run"], bad) == "an amount: --limit 4Gi"
    missing = click.MissingParameter(ctx=context, param=click.Argument(["command"]))
    assert run(["run"], missing) == "for example `gpushare run --limit 4Gi python train.py`"
    other = click.Context(click.Command("x"), info_name="gpushare x")
    assert run(["x"], click.UsageError("no", ctx=other)) is None
    unexpected = click.UsageError("Got unexpected extra argument (4Gi)", ctx=context)
    assert run(["run", "4Gi"], unexpected) == "did you mean `gpushare run --limit 4Gi`?"
    unknown = click.NoSuchOption("--lmit", ctx=context)
    assert run(["run", "--lmit", "4Gi"], unknown) == "did you mean `gpushare run --limit 4Gi`?"
    of_group = click.NoSuchOption("--limit", ctx=group()[1])
    assert run(["--limit", "4Gi", "true"], of_group) == "did you mean `gpushare run --limit 4Gi true`?"
