"""`gpushare run --container podman run ...`: programs in a container are the job's, and lend like others.

With the real Podman and runc, as root, on a tree of this machine's files. Without them the command line is looked at.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.container import Inside, engine_command
from gpushare.errors import UsageError
from integration.node import GIB, MIB, Node, Puppet, wait_for
from integration.podman_stage import LIMITS, podman

__all__ = ["podman"]

OUT_OF_MEMORY = ["error", "2"]


def in_container(node: Node, podman: list[str], name: str, *options: object, more: tuple[str, ...] = ()) -> Puppet:
    *line, root = podman
    words = [*line, "run", "-i", "--rm", *LIMITS, f"--volume={node.puppets}:/puppets:ro", *more]
    words += ["--rootfs", root, "/puppets/puppet-dlopen"]
    program = Puppet(name, node.run("--name", name, *options, "--container", *words))
    program.do("open 0")
    return program


def test_a_program_in_a_container_borrows_and_gives_way(node: Node, podman: list[str]) -> None:
    borrower = in_container(node, podman, "inside", "--request", "2Gi", "--limit", "14Gi", "--grace", "1s")
    for _ in range(10):
        borrower.alloc(GIB)
    (used,) = node.job("inside")["gpus"]
    assert used["loan"] > 7 * GIB
    owner = node.puppet("outside", "--request", "12Gi")
    owner.alloc(11 * GIB)
    assert borrower.wait() == 137
    assert "was stopped to return borrowed memory" in borrower.errors()
    assert owner.end() == 0


def test_the_container_sees_its_limit_and_two_of_one_job_are_two_jobs(node: Node, podman: list[str]) -> None:
    first = in_container(node, podman, "a", "--limit", "1Gi")
    second = in_container(node, podman, "b", "--limit", "2Gi", more=("--env=GPUSHARE_LIMIT=9Gi",))
    assert first.try_(f"alloc {1500 * MIB}")[:2] == OUT_OF_MEMORY
    second.alloc(1500 * MIB)
    assert second.try_(f"alloc {GIB}")[:2] == OUT_OF_MEMORY
    assert (first.end(), second.end()) == (0, 0)
    wait_for(lambda: not node.api("GET", "/v1/jobs")["jobs"], "both jobs to end")


def test_the_exit_status_is_the_programs_and_only_one_socket_is_inside(node: Node, podman: list[str]) -> None:
    *line, root = podman
    look = ["run", "--rm", *LIMITS, "--rootfs", root, "/bin/sh", "-c", "find /run/gpushare -type s; exit 7"]
    found = node.gpushare("run", "--limit", "1Gi", "--container", *line, *look)
    assert (found.returncode, found.stdout.split()) == (7, ["/run/gpushare/shim.sock"]), found.stderr


# ---- the command line ----------------------------------------------------------------------------------

GPUS = [{"uuid": "GPU-1", "index": 0}, {"uuid": "GPU-2", "index": 1}]
REAL = Inside(Path("/x/libgpushare.so"), Path("/run/gpushare/containers"), {})
BEFORE = {"PATH": "/bin", "HOME": "/root", "GPUSHARE_LOG": "debug"}
AFTER = {
    **BEFORE,
    "LD_PRELOAD": "/host/libgpushare.so",
    "GPUSHARE_JOB": "00000000000000aa",
    "GPUSHARE_LIMIT": "8Gi",
    "GPUSHARE_SOCKET": "/run/user/1000/gpushare/api.sock",
    "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


def command(*words: str) -> list[str]:
    return engine_command(words, AFTER, BEFORE, {"id": "00000000000000aa", "gpus": GPUS}, REAL)


def test_what_a_program_needs_is_said_to_the_engine_before_the_users_own_words() -> None:
    made = command("docker", "--context", "x", "run", "--rm", "image", "python", "run.py")
    assert made[:4] == ["docker", "--context", "x", "run"] and made[-4:] == ["--rm", "image", "python", "run.py"]
    said = made[4:-4]
    assert {word.removeprefix("--env=") for word in said if word.startswith("--env=")} == {
        "LD_PRELOAD=/usr/local/lib/libgpushare.so",
        "GPUSHARE_JOB=00000000000000aa",
        "GPUSHARE_LIMIT=8Gi",
        "GPUSHARE_LOG=debug",
        "GPUSHARE_SOCKET=/run/gpushare/api.sock",
        "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2",
        "XLA_PYTHON_CLIENT_PREALLOCATE=false",
    }
    assert [word for word in said if word.startswith("--volume=")] == [
        "--volume=/x/libgpushare.so:/usr/local/lib/libgpushare.so:ro",
        "--volume=/run/gpushare/containers:/run/gpushare:ro",
    ]
    assert '--gpus="device=GPU-1,GPU-2"' in said


def test_podman_is_told_the_gpus_by_their_devices() -> None:
    assert [word for word in command("podman", "run", "image") if word.startswith("--device")] == [
        "--device=nvidia.com/gpu=GPU-1",
        "--device=nvidia.com/gpu=GPU-2",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("podman", "ps"),
        ("podman", "run", "-d", "image"),
        ("docker", "run", "--rm", "-dit", "image"),
        ("docker", "run", "--name", "x", "--detach", "image"),
    ],
)
def test_what_would_end_at_once_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="--container: "):
        command(*words)


@pytest.mark.parametrize(
    "words",
    [
        ("podman", "run", "--rm", "image", "-d"),
        ("podman", "run", "image", "program", "--detach"),
        ("docker", "run", "-it", "image", "-d"),
        ("docker", "run", "--name=x", "image", "-d"),
    ],
)
def test_options_of_the_program_are_its_own(words: tuple[str, ...]) -> None:
    assert command(*words)[-1] == words[-1]


def test_without_a_daemon_it_is_an_error(node: Node) -> None:
    socket = node.directory / "nobody" / "api.sock"
    found = node.gpushare("run", "--container", "true", "run", GPUSHARE_SOCKET=str(socket))
    assert found.returncode == 125
