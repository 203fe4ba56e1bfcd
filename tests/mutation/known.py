"""cannot_matter.toml: the changes that nobody could notice, each with the reason."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from mutation.change import Change

LIST = Path(__file__).with_name("cannot_matter.toml")


@dataclass(frozen=True)
class Known:
    """A line of the source, what it becomes, and why that changes nothing that could be seen."""

    file: str
    line: str
    becomes: str
    why: str

    def is_about(self, change: Change, source: bytes) -> bool:
        return (
            change.path == self.file
            and change.line_before(source) == self.line
            and change.line_after(source) == self.becomes
        )


def read(path: Path = LIST) -> list[Known]:
    return [Known(**entry) for entry in tomllib.loads(path.read_text()).get("change", [])]
