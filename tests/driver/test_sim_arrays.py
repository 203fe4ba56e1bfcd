"""What arrays of many shapes take of the software GPU: what they took of a real one."""

from __future__ import annotations

import json
from ctypes import byref
from pathlib import Path
from typing import Any

from simcuda import MI, Array3D, cu, info, pointer, start

SEEN = Path(__file__).resolve().parents[1] / "vectors" / "arrays.json"


def arrays() -> None:
    start()
    wrong = []
    for *shape, levels, count, taken in json.loads(SEEN.read_text())["rows"]:
        width, height, depth, kind, channels, flags = shape
        whole, before = Array3D(width, height, depth, kind, channels, flags), info()[0]
        if levels > 1:
            held = [pointer("cuMipmappedArrayCreate", byref(whole), levels) for _ in range(count)]
        else:
            held = [pointer("cuArray3DCreate_v2", byref(whole)) for _ in range(count)]
        found = (before - info()[0]) // MI
        if found != taken:
            wrong.append((shape, levels, count, f"{found} MiB, not {taken}"))
        for array in held:
            (cu.cuMipmappedArrayDestroy if levels > 1 else cu.cuArrayDestroy)(array)
        assert info()[0] == before
    assert not wrong


def test_arrays_take_what_they_took_of_a_gpu(sim: Any) -> None:
    sim.run(arrays)
