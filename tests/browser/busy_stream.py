"""A stream as the dashboard's server sends it, of a node that is larger than any that a test can run."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EACH = 1.0
"""Seconds between two changes: as the dashboard's server asks the daemon."""


@contextmanager
def busy_stream(state: dict[str, Any], changing: int) -> Iterator[str]:
    """The address of a stream that says the state, and then each second what so many of its jobs use now."""
    over = threading.Event()

    class Stream(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the base class names it
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            try:
                self._say("state", state)
                for n in itertools.count(1):
                    if over.wait(EACH):
                        return
                    self._say("change", change(state, changing, n))
            except OSError:
                pass  # the page has gone

        def _say(self, kind: str, what: dict[str, Any]) -> None:
            self.wfile.write(f"event: {kind}\ndata: {json.dumps(what)}\n\n".encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Stream) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            over.set()
            server.shutdown()
            serving.join()


def change(state: dict[str, Any], changing: int, n: int) -> dict[str, Any]:
    """The nth change: so many of the jobs, spread over all, use another 1 MiB, and their GPUs show it."""
    several = state["jobs"][n % changing :: len(state["jobs"]) // changing]
    for job in several:
        job["gpus"][0]["usage"] += 1 << 20
    seen = {job["gpus"][0]["uuid"] for job in several}
    gpus = [gpu for gpu in state["gpus"] if gpu["uuid"] in seen]
    for gpu in gpus:
        gpu["free"] -= 1 << 20
    return {"time": state["time"] + n * EACH, "jobs": several, "gpus": gpus}
