"""Configuration files of the command line: the user's, then the system's.

    request = "2Gi"        limit = "14Gi"      priority = 0        grace = "10s"
    visible = "limit"      driver = "auto"     log = "warning"     socket = "/run/gpushare/api.sock"
    require_daemon = true  [profiles.NAME], see profiles.py

The keys are those of the variables in gpushare/env.py. Unknown keys are errors: a misspelt limit must not become no
limit. The node daemon has its own file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpushare.env import BY_KEY, Setting, Settings
from gpushare.errors import UsageError
from gpushare.nearest import did_you_mean

if TYPE_CHECKING:
    from gpushare.profiles import Profile

__all__ = ["SYSTEM_FILE", "load_profiles", "load_settings", "read_file"]

SYSTEM_FILE = Path("/etc/gpushare/config.toml")


def load_settings(flags: Mapping[str, str | None] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings. Only `run` uses a profile: from its flag, or from GPUSHARE_PROFILE."""
    environ = os.environ if environ is None else environ
    files = [(str(path), read_file(path)) for path in _files(environ)]
    settings = Settings(flags or {}, environ, tuple(files))
    wanted = settings.find("GPUSHARE_PROFILE") if "GPUSHARE_PROFILE" in settings.flags else None
    if wanted is not None:
        settings.profile = _profile(wanted, environ)
    return settings


def load_profiles(environ: Mapping[str, str] | None = None) -> dict[str, Profile]:
    """The profiles by name; the user's replace the system's of the same name."""
    from gpushare.profiles import TABLE, parse_profiles

    environ = os.environ if environ is None else environ
    found: dict[str, Profile] = {}
    for path in reversed(_files(environ)):
        text, content = _read(path)
        if TABLE in content:
            found |= parse_profiles(path, text, content[TABLE], _plain)
    return found


def _profile(wanted: Setting, environ: Mapping[str, str]) -> dict[str, Setting]:
    from gpushare.profiles import find_profile

    return find_profile(wanted.text, load_profiles(environ)).settings()


def _files(environ: Mapping[str, str]) -> list[Path]:
    return [path for path in (_user_file(environ), SYSTEM_FILE) if _exists(path)]


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
    """The settings in it, without its profiles."""
    _, content = _read(path)
    content.pop("profiles", None)
    return {key: _text(path, key, value) for key, value in content.items()}


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a file, and its parsed content."""
    import tomllib

    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", code="bad_config") from None
    except ValueError as error:  # not TOML, or not even text
        raise UsageError(f"cannot read {path}: {error}", code="bad_config") from None


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
    text = _plain(key, value)
    if text is None:
        raise UsageError(f"{path}: $.{key} must be a text or a number", code="bad_config")
    return text


def _plain(key: str, value: object) -> str | None:
    if isinstance(value, bool):
        return str(int(value)) if BY_KEY[key].kind == "flag" else None
    return str(value) if isinstance(value, str | int | float) else None
