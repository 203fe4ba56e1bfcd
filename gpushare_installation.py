"""The installed distribution: its name, what it requires, and how to install it again.

On the package index `gpushare` is another project, so the distribution has a name of its own, and no text of ours may
say `pip install gpushare`. Nothing is installed again by name either: no index is known to have this distribution.

The module lies beside the package and uses only the standard library, because it has to work where the package is
damaged. Imports are in the functions: `gpushare run` loads this module each time.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution

__all__ = ["NAME", "OTHER_PROJECT", "distribution", "install_extra", "reinstall", "requirements"]

NAME = "gpushare-cuda"
OTHER_PROJECT = "gpushare"
"""The other project on the index. Its files have the same paths as ours, so one of the two overwrites the other."""


def distribution() -> Distribution | None:
    """The metadata of the installation. None in a source tree that was only built, not installed."""
    from importlib import metadata

    try:
        return metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        return None


def requirements(extra: str = "") -> list[str]:
    """What the distribution, or one of its extras, requires, in the words that pip takes. Empty if not installed."""
    import re

    installed = distribution()
    found = []
    for line in (installed.requires if installed else None) or ():
        requirement, _, marker = line.partition(";")
        of = re.search(r"""extra\s*==\s*['"]([\w-]+)""", marker)
        if (of[1] if of else "") == extra:
            found.append(requirement.strip())
    return found


def install_extra(extra: str) -> str:
    """The command that installs what an extra requires."""
    needed = requirements(extra)
    if needed:
        return " ".join([_pip("install"), *map(_quoted, needed)])
    return f"pip install '.[{extra}]' in the source tree"


def reinstall() -> tuple[str, ...]:
    """Commands that install it again from the source tree or the wheel it came from. () if that is gone or unknown."""
    import json
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    source = Path(__file__).resolve().parent
    if (source / "shim" / "build_shim.py").exists():
        return (f"{_pip('install')} --no-deps -e {_quoted(str(source))}",)
    installed = distribution()
    try:
        url = str(json.loads((installed.read_text("direct_url.json") if installed else None) or "{}").get("url", ""))
    except (ValueError, AttributeError):
        return ()
    place = Path(unquote(urlsplit(url).path))
    if urlsplit(url).scheme != "file" or not place.exists():
        return ()
    return (f"{_pip('install')} --force-reinstall --no-deps {_quoted(str(place))}",)


def _pip(command: str) -> str:
    return f"{_quoted(sys.executable)} -m pip {command}"


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text)
