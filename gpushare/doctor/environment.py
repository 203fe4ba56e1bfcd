"""Checks of what surrounds a job: other libraries that are preloaded, environment variables, a container."""

from __future__ import annotations

import re
from pathlib import Path

from gpushare.doctor.finding import Finding, Surroundings, is_there, read
from gpushare.env import BY_NAME, PREFIX, unknown_variables
from gpushare.errors import UsageError
from gpushare.paths import SYSTEM_DIR

__all__ = ["check_container", "check_interposers", "check_variables"]

OTHER_INTERPOSERS = ("libvgpu.so", "libnvshare.so", "libcuda_hook.so", "libgemhook.so", "libtorch_memory_saver")
PRELOAD_FILE = "/etc/ld.so.preload"


def check_interposers(surroundings: Surroundings) -> Finding:
    in_variable, in_file = surroundings.environ.get("LD_PRELOAD", ""), read(PRELOAD_FILE)
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


def _runs(name: str) -> bool:
    return any(read(f"{path}/comm").startswith(name[:15]) for path in Path("/proc").glob("[0-9]*"))


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
    if is_there(SYSTEM_DIR / "api.sock"):
        return Finding("ok", "in a container, with the node's daemon mounted")
    return Finding("warn", "in a container: this user's daemon sees only the jobs and processes in here")
