"""What to ask for, from the use that `--mode observe` has seen."""

from __future__ import annotations

from gpushare.quantity import BINARY, format_bytes

__all__ = ["NOTHING_SEEN", "limit_for", "of_peaks"]

GIB, MIB = BINARY["Gi"], BINARY["Mi"]
HEADROOM = 10  # percent beyond the peak
FINE = 256 * MIB
COARSE_FROM = 2 * GIB


def limit_for(peak: int, total: int) -> str:
    """A limit for a program that has used `peak` bytes of a GPU with `total`: the peak and a tenth, rounded up."""
    wanted = peak + peak * HEADROOM // 100
    step = FINE if wanted <= COARSE_FROM else GIB
    limit = -(-wanted // step) * step
    if limit >= total:
        return "max"
    return f"{limit // GIB}Gi" if limit % GIB == 0 else f"{limit // MIB}Mi"


NOTHING_SEEN = "no GPU memory was seen in use: memory held for a second or less may be missed"


def of_peaks(peaks: list[tuple[int, int, int]]) -> tuple[str, str | None]:
    """A sentence and a limit, from (GPU, peak, total) of each GPU in bytes. None if nothing was seen.

    One limit holds on each GPU, so the largest peak decides.
    """
    index, peak, total = max(peaks, key=lambda one: one[1], default=(0, 0, 0))
    if peak <= 0:
        return NOTHING_SEEN, None
    limit = limit_for(peak, total)
    return f"peak {format_bytes(peak)} on GPU {index}: ask for it with --limit {limit}", limit
