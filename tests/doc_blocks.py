"""The blocks of README and docs/: what a page shows as it is typed, as a file has it, or as it is printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    *("README.md", "CONTRIBUTING.md", "daemon/deploy/README.md", "examples/README.md"),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md") if not path.is_symlink()),
)
"""Each file once: some pages of docs/ are links to the first ones."""
FENCE = re.compile(r"^ *```(\w*)$")
COMMAND = re.compile(r"(\$ |gpushare |make |curl |ssh |sbatch |srun |gcc |dist/|python3? |pip |systemctl |\.venv/)")


class Block(NamedTuple):
    page: str
    line: int
    kind: str
    """The word after the fence."""
    lines: tuple[str, ...]

    @property
    def commands(self) -> tuple[str, ...]:
        """What is typed, without comments. None if the block is no command block."""
        shell = self.kind in ("console", "sh", "")
        said = [line for line in self.lines if line.strip() and not line.startswith("#")]
        if not shell or not said or not COMMAND.match(said[0]) or "[" in said[0].partition("]")[0][:20]:
            return ()
        prompts = [line.removeprefix("$ ") for line in said if line.startswith("$ ")]
        return tuple(re.split(r" +# ", line)[0].rstrip() for line in prompts or said)

    @property
    def name(self) -> str:
        """As tables of tests call it: what the block begins with."""
        return f"{self.page}: {(self.commands or self.lines)[0]}"


def blocks() -> Iterator[Block]:
    """Of all pages: between fences, and what is indented by four."""
    for page in PAGES:
        lines = (ROOT / page).read_text(encoding="utf-8").split("\n")
        at = 0
        while at < len(lines):
            begin, fence = at, FENCE.match(lines[at])
            if fence:
                at = next(i for i in range(begin + 1, len(lines)) if FENCE.match(lines[i]))
                yield Block(page, begin + 1, fence[1], tuple(lines[begin + 1 : at]))
            elif lines[at].startswith("    ") and not lines[at - 1].strip():
                while at + 1 < len(lines) and lines[at + 1].startswith("    "):
                    at += 1
                yield Block(page, begin + 1, "", tuple(line[4:] for line in lines[begin : at + 1]))
            at += 1
