"""A handler of SIGTERM for a notebook's kernel: the SIGTERM that asks for borrowed memory does not end the kernel.

By Python's default SIGTERM ends a kernel within milliseconds, so it could not use its grace. Every other SIGTERM works
as before: it goes to the previous handler, or ends the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType

__all__ = ["Handler"]


class Handler:
    """A handler. install() works only in the main thread; remove() restores the previous handler."""

    def __init__(self, excuses: Callable[[], bool]) -> None:
        """`excuses` is called in the main thread when SIGTERM comes. It returns whether the process may live on."""
        self._excuses = excuses
        self._previous: signal._HANDLER = signal.SIG_DFL
        self._installed = False

    def install(self) -> bool:
        """Returns False outside of the main thread, or if the present handler is not Python's and cannot be called."""
        previous: signal._HANDLER = signal.getsignal(signal.SIGTERM)
        if previous is None:
            return False
        try:
            signal.signal(signal.SIGTERM, self)
        except ValueError:
            return False
        self._previous = previous
        self._installed = True
        os.register_at_fork(after_in_child=self.remove)  # a worker that is terminated ends at once
        return True

    def remove(self) -> None:
        """Restore the previous handler. If another was installed meanwhile, this one only passes signals on."""
        if not self._installed:
            return
        self._installed = False
        on_top = signal.getsignal(signal.SIGTERM) is self
        if on_top:
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(signal.SIGTERM, self._previous)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._installed and self._excuses():
            return
        previous = self._previous
        if callable(previous):
            previous(number, frame)
        elif previous == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
