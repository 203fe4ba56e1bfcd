"""GPUs that NVIDIA's own DRA driver has allocated, with budgets of this one: a node that attaches. Pure.

On such a node this driver publishes no GPU, but the device `attach`, without a capacity (slices.py). The kubelet asks
only drivers that an allocation names. So a claim asks NVIDIA's driver for memory, and this one for that device. What
NVIDIA's driver has booked is the request; which GPU it is, its ResourceSlices say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpushare.api import Gpu
from gpushare.errors import UsageError
from gpushare.kubernetes import fields
from gpushare.kubernetes.amounts import parse, written
from gpushare.kubernetes.claim import Allocated, Device, Other
from gpushare.kubernetes.names import MEMORY, NVIDIA, device_of
from gpushare.kubernetes.slices import STEP

__all__ = ["with_gpus"]

Thing = Mapping[str, Any]
SHARES = "shares"
"""The other capacity of NVIDIA's devices: so many claims may have a device at once."""
ASK = f"ask {NVIDIA} for it: capacity: {{requests: {{memory: 8Gi}}}}"


def with_gpus(one: Allocated, slices: Iterable[Thing], gpus: Iterable[Gpu]) -> Allocated:
    """The same with the GPUs that it has of NVIDIA's driver in place of the device `attach`. `slices`: those of
    NVIDIA's driver on this node; `gpus`: the node daemon's. Raises UsageError, which says the way out."""
    if not all(device.attaches for device in one.devices):
        raise UsageError(f"{one} has GPUs of both drivers", hint="make two claims of it")
    if not one.others:
        raise UsageError(
            f"{one} has no GPU of {NVIDIA} to attach to",
            code="not_allocated",
            hint=f"add a request with deviceClassName: {NVIDIA} to the same claim",
        )
    published, known = _devices(slices), {gpu["uuid"]: gpu for gpu in gpus}
    return replace(one, devices=[_device(one, other, published, known) for other in one.others])


def _devices(slices: Iterable[Thing]) -> dict[tuple[str, str], Thing]:
    """By pool and name; of several generations of a pool the newest."""
    found: dict[tuple[str, str], Thing] = {}
    newest: dict[str, int] = {}
    mine = [fields.part(one, "spec") for one in slices if fields.text(one, "spec/driver") == NVIDIA]
    for spec in mine:
        pool = fields.text(spec, "pool/name")
        newest[pool] = max(newest.get(pool, 0), fields.number(spec, "pool/generation"))
    for spec in mine:
        pool = fields.text(spec, "pool/name")
        if fields.number(spec, "pool/generation") == newest[pool]:
            found |= {(pool, fields.text(device, "name")): device for device in fields.objects(spec, "devices")}
    return found


def _device(
    one: Allocated, other: Other, published: Mapping[tuple[str, str], Thing], known: Mapping[str, Gpu]
) -> Device:
    title = f"{NVIDIA}'s device {other.name}"
    device = published.get((other.pool, other.name))
    if device is None:
        raise UsageError(
            f"{one}: {title} is not published on this node any more",
            code="no_such_gpu",
            hint="the kubelet asks again; if the GPU does not come back, delete the pod and its claim",
        )
    uuid = fields.text(device, "attributes/uuid/string")
    gpu = known.get(uuid)
    if gpu is None:
        kind = fields.text(device, "attributes/type/string") or "gpu"
        raise UsageError(
            f"{one}: {title} is {uuid or 'without a uuid'} of type {kind}, and the node daemon has no such GPU",
            code="no_such_gpu",
            hint="gpushared divides whole GPUs, and has to see the same ones; `gpushare status` on the node shows them"
            if kind == "gpu"
            else f'gpushared divides whole GPUs: select device.attributes["{NVIDIA}"].type == "gpu"',
        )
    memory = _memory(one, title, other.booked, device, gpu["capacity"])
    return Device(other.request, other.pool, device_of(uuid), memory)


def _memory(one: Allocated, title: str, booked: Thing | None, device: Thing, capacity: int) -> int | None:
    """Bytes of the GPU's capacity at the node daemon; None: all of it. What is booked whole at NVIDIA's driver is
    whole here: it also counts what the node daemon keeps for itself."""
    if booked is None:
        return None
    memory = parse(booked[MEMORY]) if MEMORY in booked else 0
    if memory == 0 and SHARES in booked:
        every = parse(fields.text(device, f"capacity/{SHARES}/value") or "0")
        share = parse(booked[SHARES])
        if not 0 < share <= every:
            raise UsageError(f"{one}: {title} has {share} of {every} shares booked", hint=ASK)
        return None if share == every else capacity * share // every // STEP * STEP
    if memory == 0:
        raise UsageError(f"{one}: no memory of {title} is booked, so nothing would be guaranteed", hint=ASK)
    whole = fields.text(device, f"capacity/{MEMORY}/value")
    if whole and memory >= parse(whole):
        return None
    if memory > capacity:
        raise UsageError(
            f"{one}: {written(memory)} of {title} are booked, and the node daemon gives out {written(capacity)} of it",
            code="too_large",
            hint="ask for that or less, or for the whole GPU",
        )
    return memory
