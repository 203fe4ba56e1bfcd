"""`gpushare run`: a job around a program.

    find or start the daemon -> register the job -> start the program -> wait -> end the job -> exit as the program did

The wrapper is a parent that the program does not notice: same terminal, same process group, same output, its exit
code. It waits in exactly one place, `sigtimedwait`, with all signals blocked: SIGCHLD reports the program's end, SIGIO
reports a notice from the daemon, and every other signal comes with its sender (daemon_link.py). There is no thread and
no signal handler.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpushare import hook_settings, locate, spawn
from gpushare.api import Job
from gpushare.client import Client
from gpushare.config import load_settings
from gpushare.daemon_link import AWAY, FOREVER, RETRY_FIRST, WAITED_FOR, Link, wait_for
from gpushare.env import Setting, Settings, unknown_variables
from gpushare.errors import DaemonUnreachable, Facts, GpushareError, Refused, UsageError, render
from gpushare.exit_message import Ending, exit_message, memory_kills, write_report
from gpushare.file_kinds import is_directory, is_there
from gpushare.job_spec import MOST_NAME
from gpushare.printable import one_line, printable, shortened
from gpushare.quantity import MAX, NOTHING, Budget, Kind, format_bytes, format_duration
from gpushare.start_warnings import start_warnings

__all__ = ["Options", "run"]

MAX_SHOWN = 4000  # characters of the command line


@dataclass(frozen=True, slots=True)
class Options:
    command: list[str]
    flags: Mapping[str, str | None] = field(default_factory=dict)  # by variable: GPUSHARE_LIMIT and so on
    gpus: int = 1
    devices: tuple[str, ...] = ()  # among which; of none CUDA_VISIBLE_DEVICES says it, if anything does
    wait: float | None = None
    lend: bool = True
    reservation: str | None = None
    replace: bool = False  # --exec
    container: bool = False  # the command is podman's or docker's
    report: Path | None = None
    verbosity: int = 0
    require_daemon: str = "--require-daemon"  # how the user says that there must be a daemon
    job: str | None = None  # the id to register the job with, if it is known before
    started: Callable[[], None] | None = None  # called once the program runs


def run(options: Options, environ: Mapping[str, str] | None = None) -> int:
    return Launch(options, os.environ if environ is None else environ).run()


class Launch:
    def __init__(self, options: Options, environ: Mapping[str, str]) -> None:
        self.options = options
        self.environ = environ
        self.settings: Settings = load_settings(options.flags, environ)
        self.hooks, (self.budget, self.request, self.limit) = hook_settings.of(self.settings), self.settings.budget()
        self.job: Job | None = None
        self.node: locate.Node | None = None
        self.started = time.monotonic()

    def run(self) -> int:
        self._check()
        program = spawn.find_program(self.options.command[0], self.environ)
        if self.mode == "off":
            raise spawn.exec_program(program, self.options.command, spawn.without_preload(self.environ))
        self.node = self._find_daemon()
        if self.node is not None:
            self._ask_for_reserved()
            self._admit()
        try:
            environ = _contained(self) if self.options.container else self.program_environ()
            if self.options.replace:
                self._replace(program, environ)
            return self._supervise(program, environ)
        except BaseException:
            self._withdraw()
            raise

    # Before the start

    def _check(self) -> None:
        """Refuse what can be refused before the daemon is asked."""
        for name in ("GPUSHARE_DRIVER", "GPUSHARE_VISIBLE", "GPUSHARE_LOG", "GPUSHARE_MODE", "GPUSHARE_FOR"):
            self.settings.choice(name)
        if self.mode != "enforce":
            self._check_mode()
        self.settings.flag("GPUSHARE_REQUIRE_DAEMON")
        self._options()
        if self.options.report is not None:
            _check_report(self.options.report, replace=self.options.replace)
        spawn.preload(self.environ)
        for warning in [*self.settings.warnings, *unknown_variables(self.environ)]:
            self.say(warning, level=0)

    def _check_mode(self) -> None:
        flags = {"GPUSHARE_REQUEST": "--request", "GPUSHARE_LIMIT": "--limit"}
        for name, flag in flags.items():
            if self.options.flags.get(name) is not None:
                raise UsageError(
                    f"{flag} means nothing with --mode {self.mode}: no budget is enforced", hint="leave it out"
                )
        if self.mode == "off" and self.options.report is not None:
            raise UsageError("--report needs the wrapper to stay, --mode off runs the program in its place")
        self.budget, self.request, self.limit = Budget(NOTHING, MAX), None, None

    def _find_daemon(self) -> locate.Node | None:
        try:
            node = locate.for_run(self.settings)
        except (DaemonUnreachable, OSError) as error:
            if self.settings.flag("GPUSHARE_REQUIRE_DAEMON") or self.options.container:
                raise
            self._say_unprotected(error)
            return None
        if node.passed_over is not None:
            asked_for = node.passed_over.code == "other_driver"
            self.say(
                f"this user's daemon is used, not the system's: {node.passed_over.message}", level=1 if asked_for else 0
            )
        if node.moved is not None:
            self.say(node.moved, level=1)
        if node.driver == "sim" and self.settings.choice("GPUSHARE_DRIVER") == "auto":
            self.say("no NVIDIA driver here: the software driver stands in (GPUs made of host memory)", level=0)
        return node

    def _say_unprotected(self, error: DaemonUnreachable | OSError) -> None:
        """Warn that the program starts without the daemon: why, what still holds, what to do. Shown even with -q."""
        if isinstance(error, OSError):
            where = f"{error.filename}: " if error.filename else ""
            error = DaemonUnreachable(f"cannot start the daemon: {where}{error.strerror or error}")
        alone = "the limit holds for each process by itself, and nothing is lent"
        if self.request is not None:
            alone += "; the request is not guaranteed"
        self.say(
            f"{error.message}; {alone if self.mode == 'enforce' else 'nothing is observed'}",
            error.facts,
            hint="; ".join(filter(None, [error.hint, f"with {self.options.require_daemon} this is an error"])),
            level=-1,
        )

    def _ask_for_reserved(self) -> None:
        """Set the request to the reserved amount if there is `--reservation` and no request."""
        name = self.options.reservation
        if self.node is None or name is None or self.request is not None or self.budget.request.kind is not Kind.NONE:
            return
        found = [one for one in self.node.client().reservations() if name in (one["name"], one["id"])]
        if len(found) == 1 and found[0]["gpus"]:  # else the daemon says what is wrong with the name
            amount = min(gpu["amount"] for gpu in found[0]["gpus"])
            self.request = Setting(str(amount), f"reservation {name}")
            self.budget = Budget.of(self.request.quantity(), self.limit.quantity() if self.limit else None)

    def _admit(self) -> None:
        """Register the job. If the daemon just ends after its last job, ask the next one.

        We choose the id: if the daemon notes the job and dies before it answers, the second call finds the same job.
        """
        job = self.options.job or f"{int.from_bytes(os.urandom(8)) or 1:016x}"  # like the daemon's own ids: never 0
        for attempt in range(4):
            assert self.node is not None
            try:
                self.job = self._register(self.node.client(), job)
            except DaemonUnreachable as error:
                if self.node.starter is None or attempt == 3 or error.code in ("timed_out", "garbage"):
                    raise
                self.node = locate.for_run(self.settings)
            else:
                self._tell_budget(self.job)
                for caution in start_warnings(self.job, self._options()) if self.mode == "enforce" else ():
                    self.say(caution, level=0)
                return

    def _register(self, client: Client, job: str) -> Job:
        body = {**self.registration(), "job": job}
        wait = self.options.wait
        if wait is None:
            return client.register(body)
        try:
            return client.register(body)
        except Refused as refusal:
            limit = "until there is room" if wait == float("inf") else f"up to {format_duration(wait)}"
            self.say(f"waiting {limit}: {one_line(refusal.message)}", refusal.facts, level=0)
        return self._queue({**body, "wait": min(wait, FOREVER)}, wait)

    def _queue(self, body: dict[str, object], wait: float) -> Job:
        """Wait in the queue. The daemon may restart meanwhile: a call with the job's id finds its place again."""
        away_since: float | None = None
        while True:
            assert self.node is not None
            asked_at = time.monotonic()
            try:
                return self.node.client().register(body, wait)
            except DaemonUnreachable as error:
                now = time.monotonic()
                if away_since is None or now - asked_at > AWAY:
                    away_since = now
                if error.code in ("timed_out", "garbage") or now - away_since > AWAY:
                    raise
                if self.node.starter is not None:
                    self.node.starter.start()
                time.sleep(RETRY_FIRST)

    def registration(self) -> dict[str, object]:
        return {
            "name": self.name,
            "command": shortened(self.options.command, MAX_SHOWN),
            "request": self.budget.request.canonical(),
            "limit": self.budget.limit.canonical(),
            "request_source": _source(self.request or (None if self.budget.request.kind is Kind.NONE else self.limit)),
            "limit_source": _source(self.limit or (None if self.budget.limit.kind is Kind.MAX else self.request)),
            "gpus": self.options.gpus,
            "devices": self._devices(),
            "lend": self.options.lend,
            "reservation": self.options.reservation,
            **self._options(),
            "wait": None,
            **({"mode": "observe"} if self.mode == "observe" else {}),  # an older daemon knows no modes
            "job": self.job["id"] if self.job else None,
            "cwd": working_directory(),
        }

    def _options(self) -> dict[str, object]:
        """The options whose value is simply their setting. Raises UsageError for a value that cannot be read."""
        steps = self.hooks.steps(self.settings, replaced=self.options.replace)
        return {**self.settings.options_of_job(), "on_reclaim": steps}

    def _devices(self) -> list[str] | None:
        if self.job is not None:
            return [gpu["uuid"] for gpu in self.job["gpus"]]
        return list(self.options.devices) or visible_devices(self.environ)

    @property
    def mode(self) -> str:
        return self.settings.choice("GPUSHARE_MODE")

    @property
    def name(self) -> str:
        setting = self.settings.find("GPUSHARE_NAME")
        if setting and setting.name and "GPUSHARE_JOB" in self.environ:
            setting = None  # names the job that this process is in, not the one that we start
        return setting.text if setting else default_name(self.options.command)

    def _tell_budget(self, job: Job) -> None:
        for gpu in job["gpus"]:
            self.say(
                f"job {job['name']} ({job['id']}) on GPU {gpu['index']} ({gpu['name']}):"
                f" request {format_bytes(gpu['request'])}{_from(job['request_source'])},"
                f" limit {format_bytes(gpu['limit'])}{_from(job['limit_source'])}",
                level=1,
            )

    def program_environ(self) -> dict[str, str]:
        return spawn.program_environ(
            self.environ,
            self.settings,
            self.budget,
            name=self.name,
            devices=self.options.devices,
            driver=self._driver(),
            runtime=self.node.runtime if self.node is not None else None,
            job=self.job,
        )

    def _driver(self) -> str:
        if self.node is not None:
            return self.node.driver
        driver = self.settings.choice("GPUSHARE_DRIVER")
        return locate.detect_driver() if driver == "auto" else driver

    # The program

    def _replace(self, program: str, environ: Mapping[str, str]) -> None:
        if self.node is not None and self.job is not None:
            self.node.client().set_main(self.job["id"], os.getpid())
        raise spawn.exec_program(program, self.options.command, environ)

    def _supervise(self, program: str, environ: Mapping[str, str]) -> int:
        memory_kills_before = memory_kills()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, WAITED_FOR)
        try:
            child = spawn.spawn_program(program, self.options.command, environ, _signals(mask))
            link = self._link(child, environ)
            if self.options.started is not None:
                self.options.started()
            status = wait_for(child, link)
        finally:
            # Signals still pending were for the program. With the mask open they would end us before our last message.
            for number in WAITED_FOR - {signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD}:
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        outcome = None
        if link is not None:
            outcome = link.end(status)
            self.job = link.job
        ending = Ending(
            status=status,
            program=f"{Path(self.options.command[0]).name}[{child}]",
            outcome=outcome,
            killed_notice=link.killed_notice if link else None,
            stopped=link is not None and link.stopped,
            by_kernel=memory_kills() > memory_kills_before,
        )
        return self._finish(ending)

    def _link(self, child: int, environ: Mapping[str, str]) -> Link | None:
        if self.node is None or self.job is None:
            return None
        link = Link(self.node, self.job, child, self.registration, self.say)
        link.start_followers(environ, self.hooks.environ())
        return link

    def _finish(self, ending: Ending) -> int:
        words = exit_message(ending)
        if words:
            write_stderr(words)
        advice = self._advice(ending)
        if advice is not None:
            self.say(advice[0], level=0)
        if self.options.report is not None:
            try:
                write_report(
                    self.options.report,
                    ending=ending,
                    command=self.options.command,
                    job=self.job,
                    duration=time.monotonic() - self.started,
                    recommended=None if advice is None else advice[1],
                )
            except OSError as error:
                self.say(f"cannot write the report to {self.options.report}: {error.strerror}", level=0)
        return ending.exit_code

    def _advice(self, ending: Ending) -> tuple[str, str | None] | None:
        """What to ask for after `--mode observe`: a sentence, and the limit if any use was seen."""
        if self.mode != "observe" or self.job is None or ending.outcome is None:
            return None
        from gpushare.advice import of_peaks

        peaks = ending.outcome["peak"]
        return of_peaks([(gpu["index"], peaks.get(gpu["uuid"], 0), gpu["total"]) for gpu in self.job["gpus"]])

    def _withdraw(self) -> None:
        """End the job: the program did not start."""
        if self.node is not None and self.job is not None:
            with contextlib.suppress(GpushareError):  # the daemon will notice that we have ended
                self.node.client(1.0).end(self.job["id"], None, None)

    def say(self, message: str, facts: Facts = (), *, level: int, hint: str | None = None) -> None:
        """A note for the user, of one line or several: level -1 always, 0 unless -q, 1 with -v."""
        if self.options.verbosity >= level:
            first, *more = message.split("\n")
            write_stderr("\n".join([render(first, facts, hint), *more]))


