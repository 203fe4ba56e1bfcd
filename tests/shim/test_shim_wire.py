"""The numbers on the wire and in the page: a library and a daemon of other versions know them as they were."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from shim_tree import SHIM

GOLDEN = Path(__file__).with_name("wire_numbers.txt")
HEADERS = ("credit.h", "wire.h")


def numbers(directory: Path) -> dict[str, int]:
    """What the C compiler says of each named number."""
    text = "".join(re.sub(r"/\*.*?\*/", "", (SHIM / name).read_text(), flags=re.DOTALL) for name in HEADERS)
    names = re.findall(r"^\s*(GS_\w+) = ", text, re.MULTILINE) + re.findall(
        r"^#define (GS_\w+) +\w", text, re.MULTILINE
    )
    source = directory / "numbers.c"
    prints = "".join(f'\tprintf("{name} %lld\\n", (long long)({name}));\n' for name in names)
    includes = "".join(f'#include "{name}"\n' for name in HEADERS)
    source.write_text(f"#include <stdio.h>\n{includes}int main(void)\n{{\n{prints}\treturn 0;\n}}\n")
    subprocess.run(["gcc", "-std=gnu11", f"-I{SHIM}", str(source), "-o", str(directory / "numbers")], check=True)
    told = subprocess.run([directory / "numbers"], check=True, capture_output=True, text=True).stdout
    return {line.split()[0]: int(line.split()[1]) for line in told.splitlines()}


def test_no_number_has_changed(tmp_path) -> None:
    """New ones may be added. One that changes would be read as another by what runs already."""
    now = numbers(tmp_path)
    if os.environ.get("GPUSHARE_TEST_UPDATE"):
        GOLDEN.write_text("".join(f"{name} {number}\n" for name, number in now.items()))
    before = {line.split()[0]: int(line.split()[1]) for line in GOLDEN.read_text().splitlines()}
    assert len(before) > 30
    assert {name: now.get(name) for name in before} == before
