"""The C parsers of what others write, under libFuzzer and the sanitizers.

One second each here. For as long as you like: GPUSHARE_TEST_SECONDS=600 (`make fuzz SECONDS=600`).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from toolchain import ROOT, SHIM, need

HERE = Path(__file__).resolve().parent
SECONDS = int(os.environ.get("GPUSHARE_TEST_SECONDS", "1"))
FLAGS = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{SHIM}", f"-I{SHIM / 'preload'}"]
FUZZER = ["-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
SOURCES = {
    "quantity": ("quantity",),
    "options": ("options", "quantity", "message"),
    "client": ("options", "quantity", "message"),
}

FILES, PAGE = 8, 64
WELCOME_WITH_PAGE = bytes([FILES | PAGE, 0])
ANSWER = bytes([0, 0])


def quantities() -> list[bytes]:
    vectors = json.loads((ROOT / "tests/vectors/quantities.json").read_text())
    dialects = ["native", "runai", "mib", "hami"]
    return [bytes([dialects.index(one["dialect"])]) + one["text"].encode() for one in vectors]


SEEDS = {
    "quantity": quantities(),
    "options": [b"14Gi\n00.25\n", b"70.5\n91g\n", b"GPUSHARE_LIMT=4Gi\n2ff\n4500ms\n5/run/x/api.sock\n6name"],
    "client": [
        WELCOME_WITH_PAGE + b"\xff" + b"\0" * 31 + ANSWER * 20,
        WELCOME_WITH_PAGE + b"\xff" + b"\0" * 31 + bytes([4, 9, 0]) + b"\1" * 32 + ANSWER * 20,
        bytes([FILES | PAGE | 16, 0]) + b"\0" * 32,
        bytes([2, 0, 0]),
    ],
}


def libfuzzer_is_there(directory: Path) -> bool:
    source = directory / "probe.c"
    source.write_text("int LLVMFuzzerTestOneInput(const char *d, long n) { return n > 0 && d[0] ? 0 : 0; }\n")
    command = ["clang", "-fsanitize=fuzzer", str(source), "-o", str(directory / "probe")]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("name", list(SOURCES))
def test_nothing_breaks_it(tmp_path, name):
    need("clang")
    if not libfuzzer_is_there(tmp_path):
        pytest.skip("this clang has no libFuzzer (libclang-rt-dev)")
    program, corpus = tmp_path / name, tmp_path / "corpus"
    sources = [str(SHIM / "preload" / f"{source}.c") for source in SOURCES[name]]
    build = ["clang", *FLAGS, *FUZZER, str(HERE / f"fuzz_{name}.c"), *sources, "-o", str(program)]
    built = subprocess.run(build, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    corpus.mkdir()
    for i, seed in enumerate(SEEDS[name]):
        (corpus / f"seed-{i}").write_bytes(seed)
    limits = [f"-max_total_time={SECONDS}", "-max_len=2048", "-timeout=10", "-print_final_stats=1"]
    command = [str(program), str(corpus), *limits, f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run(command, capture_output=True, errors="replace", text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    (runs,) = [line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line]
    assert int(runs) > 200