def visible_devices(environ: Mapping[str, str]) -> list[str] | None:
    """The GPUs in CUDA_VISIBLE_DEVICES: indices or UUIDs, in order. Like CUDA it stops at the first that is neither."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    found: list[str] = []
    for item in (part.strip() for part in text.split(",")):
        if not (item.isdigit() or item.startswith(("GPU-", "MIG-"))):
            break
        found.append(item)
    if not found:
        raise UsageError(
            f"CUDA_VISIBLE_DEVICES={text} hides every GPU",
            code="no_visible_gpu",
            hint="unset it, or run the program without gpushare",
        )
    return found


def working_directory() -> str | None:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # it was removed meanwhile; the program may still run there
        return None


def default_name(command: Sequence[str]) -> str:
    """`train` for `python -u train.py --epochs 3`, else the program's name."""
    program = Path(command[0]).name
    if program.startswith("python"):
        script = next((word for word in command[1:] if word.endswith(".py")), None)
        if script:
            program = Path(script).stem
    return program[:MOST_NAME]


def write_stderr(text: str) -> None:
    """Write to stderr in one call, so that lines of several wrappers do not mix. A closed stderr is ignored."""
    with contextlib.suppress(OSError):
        os.write(2, f"{printable(text)}\n".encode("utf-8", "backslashreplace"))


