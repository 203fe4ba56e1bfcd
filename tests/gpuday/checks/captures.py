"""6: each call beside each kind of capture, with and without the preload library."""

from __future__ import annotations

from gpuday.day import Day


def run(day: Day) -> None:
    bare = day.ask("driver.captures")["cases"]
    shim = day.ask("driver.captures", limit="4Gi")["cases"]
    day.answer("cases: code, state of the capture, code of its end", bare, "bare")
    day.answer("cases that the preload library changes", {name: [bare[name], shim[name]] for name in bare
                                                          if bare[name] != shim[name]}, "shim")  # fmt: skip
