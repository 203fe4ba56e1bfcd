"""The software driver's memory and the shim's hooks under the sanitizers; and sanitized programs under the shim.

The shim's core without hooks has such tests in tests/shim/test_shim_core.py.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from toolchain import PROGRAMS, SHIM, compile_program, need, package_libraries

ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREAD = ("-fsanitize=thread", "-Wno-tsan")
SANITIZERS = pytest.mark.parametrize("flags", [ADDRESS, THREAD], ids=["address", "thread"])
MEMORY = ("common_pool", "common_health", "common_settings", "cuda_arena", "cuda_share", "cuda_heap")

# These answer a sanitizer's own look-ups before it has started, so they cannot call into it.
DOORS = ("entry.c", "loader.c")


def run(program: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    # The thread sanitizer of gcc 12 needs addresses that are less random than new kernels make them.
    command = ["setarch", "-R", str(program)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)


def must_be_good(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr


@SANITIZERS
def test_heap_of_the_software_driver(tmp_path, flags):
    source = SHIM / "sim/cuda_heap.c"
    must_be_good(run(compile_program("gcc", tmp_path / "heap", PROGRAMS / "sim_heap.c", source, *flags)))


@SANITIZERS
def test_pool_of_the_software_driver(tmp_path, flags):
    sources = [SHIM / "sim" / f"{name}.c" for name in MEMORY]
    program = compile_program("gcc", tmp_path / "pool", PROGRAMS / "sim_pool.c", *sources, *flags)
    must_be_good(run(program, GPUSHARE_SIM=f"memory=512Mi,pool={tmp_path / 'memory'}"))


@SANITIZERS
def test_word_between_threads(tmp_path, flags):
    must_be_good(run(compile_program("gcc", tmp_path / "word", PROGRAMS / "core_word.c", *flags)))


@SANITIZERS
def test_hooks_of_all_families_with_threads(tmp_path, flags):
    doors = [SHIM / "preload" / name for name in DOORS]
    others = [path for path in sorted((SHIM / "preload").glob("*.c")) if path.name not in DOORS]
    plain = compile_program(
        "gcc", tmp_path / "doors.o", "-fPIC", "-fvisibility=hidden", "-r", *doors, *(SHIM / "preload").glob("*.S")
    )
    shared = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-Bsymbolic")
    shim = compile_program("gcc", tmp_path / "libgpushare.so", *others, plain, *shared, *flags)
    driver = package_libraries(tmp_path)["gpushare.sim.libcuda"]
    program = compile_program("gcc", tmp_path / "hooks", PROGRAMS / "hook_threads.c", shim, driver, *flags)
    done = run(
        program,
        LD_LIBRARY_PATH=str(driver.parent),
        GPUSHARE_DRIVER="sim",
        GPUSHARE_LOG="error",
        GPUSHARE_LIMIT="2Gi",
        GPUSHARE_SOCKET=str(tmp_path / "api.sock"),
        GPUSHARE_SIM=f"memory=16Gi,context=256Mi,pool={tmp_path / 'memory'}",
    )
    must_be_good(done)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("kind", ["thread", "address"])
def test_a_sanitized_program_starts_with_us_in_front(tmp_path, compiler, kind):
    """Its runtime looks functions up before it works: our dlsym must not call one that it is about to replace."""
    need(compiler)
    program = compile_program(compiler, tmp_path / "program", PROGRAMS / "core_word.c", f"-fsanitize={kind}")
    environ = {
        "LD_PRELOAD": str(package_libraries(tmp_path)["gpushare.lib.libgpushare"]),
        # gcc's address sanitizer wants to come first itself. It says so and starts nothing unless it is told not to.
        "ASAN_OPTIONS": "verify_asan_link_order=0",
        "PATH": os.environ["PATH"],
    }
    must_be_good(run(program, **environ))
