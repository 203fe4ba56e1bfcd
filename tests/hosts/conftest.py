"""Programs as they are out there, under `gpushare run` with the real daemon, on two software GPUs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosts_node import HERE, SIM, Hosts


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with Hosts(tmp_path, "gpus=2,memory=16Gi,context=256Mi") as one:
        yield one


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile a program of tests/hosts/programs."""
    directory = tmp_path_factory.mktemp("programs")
    (directory / "libcuda.so").symlink_to(SIM / "libcuda.so.1")

    def compile_one(name: str, *flags: str, target: str = "") -> Path:
        output = directory / (target or Path(name).stem)
        compiler = [os.environ.get("CC", "cc"), "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
        line = [*compiler, str(HERE / "programs" / name), "-o", str(output), f"-L{directory}", *flags, "-ldl"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return output

    return compile_one
