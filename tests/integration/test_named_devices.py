"""`podman run --device gpushare.dev/gpu=NAME ...`: containers of a named device are jobs, without a wrapper.

With the real Podman and runc, as root. Without them the file and the hooks are looked at.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpushare import cdi, container_hook
from gpushare.cli import cli
from gpushare.client import Client
from gpushare.container import Inside
from gpushare.errors import GpushareError, UsageError
from integration.node import GIB, MIB, Node, Puppet, wait_for
from integration.podman_stage import LIMITS, podman

__all__ = ["podman"]

CDI = Path("/var/run/cdi")
OUT_OF_MEMORY = ["error", "2"]
GPU = "GPU-00000000-0000-0000-0000-000000000001"


class Engine:
    """Podman, with the devices that a test makes; nothing of them outlives it."""

    def __init__(self, node: Node, podman: list[str]) -> None:
        *self.line, self.root = podman
        self.node = node
        self.made: list[str] = []

    def device(self, name: str, *options: object) -> str:
        """Its name for `--device`. That of the file is this test's own."""
        own = f"test{os.getpid()}-{name}"
        found = self.node.gpushare("cdi", own, *options, "--folder", CDI)
        assert found.returncode == 0, found.stderr
        self.made.append(own)
        return f"{cdi.KIND}={own}"

    def words(self, device: str, *more: str) -> list[str]:
        words = [*self.line, "run", "-i", "--rm", *LIMITS, f"--device={device}", *more]
        return [*words, f"--volume={self.node.puppets}:/puppets:ro", "--rootfs", self.root]

    def program(self, device: str, *more: str) -> Puppet:
        made = Puppet(device, self.node.spawn([*self.words(device, *more), "/puppets/puppet-dlopen"]))
        made.do("open 0")
        return made

    def shell(self, device: str, text: str) -> subprocess.CompletedProcess[str]:
        line = [*self.words(device), "/bin/sh", "-c", text]
        return subprocess.run(line, env=self.node.env, capture_output=True, text=True, timeout=60, check=False)

    def placed(self) -> list[dict[str, Any]]:
        return list(self.node.api("GET", "/v1/placements")["placements"])


@pytest.fixture
def engine(node: Node, podman: list[str]) -> Iterator[Engine]:
    node.start_daemon()
    made = Engine(node, podman)
    yield made
    for name in made.made:
        cdi.remove(name, CDI)
    with contextlib.suppress(OSError):
        CDI.rmdir()


def test_a_container_of_the_contentborrows_and_gives_way(engine: Engine) -> None:
    device = engine.device("lent", "--request", "2Gi", "--limit", "14Gi", "--grace", "1s", "--on-reclaim", "term")
    borrower = engine.program(device)
    for _ in range(10):
        borrower.alloc(GIB)
    (placed,) = engine.placed()
    (used,) = placed["job"]["gpus"]
    assert placed["id"].startswith("container/") and used["loan"] > 7 * GIB
    assert all(
        path.rpartition("-")[2].startswith(placed["job"]["name"].rpartition("-")[2]) for path in placed["cgroups"]
    )
    owner = engine.node.puppet("outside", "--request", "12Gi")
    owner.alloc(11 * GIB)
    assert borrower.wait() in (137, 143)
    assert owner.end() == 0
    wait_for(lambda: not engine.placed(), "the placement to be over")


def test_two_containers_of_a_contentare_two_jobs_and_their_environment_changes_nothing(engine: Engine) -> None:
    device = engine.device("two", "--limit", "2Gi")
    said = ("--env=GPUSHARE_LIMIT=9Gi", "--env=GPUSHARE_REQUEST=9Gi", "--env=GPUSHARE_JOB=00000000000000ee")
    first, second = engine.program(device), engine.program(device, *said)
    for one in (first, second):
        one.alloc(1500 * MIB)
        assert one.try_(f"alloc {GIB}")[:2] == OUT_OF_MEMORY
    assert len(engine.placed()) == 2
    assert (first.end(), second.end()) == (0, 0)
    wait_for(lambda: not engine.placed(), "both to be over")


