"""Groups of bars as SVG, without any library."""

from __future__ import annotations

from html import escape
from math import isnan, log10

COLOURS = ("#8c8c8c", "#4c78a8", "#f58518", "#54a24b", "#b8d8b8", "#b279a2")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 900, 360, 50, 50, 60


def bars(title: str, labels: list[str], series: dict[str, list[float]]) -> str:
    """`series` has for each name a value for each label; a value that is not a number is left out."""
    most = max((value for values in series.values() for value in values if not isnan(value)), default=1.0) or 1.0
    step = _step(most)
    top = step * (int(most / step) + 1)
    high = HEIGHT - TOP - BOTTOM
    group = (WIDTH - LEFT - 10) / max(1, len(labels))
    wide = group * 0.85 / max(1, len(series))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    value = 0.0
    while value <= top + step / 2:
        y = TOP + high * (1 - value / top)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        value += step
    for index, (name, values) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        out.append(f'<rect x="{LEFT + 110 * index}" y="26" width="10" height="10" fill="{colour}"/>')
        out.append(f'<text x="{LEFT + 14 + 110 * index}" y="35">{escape(name)}</text>')
        for number, value in enumerate(values):
            if not isnan(value):
                tall = high * value / top
                x = LEFT + group * number + wide * index + group * 0.075
                out.append(
                    f'<rect x="{x:.1f}" y="{TOP + high - tall:.1f}" width="{wide * 0.92:.1f}" height="{tall:.1f}"'
                    f' fill="{colour}"><title>{escape(name)}, {escape(labels[number])}: {value:.3g}</title></rect>'
                )
    for number, label in enumerate(labels):
        x = LEFT + group * (number + 0.5)
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(label)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def _step(most: float) -> float:
    """About five lines at round numbers."""
    rough = most / 5
    power = 10.0 ** int(log10(rough) - (rough < 1))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
