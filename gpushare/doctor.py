"""Checks of an installation: a list of data, no printing.

Each check tries the real thing (the loader, the socket, NVML). `ok` and `skip` need no action. `warn`: it works, but
not as well as it could. `fail`: it does not work; then the exit status is 1. A finding has the commands that mend it on
this machine, if there are any: for the user to read and type.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import gpushare_installation
from gpushare import __version__, glibc, locate
from gpushare.api import UnmanagedProcess
from gpushare.client import Client
from gpushare.config import load_settings
from gpushare.env import BY_NAME, PREFIX, Settings, unknown_variables
from gpushare.errors import DaemonUnreachable, GpushareError, NotPermitted, UsageError
from gpushare.paths import PACKAGE, SYSTEM_DIR, Runtime, library, software_driver_dir, user_dir
from gpushare.presence import attach_library
from gpushare.quantity import format_bytes

__all__ = ["CHECKS", "Check", "Finding", "Surroundings", "examine"]

OTHER_INTERPOSERS = ("libvgpu.so", "libnvshare.so", "libcuda_hook.so", "libgemhook.so", "libtorch_memory_saver")
NATIVE_LIMITS_SINCE = 615
UNMANAGED_WORTH_A_WORD = 256 * 2**20
NVIDIA, DISPLAY = "0x10de", "0x03"  # on the PCI bus: the vendor, and the class of GPUs with and without a screen
PRELOAD_FILE = "/etc/ld.so.preload"


@dataclass(frozen=True, slots=True)
class Finding:
    state: str  # ok, warn, fail, skip
    detail: str
    hint: str | None = None
    fix: tuple[str, ...] = ()
    """Commands for a shell, in order."""


@dataclass
class Surroundings:
    """What the checks look at, collected once."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @cached_property
    def settings(self) -> Settings:
        return load_settings(environ=self.environ)

    @cached_property
    def node(self) -> locate.Node:
        return locate.find(self.settings)

    @cached_property
    def client(self) -> Client:
        return self.node.client(5.0)

    @cached_property
    def driver_version(self) -> str:
        return _ask_nvml()[0]


@dataclass(frozen=True, slots=True)
class Check:
    id: str
    title: str
    probe: Callable[[Surroundings], Finding]
    hint: str


def examine(surroundings: Surroundings) -> Iterator[tuple[Check, Finding]]:
    """Each check with its finding. An unexpected error in a check becomes its finding, and the others go on."""
    for check in CHECKS:
        try:
            finding = check.probe(surroundings)
        except DaemonUnreachable as error:
            finding = Finding("skip", error.message, "")
        except GpushareError as error:
            finding = Finding("fail", error.message, error.hint)
        except Exception as error:
            finding = Finding("fail", f"the check itself failed: {type(error).__name__}: {error}")
        if finding.hint is None and finding.state in ("warn", "fail"):
            finding = replace(finding, hint=check.hint)
        yield check, finding


def check_driver(_: Surroundings) -> Finding:
    if locate.detect_driver() == "sim":
        fix = ("sudo modprobe nvidia", "sudo nvidia-modprobe -u") if _has_nvidia_hardware() else ()
        return Finding("warn", "no NVIDIA driver: the software driver stands in", fix=fix)
    try:
        version, count = _ask_nvml()
    except OSError as error:
        return Finding("fail", f"the driver is there, but NVML does not answer: {error}")
    return Finding("ok", f"driver {version}, {count} GPU{'' if count == 1 else 's'}")


def check_shim_loads(surroundings: Surroundings) -> Finding:
    if not library().exists():
        return Finding("fail", f"{library()} is not there", fix=gpushare_installation.reinstall())
    true = shutil.which("true") or "/bin/true"
    for command in ([true], [sys.executable, "-c", "pass"]):
        problem = _preload_problem(command, surroundings.environ)
        if problem:
            return Finding("fail", f"{command[0]}: {problem}", fix=gpushare_installation.reinstall())
    return Finding("ok", f"into {true} and {Path(sys.executable).name}, all symbols bound at once")


