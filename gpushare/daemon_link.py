"""The job's connection to the daemon while its program runs, and the one place where the wrapper waits.

Why `sigtimedwait` and not a poll over a wake-up descriptor: the terminal sends Ctrl-C to the program, too, but `kill
-INT` of the wrapper reaches only the wrapper. Only the signal's own record tells them apart.

The daemon may die at any time. Then the stream ends. The wrapper starts this user's daemon again (never the system's)
and registers the same job under the same id. The program runs on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from gpushare.client import Client, Events
from gpushare.errors import DaemonUnreachable, GpushareError, NoSuchJob

if TYPE_CHECKING:
    from gpushare.api import Job, Notice, Outcome
    from gpushare.follower import KeptFollower
    from gpushare.locate import Node

__all__ = ["AWAY", "FOREVER", "RETRY_FIRST", "WAITED_FOR", "Link", "wait_for"]

FORWARDED = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGCONT,
    signal.SIGTSTP,
}
WAITED_FOR = FORWARDED | {signal.SIGCHLD, signal.SIGIO}
SI_KERNEL = 128  # the terminal's signals; the foreground process group has them already
FOREVER = float(10 * 365 * 86400)

RETRY_FIRST = 0.05
RETRY_LAST = 5.0
AWAY = 15.0  # seconds that a queued job waits for a daemon that has ended
LAST_WORDS = 0.5  # seconds
# Of the notices; the shim prints the others in the program itself.
ALWAYS_SHOWN = {"asked_back", "changed", "gpu_sick", "gpu_lost", "not_suspended", "resumed", "suspended"} | {
    "hook",
    "hook_failed",
    "awake",
    "idle",
}


class Say(Protocol):
    def __call__(self, message: str, /, *, level: int) -> None:
        """A note for the user: level 0 unless -q, 1 with -v."""


class Link:
    """The job's connection to the daemon while the program runs."""

    def __init__(
        self, node: Node, job: Job, child: int, registration: Callable[[], dict[str, object]], say: Say
    ) -> None:
        """registration: what to register the job with, when a new daemon does not know it."""
        self.node = node
        self.job = job
        self.child = child
        self._registration = registration
        self._say = say
        self.killed_notice: str | None = None
        self.stopped = False  # by `gpushare stop`
        self.retry_at: float | None = None
        self._followers: list[KeptFollower] = []
        self._away_since: float | None = None
        self._delay = RETRY_FIRST
        self._events: Events[Notice] | None = None
        self._printed: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}
        self._said: set[str] = set()
        try:
            self._open(register=False)
        except GpushareError:
            self._retry_later()

    def start_followers(self, environ: Mapping[str, str], hooks: Mapping[str, str]) -> None:
        """The processes that suspend the job and call its hooks. Only for a job that wants that: each costs a process.
        `hooks`: the variables that say what to call."""
        if not hooks and "suspend" not in self.job["on_reclaim"]:
            return
        from gpushare import follower

        if "suspend" in self.job["on_reclaim"]:
            self._follow(follower.SUSPENDER, environ, without=follower.OWN_GPUS)
        if "hook" in self.job["on_reclaim"] and hooks:
            self._follow(follower.HOOK_RUNNER, {**environ, **hooks})

    def _follow(self, module: str, environ: Mapping[str, str], without: tuple[str, ...] = ()) -> None:
        from gpushare.follower import KeptFollower

        job, socket = self.job["id"], self.node.runtime.api_socket
        try:
            self._followers.append(KeptFollower(module, environ, job, socket, without))
        except OSError as error:
            self._say(f"{module} does not start, so its reclaim step is left out: {error.strerror}", level=0)

    def read(self) -> None:
        """Read the daemon's notices. If the stream has ended, plan to open it again."""
        if self._events is None:
            return
        try:
            for notice in self._events.read():
                self._take(notice)
            ended = self._events.ended
        except DaemonUnreachable:
            ended = True
        if ended:
            self._events.close()
            self._events = None
            self._retry_later()

    def retry(self) -> None:
        """Reach the daemon again: start this user's daemon if need be, and register the job under its id."""
        self.retry_at = None
        try:
            self._open(register=True)
        except DaemonUnreachable as error:
            self._start_daemon()
            self._say_away(error)
            self._retry_later()
        except GpushareError as error:
            self._say_once(f"the daemon does not take the job back: {error.message}", level=0)
            self._delay = RETRY_LAST
            self._retry_later()
        else:
            self._delay = RETRY_FIRST
            self._away_since = None

    def end(self, status: int) -> Outcome | None:
        """Tell the daemon how the program ended, and learn whether the daemon ended it."""
        for follower in self._followers:
            follower.end()
        self.read()
        outcome = self._tell_end(status)
        if (
            outcome is not None
            and outcome["killed"] is None
            and status_signal(status) in (signal.SIGTERM, signal.SIGKILL)
        ):
            self._read_last()
        if self._events is not None:
            self._events.close()
        return outcome

    def _tell_end(self, status: int) -> Outcome | None:
        number = status_signal(status)
        try:
            ended = self.node.client(2.0).end(
                self.job["id"], None if number is not None else os.WEXITSTATUS(status), number
            )
        except GpushareError:
            return None
        self.job = ended["job"]  # includes what `gpushare set` has changed
        return ended["outcome"]

    def _read_last(self) -> None:
        """Wait for the notice of `gpushare stop`, which may come after the end of the program. Then the stream ends."""
        deadline = time.monotonic() + LAST_WORDS
        while self._events is not None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._events], [], [], left)[0]:
                return
            self.read()

    def reap(self) -> None:
        if self.node.starter is not None:
            self.node.starter.reap()
        for follower in self._followers:
            follower.look_after()

    def _open(self, *, register: bool) -> None:
        client = self.node.client(2.0)
        if register:
            state = self._state(client)
            if state == "ended":
                return  # the daemon was ended on purpose, and the program will follow
            if state is None:
                client.register({**self._registration(), "job": self.job["id"]})
        self._set_main(client)
        self._events = client.events(self.job["id"])
        watch(self._events)
        self.read()  # notices that came before SIGIO was set up

    def _state(self, client: Client) -> str | None:
        try:
            return client.job(self.job["id"])["state"]
        except NoSuchJob:
            return None

    def _set_main(self, client: Client) -> None:
        try:
            client.set_main(self.job["id"], self.child)
        except DaemonUnreachable:
            raise
        except GpushareError as error:
            if not has_ended(self.child):
                self._say_once(f"the daemon cannot see the program: {error.message}", level=1)

    def _start_daemon(self) -> None:
        if self.node.starter is not None:
            try:
                self.node.starter.start()
            except (GpushareError, OSError) as error:
                self._say_once(f"cannot start the daemon again: {error}", level=0)

    def _say_away(self, error: DaemonUnreachable) -> None:
        """Warn once when the daemon has been away for long: nothing protects the job's request meanwhile."""
        now = time.monotonic()
        self._away_since = self._away_since or now
        if now - self._away_since >= AWAY:
            log = self.node.runtime.log  # the system's daemon has none: systemd keeps it
            where = str(log) if self.node.starter is not None or log.exists() else "journalctl -u gpushared"
            self._say_once(
                f"{error.message}, for {AWAY:g} s now: the program keeps the memory that it has and gets no more;"
                f" the log: {where}",
                level=0,
            )

    def _retry_later(self) -> None:
        if self.killed_notice is not None:
            return  # a process that is being killed may take long to end, and belongs to no job any more
        self.retry_at = time.monotonic() + self._delay
        self._delay = min(self._delay * 2, RETRY_LAST)

    def _say_once(self, text: str, *, level: int) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text, level=level)

    def _take(self, notice: Notice) -> None:
        kind = notice["kind"]
        if kind == "killed":
            self.killed_notice = notice["text"]
            return
        if kind == "stopped":
            self.stopped = True
            self._say_once(notice["text"], level=0)
            return
        # At most one a second of each kind, then a count: many notices must not hide the program's own output.
        now = time.monotonic()
        if now - self._printed.get(kind, -1.0) < 1.0:
            self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
            return
        self._printed[kind] = now
        more = self._suppressed.pop(kind, 0)
        text = notice["text"] + (f" (and {more} more like it)" if more else "")
        self._say(text, level=0 if kind in ALWAYS_SHOWN else 1)


