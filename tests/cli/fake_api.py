"""A daemon that is only its HTTP API: what the command line is tested against.

It keeps jobs and remembers every call; a test scripts the rest (refusals, notices, how a job ended, garbage). Run as
a program it stands in for `python -m gpushared --user`, with the real one's behaviour at the edges that the wrapper
depends on: one per directory, the loser of a race ends, and it ends after its last job.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpushare.errors import GpushareError
from gpushare.quantity import Quantity

GIB = 2**30
TOTAL = 16 * GIB
RESERVE = 512 * 2**20
UUID = "GPU-00000000-0000-0000-0000-00000000000{}"


class FakeDaemon:
    def __init__(self, directory: Path, *, driver: str = "sim", scope: str = "user", gpus: int = 1):
        self.directory = directory
        self.driver = driver
        self.scope = scope
        self.gpus = gpus
        self.protocol = 1
        self.jobs: dict[str, dict] = {}
        self.mains: dict[str, int] = {}
        self.calls: list[tuple[str, str, dict | None]] = []
        self.refusals: list[tuple[int, dict]] = []  # answers to the next registrations
        self.killed: dict | None = None  # goes into the outcome of the next job that ends
        self.garbage: bytes | None = None  # answers everything
        self.records: list[dict] = []
        self.waiting: list[dict] = []
        self.note = "nothing is asked back"
        self.unmanaged = 0
        self.spared = 0
        self.reserved: list[dict] = []
        self.outsiders: list[dict[str, object]] = []
        self.health: dict[str, object] = {"state": "ok", "shortfall": 0, "ailments": []}
        self.on_last_job = lambda: None
        self._streams: list[tuple[str, queue.Queue]] = []
        self._connections: set[socket.socket] = set()
        self._next = 0x1000
        self._changed = threading.Condition()

    @property
    def socket(self) -> Path:
        return self.directory / "api.sock"

    def start(self) -> FakeDaemon:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        self._server = _Server(str(self.socket), _Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._server.fake = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """As a killed daemon does: the connections break, the socket's file stays."""
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def notify(self, kind: str, text: str) -> None:
        for _, stream in self._streams:
            stream.put({"time": time.time(), "kind": kind, "text": text, "facts": {}})

    def wait_for(self, condition, within: float = 10.0):
        with self._changed:
            found = self._changed.wait_for(lambda: condition(self), within)
        assert found, f"waited {within} s; calls: {[call[:2] for call in self.calls]}"
        return found

    def wait_for_call(self, method: str, end: str, within: float = 10.0) -> tuple[str, str, dict | None]:
        def find(_):
            return next((call for call in self.calls if call[0] == method and call[1].endswith(end)), None)

        return self.wait_for(find, within)

    def bodies(self, method: str) -> list[dict]:
        return [body for called, _, body in self.calls if called == method]

    # What the daemon does

    def handle(self, method: str, path: str, body: dict | None):
        with self._changed:
            self.calls.append((method, path, body))
            self._changed.notify_all()
        parts = path.strip("/").split("/")[1:]
        match method, parts:
            case "GET", ["version"]:
                return 200, {
                    "version": "0.1.0",
                    "protocol": self.protocol,
                    "pid": os.getpid(),
                    "driver": self.driver,
                    "scope": self.scope,
                }
            case "POST", ["jobs"]:
                return self.refusals.pop(0) if self.refusals else (201, self._register(body))
            case "GET", ["jobs"]:
                return 200, {"jobs": [job for job in self.jobs.values() if job["state"] != "ended"]}
            case "GET", ["jobs?ended=1"]:
                return 200, {"jobs": list(self.jobs.values())}
            case "GET", ["status"]:
                daemon = {"version": "0.1.0", "uptime": 200.0, "jobs": len(self.jobs)}
                return 200, {"daemon": daemon, "gpus": self._gpus(), "jobs": list(self.jobs.values())}
            case "GET", ["reservations"]:
                return 200, {"reservations": self.reserved}
            case "GET", ["events"]:
                return 200, {"records": self.records}
            case "GET", [events] if events.startswith("events?since="):
                since = float(events.partition("=")[2])
                return 200, {"records": [one for one in self.records if one["time"] >= since]}
            case "GET", ["explain"]:
                return 200, {"gpus": self._gpus(), "waiting": self.waiting, "pressure": [], "records": self.records}
            case _, ["jobs", name, *rest]:
                job = self._find(name)
                return self._on_job(method, job, rest, body) if job else (404, _error("no_such_job", f"no job {name}"))
        return 404, _error("no_such_path", path)

    def _on_job(self, method: str, job: dict, rest: list[str], body):
        match method, rest:
            case "GET", []:
                return 200, job
            case "GET", ["story"]:
                return 200, {"job": job, "story": self.records, "waiting": self.waiting}
            case "PUT", ["main"]:
                self.mains[job["id"]] = body["pid"]
                return 200, job
            case "PATCH", []:
                return self._change(job, body)
            case "POST", ["stop"]:
                return 200, self._stop(job, body["now"])
            case "DELETE", []:
                return 200, self._end(job, body)
        return 404, _error("no_such_path", "/".join(rest))

    def _register(self, body: dict) -> dict:
        self._next += 1
        identity = body.get("job") or f"{self._next:016x}"
        job = make_job(identity, body, self.gpus)
        self.jobs[identity] = job
        return job

    def _change(self, job: dict, body: dict):
        after = json.loads(json.dumps(job))
        for key in ("request", "limit"):
            for gpu in after["gpus"]:
                if key in body:
                    gpu[key] = Quantity.parse(body[key]).resolve(TOTAL)
        after["priority"] = body.get("priority", job["priority"])
        if any(gpu["request"] > gpu["limit"] for gpu in after["gpus"]):
            return 409, _error("bad_budget", "the request is above the limit", hint="raise the limit too")
        if not body.get("dry_run"):
            self.jobs[job["id"]] = after
        return 200, {"before": job, "after": after, "note": self.note}

    def _end(self, job: dict, body: dict) -> dict:
        outcome = {
            "exit_code": body["exit_code"],
            "signal": body["signal"],
            "killed": self.killed,
            "peak": {gpu["uuid"]: gpu["peak"] for gpu in job["gpus"]},
            "refusals": 0,
            "duration": 1.0,
        }
        del self.jobs[job["id"]]
        if not self.jobs:
            self.on_last_job()
        return {"job": {**job, "state": "ended", "outcome": outcome}, "outcome": outcome}

    def _stop(self, job: dict, now: bool) -> dict:
        pids = {process["pid"] for process in job["processes"]} | (
            {self.mains[job["id"]]} if job["id"] in self.mains else set()
        )
        if job["state"] == "queued":
            del self.jobs[job["id"]]
            return {"job": job, "processes": 0, "spared": 0}
        self.notify("stopped", "bob stops this job")
        for pid in pids:
            os.kill(pid, signal.SIGKILL if now else signal.SIGTERM)
        return {"job": job, "processes": len(pids), "spared": self.spared}

    def _find(self, name: str) -> dict | None:
        found = [job for job in self.jobs.values() if job["id"].startswith(name) or job["name"] == name]
        return found[0] if len(found) == 1 else None

    def _gpus(self) -> list[dict]:
        jobs = self.jobs.values()

        def total(key: str, index: int) -> int:
            return sum(gpu[key] for job in jobs for gpu in job["gpus"] if gpu["index"] == index)

        return [
            {
                "uuid": UUID.format(index),
                "index": index,
                "name": "gpushare software GPU",
                "total": TOTAL,
                "reserve": RESERVE,
                "capacity": TOTAL - RESERVE,
                "requested": total("request", index),
                "usage": total("usage", index),
                "lent": total("loan", index),
                "free": TOTAL - RESERVE - total("usage", index) - self.unmanaged,
                "unmanaged": self.unmanaged,
                "unmanaged_processes": self.outsiders,
                "returning": 0,
                "health": self.health,
            }
            for index in range(self.gpus)
        ]


