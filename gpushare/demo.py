"""The demo: a borrower and an owner share one GPU. Runs the two scripts of examples/, unchanged.

    act 1   the borrower takes three quarters of the GPU; a quarter of it is guaranteed, the rest is on loan
    act 2   the owner starts and takes an eighth: there is room, and nothing else happens
    act 3   the owner takes more than is free: the borrower gets SIGTERM, gives memory back and works on
    act 4   the same with a borrower that ignores SIGTERM: it is killed after its grace

Without a GPU it runs on the software driver, like every `gpushare run`. It has its own directory, so that it meets no
other job of the same user. With --sim it also starts its own daemon, which has no policy.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import gpushare_installation
from gpushare.client import Client
from gpushare.errors import DaemonUnreachable, GpushareError
from gpushare.paths import Runtime
from gpushare.start_daemon import Starter, did_not_start

GIB = 2**30
REFUSED = 125
"""The exit status of `gpushare run` if it has not started the program."""
DAEMON_WITHIN = 20.0
NARROW = 8
COLOURS = {"train": "36", "serve": "33", "late": "33", "stubborn": "35"}


def main(arguments: Sequence[str]) -> int:
    driver = "sim" if "--sim" in arguments else "auto"
    with tempfile.TemporaryDirectory(prefix="gpushare-demo-") as directory:
        stage = Stage(Path(directory), driver)
        try:
            if driver == "sim":
                stage.start_daemon()
            return stage.play()
        finally:
            stage.clear()


def examples() -> Path:
    """The directory of the scripts: installed beside the package, or in the source tree."""
    spec = importlib.util.find_spec("gpushare_examples")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for place in [*places, Path(__file__).resolve().parent.parent / "examples"]:
        if (place / "borrower.py").is_file():
            return place
    raise GpushareError("the examples are not installed", hint="run the demo from the source tree: make demo")


def has_binding() -> bool:
    """Whether the scripts find a Python binding of the CUDA driver."""
    for name in ("cuda.bindings", "cupy"):
        with contextlib.suppress(ModuleNotFoundError):  # of the parent
            if importlib.util.find_spec(name) is not None:
                return True
    return False


def typed() -> str:
    """What the user types for `gpushare`: a path if it is not on the PATH."""
    command = Path(sys.executable).with_name("gpushare")
    if shutil.which("gpushare") or not command.exists():
        return "gpushare"
    below = command.is_relative_to(Path.cwd())
    return str(command.relative_to(Path.cwd()) if below else command)


class Stage:
    """Starts programs, prints their output, and waits for expected lines."""

    def __init__(self, directory: Path, driver: str) -> None:
        self.directory = directory
        self.driver = driver
        self.scripts = examples()
        self.environment = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(directory),
            "XDG_STATE_HOME": str(directory / "state"),
            "PYTHONUNBUFFERED": "1",
            "GPUSHARE_SIM": os.environ.get("GPUSHARE_SIM", f"memory=16Gi,pool={directory}/pool"),
        }
        self.environment.pop("GPUSHARE_SOCKET", None)
        self.began = time.monotonic()
        self.programs: list[Program] = []

    def play(self) -> int:
        unit = self.gpu_size() / 16
        self.say("Act 1: train is guaranteed a quarter of the GPU and takes three quarters: the rest is on loan.")
        train = self.run("train", "25%", "90%", "borrower.py", 12 * unit, "--block", unit, "--keep", 3 * unit)
        train.hears("working with")
        self.show("ps")
        self.say("Act 2: serve is guaranteed half of the GPU and takes an eighth. There is room for both.")
        serve = self.run("serve", "50%", "50%", "owner.py", 2 * unit, 4.5 * unit, "--pause", 3)
        serve.hears("took")
        self.say("Act 3: serve takes more than is free, within its guarantee: train is asked to give back, and does.")
        serve.hears("took", times=2)
        train.hears("working on with")
        self.show("ps")
        ended = serve.ends() or train.stops()
        self.say("Act 4: the same again, with a borrower that ignores the question.")
        stubborn = self.run(
            "stubborn", "25%", "90%", "borrower.py", 12 * unit, "--block", unit, "--stubborn", grace="2s"
        )
        stubborn.hears("working with")
        late = self.run("late", "50%", "50%", "owner.py", 7 * unit, "--pause", 1)
        late.hears("took")
        killed = stubborn.ends()
        ended = ended or late.ends()
        self.say(f"stubborn was stopped with exit status {killed}; late never saw an error.")
        good = ended == 0 and killed == 137
        own = f"Now your own: {typed()} run --request 4Gi --limit 14Gi {Path(sys.executable).name} train.py"
        self.say(own if good else "That went wrong.")
        return 0 if good else 1

    # ---- programs ------------------------------------------------------------------------------

    def start_daemon(self) -> None:
        """Start a daemon for software GPUs that only these programs use."""
        starter = Starter(Runtime(self.directory / "own"), "sim", self.environment)
        self.environment["GPUSHARE_SOCKET"] = str(starter.runtime.api_socket)
        starter.start()
        deadline = time.monotonic() + DAEMON_WITHIN
        while True:
            try:
                Client(starter.runtime.api_socket).version()
            except DaemonUnreachable:
                if time.monotonic() > deadline or not starter.coming_up:
                    raise did_not_start(starter, DAEMON_WITHIN) from None
                time.sleep(0.02)
            else:
                return

    def gpu_size(self) -> float:
        """The size in GiB that a program with the whole GPU sees."""
        probe = "from gpu import *; print(open_gpu().memory()[1])"
        line = [*self.gpushare("run"), "-q", "--limit", "max", sys.executable, "-c", probe]
        done = subprocess.run(
            line, env=self.environment, cwd=self.scripts, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode == REFUSED:
            said = done.stderr.partition("\n")[0].removeprefix("gpushare: ")
            hint = "`gpushare demo --sim` plays it on software GPUs, with a daemon of its own that has no policy"
            raise GpushareError(f"the demo wants all of a GPU: {said}", hint=None if self.driver == "sim" else hint)
        if done.returncode:
            print(done.stderr, end="", file=sys.stderr)
            hint = "see `gpushare doctor`" if has_binding() else gpushare_installation.install_extra("demo")
            raise GpushareError("the demo cannot use a GPU, nor the software driver", hint=hint)
        return int(done.stdout) / GIB

    def gpushare(self, *words: str) -> list[str]:
        driver = ["--driver", self.driver] if words[0] == "run" else []
        # -P: use the installed package, even in a source tree that is not built.
        return [sys.executable, "-P", "-m", "gpushare", *words, *driver]

    def run(self, name: str, request: str, limit: str, script: str, *arguments: object, grace: str = "5s") -> Program:
        options = ["--name", name, "--request", request, "--limit", limit, "--grace", grace]
        words = [f"{one:.2f}".rstrip("0").rstrip(".") if isinstance(one, float) else str(one) for one in arguments]
        self.print(f"$ gpushare run {shlex.join(options)} python {script} {shlex.join(words)}", "1")
        line = [*self.gpushare("run"), *options, sys.executable, str(self.scripts / script), *words]
        program = Program(self, name, line)
        self.programs.append(program)
        return program

    def show(self, *words: str) -> None:
        self.print(f"$ gpushare {shlex.join(words)}", "1")
        subprocess.run([*self.gpushare(*words)], env=self.environment, check=False)

    def clear(self) -> None:
        for program in self.programs:
            program.stops()
        subprocess.run(
            [*self.gpushare("daemon", "stop")], env=self.environment, check=False, capture_output=True, timeout=20
        )

    # ---- words ---------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        self.print(f"\n{text}", "1;32")

    def print(self, text: str, colour: str | None) -> None:
        plain = colour is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR")
        line = text if plain else f"\033[{colour}m{text}\033[0m"
        print(f"{line}\n", end="", flush=True)  # in one call: several threads print


class Program:
    """One `gpushare run`; a thread prints its lines."""

    def __init__(self, stage: Stage, name: str, line: list[str]) -> None:
        self.stage, self.name = stage, name
        self.lines: list[str] = []
        self.news = threading.Condition()
        self.process = subprocess.Popen(
            line,
            env=stage.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            seconds = time.monotonic() - self.stage.began
            self.stage.print(f"{seconds:5.1f}s {self.name:>{NARROW}} | {line.rstrip()}", COLOURS.get(self.name))
            with self.news:
                self.lines.append(line)
                self.news.notify_all()
        with self.news:
            self.lines.append("")
            self.news.notify_all()

    def hears(self, text: str, times: int = 1, patience: float = 60.0) -> None:
        """Wait until the program has printed the text that often."""

        def said() -> bool:
            return sum(text in line for line in self.lines) >= times or self.lines[-1:] == [""]

        with self.news:
            self.news.wait_for(said, patience)
        if sum(text in line for line in self.lines) < times:
            raise GpushareError(f"{self.name} should have said {text!r} by now", hint="see `gpushare doctor`")

    def ends(self, patience: float = 60.0) -> int:
        status = self.process.wait(patience)
        self.reader.join(patience)
        return status

    def stops(self) -> int:
        """End the program with SIGINT, like Ctrl-C, if it still runs. Returns 0: this end is expected."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.reader.join(5)
        return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
