"""The parent of one task: starts its program, keeps its output, stops it, and writes down how it ended.

It runs as the user of the job, in a session of its own, and does not need the service: the service may restart, be
upgraded or be killed meanwhile. It is a file of its own that imports nothing of gpushare, so an upgrade cannot pull a
module from under it, and it starts quickly.

    stdin       what to start (start.json), opened by the service
    cwd         the task's own folder, which belongs to the user
    ../stop.json    it is to be asked to stop, when to be killed, and why; the service writes it
    argv        the descriptor of the lock, and of a pipe that says that this process may start a program: it has its
                resource limits, and the node daemon knows it

The service locks the file before it starts the keeper, and the keeper inherits the lock. So the lock is free exactly
when no keeper lives. In the folder:

    running.json    the program's first process and when it started; written before that may run anything
    begun           the first process was allowed to run
    running         the program itself has started (task.py)
    report          how the program ended (gpushare run --report)
    refused.json    why it was not started (task.py)
    end.room        becomes end.json, so that an end can be written while the disk is full
    end.json        how the task ended; the last thing that is written
    out             the pipe that is the program's output

If a keeper is killed, the service starts another one in the same folder. That one finds the program by its process id
and start time and goes on, whether the node daemon answers or not: what has begun has an end in any case. The program
has the pipe open for reading too, so it can write while nobody listens.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MARK = "GPUSHARED_TASK"
"""The variable that names the task in the environment of its processes."""
FOLDER = "{folder}"
"""The word of the command line that stands for a descriptor of the task's folder."""
READ = 64 * 1024
SLOWEST = 2.0
"""Seconds between two looks at stop.json, if no signal comes."""
QUICKEST = 0.02
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER."""
WRAPPER_WITHIN = 3.0
"""Seconds that the wrapper has to end after everything that it started was killed."""
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these; the program shall not."""
NOT_STARTED = 125
ROOM = 4096
"""Bytes for an end."""
MOST_WHY = 1000
"""Characters."""


class Process(NamedTuple):
    pid: int
    start: int
    """When it started, in the kernel's ticks: tells it from a later process with the same number."""
    parent: int
    session: int


# ---- processes ---------------------------------------------------------------------------------------


