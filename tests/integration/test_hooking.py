"""Jobs whose hooks give memory back and take it again: real servers, daemon, library, wrapper and runner of hooks."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.node import MIB, ROOT, Node, gone, wait_for

SERVER = Path(__file__).with_name("engine_server.py")
PART = 256 * MIB
PATHS = {"PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}:{ROOT / 'tests'}"}
GPU = "memory=4Gi,context=75Mi"
PLAIN = ("--relief-url", "{base}/free", "--resume-url", "{base}/take")


@pytest.fixture
def node(tmp_path: Path, puppets: Path) -> Iterator[Node]:
    with Node(tmp_path, puppets, sim=GPU) as one:
        yield one


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """A job that serves. It borrows most of the GPU: 900 MiB of weights, and twice as much of cache."""

    def __init__(self, node: Node, style: str, *options: str, name: str = "server", weights: int = 900) -> None:
        self.node, self.name = node, name
        self.port_file = node.directory / f"{name}.port"
        self.port = free_port()
        base = f"http://127.0.0.1:{self.port}"
        options = tuple(one.format(base=base) for one in options)
        words = ("--name", name, "--request", "256Mi", "--limit", "3600Mi", *options)
        line = (sys.executable, SERVER, style, self.port_file, str(weights), str(self.port))
        self.wrapper = node.run(*words, *line, VLLM_SERVER_DEV_MODE="1")
        wait_for(self.port_file.exists, f"{name} to serve")
        if any("--relief" in one for one in options):
            wait_for(lambda: self.id in node.log() and self._runner_is_ready(), "its runner of hooks")

    def _runner_is_ready(self) -> bool:
        ready = [line for line in self.node.log().splitlines() if "runner of hooks is ready" in line]
        return any(self.id in line for line in ready)

    @property
    def id(self) -> str:
        return str(self.node.job(self.name)["id"])

    def call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=20) as answer:
            return json.loads(answer.read() or b"null")

    def answers(self) -> bool:
        """With the weights that it had at first, and nothing was refused to it."""
        return bool(self.call("GET", "/answer") == {"right": True, "failures": 0})

    def state(self) -> str:
        return str(self.node.job(self.name)["state"])

    def usage(self) -> int:
        return int(self.node.job(self.name)["gpus"][0]["usage"])

    def runner(self) -> int:
        children = Path(f"/proc/{self.wrapper.pid}/task/{self.wrapper.pid}/children").read_text().split()
        lines = {int(one): Path(f"/proc/{one}/cmdline").read_bytes() for one in children}
        return next(pid for pid, line in lines.items() if b"gpushare.hook_runner" in line)

    def end(self) -> str:
        """What its wrapper said."""
        self.wrapper.terminate()
        self.wrapper.wait(20)
        assert self.wrapper.stderr is not None
        return self.wrapper.stderr.read()


STYLES = {
    "plain": PLAIN,
    "vllm": ("--relief-url", "vllm+{base}"),
    "sglang": ("--relief-url", "sglang+{base}/"),
}


@pytest.mark.parametrize("style", STYLES)
def test_a_server_gives_its_memory_back_and_has_it_again(node: Node, style: str) -> None:
    server = Server(node, style, *STYLES[style])
    assert server.answers()
    b = node.puppet("B", "--request", "2Gi")
    b.alloc(5 * PART)
    wait_for(lambda: server.state() == "asleep", "its hook to end")
    assert server.usage() < PART
    told = node.gpushare("explain", "server").stdout
    assert "its hook has given 2.6 GiB of GPU 0 back in " in told
    assert "its resume hook is called when" in told and "more of GPU 0 are free" in told
    assert "asleep" in node.gpushare("ps").stdout
    assert b.end() == 0
    wait_for(lambda: server.state() == "borrowing", "it to be awake")
    assert server.answers()
    said = server.end()
    assert "this job's hook has given 2.6 GiB of GPU 0 back" in said
    assert "this job may use its memory again" in said


def test_ollama_unloads_its_models_and_loads_them_with_the_next_request(node: Node) -> None:
    server = Server(node, "ollama", "--relief-url", "ollama+{base}")
    server.call("POST", "/api/generate", {"model": "small:latest", "prompt": "?"})
    assert server.answers()
    b = node.puppet("B", "--request", "2Gi")
    b.alloc(5 * PART)
    wait_for(lambda: server.state() == "running", "its hook to end")
    assert server.call("GET", "/api/ps") == {"models": []}
    with pytest.raises(urllib.error.HTTPError):
        server.call("POST", "/api/generate", {"model": "small:latest", "prompt": "?"})
    assert b.end() == 0
    wait_for(lambda: "B" not in {job["name"] for job in node.api("GET", "/v1/jobs")["jobs"]}, "B to be over")
    server.call("POST", "/api/generate", {"model": "small:latest", "prompt": "?"})
    assert server.call("GET", "/answer")["right"]
    server.end()


def test_a_busy_engine_is_asked_until_it_is_not(node: Node) -> None:
    """SGLang must not be asked for its memory while it answers requests."""
    server = Server(node, "sglang", *STYLES["sglang"])
    server.call("POST", "/busy", True)
    b = node.puppet("B", "--request", "2Gi")
    b.send(f"alloc {5 * PART}")
    wait_for(lambda: server.state() == "hook", "its hook to be called")
    time.sleep(0.5)
    assert server.state() == "hook" and server.call("GET", "/answer")["right"]
    server.call("POST", "/busy", False)
    assert b.answer()[0] == "ok"
    assert b.end() == 0
    server.end()


def test_a_command_knows_what_is_wanted(node: Node) -> None:
    seen = node.directory / "seen"
    ask = "import os, urllib.request as u; u.urlopen(u.Request('{base}/%s', method='POST'))"
    relief = f'env > {seen}; {sys.executable} -c "{ask % "free"}"'
    server = Server(node, "plain", "--relief-cmd", relief, "--resume-cmd", f'{sys.executable} -c "{ask % "take"}"')
    b = node.puppet("B", "--request", "2Gi")
    b.alloc(5 * PART)
    told = dict(line.split("=", 1) for line in seen.read_text().splitlines() if "=" in line)
    assert told["GPUSHARE_HOOK"] == "relief" and told["GPUSHARE_HOOK_GPU"] == node.gpu()["uuid"]
    assert 0 < int(told["GPUSHARE_HOOK_BYTES"]) <= 5 * PART and 0 < float(told["GPUSHARE_HOOK_SECONDS"]) <= 20
    assert told["GPUSHARE_JOB"] == server.id and "LD_PRELOAD" not in told and "GPUSHARE_RELIEF_CMD" not in told
    assert b.end() == 0
    wait_for(lambda: server.state() == "borrowing", "it to be awake")
    assert server.answers()
    server.end()


@pytest.mark.parametrize(
    ("relief", "why"),
    [
        ("echo no such engine >&2; exit 3", "exit status 3: no such engine"),
        ("true", "it has ended well, and the job uses as much as before"),
        ("kill -9 $$", "it was ended by signal 9"),
        ("yes; true", "in time|was killed"),
        ("sleep 2718 & sleep 2719", "in time|was killed"),
    ],
    ids=["fails", "lies", "dies", "floods", "forks and hangs"],
)
def test_a_hook_that_is_no_good_costs_its_step_only(node: Node, relief: str, why: str) -> None:
    node.start_daemon("[reclaim]\nhook = 2\n")
    server = Server(node, "plain", "--relief-cmd", relief, "--grace", "300ms")
    runner = server.runner()
    b = node.puppet("B", "--request", "2Gi")
    began = time.monotonic()
    b.alloc(5 * PART)
    assert time.monotonic() - began < 15
    assert server.wrapper.wait(20) in {137, 143}
    told = node.gpushare("explain", "server").stdout
    assert re.search(f"its hook has given nothing back: .*({why})", told), told
    wait_for(lambda: gone(runner), "its runner to end with the job")
    assert not [line for line in processes() if "sleep 271" in line or line == "yes"]
    assert b.end() == 0


def processes() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode().strip())
        except OSError:
            continue
    return found


@pytest.mark.parametrize("moment", ["hook", "waking"])
@pytest.mark.parametrize("victim", ["daemon", "wrapper", "runner", "program"])
def test_nothing_is_lost_when_one_of_them_is_killed_in_the_middle(node: Node, victim: str, moment: str) -> None:
    slow = f"{sys.executable} -c \"import time, urllib.request as u; time.sleep(1); u.urlopen(u.Request('%s', b''))\""
    server = Server(node, "plain", "--relief-cmd", slow % "{base}/free", "--resume-cmd", slow % "{base}/take")
    b = node.puppet("B", "--request", "2Gi", "--limit", "2Gi")
    b.send(f"alloc {5 * PART}")
    if moment == "waking":
        assert b.answer()[0] == "ok"
        b.do("free all")
    wait_for(lambda: server.state() == moment, f"it to be {moment}")
    children = Path(f"/proc/{server.wrapper.pid}/task/{server.wrapper.pid}/children").read_text().split()
    program = next(int(one) for one in children if b"engine_server" in Path(f"/proc/{one}/cmdline").read_bytes())
    pids = {"daemon": node.daemon_pid(), "wrapper": server.wrapper.pid, "runner": server.runner(), "program": program}
    runner = pids["runner"]
    os.kill(pids[victim], signal.SIGKILL)
    if moment == "hook":
        assert b.answer()[0] == "ok", "the owner gets its memory"
    assert b.end() == 0
    if victim == "program" or gone(program):
        wait_for(lambda: gone(runner), "the runner to end with the job")
        assert victim in ("program", "runner"), "a hook whose runner is gone is not waited for"
        return
    wait_for(lambda: server.state() == "borrowing", "it to be awake")
    wait_for(server.answers, "its memory to be there")
    os.kill(program, signal.SIGKILL)
    wait_for(lambda: gone(runner) or victim == "runner", "the runner to end with the job")


def test_a_hook_without_a_relief_is_refused(node: Node) -> None:
    """Each message says what to do."""
    for words, said in (
        (("--on-reclaim", "hook"), "there is no hook"),
        (("--resume-cmd", "true"), "a resume hook without a relief hook is never called"),
        (("--relief-cmd", "true", "--relief-url", "http://localhost/"), "both say what to call"),
        (("--relief-url", "vlm+http://localhost:8000"), "did you mean vllm?"),
        (("--relief-url", "localhost:8000"), "is no URL that can be called"),
        (("--relief-cmd", "true", "--on-reclaim", "trim,kill"), "trim,kill has no step hook"),
        (("--relief-cmd", "true", "--exec"), "--exec replaces it"),
    ):
        done = node.gpushare("run", *words, "true")
        assert done.returncode == 125 and said in done.stderr, done.stderr
        assert "hint:" in done.stderr


def test_the_api_shows_nothing_of_what_is_called(node: Node) -> None:
    server = Server(node, "plain", "--relief-cmd", "curl -H 'Authorization: secret' {base}/free")
    assert "secret" not in json.dumps(node.job("server")) + node.log() + str(node.api("GET", "/v1/events"))
    shown = Path(f"/proc/{server.runner()}/cmdline").read_bytes()
    assert b"secret" not in shown
    server.end()


def test_two_servers_and_a_training_job_share_one_gpu(node: Node) -> None:
    """The recipe of the documentation: the servers take turns for what the training job leaves, and lose nothing."""
    small = ("--request", "256Mi", "--limit", "3000Mi")
    first = Server(node, "vllm", *STYLES["vllm"], *small, name="first", weights=300)
    second = Server(node, "sglang", *STYLES["sglang"], *small, name="second", weights=300)
    assert first.answers() and second.answers()
    training = node.puppet("training", "--request", "3Gi")
    for _ in range(11):
        training.alloc(PART)
    wait_for(lambda: {first.state(), second.state()} == {"asleep"}, "their hooks to end")
    training.do("free all")
    wait_for(lambda: first.answers() and second.answers(), "both to be awake")
    assert training.end() == 0
    for server in (first, second):
        assert "killed" not in server.end()


def test_three_servers_start_at_once_while_a_neighbour_moves(node: Node) -> None:
    """Each asserts what vLLM asserts: what it sees as free stays, also while another job borrows."""
    neighbour = node.puppet("neighbour", "--request", "none", "--limit", "max")
    neighbour.alloc(8 * PART)
    line = (sys.executable, "-m", "integration.careful_start")
    servers = [
        node.run("--name", f"server{number}", "--request", "1Gi", "--limit", "3Gi", "--for", "vllm", *line, **PATHS)
        for number in range(3)
    ]
    for _ in range(20):
        neighbour.try_("free all")
        neighbour.try_(f"alloc {2 * PART}")
        time.sleep(0.1)
    for server in servers:
        assert server.stdout is not None and server.stderr is not None and server.stdin is not None
        assert server.stdout.readline() == "serves\n", server.stderr.read()
        server.stdin.write("\n")
        server.stdin.flush()
        assert server.wait(20) == 0
    assert neighbour.wait() in {0, 137, 143} if neighbour.wrapper.poll() is not None else neighbour.end() == 0
