"""What cannot be intercepted is found by what it uses, and named: by the API, `ps -o wide` and `doctor`."""

from __future__ import annotations

import json
import os
import shutil
import stat

import pytest
from hosts_node import SIM

from gpushared.gpus.foreign_processes import reason_of
from integration.node import wait_for

GIB = 2**30
REQUEST = ("--limit", "4Gi")


def outsiders(hosts) -> list[dict]:
    return [one for gpu in hosts.api("GET", "/v1/status")["gpus"] for one in gpu["unmanaged_processes"]]


def findings(hosts) -> dict[str, dict]:
    done = hosts.gpushare("doctor", "--json")
    return {check["id"]: check for check in json.loads(done.stdout)["checks"]}


def test_a_program_that_nobody_put_under_gpushare(hosts, compile_c):
    hosts.start_daemon()
    job = hosts.start("Cuda().start().must_alloc(GiB); say(1); hear()", "--name", "inside", *REQUEST)
    assert job.stdout.readline() == "1\n"
    program = hosts.spawn([str(compile_c("holder.c"))], **hosts.bare(CUDA_VISIBLE_DEVICES="0"))
    assert program.stdout.readline() == "0\n"
    wait_for(lambda: len(outsiders(hosts)) == 1, "NVML to show it")
    (found,) = outsiders(hosts)
    assert (found["pid"], found["command"], found["uid"]) == (program.pid, "holder", os.getuid())
    assert found["bytes"] > GIB and (found["job"], found["reason"]) == (None, "not_preloaded")
    shown = hosts.gpushare("ps", "-o", "wide").stdout
    (row,) = [line for line in shown.splitlines() if "unmanaged" in line]
    assert str(program.pid) in row and "holder" in row
    assert "unmanaged" not in hosts.gpushare("ps").stdout
    checks = findings(hosts)
    assert checks["GS08"]["state"] == "warn" and f"holder[{program.pid}]" in checks["GS08"]["detail"]
    assert checks["GS12"]["state"] == "ok"
    program.communicate("\n")
    wait_for(lambda: outsiders(hosts) == [], "it to be gone")


def test_static_programs_are_told_from_others(hosts, compile_c):
    """A static program that has a driver of its own cannot be made here; what it is, its file says."""
    for flags, reason in (((), "not_preloaded"), (("-static",), "static"), (("-static-pie",), "static")):
        program = hosts.spawn([str(compile_c("holder.c", *flags, target=f"holder{''.join(flags)}"))])
        program.stdout.readline()
        assert reason_of(program.pid) == reason
        program.communicate("\n")


@pytest.mark.parametrize("way", ["setuid", "not_preloaded", "past_the_shim"])
def test_a_program_that_escaped_its_job(hosts, compile_c, tmp_path, way):
    hosts.start_daemon()
    program = [str(compile_c("holder.c"))]
    if way == "setuid":  # no loader heeds LD_PRELOAD for it; as root it would: hence the env
        copy = tmp_path / "holder"
        shutil.copy(program[0], copy)
        copy.chmod(copy.stat().st_mode | stat.S_ISUID)
        program = ["env", "-u", "LD_PRELOAD", str(copy)]
    elif way == "not_preloaded":
        program = ["env", "-u", "LD_PRELOAD", *program]
    else:
        program += [str(compile_c("holder.c", "-DMODULE", "-shared", "-fPIC", target="module.so"))]
    wrapper = hosts.run("--name", "wild", *REQUEST, "--", *program, CUDA_VISIBLE_DEVICES="0")
    line = wrapper.stdout.readline()
    assert line == "0\n"
    wait_for(lambda: len(outsiders(hosts)) == 1, "NVML to show it")
    (found,) = outsiders(hosts)
    assert (found["reason"], found["job"]) == (way, hosts.job("wild")["id"])
    assert f"escaped  {found['job']}" in " ".join(hosts.gpushare("ps", "-o", "wide").stdout.split(" ")), "by its job"
    wait_for(lambda: hosts.job("wild")["gpus"][0]["usage"] > GIB, "its memory to be charged to its job")
    check = findings(hosts)["GS12"]
    assert check["state"] == "warn" and f"pid {found['pid']} (" in check["detail"] and found["job"] in check["detail"]
    wrapper.communicate("\n")


def test_a_program_with_a_second_copy_of_the_driver(hosts, tmp_path):
    """The limit holds, and the daemon and `doctor` name the program."""
    copy = shutil.copy(SIM / "libcuda.so.1", tmp_path / "second.so")
    hosts.start_daemon()
    body = f"""
        cuda = Cuda().start(); cuda.must_alloc(GiB)
        other = Cuda(library={str(copy)!r}).start()
        say([other.alloc(GiB)[0], other.alloc(3 * GiB)[0]]); hear()
        """
    before = findings(hosts)["GS15"]
    assert (before["state"], before["detail"]) == ("ok", "none")
    program = hosts.start(body, "--name", "twice", *REQUEST)
    assert program.stdout.readline() == "[0, 2]\n"
    (process,) = hosts.job("twice")["processes"]
    assert process["driver_copies"] == 1
    check = findings(hosts)["GS15"]
    assert check["state"] == "warn" and f"pid {process['pid']} (" in check["detail"]
    assert f"of job {hosts.job('twice')['id']} has 1 beside" in check["detail"]
    program.communicate("\n")
    assert findings(hosts)["GS15"]["state"] == "ok"
