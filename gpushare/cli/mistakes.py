"""Known mistakes on a command line, and the right lines: habits from docker, kubectl, Slurm and nvidia-smi.

The tables are data. In a right line a word in capitals stands for the next typed word, COMMAND for all that are left;
[WORD] is left out if there is none. What no table has is compared with close names (nearest.py). All of this runs only
after a command has failed, except `misplaced`, which `run` calls with its program's options.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import click

from gpushare.errors import CommandNotExecutable, CommandNotFound, QuantityError, UsageError, render
from gpushare.file_kinds import is_file
from gpushare.nearest import ALIKE, nearest
from gpushare.quantity import Quantity

__all__ = ["hint", "misplaced", "not_one_gpu", "option_as_typed", "unknown_command"]

COMMANDS: Mapping[str, Mapping[str, str]] = {
    "gpushare": {
        "stop JOB": "kill cancel scancel delete rm terminate end",
        "ps": "list ls jobs squeue get show",
        "ps -a": "history sacct",
        "run COMMAND": "start exec launch srun sbatch",
        "explain JOB": "logs log describe inspect why",
        "status": "info smi nvidia-smi gpustat gpus stat stats",
        "top": "watch monitor htop nvtop",
        "set JOB --limit AMOUNT": "limit resize update edit change",
        "docs [TOPIC]": "man manual doc",
        "doctor": "check test diagnose debug",
        "cluster {} COMMAND": "submit apply plan simulate queues nodes",
        "release NAME": "unreserve free",
        "reserve --list": "reservations",
        "kernel install": "install jupyter notebook",
        "daemon status": "gpushared server",
        "[WORD] --help": "help",
        "--version": "version",
    },
    "gpushare cluster": {
        "jobs": "list ls ps squeue get status",
        "cancel JOB": "kill delete rm stop scancel withdraw",
        "apply FILE": "create make init load update",
        "submit COMMAND": "run add sbatch start",
        "end JOB": "done finish complete",
        "explain JOB": "why describe show inspect",
        "nodes": "sinfo node",
        "queues": "queue quota shares",
        "change 'lose: NODE'": "lose",
        "plan --what-if COMMAND": "what-if whatif",
        "simulate FILE": "play scenario",
        "[WORD] --help": "help",
    },
    "gpushare ps": {"ps -a": "aux -ef all"},
    "gpushare kernel": {
        "list": "ls show status",
        "remove NAME": "uninstall rm delete",
        "install --name NAME": "add create new",
    },
}
"""By group: the rest of the right line, and the typed words that it replaces; {} is the typed word itself."""

OPTIONS: Mapping[str, str] = {
    "--memory": "--mem -m --vram --gpu-memory",
    "--limit": "--memory --mem -m --vram --gpu-memory --memory-limit --max --max-memory --limits -l",
    "--request": "--requests --guarantee --min --min-memory -r",
    "--gpu": "--device --devices --gpu-id --id -i -g",
    "--gpus": "--num-gpus --ngpus -G",
    "--name": "--job-name -J -n",
    "--priority": "--prio --nice -p",
    "--wait": "--timeout --block -w",
    "--grace": "--grace-period --stop-timeout",
    "--output": "--format",
    "--last": "--lines --tail",
    "--for": "--time --duration -t",
    "--pool": "--partition",
    "--node": "--nodelist --host",
    "--tasks": "--ntasks --replicas",
    "--all": "-e -ef -A",
    "--now": "--force -f -9 --kill",
    "--version": "-V -v",
}
"""The right option, and the typed ones that it replaces. The first one that the command has counts."""

ANOTHER = {("run", "--for")}
"""Commands, and their options that mean something else than those above."""

INSTEAD: Mapping[str, str] = {
    "a job is no container: leave it out": "--rm -it -ti --network --volume",
    "write env NAME=VALUE in front of the program": "--env -e",
    "-o wide shows more": "--wide -w",
    "`gpushare top` follows it live": "--watch --interval",
    "how many GPUs: --gpus 2": "--gres",
    "a program is ended after a time by `timeout 1h gpushare run ...`": "--time -t --time-limit",
    "the shell does that: end the line with &": "--detach -d --background",
}
"""Advice for options that no command has."""

NAMED: Mapping[str, str] = {
    "gpushare ps": "explain JOB",
    "gpushare status": "explain JOB",
    "gpushare top": "explain JOB",
    "gpushare events": "events --job JOB",
    "gpushare cluster jobs": "cluster explain JOB",
    "gpushare cluster queues": "cluster jobs --queue QUEUE",
}
"""Commands that take no name, and the right line if one is given."""

EXAMPLES: Mapping[str, str] = {
    "gpushare completion": 'eval "$(gpushare completion bash)"',
    "gpushare run": "gpushare run --limit 4Gi python train.py",
    "gpushare set": "gpushare set train --limit 8Gi",
    "gpushare reserve": "gpushare reserve 8Gi --name mine --for 8h",
    "gpushare release": "gpushare release mine",
    "gpushare stop": "gpushare stop train",
    "gpushare kernel remove": "gpushare kernel remove torch-8g",
    "gpushare cluster apply": "gpushare cluster apply cluster.yaml",
    "gpushare cluster submit": "gpushare cluster submit --queue research --gpus 2 --name train",
    "gpushare cluster explain": "gpushare cluster explain train",
    "gpushare cluster end": "gpushare cluster end train",
    "gpushare cluster cancel": "gpushare cluster cancel train",
    "gpushare cluster change": "gpushare cluster change 'lose: dgx-1'",
    "gpushare cluster simulate": "gpushare cluster simulate scenario.yaml",
}
"""A line that works, for commands whose arguments are missing."""

VALUES: Mapping[str, str] = {
    "--gpus": "how many: --gpus 2; which ones: --gpu 0 --gpu 1",
    "--gpu": "one of them: --gpu 0",
    "--limit": "an amount: --limit 4Gi",
    "--request": "an amount: --request 4Gi",
    "--name": "a name: --name train",
    "--priority": "a whole number: --priority 10",
    "--grace": "a time: --grace 10s",
    "--for": "a time: --for 8h",
    "--since": "a time: --since 8h",
    "--what-if": "a change: --what-if 'lose: node-1'",
}
"""An example value, for options with a missing or wrong value."""

OUR_OWN = ("--grace", "--min-run-time", "--on-reclaim", "--reservation")
FLAGS = ("--no-lend", "--require-daemon")
AMOUNTS = ("--request", "--limit")
"""Options that programs seldom have; those of amounts count only if an amount follows."""

BUILTINS = frozenset(("cd", "source", ".", "export", "ulimit", "alias", "set", "eval", "conda", "module"))
INTERPRETERS = {".py": "python", ".sh": "bash"}
"""The interpreter of a script, by the end of its name."""
UNITS = re.compile(r"([mgt])i?b?", re.IGNORECASE)
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
CLEAR = 0.75
"""How close a name must be if a wrong guess does harm: an option, a program."""
LONGEST = 160
"""Most characters of a suggested line."""


def unknown_command(group: str, typed: Sequence[str], known: Collection[str]) -> UsageError:
    """The error for a word that is no command of this group, with the right line if it is known."""
    meant = _line(_command_meant(group, typed[0], typed[1:], known))
    listed = f"`{group} --help` lists the commands"
    return UsageError(f"no such command {typed[0]!r}", hint=meant or listed)


def hint(error: Exception, arguments: Sequence[str]) -> str | None:
    """The hint for a mistake if it is known here, else the error's own."""
    known: str | None = None
    if isinstance(error, QuantityError | CommandNotFound | click.UsageError):
        known = _in_one_word(arguments)
    if isinstance(error, CommandNotFound):
        known = known or _program_meant(error.message.partition(": ")[2], arguments)
    if isinstance(error, CommandNotExecutable):
        known = _script_meant(error.message, arguments)
    if isinstance(error, click.BadOptionUsage):
        known = known or VALUES.get(error.option_name)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        known = known or _usage_hint(error, error.ctx, arguments)
    return known or getattr(error, "hint", None)


