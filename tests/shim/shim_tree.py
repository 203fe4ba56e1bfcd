"""Where the sources are, and what a compiled library offers."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "shim"


def exported(library: Path) -> dict[str, int]:
    """The symbols that a library defines for others, without their versions, and where.

    Not hidden ones: some linkers list the bounds of an array of moments.h, and the loader binds nobody to them.
    """
    out = subprocess.run(["readelf", "--dyn-syms", "-W", str(library)], capture_output=True, text=True, check=True)
    rows = [line.split() for line in out.stdout.splitlines()]
    found = [row for row in rows if len(row) >= 8 and row[0][:-1].isdigit() and row[6] != "UND" and row[5] != "HIDDEN"]
    return {row[7].split("@")[0]: int(row[1], 16) for row in found}
