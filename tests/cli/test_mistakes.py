"""What people type by mistake, and what they are told: mistakes.txt, a line and its answer each.

The lines run in this process against a real daemon with two GPUs that are only numbers; programs are not started. What
is offered to be pasted is tried, too. When an answer is meant to change, GPUSHARE_TEST_UPDATE=1 writes the file again;
read it aloud.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import gpushare as package
from gpushare.cli import cli, main, mistakes
from gpushare.launch import Launch
from gpushare.paths import example
from gpushare.quantity import Quantity

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "daemon"))

from daemon_harness import GIB, GPU, GPU2, InProcess
from fixed_gpus import FixedGpus

from gpushared import config as configuration
from gpushared.gpus.inventory import GpuInfo

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = str(example(Path("examples/cluster/cluster.yaml")).parents[2])  # an installation or the source tree
GOLDEN = Path(__file__).with_name("mistakes.txt")
PROGRAMS = ("ipython3", "python", "bash", "env", "true", "sleep", "nvidia-smi", "stat", "htop")
MISUSE = re.compile(r"no such (command|option)|unexpected|missing|requires|cannot (read|execute)|not found|invalid")
UPDATE = bool(os.environ.get("GPUSHARE_TEST_UPDATE"))  # before a fixture clears the environment


class Typed(NamedTuple):
    line: str
    answer: str


def parts(text: str) -> Iterator[str]:
    """Comments, files, and lines with their answers, in order; joined they are the text."""
    part: list[str] = []
    for line in text.splitlines(keepends=True):
        if re.match(r"\$ |>>> |# |\| \S", line) and part:
            yield "".join(part)
            part = []
        part.append(line)
    yield "".join(part)


@pytest.fixture
def shell(environ, tmp_path, monkeypatch, capfd) -> Iterator[Callable[[str], Typed]]:
    """Types a line: its exit status and all that is said, with what differs between runs left out."""
    directory = Path(tempfile.mkdtemp(prefix="gs-"))  # short: the name of a socket has at most 107 bytes
    gpus = FixedGpus([GpuInfo(GPU, 0, "Test GPU", 16 * GIB), GpuInfo(GPU2, 1, "Test GPU", 16 * GIB)])
    daemon = InProcess(directory, configuration.Config(idle_exit=3600.0), gpus).start()
    for name in ("train-lo", "train-hi", "t1"):
        daemon.client.register({"name": name, "command": ["python"], "request": "1Gi", "limit": "2Gi"})
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    for program in PROGRAMS:
        (home / "bin" / program).write_text("#!/bin/sh\n")
        (home / "bin" / program).chmod(0o755)
    for name in ("grow.py", "script.sh", "notes.txt", "tool", "ready.py"):
        (home / name).write_text("#!/bin/sh\n")
        (home / name).chmod(0o755 if name in ("tool", "ready.py") else 0o644)
    monkeypatch.chdir(home)
    for name, value in (
        ("PATH", str(home / "bin")),
        ("HOME", str(home)),
        ("XDG_STATE_HOME", str(home / "state")),
        ("JUPYTER_PATH", ""),
        ("GPUSHARE_SOCKET", str(directory / "api.sock")),
        ("GPUSHARE_DRIVER", "sim"),
    ):
        monkeypatch.setenv(name, value)

    def supervise(launch: Launch, _program: str, _environ: object) -> int:
        launch._withdraw()
        return 0

    monkeypatch.setattr(Launch, "_supervise", supervise)

    def run(line: str) -> int:
        if line.startswith(">>> "):
            try:
                exec(line[4:], {"gpushare": package})
            except Exception as error:
                print("".join(traceback.format_exception_only(error)), end="")
                return 1
            return 0
        program, *arguments = shlex.split(line[2:])
        if program == "gpushared":
            without_the_stand_in = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}"}
            return subprocess.run([sys.executable, "-m", "gpushared", *arguments], env=without_the_stand_in).returncode
        assert program == "gpushare", line
        return main(arguments)

    def type_(line: str) -> Typed:
        capfd.readouterr()
        code = run(line)
        out, err = capfd.readouterr()
        said = re.sub(r"\b[0-9a-f]{16}\b", "ID", f"{out}{err}")
        said = (
            re.sub(r"has waited \d+ s\b", "has waited 1 s", said)
            .replace(str(home), "HOME")
            .replace(EXAMPLES, "INSTALLED")
            .replace("\t", "\\t")
        )
        answer = "".join(f"    {one}".rstrip() + "\n" for one in [f"[{code}]", *said.splitlines()])
        return Typed(line, f"{line}\n{answer}\n")

    yield type_
    daemon.stop()
    shutil.rmtree(directory)


def write_file(part: str) -> None:
    name, *lines = part.splitlines()
    content = [line.removeprefix("|   ").replace("\\t", "\t") for line in lines if line.startswith("|   ")]
    Path(name.removeprefix("| ")).write_text("\n".join(content) + "\n")


def test_every_mistake_is_answered_as_it_is_written_down(shell) -> None:
    expected, found = GOLDEN.read_text(), []
    for part in parts(expected):
        if part.startswith(("$ ", ">>> ")):
            found.append(shell(part.splitlines()[0]).answer)
            continue
        if part.startswith("| "):
            write_file(part)
        found.append(part)
    if UPDATE:
        GOLDEN.write_text("".join(found).rstrip("\n") + "\n")
        return
    assert "".join(found).rstrip("\n") == expected.rstrip("\n"), "if so it should be: GPUSHARE_TEST_UPDATE=1"


def test_what_is_offered_to_be_pasted_is_understood(shell) -> None:
    """Of a line that may not fit this node it is enough that nobody calls it a mistake."""
    tried = 0
    for part in parts(GOLDEN.read_text()):
        if part.startswith("| "):
            write_file(part)
        if part.startswith("$ ") and "cluster apply ok.yaml" in part:
            shell(part.splitlines()[0])
        for offered in re.findall(r"(?:did you mean|for example|hint:) `(gpushare [^`]*)`", part):
            words = shlex.split(offered)
            if (
                any(word.isupper() for word in words)
                or words[1] in ("top", "demo", "doctor", "stop")
                or words[-1].endswith(".yaml")
            ):
                continue
            answer = shell(f"$ {offered}").answer
            assert not MISUSE.search(answer), answer
            tried += 1
    assert tried > 50


# The tables


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that a line names, and what is left of the line."""
    context, command = click.Context(cli), cli
    while isinstance(command, click.Group) and words and not words[0].startswith(("-", "[")):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
    return command, words


