"""What gpushare.status() returns: the daemon's answer, which a notebook shows as bars and a table."""

from __future__ import annotations

from html import escape
from typing import Any

from gpushare.notebook.view import BAR, BORROWED, CELL, OWN, PART
from gpushare.printable import one_line
from gpushare.quantity import format_bytes

__all__ = ["NodeView"]

OUTSIDE, RETURNING = "#8f58ab", "#98a1b0"
JOBS = 50
"""So many are in the table."""
TITLES = ("job", "user", "state", "GPU", "used", "on loan", "request", "limit")


class NodeView(dict[str, Any]):
    """A dict as api.Status has it. Only its HTML is added."""

    def _repr_html_(self) -> str:
        gpus = "".join(_gpu(gpu) for gpu in self["gpus"])
        rows = [row for job in self["jobs"] for row in _rows(job)]
        head = "".join(f'<th style="{CELL}">{title}</th>' for title in TITLES)
        table = f"<table><tr>{head}</tr>{''.join(rows[:JOBS])}</table>" if rows else "<div>no jobs</div>"
        more = f"<div>and {len(rows) - JOBS} more: <code>gpushare ps</code></div>" if len(rows) > JOBS else ""
        return f"<div>{gpus}{table}{more}</div>"


def _gpu(gpu: dict[str, Any]) -> str:
    total, left = max(1, gpu["total"]), 0.0
    parts, said = [], []
    for name, amount, colour in (
        ("guaranteed", gpu["usage"] - gpu["lent"], OWN),
        ("borrowed", gpu["lent"], BORROWED),
        ("outside gpushare", gpu["unmanaged"], OUTSIDE),
        ("being returned", gpu["returning"], RETURNING),
    ):
        width = min(100 - left, 100 * amount / total)
        if amount > 0 and width > 0:
            parts.append(f'<span style="{PART};left:{left:.1f}%;width:{width:.1f}%;background:{colour}"></span>')
            said.append(f"{format_bytes(amount)} {name}")
            left += width
    words = ", ".join([*said, f"{format_bytes(gpu['free'])} free"])
    bar = f'<span role="img" aria-label="{words}" title="{words}" style="{BAR}">{"".join(parts)}</span>'
    ill = "" if gpu["health"]["state"] == "ok" else f" ({escape(one_line(gpu['health']['state']))})"
    return f"<div>GPU {gpu['index']}{ill} {bar} {words} of {format_bytes(gpu['total'])}</div>"


def _rows(job: dict[str, Any]) -> list[str]:
    start = [one_line(job["name"]), one_line(job["user"]), job["state"].replace("_", " ")]
    found = []
    for gpu in job["gpus"]:
        loan = format_bytes(gpu["loan"]) if gpu["loan"] else "-"
        amounts = [format_bytes(gpu["usage"]), loan, format_bytes(gpu["request"]), format_bytes(gpu["limit"])]
        found.append([*start, str(gpu["index"]), *amounts])
    return [
        "<tr>" + "".join(f'<td style="{CELL}">{escape(cell)}</td>' for cell in cells) + "</tr>"
        for cells in found or [[*start, *["-"] * 5]]
    ]