def process(pid: int) -> Process | None:
    """None: there is none, or it has ended and only waits for its parent."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[19]), int(fields[1]), int(fields[3]))


def processes() -> dict[int, Process]:
    found = (process(int(one.name)) for one in Path("/proc").iterdir() if one.name.isdigit())
    return {one.pid: one for one in found if one is not None}


def below(roots: set[int], everything: dict[int, Process]) -> set[int]:
    """All descendants of these, the roots not included."""
    children: dict[int, list[int]] = {}
    for one in everything.values():
        children.setdefault(one.parent, []).append(one.pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found - roots


def has_mark(pid: int, mark: str) -> bool:
    try:
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def send(one: Process, number: int) -> None:
    """A signal for exactly this process, whatever has its number by now."""
    try:
        descriptor = os.pidfd_open(one.pid)
    except OSError:
        return
    try:
        now = process(one.pid)
        if now is not None and now.start == one.start:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


# ---- files -------------------------------------------------------------------------------------------


def read_json(name: str) -> Any:
    """None where there is no such file, or not a whole one. A pipe in its place holds nobody up."""
    try:
        with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
            return json.loads(file.read() or b"")
    except (OSError, ValueError):
        return None


def write_json(name: str, value: Any) -> None:
    """The file appears whole, or not at all."""
    fresh = f".{name}.{os.getpid()}"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    Path(fresh).replace(name)


def make_room() -> None:
    """Take what an end will need of the disk. Raises OSError."""
    descriptor = os.open("end.room", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, b" " * ROOM)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def note_end(end: dict[str, Any]) -> None:
    """Written over the room for it, which takes nothing of a full disk. JSON may have blanks at its end."""
    text = json.dumps(end).encode().ljust(ROOM)
    try:
        descriptor = os.open("end.room", os.O_WRONLY | os.O_NOFOLLOW)
    except OSError:  # it never started
        write_json("end.json", end)
        return
    try:
        os.write(descriptor, text)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    Path("end.room").replace("end.json")


class Log:
    """The file that output goes to, and one older one: never more than `most` bytes together."""

    def __init__(self, path: str, most: int, *, needed: bool = True) -> None:
        """Raises OSError if it is needed. Else what cannot be written is lost."""
        self.path = path
        self.most = most
        self.lost = 0
        """Bytes that could not be written: the disk is full."""
        self.descriptor, self.size = -1, 0
        try:
            self._open()
        except OSError:
            if needed:
                raise

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK
        self.descriptor = os.open(self.path, flags, 0o600)
        self.size = os.fstat(self.descriptor).st_size

    def write(self, data: bytes) -> None:
        try:
            if self.size and self.size + len(data) > self.most // 2:
                self._turn_over()
            while data:
                written = os.write(self.descriptor, data)
                self.size += written
                data = data[written:]
        except OSError:
            self.lost += len(data)  # the program is more important than its output

    def tell_lost(self) -> None:
        """At its end. On a disk that is full that is written over the last bytes, which takes no more room."""
        lost = self.lost
        if not lost:
            return
        self.write(said_of_lost(lost))
        if self.lost == lost:
            return
        text = b"\n" + said_of_lost(lost + 1 + len(said_of_lost(lost)))
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                size = os.fstat(descriptor).st_size
                if size >= len(text):
                    os.pwrite(descriptor, text, size - len(text))
            finally:
                os.close(descriptor)

    def _turn_over(self) -> None:
        Path(self.path).replace(f"{self.path}.1")
        os.close(self.descriptor)
        self.descriptor = -1
        self._open()


def said_of_lost(count: int) -> bytes:
    return f"gpushare: {count} bytes of output could not be written\n".encode()


# ---- the keeper --------------------------------------------------------------------------------------


class Keeper:
    def __init__(self, start: dict[str, Any]) -> None:
        self.start = start
        self.main: Process | None = None
        """The program's first process: the wrapper (task.py)."""
        self.adopted = False
        self.since = time.monotonic()
        self.status: int | None = None
        """As waitpid gives it; None: it is not our child, or has not ended."""
        self.stopping: tuple[str, str] | None = None
        """Why it is stopped: a kind of end, and words."""
        self.asked = False
        """Something that ran was told to stop."""
        self.kill_at: float | None = None
        self.killed_at: float | None = None
        self.wake_read, self.wake_write = os.pipe()
        for descriptor in (self.wake_read, self.wake_write):
            os.set_blocking(descriptor, False)

    def run(self, may_start: Callable[[], bool]) -> None:
        if read_json("end.json") is not None:
            return
        self._hear()
        self._find()
        fresh = self.main is None and not os.path.lexists("begun")
        if fresh and self._told() is not None:
            self._end("stopped", None, "")
            return
        try:
            if fresh:
                Path(self.start["log"]).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.log = Log(self.start["log"], self.start["log_most"], needed=fresh)
        except OSError as error:
            self._end("failed", None, f"cannot write the log {self.start['log']}: {error.strerror}")
            return
        with contextlib.suppress(FileExistsError):
            os.mkfifo("out", 0o600)
        self.pipe = os.open("out", os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)  # for writing too, so it never ends
        if fresh:
            if not may_start():
                return
            make_room()
            self._launch()
        self._look_after()
        self._pump()
        self._conclude()

    def _hear(self) -> None:
        ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop("lost", "its keeper was told to stop", self.start["grace"]))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    # ---- start ---------------------------------------------------------------------------------------

    def _find(self) -> None:
        """The program that an earlier keeper has started."""
        known = read_json("running.json")
        if known is None:
            return
        self.since = known["since"]
        found = process(known["pid"])
        if found is not None and found.start == known["start"]:
            self.main, self.adopted = found, True
        else:
            self.adopted = os.path.lexists("begun")

    def _launch(self) -> None:
        """Fork, note the child, let it run. If we are killed before it is noted, it ends and has done nothing."""
        if self.start["attempt"] > 1:
            self.log.write(f"--- attempt {self.start['attempt']} ---\n".encode())
        go_read, go_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(go_write)
            self._become(go_read)
        os.close(go_read)
        self.main = process(pid)
        self.since = time.monotonic()
        if self.main is not None:
            write_json("running.json", {"pid": pid, "start": self.main.start, "since": self.since})
            with contextlib.suppress(BrokenPipeError):
                os.write(go_write, b"1")
        os.close(go_write)

    def _become(self, go: int) -> None:
        """In the child: wait, take on what the job was submitted with, become the program. Does not return."""
        start, where = self.start, "start"
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            signal.set_wakeup_fd(-1)
            if os.read(go, 1) != b"1":
                os._exit(0)
            os.close(os.open("begun", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
            os.setsid()
            for number in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, *RESTORED):
                signal.signal(number, signal.SIG_DFL)
            out = os.open("out", os.O_RDWR)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.set_inheritable(folder, True)
            where = f"enter {start['cwd']}"
            os.chdir(start["cwd"])
            where = "set its resource limits"
            set_limits(start["rlimits"])
            os.umask(start["umask"])
            where = f"start {start['argv'][0]}"
            argv = [str(folder) if word == FOLDER else word for word in start["argv"]]
            os.execve(argv[0], argv, {**start["env"], MARK: start["mark"]})
        except OSError as error:
            with contextlib.suppress(OSError):
                os.fchdir(folder)
                write_json("refused.json", {"message": f"cannot {where}: {error.strerror}", "node": False})
        finally:
            os._exit(NOT_STARTED)

    # ---- while it runs -------------------------------------------------------------------------------

    def _look_after(self) -> None:
        pause = QUICKEST
        while True:
            self._pump()
            self._reap()
            self._obey()
            busy = self.stopping is not None or self.main is None
            if busy:
                left = self._processes()
                if not left and self.main is None:
                    return
                self._press(left)
            pause = min(pause * 1.5, 0.25) if busy else QUICKEST
            self._wait(pause if busy else self._patience())

    def _patience(self) -> float:
        """Seconds until there may be something to do, if nothing is heard."""
        limit = self.start["time"]
        if self.adopted:
            return 0.1  # it is not our child: nothing tells us that it has ended
        return SLOWEST if limit is None else max(QUICKEST, min(SLOWEST, self.since + limit - time.monotonic()))

    def _wait(self, seconds: float) -> None:
        ready = select.select([self.pipe, self.wake_read], [], [], seconds)[0]
        if self.wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake_read, READ)

    def _pump(self) -> None:
        """What the program has written, to the log; a bounded amount, so that a talkative one can be stopped."""
        for _ in range(64):
            try:
                data = os.read(self.pipe, READ)
            except BlockingIOError:
                return
            self.log.write(data)

    def _reap(self) -> None:
        """Everything that the program leaves behind becomes our child."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if self.main is not None and pid == self.main.pid and not self.adopted:
                self.main, self.status = None, status
        if self.main is not None and self.adopted:
            now = process(self.main.pid)
            if now is None or now.start != self.main.start:
                self.main = None

    def _told(self) -> dict[str, Any] | None:
        told = read_json("../stop.json")
        return told if isinstance(told, dict) else None

    def _obey(self) -> None:
        now = time.monotonic()
        told = self._told()
        if told is not None and (self.main is not None or self.adopted):
            self._stop(told.get("kind", "stopped"), "", told["kill_at"] - now)
        limit = self.start["time"]
        if limit is not None and self.main is not None and now >= self.since + limit:
            self._stop("over_time", "", self.start["grace"])

    def _stop(self, kind: str, words: str, grace: float) -> None:
        end = time.monotonic() + grace
        self.kill_at = end if self.kill_at is None else min(self.kill_at, end)
        if self.stopping is None or kind == "stopped":
            self.stopping = kind, words

    def _processes(self) -> list[Process]:
        """All that belongs to the task, its first process not included."""
        everything = processes()
        me, mark = os.getpid(), self.start["mark"]
        first = self.main.pid if self.main is not None else 0
        known = read_json("running.json") or {}
        session = known.get("pid", first)
        found = below({me, first} - {0}, everything)
        if session:  # 0 is that of all whose session began outside of our container, and no program's
            began = known.get("start", 0)
            found |= {one.pid for one in everything.values() if one.session == session and one.start >= began}
        if self.adopted:
            found |= {pid for pid in everything if has_mark(pid, mark)}
        return [everything[pid] for pid in sorted(found - {me, first}) if pid in everything]

    def _press(self, left: list[Process]) -> None:
        """Ask once, then kill. What is left when the first process has ended is stopped, too."""
        now = time.monotonic()
        if self.kill_at is None:
            self.kill_at = now + self.start["grace"]
        if not self.asked:
            self.asked = True
            # The wrapper ends when its program does. Until there is one, it is told itself.
            for one in left or ([self.main] if self.main is not None else []):
                send(one, signal.SIGTERM)
        if now < self.kill_at:
            return
        for one in left:
            send(one, signal.SIGKILL)
        self.killed_at = now if self.killed_at is None else self.killed_at
        late = now >= self.killed_at + (WRAPPER_WITHIN if left else QUICKEST)
        if self.main is not None and late:
            send(self.main, signal.SIGKILL)

    # ---- the end -------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        report = read_json("report") or {}
        refused = read_json("refused.json")
        self.log.tell_lost()
        code = self._exit_code(report)
        if self.stopping is not None:
            kind, words = self.stopping
            if kind == "over_time":
                self._end("done", code if code not in (0, None) else -signal.SIGTERM, "time")
            else:
                self._end(kind, code, words)
        elif refused is not None:
            kind = "done" if refused.get("exit") in (126, 127) else "failed"
            self._end(kind, refused.get("exit"), str(refused["message"]), node=bool(refused.get("node")))
        elif report.get("reclaimed"):
            code = ((report.get("outcome") or {}).get("killed") or {}).get("code")
            self._end("killed", -signal.SIGKILL, str(code or ""))  # the service has the words, and knows what follows
        elif code is None:
            self._end("lost", None, "it was killed together with its keeper")
        else:
            self._end("done", code, f"signal {-code}" if code < 0 else "")

    def _exit_code(self, report: dict[str, Any]) -> int | None:
        """Of the program: negative for a signal."""
        if report.get("child_signal") is not None:
            return -int(report["child_signal"])
        if report.get("child_exit_code") is not None:
            return int(report["child_exit_code"])
        return None if self.status is None else os.waitstatus_to_exitcode(self.status)

    def _end(self, kind: str, code: int | None, why: str, *, node: bool = False) -> None:
        ran = time.monotonic() - self.since
        note_end({"kind": kind, "exit": code, "why": why[:MOST_WHY], "node": node, "time": time.time(), "ran": ran})


def set_limits(wanted: dict[str, list[int]]) -> None:
    """As they were at submission, as far as this process may."""
    for name, (soft, hard) in wanted.items():
        which = getattr(resource, name, None)
        if which is not None:
            most = least_of(hard, resource.getrlimit(which)[1])
            resource.setrlimit(which, (least_of(soft, most), most))


def least_of(one: int, other: int) -> int:
    """The smaller of two limits, of which -1 is unlimited."""
    return max(one, other) if resource.RLIM_INFINITY in (one, other) else min(one, other)


def main() -> None:
    lock, ready = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(lock, False)
    with os.fdopen(0, encoding="utf-8", closefd=False) as file:
        start = json.load(file)

    def may_start() -> bool:
        """False: the service was killed, or the daemon does not know the task; another keeper comes."""
        with contextlib.suppress(OSError):
            return os.read(ready, 1) == b"1"
        return False

    Keeper(start).run(may_start)


if __name__ == "__main__":
    main()
