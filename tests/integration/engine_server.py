"""An inference server of ours that speaks the documented HTTP of others: engine_server.py STYLE READY_FILE WEIGHTS PORT

It holds weights and a cache in GPU memory as they do, and gives them back and takes them again when it is told to:

    vllm     POST /sleep?level=1, POST /wake_up, GET /is_sleeping; only with VLLM_SERVER_DEV_MODE=1
    sglang   POST /flush_cache (400 while it answers requests), /release_memory_occupation, /resume_memory_occupation
    ollama   GET /api/ps, POST /api/generate: with keep_alive 0 it unloads the model; else it loads it, and answers
    plain    POST /free, POST /take

GET /answer computes with the weights: it says whether they are what they were. WEIGHTS are in MiB; the cache has twice
as many. READY_FILE is made when it serves.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MIB = 2**20
MODEL = "small:latest"
PATTERN = bytes(range(1, 256))


class Gpu:
    """The driver, as far as the engine needs it."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self._do("cuInit", 0)
        context = ctypes.c_void_p()
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.context = context

    def _do(self, name: str, *arguments: object) -> None:
        status = getattr(self.cuda, name)(*arguments)
        if status:
            raise MemoryError(f"{name}: {status}")

    def use(self) -> None:
        """In the calling thread."""
        self._do("cuCtxSetCurrent", self.context)

    def memory(self) -> tuple[int, int]:
        """Free and total, in bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._do("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def take(self, size: int) -> ctypes.c_uint64:
        at = ctypes.c_uint64()
        self._do("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at

    def free(self, at: ctypes.c_uint64) -> None:
        self._do("cuMemFree_v2", at)

    def write(self, at: ctypes.c_uint64, data: bytes) -> None:
        self._do("cuMemcpyHtoD_v2", at, data, ctypes.c_size_t(len(data)))

    def read(self, at: ctypes.c_uint64, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self._do("cuMemcpyDtoH_v2", data, at, ctypes.c_size_t(size))
        return data.raw


class Engine:
    """Weights and a cache."""

    def __init__(self, gpu: Gpu, weights: int) -> None:
        self.gpu, self.size = gpu, weights
        self.lock = threading.Lock()
        self.held: list[ctypes.c_uint64] = []
        self.kept = PATTERN * 4
        """The weights, in host memory while it sleeps."""
        self.failures = 0
        self.busy = False

    @property
    def awake(self) -> bool:
        return bool(self.held)

    def take(self) -> None:
        if not self.held:
            self.held = [self.gpu.take(self.size)]
            self.gpu.write(self.held[0], self.kept)
            self.held.append(self.gpu.take(2 * self.size))

    def give(self) -> None:
        if self.held:
            self.kept = self.gpu.read(self.held[0], len(self.kept))
            for at in self.held:
                self.gpu.free(at)
            self.held = []

    def is_right(self) -> bool:
        return self.awake and self.gpu.read(self.held[0], len(self.kept)) == PATTERN * 4


def routes(style: str, engine: Engine) -> dict[str, object]:
    """What is called, by method and path."""

    def sleeping(_: object) -> object:
        return {"is_sleeping": not engine.awake}

    def flush(_: object) -> object:
        return (400, "there are requests") if engine.busy else {}

    def generate(body: object) -> object:
        assert isinstance(body, dict) and body["model"] == MODEL
        engine.give() if body.get("keep_alive") == 0 else engine.take()
        return {"model": MODEL, "done": True}

    def with_body(action: object) -> object:
        return lambda body: (422, "Field required") if body is None else action()  # type: ignore[operator]

    def give(_: object) -> None:
        engine.give()

    def take(_: object) -> None:
        engine.take()

    def answer(_: object) -> object:
        return {"right": engine.is_right(), "failures": engine.failures}

    def be_busy(body: object) -> None:
        engine.busy = bool(body)

    asked_by_tests = {"GET /answer": answer, "POST /busy": be_busy}
    vllm = {"POST /sleep?level=1": give, "POST /wake_up": take, "GET /is_sleeping": sleeping}
    by_style = {
        "vllm": vllm if os.environ.get("VLLM_SERVER_DEV_MODE") == "1" else {},
        "sglang": {
            "POST /flush_cache": flush,
            "POST /release_memory_occupation": with_body(engine.give),
            "POST /resume_memory_occupation": with_body(engine.take),
        },
        "ollama": {
            "GET /api/ps": lambda _: {"models": [{"name": MODEL, "model": MODEL}] if engine.awake else []},
            "POST /api/generate": generate,
        },
        "plain": {"POST /free": give, "POST /take": take},
    }
    return by_style[style] | asked_by_tests


def serve(style: str, port_file: Path, weights: int, port: int) -> None:
    gpu = Gpu()
    gpu.use()
    engine = Engine(gpu, weights)
    if style != "ollama":
        engine.take()
    table = routes(style, engine)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer("GET")

        def do_POST(self) -> None:
            self.answer("POST")

        def answer(self, method: str) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            action = table.get(f"{method} {self.path}")
            if action is None:
                self.say(404, {"detail": "Not Found"})
                return
            with engine.lock:
                gpu.use()
                try:
                    found = action(json.loads(text) if text else None)  # type: ignore[operator]
                except MemoryError as error:
                    engine.failures += 1
                    self.say(500, {"detail": str(error)})
                    return
            status, found = found if isinstance(found, tuple) else (200, found)
            self.say(status, found)

        def say(self, status: int, data: object) -> None:
            text = b"" if data is None else json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    fresh = port_file.with_suffix(".new")
    fresh.touch()
    fresh.replace(port_file)
    server.serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) * MIB, int(sys.argv[4]))
