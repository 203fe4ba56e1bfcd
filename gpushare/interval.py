"""The type of an option that says how often something is done: a number of seconds within bounds."""

from __future__ import annotations

import math

import click

__all__ = ["Interval"]


class Interval(click.FloatRange):
    """Seconds. Click's own range takes `nan`, which no bound excludes; both bounds have to be said."""

    name = "number of seconds"

    def __init__(self, least: float, most: float) -> None:
        super().__init__(least, most)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))  # type: ignore[arg-type]
        if math.isnan(seconds):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return seconds
