"""The service's settings: a TOML file with a default for everything. What is wrong is refused with the path of its key.

engine = "local"            admin_group = "gpu-admins"      grace = "30s"
own_queues = true           queues_below = "users"          most_jobs = 20000
max_grace = "10m"           max_min_run_time = "1h"         metrics_listen = "127.0.0.1:9837"

[local]                     # the engine's own
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpushare.cluster.engines.registry import ENGINES
from gpushare.cluster.service.driver import Options
from gpushare.errors import UsageError
from gpushare.nearest import did_you_mean
from gpushare.quantity import parse_duration
from gpushared.system.address import address_setting

__all__ = ["DEFAULT_FILE", "Settings", "load"]

DEFAULT_FILE = Path("/etc/gpushare/cluster.toml")


@dataclass(frozen=True, slots=True)
class Settings:
    engine: str = "local"
    admin_group: str = ""
    """The Unix group whose members change queues, nodes and the jobs of all users, as root does; empty: root alone."""
    options: Options = field(default_factory=Options)
    engines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The table of each engine that the file has one of."""
    metrics_listen: str = ""
    """host:port for /metrics over TCP beside the socket; empty: off."""


def load(path: Path | None) -> Settings:
    """Read the file; None: the system's file if it is there, else the defaults."""
    chosen = path if path is not None else (DEFAULT_FILE if DEFAULT_FILE.is_file() else None)
    if chosen is None:
        return Settings()
    try:
        content = tomllib.loads(chosen.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {chosen}: {error.strerror}", code="bad_config") from None
    except ValueError as error:
        raise UsageError(f"{chosen} is not TOML: {error}", code="bad_config") from None
    values: dict[str, Any] = {}
    engines: dict[str, Mapping[str, Any]] = {}
    for key, value in content.items():
        if key in ENGINES and isinstance(value, dict):
            engines[key] = value
        elif key in _KEYS:
            values[key] = _read(chosen, key, value)
        else:
            known = (*_KEYS, *(f"[{name}]" for name in ENGINES))
            hint = did_you_mean(key, _KEYS) or f"there are: {', '.join(known)}"
            raise UsageError(f"{chosen}: unknown key $.{key}", code="bad_config", hint=hint)
    options = Options(**{key: values.pop(key) for key in Options._fields if key in values})
    return Settings(**values, options=options, engines=engines)


def _read(path: Path, key: str, value: object) -> Any:
    try:
        return _KEYS[key](value)
    except UsageError as error:
        raise UsageError(f"{path}: $.{key}: {error.message}", hint=error.hint, code="bad_config") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise UsageError("not a text in quotes")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise UsageError('not a duration, such as "30s"')
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError("neither true nor false")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise UsageError("not a whole number from 1")
    return value


_KEYS: Mapping[str, Callable[[object], Any]] = {
    "engine": _text,
    "admin_group": _text,
    "grace": _seconds,
    "own_queues": _flag,
    "queues_below": _text,
    "most_jobs": _count,
    "max_grace": _seconds,
    "max_min_run_time": _seconds,
    "metrics_listen": address_setting,
}
