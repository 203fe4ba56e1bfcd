"""Calls one hook, in processes of its own, for a bounded time.

A hook may fail, hang, flood its output or leave processes behind. That costs its caller nothing: what it writes is read
and forgotten but for the end, and when it has ended, or its time is over, its whole process group is killed. That is
also so if the caller is killed: a process in between, its guard, is the parent of the hook and sees that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

from gpushare.hook_settings import Hook
from gpushare.quantity import format_duration

__all__ = ["call"]

KEPT = 2000
"""Bytes of its output, the last ones: why it failed is at the end."""
READ = 65536
PR_SET_PDEATHSIG = 1
PAUSE = 0.001
"""Seconds between two reads: a hook that floods its output gets no whole core of ours."""


def call(hook: Hook, environ: Mapping[str, str], within: float) -> str:
    """Why it has failed; empty: it has ended well. `within`: seconds, after which it is killed."""
    answer, answers = os.pipe()
    here, caller_lives = os.pipe()  # the guard has the one end, and reads its end when we have ended
    guard = os.fork()  # our process has one thread
    if guard == 0:
        code = 1
        try:
            os.setsid()
            os.close(caller_lives)
            os.write(answers, _call(hook, environ, within, here).encode("utf-8", "replace"))
            code = 0
        finally:
            os._exit(code)
    for descriptor in (answers, here):
        os.close(descriptor)
    try:
        with os.fdopen(answer, "rb") as answered:
            found = answered.read()
    finally:
        os.close(caller_lives)
        status = os.waitpid(guard, 0)[1]
    return found.decode("utf-8", "replace") if status == 0 else "the process that waits for it was ended"


def _call(hook: Hook, environ: Mapping[str, str], within: float, caller: int) -> str:
    """In the guard. `caller` can be read when the caller has ended."""
    command, environ = ["/bin/sh", "-c", hook.cmd], dict(environ)
    if hook.url:
        command = [sys.executable, "-P", "-m", "gpushare.hook_url"]
        environ["GPUSHARE_HOOK_URL"] = hook.url  # not in its command line, which other users may read
    try:
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_me,  # noqa: PLW1509  this process has one thread
        )
    except OSError as error:
        return f"it does not start: {error.strerror}"
    try:
        output = _follow(process, time.monotonic() + within, caller)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so the number is its own
        status = process.wait()
        assert process.stdout is not None
        process.stdout.close()
    if output is None:
        return f"it had not ended after {format_duration(round(within, 1))}, and was killed"
    return "" if status == 0 else _why(status, output)


def _follow(process: subprocess.Popen[bytes], until: float, caller: int) -> bytes | None:
    """The end of its output when it has ended; None: its time is over, or nobody waits for it any more."""
    assert process.stdout is not None
    pipe, kept = process.stdout.fileno(), b""
    os.set_blocking(pipe, False)
    ended = os.pidfd_open(process.pid)
    try:
        watched = [ended, pipe, caller]
        while True:
            ready = select.select(watched, [], [], max(0.0, until - time.monotonic()))[0]
            if pipe in ready:
                more = os.read(pipe, READ)
                kept = (kept + more)[-KEPT:]
                if not more:
                    watched.remove(pipe)  # it has closed its output, and goes on
                time.sleep(PAUSE)
            if ended in ready:
                with contextlib.suppress(BlockingIOError):
                    kept = (kept + os.read(pipe, READ))[-KEPT:]
                return kept
            if time.monotonic() >= until or caller in ready:
                return None
    finally:
        os.close(ended)


def _why(status: int, output: bytes) -> str:
    how = f"exit status {status}" if status > 0 else f"it was ended by signal {-status}"
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return f"{how}: {lines[-1].strip()}" if lines else how


_libc = ctypes.CDLL(None)


def _end_with_me() -> None:
    """In the child: nobody waits for a hook whose guard is gone. Another runner may call the next one."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
