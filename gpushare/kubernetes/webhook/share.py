"""What a pod's claim is to say: of its annotations, the queue's limits, and the size of the GPUs. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpushare.errors import UsageError
from gpushare.kubernetes.amounts import written
from gpushare.kubernetes.slices import STEP
from gpushare.kubernetes.webhook.asked import Asked
from gpushare.kubernetes.webhook.limits import Limits
from gpushare.quantity import MAX, SHARE_PARTS, Kind, Quantity

__all__ = ["Share", "of"]


@dataclass(frozen=True, slots=True)
class Share:
    """What a claim says of each of its GPUs."""

    count: int
    memory: int | None
    """Bytes, a multiple of STEP; None: the whole GPU."""
    limit: str | None
    """As a Budget has it; None: the request."""

    @property
    def written(self) -> str | None:
        return None if self.memory is None else written(self.memory)


def of(asked: Asked, limits: Limits, *, interactive: bool, gpu: Callable[[], int]) -> Share:
    """`gpu`: bytes of a GPU, asked only where that matters; it may raise UsageError. Raises UsageError."""
    if asked.whole:
        return Share(asked.count, None, None)
    usual = limits.usual_for(interactive=interactive)
    if asked.request.kind is Kind.BYTES:
        memory = -(-asked.request.value // STEP) * STEP
        limit = _limit(asked, limits, usual, gpu)
        return Share(asked.count, memory, None if limit is None else _written(limit, memory))
    limit = _limit(asked, limits, usual, lambda: SHARE_PARTS)
    memory = gpu() * asked.request.value // SHARE_PARTS // STEP * STEP  # up would be above a limit of the same part
    if not memory:
        message = f"{asked.said} of a GPU with {written(gpu())} is less than {written(STEP)}"
        raise UsageError(message, hint="ask for more")
    return Share(asked.count, memory, None if limit is None else _written(limit, memory))


def _limit(asked: Asked, limits: Limits, usual: int | None, whole: Callable[[], int]) -> Quantity | None:
    """In the unit of the request, of which a GPU has whole(). Never below the request."""
    own, request = asked.limit, asked.request.value
    most = None if limits.most in (None, SHARE_PARTS) else whole() * (limits.most or 0) // SHARE_PARTS
    said = 0 if own is None else whole() if own == MAX and most is not None else own.value
    if most is not None and max(request, said) > most:
        what = asked.limit_said if said > most else asked.said
        allowed = written(most) if asked.request.kind is Kind.BYTES else f"{most / SHARE_PARTS:.4g}"
        raise UsageError(f"{what} is above what {limits.whose} allows", hint=f"ask for at most {allowed} of a GPU")
    if own is not None or usual is None:
        return own
    if usual == SHARE_PARTS and most is None:
        return MAX
    found = whole() * usual // SHARE_PARTS
    return Quantity(asked.request.kind, max(request, found if most is None else min(found, most)), "")


def _written(limit: Quantity, memory: int) -> str | None:
    """As a Budget has it. A request is rounded up, and no limit is below it."""
    if limit.kind is not Kind.BYTES:
        return limit.canonical()
    return written(limit.value) if limit.value > memory else None
