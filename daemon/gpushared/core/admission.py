"""Admission: whether a job's request fits, on which GPUs, and if not, which jobs hold the memory.

Placement is best fit by request, all of a job's GPUs at once: it takes the GPUs on which the least unrequested memory
is left over, so that large requests still find whole GPUs. A job with request 0 goes where most memory is free. Memory
outside gpushare counts as taken, so that every guarantee can be kept. Degraded GPUs come last; sick and lost ones are
not used (health.py).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from gpushare.job_spec import JobSpec
from gpushare.quantity import Kind, Quantity, format_bytes
from gpushare.reasons import Code, Reason, Words, joined, words
from gpushared.core import blockers, health, visibility
from gpushared.core.model import Bounds, Gpu, Job, Reservation
from gpushared.core.state import State


def bounds_on(gpu: Gpu, request: Quantity, limit: Quantity) -> Bounds | Reason:
    """The amounts in bytes on this GPU. Shares and `max` mean at most the capacity; bytes mean bytes."""
    wanted, ceiling = request.resolve(gpu.total), min(limit.resolve(gpu.total), gpu.capacity)
    if request.kind is not Kind.BYTES:
        wanted = min(wanted, gpu.capacity)
    if wanted > gpu.capacity:
        return _too_large(gpu, request, wanted)
    if wanted > ceiling:
        return Reason(
            Code.BAD_BUDGET,
            f"request {request} is more than limit {limit} on GPU {gpu.index}",
            (("request", format_bytes(wanted)), ("limit", format_bytes(ceiling))),
            "the limit must be at least the request",
            {"request": wanted, "limit": ceiling},
        )
    return Bounds(wanted, ceiling)


def unrequested(state: State, gpu: Gpu, but: Job | None = None, inside: Reservation | None = None) -> int:
    """What may still be promised on a GPU, with one job left out of the sum."""
    mine = but.bounds[gpu.id].request if but is not None and gpu.id in but.bounds else 0
    kept = state.remainder(inside, gpu.id) if inside is not None else 0
    return gpu.capacity - gpu.unmanaged - gpu.requested - state.reserved(gpu.id) + mine + kept


def place(
    state: State, spec: JobSpec, closed: Container[str] = (), inside: Reservation | None = None
) -> dict[str, Bounds] | Reason:
    """The GPUs for a job and its bounds there, or why there are none.

    Closed GPUs are not used: queued jobs wait for room on them. A job inside a reservation may use what it keeps.
    """
    allowed = candidates(state, spec)
    if isinstance(allowed, Reason):
        return allowed
    if inside is not None and any(gpu.id in inside.amounts for gpu in allowed):
        allowed = [gpu for gpu in allowed if gpu.id in inside.amounts]
    if spec.gpus > len(allowed):
        return _too_few(spec, allowed)
    admitting = [gpu for gpu in allowed if gpu.health.admits]
    if spec.gpus > len(admitting):
        return health.none_left(allowed, spec.gpus)
    allowed = admitting
    bounds: dict[str, Bounds] = {}
    misfit: Reason | None = None
    for gpu in sorted(allowed, key=lambda gpu: gpu.capacity):
        found = bounds_on(gpu, spec.request, spec.limit)
        if isinstance(found, Reason):
            misfit = found  # of the largest GPU: what does not fit there fits nowhere
        else:
            bounds[gpu.id] = found
    if misfit is not None and len(bounds) < spec.gpus:
        if misfit.code is Code.TOO_LARGE and not bounds and len(allowed) > 1:
            asked = format_bytes(int(str(misfit.data["request"])))
            return replace(misfit, message=f"a request of {asked} is more than any GPU here has")
        return misfit
    fitting = [
        gpu
        for gpu in allowed
        if gpu.id in bounds
        and gpu.id not in closed
        and unrequested(state, gpu, inside=inside) >= bounds[gpu.id].request
    ]
    if len(fitting) < spec.gpus:
        return no_room(state, spec, allowed, inside=inside)

    def order(gpu: Gpu) -> tuple[int, int, int, int]:
        request = bounds[gpu.id].request
        left_over = unrequested(state, gpu, inside=inside) - request if request else 0
        return (gpu.health.condition, left_over, -gpu.free, gpu.index)

    chosen = sorted(sorted(fitting, key=order)[: spec.gpus], key=lambda gpu: _position(spec, gpu))
    return {gpu.id: bounds[gpu.id] for gpu in chosen}


def is_blocked(state: State, spec: JobSpec, closed: Container[str]) -> bool:
    """Whether queued jobs are ahead of it on the GPUs that it could use. place() would find the same, but a queue may
    have a thousand jobs. (A job whose GPUs or reservation are gone is not blocked: place() refuses it.)"""
    if spec.reservation and spec.reservation not in state.reservations:
        return False
    wanted = set(state.gpus if spec.devices is None else spec.devices)
    if not wanted <= state.gpus.keys():
        return False
    admitting = [id for id in wanted if state.gpus[id].health.admits]
    return len(admitting) >= spec.gpus > sum(id not in closed for id in admitting)


def no_room(
    state: State, spec: JobSpec, gpus: list[Gpu], *, but: Job | None = None, inside: Reservation | None = None
) -> Reason:
    """The refusal, with numbers and holders."""
    facts: list[tuple[Words, Words]] = []
    data: dict[str, object] = {}
    lefts = []
    for gpu in gpus:
        left = max(0, unrequested(state, gpu, but, inside))
        lefts.append(left)
        jobs = [(job.bounds[gpu.id].request, job) for job in state.owners(gpu.id) if job is not but]
        holders = sorted((one for one in jobs if one[0]), key=lambda one: -one[0])
        held = [
            words(visibility.who(job.spec), f" {format_bytes(amount)}") for amount, job in holders[: blockers.NAMED]
        ]
        held += blockers.and_others([amount for amount, _ in holders])
        held += [
            words(visibility.reserved(one.spec), f" {format_bytes(state.remainder(one, gpu.id))}")
            for one in state.reservations.values()
            if one is not inside and state.remainder(one, gpu.id)
        ]
        if gpu.unmanaged:
            held.append(f"outside gpushare {format_bytes(gpu.unmanaged)}")
        text = f"{format_bytes(left)} of {format_bytes(gpu.capacity)} not yet requested"
        facts.append((f"GPU {gpu.index}", words(text, "; held: ", joined(", ", held)) if held else text))
        data[gpu.id] = {
            "capacity": gpu.capacity,
            "unrequested": left,
            "unmanaged": gpu.unmanaged,
            "requests": {job.id: amount for amount, job in holders[: blockers.NAMED]},
        }
    most = sorted(lefts, reverse=True)[spec.gpus - 1] if spec.gpus <= len(lefts) else 0  # on each of so many
    where = f"on {spec.gpus} GPUs" if spec.gpus > 1 else f"on GPU {gpus[0].index}" if len(gpus) == 1 else "on any GPU"
    return Reason(
        Code.NOT_ADMITTED,
        f"no room for a request of {said(spec.request, gpus)} {where}",
        tuple(facts),
        f"request at most {most // 2**20}Mi, or queue for room with --wait" if most else "queue for room with --wait",
        data,
    )


def said(request: Quantity, gpus: list[Gpu]) -> str:
    if request.kind is Kind.BYTES:
        return format_bytes(request.value)
    return f"{request} ({format_bytes(request.resolve(gpus[0].total))})"


def candidates(state: State, spec: JobSpec) -> list[Gpu] | Reason:
    """The GPUs that the job could use."""
    if not state.gpus:
        return Reason(Code.NO_SUCH_GPU, "this node has no GPU", hint="see `gpushare doctor`")
    if spec.devices is None:
        return sorted(state.gpus.values(), key=lambda gpu: gpu.index)
    unknown = [device for device in spec.devices if device not in state.gpus]
    if unknown:
        known = tuple((f"GPU {gpu.index}", gpu.id) for gpu in sorted(state.gpus.values(), key=lambda gpu: gpu.index))
        hint = "CUDA_VISIBLE_DEVICES or --gpu names it: name one that is there, or none"
        return Reason(Code.NO_SUCH_GPU, f"no GPU {unknown[0]} on this node", known, hint)
    return [state.gpus[device] for device in dict.fromkeys(spec.devices)]


def _position(spec: JobSpec, gpu: Gpu) -> int:
    """The program sees the GPUs in the order in which the user named them, if the user did."""
    return spec.devices.index(gpu.id) if spec.devices is not None else gpu.index


def _too_few(spec: JobSpec, allowed: list[Gpu]) -> Reason:
    count = len(allowed)
    whose, more = "this node has", ""
    if spec.devices is not None:
        whose, more = "CUDA_VISIBLE_DEVICES or --gpu names", ", or name more of them"
    return Reason(
        Code.TOO_LARGE,
        f"asked for {spec.gpus} GPUs, {whose} {count}",
        (),
        f"ask for at most {count} with --gpus{more}" if count else "see `gpushare status`",
        data={"asked": spec.gpus, "gpus": count},
    )


def _too_large(gpu: Gpu, request: Quantity, wanted: int) -> Reason:
    return Reason(
        Code.TOO_LARGE,
        f"a request of {format_bytes(wanted)} is more than GPU {gpu.index} has",
        (
            ("capacity", f"{format_bytes(gpu.capacity)} on {gpu.name}"),
            ("reserve", f"{format_bytes(gpu.reserve)}, never promised"),
        ),
        f"request at most {gpu.capacity // 2**20}Mi, or max for all that there is",
        {"request": wanted, "capacity": gpu.capacity, "text": str(request)},
    )
