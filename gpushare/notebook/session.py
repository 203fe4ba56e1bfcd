"""gpushare in one IPython shell, from %load_ext to %unload_ext: the watch, the handler of SIGTERM, the messages."""

from __future__ import annotations

import sys
from typing import Any

from gpushare.notebook.magic import magic
from gpushare.notebook.previous_kernel import previous_end
from gpushare.notebook.sigterm import Handler
from gpushare.notebook.watch import Watch
from gpushare.presence import Presence, presence
from gpushare.printable import printable

__all__ = ["enabled", "load", "unload"]


class Session:
    """gpushare in one IPython shell."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.watch: Watch | None = None
        self.handler: Handler | None = None
        self.news = previous_end()

    def open(self) -> None:
        self.shell.register_magic_function(magic, magic_kind="line", magic_name="gpushare")
        # Output before the first cell reaches no frontend.
        self.shell.events.register("pre_run_cell", self.before_cell)
        self.shell.events.register("post_run_cell", self.after_cell)
        self.attach()

    def close(self) -> None:
        self.shell.events.unregister("pre_run_cell", self.before_cell)
        self.shell.events.unregister("post_run_cell", self.after_cell)
        self.shell.magics_manager.magics["line"].pop("gpushare", None)
        if self.watch is not None and self.handler is not None:
            self.handler.remove()
            self.watch.stop()

    def attach(self) -> None:
        """Start the watch and the handler if gpushare is in this process. Does nothing in a kernel that is no job."""
        if self.watch is not None or presence() is Presence.ABSENT:
            return
        self.watch = Watch(say)
        self.handler = Handler(self.watch.excuses)
        self.handler.install()
        self.watch.start()

    def before_cell(self, _info: object) -> None:
        if self.news is not None:
            say(self.news)
            self.news = None

    def after_cell(self, _result: object) -> None:
        self.before_cell(None)
        if self.watch is None:
            self.attach()
        else:
            self.watch.wake()  # the cell may have made this process a job by its first use of a GPU


_sessions: list[Session] = []
"""The session. There is at most one, because a process has one shell that runs cells."""


def load(shell: Any) -> None:
    """IPython calls this for `%load_ext gpushare`."""
    if not _sessions:
        _sessions.append(Session(shell))
        _sessions[0].open()


def unload(_shell: Any) -> None:
    """IPython calls this for `%unload_ext gpushare`."""
    if _sessions:
        _sessions.pop().close()


def enabled() -> None:
    """Called after gpushare.enable(). In a notebook's cell it does the same as %load_ext."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return
    shell.extension_manager.load_extension("gpushare")
    for session in _sessions:
        session.attach()


def say(text: str) -> None:
    """Write to the running cell, or to the last one, from any thread."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()