def check_daemon(surroundings: Surroundings) -> Finding:
    try:
        node = surroundings.node
    except DaemonUnreachable as error:
        named = surroundings.settings.find("GPUSHARE_SOCKET")
        if named:
            detail, fix = f"{error.message} ({named.source})", (f"unset {named.name}",) if named.name else ()
            return Finding("fail", detail, "unset GPUSHARE_SOCKET, or start that daemon", fix)
        if error.code == "no_daemon":
            return Finding("skip", "none runs; `gpushare run` starts one for its job")
        scope = "system" if _is_there(SYSTEM_DIR / "api.sock") else "user"
        return Finding("fail", error.message, error.hint, _restart(scope) if error.code == "other_protocol" else ())
    version = surroundings.client.version()
    where = f"{node.runtime.api_socket} ({version['scope']}, pid {version['pid']})"
    if version["version"] != __version__:
        detail = f"{where} is version {version['version']}, this command {__version__}"
        return Finding("warn", detail, fix=_restart(version["scope"]))
    foreign = locate.foreign_software_gpus(node, surroundings.environ)
    if foreign is not None:
        hint = "nothing is to be done for your own jobs: `gpushare run` starts a daemon of yours for them"
        return Finding("warn", f"{foreign.message}; you have none of your own", hint)
    return Finding("ok", f"{where}, version {version['version']}, protocol {version['protocol']}")


def check_runtime_dir(surroundings: Surroundings) -> Finding:
    for driver in ("nvidia", "sim"):
        directory = user_dir(driver, surroundings.environ)
        if directory.is_symlink() or directory.exists():
            try:
                Runtime(directory).check()
            except NotPermitted as error:
                return Finding("fail", error.message, error.hint, _make_ours(directory))
    return Finding("ok", str(user_dir("nvidia", surroundings.environ).parent))


def check_layout(_: Surroundings) -> Finding:
    """Run in a child process: loading a truncated library can end a process."""
    code = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); import gpushare.doctor as d; d.print_layout()"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=30, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        problem = said[-1] if said else f"loading gpushare._layout ended a process with status {done.returncode}"
        return Finding("fail", problem, fix=gpushare_installation.reinstall())
    return Finding("ok", done.stdout.strip())


def print_layout() -> None:
    """Print the versions of the shared layouts, or exit with a text about a wrong size."""
    from gpushare._layout import ffi, lib

    expected = {"struct gs_page": lib.GS_PAGE_BYTES, "struct gs_frame": lib.GS_FRAME_BYTES, "struct gs_line": 128}
    wrong = [
        f"{name} is {ffi.sizeof(name)} bytes, not {size}" for name, size in expected.items() if ffi.sizeof(name) != size
    ]
    if wrong:
        sys.exit(", ".join(wrong))
    print(f"page version {lib.GS_PAGE_VERSION}, frame version {lib.GS_WIRE_VERSION}")


def check_interposers(surroundings: Surroundings) -> Finding:
    in_variable, in_file = surroundings.environ.get("LD_PRELOAD", ""), _read(PRELOAD_FILE)
    found, fix = [name for name in OTHER_INTERPOSERS if name in f"{in_variable} {in_file}"], []
    if any(name in in_variable for name in found):
        fix.append("unset LD_PRELOAD")
    fix += [f"sudo sed -i '/{re.escape(name)}/d' {PRELOAD_FILE}" for name in found if name in in_file]
    mps = ["echo quit | nvidia-cuda-mps-control"] if _runs("nvidia-cuda-mps") else []
    if "CUDA_MPS_PIPE_DIRECTORY" in surroundings.environ:
        mps.append("unset CUDA_MPS_PIPE_DIRECTORY")
    if mps:
        found, fix = [*found, "MPS"], [*fix, *mps]
    return Finding("warn", f"found {', '.join(found)}", fix=tuple(fix)) if found else Finding("ok", "none")


