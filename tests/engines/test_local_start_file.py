"""What a keeper is told to start, made of a submission and a place."""

from __future__ import annotations

import json
import os
import pwd
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.cluster.engines.local.spool import Key
from gpushare.cluster.engines.local.start_file import Site, start_of
from gpushare.cluster.engines.runner import Record
from gpushare.cluster.model import Job, Place, Tasks
from gpushare.cluster.quantity import MICRO
from gpushare.errors import UsageError
from gpushare.paths import PACKAGE

GIB = 2**30
DAEMON: Any = SimpleNamespace(runtime=SimpleNamespace(api_socket=Path("/run/gpushare/api.sock")), driver="sim")
ENV = {"HOME": "/home/ada", "A": "1", "GPUSHARE_JOB": "x", "GPUSHARE_PROFILE": "p", "CUDA_VISIBLE_DEVICES": "3"}
RUN = {"command": ["python", "train.py"], "cwd": "/work", "env": ENV, "umask": 0o027, "time": 90.0, "grace": 20.0}
KEY = Key("17", 2, 0, 0)
PLACE = Place(0, 0, "here", (1, 0), 2 * GIB, 0)
OWN = {"GPUSHARE_SOCKET": "/run/gpushare/api.sock", "GPUSHARE_DRIVER": "sim", "GPUSHARE_QUEUE_JOB": "17"}


def record(tasks: tuple[Tasks, ...] = (Tasks(gpus=2),), *, job: Any = (), run: Any = (), **more: Any) -> Record:
    made = Job("17", "q", tasks, **dict(job))
    more = {"uid": os.getuid(), "gid": os.getgid(), "user": "ada", "submitted": 0.0} | more
    return Record(more.pop("id", "17"), made, run={**RUN, **dict(run)}, **more)


def site(*, system: bool = False) -> Site:
    return Site(DAEMON, 8 * GIB, Path("/var/lib/queue"), 5 * 2**20, system)


def start(one: Record, place: Place = PLACE, key: Key = KEY, *, system: bool = False) -> dict[str, Any]:
    return start_of(one, key, place, ("GPU-b", "GPU-a"), site(system=system))


def test_all_that_a_keeper_needs() -> None:
    told = start(record(job={"name": "nightly", "priority": 57}, run={"rlimits": {"RLIMIT_CORE": [0, -1]}}))
    argv, mark, job = told.pop("argv"), told.pop("mark"), told.pop("job")
    assert told == {
        "env": {"HOME": "/home/ada", "A": "1", **OWN},
        "cwd": "/work",
        "umask": 0o027,
        "rlimits": {"RLIMIT_CORE": [0, -1]},
        "time": 90.0,
        "grace": 20.0,
        "log": "/home/ada/.local/state/gpushare/logs/17.log",
        "log_most": 5 * 2**20,
        "attempt": 2,
        "node": "here",
        "gpus": [1, 0],
        "amount": 2 * GIB,
        "limit": 2 * GIB,
        "identity": None,
        "requeue": True,
        "uid": os.getuid(),
        "devices": ["GPU-b", "GPU-a"],
        "name": "nightly",
        "priority": 7,
        "node_grace": 20.0,
    }
    assert json.loads(json.dumps(told)) == told
    assert mark.startswith("17.2.0.0.") and len(mark) == len("17.2.0.0.") + 8
    assert len(job) == 16 and int(job, 16)
    assert argv[:3] == [sys.executable, "-I", "-c"] and argv[4] == str(PACKAGE.parent) and argv[6] == "{folder}"
    assert json.loads(argv[5]) == {
        "command": ["python", "train.py"],
        "request": 2 * GIB,
        "limit": 2 * GIB,
        "name": "nightly",
        "priority": 7,
        "grace": "20s",
        "devices": ["GPU-b", "GPU-a"],
        "wait": 30.0,
        "job": job,
    }
    again = start(record())
    assert (again["mark"], again["job"]) != (mark, job), "each start has names of its own"
    assert again["name"] == "17" and again["priority"] == 0


@pytest.mark.parametrize(
    ("grace", "keepers", "nodes"), [(None, 30.0, 28.0), (0.0, 0.0, 0.0), (12.5, 12.5, 12.5), (600.0, 600.0, 28.0)]
)
def test_the_node_grants_a_grace_of_28_seconds_at_most(grace: float | None, keepers: float, nodes: float) -> None:
    told = start(record(run={"grace": grace}))
    assert (told["grace"], told["node_grace"]) == (keepers, nodes)
    assert json.loads(told["argv"][5])["grace"] == f"{nodes:g}s"


