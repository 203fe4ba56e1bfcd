"""The installed distribution: its name, what it requires, what is wrong with it, and how to install it again.

On the package index `gpushare` is another project, so the distribution has a name of its own, and no text of ours may
make anybody install that one. Nothing is installed again by name either: no index is known to have this distribution.

The module lies beside the package and uses only the standard library, because it has to work where the package is
damaged. Imports are in the functions: `gpushare run` loads this module each time.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.metadata import Distribution
    from pathlib import Path

__all__ = [
    "NAME",
    "OTHER_PROJECT",
    "Problem",
    "distribution",
    "install_extra",
    "main",
    "problems",
    "reinstall",
    "requirements",
]

NAME = "gpushare-cuda"
OTHER_PROJECT = "gpushare"
"""The other project on the index. Its files have the same paths as ours, so one of the two overwrites the other."""

FAILED_BEFORE_START = 125
SHOWN_FILES = 3


class Problem(NamedTuple):
    """What is wrong with the installation, and the commands that mend it. () where no command is known."""

    text: str
    fix: tuple[str, ...]


def main() -> int:
    """The `gpushare` command. An error that a damaged installation causes is told as damage, not as a traceback."""
    try:
        from gpushare.cli import main as command

        return command()
    except Exception as error:
        found = problems()
        if isinstance(error, ImportError) and not (error.name or OTHER_PROJECT).startswith(OTHER_PROJECT):
            found.append(Problem(f"{error.name} cannot be imported: {error}", ()))  # a library of others
        if not found:
            raise
        print("gpushare: this installation is damaged", file=sys.stderr)
        for problem in found:
            print(f"  {problem.text}", file=sys.stderr)
        for command_line in dict.fromkeys(line for problem in found for line in problem.fix):
            print(f"hint: {command_line}", file=sys.stderr)
        return FAILED_BEFORE_START if sys.argv[1:2] == ["run"] else 1


def problems() -> list[Problem]:
    """What is wrong with the installation. The files of a source tree are not judged."""
    found = []
    if _other_project_is_here():
        text = f"a distribution called {OTHER_PROJECT} is installed: its files have the same paths as ours"
        found.append(Problem(text, (f"{_pip('uninstall')} -y {OTHER_PROJECT}", *reinstall())))
    if distribution() is None:
        if not _in_source_tree():
            found.append(Problem(f"there are no metadata of {NAME}", reinstall()))
        return found
    absent = [one for one in requirements() if not _is_installed(one)]
    if absent:
        command = " ".join([_pip("install"), *map(_quoted, absent)])
        found.append(Problem(f"not installed: {', '.join(absent)}", (command,)))
    damaged = list(_damaged_files())
    if damaged:
        more = f", and {len(damaged) - SHOWN_FILES} more" if len(damaged) > SHOWN_FILES else ""
        found.append(Problem(", ".join(damaged[:SHOWN_FILES]) + more, reinstall()))
    return found


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
    try:
        lines = (installed.requires if installed else None) or []
    except (OSError, ValueError):
        return []  # damaged: not even text
    found = []
    for line in lines:
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

    if _in_source_tree():
        return (f"{_pip('install')} --no-deps -e {_quoted(str(Path(__file__).resolve().parent))}",)
    installed = distribution()
    try:
        url = str(json.loads((installed.read_text("direct_url.json") if installed else None) or "{}").get("url", ""))
    except (ValueError, AttributeError):
        return ()
    place = Path(unquote(urlsplit(url).path))
    if urlsplit(url).scheme != "file" or not place.exists():
        return ()
    return (f"{_pip('install')} --force-reinstall --no-deps {_quoted(str(place))}",)


def _in_source_tree() -> bool:
    from pathlib import Path

    return (Path(__file__).resolve().parent / "shim" / "build_shim.py").exists()


def _other_project_is_here() -> bool:
    """Whether files under our paths belong to a distribution of that name. Ours had that name, too, before."""
    from importlib import metadata

    records = map(_record, metadata.distributions(name=OTHER_PROJECT))
    return any(f"\n{OTHER_PROJECT}/" in f"\n{record}" for record in records)


def _is_installed(requirement: str) -> bool:
    import re
    from importlib import metadata

    name = re.match(r"[\w.-]+", requirement)
    try:
        return name is not None and bool(metadata.version(name[0]))
    except (metadata.PackageNotFoundError, KeyError):
        return False


def _damaged_files() -> Iterator[str]:
    """The installed files that are not as they were packed, each with what is wrong. pip records their hashes."""
    import csv
    from pathlib import Path

    installed = distribution()
    if installed is None:
        return
    for row in csv.reader(_record(installed).splitlines()):
        if len(row) < 2 or not row[1]:
            continue  # without a hash: the list itself, and compiled Python
        problem = _damage(Path(str(installed.locate_file(row[0]))), row[1])
        if problem:
            yield f"{row[0]} {problem}"


def _record(installed: Distribution) -> str:
    """The list of installed files. Empty where there is none that can be read."""
    try:
        return installed.read_text("RECORD") or ""
    except (OSError, ValueError):
        return ""


def _damage(path: Path, recorded: str) -> str | None:
    import base64
    import hashlib

    kind, _, expected = recorded.partition("=")
    try:
        found = hashlib.new(kind, path.read_bytes()).digest()
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except ValueError:
        return None  # a hash that this Python does not know
    return None if base64.urlsafe_b64encode(found).decode().rstrip("=") == expected else "was changed"


def _pip(command: str) -> str:
    return f"{_quoted(sys.executable)} -m pip {command}"


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text)
