"""The C parts with other compilers and other flags than those they are shipped with."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from toolchain import ROOT, SHIM, build_libraries, exported, need, package_libraries

INCLUDES = [f"-I{SHIM}", f"-I{SHIM / 'preload'}"]
WARNINGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", *INCLUDES]

LEAK = """
#include <stdlib.h>
int planted(int size) {
    char *bytes = malloc(size);
    if (bytes == NULL)
        return 1;
    bytes[0] = 1;
    return 0;
}
"""


def complaints(command: list[str], sources: list[Path]) -> str:
    def one(source: Path) -> str:
        done = subprocess.run([*command, str(source)], capture_output=True, text=True)
        return done.stderr if done.returncode else ""

    with ThreadPoolExecutor(2) as pool:
        return "".join(pool.map(one, sources))


def test_clang_has_no_warning_for_any_c_file():
    need("clang")
    sources = [path for where in ("shim", "tests", "benchmarks") for path in sorted((ROOT / where).rglob("*.c"))]
    sources = [path for path in sources if path.parent != ROOT / "tests/fuzz"]
    assert len(sources) > 60
    assert complaints(["clang", "-O1", "-fsyntax-only", *WARNINGS], sources) == ""


def test_the_analyzer_of_gcc_finds_nothing_in_the_shim(tmp_path):
    """Without optimisation. With it, gcc 12 first splits the structures that options.c returns by value, and then takes
    a field that it left out itself for one that nobody has set (`dialect` of struct found)."""
    command = ["gcc", "-fanalyzer", "-O0", *WARNINGS, "-c", "-o", "/dev/null"]
    planted = tmp_path / "planted.c"
    planted.write_text(LEAK)
    assert "leak" in complaints(command, [planted]), "this gcc has no analyzer: the test proves nothing"
    assert complaints(command, sorted((SHIM / "preload").glob("*.c"))) == ""


@pytest.mark.parametrize(
    ("compiler", "flags", "which"),
    [
        ("gcc", "-O0 -g", ("gpushare.lib.libgpushare", "gpushare.sim.libcuda", "gpushare.sim.libnvml")),
        ("clang", "-O1", ("gpushare.lib.libgpushare",)),
    ],
    ids=["debug", "clang"],
)
def test_every_build_exports_the_same(tmp_path, compiler, flags, which):
    """What is exported follows from functions.def, never from what an optimiser has left over."""
    need(compiler)
    shipped = package_libraries(tmp_path)
    built = build_libraries(tmp_path, compiler, flags, only=which)
    assert set(which) <= set(built)
    for name, path in built.items():
        assert exported(path) == exported(shipped[name]) != set()