@pytest.mark.parametrize(
    ("tasks", "amount", "limit"),
    [
        (Tasks(), 2, 2),
        (Tasks(memory=2 * GIB, limit=6 * GIB), 2, 6),
        (Tasks(memory=2 * GIB, limit=60 * GIB), 2, 8),
        (Tasks(memory=2 * GIB, limit=1 * GIB), 2, 2),
        (Tasks(share=MICRO // 4, limit=MICRO // 2), 2, 4),
        (Tasks(share=MICRO // 4, limit=MICRO), 2, 8),
        (Tasks(share=MICRO // 4, limit=MICRO // 8), 2, 2),
        (Tasks(limit=MICRO), 8, 8),
    ],
)
def test_the_limit_is_in_the_unit_of_the_request(tasks: Tasks, amount: int, limit: int) -> None:
    """And neither below what it has nor above the GPU."""
    told = start(record((Tasks(limit=1), tasks)), PLACE._replace(group=1, amount=amount * GIB))
    assert told["limit"] == json.loads(told["argv"][5])["limit"] == limit * GIB


def test_a_task_of_an_array_knows_its_number() -> None:
    env = start(record(id="17_3", array="17", index=3))["env"]
    assert (env["GPUSHARE_QUEUE_JOB"], env["GPUSHARE_ARRAY_INDEX"]) == ("17", "3")
    env = start(record(id="17_0", array="17", index=0))["env"]
    assert env["GPUSHARE_ARRAY_INDEX"] == "0"
    assert "GPUSHARE_ARRAY_INDEX" not in start(record())["env"]


# ---- the file for its output ---------------------------------------------------------------------------

SEVERAL = [(Tasks(least=2),), (Tasks(), Tasks()), (Tasks(least=1, most=2),)]


@pytest.mark.parametrize(
    ("run", "more", "log"),
    [
        ({"env": {}}, {}, "/var/lib/queue/.local/state/gpushare/logs/17.log"),
        ({"env": {"HOME": "/h", "XDG_STATE_HOME": "/s"}}, {}, "/s/gpushare/logs/17.log"),
        ({"env": {"HOME": "/h", "XDG_STATE_HOME": "s"}}, {}, "/h/.local/state/gpushare/logs/17.log"),
        ({}, {"id": "17_3", "array": "17", "index": 3}, "/home/ada/.local/state/gpushare/logs/17_3.log"),
        ({"output": "/logs/%j-%a.log"}, {"id": "17_3", "array": "17", "index": 3}, "/logs/17_3-3.log"),
        ({"output": "/logs/%a"}, {}, "/logs/0"),
        ({"output": "/logs/x"}, {}, "/logs/x"),
    ],
)
def test_where_its_output_goes(run: Any, more: Any, log: str) -> None:
    assert start(record(run=run, **more))["log"] == log


@pytest.mark.parametrize("tasks", SEVERAL)
def test_each_of_several_tasks_has_a_file_of_its_own(tasks: tuple[Tasks, ...]) -> None:
    assert start(record(tasks, run={"output": "/x"}), key=Key("17", 1, 0, 1))["log"] == "/x.0-1"


# ---- as another user -----------------------------------------------------------------------------------


def test_a_systems_service_starts_it_as_its_user() -> None:
    """With what a login would set, unless the submission says something else."""
    user = pwd.getpwuid(65534)
    told = start(record(uid=65534, gid=user.pw_gid, run={"env": {"SHELL": "/bin/odd", "A": "1"}}), system=True)
    assert told["identity"] == [65534, user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)]
    of_user = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "SHELL": "/bin/odd"}
    assert told["env"] == {**of_user, "A": "1", **OWN} and told["uid"] == 65534
    assert told["log"] == f"{user.pw_dir}/.local/state/gpushare/logs/17.log"


def test_a_user_who_is_gone_is_named() -> None:
    with pytest.raises(UsageError, match="this machine does not know user 4000000123 any more"):
        start(record(uid=4_000_000_123), system=True)
    assert start(record(uid=4_000_000_123))["identity"] is None
