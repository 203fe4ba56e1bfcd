"""Puts the pages of the site together: docs/, README and what else teaches, with links that lead from page to page.

On a forge a link goes from file to file. In the site README.md is index.md, and a link to a file that is no page, a
program for instance, becomes its name.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "daemon/deploy/README.md": "deploy.md",
    "examples/README.md": "examples.md",
    "benchmarks/RESULTS.md": "results.md",
    "docs/openapi/node.json": "openapi/node.json",
    "docs/openapi/cluster.json": "openapi/cluster.json",
}
"""File -> page, beside those of docs/."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^ *```")


def pages() -> dict[Path, str]:
    """File -> page. A link in docs/ is the file that it leads to."""
    found = {ROOT / file: page for file, page in PAGES.items()}
    for file in sorted((ROOT / "docs").glob("*.md")):
        found.setdefault(file.resolve(), file.name)
    return found


def rewritten(text: str, file: Path, known: dict[Path, str]) -> str:
    """The text of this file as a page. Raises ValueError for a link that leads nowhere."""

    def link(match: re.Match[str]) -> str:
        picture, words, target, anchor = match[1], match[2], match[3], match[4] or ""
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        found = (file.parent / target).resolve()
        if found.is_dir() and (found / "README.md") in known:
            found /= "README.md"
        if not found.exists():
            raise ValueError(f"{file}: a link to {target}, which is not there")
        return f"{picture}[{words}]({known[found]}{anchor})" if found in known else words

    lines, fenced = [], False
    for line in text.split("\n"):
        fenced ^= bool(FENCE.match(line))
        lines.append(line if fenced else LINK.sub(link, line))
    return "\n".join(lines)


def assemble(folder: Path) -> None:
    """Write all pages into the folder, in the place of what is there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    known = pages()
    for file, page in known.items():
        (folder / page).parent.mkdir(exist_ok=True)
        (folder / page).write_text(rewritten(file.read_text(encoding="utf-8"), file, known), encoding="utf-8")
    shutil.copy(Path(__file__).with_name("extra.css"), folder)


if __name__ == "__main__":
    assemble(Path(sys.argv[1]))
