"""The demo of the queue: two queues share two software GPUs, half each, and neither loses work.

    act 1   ada queues four runs: both GPUs are idle, so two of them start, one of them above ada's share
    act 2   ben queues one: a run of ada's is asked to stop, saves its work and waits; ben's starts
    act 3   ben's run ends: ada's goes on from where it was

It has its own directory, service and node daemon, and stops them at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gpushare_installation
from gpushare.demo import examples, has_binding, typed
from gpushare.errors import GpushareError

WITHIN = 60.0
PAUSE = 0.03
"""Seconds of a step."""
QUEUES = "queues: [{name: ada, weight: 1}, {name: ben, weight: 1}]\n"


def main() -> int:
    if not has_binding():
        raise GpushareError(
            "the demo's programs need a Python binding of the CUDA driver",
            hint=gpushare_installation.install_extra("demo"),
        )
    with tempfile.TemporaryDirectory(prefix="gpushare-demo-") as directory:
        stage = Stage(Path(directory))
        try:
            stage.start_service()
            return stage.play()
        finally:
            stage.clear()


def lost_nothing(output: str) -> bool:
    """Whether the second attempt of a run began at the step at which the first was stopped."""
    saved = re.search(r"stopped at step (\d+), saved", output)
    return saved is not None and int(saved[1]) > 0 and output.count(f"from step {saved[1]}\n") == 1


class Stage:
    """A service of its own, and what a user would type."""

    runs = 4
    """Of ada's."""
    steps: Mapping[str, int] = {"ada": 100_000, "ben": 100}
    """ada's do not end while the demo lasts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.scripts = examples()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GPUSHARE_")},
            "XDG_RUNTIME_DIR": str(directory),
            "XDG_STATE_HOME": str(directory / "state"),
            "GPUSHARE_DRIVER": "sim",
            "GPUSHARE_SIM": f"gpus=2,memory=4Gi,pool={directory}/pool",
        }
        self.service: subprocess.Popen[bytes] | None = None
        self.log = directory / "service.log"

    def play(self) -> int:
        self.say("Two GPUs, two queues with half of them each. Act 1: ada queues some runs, and nobody else is there.")
        for number in range(self.runs):
            self.submit("ada", f"a{number + 1}")
        self.until("two of ada's runs", lambda: len(self.running()) == 2)
        self.show("queue")
        self.say(
            "Act 2: ben queues one. ada has more than a fair share: a run of ada's saves its work and waits again."
        )
        bens = self.submit("ben", "b1")
        self.until("ben's run", lambda: bens in self.running())
        self.show("queue")
        self.show("queue", "--shares")
        self.say("Act 3: when ben's run ends, ada's goes on where it was.")
        self.until("ben's end", lambda: bens not in self.jobs())
        self.until("the run that was stopped", lambda: self.stopped() in self.running())
        stopped = self.stopped()
        self.until("its second attempt", lambda: self.ask("logs", stopped).count("from step") == 2)
        self.show("logs", stopped)
        self.show("queue", "--all")
        self.say("That is all; ada's runs would go on.")
        self.show("cancel", *self.jobs())
        good = lost_nothing(self.ask("logs", stopped))
        self.say(f"Now your own: {typed()} cluster serve --engine local" if good else "That went wrong.")
        return 0 if good else 1

    def stopped(self) -> str:
        """The run that was stopped for another; "" while there is none."""
        return next((id for id, job in self.jobs().items() if job["evictions"]), "")

    # ---- what is typed -------------------------------------------------------------------------

    def submit(self, queue: str, name: str) -> str:
        options = ["--queue", queue, "--name", name]
        words = ["training.py", f"{name}.json", "--steps", str(self.steps[queue])]
        self.print(f"$ gpushare submit {' '.join(options)} -- python {' '.join(words)}", "1")
        script = [sys.executable, str(self.scripts / words[0]), str(self.directory / words[1]), *words[2:]]
        id = self.ask("submit", *options, "--", *script, "--pause", str(PAUSE)).strip()
        self.print(id, None)
        return id

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Those that are not over, by id."""
        return {job["id"]: job for job in json.loads(self.ask("queue", "--json"))["jobs"]}

    def running(self) -> list[str]:
        return [id for id, job in self.jobs().items() if job["state"] == "running"]

    def ask(self, *words: str) -> str:
        done = subprocess.run(self.gpushare(*words), env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise GpushareError(f"`gpushare {words[0]}` failed: {done.stderr.strip()}", hint="see `gpushare doctor`")
        return done.stdout

    def show(self, *words: str) -> None:
        self.print(f"$ gpushare {' '.join(words)}", "1")
        subprocess.run(self.gpushare(*words), env=self.environment, check=False)

    def gpushare(self, *words: str) -> list[str]:
        # -P: use the installed package, even in a source tree that is not built.
        return [sys.executable, "-P", "-m", "gpushare", *words]

    def until(self, what: str, true: Callable[[], object]) -> None:
        deadline = time.monotonic() + WITHIN
        while not true():
            if time.monotonic() > deadline:
                raise GpushareError(f"waited {WITHIN:g} s for {what}", hint=f"the service says: {self.last_words()}")
            time.sleep(0.3)

    # ---- the service ---------------------------------------------------------------------------

    def start_service(self) -> None:
        with self.log.open("wb") as log:
            line = self.gpushare("cluster", "serve", "--engine", "local")
            self.service = subprocess.Popen(line, env=self.environment, stdout=log, stderr=log)
        deadline = time.monotonic() + WITHIN
        while subprocess.run(self.gpushare("queue"), env=self.environment, capture_output=True, check=False).returncode:
            if self.service.poll() is not None or time.monotonic() > deadline:
                raise GpushareError(f"the service does not start: {self.last_words()}", hint="see `gpushare doctor`")
            time.sleep(0.1)
        queues = self.directory / "queues.yaml"
        queues.write_text(QUEUES)
        self.ask("cluster", "apply", str(queues))

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing"

    def clear(self) -> None:
        if self.service is None:
            return
        for id in self.jobs() if self.service.poll() is None else ():
            with contextlib.suppress(GpushareError):  # it has ended meanwhile
                self.ask("cancel", "--now", id)
        deadline = time.monotonic() + WITHIN
        while self.service.poll() is None and self.jobs() and time.monotonic() < deadline:
            time.sleep(0.2)
        self.service.send_signal(signal.SIGTERM)
        self.service.wait(WITHIN)
        stop = self.gpushare("daemon", "stop")
        subprocess.run(stop, env=self.environment, check=False, capture_output=True, timeout=WITHIN)

    # ---- words ---------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        self.print(f"\n{text}", "1;32")

    def print(self, text: str, colour: str | None) -> None:
        plain = colour is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR")
        print(text if plain else f"\033[{colour}m{text}\033[0m", flush=True)
