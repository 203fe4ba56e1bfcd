"""A stand-in for the API server that schedulers can work with: lists, watches, patches, bindings, evictions.

It keeps what a real one keeps: versions that grow with each change and only then, 409 for what has changed, 410 for a
version that it has forgotten, 429 for an eviction that a budget of disruption forbids, annotations of bindings. What
controllers and kubelets do is in kube_cluster.py. tests/kubernetes/test_scheduler_real.py asks a real server.
"""

from __future__ import annotations

import bisect
import copy
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from api_double import ApiDouble

Object = dict[str, Any]
NAMED = re.compile(r"(/api/v1|/apis/[^/]+/[^/]+)(/namespaces/[^/]+(?=/))?/([a-z]+)/([^/]+)(/[a-z]+)?")
OF_NAMESPACE = re.compile(r"(/api/v1|/apis/[^/]+/[^/]+)/namespaces/[^/]+/[a-z]+")
SUBRESOURCES = ("status", "binding", "eviction")


def collection(path: str) -> str:
    """Of an object's path, that of all objects of its kind in the cluster."""
    found = NAMED.fullmatch(path)
    assert found is not None, path
    return f"{found[1]}/{found[3]}"


def is_collection(path: str) -> bool:
    """Of the cluster, or of a namespace."""
    return NAMED.fullmatch(path) is None or OF_NAMESPACE.fullmatch(path) is not None


def is_selected(one: Object, query: dict[str, list[str]]) -> bool:
    """By a selector of fields in `spec`, if there is one."""
    said = [
        word.removeprefix("spec.").partition("=") for text in query.get("fieldSelector", ()) for word in text.split(",")
    ]
    return all(one.get("spec", {}).get(name) == value for name, _, value in said)