def make_job(identity: str, body: dict, gpus: int = 1) -> dict:
    return {
        "id": identity,
        "name": body["name"],
        "user": "alice",
        "uid": os.getuid(),
        "command": body["command"],
        "state": "running",
        "since": time.time() - 75,
        "priority": body["priority"],
        "lend": body["lend"],
        "grace": body.get("grace"),
        "on_reclaim": ["trim", "term", "kill"],
        "request_source": body["request_source"],
        "limit_source": body["limit_source"],
        "gpus": [make_gpu(index, body) for index in range(min(body["gpus"], gpus))],
        "processes": [],
        "outcome": None,
    }


def make_gpu(index: int, body: dict) -> dict:
    request = Quantity.parse(body["request"]).resolve(TOTAL)
    return {
        "uuid": UUID.format(index),
        "index": index,
        "name": "gpushare software GPU",
        "total": TOTAL,
        "request": request,
        "limit": Quantity.parse(body["limit"]).resolve(TOTAL),
        "usage": 0,
        "accounted": 0,
        "overhead": 0,
        "loan": 0,
        "credit": 0,
        "peak": 0,
        "grantable": request,
        "health": "ok",
    }


def killed(**changes) -> dict:
    return {
        "code": "reclaim",
        "claim": "7",
        "owner": "nb-2",
        "owner_user": "bob",
        "asked": 5 * GIB,
        "got": 12 * GIB,
        "loan": 8 * GIB,
        "usage": 12 * GIB,
        "request": 4 * GIB,
        "grace": 10.0,
        "on_reclaim": ["trim", "term", "kill"],
        "reason": "the owner's claim needs 5.0 GiB",
        "time": 1_700_000_000.0,
        **changes,
    }