def check_native_limits(surroundings: Surroundings) -> Finding:
    if locate.detect_driver() == "sim":
        return Finding("skip", "no NVIDIA driver")
    try:
        version = surroundings.driver_version
    except OSError as error:
        return Finding("skip", str(error))
    if int(version.split(".")[0]) < NATIVE_LIMITS_SINCE:
        return Finding("skip", f"driver {version}; the driver's own limits come with r{NATIVE_LIMITS_SINCE}")
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return Finding("skip", f"driver {version} has limits of its own, but they need cgroup v2")
    return Finding("ok", f"driver {version} can enforce limits itself (nvidia-smi memory-limits)")


def check_unmanaged(surroundings: Surroundings) -> Finding:
    gpus = surroundings.client.status()["gpus"]
    found = [
        f"{format_bytes(gpu['unmanaged'])} on GPU {gpu['index']}{_pids(gpu['unmanaged_processes'])}"
        for gpu in gpus
        if gpu["unmanaged"] > UNMANAGED_WORTH_A_WORD
    ]
    return Finding("warn", ", ".join(found)) if found else Finding("ok", "none")


REASONS = {
    "static": "a static program, into which no library can be preloaded",
    "setuid": "a setuid program, for which the loader ignores LD_PRELOAD",
    "not_preloaded": "its environment was cleaned before it was started",
    "past_the_shim": "it has the library but does not use it: RTLD_DEEPBIND, or its own way to the driver",
    "unknown": "its memory cannot be read from here",
}


def check_escaped(surroundings: Surroundings) -> Finding:
    """Programs that a job started and that use a GPU without its budget."""
    found = [
        f"pid {process['pid']} ({process['command']}) of job {process['job']}: {REASONS[process['reason']]}"
        for gpu in surroundings.client.status()["gpus"]
        for process in gpu["unmanaged_processes"]
        if process["job"] and process["reason"] != "observed"
    ]
    return Finding("warn", "; ".join(dict.fromkeys(found))) if found else Finding("ok", "none")


def check_copies(surroundings: Surroundings) -> Finding:
    """Second copies of the driver, in the jobs' processes and among the loader's libraries."""
    found = [
        f"pid {process['pid']} ({process['command']}) of job {job['id']} has {count} beside the one that is counted"
        for job in surroundings.client.jobs()
        for process in job["processes"]
        if (count := process.get("driver_copies", 0))
    ]
    if found:
        return Finding("warn", "; ".join(found))
    files = driver_files(_loader_cache())
    if len(files) < 2:
        return Finding("ok", "none")
    return Finding("ok", f"{' and '.join(files)} are different files: a program that opens both gets the first one")


def driver_files(cache: str) -> list[str]:
    """The 64-bit drivers in the output of `ldconfig -p`: one path for each file."""
    paths = re.findall(r"^\s*libcuda\.so\S* \([^)]*64[^)]*\) => (\S+)$", cache, re.MULTILINE)
    files: dict[tuple[int, int], str] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            there = Path(path).stat()
            files.setdefault((there.st_dev, there.st_ino), path)
    return list(files.values())


def check_health(surroundings: Surroundings) -> Finding:
    """The GPUs' health as the daemon sees it: the worst decides."""
    gpus = surroundings.client.status()["gpus"]
    found = [(gpu["index"], one) for gpu in gpus for one in gpu["health"]["ailments"]]
    if not found:
        return Finding("ok", f"{len(gpus)} GPU{' is' if len(gpus) == 1 else 's are'} well")
    detail = "; ".join(f"GPU {index} is {one['state']}: {one['text']}" for index, one in found)
    hint = "; ".join(dict.fromkeys(one["hint"] for _, one in found))
    state = "warn" if all(one["state"] == "degraded" for _, one in found) else "fail"
    reset = [gpu["uuid"] for gpu in gpus if any(RESET in one["hint"] for one in gpu["health"]["ailments"])]
    return Finding(state, detail, hint, _reset(reset, surroundings.client.version()["scope"]) if reset else ())


