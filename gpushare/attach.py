"""gpushare.enable(): a budget for a process that runs already, such as a notebook's kernel.

The process runs, so the library cannot be preloaded any more. But before CUDA starts, nothing has opened libcuda.so.1.
So gpushare makes a private directory where that name is the library itself, built to depend on the real driver under an
alias, and opens it from there. From then on the loader answers every request for the driver with the open library.

    look      are gpushare or the driver loaded? If it is too late, say so before anything is changed
    admit     find or start the daemon and register the job, as `gpushare run` does
    open      the directory, the library, the names
    check     that the loader and the driver answer with the library; else undo everything

It does not cover a program that opens the driver by its absolute path, nor an NVML that was loaded before.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare import locate
from gpushare.api import Job
from gpushare.config import load_settings
from gpushare.errors import GpushareError, QuantityError, UsageError
from gpushare.launch import Launch, Options, write_stderr
from gpushare.notebook.name import notebook_name
from gpushare.paths import Runtime, software_driver_dir, user_dir
from gpushare.presence import Presence, attach_library, is_initialised, loaded_driver, mapped, presence
from gpushare.quantity import Amount, Quantity, format_bytes

__all__ = ["Enabled", "enable"]

RESTART = "restart the kernel (or program), and call gpushare.enable() first thing, before CUDA is imported"
CUDA_12 = 12000
FIND_WITHIN = 30.0

# Run in a child: looking the driver up in this process would load it here.
FIND_DRIVER = """
import ctypes
for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
    try:
        ctypes.CDLL(name)
    except OSError:
        pass
print(open("/proc/self/maps").read())
"""


@dataclass(frozen=True, slots=True, repr=False)
class Enabled:
    """How this process is under a budget."""

    how: str  # late, or preloaded
    job: Job | None  # None without a daemon
    changed: bool
    text: str

    def __repr__(self) -> str:  # what a notebook shows
        return self.text


def enable(request: Amount | None, limit: Amount | None, *, gpus: int, name: str | None) -> Enabled:
    """Make this process a job. See gpushare.enable."""
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1:
        raise UsageError(f"gpushare.enable(gpus={gpus!r}): not a number of GPUs", hint="write gpus=1, or leave it out")
    here = presence()
    if here is not Presence.ABSENT:
        active = _active_already(here, wishes=request is not None or limit is not None)
        _tell_session()
        return active
    _refuse_if_late()
    environ = dict(os.environ)
    flags = {
        "GPUSHARE_REQUEST": _text("request", request),
        "GPUSHARE_LIMIT": _text("limit", limit),
        "GPUSHARE_NAME": name or _name(environ),
    }
    driver, announce = _choose_driver(flags, environ)
    flags["GPUSHARE_DRIVER"] = driver
    options = Options(_command_line(), flags, gpus=gpus, require_daemon="GPUSHARE_REQUIRE_DAEMON=1")
    launch = LateLaunch(options, environ)
    if announce:
        launch.say("no NVIDIA driver here: the software driver stands in (GPUs made of host memory)", level=0)
    enabled = launch.enable(driver)
    _tell_session()
    return enabled


class LateLaunch(Launch):
    """As `gpushare run --exec` without the exec: this process is wrapper and program."""

    def enable(self, driver: str) -> Enabled:
        drivers = _software_drivers() if driver == "sim" else _find_drivers(self.environ)
        self._check()
        self.node = self._find_daemon()
        if self.node is not None:
            self._admit()
        before = dict(os.environ)
        try:
            if self.node is not None and self.job is not None:
                self.node.client().set_main(self.job["id"], os.getpid())
            _replace_environ(self.program_environ())  # the library reads it at the first call
            _check(_open(_make_farm(user_dir(driver, self.environ), drivers)))
        except BaseException:
            _replace_environ(before)
            self._withdraw()
            raise
        return Enabled("late", self.job, True, self._words())

    def registration(self) -> dict[str, object]:
        body = super().registration()
        for key in ("request_source", "limit_source"):
            source = body[key]
            if isinstance(source, str) and source.startswith("--"):
                body[key] = f"gpushare.enable({source.removeprefix('--')}=...)"
        return body

    def _words(self) -> str:
        if self.job is None:
            return f"gpushare: limit {self.budget.limit} for this process by itself"
        parts = [
            f"GPU {gpu['index']}: request {format_bytes(gpu['request'])}, limit {format_bytes(gpu['limit'])}"
            for gpu in self.job["gpus"]
        ]
        return f"gpushare: job {self.job['name']} ({self.job['id']}) on {'; '.join(parts)}"


def _tell_session() -> None:
    """In a notebook, tell its user when memory is wanted back."""
    if "IPython" in sys.modules:
        from gpushare.notebook.session import enabled

        enabled()


def _name(environ: Mapping[str, str]) -> str | None:
    """The notebook's name, unless another is given."""
    return None if environ.get("GPUSHARE_NAME") else notebook_name(environ)


