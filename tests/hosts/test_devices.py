"""Which GPU is charged: the one that the program uses, whatever it is called and in whatever order."""

from __future__ import annotations

import subprocess

import pytest
from hosts_node import SHIM, said

GIB = 2**30

# NVML first, as frameworks do; then CUDA on each device in turn, 1 GiB on the first and 2 on the second.
SPEND = """
    import pynvml
    pynvml.nvmlInit()
    uuids = [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
    totals = [pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(i)).total for i in range(len(uuids))]
    cuda, count, seen = Cuda(), c_int(), []
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGetCount(byref(count)))
    for device in range(count.value):
        uuid = (c_char * 16)()
        check(cuda.cuDeviceGetUuid(byref(uuid), device))
        seen.append(bytes(uuid).hex())
        cuda.primary(device)
        cuda.must_alloc((device + 1) * GiB)
    say({"nvml": [one[4:].replace("-", "") for one in uuids], "cuda": seen, "totals": totals})
    hear()
"""


def uuids(hosts) -> list[str]:
    body = "import pynvml as n; n.nvmlInit(); print(*(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) "
    body += "for i in range(n.nvmlDeviceGetCount())))"
    line = [hosts.script("")[0], "-c", body]
    return subprocess.run(line, env=hosts.bare(), capture_output=True, text=True, check=True).stdout.split()


def spend(hosts, visible: str, gpus: int):
    names = uuids(hosts)
    text = visible.format(*names, short=[name[:12] for name in names])
    program = hosts.start(SPEND, "--limit", "6Gi", "--gpus", gpus, "--name", "spender", CUDA_VISIBLE_DEVICES=text)
    line = program.stdout.readline()
    assert line, program.stderr.read()
    used = {gpu["uuid"]: gpu["accounted"] for gpu in hosts.job("spender")["gpus"]}
    program.communicate("\n")
    return said(line), names, used


@pytest.mark.parametrize(
    ("visible", "order"),
    [
        ("1", [1]),
        ("1,0", [1, 0]),
        ("{1},{0}", [1, 0]),
        ("{short[1]}", [1]),
    ],
)
def test_the_right_gpu_is_charged(hosts, visible, order):
    heard, names, used = spend(hosts, visible, len(order))
    plain = [name[4:].replace("-", "") for name in names]
    assert heard["nvml"] == plain, "NVML shows all GPUs, whatever is visible to CUDA"
    assert heard["cuda"] == [plain[index] for index in order]
    assert used == {names[index]: (place + 1) * GIB for place, index in enumerate(order)}
    assert heard["totals"] == [6 * GIB if index in order else 16 * GIB for index in range(2)]


@pytest.mark.parametrize(("visible", "order"), [("1", [1]), ("1,0", [1, 0]), ("{1},{0}", [1, 0]), ("{short[1]}", [1])])
def test_a_limit_alone_holds_on_the_gpu_that_is_used(hosts, visible, order):
    """Without `gpushare run` nobody has made UUIDs of the names."""
    names = uuids(hosts)
    text = visible.format(*names, short=[name[:12] for name in names])
    body = """
        cuda, found = Cuda(), []
        for device in range(DEVICES):
            cuda.start(device)
            found.append([cuda.alloc(5 * GiB)[0], cuda.alloc(3 * GiB)[0], cuda.info()[1]])
        nvml = Nvml()
        say([*found, [nvml.memory(index).used for index in range(2)]])
    """.replace("DEVICES", str(len(order)))
    env = hosts.bare(LD_PRELOAD=str(SHIM), GPUSHARE_LIMIT="4Gi", CUDA_VISIBLE_DEVICES=text)
    done = subprocess.run(hosts.script(body), env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *found, used = said(done.stdout)
    assert found == [[2, 0, 4 * GIB]] * len(order)
    for index in range(2):
        assert (used[index] >= 3 * GIB) == (index in order)
