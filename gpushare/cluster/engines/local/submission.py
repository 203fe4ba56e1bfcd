"""What a job is started with, `run` of a submission: read, checked, and completed.

command     its words
cwd         absolute; where it starts
env         variables
umask       a number
rlimits     by name as in the module resource: soft and hard, -1 is unlimited
time        seconds after which it is stopped; null: never
grace       seconds between SIGTERM and SIGKILL; null: as the service says
output      the file for its output; %j is the job's id, %a its number in the array; null: logs/ID.log in the user's
            state folder
"""

from __future__ import annotations

import math
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.errors import UsageError
from gpushare.quantity import format_bytes, format_duration

__all__ = ["MOST_ENVIRONMENT", "MOST_TEXT", "Launch", "check_environment", "limits_now", "read"]

MOST_ENVIRONMENT = 2**20
"""Bytes of variables and arguments together. The kernel takes a little more, but then a program could hardly start
another one."""
MOST_TEXT = 128 * 1024 - 1
"""Bytes of one variable or argument: the kernel's own limit."""
NAMES = ("command", "cwd", "env", "umask", "rlimits", "time", "grace", "output", "error")
LONGEST = 10 * 365 * 86400.0
DEFAULT_UMASK = 0o022


@dataclass(frozen=True, slots=True)
class Launch:
    command: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    umask: int
    rlimits: Mapping[str, tuple[int, int]]
    time: float | None
    grace: float | None
    output: str | None


def read(run: Mapping[str, Any]) -> Launch:
    """Raises UsageError that names the key."""
    unknown = sorted(set(run) - set(NAMES))
    if unknown:
        raise UsageError(f"run: there is no {unknown[0]!r}", hint=f"known are {', '.join(NAMES)}")
    command = _texts(run.get("command"), "command")
    if not command or not command[0]:
        raise UsageError("run: there is no command", hint="gpushare submit -- python train.py")
    cwd = _text(run.get("cwd"), "cwd")
    if not cwd.startswith("/"):
        raise UsageError(f"run: cwd must be an absolute path, not {cwd!r}")
    env = run.get("env", {})
    if not isinstance(env, Mapping) or not all(_sound(name) and name and "=" not in name for name in env):
        raise UsageError("run: env must be an object of variables")
    for name, value in env.items():
        _text(value, f"env: {name}")
    check_environment(env, command)
    output = run.get("output")
    if output is not None and not _text(output, "output").startswith("/"):
        raise UsageError(f"run: output must be an absolute path, not {output!r}")
    if run.get("error") is not None:
        raise UsageError("run: error: errors go where the output goes", hint="leave it out")
    umask = run.get("umask", DEFAULT_UMASK)
    if type(umask) is not int or not 0 <= umask <= 0o777:
        raise UsageError(f"run: umask must be a number from 0 to {0o777}, not {umask!r}")
    return Launch(
        command=command,
        cwd=cwd,
        env=dict(env),
        umask=umask,
        rlimits=_rlimits(run.get("rlimits") or {}),
        time=_seconds(run.get("time"), "time", least=1.0),
        grace=_seconds(run.get("grace"), "grace", least=0.0),
        output=output,
    )


def check_environment(env: Mapping[str, str], command: tuple[str, ...] = ()) -> None:
    """UsageError where the kernel would not start a program with so much, or hardly."""
    sizes = {name: len(f"{name}={value}".encode(errors="surrogateescape")) + 1 for name, value in env.items()}
    largest = max(sizes, key=lambda name: sizes[name], default="")
    words = sum(len(word.encode(errors="surrogateescape")) + 1 for word in command)
    total = sum(sizes.values()) + words
    if sizes and sizes[largest] > MOST_TEXT:
        raise UsageError(
            f"the variable {largest} has {format_bytes(sizes[largest])}, the kernel starts no program with more than"
            f" {format_bytes(MOST_TEXT + 1)} in one",
            code="large_environment",
            hint=f"submit without it: env -u {largest} gpushare submit ...",
        )
    if any(len(word.encode(errors="surrogateescape")) > MOST_TEXT for word in command):
        raise UsageError(
            f"a word of the command is longer than {format_bytes(MOST_TEXT + 1)}",
            code="large_environment",
            hint="put it into a file",
        )
    if total > MOST_ENVIRONMENT:
        facts = [("largest", f"{largest}, {format_bytes(sizes[largest])}")] if sizes else []
        raise UsageError(
            f"the environment and the command have {format_bytes(total)}, a job may have"
            f" {format_bytes(MOST_ENVIRONMENT)}",
            code="large_environment",
            facts=facts,
            hint="submit with fewer variables: env -i HOME=$HOME PATH=$PATH gpushare submit ...",
        )


def limits_now() -> dict[str, list[int]]:
    """The resource limits of this process."""
    names = [name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"]
    return {name: list(resource.getrlimit(getattr(resource, name))) for name in names}


def _rlimits(value: object) -> dict[str, tuple[int, int]]:
    if not isinstance(value, Mapping):
        raise UsageError("run: rlimits must be an object")
    found: dict[str, tuple[int, int]] = {}
    for name, pair in value.items():
        sound = (
            isinstance(pair, list | tuple) and len(pair) == 2 and all(type(one) is int and one >= -1 for one in pair)
        )
        if not str(name).startswith("RLIMIT_") or not sound:
            raise UsageError(f"run: rlimits: {name} must be two whole numbers, soft and hard")
        found[name] = (pair[0], pair[1])
    return found


def _seconds(value: object, name: str, least: float) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"run: {name} must be a number of seconds, not {value!r}")
    if not least <= value <= LONGEST:
        bounds = f"between {format_duration(least)} and {format_duration(LONGEST)}"
        raise UsageError(f"run: {name} must be {bounds}, not {value:g} s")
    return float(value)


def _texts(value: object, name: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"run: {name} must be a list of words")
    return tuple(_text(one, name) for one in value)


def _text(value: object, name: str) -> str:
    if not _sound(value):
        raise UsageError(f"run: {name} must be a text without a zero byte")
    return str(value)


def _sound(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value
