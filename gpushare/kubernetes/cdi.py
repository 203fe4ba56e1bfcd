"""Container Device Interface: what a claim's containers get, as a file that the container runtime reads.

One device for each claim. It has the library, which is preloaded; a folder with the socket by which programs ask the
daemon for memory, and with no other socket; and the variables. What is set here replaces what the pod's own description
says under the same name. Where NVIDIA's toolkit has described the GPUs (`nvidia.com/gpu`), its devices are named beside
ours and bring the device files; else NVIDIA's container runtime is asked by its variable.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.kubernetes.names import DRIVER

__all__ = ["CDI", "Inside", "claims_with_files", "device_id", "nvidia_devices", "remove", "spec", "write"]

CDI = Path("/var/run/cdi")
KIND = f"{DRIVER}/claim"
PREFIX = f"{DRIVER}-claim_"
"""Of files; the claim's uid follows."""
VERSION = "0.6.0"
NVIDIA = "nvidia.com/gpu"
SOCKETS = "/run/gpushare"
"""In the container. The library looks there if its variable is gone, too."""
LIBRARY = "/usr/local/lib/libgpushare.so"


@dataclass(frozen=True, slots=True)
class Inside:
    """What all claims of a node get. Paths on the host."""

    library: Path
    sockets: Path
    """The folder with the daemon's shim.sock alone."""
    variables: Mapping[str, str]
    folders: Sequence[tuple[Path, str]] = ()
    """Further folders, and where they are in the container."""
    driver: str = "nvidia"
    """Or sim, as the node daemon says."""


def device_id(claim: str) -> str:
    return f"{KIND}={claim}"


def spec(claim: str, body: Mapping[str, Any], more: Mapping[str, str], inside: Inside) -> dict[str, Any]:
    """The file's content. `body`: of the claim's placement. `more`: further variables."""
    variables = {
        "LD_PRELOAD": LIBRARY,
        "GPUSHARE_MODE": "enforce",
        "CUDA_VISIBLE_DEVICES": ",".join(body["gpus"]),
        "GPUSHARE_JOB": body["job"],
        "GPUSHARE_NAME": body["name"],
        "GPUSHARE_REQUEST": body["request"],
        "GPUSHARE_LIMIT": body["limit"],
        "GPUSHARE_SOCKET": f"{SOCKETS}/api.sock",
        **inside.variables,
        **more,
    }
    mounts = [(inside.library, LIBRARY, "ro"), (inside.sockets, SOCKETS, "ro")]
    mounts += [(host, path, "rw") for host, path in inside.folders]
    edits = {
        "env": [f"{name}={value}" for name, value in variables.items()],
        "mounts": [
            {"hostPath": str(host), "containerPath": path, "options": ["rbind", mode, "nosuid", "nodev"]}
            for host, path, mode in mounts
        ],
    }
    return {"cdiVersion": VERSION, "kind": KIND, "devices": [{"name": claim, "containerEdits": edits}]}


# ---- files ---------------------------------------------------------------------------------------------


def write(claim: str, content: Mapping[str, Any], folder: Path) -> None:
    """In place at once, and readable by root alone: the container runtime is root. Raises OSError."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = _path(claim, folder)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # no .json: the runtime does not read it
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file, indent=1)
    fresh.replace(path)


def remove(claim: str, folder: Path) -> None:
    _path(claim, folder).unlink(missing_ok=True)


def claims_with_files(folder: Path) -> list[str]:
    return [path.name.removeprefix(PREFIX).removesuffix(".json") for path in folder.glob(f"{PREFIX}*.json")]


def _path(claim: str, folder: Path) -> Path:
    return folder / f"{PREFIX}{claim}.json"


# ---- NVIDIA's own --------------------------------------------------------------------------------------


def nvidia_devices(gpus: Sequence[Mapping[str, Any]], folders: Iterable[Path]) -> list[str] | None:
    """Ids of NVIDIA's CDI devices for these GPUs, by their uuid or else by their index; None: it has not described all
    of them here."""
    known = {name for folder in folders for name in _names(folder)}
    found = [next((name for name in (gpu["uuid"], str(gpu["index"])) if name in known), None) for gpu in gpus]
    return None if None in found else [f"{NVIDIA}={name}" for name in found]


def _names(folder: Path) -> Iterable[str]:
    import yaml

    for path in sorted((*folder.glob("*.json"), *folder.glob("*.yaml"))):
        if not path.name.startswith(PREFIX):
            with contextlib.suppress(OSError, ValueError, yaml.YAMLError, AttributeError, TypeError, KeyError):
                content = yaml.safe_load(path.read_text())
                if content["kind"] == NVIDIA:
                    yield from [str(device["name"]) for device in content["devices"]]