def check_variables(surroundings: Surroundings) -> Finding:
    settings, environ = surroundings.settings, surroundings.environ
    try:
        settings.budget()
        settings.integer("GPUSHARE_PRIORITY")
        settings.duration("GPUSHARE_GRACE")
        for name in ("GPUSHARE_DRIVER", "GPUSHARE_VISIBLE", "GPUSHARE_LOG", "GPUSHARE_MODE"):
            settings.choice(name)
    except UsageError as error:
        wrong = [name for name in environ if error.message.startswith(f"{name}=")]
        return Finding("fail", error.message, error.hint, tuple(f"unset {name}" for name in wrong))
    unknown = [name for name in sorted(environ) if name.startswith(PREFIX) and name not in BY_NAME]
    problems = [*settings.warnings, *unknown_variables(environ)]
    fix = tuple(f"unset {name}" for name in unknown)
    return Finding("warn", "; ".join(problems), fix=fix) if problems else Finding("ok", "no conflicts")


def check_container(surroundings: Surroundings) -> Finding:
    environ = surroundings.environ
    marks = [path for path in ("/.dockerenv", "/run/.containerenv") if Path(path).exists()]
    if not marks and "KUBERNETES_SERVICE_HOST" not in environ and "container" not in environ:
        return Finding("ok", "not in a container")
    if _is_there(SYSTEM_DIR / "api.sock"):
        return Finding("ok", "in a container, with the node's daemon mounted")
    return Finding("warn", "in a container: this user's daemon sees only the jobs and processes in here")


def check_glibc(_: Surroundings) -> Finding:
    """The preloaded library and the software driver must load. The other libraries are for gpushare.enable() only."""
    here = glibc.here()
    if here is None:
        return Finding(
            "fail", "the C library is not glibc", "NVIDIA's driver needs glibc too: use an image that has it"
        )
    built = [path for path in (library(), *software_driver_dir().glob("*.so.1")) if path.exists()]
    late = sorted(library().parent.glob("libgpushare-late*.so"))
    try:
        needed = {path.name: glibc.needed(path) for path in (*built, *late)}
    except (OSError, ValueError) as error:
        return Finding("fail", str(error), "reinstall gpushare", gpushare_installation.reinstall())
    wanting = [path.name for path in (*built, *late) if needed[path.name] > here]
    named = wanting or [name for name in (library().name, attach_library().name) if name in needed]
    detail = f"glibc {glibc.text(here)}; " + (
        ", ".join(f"{name} needs {glibc.text(needed[name])}" for name in named) or "no library of gpushare is there"
    )
    if any(path.name in wanting for path in built):
        return Finding("fail", detail, fix=gpushare_installation.reinstall())
    if library() not in built:
        return Finding("fail", detail, fix=gpushare_installation.reinstall())
    if wanting:
        return Finding(
            "warn",
            f"{detail}: gpushare.enable() cannot work here",
            "start notebooks with `gpushare run`, or a kernel made by `gpushare kernel`: these need another library",
            ("gpushare kernel install",),
        )
    return Finding("ok", detail)


def check_installation(_: Surroundings) -> Finding:
    found = gpushare_installation.problems()
    if found:
        fix = dict.fromkeys(line for problem in found for line in problem.fix)
        return Finding("fail", "; ".join(problem.text for problem in found), fix=tuple(fix))
    version = gpushare_installation.distribution()
    return Finding("ok", f"{gpushare_installation.NAME} {__version__}" if version else f"{PACKAGE}, not installed")


