"""Configuration files of the command line: the user's, then the system's.

    request = "2Gi"        limit = "14Gi"      priority = 0        grace = "10s"
    visible = "limit"      driver = "auto"     log = "warning"     socket = "/run/gpushare/api.sock"
    require_daemon = true

The keys are those of the variables in gpushare/env.py. Unknown keys are refused: a misspelt limit must not become
no limit. The node daemon has a file of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpushare.env import BY_KEY, Settings
from gpushare.errors import UsageError
from gpushare.nearest import did_you_mean

__all__ = ["SYSTEM_FILE", "load_settings", "read_file"]

SYSTEM_FILE = Path("/etc/gpushare/config.toml")


def load_settings(flags: Mapping[str, str | None] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    environ = os.environ if environ is None else environ
    files = [(str(path), read_file(path)) for path in (_user_file(environ), SYSTEM_FILE) if _exists(path)]
    return Settings(flags or {}, environ, tuple(files))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}",
            code="bad_config",
            hint="set HOME or XDG_CONFIG_HOME to a directory that you may read",
        ) from None


def read_file(path: Path) -> dict[str, str]:
    import tomllib

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", code="bad_config") from None
    except ValueError as error:  # not TOML, or not even text
        raise UsageError(f"cannot read {path}: {error}", code="bad_config") from None
    return {key: _text(path, key, value) for key, value in content.items()}


def _user_file(environ: Mapping[str, str]) -> Path:
    named = environ.get("GPUSHARE_CONFIG", "").strip()
    if named:
        if not _exists(Path(named)):
            raise UsageError(f"GPUSHARE_CONFIG names {named}, which does not exist", code="bad_config")
        return Path(named)
    base = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config"
    return Path(base) / "gpushare" / "config.toml"


def _text(path: Path, key: str, value: object) -> str:
    if key not in BY_KEY:
        raise UsageError(
            f"{path}: unknown key $.{key}",
            code="bad_config",
            hint=did_you_mean(key, BY_KEY) or f"known keys: {', '.join(sorted(BY_KEY))}",
        )
    if isinstance(value, bool) and BY_KEY[key].kind == "flag":
        return str(int(value))
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UsageError(f"{path}: $.{key} must be a text or a number", code="bad_config")
    return str(value)
