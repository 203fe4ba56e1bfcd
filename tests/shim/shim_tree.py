"""Where the sources are, and what a compiled library offers."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "shim"


def exported(library: Path) -> dict[str, int]:
    """The symbols that a library defines for others, without their versions, and where."""
    out = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    rows = [line.split() for line in out.stdout.splitlines()]
    return {row[-1].split("@")[0]: int(row[0], 16) for row in rows}