def test_a_program_of_podman_exec_is_in_the_job_too(engine: Engine) -> None:
    device = engine.device("exec", "--limit", "6Gi")
    first = engine.program(device, f"--name=gs-{os.getpid()}")
    first.alloc(4 * GIB)
    (content,) = json.loads(next(CDI.glob("*-exec.json")).read_text())["devices"]
    said = [f"--env={one}" for one in content["containerEdits"]["env"]]  # podman gives it none of these by itself
    words = [*said, "--env=GPUSHARE_LIMIT=9Gi", f"gs-{os.getpid()}", "/puppets/puppet-dlopen"]
    second = Puppet("exec", engine.node.spawn([*engine.line, "exec", "-i", *words]))
    second.do("open 0")
    assert second.try_(f"alloc {2 * GIB}")[:2] == OUT_OF_MEMORY, "they share the limit"
    assert len(engine.placed()) == 1
    assert (second.end(), first.end()) == (0, 0)


def test_a_container_starts_again_and_while_the_daemon_is_away_none_does(engine: Engine) -> None:
    device, name = engine.device("again", "--limit", "2Gi"), f"gs-again-{os.getpid()}"
    words = [word for word in engine.words(device, f"--name={name}") if word != "--rm"]
    try:
        for line in ([*words, "/bin/true"], [*engine.line, "start", "-a", name]):
            found = subprocess.run(line, env=engine.node.env, capture_output=True, text=True, timeout=60, check=False)
            assert found.returncode == 0, found.stderr
        engine.node.kill_daemon()
        found = engine.shell(device, "true")
        assert found.returncode != 0 and "no daemon listens" in found.stderr
    finally:
        subprocess.run([*engine.line, "rm", "-f", name], env=engine.node.env, capture_output=True, check=True)


def test_without_room_the_engine_says_why_and_only_the_socket_for_programs_is_inside(engine: Engine) -> None:
    found = engine.shell(engine.device("look", "--limit", "1Gi"), "find /run/gpushare -type s; exit 7")
    assert (found.returncode, found.stdout.split()) == (7, ["/run/gpushare/shim.sock"]), found.stderr
    device = engine.device("large", "--request", "9Gi")
    first = engine.program(device)
    found = engine.shell(device, "true")
    assert found.returncode != 0 and "no room for a request of 9.0 GiB on GPU 0" in found.stderr
    assert first.end() == 0
    wait_for(lambda: not engine.placed(), "the placement to be over")


def test_what_an_engine_has_left_behind_is_taken_away_when_the_next_container_comes(engine: Engine) -> None:
    body = {"attempt": 1, "uid": 0, "gpus": ["0"], "request": "12Gi", "cgroups": ["/no/such/group"]}
    client = Client(engine.node.runtime / "api.sock")
    client.place("container/gone/1", body)
    client.place("kubernetes/other/1", {**body, "request": "1Gi"})
    assert engine.shell(engine.device("next", "--limit", "9Gi"), "true").returncode == 0
    wait_for(lambda: [one["id"] for one in engine.placed()] == ["kubernetes/other/1"], "the other to stay alone")


# ---- the hooks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0::/machine.slice/libpod-abc.scope/container\n", ["/machine.slice/libpod-abc.scope"]),
        ("0::/system.slice/docker-abc.scope\n", ["/system.slice/docker-abc.scope"]),
        ("2:memory:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n", ["/docker/abc"]),
        ("2:memory:/a/libpod-abc\n1:pids:/b/abc/x\n0::/user.slice\n", ["/a/libpod-abc", "/b/abc"]),
        ("0::/user.slice/user-1000.slice/session-1.scope\n", []),
    ],
)
def test_only_the_containers_own_cgroup_counts(text: str, found: list[str]) -> None:
    assert container_hook.where_runs(text, "abc") == found


