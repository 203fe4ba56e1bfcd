"""Profiles: named sets of options for `gpushare run --profile NAME`, in the configuration files.

    [profiles.small]
    request = "1Gi"
    limit = "2Gi"

The keys are those of the file itself. The command line comes first, then the profile, then the environment and the rest
of the files. If the user and the system have a profile of the same name, the user's replaces the system's whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from gpushare.env import BY_KEY, Setting
from gpushare.errors import UsageError
from gpushare.nearest import did_you_mean
from gpushare.toml_lines import Lines

__all__ = ["TABLE", "Profile", "find_profile", "parse_profiles"]

TABLE = "profiles"
OF_FILES_ONLY = ("socket",)
"""Keys that say where the daemon is. A profile may not have them."""
KNOWN = tuple(sorted(key for key in BY_KEY if key not in OF_FILES_ONLY))


class Profile(NamedTuple):
    name: str
    path: str  # of the file
    line: int
    options: Mapping[str, str]  # text by key

    def settings(self) -> dict[str, Setting]:
        """Its settings, by the variable's name."""
        return {
            BY_KEY[key].name: Setting(text, f"{self.path}: {TABLE}.{self.name}.{key}")
            for key, text in self.options.items()
        }


def find_profile(name: str, profiles: Mapping[str, Profile]) -> Profile:
    """The profile of that name. Raises UsageError."""
    found = profiles.get(name)
    if found is None:
        hint = did_you_mean(name, profiles) or (
            "`gpushare profiles` lists them" if profiles else "there are none; `gpushare profiles --help` shows one"
        )
        raise UsageError(f"there is no profile {name!r}", code="no_such_profile", hint=hint)
    return found


def parse_profiles(
    path: Path, text: str, tables: object, to_text: Callable[[str, object], str | None]
) -> dict[str, Profile]:
    """The profiles of a file. Raises UsageError with the line of the mistake, found in the file's `text`.

    to_text: a value as an option's text; None if it is neither text nor a number.
    """
    lines = Lines(text)

    def wrong(where: tuple[str, ...], problem: str, hint: str | None = None) -> UsageError:
        return UsageError(f"{path}:{lines.of(where)}: {problem}", code="bad_config", hint=hint)

    def each() -> Iterator[Profile]:
        if not isinstance(tables, dict):
            raise wrong((TABLE,), f"$.{TABLE} must be a table", "write [profiles.NAME]")
        for name, options in tables.items():
            place = (TABLE, name)
            if not isinstance(options, dict):
                raise wrong(place, f"$.{TABLE}.{name} must be a table", f"write [{TABLE}.{name}]")
            found = {}
            for key, value in options.items():
                if key not in KNOWN:
                    hint = did_you_mean(key, KNOWN) or f"known keys: {', '.join(KNOWN)}"
                    raise wrong((*place, key), f"unknown key $.{TABLE}.{name}.{key}", hint)
                text_of = to_text(key, value)
                if text_of is None:
                    raise wrong((*place, key), f"$.{TABLE}.{name}.{key} must be a text or a number")
                found[key] = text_of
            yield Profile(name, str(path), lines.of(place), found)

    return {profile.name: profile for profile in each()}
