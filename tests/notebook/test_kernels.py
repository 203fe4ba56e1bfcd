"""Kernels with a part of a GPU, started by Jupyter's own client: the wrapper must be unnoticeable to it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from integration.node import GIB, ROOT, Node, gone, wait_for
from notebook.kernels import Notebook, plain_kernel

TAKE = """
from cuda.bindings import driver
def ok(result):
    assert result[0] == 0, result[0]
    return result[1] if len(result) == 2 else result[1:]
driver.cuInit(0)
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))) + (None,))
print(ok(driver.cuMemGetInfo())[1] / 2**30)
def take(gib):
    status, pointer = driver.cuMemAlloc(int(gib * 2**30))
    print(status.name)
"""


def test_a_kernel_is_a_job_from_start_to_end(node: Node, open_notebook: Callable[[str], Notebook]) -> None:
    done = node.gpushare("kernel", "install", "--name", "torch-8g", "--limit", "8Gi")
    assert done.returncode == 0, done.stderr
    assert "limit 8Gi" in done.stdout
    notebook = open_notebook("torch-8g")
    first = node.job("torch-8g")
    assert [process["pid"] for process in first["processes"]] in ([], [notebook.pid])
    assert notebook.run(TAKE) == "8.0\n"
    assert notebook.run("take(6); take(3)").splitlines()[-2:] == ["CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY"]
    assert node.job("torch-8g")["gpus"][0]["accounted"] == 6 * GIB

    # Interrupt: the cell ends, the kernel and what it holds do not.
    request = notebook.send("import time; print('begun', flush=True); time.sleep(60)")
    wait_for(lambda: notebook._next()["content"].get("text") == "begun\n", "the cell to begin")
    notebook.manager.interrupt_kernel()
    assert "KeyboardInterrupt" in notebook.answer(request)
    assert node.job("torch-8g")["gpus"][0]["accounted"] == 6 * GIB

    # Restart: another process and another job, and all of the credit is there again.
    pid = notebook.pid
    notebook.manager.restart_kernel()
    notebook.ready()
    assert notebook.pid != pid and gone(pid)
    assert notebook.run(TAKE) == "8.0\n"
    assert "CUDA_SUCCESS" in notebook.run("take(7)")
    jobs = [job for job in node.api("GET", "/v1/jobs")["jobs"] if job["state"] != "ended"]
    assert [job["name"] for job in jobs] == ["torch-8g"]
    assert jobs[0]["id"] != first["id"]
    assert jobs[0]["processes"][0]["pid"] == notebook.pid

    notebook.close()
    wait_for(lambda: not node.api("GET", "/v1/status").get("jobs"), "the job to end with its kernel")


def test_a_reclaimed_kernel_dies_and_its_server_starts_it_again(
    node: Node, open_notebook: Callable[[str], Notebook]
) -> None:
    node.start_daemon()  # one that outlives its jobs
    node.gpushare(
        *("kernel", "install", "--name", "guest", "--request", "2Gi", "--limit", "14Gi", "--grace", "300ms"),
    )
    notebook = open_notebook("guest")
    assert notebook.run(TAKE) == "14.0\n"
    assert "CUDA_SUCCESS" in notebook.run("take(12)")
    victim, pid = node.job("guest")["id"], notebook.pid
    done = node.gpushare("run", "--name", "owner", "--limit", "10Gi", sys.executable, "-c", f"{TAKE}\ntake(8)")
    assert done.stdout.split() == ["10.0", "CUDA_SUCCESS"], done.stderr
    wait_for(lambda: gone(pid), "the kernel to be gone")
    assert not notebook.manager.is_alive()
    assert "owner" in node.gpushare("explain", victim).stdout
    notebook.manager.restart_kernel()
    notebook.ready()
    assert notebook.run(TAKE).endswith("14.0\n")
    assert "CUDA_SUCCESS" in notebook.run("take(12)")


def test_environment_variables_alone(node: Node, open_notebook: Callable[[str], Notebook]) -> None:
    """What a spawner's form can do: no wrapper, a daemon that is there, and the kernel is a job all the same."""
    node.start_daemon()
    environ = {
        "LD_PRELOAD": node.gpushare("shim-path").stdout.strip(),
        "GPUSHARE_LIMIT": "3Gi",
        "GPUSHARE_NAME": "plain",
        "LD_LIBRARY_PATH": str(ROOT / "gpushare" / "sim"),
    }
    plain_kernel(node, environ)
    notebook = open_notebook("plain")
    assert notebook.run(TAKE) == "3.0\n"
    assert notebook.run("take(2); take(2)").splitlines()[-2:] == ["CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY"]
    assert node.job("plain")["gpus"][0]["accounted"] == 2 * GIB


