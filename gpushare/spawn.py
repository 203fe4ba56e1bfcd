"""The program that `run` starts: finding it, and the environment it gets."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpushare.api import Job
from gpushare.env import Settings
from gpushare.errors import CommandNotExecutable, CommandNotFound, GpushareError, UsageError
from gpushare.paths import Runtime, library, make_private, software_driver_dir
from gpushare.quantity import Budget

__all__ = ["exec_program", "find_program", "make_driver_links", "preload", "prepend", "spawn_program"]

DRIVER_LINKS = {
    "libcuda.so": "libcuda.so.1",
    "libcuda.so.1": "libcuda.so.1",
    "libnvidia-ml.so": "libnvidia-ml.so.1",
    "libnvidia-ml.so.1": "libnvidia-ml.so.1",
}
# Python ignores these two. A signal that is ignored stays ignored after exec.
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)


def find_program(name: str, environ: Mapping[str, str]) -> str:
    """The path that exec would take. Looked up before the job is registered, so that a typing error leaves no job."""
    if not name:
        raise CommandNotFound("the command is empty")
    if "/" in name or name in (".", ".."):
        return _executable(Path(name), name)
    refused = None
    for directory in os.get_exec_path(environ):
        path = Path(directory) / name  # an empty one is the current directory
        try:
            return _executable(path, name)
        except CommandNotExecutable as error:
            refused = refused or error
        except CommandNotFound:
            continue
    raise refused or CommandNotFound(f"command not found: {name}")


def _executable(path: Path, name: str) -> str:
    try:
        found = path.exists()
    except OSError as error:
        raise CommandNotExecutable(f"cannot execute {path}: {error.strerror}") from None
    if not found:
        raise CommandNotFound(f"command not found: {name}")
    if path.is_dir():
        raise CommandNotExecutable(f"cannot execute {path}: it is a directory")
    if not os.access(path, os.X_OK):
        raise CommandNotExecutable(f"cannot execute {path}: permission denied", hint=f"chmod +x {path}")
    return str(path) if "/" in str(path) else f"./{path}"


def preload(environ: Mapping[str, str], *, turns: bool = False) -> str:
    """LD_PRELOAD with our library first, once. `turns`: the one that can hold launches back."""
    found = library(turns=turns)
    path = str(found)
    if not found.exists():
        raise GpushareError(
            f"the preload library {path} is not there",
            code="not_built",
            hint="install the package (pip install .), or build in place (make build)",
        )
    if any(character in path for character in " :;"):
        raise GpushareError(
            f"LD_PRELOAD cannot name {path}: a blank or colon is in the path",
            code="bad_install_path",
            hint="install gpushare under a path without blanks and colons",
        )
    return prepend(path, without_preload(environ).get("LD_PRELOAD", ""))


def without_preload(environ: Mapping[str, str]) -> dict[str, str]:
    """For a program that runs without gpushare."""
    ours = ("", str(library()), str(library(turns=True)))
    others = [one for one in environ.get("LD_PRELOAD", "").replace(" ", ":").split(":") if one not in ours]
    kept = {name: value for name, value in environ.items() if name not in ("LD_PRELOAD", "GPUSHARE_MODE")}
    return kept | ({"LD_PRELOAD": ":".join(others)} if others else {})


def prepend(item: str, items: str) -> str:
    others = [other for other in items.replace(" ", ":").split(":") if other and other != item]
    return ":".join([item, *others])


def program_environ(
    environ: Mapping[str, str],
    settings: Settings,
    budget: Budget,
    *,
    name: str,
    devices: Sequence[str],
    driver: str,
    runtime: Runtime | None,
    job: Job | None,
) -> dict[str, str]:
    """The environment of a program under `run`. `runtime`, `job`: of its daemon; None: it runs without one."""
    found = without_preload(environ)
    for variable, quantity in (("GPUSHARE_REQUEST", budget.request), ("GPUSHARE_LIMIT", budget.limit)):
        for alias in settings.overruled_aliases(variable, quantity):
            del found[alias]
        found[variable] = quantity.canonical()
    if settings.choice("GPUSHARE_MODE") == "enforce":
        found["LD_PRELOAD"] = preload(environ, turns=job is not None and job.get("turns", False))
    found["GPUSHARE_NAME"] = name
    for variable in ("GPUSHARE_VISIBLE", "GPUSHARE_LOG"):
        setting = settings.find(variable)
        if setting:
            found[variable] = setting.text
    framework = settings.framework()
    if framework is not None:
        found = {**framework.variables, **found}
    found.pop("GPUSHARE_JOB", None)  # of a job around this one
    if devices:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    if runtime is not None and job is not None:
        found["GPUSHARE_JOB"] = job["id"]
        found["GPUSHARE_SOCKET"] = str(runtime.api_socket)
        found["CUDA_VISIBLE_DEVICES"] = ",".join(gpu["uuid"] for gpu in job["gpus"])
    return with_driver(found, driver, runtime)


def with_driver(environ: dict[str, str], driver: str, runtime: Runtime | None) -> dict[str, str]:
    """The environment in which a program finds the node's driver."""
    if driver != "sim":
        return environ
    others = environ.get("LD_LIBRARY_PATH")
    path = _software_driver(runtime)
    return environ | {"LD_LIBRARY_PATH": f"{path}:{others}" if others else path, "GPUSHARE_DRIVER": "sim"}


def _software_driver(runtime: Runtime | None) -> str:
    if runtime is None:
        return str(software_driver_dir())
    try:
        make_driver_links(runtime.drivers, software_driver_dir())
    except OSError:
        return str(software_driver_dir())  # the package has the two main names
    return str(runtime.drivers)


def make_driver_links(directory: Path, source: Path) -> None:
    """A directory with links to the software driver under every name that a program may look for, and nothing else.

    Several wrappers may make the links at once while programs use them, so each link is put in place in one step.
    """
    make_private(directory)
    for name, target in DRIVER_LINKS.items():
        link, wanted = directory / name, str(source / target)
        if link.is_symlink() and str(link.readlink()) == wanted:
            continue
        fresh = directory / f".{name}.{os.getpid()}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(wanted)
        fresh.replace(link)


def spawn_program(path: str, command: list[str], environ: Mapping[str, str], mask: set[signal.Signals]) -> int:
    """Start the program in our process group, so that the terminal and its signals reach it directly."""
    try:
        return os.posix_spawn(path, command, environ, setsigmask=mask, setsigdef=RESTORED)
    except (OSError, ValueError) as error:
        raise _did_not_start(path, error) from None


def exec_program(path: str, command: list[str], environ: Mapping[str, str]) -> GpushareError:
    """Become the program. Returns only if that fails, with the reason."""
    for number in RESTORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(path, command, environ)
    except (OSError, ValueError) as error:
        return _did_not_start(path, error)


def _did_not_start(path: str, error: OSError | ValueError) -> GpushareError:
    if isinstance(error, ValueError):
        return UsageError(f"cannot execute {path}: {error}")
    if isinstance(error, FileNotFoundError) and Path(path).exists():
        return CommandNotExecutable(f"cannot execute {path}: its interpreter does not exist")
    if isinstance(error, FileNotFoundError):
        return CommandNotFound(f"command not found: {path}")
    return CommandNotExecutable(f"cannot execute {path}: {(error.strerror or str(error)).lower()}")