def test_without_a_cgroup_of_its_own_a_container_is_known_by_its_session(node: Node) -> None:
    node.start_daemon()
    client = Client(node.runtime / "api.sock")
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    body = {"attempt": 1, "uid": 0, "gpus": ["0"], "request": "1Gi", "limit": "2Gi", "name": "small"}
    try:
        container_hook.enter(client, body, "f" * 64, child.pid)
        (one,) = client.placements()
        assert (one["sessions"], one["cgroups"], one["job"]["name"]) == ([child.pid], [], "small-ffffffffffff")
        container_hook.enter(client, body, "e" * 64, child.pid)
        assert len(client.placements()) == 2, "one that runs is left alone"
        for _ in range(2):
            container_hook.leave(client, "f" * 64)
        assert [one["job"]["name"] for one in client.placements()] == ["small-eeeeeeeeeeee"]
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("said", ["", "[]", "{}", '{"id": "x"}', '{"id": "x", "pid": "y"}'])
def test_what_is_no_state_of_a_container_fails(said: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    assert container_hook.main(["createRuntime", "/nowhere/api.sock", "{}"]) == 1
    assert "no hook of a container" in capsys.readouterr().err


def test_a_hook_takes_little_time(node: Node) -> None:
    """Each start of a container waits for it."""
    node.start_daemon()
    hook = cdi._hook(cdi.OVER, node.runtime / "api.sock", {})
    began = time.monotonic()
    line = [hook["path"], *hook["args"][1:]]
    environ = dict(pair.split("=", 1) for pair in hook["env"])
    subprocess.run(line, env=environ, input='{"id": "x", "pid": 0}', text=True, check=True, timeout=60)
    assert time.monotonic() - began < 10


# ---- the file ------------------------------------------------------------------------------------------

BODY = {"gpus": [GPU], "name": "small", "request": "4Gi", "limit": "8Gi"}
REAL = Inside(Path("/x/libgpushare.so"), Path("/run/gpushare/containers"), {})
NVIDIA = {
    "cdiVersion": "0.7.0",
    "kind": "nvidia.com/gpu",
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk"}],
        "mounts": [{"hostPath": "/lib/libcuda.so.1", "containerPath": "/lib/libcuda.so.1"}],
    },
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}, {"path": "/dev/nvidiactl"}]}},
        {"name": "1", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}, {"path": "/dev/nvidiactl"}]}},
    ],
}