def test_install_list_remove(node: Node, tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    others = prefix / "share" / "jupyter" / "kernels" / "other"
    others.mkdir(parents=True)
    foreign = json.dumps({"argv": ["python3", "-m", "k", "{connection_file}"], "display_name": "K", "language": "k"})
    (others / "kernel.json").write_text(foreign)
    (others / "logo.svg").write_text("<svg/>")
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python3").symlink_to(sys.executable)
    base = {"JUPYTER_PATH": str(others.parents[1])}

    def kernel(*words: object) -> tuple[int, str, str]:
        done = node.gpushare("kernel", *words, **base)
        return done.returncode, done.stdout, done.stderr

    options = ("--request", "25%", "--limit", "50%", "--gpus", "2", "--visible", "request", "--no-lend")
    assert kernel("install", "--name", "Two", "--base", "other", *options)[0] == 0
    directory = tmp_path / "data" / "kernels" / "two"
    content = json.loads((directory / "kernel.json").read_text())
    assert content["argv"][1:6] == ["-P", "-m", "gpushare", "run", "--exec"]
    assert content["argv"][-4:] == [str(prefix / "bin" / "python3"), "-m", "k", "{connection_file}"]
    assert content["display_name"] == "K [GPU: request 25%, limit 50% on each of 2]"
    assert content["interrupt_mode"] == "signal"
    assert (directory / "logo.svg").exists()

    _, out, _ = kernel("list")
    assert [line.split()[0] for line in out.splitlines()] == ["NAME", "two"]
    assert [one["name"] for one in json.loads(kernel("list", "-o", "json")[1])["kernels"]] == ["two"]
    assert kernel("install", "--name", "two", "--limit", "4Gi")[1].startswith("replaced two")
    assert not (directory / "logo.svg").exists()
    assert kernel("list", "--prefix", prefix) == (0, "", "none of gpushare's kernels is installed here\n")

    # Other people's kernels are left alone, and what `run` would refuse at each start is refused at once.
    code, _, err = kernel("install", "--name", "other", "--prefix", prefix)
    assert code == 1 and "not a kernel of gpushare" in err
    assert kernel("remove", "other")[0] == 1
    assert (others / "kernel.json").read_text() == foreign
    assert "4Gi (2^30) or 4G" in kernel("install", "--name", "x", "--limit", "4g")[2]
    assert kernel("install", "--name", "x", "--base", "two")[0] == 2
    assert kernel("install", "--name", "a/b")[0] == 2
    assert kernel("install", "--name", "x", "--base", "nope")[0] == 2

    assert kernel("remove", "two")[0] == 0
    assert not directory.exists()
    assert kernel("remove", "two")[0] == 2


def test_an_ipython_kernel_loads_the_extension_where_it_can(node: Node, tmp_path: Path) -> None:
    def installed(*options: str) -> tuple[list[str], str]:
        done = node.gpushare("kernel", "install", "--name", "one", "--limit", "4Gi", *options)
        assert done.returncode == 0, done.stderr
        content = json.loads((tmp_path / "data" / "kernels" / "one" / "kernel.json").read_text())
        return content["argv"], done.stderr

    load = "--InteractiveShellApp.extra_extensions=gpushare"
    argv, said = installed()
    assert argv[-1] == load and "cells say nothing" not in said

    base = tmp_path / "data" / "kernels" / "base"
    base.mkdir()
    for program, loads in (
        ([sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], True),
        ([str(tmp_path / "with"), "-m", "ipykernel", "-f", "{connection_file}"], True),
        ([str(tmp_path / "without"), "-m", "ipykernel_launcher", "-f", "{connection_file}"], False),
        ([str(tmp_path / "missing"), "-m", "ipykernel_launcher", "-f", "{connection_file}"], False),
        ([str(tmp_path / "with"), "-m", "my_kernel", "-f", "{connection_file}"], None),
    ):
        for name, status in (("with", 0), ("without", 1)):
            (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
            (tmp_path / name).chmod(0o755)
        (base / "kernel.json").write_text(json.dumps({"argv": program, "display_name": "B", "language": "python"}))
        argv, said = installed("--base", "base")
        assert (argv[-1] == load) is bool(loads), program
        assert ("cells say nothing" in said) is (loads is False), said
