"""Other C libraries: older glibc, musl. What we name of a C library decides whether it lets us, and the program, in."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toolchain import PROGRAMS, ROOT, need, package_libraries

from gpushare import glibc
from gpushare.doctor import Surroundings
from gpushare.doctor.compiled import check_glibc

PRELOADED = "gpushare.lib.libgpushare"
BASELINE = (2, 31)
"""What the other libraries and wheels may need."""
OLDEST = (2, 17)
"""What the preload library may need: that of the oldest systems for which NVIDIA still has drivers."""

MUSL_PROGRAM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *driver = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), *self = dlopen(NULL, RTLD_NOW);
    int found = dlsym(RTLD_DEFAULT, "puts") != NULL && dlsym(RTLD_NEXT, "puts") != NULL && dlsym(self, "puts") != NULL;
    puts(found && driver == NULL ? "good" : "wrong");
    return 0;
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return package_libraries(tmp_path_factory.mktemp("libraries"))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged")


def versions_by_objdump(library: Path) -> set[tuple[int, ...]]:
    out = subprocess.run(["objdump", "-T", str(library)], capture_output=True, text=True, check=True).stdout
    return {tuple(map(int, found.split("."))) for found in re.findall(r"\*UND\*.*\(GLIBC_([\d.]+)\)", out)}


def test_the_preload_library_needs_an_old_glibc_only(built):
    """A newer one comes in by calling a function that has got a new version: loader.h is the way around."""
    assert glibc.needed(built[PRELOADED]) <= OLDEST


def test_all_libraries_work_with_the_glibc_that_wheels_are_named_for(built):
    for library in [*built.values(), ROOT / "gpushare" / "_layout.abi3.so"]:
        assert glibc.needed(library) <= BASELINE, library


def test_the_libraries_bring_what_an_old_glibc_keeps_elsewhere(built):
    """Before glibc 2.34 a program that is not linked with them has no pthread_create and no dlopen."""
    for name in ("gpushare.sim.libcuda", "gpushare.sim.libnvml", "gpushare.lib.libgpushare_late"):
        told = subprocess.run(["readelf", "-d", str(built[name])], capture_output=True, text=True, check=True).stdout
        assert {"libdl.so.2", "libpthread.so.0"} <= set(re.findall(r"\(NEEDED\).*\[(.*)\]", told)), name
    told = subprocess.run(["readelf", "-d", str(built[PRELOADED])], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"\(NEEDED\).*\[(.*)\]", told) == ["libc.so.6"]


def test_versions_are_read_as_objdump_reads_them(built):
    for library in built.values():
        assert glibc.needed(library) == max(versions_by_objdump(library), default=())
    assert glibc.here() >= glibc.needed(built[PRELOADED])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_library_is_an_error_that_doctor_can_say(built, scratch, data):
    path = built[PRELOADED]
    whole = bytearray(path.read_bytes())
    cut = data.draw(st.integers(0, 4096))
    for _ in range(data.draw(st.integers(0, 8))):
        whole[data.draw(st.integers(0, 4095))] = data.draw(st.integers(0, 255))
    target = scratch / "damaged.so"
    target.write_bytes(whole[:cut] if data.draw(st.booleans()) else whole)
    with contextlib.suppress(ValueError):
        glibc.needed(target)


def test_an_offset_beyond_any_file_is_damage(built, scratch):
    whole = bytearray(built[PRELOADED].read_bytes())
    whole[39] = 0x80  # the highest byte of where the program headers are
    target = scratch / "beyond.so"
    target.write_bytes(whole)
    with pytest.raises(ValueError, match="damaged"):
        glibc.needed(target)


def test_doctor_compares_with_the_host(monkeypatch):
    assert check_glibc(Surroundings()).state == "ok"
    monkeypatch.setattr(glibc, "here", lambda: (2, 5))
    finding = check_glibc(Surroundings())
    assert finding.state == "fail" and re.search(r"glibc 2\.5; .*libgpushare\.so needs 2\.", finding.detail)
    assert "libgpushare-late.so needs 2." in finding.detail
    monkeypatch.setattr(glibc, "here", lambda: None)
    finding = check_glibc(Surroundings())
    assert finding.state == "fail" and "not glibc" in finding.detail and "image" in (finding.hint or "")


def test_doctor_says_what_is_lost_where_only_the_late_library_is_too_new(monkeypatch):
    """As on glibc 2.31, where `gpushare run` works and gpushare.enable() does not, if it was built on a newer one."""
    real, oldest = glibc.needed, (2, 17)
    monkeypatch.setattr(glibc, "here", lambda: (2, 31))
    monkeypatch.setattr(glibc, "needed", lambda path: (2, 34) if "late.so" in path.name else min(real(path), oldest))
    finding = check_glibc(Surroundings())
    assert finding.state == "warn" and "gpushare run" in finding.hint
    assert finding.detail == "glibc 2.31; libgpushare-late.so needs 2.34: gpushare.enable() cannot work here"
    monkeypatch.setattr(glibc, "here", lambda: (2, 34))
    finding = check_glibc(Surroundings())
    assert finding.state == "ok" and "libgpushare-late.so needs 2.34" in finding.detail


@pytest.mark.parametrize("budget", [{}, {"GPUSHARE_LIMIT": "4Gi"}])
def test_programs_of_musl_run_as_if_we_were_not_there(built, tmp_path, budget):
    """They have no driver to be limited in, but `gpushare run` may start one on the way to a program that has."""
    need("musl-gcc")
    source = tmp_path / "program.c"
    source.write_text(MUSL_PROGRAM)
    for kind, flags in (("dynamic", []), ("static", ["-static"])):
        program = tmp_path / kind
        subprocess.run(["musl-gcc", str(source), "-o", str(program), *flags], check=True)
        environ = {"LD_PRELOAD": str(built[PRELOADED]), **budget}
        done = subprocess.run([str(program)], env=environ, capture_output=True, text=True, timeout=10)
        expected = "good\n" if kind == "dynamic" else done.stdout  # a static one has no look-ups to ask
        assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_in_a_container_with_no_other_files_than_those_of_musl_too(built, tmp_path):
    """An image of Alpine: no libc.so.6 is there that the library could find."""
    need("musl-gcc")
    loader = next(iter(Path("/lib").glob("ld-musl-*")))
    if os.geteuid() != 0:
        pytest.skip("needs root: chroot")
    root = tmp_path / "image"
    (root / "lib").mkdir(parents=True)
    shutil.copy(loader.resolve(), root / "lib" / loader.name)
    shutil.copy(built[PRELOADED], root / "libgpushare.so")
    (tmp_path / "program.c").write_text(MUSL_PROGRAM)
    subprocess.run(["musl-gcc", str(tmp_path / "program.c"), "-o", str(root / "program")], check=True)
    inside = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); "
    inside += "os.execve('/program', ['/program'], {'LD_PRELOAD': '/libgpushare.so', 'GPUSHARE_LIMIT': '4Gi'})"
    done = subprocess.run([sys.executable, "-c", inside, str(root)], capture_output=True, text=True, timeout=10)
    assert (done.returncode, done.stdout, done.stderr) == (0, "good\n", "")


def test_started_through_the_loader(built, tmp_path):
    """As some launchers do: the program is then an argument of the loader, and the kernel knows the loader only."""
    headers = subprocess.run(["readelf", "-l", "/bin/true"], capture_output=True, text=True, check=True).stdout
    (loader,) = re.findall(r"interpreter: (\S+)\]", headers)
    program = tmp_path / "lookups"
    subprocess.run(["gcc", str(PROGRAMS / "lookups.c"), "-rdynamic", "-o", str(program), "-ldl"], check=True)
    driver = built["gpushare.sim.libcuda"]
    command = [loader, "--library-path", str(driver.parent), "--preload", str(built[PRELOADED]), str(program)]
    environ = {
        "GPUSHARE_LIMIT": "4Gi",
        "GPUSHARE_DRIVER": "sim",
        "GPUSHARE_SIM": f"pool={tmp_path / 'pool'}",
    }
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=10)
    assert done.returncode == 0, done.stdout
    assert [Path(line).name for line in done.stdout.splitlines()] == ["libgpushare.so", "libcuda.so.1"]