def _error(code: str, message: str, facts=(), hint: str | None = None) -> dict:
    return {"error": {"code": code, "message": message, "facts": [list(fact) for fact in facts], "hint": hint}}


def refusal(status: int, code: str, message: str, facts=(), hint: str | None = None) -> tuple[int, dict]:
    return status, _error(code, message, facts, hint)


class _Server(ThreadingUnixStreamServer):
    fake: FakeDaemon
    request_queue_size = 64

    def handle_error(self, request, client_address):
        pass  # clients that hang up are part of the tests


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.server.fake._connections.add(self.connection)

    def finish(self):
        self.server.fake._connections.discard(self.connection)
        super().finish()

    def address_string(self):
        return "unix"

    def log_message(self, *args):
        pass

    def _serve(self):
        fake = self.server.fake
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.close_connection = True
        if fake.garbage is not None:
            self.wfile.write(fake.garbage)
        elif self.path.startswith("/v1/jobs/") and self.path.endswith("/events"):
            self._stream(fake)
        else:
            self._answer(fake, body)

    def _answer(self, fake: FakeDaemon, body):
        try:
            status, content = fake.handle(self.command, self.path, body)
        except GpushareError as error:
            status, content = 400, _error(error.code, error.message)
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, fake: FakeDaemon):
        notices: queue.Queue = queue.Queue()
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        fake._streams.append((self.path, notices))
        with fake._changed:
            fake.calls.append(("GET", self.path, None))
            fake._changed.notify_all()
        while True:
            notice = notices.get()
            if notice is None:
                self.wfile.write(b"0\r\n\r\n")
                return
            data = notice if isinstance(notice, bytes) else json.dumps(notice).encode() + b"\n"
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--user", action="store_true", required=True)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--history", type=Path)
    options = parser.parse_args()
    lock = os.open(options.dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 0
    with (options.dir / "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    fake = FakeDaemon(options.dir, driver=options.driver)
    fake.on_last_job = lambda: threading.Timer(0.05, os._exit, (0,)).start()
    fake.start()
    log = options.dir / "calls"
    with log.open("a") as file:
        while True:
            fake.wait_for(lambda fake: fake.calls, 3600)
            while fake.calls:
                file.write(json.dumps(fake.calls.pop(0)) + "\n")
                file.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())


def starts(directory: Path) -> list[int]:
    """The pids of the daemons that got the directory, in order."""
    log = directory / "starts"
    return [int(line) for line in log.read_text().split()] if log.exists() else []
