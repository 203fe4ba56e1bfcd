"""Jupyter kernels that start as jobs: kernelspecs around unchanged kernels.

    gpushare kernel install --name torch-8g --limit 8Gi      ->  <data>/kernels/torch-8g/kernel.json

A kernelspec is a directory with a JSON file, so this needs no Jupyter. Its argv begins with `gpushare run --exec`: the
wrapper becomes the kernel, because Jupyter interrupts, kills and waits for the process that it starts. Each start and
restart of the kernel is a job of its own. A key in `metadata` marks our kernels. Other kernels are never listed,
replaced or removed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.errors import GpushareError, NotPermitted, UsageError
from gpushare.file_kinds import is_there

__all__ = [
    "Kernel",
    "Plan",
    "base_kernel",
    "can_tell",
    "data_dirs",
    "find",
    "install",
    "installed",
    "own_kernel",
    "remove",
]

MARK = "gpushare"  # our key in metadata
FILE = "kernel.json"
NAME = re.compile(r"[a-z0-9._-]+", re.ASCII)
PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
# -P: a kernel starts in the notebook's directory, which may have modules of any name.
WRAPPER = (sys.executable, "-P", "-m", "gpushare", "run", "--exec")
EXTENSION = "--InteractiveShellApp.extra_extensions=gpushare"
"""Beside those that the user's own configuration names."""
ASK_WITHIN = 30.0
SHARE = Path("share/jupyter")
SYSTEM_DATA = (Path("/usr/local") / SHARE, Path("/usr") / SHARE)


@dataclass(frozen=True, slots=True)
class Kernel:
    """An installed kernelspec."""

    name: str
    directory: Path
    content: Mapping[str, Any]

    @property
    def mark(self) -> Mapping[str, Any] | None:
        """Our entry in its metadata, if it is one of ours."""
        metadata = self.content.get("metadata")
        mark = metadata.get(MARK) if isinstance(metadata, dict) else None
        return mark if isinstance(mark, dict) else None

    @property
    def display_name(self) -> str:
        return str(self.content.get("display_name", self.name))


@dataclass(frozen=True, slots=True)
class Plan:
    """A kernelspec to write: a kernel, and the options of `gpushare run` for it."""

    name: str
    base: Kernel
    options: Sequence[str]  # as on the command line
    budget: str  # for the display name: limit 8Gi
    display_name: str | None = None
    tells: bool = False  # an IPython kernel that can load gpushare: it tells its user when memory is wanted back

    def content(self, version: str) -> dict[str, Any]:
        base = dict(self.base.content)
        shown = self.display_name or f"{self.base.display_name} [GPU: {self.budget}]"
        metadata = base.get("metadata")
        mark = {"version": version, "base": self.base.name, "budget": self.budget, "options": list(self.options)}
        words = [*self.base.content["argv"], *([EXTENSION] if self.tells else [])]
        return {
            "interrupt_mode": "signal",
            **base,
            "argv": [*WRAPPER, "--name", self.name, *self.options, "--", *words],
            "display_name": shown,
            "metadata": {**(metadata if isinstance(metadata, dict) else {}), MARK: mark},
        }


def check_name(name: str) -> str:
    """Jupyter looks kernels up in lower case."""
    if not NAME.fullmatch(name.lower()) or name.startswith("."):
        raise UsageError(f"{name!r} cannot be a kernel's name", hint="use letters, digits and - . _", code="bad_name")
    return name.lower()


def user_data(environ: Mapping[str, str]) -> Path:
    named = environ.get("JUPYTER_DATA_DIR")
    if named:
        return Path(named)
    base = environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path(environ.get("HOME") or Path.home()) / ".local" / "share") / "jupyter"


def data_dirs(environ: Mapping[str, str]) -> list[Path]:
    """Jupyter's directories in its order: our environment's before the user's."""
    own = [Path(sys.prefix) / SHARE]
    user = [user_data(environ)]
    named = [Path(path) for path in environ.get("JUPYTER_PATH", "").split(os.pathsep) if path]
    near = own + user if sys.prefix != sys.base_prefix else user + own
    return list(dict.fromkeys([*named, *near, *SYSTEM_DATA]))


