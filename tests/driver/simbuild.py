"""The software driver's libraries in a directory, as programs look for them: what the build made, or else compiled."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "shim"
NAMES = {"libcuda.so.1": "cuda_*.c", "libnvidia-ml.so.1": "nvml*.c"}
FLAGS = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-pthread"]
LINK = ["-shared", "-Wl,-z,defs", "-Wl,-z,nodelete", "-Wl,-Bsymbolic", "-pthread"]


def _newest_source() -> float:
    """0 where there are no sources, only what was built from them."""
    if not (SHIM / "sim").is_dir():
        return 0.0
    sources = [*SHIM.glob("*.h"), *SHIM.glob("*.def"), *(SHIM / "sim").iterdir()]
    return max(path.stat().st_mtime for path in sources)


def compile_library(target: Path, *, shim: Path = SHIM) -> None:
    """From the sources as they are now, or from a changed copy of them."""
    sources = sorted([*(shim / "sim").glob(NAMES[target.name]), *(shim / "sim").glob("common*.c")])
    command: list[str | Path] = [os.environ.get("CC", "cc"), *FLAGS, f"-I{shim}", "-o", target, *sources]
    subprocess.run([*command, f"-Wl,-soname,{target.name}", *LINK], check=True)


def libraries(directory: Path) -> Path:
    """Both libraries under both of the names that programs open."""
    for name in NAMES:
        built = ROOT / "gpushare" / "sim" / name
        if built.exists() and built.stat().st_mtime >= _newest_source():
            (directory / name).symlink_to(built)
        else:
            compile_library(directory / name)
        (directory / name.removesuffix(".1")).symlink_to(name)
    return directory
