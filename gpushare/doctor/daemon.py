"""Checks of the daemon and its directory, and of what it knows: GPUs that ail, memory that it does not manage."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path

from gpushare import __version__, locate
from gpushare.api import UnmanagedProcess
from gpushare.doctor.finding import Finding, State, Surroundings, is_there
from gpushare.errors import DaemonUnreachable, NotPermitted
from gpushare.paths import SYSTEM_DIR, Runtime, user_dir
from gpushare.quantity import format_bytes

__all__ = ["check_daemon", "check_escaped", "check_health", "check_runtime_dir", "check_unmanaged"]

UNMANAGED_WORTH_A_WORD = 256 * 2**20

RESET = "--gpu-reset"
"""The hint of a health issue contains this if a reset ends the issue."""

REASONS = {
    "static": "a static program, into which no library can be preloaded",
    "setuid": "a setuid program, for which the loader ignores LD_PRELOAD",
    "not_preloaded": "its environment was cleaned before it was started",
    "past_the_shim": "it has the library but does not use it: RTLD_DEEPBIND, or its own way to the driver",
    "unknown": "its memory cannot be read from here",
}


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
        scope = "system" if is_there(SYSTEM_DIR / "api.sock") else "user"
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


def _restart(scope: str) -> tuple[str, ...]:
    """Commands that restart the daemon. The next `gpushare run` starts a user's own daemon again."""
    return ("sudo systemctl restart gpushared",) if scope == "system" else ("gpushare daemon stop",)


def check_runtime_dir(surroundings: Surroundings) -> Finding:
    for driver in ("nvidia", "sim"):
        directory = user_dir(driver, surroundings.environ)
        if directory.is_symlink() or directory.exists():
            try:
                Runtime(directory).check()
            except NotPermitted as error:
                return Finding("fail", error.message, error.hint, _make_ours(directory))
    return Finding("ok", str(user_dir("nvidia", surroundings.environ).parent))


def _make_ours(directory: Path) -> tuple[str, ...]:
    found = directory.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
        return (f"chmod 700 {shlex.quote(str(directory))}",)
    if found.st_uid == os.getuid():
        return (f"rm {shlex.quote(str(directory))}",)
    return ('export XDG_RUNTIME_DIR="$(mktemp -d)"',)


def check_health(surroundings: Surroundings) -> Finding:
    """The GPUs' health as the daemon sees it: the worst decides."""
    gpus = surroundings.client.status()["gpus"]
    found = [(gpu["index"], one) for gpu in gpus for one in gpu["health"]["ailments"]]
    if not found:
        return Finding("ok", f"{len(gpus)} GPU{' is' if len(gpus) == 1 else 's are'} well")
    detail = "; ".join(f"GPU {index} is {one['state']}: {one['text']}" for index, one in found)
    hint = "; ".join(dict.fromkeys(one["hint"] for _, one in found))
    state: State = "warn" if all(one["state"] == "degraded" for _, one in found) else "fail"
    reset = [gpu["uuid"] for gpu in gpus if any(RESET in one["hint"] for one in gpu["health"]["ailments"])]
    return Finding(state, detail, hint, _reset(reset, surroundings.client.version()["scope"]) if reset else ())


def _reset(uuids: Sequence[str], scope: str) -> tuple[str, ...]:
    resets = tuple(f"sudo nvidia-smi --gpu-reset -i {uuid}" for uuid in uuids)
    if scope == "system":
        return ("sudo systemctl stop gpushared", *resets, "sudo systemctl start gpushared")
    return ("gpushare daemon stop", *resets)


def check_unmanaged(surroundings: Surroundings) -> Finding:
    gpus = surroundings.client.status()["gpus"]
    found = [
        f"{format_bytes(gpu['unmanaged'])} on GPU {gpu['index']}{_pids(gpu['unmanaged_processes'])}"
        for gpu in gpus
        if gpu["unmanaged"] > UNMANAGED_WORTH_A_WORD
    ]
    return Finding("warn", ", ".join(found)) if found else Finding("ok", "none")


def _pids(processes: Sequence[UnmanagedProcess]) -> str:
    shown = ", ".join(f"{one['command']}[{one['pid']}]" for one in processes[:3])
    return f" ({shown}{', ...' if len(processes) > 3 else ''})" if shown else ""


def check_escaped(surroundings: Surroundings) -> Finding:
    """Programs that a job started and that use a GPU without its budget."""
    found = [
        f"pid {process['pid']} ({process['command']}) of job {process['job']}: {REASONS[process['reason']]}"
        for gpu in surroundings.client.status()["gpus"]
        for process in gpu["unmanaged_processes"]
        if process["job"] and process["reason"] != "observed"
    ]
    return Finding("warn", "; ".join(dict.fromkeys(found))) if found else Finding("ok", "none")