def watch(events: Events[Notice]) -> None:
    """Have the kernel raise SIGIO when something arrives."""
    descriptor = events.fileno()
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)


def wait_for(child: int, link: Link | None) -> int:
    """Wait until the program ends. Returns its status as waitpid gives it."""
    while True:
        timeout = FOREVER
        if link is not None and link.retry_at is not None:
            timeout = max(0.0, link.retry_at - time.monotonic())
        caught = signal.sigtimedwait(WAITED_FOR, timeout)
        if caught is not None and caught.si_signo in FORWARDED:
            forward(child, caught)
        # Signals of one kind merge, so check everything after any signal.
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if link is not None:
            link.reap()
            link.read()
            if link.retry_at is not None and time.monotonic() >= link.retry_at:
                link.retry()


def status_signal(status: int) -> int | None:
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None


def has_ended(child: int) -> bool:
    """Leaves the status in place: the wait loop needs it."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def forward(child: int, caught: signal.struct_siginfo) -> None:
    if caught.si_code != SI_KERNEL:
        with contextlib.suppress(PermissionError):  # it has executed a setuid program: we may not signal it
            os.kill(child, caught.si_signo)
    if caught.si_signo == signal.SIGTSTP:
        stop_too()


def stop_too() -> None:
    """Stop as well: the shell waits for us, not for the program, and would never show its prompt.

    We use the same signal with its default action, not SIGSTOP. Where no shell could continue us (the first process of
    a container), the kernel then stops neither of us.
    """
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