def _usage_hint(error: click.UsageError, context: click.Context, arguments: Sequence[str]) -> str | None:
    path = context.command_path
    extra = re.search(r"unexpected extra arguments? \((.*)\)$", error.format_message())
    if isinstance(error, click.NoSuchOption):
        if isinstance(context.command, click.Group) and (meant := _of_run(error.option_name, context, arguments)):
            return meant
        return _option_meant(error.option_name, context.command, arguments)
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        return VALUES.get(error.param.opts[0]) if error.param else None
    meant = _extra_meant(context, extra[1].split(" "), arguments) if extra else None
    if meant:
        return meant
    return f"for example `{EXAMPLES[path]}`" if path in EXAMPLES else None


# ---- commands -----------------------------------------------------------------------------------------


def _command_meant(group: str, word: str, rest: Sequence[str], known: Collection[str]) -> list[str] | None:
    meant = _looked_up(word.lower(), COMMANDS.get(group, {}))
    if meant:
        return [*group.split(), *_filled(meant[0].format(word), rest)]
    program = _runnable(word) if group == "gpushare" else None
    close = nearest(word, known, alike=CLEAR if program else ALIKE)
    if close:
        return [*group.split(), close[0], *rest]
    return [group, "run", *program, *rest] if program else None


def _looked_up(word: str, table: Mapping[str, str]) -> list[str]:
    """All right lines for a word, in the order of the table."""
    return [meant for meant, typed in table.items() if word in typed.split()]


