"""A picture of a run: GPUs per queue over time, stacked. Needs matplotlib, which is an extra."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpushare_installation
from gpushare.cluster.quantity import MICRO
from gpushare.errors import GpushareError, UsageError

if TYPE_CHECKING:
    from gpushare.cluster.timeline import Timeline

__all__ = ["FORMATS", "check", "curve", "draw"]

FORMATS = (".png", ".svg")
MOST_BANDS = 20
UNITS = ((172800, "days", 86400), (7200, "hours", 3600), (180, "minutes", 60))


def check(path: Path) -> None:
    """Whether a picture could be written there, before anything long begins."""
    if path.suffix not in FORMATS:
        raise UsageError(f"{path}: a picture is PNG or SVG", hint=f"name it {path.stem}.png or {path.stem}.svg")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a directory", hint="make it first, or write elsewhere")
    _pyplot()


def draw(timeline: Timeline, path: Path, title: str) -> None:
    plt = _pyplot()
    if not timeline.queues:
        raise GpushareError("there is nothing to draw", hint="the scenario has no queues")
    moments = sorted({*timeline.total.times, *timeline.capacity.times, timeline.start, timeline.end})
    unit, size = _unit(timeline.end)
    times = [moment / size for moment in moments]
    bands = _bands(timeline, moments)
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    colours = plt.get_cmap("tab20").colors
    if not timeline.passed:
        _draw_end(axes, bands, colours, title, timeline.capacity.last / MICRO)
        _save(plt, figure, path)
        return
    axes.stackplot(
        times,
        *(values for _, values in bands),
        labels=[name for name, _ in bands],
        colors=colours[: len(bands)] or None,
        step="post",
    )
    capacity = [timeline.capacity.at(moment) / MICRO for moment in moments]
    axes.step(times, capacity, where="post", color="black", linewidth=1, label="all GPUs")
    axes.set(title=title, xlabel=unit, ylabel="GPUs", xlim=(times[0], max(times[-1], times[0] + 1e-9)))
    axes.set_ylim(0, max(capacity) * 1.05 or 1)
    axes.yaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    _save(plt, figure, path)


def _draw_end(axes: Any, bands: list[tuple[str, list[float]]], colours: Any, title: str, capacity: float) -> None:
    """Where no time has passed there is no curve: what each queue holds in the end."""
    names = [name for name, _ in bands]
    axes.bar(names, [values[-1] for _, values in bands], color=colours[: len(bands)])
    axes.set(title=title, xlabel=f"queues, in the end, on {capacity:g} GPUs", ylabel="GPUs")
    axes.yaxis.get_major_locator().set_params(integer=True)


def curve(path: Path, title: str, x: list[float], series: dict[str, list[float]], labels: tuple[str, str]) -> None:
    """Lines over a common x, both axes logarithmic: how a cost grows."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name, values in series.items():
        axes.plot(x, values, marker="o", label=name)
    axes.set(title=title, xlabel=labels[0], ylabel=labels[1], xscale="log", yscale="log")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(frameon=False)
    _save(plt, figure, path)


def _save(plt: Any, figure: Any, path: Path) -> None:
    # The same run gives the same file: no date, no random ids.
    with plt.rc_context({"svg.hashsalt": "gpushare", "svg.fonttype": "none"}):
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        unfinished = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")  # a picture that was there stays whole
        try:
            figure.savefig(unfinished, dpi=120, metadata=metadata)
            unfinished.replace(path)
        except OSError as error:
            raise GpushareError(f"cannot write {path}: {error.strerror}", hint="name another file") from None
        finally:
            unfinished.unlink(missing_ok=True)
            plt.close(figure)


def _bands(timeline: Timeline, moments: list[float]) -> list[tuple[str, list[float]]]:
    """GPUs of each queue at each moment; where there are many queues, of the largest, and of all others together."""
    names = list(timeline.queues)
    if len(names) > MOST_BANDS:
        largest = set(sorted(names, key=lambda name: -timeline.mean(name))[: MOST_BANDS - 1])
        names = [name for name in names if name in largest]
    bands = [(name, [timeline.queues[name].at(moment) / MICRO for moment in moments]) for name in names]
    others = len(timeline.queues) - len(names)
    if others:
        named = [sum(values) for values in zip(*(values for _, values in bands), strict=True)]
        rest = [timeline.total.at(moment) / MICRO - known for moment, known in zip(moments, named, strict=True)]
        bands.append((f"{others} others", rest))
    return bands


def _unit(seconds: float) -> tuple[str, int]:
    return next(((name, size) for least, name, size in UNITS if seconds >= least), ("seconds", 1))


def _pyplot() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise GpushareError(
            "a plot needs matplotlib, which is not installed",
            hint=f"{gpushare_installation.install_extra('plot')}, or leave --plot out",
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
