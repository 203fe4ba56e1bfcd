"""What a keeper is told to start: start.json, made of a submission and a place."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpushare import locate
from gpushare.cluster.engines.local import submission
from gpushare.cluster.engines.local.spool import Key
from gpushare.cluster.engines.local.task import BOOT
from gpushare.cluster.engines.runner import Record
from gpushare.cluster.model import Place
from gpushare.cluster.quantity import MICRO
from gpushare.errors import UsageError
from gpushare.paths import PACKAGE

__all__ = ["Site", "start_of"]

WAIT_FOR_ROOM = 30.0
"""Seconds that a program waits for memory that another one is just giving back."""
USUAL_GRACE = 30.0
LONGEST_NODE_GRACE = 28.0
"""Seconds: more the node daemon does not grant where it wants memory back itself."""
USUAL_PRIORITY = 50
"""Of a cluster job; that of a node's job is 0."""
OF_ELSEWHERE = ("GPUSHARE_JOB", "GPUSHARE_PROFILE", "CUDA_VISIBLE_DEVICES")
"""Variables that say something of where the job was submitted, and not of where it runs."""


class Site(NamedTuple):
    """Where a task is started."""

    daemon: locate.Node
    memory: int
    """Bytes of one GPU."""
    directory: Path
    log_most: int
    system: bool


def start_of(record: Record, key: Key, place: Place, devices: tuple[str, ...], site: Site) -> dict[str, Any]:
    """Raises UsageError for a submission that makes no sense, or a user who is not known any more."""
    launch = submission.read(record.run)
    identity = _identity(record) if site.system else None
    env = _environ(record, launch.env, site)
    grace = launch.grace if launch.grace is not None else USUAL_GRACE
    limit = _limit(record, place, site.memory)
    spec = {
        "command": list(launch.command),
        "request": place.amount,
        "limit": limit,
        "name": record.job.name or record.id,
        "priority": record.job.priority - USUAL_PRIORITY,
        "grace": f"{min(grace, LONGEST_NODE_GRACE):g}s",
        "devices": list(devices),
        "wait": WAIT_FOR_ROOM,
        "job": f"{secrets.randbits(64) or 1:016x}",
    }
    return {
        "argv": [sys.executable, "-I", "-c", BOOT, str(PACKAGE.parent), json.dumps(spec), "{folder}"],
        "env": env,
        "cwd": launch.cwd,
        "umask": launch.umask,
        "rlimits": {name: list(pair) for name, pair in launch.rlimits.items()},
        "time": launch.time,
        "grace": grace,
        "log": _log(record, key, launch.output, env, site.directory),
        "log_most": site.log_most,
        "mark": f"{key.name}.{secrets.token_hex(4)}",
        "attempt": key.attempt,
        "node": place.node,
        "gpus": list(place.gpus),
        "amount": place.amount,
        "limit": limit,
        "job": spec["job"],
        "identity": identity,
        "requeue": record.requeue,
        "uid": record.uid,
        "devices": list(devices),
        "name": spec["name"],
        "priority": spec["priority"],
        "node_grace": min(grace, LONGEST_NODE_GRACE),
    }


def _identity(record: Record) -> list[Any]:
    """User, group and further groups to become."""
    try:
        name = pwd.getpwuid(record.uid).pw_name
    except KeyError:
        raise UsageError(f"this machine does not know user {record.uid} any more") from None
    return [record.uid, record.gid, os.getgrouplist(name, record.gid)]


def _environ(record: Record, submitted: Mapping[str, str], site: Site) -> dict[str, str]:
    env = {name: value for name, value in submitted.items() if name not in OF_ELSEWHERE}
    env["GPUSHARE_SOCKET"] = str(site.daemon.runtime.api_socket)
    env["GPUSHARE_DRIVER"] = site.daemon.driver
    env["GPUSHARE_QUEUE_JOB"] = record.array or record.id
    if record.index is not None:
        env["GPUSHARE_ARRAY_INDEX"] = str(record.index)
    if site.system:
        user = pwd.getpwuid(record.uid)
        env = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "SHELL": user.pw_shell} | env
    return env


def _limit(record: Record, place: Place, memory: int) -> int:
    """Bytes that it may use of each GPU at most."""
    group = record.job.tasks[place.group]
    if group.limit is None:
        return place.amount
    limit = group.limit if group.memory is not None else memory * group.limit // MICRO
    return max(place.amount, min(limit, memory))


def _log(record: Record, key: Key, output: str | None, env: Mapping[str, str], directory: Path) -> str:
    if output is None:
        state = env.get("XDG_STATE_HOME", "")
        home = Path(env.get("HOME") or directory)
        base = Path(state) if state.startswith("/") else home / ".local" / "state"
        output = str(base / "gpushare" / "logs" / "%j.log")
    output = output.replace("%j", record.id).replace("%a", str(record.index or 0))
    several = sum(group.top for group in record.job.tasks) > 1
    return f"{output}.{key.group}-{key.task}" if several else output