class ClusterDouble(ApiDouble):
    def __init__(self, folder: Path) -> None:
        self.log: dict[str, list[tuple[int, str, bytes]]] = {}
        """Of each collection: version, type, object."""
        self.oldest = 0
        """Events up to here are forgotten."""
        self.refuses: Callable[[str, str, Any], tuple[int, Object] | None] = lambda _method, _path, _body: None
        """What a test wants to be answered to a request; None: as usual."""
        self.events = threading.Condition()
        self._serves = True
        super().__init__(folder)

    def start(self) -> None:
        self._serves = True
        super().start()

    def stop(self) -> None:
        with self.events:
            self._serves = False
            self.events.notify_all()
        super().stop()

    def forget(self) -> None:
        """All events so far: who has not seen them has to list again. Watches end."""
        with self.events:
            self.oldest = self._version
            self.log = {}
            self._serves = False
            self.events.notify_all()
            self._serves = True

    def newest(self, kind: str) -> int:
        """The version of the last change of a collection."""
        with self._lock:
            return self.log[kind][-1][0] if self.log.get(kind) else 0

    # ---- objects ---------------------------------------------------------------------------------------

    def _store(self, path: str, found: Object) -> Object:
        known = self.objects.get(path)
        stored = super()._store(path, found)
        self._log("ADDED" if known is None else "MODIFIED", path, stored)
        return stored

    def _log(self, what: str, path: str, one: Object) -> None:
        with self.events:
            entry = self._version, what, json.dumps(one).encode()
            self.log.setdefault(collection(path), []).append(entry)
            self.events.notify_all()

    def change(self, path: str, change: Callable[[Object], object]) -> None:
        """As a controller does."""
        with self._lock:
            known = copy.deepcopy(self.objects[path])
            change(known)
            self._store(path, known)

    def remove(self, path: str) -> None:
        with self._lock:
            self._remove(path)

    def _remove(self, path: str) -> Object:
        one = self.objects.pop(path)
        self._version += 1
        one["metadata"]["resourceVersion"] = str(self._version)
        self._log("DELETED", path, one)
        return one

    # ---- requests --------------------------------------------------------------------------------------

    def handle(self, method: str, path: str, body: Any, headers: Any) -> tuple[int, Object]:
        asked = urlsplit(path)
        with self._lock:
            refused = self.refuses(method, asked.path, body)
        if refused is not None:
            self.requests.append((method, asked.path))
            return refused
        if f"{asked.path}/".startswith(self.lacks):
            return super().handle(method, path, body, headers)
        parent, _, last = asked.path.rpartition("/")
        if method == "POST" and last in SUBRESOURCES:
            return self._sub(last, parent, body)
        if method == "POST" and body["metadata"].get("generateName"):
            body["metadata"]["name"] = f"{body['metadata']['generateName']}{self._version}"
        if method == "PATCH" and "apply-patch" not in headers["Content-Type"]:
            return self._patch(asked.path, body)
        if method == "DELETE":
            return self._sub("", asked.path, {"deleteOptions": body or {}})
        if method == "GET" and asked.path not in self.objects and is_collection(asked.path):
            return self._list(asked.path, parse_qs(asked.query))
        return super().handle(method, path, body, headers)

    def _list(self, path: str, query: dict[str, list[str]]) -> tuple[int, Object]:
        with self._lock:
            self.requests.append(("GET", path))
            if self.fails:
                return self.fails, {"message": "as the test wants it"}
            found = [
                one
                for where, one in sorted(self.objects.items())
                if path in (collection(where), where.rpartition("/")[0]) and is_selected(one, query)
            ]
            first, size = int(query.get("continue", ["0"])[0]), int(query.get("limit", ["500"])[0])
            meta: Object = {"resourceVersion": str(self._version)}
            if len(found) > first + size:
                meta["continue"] = str(first + size)
            return 200, {"metadata": meta, "items": copy.deepcopy(found[first : first + size])}

    def _patch(self, path: str, body: Object) -> tuple[int, Object]:
        """Of the object without its status, or of its status alone."""
        with self._lock:
            self.requests.append(("PATCH", path))
            where = path.removesuffix("/status")
            known = self.objects.get(where)
            if known is None:
                return 404, {"message": f"{where} not found"}
            wanted = body.get("metadata", {}).get("resourceVersion")
            if wanted not in (None, known["metadata"]["resourceVersion"]):
                return 409, {"message": "the object has been modified"}
            parts = ("status",) if path.endswith("/status") else ("metadata", "spec", "data", "webhooks")
            merged = merge(known, {name: value for name, value in body.items() if name in parts})
            return 200, copy.deepcopy(known if merged == known else self._store(where, merged))

    def _sub(self, what: str, path: str, body: Object) -> tuple[int, Object]:
        with self._lock:
            self.requests.append(("POST", f"{path}/{what}") if what else ("DELETE", path))
            pod = self.objects.get(path)
            if pod is None:
                return 404, {"message": f"pods {path.rpartition('/')[2]!r} not found"}
            pod = copy.deepcopy(pod)
            return self._bind(path, pod, body) if what == "binding" else self._evict(path, pod, body)

    def _bind(self, path: str, pod: Object, body: Object) -> tuple[int, Object]:
        meta, known = body["metadata"], pod["metadata"]
        for name in ("uid", "resourceVersion"):
            if meta.get(name) not in (None, known[name]):
                return 409, {"message": f"the {name} in the precondition is not that of the pod"}
        if pod["spec"].get("nodeName") or known.get("deletionTimestamp"):
            return 409, {"message": f"pod {known['name']} is already assigned"}
        pod["spec"]["nodeName"] = body["target"]["name"]
        known["annotations"] = {**known.get("annotations", {}), **meta.get("annotations", {})}
        done = {"type": "PodScheduled", "status": "True"}
        pod["status"] = merge(pod.get("status", {}), {"conditions": [done]})
        self._store(path, pod)
        return 201, {"kind": "Status", "status": "Success"}

    def _evict(self, path: str, pod: Object, body: Object) -> tuple[int, Object]:
        options = body.get("deleteOptions") or {}
        for name, value in options.get("preconditions", {}).items():
            if value != pod["metadata"][name]:
                return 409, {"message": f"the {name} in the precondition is not that of the pod"}
        grace = options.get("gracePeriodSeconds", 30)
        if not pod["spec"].get("nodeName") or not grace:
            return 200, self._remove(path)
        meta = pod["metadata"]
        meta.setdefault("deletionTimestamp", "2026-11-23T12:00:00Z")
        meta["deletionGracePeriodSeconds"] = min(grace, meta.get("deletionGracePeriodSeconds", grace))
        return 201, self._store(path, pod)

    # ---- watches ---------------------------------------------------------------------------------------

    def watch(self, request: BaseHTTPRequestHandler) -> None:
        asked = urlsplit(request.path)
        query = parse_qs(asked.query)
        since = int(query["resourceVersion"][0])
        with self.events:
            self.requests.append(("WATCH", asked.path))
            refused = self.fails or (410 if since < self.oldest else 0)
        request.send_response(refused or 200)
        if refused:
            data = json.dumps({"kind": "Status", "code": refused, "message": "too old resource version"}).encode()
            request.send_header("Content-Length", str(len(data)))
            request.end_headers()
            request.wfile.write(data)
            return
        request.end_headers()
        self._send(request, asked.path, since, query)

    def _send(self, request: BaseHTTPRequestHandler, path: str, since: int, query: dict[str, list[str]]) -> None:
        began = self.oldest
        while True:
            with self.events:
                while self._watched(began) and not self._due(path, since):
                    self.events.wait()
                if not self._watched(began):
                    return
                due = self._due(path, since)
            for version, what, one in due:
                since = version
                if "fieldSelector" in query and not is_selected(json.loads(one), query):
                    continue
                request.wfile.write(b'{"type": "%s", "object": %s}\n' % (what.encode(), one))
            request.wfile.flush()

    def _watched(self, began: int) -> bool:
        return self._serves and self.oldest == began

    def _due(self, path: str, since: int) -> list[tuple[int, str, bytes]]:
        log = self.log.get(path, [])
        return log[bisect.bisect(log, since, key=lambda entry: entry[0]) :]


def merge(known: Any, said: Any) -> Any:
    """As a merge patch; conditions are merged by type, as a strategic one does."""
    if not isinstance(said, dict):
        return copy.deepcopy(said)
    made = dict(known) if isinstance(known, dict) else {}
    for name, value in said.items():
        if value is None:
            made.pop(name, None)
        elif name == "conditions":
            by_type = {one["type"]: one for one in made.get(name, ())}
            by_type |= {one["type"]: {**by_type.get(one["type"], {}), **one} for one in value}
            made[name] = list(by_type.values())
        else:
            made[name] = merge(made.get(name), value)
    return made
