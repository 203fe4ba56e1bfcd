"""Named devices with a budget, for container engines: `podman run --device gpushare.dev/gpu=small`, without a wrapper.

`gpushare cdi small --limit 4Gi` writes a file of the Container Device Interface, once. It has what each container of
the device gets (container.py), and two hooks, which the engine's runtime calls on this machine (container_hook.py).
When a container is made it becomes a placement of the node daemon, known by its cgroup; when it is over, so is the
placement. So each container is a job of its own, and nothing that its environment says changes its limit.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpushare import container
from gpushare.container import Inside
from gpushare.errors import UsageError

__all__ = ["FOLDER", "KIND", "described", "devices", "remove", "spec", "write_file"]

KIND = "gpushare.dev/gpu"
FOLDER = Path("/etc/cdi")
"""Where Podman, Docker and containerd look. It outlives a reboot."""
PREFIX = "gpushare.dev-gpu_"
"""Of files; the device's name follows."""
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,61}[A-Za-z0-9])?")
VERSION = "0.5.0"
"""The first that knows all of this. Engines refuse files of a later one than they know."""
HOOK_TIMEOUT = 30
"""Seconds."""
HOOK = "gpushare.container_hook"
Edits = Mapping[str, Any]
NONE: Edits = {}
CREATED, OVER = "createRuntime", "poststop"
"""When the runtime calls them, on this machine: its processes are in their cgroup, and nothing of the image runs yet;
and when all of it has ended."""


def spec(
    body: Mapping[str, Any],
    inside: Inside,
    api: Path,
    *,
    more: Mapping[str, str] = NONE,
    of_gpus: Edits = NONE,
) -> dict[str, Any]:
    """The file's content. `body`: of each container's placement, without what says where it runs; its name is the
    device's. `more`: further variables. `api`: the daemon's socket. `of_gpus`: what brings the GPUs' own files."""
    job = {**container.budget_variables(body), **more}
    ours = {**container.edits(job, inside), "hooks": [_hook(CREATED, api, body), _hook(OVER, api, body)]}
    both = {
        key: [*of_gpus.get(key, ()), *ours.get(key, ())]
        for key in ("env", "deviceNodes", "mounts", "hooks", "additionalGids")
    }
    edits = {key: value for key, value in both.items() if value}
    return {
        "cdiVersion": max(VERSION, str(of_gpus.get("cdiVersion", VERSION)), key=_version),
        "kind": KIND,
        "devices": [{"name": body["name"], "containerEdits": edits}],
    }


def _hook(when: str, api: Path, body: Mapping[str, Any]) -> dict[str, Any]:
    """It has no environment but this."""
    return {
        "hookName": when,
        "path": sys.executable,
        "args": [Path(sys.executable).name, "-m", HOOK, when, str(api), json.dumps(body)],
        "env": [f"PYTHONPATH={Path(container.__file__).resolve().parents[1]}", "PYTHONDONTWRITEBYTECODE=1"],
        "timeout": HOOK_TIMEOUT,
    }


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall("[0-9]+", text))


def described(gpus: Sequence[Mapping[str, Any]], folders: Iterable[Path]) -> dict[str, Any]:
    """What NVIDIA's toolkit says a container of these GPUs gets. Raises UsageError where it has not described them."""
    found = list(container.nvidia_specs(folders))
    edits: dict[str, Any] = {}
    versions = [VERSION]
    for gpu in gpus:
        names = (str(gpu["uuid"]), str(gpu["index"]))
        content, device = next(
            (
                (content, device)
                for name in names
                for content in found
                for device in content["devices"]
                if str(device["name"]) == name
            ),
            (None, None),
        )
        if content is None or device is None:
            raise UsageError(
                f"NVIDIA's toolkit has not described GPU {gpu['index']} for containers",
                hint="nvidia-ctk cdi generate --output=/etc/cdi/nvidia.json --format=json",
            )
        versions.append(str(content.get("cdiVersion", VERSION)))
        for part in (content.get("containerEdits") or {}, device.get("containerEdits") or {}):
            for key, values in part.items():
                known = edits.setdefault(key, [])
                known += [value for value in values if value not in known] if isinstance(values, list) else []
    return {**edits, "cdiVersion": max(versions, key=_version)}


# ---- files ---------------------------------------------------------------------------------------------


def file_of(name: str, folder: Path) -> Path:
    """Raises UsageError for what an engine would not take as a name."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is not a device's name", hint="letters, digits, and . - _ : between them, at most 63"
        )
    return folder / f"{PREFIX}{name}.json"


def devices(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Name -> the budget of its containers. Of files that cannot be read there is none."""
    found: dict[str, Mapping[str, Any]] = {}
    for path in sorted(folder.glob(f"{PREFIX}*.json")):
        try:
            (device,) = json.loads(path.read_text())["devices"]
            hooks = [one for one in device["containerEdits"]["hooks"] if HOOK in one["args"]]
            found[str(device["name"])] = dict(json.loads(hooks[0]["args"][-1]))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue
    return found


def remove(name: str, folder: Path) -> None:
    """Containers that run keep what they have. Raises UsageError if there is none, and OSError."""
    try:
        file_of(name, folder).unlink()
    except FileNotFoundError:
        raise UsageError(f"there is no device {KIND}={name}", hint="`gpushare cdi` lists them") from None


def write_file(path: Path, content: Mapping[str, Any], mode: int) -> None:
    """In place at once. Raises OSError."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # no .json: engines do not read it
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(file.fileno(), mode)
        json.dump(content, file, indent=1)
    fresh.replace(path)
