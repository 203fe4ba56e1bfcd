"""What a claim's containers are given on their node, once its placement is there.

* A claim of Kubernetes has a CDI file, which the kubelet's answer names (cdi.py).
* A claim that its pod carries (carried.py) has the library in a folder of its own, the gate of the pod: a volume is
  that file, and the kubelet starts no container before it is there. Variables and mounts are in the pod, by the
  webhook.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpushare.container import Inside
from gpushare.kubernetes import cdi
from gpushare.kubernetes.records import Record

__all__ = ["Handover"]

GATE = "gate"
"""Of a record's spec: the name of the folder; "": its pod has none."""
LIBRARY, OWNER = "libgpushare.so", "claim"
"""Files in it: the library, and the claim's uid."""


class Handover:
    def __init__(self, inside: Inside, files: Path, gates: Path) -> None:
        """`files`: the folder of CDI files. `gates`: that of the pods' folders."""
        self._inside = inside
        self._files = files
        self._gates = gates

    def job(self, claim: Mapping[str, Any]) -> str:
        """The id that its job is to have. A pod's variables say it already: the webhook has made it of the gate."""
        return str(claim.get(GATE) or "")[:16] or secrets.token_hex(8)

    def spec(
        self, claim: Mapping[str, Any], uid: str, body: Mapping[str, Any], more: Mapping[str, str]
    ) -> dict[str, Any]:
        """Of its record. `body`: of its placement. `more`: further variables."""
        return {GATE: claim[GATE] or ""} if GATE in claim else cdi.spec(uid, body, more, self._inside)

    def give(self, record: Record) -> None:
        """Raises OSError."""
        if GATE not in record.spec:
            cdi.write(record.uid, record.spec, self._files)
        elif record.spec[GATE]:
            self._open(self._gates / record.spec[GATE], record.uid)

    def lacks(self, record: Record) -> bool:
        """It is prepared, and what it was given is gone."""
        if GATE not in record.spec:
            return record.uid not in cdi.claims_with_files(self._files)
        return bool(record.spec[GATE]) and not (self._gates / record.spec[GATE] / LIBRARY).exists()

    def take(self, uid: str) -> None:
        """Nothing of it is left. Raises OSError."""
        cdi.remove(uid, self._files)
        for folder, owner in self._opened().items():
            if owner == uid:
                shutil.rmtree(folder, ignore_errors=True)

    def uids(self) -> set[str]:
        """Of claims that something was given to."""
        return {*cdi.claims_with_files(self._files), *self._opened().values()}

    def _open(self, folder: Path, uid: str) -> None:
        """The library comes last, and at once. It is a copy: a pod that is made to write there changes no other's."""
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        (folder / OWNER).write_text(uid)
        fresh = folder / f".{LIBRARY}.{os.getpid()}"
        fresh.unlink(missing_ok=True)
        shutil.copy(self._inside.library, fresh)
        fresh.replace(folder / LIBRARY)

    def _opened(self) -> dict[Path, str]:
        """Folders, and whose they are."""
        found = {}
        for path in self._gates.glob(f"*/{OWNER}"):
            with contextlib.suppress(OSError):
                found[path.parent] = path.read_text()
        return found
