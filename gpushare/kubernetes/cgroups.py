"""Where the containers of a pod run: the pod's cgroup, by the pod's uid.

The kubelet makes it before it prepares the pod's claims. Its path depends on the kubelet's settings and on the pod's
class of service. So it is looked for, and not put together: its last part is `podUID`, or `...-podUID.slice` under
systemd, with underscores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["CGROUPS", "of_pods"]

CGROUPS = Path("/sys/fs/cgroup")
DEEPEST = 8
"""Folders below the top that are looked through."""


def of_pods(pods: Iterable[str], top: Path = CGROUPS) -> dict[str, str]:
    """Uid of a pod -> path of its cgroup, as /proc/PID/cgroup has it. Those that are not there are left out."""
    wanted = {name: uid for uid in pods for name in (f"pod{uid}", f"pod{uid.replace('-', '_')}.slice")}
    found: dict[str, str] = {}
    for root in _hierarchies(top):
        for folder in _folders(root, DEEPEST):
            uid = wanted.get(folder.name) or wanted.get(folder.name.rpartition("-")[2])
            if uid is not None and uid not in found:
                found[uid] = f"/{folder.relative_to(root)}"
            if len(found) == len(wanted) // 2:
                return found
    return found


def _hierarchies(top: Path) -> list[Path]:
    """One with cgroup v2. With v1 a pod has the same path in each; here those that the kubelet uses."""
    if (top / "cgroup.controllers").exists():
        return [top]
    return [path for path in (top / "memory", top / "pids", top / "cpu", top / "systemd") if path.is_dir()]


def _folders(folder: Path, deeper: int) -> Iterator[Path]:
    try:
        inside = [Path(one.path) for one in os.scandir(folder) if one.is_dir(follow_symlinks=False)]
    except OSError:
        return  # it is gone
    yield from inside
    if deeper > 1:
        for one in inside:
            if not one.name.startswith("pod") and "-pod" not in one.name:
                yield from _folders(one, deeper - 1)
