"""What a container gets so that its programs are a job's: the library, a folder with one socket, and variables.

Container Device Interface has words for it (`containerEdits`): the plugin of Kubernetes writes them into files
(gpushare/kubernetes/cdi.py), `gpushare cdi` into files of named devices (cdi.py), and `gpushare run --container` says
the same as options of podman and docker.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare import locate
from gpushare.errors import UsageError
from gpushare.paths import software_driver_dir

__all__ = [
    "LIBRARY",
    "SOCKETS",
    "Inside",
    "budget_variables",
    "edits",
    "engine_command",
    "inside",
    "nvidia_devices",
    "nvidia_specs",
]

SOCKETS = "/run/gpushare"
"""In the container. The library looks there if its variable is gone, too."""
LIBRARY = "/usr/local/lib/libgpushare.so"
SOFTWARE_DRIVER = "/usr/local/lib/gpushare-sim"
NVIDIA = "nvidia.com/gpu"
DESCRIBED = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where NVIDIA's toolkit describes GPUs."""
START = ("run",)
LEAVE = ("-d", "--detach", "--detach=true")
FLAGS = ("--rm", "--init", "-i", "-t", "-it", "-ti", "--interactive", "--tty", "--privileged", "--read-only")
"""Options of these engines without a value."""
OTHER = ("GPUSHARE_JOB", "GPUSHARE_SOCKET", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PATH")
"""Variables whose value is another one in a container, or none of it."""


@dataclass(frozen=True, slots=True)
class Inside:
    """What all containers of a node get. Paths on the host."""

    library: Path
    sockets: Path
    """The folder with the daemon's shim.sock alone."""
    variables: Mapping[str, str]
    folders: Sequence[tuple[Path, str]] = ()
    """Further folders, and where they are in the container."""
    driver: str = "nvidia"
    """Or sim, as the node daemon says."""


def inside(node: locate.Node, library: Path, environ: Mapping[str, str]) -> Inside:
    variables: dict[str, str] = {}
    mounts: list[tuple[Path, str]] = []
    if node.driver == "sim":
        variables |= {"GPUSHARE_DRIVER": "sim", "LD_LIBRARY_PATH": SOFTWARE_DRIVER}
        variables |= {name: environ[name] for name in ("GPUSHARE_SIM",) if name in environ}
        mounts.append((software_driver_dir(), SOFTWARE_DRIVER))
        pools = [word[5:] for word in environ.get("GPUSHARE_SIM", "").split(",") if word.startswith("pool=")]
        mounts += [(Path(pool), pool) for pool in pools]
    return Inside(library, node.runtime.directory / "containers", variables, mounts, node.driver)


def budget_variables(body: Mapping[str, Any]) -> dict[str, str]:
    """Of a placement: what its programs are told, without its job."""
    return {
        "GPUSHARE_MODE": "enforce",
        "CUDA_VISIBLE_DEVICES": ",".join(body["gpus"]),
        "GPUSHARE_NAME": body["name"],
        "GPUSHARE_REQUEST": body["request"],
        "GPUSHARE_LIMIT": body["limit"],
    }


def edits(job: Mapping[str, str], inside: Inside) -> dict[str, Any]:
    """`job`: variables that say which job it is, and its budget."""
    variables = {"LD_PRELOAD": LIBRARY, **job, "GPUSHARE_SOCKET": f"{SOCKETS}/api.sock", **inside.variables}
    mounts = [(inside.library, LIBRARY, "ro"), (inside.sockets, SOCKETS, "ro")]
    mounts += [(host, path, "rw") for host, path in inside.folders]
    return {
        "env": [f"{name}={value}" for name, value in variables.items()],
        "mounts": [
            {"hostPath": str(host), "containerPath": path, "options": ["rbind", mode, "nosuid", "nodev"]}
            for host, path, mode in mounts
        ],
    }


# ---- options of podman and docker ----------------------------------------------------------------------


def engine_command(
    words: Sequence[str], environ: Mapping[str, str], before: Mapping[str, str], job: Mapping[str, Any], inside: Inside
) -> list[str]:
    """The engine's command line with what the job's programs need. `environ`: of a program of the job outside of a
    container; `before`: of the wrapper. Raises UsageError."""
    engine = Path(words[0]).name
    if "LD_PRELOAD" not in environ:
        raise UsageError("--container: the programs of a container are known by the library, so --mode is enforce")
    place = next((place for place, word in enumerate(words) if word in START), None)
    if place is None:
        raise UsageError(
            f"--container: there is no word run in this {engine} command", hint=f"write {engine} run IMAGE [COMMAND]"
        )
    left = next((word for word in _leading_options(words[place + 1 :]) if _leaves(word)), None)
    if left is not None:
        raise UsageError(
            f"--container: with {left} {engine} ends at once, and the job with it", hint=f"leave {left} out"
        )
    changed = {
        name: value
        for name, value in environ.items()
        if name not in OTHER and (name.startswith("GPUSHARE_") or before.get(name) != value)
    }
    said = edits({**changed, "GPUSHARE_JOB": job["id"]}, inside)
    options = [f"--env={line}" for line in said["env"]]
    options += [f"--volume={one['hostPath']}:{one['containerPath']}:{one['options'][1]}" for one in said["mounts"]]
    if inside.driver == "nvidia":
        options += _gpu_options(engine, job["gpus"])
    return [*words[: place + 1], *options, *words[place + 1 :]]


def _leading_options(words: Sequence[str]) -> Iterable[str]:
    """Up to the image, as far as that can be told: an option may have a value behind it."""
    before = "--rm"
    for word in words:
        if not word.startswith("-") and (not before.startswith("-") or "=" in before or before in FLAGS):
            return
        yield word
        before = word


def _leaves(word: str) -> bool:
    short = word.startswith("-") and not word.startswith("--") and set(word[1:]) <= set("ditP") and "d" in word
    return word in LEAVE or short


def _gpu_options(engine: str, gpus: Sequence[Mapping[str, Any]]) -> list[str]:
    described = nvidia_devices(gpus, DESCRIBED)
    if described is not None:
        return [f"--device={name}" for name in described]
    uuids = [str(gpu["uuid"]) for gpu in gpus]
    if engine == "docker":
        return [f'--gpus="device={",".join(uuids)}"']
    return [f"--device={NVIDIA}={uuid}" for uuid in uuids]


# ---- NVIDIA's own --------------------------------------------------------------------------------------


def nvidia_devices(gpus: Sequence[Mapping[str, Any]], folders: Iterable[Path]) -> list[str] | None:
    """Ids of NVIDIA's CDI devices for these GPUs, by their uuid or else by their index; None: it has not described all
    of them here."""
    known = {str(device["name"]) for content in nvidia_specs(folders) for device in content["devices"]}
    found = [next((name for name in (gpu["uuid"], str(gpu["index"])) if name in known), None) for gpu in gpus]
    return None if None in found else [f"{NVIDIA}={name}" for name in found]


def nvidia_specs(folders: Iterable[Path]) -> Iterable[Mapping[str, Any]]:
    """NVIDIA's CDI files there that can be read."""
    readers = {"json": json.loads, **_yaml()}
    for path in sorted(path for folder in folders for kind in readers for path in folder.glob(f"*.{kind}")):
        if path.name.startswith("gpushare.dev-"):
            continue
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, KeyError, RecursionError):
            content = readers[path.suffix.removeprefix(".")](path.read_text())
            if content["kind"] == NVIDIA and [device["name"] for device in content["devices"]]:
                yield content


def _yaml() -> dict[str, Callable[[str], Any]]:
    try:
        import yaml
    except ModuleNotFoundError:  # it comes with the extra `kubernetes`
        return {}

    def read(text: str) -> Any:
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from None

    return {"yaml": read}
