"""How programs find the driver, and that they find us on each of those ways and nowhere else."""

from __future__ import annotations

import re
import subprocess

import pytest
from shim_tree import SHIM, exported

import functions_def

LIMIT = {"GPUSHARE_LIMIT": "4Gi"}
GIB = 2**30


def rows() -> list[functions_def.Row]:
    return [row for row in functions_def.rows() if row.rule]


def hooks() -> set[str]:
    cuda = {row.symbol for row in rows() if row.rule == "HOOK"}
    return cuda | set(re.findall(r"^NVML_FN\((\w+), HOOK\)", (SHIM / "nvml.def").read_text(), re.M))


def test_exports_are_the_hooks_and_dlsym_and_nothing_else(libraries):
    assert set(exported(libraries.shim)) == hooks() | {"dlsym", "dlvsym", "dlmopen"}
    assert len(hooks()) > 50


def test_nothing_but_libc_and_no_runpath(libraries):
    out = subprocess.run(["readelf", "-d", str(libraries.shim)], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"NEEDED.*\[(.*)\]", out)) <= {
        "libc.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    }
    assert "RUNPATH" not in out and "RPATH" not in out
    assert "NODELETE" in out and "SYMBOLIC" in out
    undefined = subprocess.run(
        ["nm", "-D", "--undefined-only", str(libraries.shim)], capture_output=True, text=True, check=True
    )
    assert not re.search(
        r"\bPy|\bmalloc\b|\bfree\b|\bexit\b|\babort\b|\bsigaction\b|\bumask\b|printf", undefined.stdout
    )


def test_no_constructor(libraries):
    out = subprocess.run(
        ["readelf", "-S", "-W", str(libraries.shim)], capture_output=True, text=True, check=True
    ).stdout
    # gcc's own start-up code has one entry (frame_dummy); ours would be a second one.
    (size,) = re.findall(r"\.init_array\s+INIT_ARRAY\s+\S+\s+\S+\s+(\S+)", out)
    assert int(size, 16) == 8


@pytest.mark.parametrize("budget", [{}, LIMIT])
def test_works_and_is_silent_in_any_program(host, budget):
    child = host.run(["/bin/true"], LD_BIND_NOW="1", **budget)
    assert (child.code, child.out, child.err) == (0, "", "")
    child = host.run(["/bin/ls", "/"], LD_BIND_NOW="1", **budget)
    assert child.code == 0 and child.err == ""


def test_a_program_without_a_gpu_sees_no_system_call_of_ours(host, tmp_path):
    """What the loader does with and without us differs only in loading the file itself."""

    def calls(**more):
        child = host.run(["/bin/sh", "-c", "umask; ulimit -n; ls /proc/self/fd | wc -l"], **more)
        assert child.code == 0
        return child.out

    assert calls(**LIMIT) == calls(LD_PRELOAD=None)


def test_lookups(host, compile_c):
    program = compile_c("lookups.c", "-rdynamic")
    child = host.run([program], **LIMIT)
    assert child.code == 0, child.out
    hook, plain = child.out.splitlines()
    assert hook == str(host.libraries.shim)
    assert plain.endswith("libcuda.so.1")


def test_inert_without_a_budget(host, compile_c):
    child = host.run([compile_c("lookups.c", "-rdynamic"), "inert"])
    assert child.code == 0, child.out
    assert all(line.endswith("libcuda.so.1") for line in child.out.splitlines())
    said = host.python(
        """
        cuda = Cuda().start()
        cuda.must_alloc(8 * GiB)
        say([cuda.info()[1], cuda.total(), Nvml().memory().total])
        """
    )
    assert said.err == ""
    assert len(set(said.said)) == 1 and said.said[0] > 15 * GIB


def test_inert_programs_that_are_linked(host, compile_c):
    program = compile_c("linked.c", f"-L{host.libraries.driver_dir}", "-lcuda")
    said = host.run([program]).said
    assert said[:4] == [0, 0, 0, 0] and said[4] > 15 * GIB


def test_inert_makes_no_socket(host, daemon):
    host.python("Cuda().start().must_alloc(GiB)")
    assert daemon.hellos == []


def test_linked_programs(host, compile_c):
    program = compile_c("linked.c", f"-L{host.libraries.driver_dir}", "-lcuda")
    assert host.run([program], **LIMIT).said == [0, 0, 0, 2, 4 * GIB, 2**21]
    assert host.run([program], LD_BIND_NOW="1", **LIMIT).said == [0, 0, 0, 2, 4 * GIB, 2**21]


def test_linked_but_no_driver(host, compile_c, tmp_path):
    """With us preloaded the program starts even without a driver; the hooks then say that it is not there."""
    program = compile_c("linked.c", f"-L{host.libraries.driver_dir}", "-lcuda")
    child = host.run([program], LD_LIBRARY_PATH=str(tmp_path), **LIMIT)
    assert child.code == 127, "the loader says it: not we"


@pytest.mark.parametrize("level", ["-O0", "-O2"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_a_second_interposer(host, compile_c, level, order):
    wrapper = compile_c("interposer.c", "-shared", "-fPIC", level, target=f"interposer{level}.so")
    program = compile_c("interposed.c", f"-L{host.libraries.driver_dir}", "-lcuda", "-rdynamic")
    shim = str(host.libraries.shim)
    preload = f"{wrapper}:{shim}" if order == "before" else f"{shim}:{wrapper}"
    child = host.run([program], LD_PRELOAD=preload, **LIMIT)
    assert child.code == 0, child.err
    assert child.said == [1, 2, 0, 4 * GIB]
    assert ("interposer: cuMemGetInfo" in child.err) == (order == "before")


SMALL_AND_LARGE = """
say([cuda.must_alloc(MiB) is None, cuda.alloc(5 * GiB)[0], cuda.info()[1]])
"""


@pytest.mark.parametrize("how", ["dlsym", "address"])
@pytest.mark.parametrize("library", ["libcuda.so.1", "libcuda.so", "path"])
def test_by_name_and_by_path(host, how, library):
    name = str(host.libraries.driver_dir / "libcuda.so.1") if library == "path" else library
    path = {"LD_LIBRARY_PATH": None} if library == "path" else {}
    said = host.python(f"cuda = Cuda({how!r}, {name!r}).start()" + SMALL_AND_LARGE, **LIMIT, **path).said
    assert said == [False, 2, 4 * GIB]


@pytest.mark.parametrize("resolver", ["v1", "v2"])
def test_cugetprocaddress_gives_our_hooks_for_all_rows(host, resolver):
    """For each base name, version and stream flag: what we answer is the hook of the symbol that the driver means."""
    wanted = [(row[0], row[1], int(row[2]), row[3]) for row in rows() if row[5] == "HOOK"]
    child = host.python(
        f"""
        cuda = Cuda()
        cuda.cuInit(0)
        here = ctypes.CDLL(None)
        class Info(ctypes.Structure):
            _fields_ = [("file", ctypes.c_char_p), ("base", c_void_p), ("name", ctypes.c_char_p), ("at", c_void_p)]
        def where(address):
            info = Info()
            assert here.dladdr(c_void_p(address), byref(info))
            return [info.file.decode().rsplit("/")[-1], (info.name or b"").decode()]
        answers = []
        for base, symbol, since, stream in {wanted!r}:
            if not hasattr(cuda.lib, base):
                continue  # the software driver lacks it
            flags = PER_THREAD if stream == "PER_THREAD" else LEGACY_STREAM
            address = cuda.address(base, since, flags, {resolver!r})
            answers.append([symbol, *where(address)])
        say(answers)
        """,
        **LIMIT,
        GPUSHARE_SIM=host.environment()["GPUSHARE_SIM"] + ",driver_version=13050",
    )
    assert len(child.said) > 50
    for symbol, file, name in child.said:
        assert (file, name) == ("libgpushare.so", symbol)


def test_cugetprocaddress_leaves_errors_alone(host):
    said = host.python(
        """
        cuda = Cuda()
        cuda.cuInit(0)
        pointer, status = c_void_p(), c_int(9)
        get = cuda.lib.cuGetProcAddress_v2
        codes = [get(b"cuNoSuch", byref(pointer), 13000, c_uint64(0), byref(status)), pointer.value, status.value]
        codes.append(get(b"cuMemAlloc", byref(pointer), 13000, c_uint64(0), None))
        codes.append(get(b"cuMemAlloc", None, 13000, c_uint64(0), None))
        say([*codes, cuda.lib.cuGetProcAddress(b"cuNoSuch", byref(pointer), 13000, c_uint64(0))])
        """,
        **LIMIT,
    ).said
    assert said[:3] == [0, None, 1] and said[3] == 0 and said[4] == 1 and said[5] == 500


def test_an_unknown_variant_of_a_known_function_is_noted_once(host, tmp_path, compile_c):
    """A driver of the future: it has a cuMemAlloc_v3, which nobody here can account for."""
    future = compile_c(
        "future_driver.c", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1", target="libcuda.so.1"
    )
    script = """
        lib = ctypes.CDLL("libcuda.so.1")
        for _ in range(3):
            lib["cuMemAlloc_v3"]
        lib["cuFutureThing"]
        say(lib["cuMemAlloc_v3"](None))
    """
    child = host.python(script, LD_LIBRARY_PATH=str(future.parent), GPUSHARE_LOG="info", **LIMIT)
    assert child.said == 33
    assert child.err.count("cuMemAlloc_v3") == 1 and "cuFutureThing" not in child.err
    assert host.python(script, LD_LIBRARY_PATH=str(future.parent), **LIMIT).err == ""


def test_every_rule_is_known():
    rules = set(re.findall(r"^ \*\s+(?:rule\s+)?(HOOK|TURN|PASS_\w+)\s", (SHIM / "functions.def").read_text(), re.M))
    assert {row[5] for row in rows()} <= rules
