"""What has been prepared, on disk: one file for each claim, so that a restart loses nothing and leaves nothing behind.

A record is written before anything is made for a claim, and it is removed when all of that is gone. The kubelet asks
again after its own restart, and the API server may be away then: the answer is in the record. A file that a power
failure has cut counts as none.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

__all__ = ["Record", "Records", "is_uid"]

log = logging.getLogger(__name__)
UID = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_")


@dataclass(frozen=True, slots=True)
class Record:
    """A claim that the kubelet has asked to prepare."""

    uid: str
    namespace: str
    name: str
    placement: str
    """Its name at the node daemon. Each time that a claim is prepared again it has another."""
    body: Mapping[str, Any]
    """Of the placement's request."""
    spec: Mapping[str, Any]
    """Of its CDI file."""
    devices: Sequence[Mapping[str, Any]]
    """As the kubelet is told: request, pool, device, cdi."""
    done: bool = False
    """All that belongs to it has been made."""


class Records:
    """A folder of this process alone."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder

    def get(self, uid: str) -> Record | None:
        """None: there is none that can be read."""
        if not is_uid(uid):
            return None
        path = self._path(uid)
        try:
            found = Record(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, RecursionError) as error:
            log.warning("cannot read %s: %s", path, error)
            return None
        return found if found.uid == uid else None

    def put(self, record: Record) -> None:
        """In place at once. It need not outlive a power failure: no program of the claim does. Raises OSError."""
        path = self._path(record.uid)
        fresh = path.with_suffix(f".{os.getpid()}.tmp")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(record), file)
        fresh.replace(path)

    def finish(self, record: Record) -> Record:
        done = replace(record, done=True)
        self.put(done)
        return done

    def drop(self, uid: str) -> None:
        self._path(uid).unlink(missing_ok=True)

    def __iter__(self) -> Iterator[Record]:
        for path in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(FileNotFoundError):
                record = self.get(path.stem)
                if record is not None:
                    yield record

    def _path(self, uid: str) -> Path:
        return self._folder / f"{uid}.json"


def is_uid(text: str) -> bool:
    """It can be the name of a file, and of a device."""
    return 0 < len(text) <= 128 and UID.issuperset(text)
