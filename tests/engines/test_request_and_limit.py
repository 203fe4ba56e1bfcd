"""Two jobs of the queue on one GPU: one borrows what the other has as its request, and gives it back."""

from __future__ import annotations

import sys

import pytest
from conformance_stand import Work
from local_conformance import LocalStand, ground

from gpushare.cluster.service.service import Caller

HOLD = """
import ctypes, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
wanted, got = int(sys.argv[1]), 0
while got < wanted and cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20)) == 0:
    got += 64
print("got", got, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def stand(tmp_path, tmp_path_factory):
    (tmp_path / "ground").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        made = ground(tmp_path_factory.mktemp("g"), patch, gpus=1, memory="4Gi")
        stand = LocalStand(tmp_path, made)
        yield stand
        stand.clear()
        made.stop()


def hold(stand: LocalStand, mib: int, user: str, **asks: float) -> str:
    script = f"exec {sys.executable} -c '{HOLD}' {mib}"
    stand.caller = Caller(stand.caller.uid, stand.caller.gid, user, admin=False)
    return stand.submit(Work(script=script, grace=3.0), **asks)


def got(stand: LocalStand, uid: str) -> list[int]:
    return [int(line.split()[1]) for line in stand.output(uid).splitlines() if line.startswith("got ")]


def test_the_owner_proceeds_and_the_borrower_is_told_why_and_runs_again(stand) -> None:
    stand.rounds(1)
    borrower = hold(stand, 3000, "alice", queue="a", share=0.3, limit=0.9)
    stand.go(lambda: got(stand, borrower))
    lent = got(stand, borrower)[0]
    assert lent * 2**20 > 0.3 * 4 * 2**30 + 2**30, "more than its request: it is idle memory of the GPU"
    owner = hold(stand, 1800, "bob", queue="b", share=0.6)
    stand.go(lambda: got(stand, owner), "the owner gets its request")
    assert got(stand, owner)[0] >= 1800, "all that it asked for, within its request"
    stand.go(lambda: len(got(stand, borrower)) == 2, "the borrower runs again, with less")
    assert got(stand, borrower)[1] < lent
    assert stand.view(borrower).attempt == 2 and stand.began(owner) == 1
    said = stand.output(borrower)
    assert "--- attempt 2 ---" in said
    assert "borrowed" in said or "loan" in said, "its log says why it was stopped"
    reason = stand.service.explain(borrower)["reason"]["message"]
    assert reason
