"""What %gpushare shows of a job: text of 80 columns, and a small table for notebooks that show HTML."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from gpushare.api import Job, JobGpu, Waiting
from gpushare.notebook.sparkline import Points, sparkline
from gpushare.printable import one_line
from gpushare.quantity import format_bytes

__all__ = ["BAR", "BORROWED", "CELL", "OWN", "PART", "Past", "View", "bar"]

COLUMNS = 80
WIDTH = 36
"""Width of a bar, without its frame and its mark."""
INDENT = " " * 7
NAME = 40
"""Characters of a name that are shown."""

BAR = "display:inline-block;position:relative;width:16em;height:1em;border:1px solid #888;vertical-align:middle"
PART = "position:absolute;top:0;height:100%"
OWN, BORROWED, MARK = "#3b8f4a", "#e08a00", "#555"
CELL = "text-align:left;padding:0 1em 0 0"
TITLES = ("GPU", "", "", "used", "on loan", "request", "limit")


@dataclass(frozen=True, slots=True)
class Past:
    """The job's memory over some minutes; times are seconds since 1970."""

    since: float
    until: float
    points: Mapping[str, Points]
    """By GPU."""


@dataclass(frozen=True, slots=True, repr=False)
class View:
    """A job, and the jobs that wait for memory of its GPUs."""

    job: Job
    waiting: Sequence[Waiting] = ()
    past: Past | None = None

    def __repr__(self) -> str:
        lines = [self._heading()]
        for gpu in self.job["gpus"]:
            used = f"{format_bytes(gpu['usage'])} of {format_bytes(gpu['limit'])} used"
            loan = f", {format_bytes(gpu['loan'])} on loan" if gpu["loan"] else ""
            lines += [
                f"{_number(gpu)}  {bar(gpu)}  {used}",
                f"{INDENT}request {format_bytes(gpu['request'])}, limit {format_bytes(gpu['limit'])}{loan}",
            ]
        for text in self._waits():
            lines += textwrap.wrap(text, COLUMNS, subsequent_indent=INDENT)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="{CELL}">{title}</th>' for title in TITLES)
        rows = "".join(_row(gpu, self.past) for gpu in self.job["gpus"])
        waits = "".join(f"<div>{escape(text)}</div>" for text in self._waits())
        return f"<div>{escape(self._heading())}</div><table><tr>{head}</tr>{rows}</table>{waits}"

    def _heading(self) -> str:
        job = self.job
        return f"job {_short(job['name'])} ({job['id']}): {job['state'].replace('_', ' ')}"

    def _waits(self) -> list[str]:
        gpus = {gpu["uuid"] for gpu in self.job["gpus"]}
        return [
            f"waits: {'this job' if one['job'] == self.job['id'] else _short(one['name'])}: {one_line(one['message'])}"
            for one in self.waiting
            if one["gpu"] in gpus
        ]


def bar(gpu: JobGpu, width: int = WIDTH) -> str:
    """[#####...|.......]: the whole bar is the limit, # is used, | is where the request ends and the loan begins."""
    limit = max(gpu["limit"], 1)
    used = min(width, -(-gpu["usage"] * width // limit))
    cells = ["#"] * used + ["."] * (width - used)
    if gpu["request"] < gpu["limit"]:
        cells.insert(gpu["request"] * width // limit, "|")
    return f"[{''.join(cells)}]"


def _row(gpu: JobGpu, past: Past | None) -> str:
    loan = format_bytes(gpu["loan"]) if gpu["loan"] else "-"
    amounts = (format_bytes(gpu["usage"]), loan, format_bytes(gpu["request"]), format_bytes(gpu["limit"]))
    drawn = "" if past is None else sparkline(past.points.get(gpu["uuid"], ()), past.since, past.until, gpu["limit"])
    cells = (_number(gpu), _bar_html(gpu), drawn, *amounts)
    return "<tr>" + "".join(f'<td style="{CELL}">{cell}</td>' for cell in cells) + "</tr>"


def _bar_html(gpu: JobGpu) -> str:
    """The bar in HTML: the guaranteed part in one colour, the borrowed part in another."""
    limit = max(gpu["limit"], 1)
    used, request = (min(100.0, 100 * amount / limit) for amount in (gpu["usage"], gpu["request"]))
    parts = [_part(0, min(used, request), OWN), _part(request, used - request, BORROWED)]
    if request < 100:
        parts.append(f'<span style="{PART};left:{request:.1f}%;width:2px;background:{MARK}"></span>')
    said = f"{format_bytes(gpu['usage'])} of {format_bytes(gpu['limit'])} used"
    return f'<span role="img" aria-label="{said}" title="{said}" style="{BAR}">{"".join(parts)}</span>'


def _part(left: float, width: float, colour: str) -> str:
    if width <= 0:
        return ""
    return f'<span style="{PART};left:{left:.1f}%;width:{width:.1f}%;background:{colour}"></span>'


def _number(gpu: JobGpu) -> str:
    return f"GPU {gpu['index']}"


def _short(name: str) -> str:
    name = one_line(name)
    return name if len(name) <= NAME else f"{name[: NAME - 1]}…"
