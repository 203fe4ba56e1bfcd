"""Each way in which programs find the driver (docs/loaders.md), and copies of it: the limit holds, or it is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

LIMIT = {"GPUSHARE_LIMIT": "4Gi"}
HELD = [0, 0, 2, 0]
"""What the calls of ways.c answer under the limit."""
PAST = "is another copy of the driver in this process"
ANSWERED = "look-ups in it are answered from"


@pytest.fixture(scope="module")
def ways(compile_c) -> Path:
    return compile_c("ways.c")


@pytest.fixture
def copied(host, tmp_path) -> Path:
    """The driver once more, in a file of another name."""
    return Path(shutil.copy(host.libraries.driver_dir / "libcuda.so.1", tmp_path / "libcuda_second.so"))


WAYS = ["dlsym", "deepbind", "global", "self", "address1", "address2", "address2ptds", "chained", "delayed"]


@pytest.mark.parametrize("way", WAYS)
def test_a_way(host, ways, way):
    child = host.run([ways, way], **LIMIT)
    assert child.code == 0, child.out
    assert child.said == [*HELD, str(host.libraries.shim)]
    assert "copy of the driver" not in child.err


def test_by_an_absolute_path(host, ways):
    child = host.run([ways, "file", host.libraries.driver_dir / "libcuda.so.1"], LD_LIBRARY_PATH=None, **LIMIT)
    assert child.said == [*HELD, str(host.libraries.shim)]
    assert "copy of the driver" not in child.err


def test_linked(host, compile_c):
    program = compile_c("ways.c", "-DLINKED", f"-L{host.libraries.driver_dir}", "-lcuda", target="ways_linked")
    assert host.run([program, "linked"], **LIMIT).said[:4] == HELD
    assert host.run([program, "linked"], LD_BIND_NOW="1", **LIMIT).said[:4] == HELD


def test_by_a_versioned_name(host, ways, compile_c):
    """The driver of the tests has no versions, so another one."""
    versioned = compile_c(
        "future_driver.c",
        "-shared",
        "-fPIC",
        "-Wl,-Bsymbolic",
        "-Wl,-soname,libcuda.so.1",
        "-Wl,--default-symver",
        target="versioned_libcuda.so.1",
    )
    directory = host.directory / "versioned"
    directory.mkdir()
    shutil.copy(versioned, directory / "libcuda.so.1")
    child = host.run([ways, "dlvsym"], LD_LIBRARY_PATH=str(directory), **LIMIT)
    assert child.said == str(host.libraries.shim), child.out


# ---- copies ----------------------------------------------------------------------------------------


def test_a_second_copy_is_answered_from_the_first(host, ways, copied):
    child = host.run([ways, "used", copied], **LIMIT)
    assert child.code == 0, child.out
    assert child.said == [*HELD, str(host.libraries.shim)]
    (said,) = [line for line in child.err.splitlines() if "copy of the driver" in line]
    driver = host.libraries.driver_dir / "libcuda.so.1"
    assert said == (
        f"gpushare: {copied} is another copy of the driver: look-ups in it are answered from {driver}, "
        "on which the limit holds"
    )


def test_a_copy_that_is_used_first_is_the_driver(host, ways, copied):
    """The other is loaded, and somebody may be linked to it: that is said when the GPU is first used."""
    child = host.run([ways, "both", copied], **LIMIT)
    assert child.said == [*HELD, str(host.libraries.shim)]
    assert child.err.count(PAST) == 1 and ANSWERED not in child.err
    assert f"gpushare: {(host.libraries.driver_dir / 'libcuda.so.1').resolve()} {PAST}" in child.err


def test_a_copy_alone_is_the_driver(host, ways, copied):
    child = host.run([ways, "file", copied], LD_LIBRARY_PATH=None, **LIMIT)
    assert child.said == [*HELD, str(host.libraries.shim)]
    assert "copy of the driver" not in child.err


@pytest.mark.parametrize("where", ["name", "path", "copy"])
def test_a_driver_in_another_namespace_is_answered_from_ours(host, ways, copied, where):
    driver = {"name": "libcuda.so.1", "path": host.libraries.driver_dir / "libcuda.so.1", "copy": copied}[where]
    child = host.run([ways, "namespace", driver], **LIMIT)
    assert child.code == 0, child.out
    assert child.said == [*HELD, str(host.libraries.shim)]
    assert child.err.count(ANSWERED) == 1


PLUGIN = """
#include <dlfcn.h>
int hold(void) {
    unsigned long long pointer;
    void *context, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    ((int (*)())dlsym(driver, "cuInit"))(0);
    ((int (*)())dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0);
    ((int (*)())dlsym(driver, "cuCtxSetCurrent"))(context);
    return ((int (*)())dlsym(driver, "cuMemAlloc_v2"))(&pointer, 5ul << 30);
}
"""
HOLDER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
    void *plugin = dlmopen(LM_ID_NEWLM, argv[argc - 1], RTLD_NOW);
    int (*hold)(void) = (int (*)(void))dlsym(plugin, "hold");
    int result = hold();
    usleep(200000);
    dlsym(plugin, "hold");
    dlsym(plugin, "hold");
    printf("%d\\n", result);
    return 0;
}
"""