def _check_report(path: Path, *, replace: bool) -> None:
    if replace:
        raise UsageError("--report needs the wrapper to stay, --exec replaces it")
    try:
        writable = os.access(path if is_there(path) else path.absolute().parent, os.W_OK)
    except FileNotFoundError:  # the working directory has been removed
        writable = False
    if is_directory(path) or not writable:
        why = "it is a directory" if is_directory(path) else "its directory must be there, and yours to write to"
        raise UsageError(f"cannot write the report to {path}", hint=why)


def _source(setting: Setting | None) -> str | None:
    return setting.source if setting else None


def _from(source: str | None) -> str:
    return f" (from {source})" if source else ""


def _signals(mask: set[int] | set[signal.Signals]) -> set[signal.Signals]:
    return {signal.Signals(number) for number in mask}


def _contained(launch: Launch) -> dict[str, str]:
    """Have podman or docker give the container what a program needs. Its own environment: what it was."""
    from gpushare import container
    from gpushare.paths import library

    assert launch.node is not None and launch.job is not None
    inside = container.inside(launch.node, library(turns=launch.job.get("turns", False)), launch.environ)
    environ = launch.program_environ()
    words = container.engine_command(launch.options.command, environ, launch.environ, launch.job, inside)
    launch.options = replace(launch.options, command=words)
    return spawn.without_preload(launch.environ)
