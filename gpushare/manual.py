"""The documentation that is installed with the package: docs/ of the source tree."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from gpushare.errors import GpushareError, UsageError
from gpushare.nearest import did_you_mean

__all__ = ["read", "title", "topics"]


def topics() -> list[str]:
    return sorted(path.stem for path in _directory().glob("*.md"))


def read(topic: str) -> str:
    """The topic's text in Markdown. `topic` may be the beginning of a name, if it fits only one. Raises UsageError."""
    known = topics()
    found = [topic] if topic in known else [name for name in known if name.startswith(topic)]
    if len(found) != 1:
        hint = " ".join(filter(None, [did_you_mean(topic, known), f"topics: {', '.join(known)}"]))
        raise UsageError(f"there is no one topic {topic!r}", code="bad_topic", hint=hint)
    return (_directory() / f"{found[0]}.md").read_text(encoding="utf-8")


def title(text: str) -> str:
    """Its first heading."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else ""


def _directory() -> Path:
    """The docs: installed beside the package, or in the source tree."""
    spec = importlib.util.find_spec("gpushare_docs")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for place in [*places, Path(__file__).resolve().parent.parent / "docs"]:
        if (place / "reasons.md").is_file():
            return place
    raise GpushareError("the documentation is not installed", hint="reinstall gpushare", code="no_docs")
