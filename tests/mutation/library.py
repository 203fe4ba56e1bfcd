"""Building the preload library of a copy of the tree: as it is, with one source changed, and counting its lines."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from mutation.scratch import Scratch

NAME = "gpushare.lib.libgpushare"


def _description(scratch: Scratch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutated_build_shim", scratch.root / "shim" / "build_shim.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutated_build_shim"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


class Builder:
    """Compiles what has changed and links. Objects lie beside the copy."""

    def __init__(self, scratch: Scratch, *flags: str) -> None:
        self.scratch, self.flags = scratch, flags
        self.description = _description(scratch)
        self.library = self.description.BY_NAME[NAME]
        self.objects = scratch.root.parent / f"{scratch.root.name}o"
        self.objects.mkdir(exist_ok=True)

    def _object(self, source: Path) -> Path:
        return self.objects / f"{source.name}.o"

    def _compile(self, source: Path) -> bool:
        command = ["cc", *self.description.C_FLAGS, "-g0", *self.flags, f"-I{self.description.SHIM}"]
        command += ["-c", str(source), "-o", str(self._object(source))]
        try:
            return subprocess.run(command, capture_output=True, cwd=self.objects, timeout=120).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def build(self, changed: str | None = None) -> str:
        """After a change of one source, or all of it: "built", "no program", or "same code"."""
        sources = self.library.sources()
        if changed is not None and not changed.endswith(".h"):
            sources = [self.scratch.root / changed]
        before = {source: _bytes(self._object(source)) for source in sources}
        if not all(self._compile(source) for source in sources):
            return "no program"
        if all(before[source] == _bytes(self._object(source)) for source in sources):
            return "same code"
        self.link()
        return "built"

    def link(self) -> None:
        target = self.scratch.root / self.library.file
        fresh = target.with_name(f".{target.name}")
        objects = [str(self._object(source)) for source in self.library.sources()]
        soname = f"-Wl,-soname,{self.library.soname}"
        command = ["cc", "-g", *self.flags, "-o", str(fresh), *objects, soname, *self.description.LINK_FLAGS]
        subprocess.run(command, check=True)
        fresh.rename(target)


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def build_counting(scratch: Scratch) -> Path:
    """Make the copy's library count the lines that run; where it leaves the counts."""
    builder = Builder(scratch, "--coverage", "-fprofile-update=atomic", "-O0")
    if not list(builder.objects.glob("*.gcno")):
        outcome = builder.build()
        if outcome != "built":
            raise RuntimeError("the library does not build with --coverage")
    return builder.objects


def read_counts(scratch: Scratch, output: Path) -> dict[str, dict[str, set[int]]]:
    """By test and source, from what recorder.py has kept."""
    objects = Builder(scratch).objects
    found: dict[str, dict[str, set[int]]] = {}
    for kept in output.glob("counts-*"):
        lines = found.setdefault(kept.name.removeprefix("counts-"), {})
        for notes in objects.glob("*.gcno"):
            target = kept / notes.name
            if not target.exists():
                target.symlink_to(notes)
        counts = [path.name for path in kept.glob("*.gcda")]
        done = subprocess.run(["gcov", "--json-format", "--stdout", *counts], cwd=kept, capture_output=True, text=True)
        for text in done.stdout.splitlines():
            for file in json.loads(text)["files"]:
                path = os.path.relpath(Path(kept, file["file"]).resolve(), scratch.root.resolve())
                ran = {line["line_number"] for line in file["lines"] if line["count"]}
                lines.setdefault(path, set()).update(ran)
    return found
