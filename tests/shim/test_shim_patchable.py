"""Hooks that other libraries patch in memory.

UCX and others replace the first bytes of the driver's functions by a jump, and run the instructions that were there
from a copy. They find our hooks where they look for the driver's functions, so ours must begin as a compiler without
clever optimisations writes it.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import wheels
from shim_tree import exported

JUMP = 5  # bytes of a near jump: what such a library overwrites at least
EXECUTABLE, LOAD = 1, 1
X86_64, AARCH64 = 62, 183
ALLOCATED, FREED = 1 << 20, 1 << 21  # of UCX's events
PUSH_FRAME_POINTER, SET_FRAME_POINTER = b"\x55", b"\x48\x89\xe5"


def hooks(library: Path) -> dict[str, int]:
    return {name: at for name, at in exported(library).items() if name.startswith(("cu", "nvml"))}


def code_at(data: bytes, address: int, size: int) -> bytes:
    """The bytes that will be at an address of a library, read from its file."""
    (table,) = struct.unpack_from("<Q", data, 32)
    entry, count = struct.unpack_from("<HH", data, 54)
    for index in range(count):
        kind, flags, offset, start, _, length = struct.unpack_from("<IIQQQQ", data, table + index * entry)
        if kind == LOAD and flags & EXECUTABLE and start <= address < start + length:
            return data[offset + address - start :][:size]
    raise AssertionError(f"nothing is loaded at {address:#x}")


def x86_instruction(code: bytes) -> int:
    """The length of an instruction that may follow in a prologue; 0: another one."""
    if code[0] & 0xF8 == 0x50:
        return 1  # push of a register
    if code[0] == 0x41 and code[1] & 0xF8 == 0x50:
        return 2  # push of one of the upper eight
    return {b"\x48\x83\xec": 4, b"\x48\x81\xec": 7}.get(code[:3], 0)  # room on the stack


def has_standard_prologue(code: bytes, machine: int) -> bool:
    if machine == AARCH64:  # one instruction: stp x29, x30, [sp, #-N]! or, for a large frame, sub sp, sp, #N
        (first,) = struct.unpack_from("<I", code)
        return first & 0xFFC07FFF == 0xA9807BFD or first & 0xFF8003FF == 0xD10003FF
    if not code.startswith(PUSH_FRAME_POINTER + SET_FRAME_POINTER):
        return False
    at = len(PUSH_FRAME_POINTER + SET_FRAME_POINTER)
    while at < JUMP and x86_instruction(code[at:]):
        at += x86_instruction(code[at:])
    return at >= JUMP


def irregular(library: Path) -> list[str]:
    data = library.read_bytes()
    (machine,) = struct.unpack_from("<H", data, 18)
    found = hooks(library)
    assert len(found) > 100
    return [name for name, at in found.items() if not has_standard_prologue(code_at(data, at, 16), machine)]


def test_the_check_can_fail():
    good = bytes.fromhex("55 48 89 e5 41 56 41 55 90 90 90 90")
    assert has_standard_prologue(good, X86_64)
    for bad in (
        "45 89 c6",
        "41 56 41 55 55 48 89 e5",
        "f3 0f 1e fa 55 48 89 e5 53",
        "55 48 89 e5 48 8d 05 5d 73 04 00",
    ):
        assert not has_standard_prologue(bytes.fromhex(bad) + bytes(16), X86_64)
    assert has_standard_prologue(bytes.fromhex("fd 7b be a9"), AARCH64)
    assert not has_standard_prologue(bytes.fromhex("01 00 00 90"), AARCH64)


def test_every_hook_has_a_standard_prologue(libraries):
    assert irregular(libraries.shim) == []


def test_so_have_those_of_the_library_for_running_processes(libraries):
    assert irregular(libraries.late) == []


def test_ucx_sends_its_events_and_the_limit_holds(host, tmp_path_factory):
    """UCX patches our hooks, since it finds them under the driver's names; each of its calls then comes to us."""
    scratch = tmp_path_factory.mktemp("ucx")
    for library in wheels.need("libucx_cu*", "libucx/lib/libucm.so.0", scratch):
        child = host.run(
            [sys.executable, "-m", "ucx_hooks", library.parent, *hooks(host.libraries.shim)],
            LD_LIBRARY_PATH=f"{host.libraries.driver_dir}:{host.libraries.shim.parent}:{library.parent}",
            GPUSHARE_LIMIT="4Gi",
        )
        assert child.code == 0, child.err
        immovable, (status, calls, events, used) = child.said
        assert immovable == []
        assert status == 0
        assert calls == [0, 0, 0, 0, 0, 0, 2]
        assert [size for kind, size in events if kind == ALLOCATED] == [3, 8, 5]
        assert len([kind for kind, _ in events if kind == FREED]) == 3
        assert used == 0
