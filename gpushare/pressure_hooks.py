"""What a program can do when owners wait: give back borrowed memory, save its work, see how long they wait.

    @gpushare.on_pressure
    def shrink(pressure):                # memory that this job has borrowed, or only keeps while idle, is wanted
        return cache.drop(pressure.wanted)

    gpushare.checkpoint_signal(signal.SIGUSR1)   # for a framework that saves its work on that signal
    gpushare.checkpointed()              # from now on little is lost if this job must be stopped
    gpushare.pressure()                  # what fraction of the time anybody has waited for memory

All of it is safe in a program without gpushare: it does nothing there.

The library in the process calls run_hooks(), on a thread of its own, when the driver's pools and the frameworks' caches
were not enough (trim_hook.py).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpushare.errors import DaemonUnreachable, GpushareError
from gpushare.trim_hook import told

__all__ = [
    "GpuPressure",
    "Pressure",
    "Registration",
    "StallTime",
    "checkpoint_signal",
    "checkpointed",
    "on_pressure",
    "pressure",
    "run_hooks",
]

SIGNAL_PAUSE = 60.0
"""Seconds before the checkpoint signal is sent again: a checkpoint may take long."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """Why a callback is called."""

    gpu: str
    """UUID of the GPU on which memory is wanted back."""
    index: int
    """The same GPU's number in this process, as CUDA counts."""
    wanted: int
    """Bytes that are still wanted back; less helps too."""
    seconds: float
    """How long gpushare waits for it. Later memory helps too, if the job has not been stopped by then."""
    reason: str
    """One line for a log."""
    last: bool = False
    """The process has been told to stop, and ends if the memory is not free within `seconds`. Notebooks only."""


Callback = Callable[[Pressure], int | None]


class Registration:
    """A registered callback. Calling it calls the callback; cancel() removes it."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback

    def __call__(self, pressure: Pressure) -> int | None:
        return self.callback(pressure)

    def cancel(self) -> None:
        """Never call it again. Does nothing the second time."""
        with contextlib.suppress(ValueError):
            _registrations.remove(self)


_registrations: list[Registration] = []
"""Changed and copied in single steps, without a lock, because a lock could be held when the process forks."""


@dataclass
class _Signal:
    number: int | None = None
    sent: float = float("-inf")


_signal = _Signal()


def on_pressure(callback: Callback) -> Registration:
    """Register a callback that gives memory back. See gpushare.on_pressure."""
    if not callable(callback):
        raise TypeError(f"a callback is called when memory is wanted back, and {callback!r} cannot be")
    registration = Registration(callback)
    _registrations.append(registration)
    return registration


def checkpoint_signal(signum: int | None) -> None:
    """Send this process a signal at pressure. See gpushare.checkpoint_signal."""
    if signum is not None:
        import signal

        if signum not in signal.valid_signals() or signum in (signal.SIGKILL, signal.SIGSTOP):
            raise ValueError(f"{signum} is not a signal that a program can handle")
    _signal.number, _signal.sent = signum, float("-inf")


# ---- called by the library


def run_hooks(
    wanted: Callable[[], int], gpu: str, index: int, seconds: float, reason: str, *, last: bool = False
) -> list[str]:
    """Call the callbacks until `wanted` returns 0. Returns problems as texts; raises no exception of the program.

    Bytes that a callback reports count as given, even if they are not free yet.
    """
    problems: list[str] = []
    until, promised = time.monotonic() + seconds, 0
    for registration in list(_registrations):
        still = wanted() - promised
        if still <= 0:
            return problems
        reported = Pressure(gpu, index, still, max(0.0, until - time.monotonic()), reason, last)
        try:
            given = registration.callback(reported) or 0
        except BaseException as error:  # the program goes on, whatever its callback does
            problems.append(f"{_name(registration.callback)}: {told(error)}")
            continue
        seen = still + promised - wanted()
        promised += max(0, given - max(0, seen)) if isinstance(given, int) else 0
    if wanted() > promised:
        problems += _send_signal()
    return problems


def _name(callback: Callback) -> str:
    try:
        return str(getattr(callback, "__qualname__", callback))
    except BaseException:  # it is the program's object
        return "a callback without a name"


def _send_signal() -> list[str]:
    if _signal.number is None or time.monotonic() < _signal.sent + SIGNAL_PAUSE:
        return []
    import signal

    if signal.getsignal(_signal.number) == signal.SIG_DFL:
        return [f"signal {_signal.number} has no handler: it would end the program, and is not sent"]
    _signal.sent = time.monotonic()
    os.kill(os.getpid(), _signal.number)
    return []


# ---- asking and telling the daemon


def checkpointed() -> bool:
    """Tell the daemon that the work is saved. See gpushare.checkpointed."""
    from gpushare.config import load_settings
    from gpushare.locate import find
    from gpushare.presence import Presence, presence

    if presence() is Presence.ABSENT:
        return False
    try:
        client = find(load_settings()).client()
        client.checkpointed(os.environ.get("GPUSHARE_JOB") or client.find_job(str(os.getpid()))["id"])
    except GpushareError:  # no daemon, an older one, or an unknown job: no error for a program that has saved its work
        return False
    return True


@dataclass(frozen=True, slots=True)
class StallTime:
    """The part of the time in which jobs waited."""

    avg10: float
    """The part of the last 10 seconds, 0 to 1."""
    avg60: float
    avg300: float
    total: float
    """Seconds, since the daemon started."""


@dataclass(frozen=True, slots=True)
class GpuPressure:
    uuid: str
    index: int
    """The daemon's number, in NVML's order."""
    some: StallTime
    """At least one allocation within its job's request waited for memory that others held."""
    full: StallTime
    """Every job with a context there had one that waited, so no job could allocate."""


def pressure() -> tuple[GpuPressure, ...]:
    """The pressure on each GPU. See gpushare.pressure."""
    from gpushare.config import load_settings
    from gpushare.locate import find

    try:
        found = find(load_settings()).client().pressure()
    except DaemonUnreachable:
        return ()
    return tuple(
        GpuPressure(
            one["uuid"],
            one["index"],
            StallTime(*(one["some"][key] for key in ("avg10", "avg60", "avg300", "total"))),
            StallTime(*(one["full"][key] for key in ("avg10", "avg60", "avg300", "total"))),
        )
        for one in found
    )