def _text(argument: str, amount: Amount | None) -> str | None:
    """The argument as the command line would write it. Errors name the argument."""
    if amount is None:
        return None
    try:
        return Quantity.of(amount).canonical()
    except QuantityError as error:
        raise QuantityError(f"gpushare.enable({argument}={amount!r}): {error.message}", hint=error.hint) from None


def _command_line() -> list[str]:
    return [word for word in sys.orig_argv if word] or [sys.executable]


# ---- looking


def _active_already(here: Presence, *, wishes: bool) -> Enabled:
    settings = load_settings()
    if not any(settings.find(name) for name in ("GPUSHARE_REQUEST", "GPUSHARE_LIMIT")):
        raise GpushareError(
            "the shim is preloaded into this process already, but without a budget: it limits nothing",
            code="too_late",
            hint="restart the kernel with GPUSHARE_LIMIT in its environment, or under `gpushare run`",
        )
    how = "since it started" if here is Presence.PRELOADED else "since gpushare.enable()"
    text = f"gpushare: active in this process {how}; nothing is changed"
    if wishes:
        write_stderr(f"{text}\nhint: gpushare.set_limit(job, limit), or %gpushare set, while it runs")
    return Enabled(here.value, None, False, text)


def _refuse_if_late() -> None:
    driver = loaded_driver()
    if driver is None:
        return
    state = "CUDA runs in this process" if is_initialised(driver) else "the CUDA driver is loaded, though not started,"
    raise GpushareError(
        f"too late: {state} and has been found past gpushare",
        facts=[("driver", mapped("libcuda.so") or driver._name)],
        hint=RESTART,
        code="too_late",
    )


