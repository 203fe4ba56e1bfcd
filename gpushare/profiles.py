"""Profiles: named sets of options for `gpushare run --profile NAME`, in the configuration files.

    [profiles.small]
    request = "1Gi"
    limit = "2Gi"

The keys are those of the file itself. What is on the command line comes first, then the profile, then the environment
and the rest of the files. Of two profiles of one name the user's is taken whole, never mixed with the system's.
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
"""Keys that say where the daemon is: not a program's wish."""
KNOWN = tuple(sorted(key for key in BY_KEY if key not in OF_FILES_ONLY))


class Profile(NamedTuple):
    name: str
    path: str  # of the file
    line: int
    options: Mapping[str, str]  # text by key

    def settings(self) -> dict[str, Setting]:
        """By the variable's name."""
        return {
            BY_KEY[key].name: Setting(text, f"{self.path}: {TABLE}.{self.name}.{key}")
            for key, text in self.options.items()
        }


def find_profile(name: str, profiles: Mapping[str, Profile]) -> Profile:
    """UsageError where there is none of that name."""
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
    """From the [profiles] of a file, whose text tells the lines. UsageError with the line of what is wrong.

    to_text: a value as an option's text; None where it is neither text nor number.
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