def _filled(meant: str, rest: Sequence[str]) -> list[str]:
    """The right line with the typed words in place of its capitals."""
    left, line = list(rest), []
    for word in shlex.split(meant):
        place = re.search(r"\[?\b[A-Z]{2,}\]?$", word)
        if word == "COMMAND":
            line += left
            left = []
        elif place is None:
            line.append(word)
        elif left:
            line.append(word[: place.start()] + left.pop(0))
        elif not word.startswith("["):
            line.append(word)
    return line


def _line(words: Sequence[str] | None) -> str | None:
    """`did you mean ...?` with a line to paste."""
    if words is None:
        return None
    shown = shlex.join(words)
    return f"did you mean `{shown}`?" if len(shown) <= LONGEST else f"did you mean `{shown[:LONGEST]} ...`?"


# ---- options ------------------------------------------------------------------------------------------


def option_as_typed(name: str, arguments: Sequence[str]) -> str:
    """-limit, where click has read -l and more."""
    words = [word.partition("=")[0] for word in arguments]
    return next((word for word in words if word.startswith(name) and not name.startswith("--")), name)


def _option_meant(typed: str, command: click.Command, arguments: Sequence[str]) -> str | None:
    """The same line with the right option; none if unsure, because a wrong guess is worse than none."""
    known = [name for param in command.params if isinstance(param, click.Option) for name in param.opts]
    typed = option_as_typed(typed, arguments)
    if re.match(r"-\.?[0-9]", typed):
        return f"an amount has no sign: write {typed[1:]}"
    listed = [name for name in [f"-{typed}", *_looked_up(typed, OPTIONS)] if name in known]
    listed = [name for name in listed if (*arguments[:1], name) not in ANOTHER]
    close = []
    if re.fullmatch(r"--[\w-]+", typed):
        close = nearest(typed, [name for name in known if name.startswith("--")], alike=CLEAR)
    at = next((n for n, word in enumerate(arguments) if word.partition("=")[0] == typed), None)
    instead = _looked_up(typed, INSTEAD)
    if at is None or not (listed or close) or (instead and not listed):
        return next(iter(instead), None)
    found = [*listed, *close][0]
    _, sign, value = arguments[at].partition("=")
    return _line(["gpushare", *arguments[:at], found + sign + value, *arguments[at + 1 :]])


def _of_run(typed: str, context: click.Context, arguments: Sequence[str]) -> str | None:
    """An option of `run` before `run`, or without `run`."""
    assert isinstance(context.command, click.Group)
    run = context.command.get_command(context, "run")
    if run is None or not any(typed in param.opts for param in run.params) or len(arguments) < 2:
        return None
    left = list(arguments)
    if "run" in left:
        left.remove("run")
    return _line(["gpushare", "run", *left])


def _extra_meant(context: click.Context, extra: list[str], arguments: Sequence[str]) -> str | None:
    """The hint for too many words: an amount without its option, or the name of a job."""
    takes_limit = any("--limit" in param.opts for param in context.command.params)
    at = list(arguments).index(extra[0])
    if at and arguments[at - 1].endswith(":"):  # 'lose: node-1' without its quotes
        return _line(["gpushare", *arguments[: at - 1], " ".join(arguments[at - 1 :])])
    if takes_limit and _is_amount(extra[0]):
        return _line(["gpushare", *arguments[:at], "--limit", *arguments[at:]])
    listed = _looked_up(extra[0], COMMANDS.get(context.command_path, {}))
    meant = listed[0] if listed else NAMED.get(context.command_path)
    if meant and extra[0].isdigit() and len(extra[0]) < 3:
        meant = "ps --gpu GPU"
    return _line(["gpushare", *_filled(meant, extra)]) if meant else None


def _is_amount(text: str) -> bool:
    try:
        Quantity.parse(text)
    except QuantityError:
        return False
    return True


def _in_one_word(arguments: Sequence[str]) -> str | None:
    """The hint for `--limit 4 GB`, which the shell splits into two words."""
    words = [part for word in arguments for part in (word.split("=") if word.startswith("--") else [word])]
    for before, number, unit in zip(words, words[1:], words[2:], strict=False):
        match = UNITS.fullmatch(unit)
        if match and NUMBER.fullmatch(number) and (before.startswith("--") or before == "reserve"):
            return f"an amount is one word: write `{before} {number}{match[1].upper()}i`"
    return None


