"""Collections of the API server as they are: listed once, then watched, each by a thread of its own.

A watch goes on from the version that was seen last, so nothing is missed while the API server is away. Where it no
longer knows that version (410 Gone), the collection is listed again. What this process has written itself counts at
once: the newer of two versions of an object is the one that is kept.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from gpushare.cluster.engines.kubernetes.names import Key, Thing, key_of
from gpushare.errors import GpushareError, NoSuchJob
from gpushare.kubernetes.server import Answer, Server, Stream

__all__ = ["Watched", "version"]

log = logging.getLogger(__name__)

PAGE = 500
"""Objects of one answer."""
LASTS = 240
"""Seconds after which the API server ends a watch, and the next begins."""
SILENCE = LASTS + 30.0
FIRST, MOST = 0.1, 5.0
"""Seconds until an API server that does not answer is asked again."""
ABSENT = 60.0
"""Seconds until an API server that does not know the collection is asked again."""
GONE = 410
UNLISTED = "it was not listed yet"


class _Expired(Exception):
    """The API server no longer knows the version that was seen last."""


def version(thing: Thing) -> int:
    """Grows with each change of any object of a collection."""
    return int(thing["metadata"].get("resourceVersion") or 0)


class Watched:
    """One collection. `keep` makes of an object what is worth its memory; `changed` is called by the thread."""

    def __init__(
        self,
        server: Server,
        path: str,
        changed: Callable[[], None],
        *,
        keep: Callable[[dict[str, Any]], Thing] = lambda thing: thing,
        optional: bool = False,
        others: Sequence[str] = (),
        selector: str = "",
    ) -> None:
        """`others`: where it is on other servers, if it is not there. `selector`: of a query, which of its objects."""
        self.path = path
        self._selected = f"&{selector}" if selector else ""
        self._paths = (path, *others)
        self._server = server
        self._changed = changed
        self._keep = keep
        self._optional = optional
        self._lock = threading.Condition()
        self._objects: dict[Key, Thing] = {}
        self._version = ""
        """Up to which everything was seen; "": list it."""
        self._trouble = UNLISTED
        self._unknown = False
        """The API server does not know the collection."""
        self.lists = 0
        """How often it was listed whole."""
        self.watches = 0
        """How often a watch of it began."""
        self._over = threading.Event()
        self._stream: Stream | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {path.rpartition('/')[2]}", daemon=True)
        self._thread.start()

    @property
    def absent(self) -> bool:
        """The API server does not know the collection."""
        with self._lock:
            return self._unknown

    @property
    def seen(self) -> int:
        """The version up to which everything was seen."""
        return int(self._version or 0)

    @property
    def trouble(self) -> str:
        """Why what it shows may not be as it is; "": it is."""
        with self._lock:
            return self._trouble

    def objects(self, within: float) -> tuple[dict[Key, Thing], str]:
        """All, and what is wrong with that ("": nothing). Waits so many seconds for the first list; of what may be
        absent, for the first answer."""
        with self._lock:
            self._lock.wait_for(lambda: self._version or self._over.is_set() or not self._is_awaited(), within)
            return dict(self._objects), self._trouble

    def _is_awaited(self) -> bool:
        return self._trouble == UNLISTED if self._optional else bool(self._trouble)

    def get(self, key: Key) -> Thing | None:
        with self._lock:
            return self._objects.get(key)

    def put(self, thing: dict[str, Any]) -> None:
        """What the API server has answered to a write."""
        with self._lock:
            key = key_of(thing)
            known = self._objects.get(key)
            if version(thing) >= (self.seen + 1 if known is None else version(known)):
                self._objects[key] = self._keep(thing)

    def close(self) -> None:
        self._over.set()
        with self._lock:
            if self._stream is not None:
                self._stream.end()
            self._lock.notify_all()
        self._thread.join()

    # ---- the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = FIRST
        while not self._over.is_set():
            try:
                if not self._version:
                    self._list()
                self._watch()
                pause = FIRST
                continue
            except _Expired:
                self._version = ""
                continue
            except NoSuchJob as error:
                pause = self._absent(error)
            except GpushareError as error:
                self._say(f"{self.path}: {error}")
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self._version = ""
                self._say(f"{self.path}: what it lists is none of its objects: {error}")
            self._over.wait(pause)
            pause = min(2 * pause, MOST)

    def _absent(self, error: Exception) -> float:
        if not self._optional:
            self._say(f"{self.path}: {error}")
            return MOST
        place = self._paths.index(self.path) + 1
        self.path = self._paths[place % len(self._paths)]
        if place < len(self._paths):
            return 0.0
        with self._lock:
            self._objects, self._version, self._trouble, self._unknown = {}, "", "", True
            self._lock.notify_all()
        return ABSENT

    def _list(self) -> None:
        found: dict[Key, Thing] = {}
        more = ""
        while True:
            answer = self._server.ask("GET", f"{self.path}?limit={PAGE}{self._selected}{more}")
            found |= {key_of(one): self._keep(one) for one in answer.get("items") or ()}
            token = answer["metadata"].get("continue")
            if not token:
                break
            more = f"&continue={token}"
        listed = int(answer["metadata"]["resourceVersion"])
        with self._lock:
            self.lists += 1
            fresh = {key: one for key, one in self._objects.items() if version(one) > listed}
            self._objects = found | fresh
            self._version = str(listed)
            self._trouble, self._unknown = "", False
            self._lock.notify_all()
        self._changed()

    def _watch(self) -> None:
        said = (
            f"watch=1&allowWatchBookmarks=true&timeoutSeconds={LASTS}&resourceVersion={self._version}{self._selected}"
        )
        try:
            stream = self._server.stream(f"{self.path}?{said}", SILENCE)
        except Answer as error:
            if error.status == GONE:
                raise _Expired from None
            raise
        with self._lock:
            self._stream, self._trouble = stream, ""
            self.watches += 1
            if self._over.is_set():
                stream.end()
        try:
            for event in stream.objects():
                self._note(event)
        finally:
            with self._lock:
                self._stream = None

    def _note(self, event: Thing) -> None:
        thing = event["object"]
        if event["type"] == "ERROR":
            log.info("%s: the watch ends: %s", self.path, thing.get("message"))
            raise _Expired
        with self._lock:
            if event["type"] == "DELETED":
                self._objects.pop(key_of(thing), None)
            elif event["type"] != "BOOKMARK":
                known = self._objects.get(key_of(thing))
                if known is None or version(thing) > version(known):
                    self._objects[key_of(thing)] = self._keep(thing)
            self._version = str(max(self.seen, version(thing)))
            self._lock.notify_all()
        if event["type"] != "BOOKMARK":
            self._changed()

    def _say(self, trouble: str) -> None:
        with self._lock:
            told, self._trouble = self._trouble, trouble
            self._lock.notify_all()
        if told != trouble and not self._over.is_set():
            log.warning("%s", trouble)
