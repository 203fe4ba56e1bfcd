"""Programs on JAX. They import nothing of this project, and run in the Python that has JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from say import main

MIB = 2**20


def out_of_memory():
    """To the limit, JAX's own error, and on."""
    device = jax.devices("gpu")[0]
    yield "limit of its allocator, MiB", (device.memory_stats() or {}).get("bytes_limit", 0) // MIB
    held = []
    try:
        while len(held) < 1024:
            held.append(jax.device_put(jnp.zeros(256 * MIB, dtype=jnp.uint8), device).block_until_ready())
    except Exception as error:
        yield "its usual error is raised", "RESOURCE_EXHAUSTED" in str(error)
        yield "the error", f"{type(error).__name__}: {str(error)[:100]}"
    yield "MiB until then", len(held) * 256
    held.clear()
    yield "goes on afterwards", float(jnp.ones(MIB, dtype=jnp.float32).sum()) == MIB


main(globals())
