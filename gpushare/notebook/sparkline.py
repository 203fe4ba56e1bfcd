"""A job's memory over the last minutes as a small drawing (SVG), against its limit and its request."""

from __future__ import annotations

from collections.abc import Sequence

from gpushare.quantity import format_bytes

__all__ = ["sparkline"]

WIDTH, HEIGHT = 160, 28
"""Pixels."""
USAGE, REQUEST = "#3b8f4a", "#555"

Points = Sequence[Sequence[float]]
"""As the daemon's history has them: [time, mean usage, highest usage, request, limit, loan], or [time] alone where
nothing is known from then on."""


def sparkline(points: Points, since: float, until: float, limit: int) -> str:
    """Usage as an area of steps, the request as a dashed line. The height is the limit. "" if nothing is known."""
    known = [point for point in points if len(point) > 1 and point[0] < until]
    if not known or until <= since:
        return ""
    most = max(limit, *(point[1] for point in known), 1)
    areas = "".join(
        _area(_x(max(start[0], since), since, until), _x(end, since, until), _y(start[1], most))
        for start, end in _held(points, until)
        if end > max(start[0], since)
    )
    request = _y(known[-1][3], most)
    highest = max(point[2] for point in known)
    said = f"usage of the last {max(1, round((until - since) / 60))} min, at most {format_bytes(int(highest))}"
    return (
        f'<svg role="img" aria-label="{said}" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' style="border:1px solid #888;vertical-align:middle"><title>{said}</title>{areas}'
        f'<line x1="0" x2="{WIDTH}" y1="{request:.1f}" y2="{request:.1f}" stroke="{REQUEST}" stroke-dasharray="4 3"/>'
        "</svg>"
    )


def _held(points: Points, until: float) -> list[tuple[Sequence[float], float]]:
    """Each value that is known, and until when it held."""
    ends = [*(point[0] for point in points[1:]), until]
    return [(point, min(end, until)) for point, end in zip(points, ends, strict=True) if len(point) > 1]


def _area(left: float, right: float, top: float) -> str:
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(0.5, right - left):.1f}" height="{HEIGHT - top:.1f}"'
        f' fill="{USAGE}"/>'
    )


def _x(time: float, since: float, until: float) -> float:
    return WIDTH * (time - since) / (until - since)


def _y(amount: float, most: float) -> float:
    return HEIGHT * (1 - amount / most)