def read(directory: Path) -> Kernel | None:
    """The kernelspec there; None if there is none that Jupyter could start."""
    try:
        content = json.loads((directory / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    argv = content.get("argv") if isinstance(content, dict) else None
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        return None
    return Kernel(directory.name.lower(), directory, content)


def find(name: str, places: Sequence[Path]) -> Kernel | None:
    return next((kernel for kernel in _all(places) if kernel.name == name.lower()), None)


def installed(places: Sequence[Path]) -> list[Kernel]:
    """Our kernels by name, without those that another kernel of the same name hides from Jupyter."""
    seen: dict[str, Kernel] = {}
    for kernel in _all(places):
        seen.setdefault(kernel.name, kernel)
    return sorted((kernel for kernel in seen.values() if kernel.mark is not None), key=lambda kernel: kernel.name)


def _all(places: Sequence[Path]) -> Iterator[Kernel]:
    for place in places:
        try:
            entries = sorted((place / "kernels").iterdir())
        except OSError:
            continue
        for entry in entries:
            kernel = read(entry)
            if kernel is not None:
                yield kernel


def own_kernel() -> Kernel:
    """IPython's kernel in the Python where gpushare is installed."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    content = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": f"Python {version}",
        "language": "python",
        "metadata": {"debugger": True},
    }
    return Kernel("ipykernel", Path(), content)


def can_tell(kernel: Kernel) -> bool | None:
    """Whether the kernel can load gpushare as an extension; None: it is no IPython kernel."""
    program, *rest = kernel.content["argv"]
    if not any(word.split(".")[0] in ("ipykernel", "ipykernel_launcher") for word in rest):
        return None
    if program == sys.executable:
        return True
    line = [program, "-c", "import gpushare.notebook"]
    try:
        return subprocess.run(line, cwd="/", capture_output=True, timeout=ASK_WITHIN, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def base_kernel(name: str, places: Sequence[Path]) -> Kernel:
    """A kernel that Jupyter knows, with a program that we can find."""
    kernel = find(name, places)
    if kernel is None:
        known = ", ".join(sorted({kernel.name for kernel in _all(places)})) or "none"
        raise UsageError(f"there is no kernel {name}", facts=[("known", known)], code="no_such_kernel")
    if kernel.mark is not None:
        raise UsageError(
            f"{name} is itself a kernel of gpushare",
            code="wrapped_kernel",
            hint=f"base the new one on what that one is based on: {kernel.mark.get('base', 'python3')}",
        )
    program, *rest = kernel.content["argv"]
    return Kernel(kernel.name, kernel.directory, {**kernel.content, "argv": [_python(program, kernel), *rest]})


def _python(program: str, kernel: Kernel) -> str:
    """Replace a bare `python`: Jupyter takes it for the server's own, but only as the first word, which is now ours."""
    if not PYTHON.fullmatch(program):
        return program
    of_prefix = kernel.directory.parent.parent.parent.parent / "bin" / program  # PREFIX/share/jupyter/kernels/NAME
    return str(of_prefix) if os.access(of_prefix, os.X_OK) else sys.executable


def install(plan: Plan, data: Path, version: str) -> tuple[Kernel, bool]:
    """Write the kernelspec in one step. Returns the kernel, and whether it replaced one of ours."""
    target = data / "kernels" / check_name(plan.name)
    replaces = target.is_symlink() or is_there(target)
    if replaces:
        _check_ours(target)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    content = plan.content(version)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if plan.base.directory.name:
            shutil.copytree(plan.base.directory, fresh)  # its logos
        else:
            fresh.mkdir()
        (fresh / FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        if replaces:
            _delete(target)
        fresh.rename(target)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise _cannot("write", target, error) from None
    return Kernel(target.name, target, content), replaces


def remove(name: str, places: Sequence[Path]) -> Path:
    """The kernel that Jupyter starts for that name."""
    kernel = find(name, places)
    if kernel is None:
        ours = ", ".join(kernel.name for kernel in installed(places)) or "none"
        raise UsageError(f"there is no kernel {name}", facts=[("ours", ours)], code="no_such_kernel")
    _check_ours(kernel.directory)
    try:
        _delete(kernel.directory)
    except OSError as error:
        raise _cannot("remove", kernel.directory, error) from None
    return kernel.directory


def _check_ours(directory: Path) -> None:
    kernel = read(directory)
    if kernel is None or kernel.mark is None:
        raise GpushareError(
            f"{directory} is not a kernel of gpushare: it is left as it is",
            code="not_our_kernel",
            hint="choose another --name, or remove it with `jupyter kernelspec remove`",
        )


def _delete(directory: Path) -> None:
    if directory.is_symlink():
        directory.unlink()
    else:
        shutil.rmtree(directory)


def _cannot(what: str, path: Path, error: OSError) -> GpushareError:
    return NotPermitted(
        f"cannot {what} {error.filename or path}: {error.strerror or error}",
        code="cannot_write",
        hint="--prefix DIR installs it elsewhere; without it the directory is your own",
    )