CHECKS = (
    Check(
        "GS01",
        "NVIDIA driver and NVML",
        check_driver,
        "if this machine has a GPU, `nvidia-smi` must list it; without one, programs run on the software driver",
    ),
    Check("GS02", "library loads", check_shim_loads, "reinstall gpushare on this machine, with this C library"),
    Check("GS03", "daemon", check_daemon, "restart the daemon after an upgrade: it is of another version"),
    Check("GS04", "memory layouts", check_layout, "reinstall gpushare: its compiled parts are of another version"),
    Check("GS05", "other preload libraries", check_interposers, "use one at a time: two count the same memory twice"),
    Check("GS06", "runtime directory", check_runtime_dir, "remove it, or set XDG_RUNTIME_DIR"),
    Check("GS07", "limits in the driver", check_native_limits, ""),
    Check(
        "GS08", "memory outside gpushare", check_unmanaged, "guarantees hold only for what runs under `gpushare run`"
    ),
    Check("GS09", "environment variables", check_variables, "unset what you do not mean"),
    Check(
        "GS10",
        "container",
        check_container,
        "if its node runs the system's daemon, start it with --pid=host -v /run/gpushare:/run/gpushare",
    ),
    Check(
        "GS11",
        "C library",
        check_glibc,
        "install gpushare from its source tree on this machine: the installed one was built for a newer C library",
    ),
    Check(
        "GS12",
        "programs without the library",
        check_escaped,
        "link them to the driver dynamically, or leave room for them yourself",
    ),
    Check("GS13", "health of the GPUs", check_health, "see `gpushare status`"),
    Check(
        "GS14",
        "installation",
        check_installation,
        "install gpushare again, from the source tree or the wheel that it came from",
    ),
    Check(
        "GS15",
        "copies of the driver",
        check_copies,
        "let the program load one driver, in its own namespace: what it allocates through another may pass the limit",
    ),
)


# ---- repairs ---------------------------------------------------------------------------------------

RESET = "--gpu-reset"
"""The hint of a health issue contains this if a reset ends the issue."""


def _restart(scope: str) -> tuple[str, ...]:
    """Commands that restart the daemon. The next `gpushare run` starts a user's own daemon again."""
    return ("sudo systemctl restart gpushared",) if scope == "system" else ("gpushare daemon stop",)


def _reset(uuids: Sequence[str], scope: str) -> tuple[str, ...]:
    resets = tuple(f"sudo nvidia-smi --gpu-reset -i {uuid}" for uuid in uuids)
    if scope == "system":
        return ("sudo systemctl stop gpushared", *resets, "sudo systemctl start gpushared")
    return ("gpushare daemon stop", *resets)


def _make_ours(directory: Path) -> tuple[str, ...]:
    found = directory.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
        return (f"chmod 700 {shlex.quote(str(directory))}",)
    if found.st_uid == os.getuid():
        return (f"rm {shlex.quote(str(directory))}",)
    return ('export XDG_RUNTIME_DIR="$(mktemp -d)"',)


def _has_nvidia_hardware() -> bool:
    return any(
        _read(f"{device}/vendor").strip() == NVIDIA and _read(f"{device}/class").startswith(DISPLAY)
        for device in Path("/sys/bus/pci/devices").glob("*")
    )


# ---- asking ----------------------------------------------------------------------------------------


def _pids(processes: Sequence[UnmanagedProcess]) -> str:
    shown = ", ".join(f"{one['command']}[{one['pid']}]" for one in processes[:3])
    return f" ({shown}{', ...' if len(processes) > 3 else ''})" if shown else ""


def _ask_nvml() -> tuple[str, int]:
    """Driver version and number of GPUs. Raises OSError if NVML does not answer."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            version: Any = pynvml.nvmlSystemGetDriverVersion()
            return (version if isinstance(version, str) else version.decode()), int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise OSError(str(error)) from None


def _preload_problem(command: list[str], environ: Mapping[str, str]) -> str | None:
    # If a library cannot be preloaded, the loader says so on stderr and starts the program anyway.
    result = subprocess.run(
        command,
        env={**environ, "LD_PRELOAD": str(library()), "LD_BIND_NOW": "1"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=30,
        check=False,
    )
    if result.returncode or result.stderr:
        return result.stderr.strip().splitlines()[0] if result.stderr.strip() else f"exit code {result.returncode}"
    return None


def _loader_cache() -> str:
    ldconfig = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if ldconfig is None:
        return ""
    return subprocess.run([ldconfig, "-p"], capture_output=True, text=True, errors="replace", check=False).stdout


def _is_there(path: Path) -> bool:
    """Whether it exists. True also if its directory is closed to us."""
    try:
        return path.exists()
    except OSError:
        return True


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _runs(name: str) -> bool:
    return any(_read(f"{path}/comm").startswith(name[:15]) for path in Path("/proc").glob("[0-9]*"))
