"""A report of queues as CSV: a row for each time and queue, in GPUs."""

from __future__ import annotations

import csv
import io
import itertools
from datetime import UTC, datetime

from gpushare.cluster.quantity import MICRO, format_gpus
from gpushare.report.queues import QueueReport, series_of
from gpushare.report.table import cell, times

__all__ = ["render"]

COLUMNS = ("time", "queue", "held_mean", "held_highest", "share", "quota", "demand", "gpu_hours")


def render(report: QueueReport) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    begins = times(report["since"], report["until"], report["history"]["step"])
    held = {queue: iter(points) for queue, points in series_of(report).items()}
    coming = {queue: next(points, None) for queue, points in held.items()}
    now: dict[str, list[float]] = {}
    hours = dict.fromkeys(held, 0.0)
    for time, end in itertools.pairwise([*begins, report["until"]]):
        moment = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for queue, points in held.items():
            while (point := coming[queue]) is not None and point[0] <= time:
                now[queue], coming[queue] = point[1:], next(points, None)
            if now.get(queue):
                hours[queue] += now[queue][0] / MICRO * (end - time) / 3600
                shown = [format_gpus(int(value)) for value in now[queue]]
                writer.writerow([moment, cell(queue), *shown, f"{hours[queue]:.3f}"])
    return out.getvalue()
