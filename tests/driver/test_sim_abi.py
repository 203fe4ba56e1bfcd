"""Our own declarations against NVIDIA's header, where there is one."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "shim" / "cuda_abi.h"
PLACES = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda", "/usr/local/cuda-13.0", "/opt/cuda"]
HEADERS = [Path(place) / "include" / "cuda.h" for place in PLACES if place]
HEADER = next((path for path in HEADERS if path.exists()), None)

pytestmark = pytest.mark.skipif(HEADER is None, reason="no cuda.h on this machine")

# Types that we declare as plain ints, and handles, have nothing to compare but their size.
PLAIN = ["CUdevice", "CUdeviceptr", "CUmemGenericAllocationHandle", "CUjit_option", "CUjitInputType", "CUresult"]


def structures(text: str) -> dict[str, list[str]]:
    """Our structures with the fields that stand directly in them."""
    found = {}
    for body, name in re.findall(r"typedef struct \{\n(.*?)\n\} (\w+);", text, re.DOTALL):
        fields = re.findall(r"^    (?:\w[\w ]*?[ *]+|\} )(\w+)(?:\[\w+\])?;$", body, re.MULTILINE)
        found[name] = fields
    return found


def constants(text: str) -> list[str]:
    return re.findall(r"\b(CU(?:DA)?_[A-Z0-9_a-z]+)\s*=", text) + re.findall(r"#define (CU(?:DA)?_?\w+) +0x", text)


def program(header: str, text: str) -> str:
    lines = [f'    P("sizeof {name}", sizeof({name}));' for name in [*PLAIN, *structures(text)]]
    for name, fields in structures(text).items():
        lines += [f'    P("{name}.{field}", offsetof({name}, {field}));' for field in fields]
    lines += [f'    P("{name}", (long long){name});' for name in constants(text)]
    body = "\n".join(lines)
    return (
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\n'
        '#define P(what, value) printf("%s %lld\\n", what, (long long)(value))\n'
        f"int main(void) {{\n{body}\n    return 0;\n}}\n"
    )


def test_sizes_offsets_and_values(compile_c: Callable[..., Path]) -> None:
    assert HEADER is not None
    text = OURS.read_text()
    # The header shows the first versions of functions and structures only when asked for.
    theirs_text = program(str(HEADER), text)
    ours = compile_c("abi_ours", program(str(OURS), text))
    theirs = compile_c("abi_theirs", theirs_text, f"-I{HEADER.parent}", "-D__CUDA_API_VERSION_INTERNAL")
    answers = [subprocess.run([path], capture_output=True, text=True, check=True).stdout for path in (ours, theirs)]
    assert answers[0].splitlines() == answers[1].splitlines()
    assert len(answers[0].splitlines()) > 380


def test_prototypes(compile_c: Callable[..., Path], tmp_path: Path) -> None:
    """Number and width of every parameter, pointers being pointers."""
    assert HEADER is not None
    sources = {
        "ours": '#include "cuda_abi.h"\n',
        "theirs": f'#define __CUDA_API_VERSION_INTERNAL\n#include "{HEADER}"\n',
    }
    shapes = {}
    for name, source in sources.items():
        file = tmp_path / f"{name}.c"
        file.write_text(source)
        command = ["cc", "-E", "-P", f"-I{ROOT / 'shim'}", str(file)]
        shapes[name] = prototypes(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    known = shapes["theirs"]
    wrong = {name: (shape, known[name]) for name, shape in shapes["ours"].items() if known.get(name, shape) != shape}
    assert not wrong
    assert len(shapes["ours"].keys() & known.keys()) > 300


WIDTHS = {"int": 4, "unsigned int": 4, "unsigned": 4, "unsigned char": 1, "unsigned short": 2, "float": 4}
INTS = ("CUdevice", "CUdeviceptr_v1", "cuuint32_t")
HANDLES = re.compile(
    r"CU(context|module|function|library|kernel|array|mipmappedArray|event|stream|graph\w*|memoryPool)"
)


def kind(parameter: str) -> str:
    text = re.sub(r"\bconst\b", " ", parameter).strip()
    if "*" in text or "[" in text:
        return "pointer"
    words = text.split()
    type_name = " ".join(words[:-1]) if len(words) > 1 and words[-1] not in ("int", "char", "short") else text
    if type_name in WIDTHS:
        return str(WIDTHS[type_name])
    if type_name in INTS:
        return "4"
    if type_name in ("size_t", "unsigned long long", "cuuint64_t", "uint64_t", "CUdeviceptr", "CUdeviceptr_v2"):
        return "8"
    if type_name in ("CUmemGenericAllocationHandle", "CUtexObject", "CUsurfObject"):
        return "8"
    if type_name in ("CUlinkState", "CUgreenCtx") or HANDLES.fullmatch(type_name):
        return "handle " + type_name
    if type_name.startswith(("CUipc", "CUmemLocation")):
        return type_name.removesuffix("_v1")
    if type_name in ("CUhostFn", "CUstreamCallback", "CUoccupancyB2DSize"):
        return "function"
    return "4"  # an enumeration, or what we declare as an int for one


def prototypes(text: str) -> dict[str, list[str]]:
    found = {}
    for name, parameters in re.findall(r"CUresult\s+(cu\w+)\s*\(([^;{]*?)\)\s*;", text, re.DOTALL):
        listed = " ".join(parameters.split())
        found[name] = [] if listed == "void" else [kind(part) for part in listed.split(",")]
    return found
