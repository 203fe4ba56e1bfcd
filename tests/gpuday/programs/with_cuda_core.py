"""Programs on cuda.core. They import nothing of this project, and run in the Python that has it."""

from __future__ import annotations

from say import main

try:
    from cuda.core import Device
except ImportError:
    from cuda.core.experimental import Device

MIB = 2**20


def out_of_memory():
    """To the limit, the driver's error, and on."""
    device = Device()
    device.set_current()
    held = []
    try:
        while len(held) < 1024:
            held.append(device.allocate(256 * MIB))
    except Exception as error:
        yield "its usual error is raised", "OUT_OF_MEMORY" in str(error)
    yield "MiB until then", len(held) * 256
    held.clear()
    device.sync()
    again = device.allocate(256 * MIB)
    device.sync()
    yield "goes on afterwards", again.size == 256 * MIB


main(globals())
