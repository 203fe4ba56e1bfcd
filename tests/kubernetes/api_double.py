"""A small stand-in for the API server: objects by path, resource versions, conflicts, failures on demand.

It is for what a real one does not do when a test wants it. tests/kubernetes/test_real_api_server.py asks a real one.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

SERVED = "/apis/resource.k8s.io/v1"
"""It has claims, as it says here to everybody."""
PATCHES = ("apply-patch", "merge-patch")


class ApiDouble:
    """Serves until close(); `stop` and `start` are what a restart looks like: the objects stay."""

    def __init__(self, folder: Path) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str]] = []
        self.lacks: tuple[str, ...] = ()
        """Groups of the API that this server does not have, as "/apis/resource.k8s.io/"."""
        self.fails: int | None = None
        """The status of all answers, if a test wants that."""
        self.drops: tuple[str, ...] = ()
        """Fields of devices that this server does not know."""
        self.ahead = 0.0
        """Seconds that its clock is ahead of this machine's."""
        self.keeps_use = True
        """It keeps what a claim's status says about devices; an early one does not."""
        self.plain = False
        """What it does not know is told in plain words, as an API server does of a group that it does not serve."""
        self._version = 0
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.kubeconfig = folder / "kubeconfig"
        self.start()
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "current-context": "x",
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}],
                    "users": [{"name": "u", "user": {"token": "secret"}}],
                }
            )
        )

    def start(self) -> None:
        """At the same port as before; nothing if it serves."""
        double = self
        if self._server is not None:
            return

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"  # no connection outlives a stop

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                if "watch=1" in self.path:
                    double.watch(self)
                    return
                status, content = double.handle(self.command, self.path, body, self.headers)
                data = b"404 page not found\n" if double.plain and status == 404 else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string(time.time() + double.ahead)

            def log_message(self, *_: object) -> None:
                pass

        class Quick(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, *_: object) -> None:
                """Who asks may go before the answer."""

        self._server = Quick(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def put(self, path: str, found: dict[str, Any]) -> None:
        with self._lock:
            self._store(path, found)

    def _store(self, path: str, found: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        meta = {"uid": f"uid-{self._version}", **found["metadata"], "resourceVersion": str(self._version)}
        self.objects[path] = stored = json.loads(json.dumps({**found, "metadata": meta}))
        for device in stored.get("spec", {}).get("devices", ()):
            for name in self.drops:
                device.pop(name, None)
        if not self.keeps_use:
            stored.get("status", {}).pop("devices", None)
        return stored

    def watch(self, request: BaseHTTPRequestHandler) -> None:
        request.send_error(405)

    def handle(self, method: str, path: str, body: Any, headers: Any) -> tuple[int, dict[str, Any]]:
        path, _, query = path.partition("?")
        with self._lock:
            self.requests.append((method, path))
            if self.fails:
                return self.fails, {"kind": "Status", "message": "as the test wants it"}
            if headers.get("Authorization") != "Bearer secret":
                return 401, {"kind": "Status", "message": "Unauthorized"}
            if f"{path}/".startswith(self.lacks):
                return 404, {"kind": "Status", "message": "the server could not find the requested resource"}
            if (method, path) == ("GET", SERVED) and path not in self.objects:
                return 200, {"kind": "APIResourceList"}
            if method == "POST":
                path = f"{path}/{body['metadata']['name']}"
                return (409, {"message": "already exists"}) if path in self.objects else (201, self._store(path, body))
            if method == "GET" and "fieldSelector" in query:
                return 200, {"items": self._selected(path, parse_qs(query)["fieldSelector"][0])}
            known = self.objects.get(path.removesuffix("/status"))
            if known is None:
                return 404, {"kind": "Status", "message": f"{path.rpartition('/')[2]!r} not found"}
            if method == "PUT":
                if body["metadata"].get("resourceVersion") != known["metadata"]["resourceVersion"]:
                    return 409, {"message": "the object has been modified"}
                kept = {name: known[name] for name in ("status",) if name in known}
                made = {**kept, **body, "metadata": {**known["metadata"], **body["metadata"]}}
                return 200, self._store(path, made)
            if method == "PATCH":
                if not path.endswith("/status") or not any(one in headers["Content-Type"] for one in PATCHES):
                    return 415, {"message": "only status is patched here"}
                status = {**known.get("status", {}), **body["status"]}
                return 200, self._store(path.removesuffix("/status"), {**known, "status": status})
            return 200, known

    def _selected(self, path: str, selector: str) -> list[dict[str, Any]]:
        """Of a collection, what has these values in its spec."""
        wanted = dict(one.removeprefix("spec.").split("=") for one in selector.split(","))
        those = [found for where, found in sorted(self.objects.items()) if where.startswith(f"{path}/")]
        return [one for one in those if all(one["spec"].get(name) == value for name, value in wanted.items())]

    def of(self, kind: str) -> list[dict[str, Any]]:
        with self._lock:
            return [found for path, found in sorted(self.objects.items()) if f"/{kind}/" in path]
