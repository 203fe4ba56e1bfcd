"""A program under a budget, for tests: does what its standard input says, one JSON command a line, and answers so.

[name, arguments...] calls a method of its ShimClient (or one of those below); the answer is its result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from shim_client import ShimClient

from gpushare._layout import ffi
from gpushared.system.processes import start_time

client: ShimClient | None = None
daemon = Path()


def connect(path: str) -> None:
    global client, daemon  # noqa: PLW0603  (one program, one client)
    daemon = Path(path)
    client = ShimClient(Path(path), timeout=20.0)


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def become_another_user() -> None:
    """As by a setuid program: nobody of its job may signal it."""
    os.setresuid(65534, 65534, 65534)


def free_on_sigterm(size: int) -> None:
    """What a training loop does that gives memory back."""

    def free(*_: object) -> None:
        assert client is not None
        client.free(size)

    signal.signal(signal.SIGTERM, free)


def allocate_on_sigterm(size: int, seconds: float, result: str) -> None:
    """A handler that wants more, again and again; what it was told, by status, is written down."""

    def allocate(*_: object) -> None:
        assert client is not None
        told: dict[str, int] = {}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answer = client.allocate(size)
            status = str(0 if answer is None else answer.status)
            told[status] = told.get(status, 0) + 1
            Path(f"{result}.new").write_text(json.dumps(told))
            Path(f"{result}.new").replace(result)
            time.sleep(0.01)

    signal.signal(signal.SIGTERM, allocate)


def listen_to_trims() -> None:
    """And never begin one."""
    assert client is not None
    client.page.trim_ready = 1


def answer_trims() -> None:
    """At once, as a program that keeps nothing and whose calls are at the gate."""
    assert client is not None
    page = client.page
    page.trim_ready = 1

    def answer() -> None:
        while True:
            page.trim_begun = page.trim_done = page.trim_asked
            time.sleep(0.01)

    threading.Thread(target=answer, daemon=True).start()


def exec_sleep() -> None:
    os.execvp("sleep", ["sleep", "30"])


def fork_and_hello(request: int, limit: int, present: bool) -> dict[str, int]:
    """A child says HELLO by itself; what it was told."""
    assert client is not None
    read, write = os.pipe()
    if os.fork() == 0:
        child = ShimClient(daemon, timeout=20.0)
        if present:
            child.page_fd, child.page_id = client.page_fd, client.page_id
        welcome = child.hello(request=request, limit=limit, present=present)
        os.write(write, json.dumps({**dataclasses.asdict(welcome), "pid": os.getpid()}).encode())
        os._exit(0)
    os.close(write)
    answer = os.read(read, 4096)
    os.close(read)
    os.wait()
    return dict(json.loads(answer))


def scribble(seed: int) -> None:
    """Fill the line with garbage, as a program may that writes through a wild pointer."""
    assert client is not None
    ffi.buffer(client.line())[:] = random.Random(seed).randbytes(128)


def cut_page(size: int) -> None:
    """Nobody looks at it here any more: that would be this program's own end."""
    assert client is not None
    os.ftruncate(client.page_fd, size)
    client.unmap()


def claim(pid: int, job: int) -> None:
    """Be somebody else, somebody else's, and rich."""
    assert client is not None
    client.page.pid, client.page.job_id, client.page.start_time = pid, job, int(start_time(pid) or 0)
    client.page.uid = 0
    client.line().word = 0xFFFFFFFF
    client.line().overhead = 0


def refuse() -> None:
    """What the shim counts when it answers with out-of-memory."""
    assert client is not None
    client.line().refusals += 1


def plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]


def main() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            keywords = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
            function = globals().get(name) or getattr(client, name)
            try:
                answer = {"result": plain(function(*arguments, **keywords))}
            except Exception as error:
                answer = {"error": repr(error)}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