def not_one_gpu(text: str) -> str | None:
    """The hint for a --gpu that names no single GPU; None if it may name one."""
    numbers = re.findall(r"[0-9]+", text)
    if text.isdigit() or text.upper().startswith(("GPU-", "MIG-")):
        return None
    if text.lower() in ("all", "any", "auto", "none"):
        return "leave --gpu out, and say how many with --gpus N; `gpushare status` lists them"
    if re.fullmatch(r"(cuda:|gpu|device=|\"device=)?[0-9]+([,; ][0-9]+)*\"?", text, re.IGNORECASE):
        return "write " + " ".join(f"--gpu {number}" for number in numbers)
    return "write a number or a UUID of `gpushare status`: --gpu 0"


# ---- programs -----------------------------------------------------------------------------------------


def misplaced(before: Sequence[str], command: Sequence[str]) -> str | None:
    """A warning about options of ours after the program, which gets them; None if there are none.

    before: the words before the program. An option among them is the program's own if it comes again after it.
    """
    ours: list[str] = []
    rest = list(command[:1])
    words = list(command[1:])
    while words:
        word = words.pop(0)
        name, sign, value = word.partition("=")
        if word == "--" or Path(word).name == "gpushare":
            rest += [word, *words]
            break
        takes = [] if sign or name in FLAGS else words[:1]
        value = "".join(takes) or value
        if name in FLAGS or (name in OUR_OWN and value) or (name in AMOUNTS and _is_amount(value)):
            ours += [word, *takes]
            words = words[len(takes) :]
        else:
            rest.append(word)
    named = [word.partition("=")[0] for word in ours if word.startswith("--")]
    if not named or any(word.partition("=")[0] in named for word in before):
        return None
    first = Path(command[0]).name
    line = _line(["gpushare", "run", *before, *ours, *rest])
    return render(
        f"these come after the command, so {first} gets them, not gpushare: {', '.join(named)}",
        hint=f"{line} If not, write -- in front of {first}",
    )


def _program_meant(name: str, arguments: Sequence[str]) -> str | None:
    """The hint for a program that does not exist."""
    at = list(arguments).index(name) if name in arguments else None
    if at is None:
        return None

    def instead(*words: str) -> str | None:
        return _line(["gpushare", *arguments[:at], *words, *arguments[at + 1 :]])

    if name.startswith("-") and arguments[at - 1] == "--":
        ours = _is_option_of_run(name.partition("=")[0])
        return _line(["gpushare", *arguments[: at - 1], *arguments[at:]]) if ours else "after -- comes the program"
    if " " in name.strip():
        return instead(*shlex.split(name)) if name.count("'") % 2 == 0 and name.count('"') % 2 == 0 else None
    if name in BUILTINS:
        return "it belongs to the shell: put the line into a script, or write `bash -c '...'`"
    if re.match(r"[A-Za-z_]\w*=", name):
        return instead("env", name)
    script = _runnable(name)
    if script is not None:
        return instead(*script)
    if "/" not in name and shutil.which(f"{name}3"):  # Debian has python3, and no python
        return instead(f"{name}3")
    if at > 1 and arguments[at - 2].startswith("--") and _runnable("".join(arguments[at + 1 : at + 2])):
        option, value = arguments[at - 2 : at]
        return f"{option} takes one word: " + (
            f"write {option} {value} {option} {name}" if option == "--gpu" else f"write {option} '{value} {name}'"
        )
    close = nearest(name, _programs(), alike=CLEAR) if "/" not in name else []
    return instead(close[0]) if close else None


def _is_option_of_run(word: str) -> bool:
    from gpushare.cli import run

    return any(word in param.opts for param in run.command.params)


def _script_meant(message: str, arguments: Sequence[str]) -> str | None:
    """The hint for a script that is not executable: start it with its interpreter."""
    for at, word in enumerate(arguments):
        path = Path(word)
        interpreter = _interpreter(path)
        if interpreter and is_file(path) and message.startswith(f"cannot execute {path}:"):
            return _line(["gpushare", *arguments[:at], interpreter, *arguments[at:]])
    return None


def _interpreter(script: Path) -> str | None:
    """The program of this machine that runs such scripts."""
    name = INTERPRETERS.get(script.suffix)
    return f"{name}3" if name and not shutil.which(name) and shutil.which(f"{name}3") else name


def _runnable(word: str) -> list[str] | None:
    """The words that start an existing program or script."""
    path = Path(word)
    if is_file(path) and not (os.access(path, os.X_OK) and "/" in word):
        interpreter = _interpreter(path)
        if interpreter:
            return [interpreter, word]
        return [f"./{word}"] if os.access(path, os.X_OK) else None
    return [word] if shutil.which(word) else None


def _programs() -> list[str]:
    found: set[str] = set()
    for place in os.get_exec_path():
        with contextlib.suppress(OSError):  # it is not there, or closed to us
            found.update(entry.name for entry in Path(place).iterdir())
    return sorted(found)
