"""functions.def against the driver's own headers: nothing that a program can call is without a decision."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from shim_tree import ROOT

import functions_def

HEADERS = ("cuda", "cudaGL", "cudaEGL", "cudaVDPAU", "cudaProfiler")
# Not of the driver on Linux: an inline function of cuda.h's, and one for Windows.
NOT_HERE = {"cuGetProcAddress_v2_ptsz", "cuWGLGetDevice"}
TAKES_OR_TELLS = re.compile(
    r"Alloc|Mem(Create|Release|Map|Unmap|Free|Pool|GetInfo|Import|Export|Retain)|Malloc|Array(3D)?Create|ArrayDestroy|"
    r"MipmappedArray(Create|Destroy)|Ctx(Create|Destroy|Reset)|PrimaryCtxRe|Ipc|ExternalMemory|TotalMem|Multicast|"
    r"GraphMem(Trim|Attribute)|Graph(Launch|Upload|Instantiate)|Checkpoint|MapResources|MapBufferObject|RegisterBuffer"
)


def table() -> dict[str, tuple[str, ...]]:
    """symbol -> base, symbol, since, stream, and for those with a decision family and rule."""
    return {row.symbol: tuple(str(part) for part in row if part != "") for row in functions_def.rows()}


def named() -> set[str]:
    lines = (ROOT / "tests" / "vectors" / "cuda_symbols.txt").read_text().splitlines()
    return {line for line in lines if not line.startswith("#")}


def include() -> Path | None:
    for directory in (*sorted(Path("/usr/local").glob("cuda*/include")), Path("/usr/include")):
        header = directory / "cuda.h"
        if header.exists() and "#define CUDA_VERSION 13050" in header.read_text():
            return directory
    return None


def test_the_list_has_every_function_that_cuda_13_5_declares():
    assert set(table()) == named()
    assert len(named()) == 723


@pytest.mark.skipif(include() is None, reason="the headers of CUDA 13.5 are not here")
def test_the_names_are_those_of_the_headers():
    directory, declared = include() or Path(), set()
    for header in HEADERS:
        if not (directory / f"{header}.h").exists():
            pytest.skip(f"no {header}.h beside cuda.h")
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", (directory / f"{header}.h").read_text(), flags=re.S)
        declared |= set(re.findall(r"CUresult\s+CUDAAPI\s+(cu\w+)\s*\(", text))
        for twin, symbol in re.findall(r"#define\s+cu\w+\s+(?:__CUDA_API_(PT[SD][SZ])\()?(cu\w+)", text):
            declared |= {symbol, f"{symbol}_{twin.lower()}"} if twin else {symbol}
    assert declared - NOT_HERE == named()


@pytest.mark.skipif(include() is None, reason="the headers of CUDA 13.5 are not here")
def test_versions_and_variants_are_those_of_the_typedefs():
    """The version of each ABI stands in the name of its function type, PFN_cuMemAlloc_v3020."""
    directory, declared = include() or Path(), set()
    for header in HEADERS:
        path = directory / f"{header}Typedefs.h"
        if not path.exists():
            pytest.skip(f"no {path.name} beside cuda.h")
        found = re.findall(r"\*PFN_(cu\w+?)_v(\d+)(_pt[sd][sz])?\)\(", path.read_text())
        declared |= {(base, int(since), bool(twin)) for base, since, twin in found if base not in NOT_HERE}
    listed = {(row[0], int(row[2]), row[3] == "PER_THREAD") for row in table().values()}
    assert declared == listed


def test_whatever_takes_gives_back_or_tells_of_memory_has_a_decision():
    """By its name alone: a function that sounds of memory is not among the rest."""
    undecided = {symbol for symbol, row in table().items() if len(row) == 4 and TAKES_OR_TELLS.search(symbol)}
    assert undecided == set(), sorted(undecided)


def test_all_variants_of_a_hooked_function_are_hooked():
    """Else a program with another default stream, or compiled for another CUDA, would go past us."""
    rules: dict[str, set[str]] = {}
    for row in table().values():
        rules.setdefault(row[0], set()).add(row[5] if len(row) > 4 else "OTHER")
    assert {base: found for base, found in rules.items() if "HOOK" in found and len(found) > 1} == {}


def test_a_newer_version_from_cugetprocaddress_is_noted_once(host, compile_c):
    """A driver of the future answers a hooked name with a function that nobody here knows: that is what counts."""
    future = compile_c(
        "future_driver.c", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1", target="libcuda.so.1"
    )
    script = """
        lib = ctypes.CDLL("libcuda.so.1")
        pointer, status = c_void_p(), c_int()
        for _ in range(3):
            for name in (b"cuMemAlloc", b"cuFutureThing"):
                assert lib.cuGetProcAddress_v2(name, byref(pointer), 14000, c_uint64(0), byref(status)) == 0
        assert lib.cuGetProcAddress_v2(b"cuMemAlloc", byref(pointer), 14000, c_uint64(0), byref(status)) == 0
        say(ctypes.CFUNCTYPE(c_int, c_void_p)(pointer.value)(None))
    """
    libraries = {"LD_LIBRARY_PATH": str(future.parent), "GPUSHARE_LIMIT": "4Gi"}
    child = host.python(script, GPUSHARE_LOG="info", **libraries)
    assert child.said == 33
    assert child.err.count("cuMemAlloc is") == 1 and "cuFutureThing" not in child.err
    assert host.python(script, **libraries).err == ""
