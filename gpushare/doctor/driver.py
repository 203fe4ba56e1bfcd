"""Checks of NVIDIA's driver: is it there, what can it do, is there a second copy of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from gpushare import checkpoint, locate, suspend_check
from gpushare.doctor.finding import Finding, Surroundings, ask_nvml, read
from gpushare.paths import software_driver_dir
from gpushare.quantity import format_bytes

__all__ = ["check_copies", "check_driver", "check_native_limits", "check_suspend", "driver_files"]

NATIVE_LIMITS_SINCE = 615
NVIDIA, DISPLAY = "0x10de", "0x03"  # on the PCI bus: the vendor, and the class of GPUs with and without a screen


def check_driver(_: Surroundings) -> Finding:
    if locate.detect_driver() == "sim":
        problem = _problem_of_software_driver()
        if problem:
            return Finding("fail", f"the software driver does not start: {problem}")
        fix = ("sudo modprobe nvidia", "sudo nvidia-modprobe -u") if _has_nvidia_hardware() else ()
        return Finding("warn", "no NVIDIA driver: the software driver stands in", fix=fix)
    try:
        version, count = ask_nvml()
    except OSError as error:
        return Finding("fail", f"the driver is there, but NVML does not answer: {error}")
    return Finding("ok", f"driver {version}, {count} GPU{'' if count == 1 else 's'}")


def _problem_of_software_driver() -> str:
    """What it says of its settings in GPUSHARE_SIM; "": they are good."""
    if "GPUSHARE_SIM" not in os.environ:
        return ""
    code = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).nvmlInit_v2() and 1)"
    library = software_driver_dir() / "libnvidia-ml.so.1"
    line = [sys.executable, "-c", code, str(library)]
    tried = subprocess.run(line, stderr=subprocess.PIPE, text=True, timeout=20, check=False)
    said = tried.stderr.strip().splitlines()
    return said[-1].removeprefix("gpushare software driver: ") if tried.returncode and said else ""


def _has_nvidia_hardware() -> bool:
    return any(
        read(f"{device}/vendor").strip() == NVIDIA and read(f"{device}/class").startswith(DISPLAY)
        for device in Path("/sys/bus/pci/devices").glob("*")
    )


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


def check_suspend(_: Surroundings) -> Finding:
    """What the check of suspending has found, which the first job that may be suspended runs (suspend_check.py)."""
    if locate.detect_driver() == "sim":
        return Finding("skip", "no NVIDIA driver")
    try:
        version = checkpoint.DriverCheckpoints().version()
    except checkpoint.DriverError as error:
        return Finding("skip", str(error))
    result = suspend_check.kept(suspend_check.result_file(os.environ), version)
    if result is None:
        return Finding("skip", "not tried yet: the first run with --on-reclaim suspend tries it")
    if not result["good"]:
        return Finding("warn", f"jobs are not suspended: {result['problem']}")
    out, back = (format_bytes(int(result["bytes"] / max(span, 1e-6))) for span in (result["out"], result["back"]))
    return Finding("ok", f"tried with {format_bytes(result['bytes'])}: {out} a second out, {back} a second back")


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


def _loader_cache() -> str:
    ldconfig = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if ldconfig is None:
        return ""
    return subprocess.run([ldconfig, "-p"], capture_output=True, errors="replace", check=False).stdout