@pytest.mark.parametrize("linked", [True, False])
def test_a_plugin_in_a_namespace_with_the_driver_is_said(host, compile_c, tmp_path, linked):
    """What is loaded there finds the C library's own dlsym: we cannot limit it, so nobody should think that we do."""
    for name, text in (("plugin", PLUGIN), ("holds", HOLDER)):
        (tmp_path / f"{name}.c").write_text(text)
    link = ["-Wl,--no-as-needed", f"-L{host.libraries.driver_dir}", "-lcuda"] if linked else []
    plugin = compile_c(tmp_path / "plugin.c", "-shared", "-fPIC", "-w", *link, target=f"plugin{linked}.so")
    child = host.run([compile_c(tmp_path / "holds.c"), plugin], **LIMIT)
    assert child.said == 0, "5 GiB under a limit of 4 GiB"
    assert child.err.count(PAST) == 1


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("libcuda.so", True),
        ("libcuda.so.535.54.03", True),
        ("with space/libcuda.so.1", True),
        ("libcuda.sox/libother.so", False),
        ("libcuda.static.so", False),
        ("libcudart.so.12", False),
        ("xlibcuda.so.1", False),
        ("libcuda", False),
    ],
)
def test_which_files_are_taken_for_another_copy_of_the_driver(host, compile_c, tmp_path, name, is_one):
    """By the name alone: what is in them nobody can know."""
    (tmp_path / "nothing.c").write_text("int nothing;\n")
    library = tmp_path / name
    library.parent.mkdir(exist_ok=True)
    shutil.copy(compile_c(tmp_path / "nothing.c", "-shared", "-fPIC", target="nothing.so"), library)
    err = host.python(f"ctypes.CDLL({str(library)!r}); Cuda().start()", **LIMIT).err
    assert err.count(PAST) == is_one
    assert not is_one or f"gpushare: {library} {PAST}" in err


LOOKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int cuMemAlloc_v2(unsigned long long *, unsigned long) __attribute__((weak)); /* ours: no driver is linked */
int main(int argc, char **argv) {
    unsigned long long pointer;
    void *looks = dlopen(argv[argc - 1], RTLD_NOW | RTLD_GLOBAL);
    int code = cuMemAlloc_v2(&pointer, 16);
    dlclose(looks);
    printf("[%d, %d]\\n", code, dlopen(argv[argc - 1], RTLD_NOW | RTLD_NOLOAD) != NULL);
    return 0;
}
"""


def test_a_library_that_only_looks_like_a_driver_is_let_go(host, compile_c, tmp_path):
    """The library for the driver is looked for among what is loaded. What is none stays the program's to close."""
    (tmp_path / "looks.c").write_text("int cuMemAlloc_v2(void) { return 999; }\n")
    (tmp_path / "closes.c").write_text(LOOKS)
    library = compile_c(tmp_path / "looks.c", "-shared", "-fPIC", "-w", target="looks.so")
    child = host.run([compile_c(tmp_path / "closes.c", "-w"), library], **LIMIT)
    assert child.said == [3, 0], "the real driver says that it was not initialized, and the library is unloaded"


@pytest.mark.parametrize("way", ["used", "namespace"])
def test_copies_are_left_alone_without_a_budget(host, ways, copied, way):
    child = host.run([ways, way, copied])
    assert child.said == [0, 0, 0, 0, str(copied)]
    assert child.err == ""


# ---- cuGetProcAddress beside dlsym ------------------------------------------------------------------


def test_cugetprocaddress_that_disagrees_with_dlsym(host, compile_c):
    """Another address of the same function has our hook; a function that is not ours to know is said."""
    flags = ("-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1")
    directory = host.directory / "two_faced"
    directory.mkdir()
    shutil.copy(compile_c("two_faced_driver.c", *flags, target="two_faced.so"), directory / "libcuda.so.1")
    script = """
        import time
        cuda = Cuda()
        here = ctypes.CDLL(None)
        class Info(ctypes.Structure):
            _fields_ = [("file", ctypes.c_char_p), ("base", c_void_p), ("name", ctypes.c_char_p), ("at", c_void_p)]
        def name(address):
            info = Info()
            assert here.dladdr(c_void_p(address), byref(info))
            return [info.file.decode().rsplit("/")[-1], (info.name or b"").decode()]
        first = [name(cuda.address(base)) for base in ("cuMemAlloc", "cuMemFree", "cuInit")]
        time.sleep(1.05)  # a message of the same kind may be said again after a second
        say([*first, name(cuda.address("cuMemAlloc"))])
        """
    child = host.python(script, LD_LIBRARY_PATH=str(directory), **LIMIT)
    alloc, free, init, again = child.said
    assert alloc == again == ["libgpushare.so", "cuMemAlloc_v2"]
    assert free == ["libcuda.so.1", "cuMemFree_private"]
    assert init == ["libcuda.so.1", "cuInit"]
    (said,) = [line for line in child.err.splitlines() if line.startswith("gpushare: ")]
    assert "cuGetProcAddress has another cuMemFree than its library" in said
    assert host.python(script, LD_LIBRARY_PATH=str(directory)).err == ""


def test_the_software_driver_agrees_with_itself(host, ways):
    for way in ("address1", "address2", "address2ptds", "chained"):
        assert "than its library" not in host.run([ways, way], **LIMIT).err