def _choose_driver(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> tuple[str, bool]:
    """nvidia or sim, and whether to say that it is sim. (locate.detect_driver() would load the driver.)"""
    settings = load_settings(flags, environ)
    driver = settings.choice("GPUSHARE_DRIVER")
    if driver != "auto":
        return driver, False
    if settings.find("GPUSHARE_SOCKET"):
        return locate.find(settings).driver, False
    there = Path("/dev/nvidiactl").exists() and "cuda" in _search(environ)
    return ("nvidia", False) if there else ("sim", True)


# ---- the real driver


def _software_drivers() -> dict[str, str]:
    return {
        "cuda": str(software_driver_dir() / "libcuda.so.1"),
        "nvml": str(software_driver_dir() / "libnvidia-ml.so.1"),
    }


def _find_drivers(environ: Mapping[str, str]) -> dict[str, str]:
    found = _search(environ)
    if "cuda" not in found:
        raise GpushareError("the CUDA driver (libcuda.so.1) cannot be found from this process", code="no_driver")
    return found


def _search(environ: Mapping[str, str]) -> dict[str, str]:
    """The driver files that this process would get, found out in a child process.

    The child runs the same program with the library path that our loader read when this process started.
    """
    environ = {name: value for name, value in environ.items() if name not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
    for entry in Path("/proc/self/environ").read_bytes().split(b"\0"):
        if entry.startswith(b"LD_LIBRARY_PATH="):
            environ["LD_LIBRARY_PATH"] = os.fsdecode(entry.partition(b"=")[2])
    line = [sys.executable, "-I", "-S", "-c", FIND_DRIVER]
    try:
        done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=FIND_WITHIN, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise GpushareError(f"cannot look for the CUDA driver: {error}", code="no_driver") from None
    files = {"cuda": mapped("libcuda.so", done.stdout), "nvml": mapped("libnvidia-ml.so", done.stdout)}
    return {kind: path for kind, path in files.items() if path is not None}


# ---- the directory


def _make_farm(runtime: Path, drivers: Mapping[str, str]) -> Path:
    """The private directory for these drivers. Several processes may use it: it is made once, and stays."""
    shim, nvml = attach_library(), attach_library().with_name("libgpushare-late-nvml.so")
    if not shim.exists() or not nvml.exists():
        raise GpushareError(
            f"{shim} is not there",
            code="not_built",
            hint="install the package (pip install .), or build in place (make build)",
        )
    links = {"libcuda.so": shim, "libcuda.so.1": shim, "libgpushare-real-cuda.so.1": Path(drivers["cuda"])}
    if "nvml" in drivers:
        links |= {"libnvidia-ml.so": nvml, "libnvidia-ml.so.1": nvml}
        links |= {"libgpushare-real-nvml.so.1": Path(drivers["nvml"])}
    Runtime(runtime).make()
    key = hashlib.sha256("\0".join(map(str, links.values())).encode()).hexdigest()[:12]
    directory = runtime / "late" / key
    try:
        for part in (directory.parent, directory):
            part.mkdir(mode=0o700, exist_ok=True)
        for name, target in links.items():
            _link(directory / name, target)
    except OSError as error:
        raise GpushareError(f"cannot make {directory}: {error}", code="bad_runtime_dir") from None
    return directory


def _link(link: Path, target: Path) -> None:
    """Put the link in place in one step: another process may be opening it."""
    if link.is_symlink() and link.readlink() == target:
        return
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


# ---- opening, and checking that it helps


def _open(farm: Path) -> Any:
    nvml_is_late = mapped("libnvidia-ml.so") is not None
    try:
        late = ctypes.CDLL(str(farm / "libcuda.so.1"))
    except OSError as error:
        raise GpushareError(f"the loader refuses the library: {error}", code="cannot_load") from None
    late.gpushare_late_claim.restype = ctypes.c_void_p
    late.gpushare_late_is_hook.restype = ctypes.c_bool
    late.gpushare_late_is_hook.argtypes = [ctypes.c_void_p]
    names = ["libcuda.so"]
    if not nvml_is_late and (farm / "libnvidia-ml.so.1").is_symlink():
        names += ["libnvidia-ml.so.1", "libnvidia-ml.so"]
    for name in names:
        late.gpushare_late_claim(name.encode())
    if nvml_is_late:
        write_stderr("gpushare: NVML was loaded before: what it says about memory stays that of the whole GPU")
    return late


def _check(late: Any) -> None:
    """Ask as programs do: by name, by symbol, by cuGetProcAddress. Raises GpushareError if one fails."""
    problems = []
    for name in ("libcuda.so.1", "libcuda.so"):
        try:
            driver = ctypes.CDLL(name)
        except OSError as error:
            problems.append((name, str(error)))
            continue
        if driver._handle != late._handle:
            problems.append((name, "another library answers to this name"))
    if not late.gpushare_late_is_hook(ctypes.cast(late.cuMemAlloc_v2, ctypes.c_void_p)):
        problems.append(("cuMemAlloc_v2", "is not the library's"))
    answer = ctypes.c_void_p()
    for ask, more in ((late.cuGetProcAddress_v2, [ctypes.byref(ctypes.c_int())]), (late.cuGetProcAddress, [])):
        if ask(b"cuMemAlloc", ctypes.byref(answer), CUDA_12, ctypes.c_uint64(0), *more) == 0:
            break
    if not late.gpushare_late_is_hook(answer):
        problems.append(("cuGetProcAddress", "does not answer with the library"))
    if problems:
        raise GpushareError(
            "the library is loaded, but programs would not use it: nothing is enabled",
            facts=problems,
            hint=RESTART,
            code="not_in_the_way",
        )
    ctypes.c_int.in_dll(late, "gpushare_late_enabled").value = 1


def _replace_environ(environ: Mapping[str, str]) -> None:
    """Set them in os.environ, which also sets the C library's copy: the library reads that, and children inherit it."""
    for name in set(os.environ) - set(environ):
        del os.environ[name]
    for name, value in environ.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
