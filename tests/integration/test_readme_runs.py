"""The commands that the README and its first pages show are run as shown, and answer in the words shown there."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from integration.node import ROOT, Node, wait_for

PAGES = ("README.md", "docs/running.md", "docs/notebooks.md")
README = "\n".join((ROOT / page).read_text() for page in PAGES)
BLOCKS = re.findall(r"```[a-z]*\n(.*?)```", README, re.DOTALL)
STORY = BLOCKS[0]
SPOKEN = set(re.findall(r"`(gpushare [^`]+)`", README))
"""Commands within a sentence."""
ELSEWHERE = {
    "gpushare cluster": "a family of commands: below",
    "gpushare run": "with a command, in every other test here",
    "gpushare run --container": "with Podman: tests/integration/test_containers.py",
    "gpushare run --exec": "what a kernel starts as: tests/notebook",
    "gpushare dashboard": "it does not end: tests/dashboard",
    "gpushare cluster serve": "it does not end: tests/engines/test_queue_commands.py",
    "gpushare kernel install": "needs a name and a limit: test_the_kernel",
    "gpushare kernel install -h": "its help: tests/unit/test_readme.py",
    "gpushare suspend JOB": "the job's program must stand still: tests/integration/test_suspending.py",
    "gpushare resume JOB": "likewise",
    "gpushare cdi": "there may be no devices to list here: tests/cli/test_cdi_command.py",
    "gpushare profiles": "there are none to list here: tests/cli/test_profiles.py",
}


PROGRAM = """import runpy, sys, time
sys.path.insert(0, {examples!r})
import gpu
give_back = gpu.DriverGpu.give_back
gpu.DriverGpu.give_back = lambda *those: (time.sleep(0.25), give_back(*those))  # as one that saves its work first
sys.argv = {words!r}
runpy.run_path({examples!r} + "/" + sys.argv[0], run_name="__main__")
"""
"""One of the two programs of the story: examples/ has what they do."""


def said(text: str) -> str:
    """What a line says whatever the numbers and the users are."""
    text = re.sub(r"\(\w+\)", "(somebody)", text.partition("    #")[0])
    return " ".join(re.sub(r"\d+(\.\d+)?( (B|[KMG]iB|ms|s)\b)?", "N", text).split())


def commands(block: str) -> list[str]:
    """Its lines that are commands, without their comments."""
    lines = [line.removeprefix("$ ") for line in block.splitlines()]
    return [line.partition("  #")[0].rstrip() for line in lines if line.startswith("gpushare ")]


@pytest.fixture
def at_home(node: Node, tmp_path: Path) -> Node:
    """In a directory with the two programs of the story: those of examples/."""
    for name, words in (("train", ["borrower.py", "12"]), ("serve", ["owner.py", "7.2", "--pause", "0"])):
        (tmp_path / f"{name}.py").write_text(PROGRAM.format(examples=str(ROOT / "examples"), words=words))
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME", "JUPYTER_DATA_DIR"):
        node.env[name] = str(tmp_path / name.lower())
    node.put_commands_on_path()
    return node


def run(node: Node, command: str, where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", command], cwd=where, env=node.env, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_story(at_home: Node, tmp_path: Path) -> None:
    train, ps, serve = commands(STORY)
    told = tmp_path / "train.err"
    output = tmp_path / "train.out"
    borrower = at_home.spawn(["sh", "-c", f"cd {tmp_path}; exec {train} > {output} 2> {told}"])
    wait_for(lambda: output.exists() and "working with" in output.read_text(), "the borrower to work")
    listed = run(at_home, ps, tmp_path).stdout.splitlines()
    owner = run(at_home, serve, tmp_path)
    assert owner.returncode == 0, owner.stderr
    wait_for(lambda: "hint:" in told.read_text(), "the borrower to be told")
    heard = [*output.read_text().splitlines(), *told.read_text().splitlines()]
    heard += [*owner.stdout.splitlines(), *owner.stderr.splitlines()]
    borrower.kill()
    known = {said(line) for line in heard}
    shown = [line for line in STORY.splitlines() if line and not line.startswith("$ ")]
    titles, row = (line for line in shown if re.match(r"GPU|  0 ", line))
    assert titles.index("USAGE") + len("USAGE") == row.index("12.5 GiB") + len("12.5 GiB"), (
        "not aligned as it is printed"
    )
    assert listed[0].split() == titles.split()
    shown_row, listed_row = ([*line.split()[:2], *line.split()[5:]] for line in (row, listed[1]))  # no user, pid, age
    assert [said(word) for word in listed_row] == [said(word) for word in shown_row]
    missing = [line for line in shown if line not in {titles, row} and said(line) not in known]
    assert not missing, f"{missing}\nwas said:\n" + "\n".join(heard)


def test_the_cluster(at_home: Node, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "trace.csv").write_text("at,name,queue,gpus,duration\n0s,j,vision,1,1h\n")
    page = (ROOT / "docs" / "cluster.md").read_text()
    lines = commands(re.findall(r"```\n(gpushare cluster apply.*?)```", page, re.DOTALL)[0])
    assert len(lines) == 9
    if importlib.util.find_spec("matplotlib") is None:
        lines = [line for line in lines if "--plot" not in line]
    for line in lines:
        done = run(at_home, line, tmp_path)
        assert done.returncode == 0, (line, done.stderr)
        assert done.stdout


def test_the_kernel(at_home: Node, tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    (line,) = {line for one in BLOCKS for line in commands(one) if line.startswith("gpushare kernel")}
    done = run(at_home, line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "torch-8g" in run(at_home, "gpushare kernel list", tmp_path).stdout
    assert run(at_home, "gpushare kernel remove torch-8g", tmp_path).returncode == 0


def test_what_is_said_in_passing(at_home: Node, tmp_path: Path) -> None:
    """With a job called JOB, all of them at once."""
    at_home.puppet("JOB", "--limit", "4Gi")
    bullet = re.search(r"\* `gpushare top`.*?\n\n", README, re.DOTALL)
    assert bullet is not None
    spoken = SPOKEN | {
        f"gpushare {one.removeprefix('gpushare ')}" for one in re.findall(r"`([a-z]+(?: [^`]+)?)`", bullet[0])
    }
    done = []
    for command in sorted(spoken - ELSEWHERE.keys()):
        if "events --follow" in command or command.endswith("-a") or command.startswith("gpushare -"):
            continue  # it does not end; an option of the one before
        found = run(at_home, command.replace(" doctor -o json", " doctor -o json || true"), tmp_path)
        assert found.returncode == 0, (command, found.stderr)
        assert found.stdout, command
        done.append(command)
    assert {"gpushare top", "gpushare ps", "gpushare explain JOB", "gpushare set JOB --limit 12Gi"} <= set(done)
    (reserve,) = [command for command in done if "reserve" in command]
    inside = run(
        at_home,
        f"{reserve.replace('8Gi', '1Gi').replace('mine', 'more')}; gpushare run --reservation mine true",
        tmp_path,
    )
    assert inside.returncode == 0, inside.stderr


def test_in_a_program(at_home: Node, tmp_path: Path) -> None:
    """As it stands: under gpushare and without it."""
    (block,) = [one for one in BLOCKS if "on_pressure" in one]
    program = tmp_path / "program.py"
    program.write_text(f"import signal\n{block}\nprint('it goes on')\n")
    for command in ("python program.py", "gpushare run --limit 1Gi python program.py"):
        done = run(at_home, command, tmp_path)
        assert (done.returncode, done.stdout) == (0, "it goes on\n"), done.stderr