@pytest.mark.parametrize("group", list(mistakes.COMMANDS))
def test_each_line_that_is_meant_exists_and_nothing_that_is_meant_is_a_mistake(group) -> None:
    known = command_of(group.split()[1:])[0]
    seen: list[str] = []
    for meant, typed in mistakes.COMMANDS[group].items():
        for word in typed.split():
            command, left = command_of([*group.split()[1:2], *shlex.split(meant.format(word))])
            options = [one for one in left if one.startswith("--") and one not in ("--help", "--version")]
            assert set(options) <= {name for param in command.params for name in param.opts}, meant
            assert not isinstance(known, click.Group) or word not in known.commands
        seen += typed.split()
    assert len(set(seen)) == len(seen)


def every_command(group: click.Group, context: click.Context) -> Iterator[click.Command]:
    yield group
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield from every_command(command, context) if isinstance(command, click.Group) else [command]


def test_each_option_that_is_meant_exists_and_does_not_stand_for_itself() -> None:
    commands = [*every_command(cli, click.Context(cli))]
    known = {name for command in commands for param in command.params for name in param.opts} | {"--version"}
    assert (
        set(mistakes.OPTIONS) | set(mistakes.VALUES) | {*mistakes.OUR_OWN, *mistakes.FLAGS, *mistakes.AMOUNTS} <= known
    )
    for meant, typed in mistakes.OPTIONS.items():
        assert meant not in typed.split()


def test_each_example_is_of_its_command() -> None:
    for path, line in mistakes.EXAMPLES.items():
        command, _ = command_of(path.split()[1:])
        assert not isinstance(command, click.Group)
        assert path in line


# Amounts from Python


@pytest.mark.parametrize(
    ("amount", "canonical"),
    [
        (2 * 2**30, "2Gi"),
        (2.0 * 2**30, "2Gi"),
        (1.5 * 2**30, "1536Mi"),
        (0.25, "0.25"),
        (1, "1"),
        (1.0, "1"),
        ("2Gi", "2Gi"),
        ("25%", "0.25"),
        (Quantity.parse("3Gi"), "3Gi"),
    ],
)
def test_amounts_may_be_numbers(amount, canonical) -> None:
    assert Quantity.of(amount).canonical() == canonical
