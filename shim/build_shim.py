"""Build step of the C parts: one script, two kinds of artefact, the same sources.

* `gpushare/_layout.abi3.so`: Python's view of the bytes that programs share (credit.h, wire.h), made by cffi
  from the very text that the C compiler reads, so that the two cannot drift.
* plain C libraries that no Python symbol may enter, because they are loaded into other people's programs: the
  preload library and the software driver. They are compiled with the C compiler directly: Python's own link
  flags would leak a RUNPATH into them.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cffi
from setuptools import Extension
from setuptools.command.build_ext import build_ext

SHIM = Path(__file__).resolve().parent
ROOT = SHIM.parent

C_FLAGS = [
    "-std=gnu11",
    "-O2",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
]
LINK_FLAGS = [
    "-shared",
    "-Wl,-z,defs",
    "-Wl,-z,nodelete",
    "-Wl,-z,relro",
    "-Wl,-Bsymbolic",
    "-pthread",
    # Where libdl is a library of its own (glibc before 2.34), programs that use the driver have it: NVIDIA's too.
    "-Wl,--push-state,--no-as-needed",
    "-ldl",
    "-Wl,--pop-state",
]

PATCHABLE = (
    "-fno-omit-frame-pointer",
    "-fno-shrink-wrap",
    "-fno-schedule-insns2",
    "-fcf-protection=none",
)
"""Each hook begins with the standard prologue: save the frame pointer, set it, save registers. Libraries that patch
functions in memory (UCX's memory hooks) move the first instructions elsewhere and can decode only such ones. The
software driver has it because the real one has. clang knows only some of these flags."""

OLD_GLIBC = ("libdl.so.2", "libpthread.so.0")
"""Where the functions of glibc_baseline.h are before glibc 2.34. Later these libraries are there too, and empty."""


@dataclass(frozen=True)
class Library:
    """A plain shared library: dotted name under which setuptools knows it, file name, sources, SONAME."""

    dotted: str
    file: str
    globs: tuple[str, ...]
    soname: str | None = None
    flags: tuple[str, ...] = ()
    without: tuple[str, ...] = ()  # of the sources
    needs: tuple[str, ...] = ()  # SONAMEs of libraries that are found at run time, in the same directory
    old_glibc: bool = False  # whether glibc_baseline.h chooses the versions of the C library's functions

    def sources(self) -> list[Path]:
        left_out = {SHIM / name for name in self.without}
        return sorted({path for glob in self.globs for path in SHIM.glob(glob)} - left_out)

    def command(self, output: Path, needed: Sequence[Path] = (), system: Sequence[Path] = ()) -> list[str]:
        soname = [f"-Wl,-soname,{self.soname}"] if self.soname else []
        compiler = shlex.split(os.environ.get("CC", "cc"))
        extra = shlex.split(os.environ.get("GPUSHARE_CFLAGS", ""))
        sources = [str(path) for path in self.sources()]
        return [
            *compiler,
            *C_FLAGS,
            *(flag for flag in self.flags if _accepts(tuple(compiler), flag)),
            *extra,
            f"-I{SHIM}",
            *(["-include", str(SHIM / "glibc_baseline.h")] if self.old_glibc else []),
            "-o",
            str(output),
            *sources,
            *soname,
            *LINK_FLAGS,
            *(["-Wl,--push-state,--no-as-needed", *map(str, system), "-Wl,--pop-state"] if system else []),
            # RPATH and not RUNPATH: it comes before LD_LIBRARY_PATH, and counts for what the library opens itself.
            *(["-Wl,--no-as-needed", "-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN"] if needed else []),
            *map(str, needed),
        ]

    def build(self, output: Path) -> None:
        output.parent.mkdir(parents=True, exist_ok=True)
        # Never write into a library that a running program has mapped: build beside it and rename.
        fresh = output.with_name(f".{output.name}.{os.getpid()}")
        with tempfile.TemporaryDirectory() as directory:
            stand_ins = [_stand_in(Path(directory), soname) for soname in self.needs]
            system = [_stand_in(Path(directory), soname) for soname in OLD_GLIBC if self.old_glibc]
            subprocess.run(self.command(fresh, stand_ins, system), check=True)
        fresh.rename(output)


@functools.cache
def _accepts(compiler: tuple[str, ...], flag: str) -> bool:
    command = [*compiler, "-Werror", flag, "-S", "-o", os.devnull, "-x", "c", os.devnull]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _stand_in(directory: Path, soname: str) -> Path:
    """An empty library for the linker, in the place of one that exists only at run time."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    path = directory / soname
    subprocess.run(
        [*compiler, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", "-o", str(path), "-x", "c", os.devnull], check=True
    )
    return path


LIBRARIES = (
    Library(
        "gpushare.lib.libgpushare",
        "gpushare/lib/libgpushare.so",
        ("preload/*.c", "preload/*.S"),
        "libgpushare.so",
        flags=PATCHABLE,
    ),
    # The same where jobs take turns in computing: launches have hooks, too.
    Library(
        "gpushare.lib.turns.libgpushare",
        "gpushare/lib/turns/libgpushare.so",
        ("preload/*.c", "preload/*.S"),
        "libgpushare.so",
        flags=(*PATCHABLE, "-DGS_TURNS"),
    ),
    # The shim for a process that runs already: shim/late/loader.c says how.
    Library(
        "gpushare.lib.libgpushare_late",
        "gpushare/lib/libgpushare-late.so",
        ("preload/*.c", "preload/trim_hook.S", "late/loader.c"),
        "libcuda.so.1",
        flags=PATCHABLE,
        without=("preload/loader.c",),
        needs=("libgpushare-real-cuda.so.1",),
        old_glibc=True,
    ),
    Library(
        "gpushare.lib.libgpushare_late_nvml",
        "gpushare/lib/libgpushare-late-nvml.so",
        ("late/nvml.c",),
        "libnvidia-ml.so.1",
        needs=("libcuda.so.1", "libgpushare-real-nvml.so.1"),
    ),
    Library(
        "gpushare.sim.libcuda",
        "gpushare/sim/libcuda.so.1",
        ("sim/cuda_*.c", "sim/common*.c"),
        "libcuda.so.1",
        flags=PATCHABLE,
        old_glibc=True,
    ),
    Library(
        "gpushare.sim.libnvml",
        "gpushare/sim/libnvidia-ml.so.1",
        ("sim/nvml*.c", "sim/common*.c"),
        "libnvidia-ml.so.1",
        old_glibc=True,
    ),
)
BY_NAME = {library.dotted: library for library in LIBRARIES}

FUNCTIONS = """
uint64_t gs_word_load(const struct gs_line *line);
uint32_t gs_word_used(uint64_t word);
uint32_t gs_word_credit(uint64_t word);
uint32_t gs_units(uint64_t bytes);
int gs_reserve(struct gs_line *line, uint32_t units);
void gs_release(struct gs_line *line, uint32_t units);
void gs_grant(struct gs_line *line, uint32_t units);
uint32_t gs_revoke(struct gs_line *line, uint32_t units);
uint32_t gs_ask_trim(struct gs_page *page);
void gs_turn_gate(struct gs_line *line, int closed);
uint32_t gs_say_turn(struct gs_line *line, uint32_t clear, uint32_t set);
void gs_wake_trimmer(struct gs_page *page);
void *gs_page_map(int fd);
void gs_page_unmap(void *page);
int gs_page_broken(const void *page);
uint32_t gs_pages_broken(void);
int gs_page_is_ours(int fd, uint64_t device);
int gs_receive_frames(const int *sockets, int count, struct gs_frame *frames, int *sizes, int *descriptors,
                      int *descriptor_count);
int gs_send_frames(const int *sockets, int count, const struct gs_frame *frames, int *errors);
#define GS_MOST_DESCRIPTORS ...
"""


def declarations(header: str) -> str:
    """The region of a header that cffi reads: cffi knows no inline functions and no static assertions."""
    text = (SHIM / header).read_text()
    region = re.search(r"/\* cdef begin \*/(.*?)/\* cdef end \*/", text, re.DOTALL)
    if region is None:
        raise RuntimeError(f"{header} has no cdef region")
    return region.group(1)


def layout_builder() -> cffi.FFI:
    """The cffi builder of gpushare._layout."""
    builder = cffi.FFI()
    builder.cdef(declarations("credit.h") + declarations("wire.h") + FUNCTIONS)
    builder.set_source(
        "gpushare._layout",
        '#include "credit.h"\n#include "guard.h"\n#include "wire.h"\n#include "ask_trim.h"\n#include "packets.h"\n'
        "_Static_assert(SIZEOF_VOID_P == sizeof(void *) && SIZEOF_LONG == sizeof(long) &&\n"
        "    SIZEOF_SIZE_T == sizeof(size_t) && SIZEOF_WCHAR_T == sizeof(wchar_t),\n"
        '    "the headers of Python are for another machine");\n',
        define_macros=[("_GNU_SOURCE", None)],
        include_dirs=[str(SHIM)],
        extra_compile_args=["-O2"],
    )
    return builder


def extensions() -> list[Extension]:
    """What setup.py declares; the sources of the plain libraries are known to BuildShim, not to setuptools."""
    layout = Extension("gpushare._layout", sources=[], py_limited_api=True)
    return [layout, *(Extension(library.dotted, sources=[]) for library in LIBRARIES)]


class BuildShim(build_ext):
    """build_ext that compiles the plain libraries with the C compiler and the cffi module as usual."""

    def get_ext_filename(self, fullname: str) -> str:
        library = BY_NAME.get(fullname)
        return library.file if library else super().get_ext_filename(fullname)

    def build_extension(self, ext: Extension) -> None:
        library = BY_NAME.get(ext.name)
        if library is not None:
            library.build(Path(self.get_ext_fullpath(ext.name)).resolve())
            return
        made = layout_builder().distutils_extension(self.build_temp)
        ext.sources, ext.include_dirs = made.sources, made.include_dirs
        ext.extra_compile_args, ext.define_macros = made.extra_compile_args, made.define_macros
        # Not the flags that this Python was built with: they may be for another processor, or name paths of a machine.
        compiler = shlex.split(os.environ.get("CC", "cc"))
        self.compiler.set_executables(
            compiler_so=[*compiler, "-fPIC", "-g", "-pthread"], linker_so=[*compiler, "-shared", "-pthread"]
        )
        ext.depends = [str(SHIM / name) for name in ("credit.h", "guard.h", "packets.h", "wire.h")]
        super().build_extension(ext)

    def copy_extensions_to_source(self) -> None:
        for library in LIBRARIES:
            (ROOT / library.file).parent.mkdir(exist_ok=True)
        super().copy_extensions_to_source()

    def get_ext_fullpath(self, ext_name: str) -> str:
        library = BY_NAME.get(ext_name)
        if library is None:
            return super().get_ext_fullpath(ext_name)
        return str(Path(self.build_lib) / library.file)
