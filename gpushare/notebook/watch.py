"""A thread that waits for the notice that borrowed memory is wanted back, tells the user, and gives memory back.

It is a thread because a cell may compute for minutes without handling signals. It reads the job's notices, like the
wrapper of `gpushare run`, and sleeps between them. It ends with the process, which never waits for it.
"""

from __future__ import annotations

import _thread
import contextlib
import contextvars
import os
import select
import time
from collections.abc import Callable, Iterable

from gpushare import locate
from gpushare.api import Notice
from gpushare.client import Client, Events
from gpushare.config import load_settings
from gpushare.errors import GpushareError, render
from gpushare.notebook.release import release
from gpushare.quantity import format_bytes, format_duration

__all__ = ["Watch"]

RETRY_FIRST, RETRY_LAST = 0.1, 5.0
"""Seconds between two attempts to reach the daemon, or to find this process's job."""
ANSWER_WITHIN = 2.0
"""Seconds that a signal handler may wait for the daemon."""
SAME = 0.1
"""Seconds by which the daemon's answers may differ about the time of one record."""
SHOWN_AS_THEY_ARE = {"gpu_sick", "gpu_lost", "idle"}
WAYS_OUT = "free it in a cell (del x; torch.cuda.empty_cache()), or save your work now"


class Watch:
    """Call start() once. The thread calls `say` with texts for the user."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._stopped = False
        self._asked = False  # told to stop, and the loan is not given back yet
        self._seen = 0.0  # the time of the last notice that was read
        self._excused = 0.0  # the time of the last record whose SIGTERM did not end the kernel
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __del__(self) -> None:  # the thread keeps it alive
        os.close(self._bell)

    def start(self) -> None:
        # With a new context, and not by `threading`: otherwise ipykernel sends its output to the cell that started
        # the thread, not to the running one.
        _thread.start_new_thread(contextvars.Context().run, (self._follow,))

    def stop(self) -> None:
        """Make the thread end soon."""
        self._stopped = True
        self.wake()

    def wake(self) -> None:
        """Look for the job now: it may exist since the last cell."""
        os.eventfd_write(self._bell, 1)

    def excuses(self) -> bool:
        """Whether a SIGTERM that has just come is the daemon's demand for memory. True once for each demand."""
        try:
            client, job = _find(ANSWER_WITHIN)
            steps = [one for one in client.story(job)["story"] if one["event"] in ("term", "relieved", "kill")]
        except GpushareError:
            return False
        if not steps or steps[-1]["event"] != "term" or steps[-1]["time"] <= self._excused + SAME:
            return False
        self._excused = steps[-1]["time"]
        self.wake()
        return True

    # ---- the thread

    def _follow(self) -> None:
        pause = RETRY_FIRST
        while not self._stopped:
            begun = time.monotonic()
            try:
                client, job = _find()
                with contextlib.closing(client.events(job)) as events:
                    self._read(client, job, events)
            except (GpushareError, OSError):
                pass  # no daemon, or this process is no job: there are no notices
            pause = min(pause * 2, RETRY_LAST) if time.monotonic() - begun < RETRY_LAST else RETRY_FIRST
            self._sleep(pause)

    def _read(self, client: Client, job: str, events: Events[Notice]) -> None:
        while not self._stopped:
            demand = self._news(events.read())
            if demand is not None:
                self._meet(client, job, demand)
            elif events.ended:
                return
            else:
                self._sleep(None, events)

    def _sleep(self, seconds: float | None, events: Events[Notice] | None = None) -> None:
        """Wait for the time, for a wake-up, or for notices."""
        waited_for = [self._bell, *([events.fileno()] if events is not None else [])]
        if self._bell in select.select(waited_for, [], [], seconds)[0]:
            os.eventfd_read(self._bell)

    def _news(self, notices: Iterable[Notice]) -> Notice | None:
        """Tell the user. Returns the last open demand if it is new. The first answer has all notices of the job."""
        demand = None
        for notice in notices:
            if notice["time"] <= self._seen:
                continue
            self._seen = notice["time"]
            match notice["kind"]:
                case "asked_back":
                    demand = notice
                case "relieved":
                    demand = None
                    if self._asked:
                        self._say(render(f"{notice['text']}; this kernel goes on"))
                    self._asked = False
                case kind if kind in SHOWN_AS_THEY_ARE:
                    first, *more = notice["text"].split("\n")
                    self._say("\n".join([render(first), *more]))
        return demand

    def _meet(self, client: Client, job: str, notice: Notice) -> None:
        facts = notice["facts"]
        self._asked = True
        until = notice["time"] + facts["grace"]
        what = notice["text"].partition("\n")[0]
        self._say(render(what, [(label, text) for label, text in facts["facts"]]))

        def loan() -> int:
            try:
                shown = client.job(job)
            except GpushareError:
                return 0
            mine = [gpu["loan"] for gpu in shown["gpus"] if gpu["uuid"] == facts["gpu"]]
            return mine[0] if mine and shown["state"] == "asked_back" else 0

        before = loan()
        for problem in release(
            facts["gpu"],
            lambda: max(0, min(facts["asked"], before) - (before - loan())),
            until - time.time(),
            what,
        ):
            self._say(render(f"memory is wanted back, and not everything could be given: {problem}"))
        self._say_what_is_left(before, loan(), until)

    def _say_what_is_left(self, before: int, left: int, until: float) -> None:
        if left == 0:
            return  # the daemon sees it too, and says so
        gave = f"gave {format_bytes(before - left)} back, and " if left < before else ""
        seconds = max(0.0, until - time.time())
        when = time.strftime("%H:%M:%S", time.localtime(until))
        text = f"this kernel {gave}still has {format_bytes(left)} on loan: it is stopped in"
        self._say(render(f"{text} {format_duration(seconds)}, at {when}", hint=WAYS_OUT))


def _find(timeout: float = 10.0) -> tuple[Client, str]:
    """The daemon and this process's job: it was started as one, or became one when it used a GPU."""
    client = locate.find(load_settings()).client(timeout)
    return client, client.find_job(os.environ.get("GPUSHARE_JOB") or str(os.getpid()))["id"]
