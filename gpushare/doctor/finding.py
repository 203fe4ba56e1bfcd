"""What a check finds, and what it looks at."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from gpushare import locate
from gpushare.client import Client
from gpushare.config import load_settings
from gpushare.env import Settings

__all__ = ["Check", "Finding", "State", "Surroundings", "ask_nvml", "is_there", "read"]


State = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class Finding:
    state: State
    detail: str
    hint: str | None = None
    fix: tuple[str, ...] = ()
    """Commands for a shell, in order."""


@dataclass(frozen=True, slots=True)
class Check:
    id: str
    title: str
    probe: Callable[[Any], Finding]
    """Of what its list of checks looks at."""
    hint: str


@dataclass
class Surroundings:
    """What the checks look at, collected once."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @cached_property
    def settings(self) -> Settings:
        return load_settings(environ=self.environ)

    @cached_property
    def node(self) -> locate.Node:
        return locate.find(self.settings)

    @cached_property
    def client(self) -> Client:
        return self.node.client(5.0)

    @cached_property
    def driver_version(self) -> str:
        return ask_nvml()[0]


def ask_nvml() -> tuple[str, int]:
    """Driver version and number of GPUs. Raises OSError if NVML does not answer."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            version: Any = pynvml.nvmlSystemGetDriverVersion()
            return (version if isinstance(version, str) else version.decode()), int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise OSError(str(error)) from None


def is_there(path: Path) -> bool:
    """Whether the path exists. True also if its directory is closed to us."""
    try:
        return path.exists()
    except OSError:
        return True


def read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
