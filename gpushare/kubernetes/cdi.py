"""Container Device Interface: what a claim's containers get, as a file that the container runtime reads.

One device for each claim, with what gpushare/container.py says. What is set here replaces what the pod's own
description says under the same name. Where NVIDIA's toolkit has described the GPUs (`nvidia.com/gpu`), its devices are
named beside ours and bring the device files; else NVIDIA's container runtime is asked by its variable.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpushare import container
from gpushare.cdi import VERSION, write_file
from gpushare.container import Inside
from gpushare.kubernetes.names import DRIVER

__all__ = ["CDI", "claims_with_files", "device_id", "remove", "spec", "write"]

CDI = Path("/var/run/cdi")
KIND = f"{DRIVER}/claim"
PREFIX = f"{DRIVER}-claim_"
"""Of files; the claim's uid follows."""


def device_id(claim: str) -> str:
    return f"{KIND}={claim}"


def spec(claim: str, body: Mapping[str, Any], more: Mapping[str, str], inside: Inside) -> dict[str, Any]:
    """The file's content. `body`: of the claim's placement. `more`: further variables."""
    job = {**container.budget_variables(body), "GPUSHARE_JOB": body["job"]}
    edits = container.edits({**job, **more}, inside)
    return {"cdiVersion": VERSION, "kind": KIND, "devices": [{"name": claim, "containerEdits": edits}]}


# ---- files ---------------------------------------------------------------------------------------------


def write(claim: str, content: Mapping[str, Any], folder: Path) -> None:
    """In place at once, and readable by root alone: the container runtime is root. Raises OSError."""
    write_file(_path(claim, folder), content, 0o600)


def remove(claim: str, folder: Path) -> None:
    _path(claim, folder).unlink(missing_ok=True)


def claims_with_files(folder: Path) -> list[str]:
    return [path.name.removeprefix(PREFIX).removesuffix(".json") for path in folder.glob(f"{PREFIX}*.json")]


def _path(claim: str, folder: Path) -> Path:
    return folder / f"{PREFIX}{claim}.json"
