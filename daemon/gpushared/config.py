"""The daemon's settings: a TOML file with a default for everything, unknown keys refused with their path."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gpushare.errors import GpushareError, UsageError
from gpushare.quantity import Kind, Quantity, format_bytes, format_duration, parse_duration
from gpushared.state import Policy

DEFAULT_FILE = Path("/etc/gpushare/gpushared.toml")
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Config:
    """Bytes and seconds."""

    reserve_share: float = 0.03
    reserve_least: int = 256 * MIB
    chunk: int = 64 * MIB
    claim_timeout: float = 30.0
    grace: float = 5.0
    sample_interval: float = 1.0
    health_interval: float = 60.0
    idle_exit: float = 10.0
    reveal: str = "user"
    """What users see of the jobs of other users: name, user or none."""
    metrics_listen: str = ""
    """host:port for /metrics over TCP beside the socket; empty: off."""

    def policy(self) -> Policy:
        return Policy(
            reserve_share=self.reserve_share,
            reserve_least=self.reserve_least,
            chunk=self.chunk,
            claim_timeout=self.claim_timeout,
            grace=self.grace,
        )


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise UsageError("not a share of the GPU from 0 up to, but not including, 1")
    return float(value)


def _bytes(value: object) -> int:
    if value == 0 and not isinstance(value, bool):
        return 0
    if not isinstance(value, str):
        raise UsageError('not an amount of memory in quotes, such as "256Mi"')
    quantity = Quantity.parse(value)
    if quantity.kind is not Kind.BYTES:
        raise UsageError('not an amount in bytes, such as "256Mi"')
    return quantity.resolve(0)


def _seconds(least: float) -> Callable[[object], float]:
    def parse(value: object) -> float:
        if isinstance(value, str):
            seconds = parse_duration(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            seconds = float(value)
        else:
            raise UsageError('not a duration, such as "5s"')
        if not math.isfinite(seconds) or seconds < least:
            raise UsageError(f"a duration of {seconds} s is too short, the least is {least} s")
        return seconds

    return parse


def _choice(*allowed: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise UsageError(f"not one of {', '.join(allowed)}")
        return value

    return parse


def _address(value: object) -> str:
    if not isinstance(value, str):
        raise UsageError('not a "host:port" in quotes')
    if value:
        split_address(value)
    return value


def split_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f'{text!r} is not a "host:port"')
    return host.strip("[]"), int(port)


# TOML table and key -> field of Config and how to read it.
_KEYS: Mapping[tuple[str, str], tuple[str, Callable[[object], Any]]] = {
    ("memory", "reserve_share"): ("reserve_share", _share),
    ("memory", "reserve_least"): ("reserve_least", _bytes),
    ("memory", "chunk"): ("chunk", _bytes),
    ("memory", "sample_interval"): ("sample_interval", _seconds(0.05)),
    ("reclaim", "claim_timeout"): ("claim_timeout", _seconds(0.1)),
    ("reclaim", "grace"): ("grace", _seconds(0.0)),
    ("daemon", "health_interval"): ("health_interval", _seconds(0.05)),
    ("daemon", "idle_exit"): ("idle_exit", _seconds(0.0)),
    ("daemon", "reveal"): ("reveal", _choice("name", "user", "none")),
    ("metrics", "listen"): ("metrics_listen", _address),
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and which of them the file has set."""

    config: Config
    path: Path | None
    from_file: frozenset[str]

    def describe(self) -> str:
        """The effective settings with their sources, as a file that can be read again."""
        lines: list[str] = []
        table = ""
        for (section, key), (field, _) in _KEYS.items():
            if section != table:
                lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
                table = section
            source = str(self.path) if field in self.from_file else "default"
            lines.append(f"{key} = {_write(field, getattr(self.config, field))}  # {source}")
        return "\n".join(lines)


def load(path: Path | None) -> Loaded:
    """Read the file; None: the system's file if it is there, else the defaults."""
    chosen = path if path is not None else (DEFAULT_FILE if DEFAULT_FILE.is_file() else None)
    if chosen is None:
        return Loaded(Config(), None, frozenset())
    try:
        tables = tomllib.loads(chosen.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {chosen}: {error.strerror}", code="bad_config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{chosen} is not TOML: {error}", code="bad_config") from None
    values = parse(tables, chosen)
    return Loaded(Config(**values), chosen, frozenset(values))


def parse(tables: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """All errors at once, each with the path of its key."""
    values: dict[str, Any] = {}
    problems: list[tuple[str, str]] = []
    for section, table in tables.items():
        if section not in {known for known, _ in _KEYS}:
            problems.append((f"$.{section}", f"no such table; there are {_sections()}"))
        elif not isinstance(table, dict):
            problems.append((f"$.{section}", "not a table"))
        else:
            _parse_table(section, table, values, problems)
    if problems:
        raise UsageError(f"{path} has settings that are not accepted", facts=problems, code="bad_config")
    return values


def _parse_table(
    section: str, table: Mapping[str, Any], values: dict[str, Any], problems: list[tuple[str, str]]
) -> None:
    for key, value in table.items():
        known = _KEYS.get((section, key))
        if known is None:
            keys = ", ".join(name for known_section, name in _KEYS if known_section == section)
            problems.append((f"$.{section}.{key}", f"no such key; there are {keys}"))
            continue
        field, reader = known
        try:
            values[field] = reader(value)
        except GpushareError as error:
            problems.append((f"$.{section}.{key}", error.message))


def _sections() -> str:
    return ", ".join(dict.fromkeys(section for section, _ in _KEYS))


def _write(field: str, value: object) -> str:
    if field in ("reserve_least", "chunk") and isinstance(value, int):
        return f'"{Quantity(Kind.BYTES, value, "").canonical()}"' if value else "0"
    return f'"{value}"' if isinstance(value, str) else str(value)


def changes(old: Config, new: Config) -> list[str]:
    """What a reload has changed, for the log."""
    names = [field.name for field in fields(Config)]
    return [
        f"{name}: {_show(name, getattr(old, name))} -> {_show(name, getattr(new, name))}"
        for name in names
        if getattr(old, name) != getattr(new, name)
    ]


def _show(field: str, value: Any) -> str:
    if field in ("reserve_least", "chunk"):
        return format_bytes(value)
    if field in ("claim_timeout", "grace", "sample_interval", "health_interval", "idle_exit"):
        return format_duration(value)
    return str(value)