def test_the_contentbrings_what_nvidias_toolkit_says_of_its_gpus(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").write_text(yaml.safe_dump(NVIDIA))
    gpus = [{"uuid": GPU, "index": 0}, {"uuid": "GPU-2", "index": 1}]
    made = cdi.spec(BODY, REAL, Path("/run/gpushare/api.sock"), of_gpus=cdi.described(gpus, [tmp_path]))
    assert made["cdiVersion"] == "0.7.0"
    edits = made["devices"][0]["containerEdits"]
    assert [one["path"] for one in edits["deviceNodes"]] == ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia1"]
    assert [one["hookName"] for one in edits["hooks"]] == ["createContainer", "createRuntime", "poststop"]
    assert edits["mounts"][0]["hostPath"] == "/lib/libcuda.so.1"
    assert {"NVIDIA_VISIBLE_DEVICES=void", "GPUSHARE_LIMIT=8Gi", f"CUDA_VISIBLE_DEVICES={GPU}"} <= set(edits["env"])
    with pytest.raises(UsageError, match="has not described GPU 2") as refused:
        cdi.described([{"uuid": "GPU-3", "index": 2}], [tmp_path, tmp_path / "nowhere"])
    assert refused.value.hint is not None and refused.value.hint.startswith("nvidia-ctk cdi generate")


def test_files_in_json_need_nothing_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    gpus = [{"uuid": GPU, "index": 0}]
    (tmp_path / "nvidia.yaml").write_text(yaml.safe_dump(NVIDIA))
    with pytest.raises(UsageError, match="has not described GPU 0"):
        cdi.described(gpus, [tmp_path])
    (tmp_path / "nvidia.json").write_text(json.dumps(NVIDIA))
    assert cdi.described(gpus, [tmp_path])["cdiVersion"] == "0.7.0"


def test_without_gpus_of_nvidia_there_is_nothing_but_what_the_job_needs() -> None:
    edits = cdi.spec(BODY, REAL, Path("/a"), more={"GPUSHARE_VISIBLE": "request"})["devices"][0]["containerEdits"]
    assert set(edits) == {"env", "mounts", "hooks"} and "GPUSHARE_VISIBLE=request" in edits["env"]
    assert not any(line.startswith("GPUSHARE_JOB=") for line in edits["env"]), "each container is one of its own"


@pytest.mark.parametrize("name", ["", "a b", "../x", "-a", "a.", "x" * 64, "a/b", "é"])
def test_names_that_engines_do_not_take(name: str, tmp_path: Path) -> None:
    with pytest.raises(GpushareError, match="is not a device's name"):
        cdi.file_of(name, tmp_path)


# ---- the command ---------------------------------------------------------------------------------------


def shown(node: Node, folder: Path, *words: object) -> tuple[int, str]:
    found = node.gpushare("cdi", *words, "--folder", folder)
    return found.returncode, found.stdout + found.stderr


def test_devices_are_made_listed_and_removed(node: Node, tmp_path: Path) -> None:
    node.start_daemon()
    assert "no devices" in shown(node, tmp_path)[1]
    profiles = node.directory / "config" / "gpushare"
    profiles.mkdir(parents=True)
    (profiles / "config.toml").write_text('[profiles.small]\nrequest = "1Gi"\nlimit = "3Gi"\ngrace = "7s"\n')
    assert shown(node, tmp_path, "small", "--profile", "small")[0] == 0
    assert shown(node, tmp_path, "4Gi", "--limit", "4Gi", "--gpu", "0", "--no-lend", "--visible", "request")[0] == 0
    listed = json.loads(shown(node, tmp_path, "-o", "json")[1])["devices"]
    assert [(one["name"], one["request"], one["limit"], one["lend"]) for one in listed] == [
        ("4Gi", "4Gi", "4Gi", False),
        ("small", "1Gi", "3Gi", True),
    ]
    assert listed[1]["grace"] == 7.0
    for framework, said in (("jax", "XLA_PYTHON_CLIENT_PREALLOCATE=false"), ("vllm", "GPUSHARE_VISIBLE=request")):
        assert shown(node, tmp_path, "of", "--limit", "4Gi", "--for", framework)[0] == 0
        (device,) = json.loads((tmp_path / "gpushare.dev-gpu_of.json").read_text())["devices"]
        assert said in device["containerEdits"]["env"]
    (tmp_path / "gpushare.dev-gpu_odd.json").write_text("{")
    table = shown(node, tmp_path)[1]
    assert "gpushare.dev/gpu=small" in table and "odd" not in table
    path = tmp_path / "gpushare.dev-gpu_small.json"
    assert path.stat().st_mode & 0o777 == 0o644, "Podman as a user reads it"
    assert shown(node, tmp_path, "small", "--remove")[0] == 0 and not path.exists()
    code, text = shown(node, tmp_path, "small", "--remove")
    assert code == 2 and "there is no device gpushare.dev/gpu=small" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a",), "--request 4Gi"),
        (("a", "--limit", "1Gi", "--gpu", "7"), "no GPU 7 on this node"),
        (("--limit", "1Gi"), "say the NAME"),
        (("--remove",), "say the NAME"),
        (("a", "--request", "2Gi", "--limit", "1Gi"), "request"),
    ],
)
def test_what_makes_no_contentis_refused_with_the_way_out(
    node: Node, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    node.start_daemon()
    code, text = shown(node, tmp_path, *words)
    assert code == 2 and said in text and not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize(
    ("variable", "value", "what"),
    [
        ("GPUSHARE_ON_RECLAIM", "trim,suspend,term", "the reclaim step suspend"),
        ("GPUSHARE_ON_RECLAIM", "hook,term", "the reclaim step hook"),
        ("GPUSHARE_RELIEF_URL", "vllm+http://localhost:8000", "a hook"),
        ("GPUSHARE_COMPUTE", "0.5", "a turn in computing"),
        ("GPUSHARE_EXCLUSIVE", "10s", "a turn in computing"),
        ("GPUSHARE_MODE", "observe", "the mode observe"),
    ],
)
def test_what_only_the_wrapper_does_is_refused_when_the_device_is_made(
    node: Node, tmp_path: Path, variable: str, value: str, what: str
) -> None:
    """And not when its containers start."""
    node.start_daemon()
    node.env[variable] = value
    code, text = shown(node, tmp_path, "a", "--limit", "1Gi")
    assert code == 2 and f"{what} is only for `gpushare run`" in text and "hint: " in text
    assert not list(tmp_path.glob("*.json"))


def test_of_several_gpus_one_has_to_be_named(tmp_path: Path, two_gpus: Node) -> None:
    two_gpus.start_daemon()
    code, text = shown(two_gpus, tmp_path, "a", "--limit", "1Gi")
    assert code == 2 and "this node has 2 GPUs" in text and "--gpu 0" in text
    assert shown(two_gpus, tmp_path, "a", "--limit", "1Gi", "--gpu", "1", "--gpu", "1")[0] == 0
    assert len(cdi.devices(tmp_path)["a"]["gpus"]) == 1


def test_who_may_not_write_there_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cdi, "write_file", refuse)
    monkeypatch.setattr("gpushare.cli.cdi._content", lambda *_: {})
    result = CliRunner().invoke(cli, ["cdi", "a", "--limit", "1Gi", "--folder", str(tmp_path)], standalone_mode=False)
    assert isinstance(result.exception, GpushareError) and "cannot write" in result.exception.message
