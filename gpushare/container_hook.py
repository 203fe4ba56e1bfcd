"""What the runtime of a container engine calls for a container with a named device (cdi.py), on this machine.

    createRuntime  the container is a placement of the node daemon from now on. If the daemon refuses, or is not there,
                   the container does not start, and the engine shows why
    poststop       the placement is over

The container's state comes on stdin, as the Open Container Initiative says. Programs belong to the placement by the
container's cgroup. Without one of its own (Podman as a user, on machines without delegation) they do by their session;
what `podman exec` starts then does not.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpushare.api import Placement
from gpushare.cdi import CREATED, OVER
from gpushare.client import Client
from gpushare.errors import GpushareError, NoSuchJob

__all__ = ["main"]

PREFIX = "container"
CGROUPS = Path("/sys/fs/cgroup")
SHORT = 12
"""Characters of a container's id, as engines show it."""


def main(arguments: list[str]) -> int:
    try:
        when, api, body = arguments
        state = json.loads(sys.stdin.read())
        client = Client(Path(api))
        if when == CREATED:
            enter(client, json.loads(body), str(state["id"]), int(state["pid"]))
        elif when == OVER:
            leave(client, str(state["id"]))
    except GpushareError as error:
        print(error.render(), file=sys.stderr)
        return 1
    except (ValueError, KeyError, TypeError) as error:
        print(f"gpushare: this is no hook of a container: {type(error).__name__} {error}", file=sys.stderr)
        return 1
    return 0


def enter(client: Client, body: Mapping[str, Any], container: str, pid: int) -> None:
    """Raises GpushareError."""
    for one in client.placements():
        if one["id"].startswith(f"{PREFIX}/") and not _is_there(one):
            _displace(client, one)
    where = where_runs(Path(f"/proc/{pid}/cgroup").read_text(), container)
    place = {"cgroups": where} if where else {"session": pid}
    name = f"{body['name']}-{container[:SHORT]}"
    client.place(f"{PREFIX}/{container[:64]}/{secrets.token_hex(4)}", {**body, "name": name, **place})


def leave(client: Client, container: str) -> None:
    """Raises GpushareError."""
    for one in client.placements():
        if one["id"].startswith(f"{PREFIX}/{container[:64]}/"):
            _displace(client, one)


def where_runs(text: str, container: str) -> list[str]:
    """The container's own cgroups, from /proc/PID/cgroup: up to the part that has its id. A cgroup above may have
    programs of others."""
    found = []
    for line in text.splitlines():
        parts = line.split(":", 2)[-1].split("/")
        own = next((place for place, part in enumerate(parts) if container in part), None)
        if own is not None:
            found.append("/".join(parts[: own + 1]))
    return sorted(set(found))


def _is_there(one: Placement) -> bool:
    """It may still run: its engine, or this machine, may have ended without saying that it was over."""
    if one["pids"] or any(Path(f"/proc/{pid}").exists() for pid in one["sessions"]):
        return True
    tops = (CGROUPS, *(top for top in CGROUPS.glob("*/") if not (CGROUPS / "cgroup.controllers").exists()))
    return any(Path(f"{str(top).rstrip('/')}{path}").is_dir() for top in tops for path in one["cgroups"])


def _displace(client: Client, one: Placement) -> None:
    try:
        client.displace(one["id"], one["attempt"])
    except NoSuchJob:
        return


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
