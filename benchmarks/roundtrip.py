"""What it costs a program to ask the daemon for credit: round trips over the real socket to a real daemon process.

    python benchmarks/roundtrip.py [ASKS]

Prints the ask's percentiles beside those of a bare echo over the same kind of socket between two processes, measured
in the same run: the difference is what the daemon adds. An ask is one per 64 MiB of growth (the chunk), no more.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpushare._layout import ffi, lib
from gpushare.client import Client

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "daemon"))

from shim_client import ShimClient  # noqa: E402  (the shim in Python, for tests and benchmarks)

TARGET_US = 100.0
MIB = 2**20
FRAME = int(lib.GS_FRAME_BYTES)

ECHO = """if 1:
    import socket, sys
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(sys.argv[1]); listener.listen()
    print("ready", flush=True)
    sock, _ = listener.accept()
    while data := sock.recv(512):
        sock.send(data)
"""


def percentiles(times: list[int]) -> tuple[float, float]:
    times.sort()
    return times[len(times) // 2] / 1000, times[len(times) * 99 // 100] / 1000


def exchange(sock: socket.socket, packet: object, count: int) -> list[int]:
    answer = bytearray(FRAME)
    times = []
    for _ in range(count):
        started = time.perf_counter_ns()
        sock.send(packet)  # type: ignore[arg-type]
        sock.recv_into(answer)
        times.append(time.perf_counter_ns() - started)
    return times


def echo(directory: Path, count: int) -> list[int]:
    path = str(directory / "echo")
    with subprocess.Popen([sys.executable, "-c", ECHO, path], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(path)
            return exchange(sock, bytes(FRAME), count)


def wait_for(path: Path, daemon: subprocess.Popen[bytes]) -> float:
    started = time.monotonic()
    while not path.exists():
        if daemon.poll() is not None or time.monotonic() - started > 10:
            raise SystemExit("the daemon did not start")
        time.sleep(0.002)
    return time.monotonic() - started


def ask(directory: Path, count: int) -> tuple[list[int], float]:
    """Asks that are granted, each of them: on a software GPU so large that they all fit."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}",
        "GPUSHARE_SIM": f"memory=1700Gi,pool={directory / 'pool'}",
    }
    command = [sys.executable, "-m", "gpushared", "--user", "--driver", "sim", "--dir", str(directory / "d")]
    daemon = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        start = wait_for(directory / "d" / "api.sock", daemon)
        client = Client(directory / "d" / "api.sock")
        job = client.register({"name": "bench", "command": ["bench"], "request": "1Gi", "limit": "max", "gpus": 1})
        shim = ShimClient(directory / "d" / "shim.sock")
        shim.hello(job["id"], request=2**30, limit="max")
        attached = shim.attach(job["gpus"][0]["uuid"])
        assert attached.status == lib.GS_OK, attached
        packet = ffi.buffer(shim.frame(lib.GS_ASK, ask={"bytes": 4096, "line": 0}))
        times = exchange(shim.sock, packet, count)
        _, credit = shim.word()
        assert credit >= count * 64 * MIB, "every ask has really been granted"
        shim.close()
        return times, start
    finally:
        daemon.terminate()
        daemon.wait()


def main() -> int:
    count = min(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, 20_000)
    with tempfile.TemporaryDirectory(prefix="gs-bench-") as made:
        directory = Path(made)
        (directory / "pool").mkdir()
        bare = percentiles(echo(directory, count))
        times, start = ask(directory, count)
    asked = percentiles(times)
    print(f"{'':24}{'p50':>10}{'p99':>10}")
    print(f"{'bare echo':24}{bare[0]:>7.1f} us{bare[1]:>7.1f} us")
    print(f"{'ask for credit':24}{asked[0]:>7.1f} us{asked[1]:>7.1f} us   {asked[0] / bare[0]:.1f} times the echo")
    print(f"target p50 <= {TARGET_US:.0f} us: {'met' if asked[0] <= TARGET_US else 'MISSED'}")
    print(f"daemon listens {start * 1000:.0f} ms after its start")
    return 0 if asked[0] <= TARGET_US else 1


if __name__ == "__main__":
    sys.exit(main())
