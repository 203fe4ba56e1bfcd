"""functions.def and its reader: whatever the text, the reader sees the rows that the C compiler sees, or refuses it.

One second here; GPUSHARE_TEST_SECONDS=600 (`make fuzz SECONDS=600`) for as long as you like, GPUSHARE_TEST_SEED for
other texts.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from pathlib import Path

import pytest

from functions_def import FILE, BadRow, Row, read, rows

SECONDS = int(os.environ.get("GPUSHARE_TEST_SECONDS", "1"))
SEED = int(os.environ.get("GPUSHARE_TEST_SEED", "1"))
HEAD = """
#define GS_FN(base, symbol, since, stream, family, rule) @ base symbol since stream family rule
#define GS_OTHER(base, symbol, since, stream) @ base symbol since stream
"""
# What a slip of the hand, or somebody with another idea of C, would put there.
PIECES = (
    "/*", "*/", "//", "\\\n", "\\", "\n", "\n\n", " ", "\t", "\f", "\v", "\r", "(", ")", ",", "#", "#if 0\n",
    "#endif\n",
    "#define cuMemAlloc cuMemFree\n", "\n#undef GS_FN\n", "\n#include __FILE__\n", "'", '"', "??/\n", "%:",
    "0", "9", "u",
    "\0", "é", "cuMemAlloc", "HOOK", "LEGACY", "LINEAR", "GS_FN", "GS_OTHER(cuA, cuA, 1, LEGACY)", "linux", "__LINE__",
    " /* GS_OTHER(cuB, cuB, 1, LEGACY) */ ", "/* a\nb */", "GS_OTHER\n(cuC,\tcuC_v2, 12, PER_THREAD )", ";", "$", "-",
)  # fmt: skip


def by_compiler(text: str, directory: Path) -> list[Row] | None:
    """None: it does not compile."""
    source = directory / "rows.c"
    source.write_bytes((HEAD + text + "\n").encode())
    command = ["cc", "-E", "-P", "-std=gnu11", "-w", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        return None
    words = [row.split() for row in " ".join(done.stdout.split()).split("@")]
    if words[0] or any(len(row) not in (4, 6) for row in words[1:]):
        return None
    try:
        return [Row(row[0], row[1], int(row[2]), row[3], *row[4:]) for row in words[1:]]
    except ValueError:
        return None


def by_reader(text: str) -> list[Row] | None:
    try:
        return read(text)
    except BadRow:
        return None


def a_text(dice: random.Random, lines: list[str]) -> str:
    """A few of the file's rows with comments, and a few slips."""
    text = "\n".join(dice.sample(lines, dice.randrange(1, 6))) + "\n"
    for _ in range(dice.choice((0, 1, 1, 1, 2, 3, 6))):
        at = dice.randrange(len(text) + 1)
        kind = dice.random()
        if kind < 0.2:
            text = text[:at] + text[at + dice.randrange(1, 8) :]
        elif kind < 0.3:
            other = dice.randrange(len(text) + 1)
            text = text[:at] + text[min(at, other) : max(at, other)] + text[at:]
        elif kind < 0.6:  # where a compiler takes it: between two tokens
            gaps = [found.start() for found in re.finditer(r"[(),]", text)] or [at]
            at = dice.choice(gaps)
            text = text[:at] + dice.choice((" ", "\t", "\n", "/* x */", "/*\n*/ ", "\\\n", "//\n", "\f")) + text[at:]
        else:
            text = text[:at] + dice.choice(PIECES) + text[at:]
    return text


@pytest.mark.timeout(SECONDS + 60)
def test_the_reader_and_the_compiler_see_the_same_rows(tmp_path: Path) -> None:
    lines = [line for line in FILE.read_text().splitlines() if line.startswith("GS_")]
    dice, accepted, refused = random.Random(SEED), 0, 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or accepted < 20 or refused < 20:
        text = a_text(dice, lines)
        seen = by_reader(text)
        refused += seen is None
        accepted += seen is not None
        if seen is not None:
            assert seen == by_compiler(text, tmp_path), f"seed {SEED}, text {accepted + refused}: {text!r}"
    print(f"{accepted} texts accepted, {refused} refused, seed {SEED}")


def test_the_file_itself_is_read_as_it_is_compiled(tmp_path: Path) -> None:
    text = FILE.read_text()
    assert rows() == by_compiler(text, tmp_path)
    assert len(rows()) == 723


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("GS_FN(cuA, cuA, 1, LEGACY)", "too few"),
        ("GS_OTHER(cuA, cuA, 1, LEGACY, LINEAR, HOOK)", "too many"),
        ("GS_OTHER(cuA, cuA, 010, LEGACY)", "no row"),  # C would take it for eight
        ("GS_OTHER(cuA, cuA, 1, SIDEWAYS)", "unknown word"),
        ("GS_FN(cuA, cuA, 1, LEGACY, LINEAR, HOPE)", "unknown word"),
        ("GS_OTHER(cuA, cuA, 1, LEGACY)\nGS_OTHER(cuA, cuA, 2, LEGACY)", "twice"),
        ("GS_OTHER(cuA, cuB, 1, LEGACY)", "no variant"),
        ("#if 0\nGS_OTHER(cuA, cuA, 1, LEGACY)\n#endif", "directive"),
        ("// GS_OTHER(cuA, cuA, 1, LEGACY)", "is not of this file's C"),
        ("GS_OTHER(cuA, cuA, 1, LEGACY) \\\n", "is not of this file's C"),
        ("GS_OTHER(cuA, cuA, 1, LEGACY) /* never ends", "no row"),
    ],
)
def test_what_is_wrong_is_said(text: str, reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        read(text)
