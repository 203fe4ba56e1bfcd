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
    stream, held = device.create_stream(), []
    try:
        while len(held) < 1024:
            held.append(device.allocate(256 * MIB, stream=stream))
    except Exception as error:
        yield "its usual error is raised", "OUT_OF_MEMORY" in str(error)
        yield "the error", f"{type(error).__name__}: {str(error)[:100]}"
    yield "MiB until then", len(held) * 256
    for buffer in held:
        buffer.close()
    stream.sync()
    again = device.allocate(256 * MIB, stream=stream)
    stream.sync()
    yield "goes on afterwards", again.size == 256 * MIB


main(globals())
