"""Where the containers of a pod run: the pod's cgroup, by the pod's uid.

The kubelet makes it before it prepares the pod's claims. Its path depends on the kubelet's settings and on the pod's
class of service. So it is looked for, and not put together: its last part is `podUID`, or `...-podUID.slice` under
systemd, with underscores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["CGROUPS", "below", "of_pods", "tops"]

CGROUPS = Path("/sys/fs/cgroup")
DEEPEST = 8
"""Folders below the top that are looked through."""
KUBELET = "kubepods"
"""How the name of the kubelet's own cgroup ends, without `.slice`."""
CLASSES = 2
"""Below it there are pods, and classes of service with pods."""


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


def tops(paths: Iterable[str]) -> set[str]:
    """The kubelet's own cgroup, from those of pods."""
    found = set()
    for path in paths:
        parts = path.split("/")
        place = next((place for place, part in enumerate(parts) if part.removesuffix(".slice").endswith(KUBELET)), None)
        if place is not None:
            found.add("/".join(parts[: place + 1]))
    return found


def below(kubelets: Iterable[str], top: Path = CGROUPS) -> set[str]:
    """Names of the cgroups of all pods there. Cheap enough for several times a second."""
    roots = _hierarchies(top)
    there = [[path for root in roots if (path := Path(f"{root}{name}")).is_dir()] for name in kubelets]
    return {one.name for paths in there for path in paths[:1] for one in _folders(path, CLASSES) if _is_pod(one.name)}


def _is_pod(name: str) -> bool:
    return name.startswith("pod") or "-pod" in name


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
            if not _is_pod(one.name):
                yield from _folders(one, deeper - 1)
