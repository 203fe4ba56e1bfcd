"""A copy of the tree that may be changed, with a virtual environment that imports from the copy alone."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

from mutation.groups import ROOT

BUILT = ("gpushare/_layout*.so", "gpushare/lib/**/*", "gpushare/sim/*")
"""What git ignores and the tests need."""

COVERAGE = "import os; 'COVERAGE_PROCESS_START' in os.environ and __import__('coverage').process_startup()\n"
"""Processes that a measured test starts are measured too (recorder.py)."""


class Scratch:
    """One copy. Its interpreter is the one that runs now, with the same installed packages."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.python = root / ".venv" / "bin" / "python"
        self.written = 0

    @classmethod
    def make(cls, root: Path) -> Scratch:
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
        built = [str(path.relative_to(ROOT)) for glob in BUILT for path in ROOT.glob(glob)]
        for name in filter(None, [*names, *built]):
            source, target = ROOT / name, root / name
            if source.is_file():  # a file that is deleted and not yet committed is still listed
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        scratch = cls(root)
        scratch._make_environment()
        return scratch

    def _make_environment(self) -> None:
        """Like an editable installation of the copy: what the tests start by any way imports from here."""
        home = self.root / ".venv"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = home / "lib" / version / "site-packages"
        packages.mkdir(parents=True)
        (home / "bin").mkdir()
        self.python.symlink_to(Path(sys.executable).resolve())
        for name in ("python3", version):
            (home / "bin" / name).symlink_to("python")
        shutil.copy(Path(sys.prefix) / "pyvenv.cfg", home / "pyvenv.cfg")
        paths = [self.root, self.root / "daemon", *site.getsitepackages()]
        (packages / "scratch.pth").write_text("".join(f"{path}\n" for path in paths))
        (packages / "then_coverage.pth").write_text(COVERAGE)  # in the order of the names
        (packages / "gpushare_examples").symlink_to(self.root / "examples")
        (packages / "gpushare_docs").symlink_to(self.root / "docs")
        for script in (Path(sys.prefix) / "bin").iterdir():
            if script.is_file() and script.name not in ("python", "python3", version):
                self._copy_script(script, home / "bin" / script.name)

    def _copy_script(self, script: Path, target: Path) -> None:
        text = script.read_bytes()
        first, _, rest = text.partition(b"\n")
        if first.startswith(b"#!") and b"python" in first:
            target.write_bytes(b"#!" + os.fsencode(self.python) + b"\n" + rest)
            target.chmod(0o755)
        else:
            target.symlink_to(script)

    def environment(self, **more: str) -> dict[str, str]:
        """Of the tests that run in the copy."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GPUSHARE_"))}
        path = f"{self.python.parent}:{kept['PATH']}"
        temporary = self.root.parent / f"{self.root.name}t"
        temporary.mkdir(exist_ok=True)
        return {**kept, "PATH": path, "TMPDIR": str(temporary), **more}

    def clear(self) -> None:
        """What tests left in their temporary directory."""
        shutil.rmtree(self.root.parent / f"{self.root.name}t", ignore_errors=True)

    def write(self, path: str, text: bytes) -> None:
        """Replace a source.

        Each text of a Python file has a time stamp of its own, so that no byte code outlives its text. A C file keeps
        its time stamp: whoever changes it builds what is to be built.
        """
        target = self.root / path
        stamp = target.stat()
        target.write_bytes(text)
        self.written += 1
        later = stamp.st_mtime_ns + (10**9 * self.written if path.endswith(".py") else 0)
        os.utime(target, ns=(later, later))
