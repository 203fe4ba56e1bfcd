"""Writes shim/preload/known_names.def from the variables of gpushare/env.py: python docs/man/generate_names.py"""

from __future__ import annotations

from pathlib import Path

from gpushare.env import VARIABLES

FILE = Path(__file__).resolve().parents[2] / "shim" / "preload" / "known_names.def"

HEAD = """\
/* known_names.def: all variables of gpushare, so that the library can name one that does not exist.
 *
 * Made by `make man` from gpushare/env.py. Do not edit it.
 */
"""


def names() -> str:
    return HEAD + "".join(f"GS_NAME({variable.name})\n" for variable in VARIABLES)


if __name__ == "__main__":
    FILE.write_text(names())
