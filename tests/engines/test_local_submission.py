"""What a job is started with: what of a submission is taken, completed and refused."""

from __future__ import annotations

import os
import resource
from typing import Any

import pytest

from gpushare.cluster.engines.local import admission, submission
from gpushare.cluster.engines.local.submission import LONGEST, MOST_ENVIRONMENT, MOST_TEXT, check_environment, read
from gpushare.cluster.engines.runner import Record
from gpushare.cluster.model import Job, Tasks
from gpushare.errors import UsageError

LEAST = {"command": ["true"], "cwd": "/"}
ALL = {
    **{"command": ["python", "train.py"], "cwd": "/work", "env": {"A": "1", "B": ""}, "umask": 0o027, "time": 90},
    **{"rlimits": {"RLIMIT_NOFILE": [64, -1]}, "grace": 0, "output": "/logs/%j.log"},
}


def test_what_is_not_said_is_completed() -> None:
    launch = read(LEAST)
    assert (launch.command, launch.cwd, launch.env, launch.umask) == (("true",), "/", {}, 0o022)
    assert (launch.rlimits, launch.time, launch.grace, launch.output) == ({}, None, None, None)


def test_what_is_said_is_taken() -> None:
    launch = read(ALL)
    assert (launch.command, launch.cwd, launch.env) == (("python", "train.py"), "/work", {"A": "1", "B": ""})
    assert (launch.umask, launch.rlimits) == (0o027, {"RLIMIT_NOFILE": (64, -1)})
    assert (launch.time, launch.grace, launch.output) == (90.0, 0.0, "/logs/%j.log")
    assert read({**LEAST, "time": 1, "error": None, "rlimits": None, "output": None}).time == 1.0
    assert read({**LEAST, "time": LONGEST, "grace": LONGEST, "umask": 0o777}).time == LONGEST
    assert read({**LEAST, "umask": 0}).umask == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"comand": ["x"]}, "run: there is no 'comand'"),
        ({"z": 1, "b": 1}, "run: there is no 'b'"),
        ({"command": []}, "run: there is no command"),
        ({"command": [""]}, "run: there is no command"),
        ({"command": None}, "run: command must be a list of words"),
        ({"command": "true"}, "run: command must be a list of words"),
        ({"command": ["true", 1]}, "run: command must be a text without a zero byte"),
        ({"command": ["true", "a\0b"]}, "run: command must be a text without a zero byte"),
        ({"cwd": "work"}, "run: cwd must be an absolute path, not 'work'"),
        ({"cwd": None}, "run: cwd must be a text"),
        ({"cwd": "/a\0"}, "run: cwd must be a text"),
        ({"env": []}, "run: env must be an object of variables"),
        ({"env": {"": "x"}}, "run: env must be an object of variables"),
        ({"env": {"A=B": "x"}}, "run: env must be an object of variables"),
        ({"env": {"A\0": "x"}}, "run: env must be an object of variables"),
        ({"env": {1: "x"}}, "run: env must be an object of variables"),
        ({"env": {"A": 1}}, "run: env: A must be a text without a zero byte"),
        ({"env": {"A": "\0"}}, "run: env: A must be a text without a zero byte"),
        ({"output": "x.log"}, "run: output must be an absolute path, not 'x.log'"),
        ({"output": 7}, "run: output must be a text"),
        ({"error": "/x"}, "run: error: errors go where the output goes"),
        ({"umask": -1}, "run: umask must be a number from 0 to 511, not -1"),
        ({"umask": 0o1000}, "run: umask must be a number from 0 to 511, not 512"),
        ({"umask": True}, "run: umask must be a number from 0 to 511, not True"),
        ({"umask": "022"}, "run: umask must be a number from 0 to 511, not '022'"),
        ({"time": 0.5}, "run: time must be between 1 s and 3650d, not 0.5 s"),
        ({"time": True}, "run: time must be a number of seconds, not True"),
        ({"time": "1h"}, "run: time must be a number of seconds, not '1h'"),
        ({"time": float("inf")}, "run: time must be a number of seconds, not inf"),
        ({"time": LONGEST + 1}, "run: time must be between"),
        ({"grace": -1}, "run: grace must be between 0 s and"),
        ({"rlimits": [1]}, "run: rlimits must be an object"),
        ({"rlimits": {"NOFILE": [1, 1]}}, "run: rlimits: NOFILE must be two whole numbers, soft and hard"),
        ({"rlimits": {"RLIMIT_NOFILE": [1]}}, "run: rlimits: RLIMIT_NOFILE must be two whole numbers"),
        ({"rlimits": {"RLIMIT_NOFILE": [1, -2]}}, "run: rlimits: RLIMIT_NOFILE must be two whole numbers"),
        ({"rlimits": {"RLIMIT_NOFILE": [1, True]}}, "run: rlimits: RLIMIT_NOFILE must be two whole numbers"),
        ({"rlimits": {"RLIMIT_NOFILE": "11"}}, "run: rlimits: RLIMIT_NOFILE must be two whole numbers"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read({**ALL, **change})
    assert caught.value.message.startswith(words)


def test_unknown_keys_are_told_with_those_that_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        read({**LEAST, "x": 1})
    assert caught.value.hint == "known are command, cwd, env, umask, rlimits, time, grace, output, error"


# ---- what the kernel would not start -------------------------------------------------------------------


def large(env: dict[str, str], *command: str) -> UsageError | None:
    try:
        check_environment(env, command)
    except UsageError as error:
        assert error.code == "large_environment"
        return error
    return None


def test_a_variable_is_as_long_as_the_kernel_takes() -> None:
    longest = MOST_TEXT - len("LONG=") - 1
    assert large({"A": "1", "LONG": "x" * longest}) is None
    error = large({"A": "1", "LONG": "x" * (longest + 1)})
    assert error is not None and "the variable LONG has 128.0 KiB" in error.message
    assert error.message.endswith("no program with more than 128.0 KiB in one")
    assert error.hint == "submit without it: env -u LONG gpushare submit ..."
    assert large({"LONG": "ü" * (longest // 2 + 1)}) is not None, "bytes count"


def test_a_word_is_as_long_as_the_kernel_takes() -> None:
    assert large({}, "true", "x" * MOST_TEXT) is None
    error = large({}, "true", "x" * (MOST_TEXT + 1))
    assert error is not None and error.message == "a word of the command is longer than 128.0 KiB"


def test_variables_and_words_count_together() -> None:
    """Each with its zero byte; names that no encoding knows are no trouble."""
    sizes = {f"V{number}": "x" * 100_000 for number in range(9)}
    used = 9 * (len("V0=") + 100_000 + 1)
    rest = MOST_ENVIRONMENT - used - len("a ")
    halves = rest // 2 - 1, rest - rest // 2 - 1
    assert large(sizes, "a", *("y" * half for half in halves)) is None
    error = large(sizes, "ab", *("y" * half for half in halves))
    assert error is not None and "have 1.0 MiB, a job may have 1.0 MiB" in error.message
    assert [label for label, _ in error.facts] == ["largest"] and error.facts[0][1].startswith("V0, 97.")
    assert large({"\udcff": "\udcff"}, "\udcff") is None
    many = large({}, *["y" * 100_000] * 11)
    assert many is not None and list(many.facts) == []


def test_the_limits_of_this_process_are_taken_along() -> None:
    found = submission.limits_now()
    assert found["RLIMIT_NOFILE"] == list(resource.getrlimit(resource.RLIMIT_NOFILE))
    assert "RLIMIT_OFILE" not in found and all(name.startswith("RLIMIT_") for name in found)
    assert len(found) > 10 and read({**LEAST, "rlimits": found}).rlimits == {k: tuple(v) for k, v in found.items()}


# ---- what this machine refuses -------------------------------------------------------------------------


def record(uid: int | None = None, **run: Any) -> Record:
    return Record("1", Job("1", "q", (Tasks(),)), os.getuid() if uid is None else uid, 0, "x", 0.0, {**LEAST, **run})


def refused(one: Record, most: float = 60.0, *, system: bool = False) -> str | None:
    try:
        admission.check(one, most, system=system)
    except UsageError as error:
        return f"{error.message}; {error.hint}"
    return None


def test_what_is_in_order_is_admitted() -> None:
    assert refused(record()) is refused(record(grace=60.0)) is refused(record(), system=True) is None


def test_a_grace_above_the_most_is_for_root_alone() -> None:
    assert refused(record(uid=0, grace=61.0), system=True) is None
    assert refused(record(uid=65534, grace=60.0), system=True) is None
    said = refused(record(uid=65534, grace=61.0), system=True)
    assert said is not None and said.startswith("a grace of 1m1s is more than 1m, the most here; --grace 1m, or")
    assert "; --grace 20s, or" in (refused(record(uid=65534, grace=61.0), 20.0, system=True) or ""), "one word"


def test_users_and_directories_that_are_not_there() -> None:
    unknown = 4_000_000_123
    assert (refused(record(uid=unknown), system=True) or "").startswith("this machine knows no user 4000000123")
    said = refused(record(uid=unknown)) or ""
    assert said.startswith(f"this service runs jobs of user {os.getuid()} only, not of {unknown}")
    assert "gpushare cluster serve --engine local" in said
    assert (refused(record(cwd="/no/such")) or "").startswith("cannot start in /no/such: there is no such directory")
    assert refused(record(cwd="/no/such"), system=True) is None, "only the user may be able to see it"
