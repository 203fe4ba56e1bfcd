"""Of the processes on a GPU a program sees those of its job: in each of NVML's lists, however little room it has."""

from __future__ import annotations

import pytest

LIMIT = {"GPUSHARE_LIMIT": "4Gi"}
JOB = "00000000000000ab"
LISTS = """
nvml = Nvml()
class Old(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("used", c_ulonglong))
def pids(function, kind, room):
    count, found = c_uint(room), (kind * max(room, 1))()
    code = getattr(nvml.lib, function)(nvml.device(), byref(count), found if room else None)
    return [code, count.value, sorted(one.pid for one in found[: count.value]) if code == 0 and room else []]
KINDS = {"": Old, "_v2": NvmlProcess, "_v3": NvmlProcess}
def every(room=64, what="Compute"):
    return [pids(f"nvmlDeviceGet{what}RunningProcesses{version}", kind, room) for version, kind in KINDS.items()]
"""
OTHERS = {
    "same job": ({"GPUSHARE_JOB": JOB}, True),
    "same number": ({"GPUSHARE_JOB": "AB"}, True),
    "after a long environment": ({"PAD": "x" * 1010, "GPUSHARE_JOB": JOB}, True),
    "after a variable with the same beginning": ({"GPUSHARE_JO": JOB, "GPUSHARE_JOB": JOB}, True),
    "another job": ({"GPUSHARE_JOB": "00000000000000ac"}, False),
    "no number": ({"GPUSHARE_JOB": JOB + " "}, False),
    "nothing": ({"GPUSHARE_JOB": ""}, False),
    "another variable": ({"MY_GPUSHARE_JOB": JOB}, False),
    "no job": ({}, False),
}


@pytest.fixture
def others(host):
    """Start a process on GPU 0 with this environment and without the library; its pid."""
    children = []

    def start(**environ: str) -> int:
        child = host.start("Cuda().start(); say(os.getpid()); hear()", LD_PRELOAD=None, **environ)
        children.append(child)
        return int(child.stdout.readline())

    yield start
    for child in children:
        child.communicate("\n")


def test_who_is_of_the_job_stands_in_the_environment_with_which_it_began(host, daemon, others) -> None:
    ours = {name: others(**environ) for name, (environ, _) in OTHERS.items()}
    said = host.python(
        LISTS + "Cuda().start(); say([os.getpid(), every(), every(what='Graphics')])", GPUSHARE_JOB=JOB, **LIMIT
    ).said
    me, lists, graphics = said
    expected = sorted([me, *(ours[name] for name, (_, is_ours) in OTHERS.items() if is_ours)])
    assert lists == [[0, len(expected), expected]] * 3
    assert graphics == [[0, 0, []]] * 3


def test_without_a_job_a_process_sees_itself(host, others) -> None:
    others(GPUSHARE_JOB="")
    others()
    me, lists = host.python(LISTS + "Cuda().start(); say([os.getpid(), every()])", **LIMIT).said
    assert lists == [[0, 1, [me]]] * 3


def test_who_only_looks_and_has_no_budget_sees_all(host, others) -> None:
    there = sorted([others(GPUSHARE_JOB=JOB), others()])
    assert host.python(LISTS + "say(every())").said == [[0, 2, there]] * 3


def test_as_much_room_as_there_are_processes_of_the_job(host, daemon, others) -> None:
    """NVML says "insufficient size" (7) and how much it takes: of the job's, not of all."""
    others(), others()
    mate = others(GPUSHARE_JOB=JOB)
    me, none, one, two = host.python(
        LISTS + "Cuda().start(); say([os.getpid(), every(0), every(1), every(2)])", GPUSHARE_JOB=JOB, **LIMIT
    ).said
    assert none == one == [[7, 2, []]] * 3
    assert two == [[0, 2, sorted([me, mate])]] * 3


def test_the_driver_answers_what_is_no_question(host, daemon) -> None:
    text = LISTS + (
        "f = nvml.lib.nvmlDeviceGetComputeRunningProcesses_v3\n"
        "say([f(nvml.device(), None, None), f(None, byref(c_uint(3)), (NvmlProcess * 3)())])"
    )
    limited, alone = host.python(text, **LIMIT).said, host.python(text).said
    assert limited == alone
    assert 0 not in alone
