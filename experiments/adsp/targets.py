"""The time to the loss target, and its pictures: held-out loss as curves, times as bars.

A look counts from the end of a search before training on: what the search's probes came to is not
what is trained. One look at the target may be luck; the authors take the tenth [code], and both are
shown everywhere.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import look, statistics
from experiments.reading import Result, values
from experiments.statistics import Interval, Values
from experiments.words import model, title

LOOKS = {1: "first look", 10: "tenth look"}
"""Which look at the target is meant, in words."""
COUNTED = 10
"""The one that comparisons are about, as the authors [code]."""
PALER = "Bars: first look at the target; paler: tenth"
BARS = {1: (-0.19, 1.0), 10: (0.19, 0.5)}
"""Where in its row a bar is, and how strong its colour."""

Cells = dict[str, list[Result]]


def searched(r: Result) -> float:
    """Seconds of a search before training, 0 where none was."""
    return 0.0 if math.isnan(r.search_seconds) else r.search_seconds


def arrival(r: Result, nth: int = COUNTED) -> float:
    """Virtual seconds to the nth look at the target; nan where there are not so many."""
    seconds, loss = r.looks["seconds"], r.looks["held_out_loss"]
    there = seconds[(loss <= r.settings.target_loss) & (seconds >= searched(r))]
    return float(there[nth - 1]) if len(there) >= nth else math.nan


def arrivals(runs: list[Result], nth: int = COUNTED) -> Values:
    """Seed → `arrival`."""
    return values(runs, lambda r: arrival(r, nth))


def at_least(runs: list[Result], nth: int = COUNTED) -> Values:
    """The same; who never arrives counts with the time that it had, which is too short."""

    def bound(r: Result) -> float:
        seconds = arrival(r, nth)
        return float(r.looks["seconds"][-1]) if math.isnan(seconds) else seconds

    return values(runs, bound)


def said(found: Values, form: str = ".0f") -> str:
    """Seconds with their interval, or how many of the seeds arrive."""
    reached = sum(not math.isnan(seconds) for seconds in found.values())
    if reached == len(found):
        return f"{statistics.mean(found).plus_minus(form)} s"
    return f"reached by {reached} of {len(found)}" if reached else "never"


def looked(runs: list[Result]) -> list[Result]:
    """Runs whose held-out loss was looked at more than once."""
    return [r for r in runs if len(r.looks["seconds"]) > 1]


def curves(axes: Axes, cells: Cells, column: str, lines: dict[str, Any] = look.LINES) -> None:
    """Held-out loss against a column of the looks, mean and interval over seeds of each cell, and
    the target; `lines` by algorithm."""
    drawn = []
    for runs in cells.values():
        points = [(r.looks[column], r.looks["held_out_loss"]) for r in looked(runs)]
        if not points:
            continue
        shortest = min(len(x) for x, _ in points)
        if column == "seconds":  # all look at the same times, until the first run ends
            points = [(x[:shortest], y[:shortest]) for x, y in points]
        band = statistics.band(points, points=400)
        s = runs[0].settings
        look.draw_band(axes, band, title(s), lines[s.algorithm])
        drawn.append(band.mean)
    target = next(iter(cells.values()))[0].settings.target_loss
    axes.axhline(target, **look.IDEAL)
    axes.annotate(
        f"target {target:g}", (1, target), xycoords=("axes fraction", "data"), ha="right",
        va="bottom", fontsize=8, color=look.SOFT,
    )  # fmt: skip
    least = min([target, *(float(np.nanmin(mean)) for mean in drawn)])
    most = max((float(mean[0]) for mean in drawn), default=target)
    if least > 0:
        look.logarithmic(axes, "y")
        axes.set_ylim(0.85 * least, 1.15 * most)
    axes.set_xlim(left=0)


def bar_figure(cells: Cells) -> Figure:
    """`bars` of one workload."""
    figure = Figure(figsize=(look.FULL, 1.3 + 0.42 * len(cells)))
    axes = figure.subplots()
    bars(axes, cells)
    every = [r for runs in cells.values() for r in runs]
    axes.set_title(model(every[0].settings))
    look.note(figure, every, PALER)
    return figure


def bars(axes: Axes, cells: Cells) -> None:
    """A row for each cell: bars to the first and the tenth look at the target, of which a search
    before training is hatched; seeds that arrive are dots where others do not."""
    longest = max(
        _bar(axes, row + offset, runs, nth, strength)
        for row, runs in enumerate(cells.values())
        for nth, (offset, strength) in BARS.items()
    )
    axes.set_yticks(range(len(cells)), [title(runs[0].settings) for runs in cells.values()])
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.set_xlim(0, 1.6 * longest or 1)  # room for what is said behind the bars
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    target = next(iter(cells.values()))[0].settings.target_loss
    axes.set_xlabel(f"virtual seconds to a held-out loss of {target:g}")


def _bar(axes: Axes, y: float, runs: list[Result], nth: int, strength: float) -> float:
    """One bar; where it ends."""
    found = arrivals(runs, nth)
    color = look.LINES[runs[0].settings.algorithm]["color"]
    reached = [seconds for seconds in found.values() if not math.isnan(seconds)]
    end = max(reached, default=0.0)
    if len(reached) == len(found):
        mean = statistics.mean(found)
        end = _end(mean)
        axes.barh(
            y, mean.mean, 0.36, color=color, alpha=strength,
            xerr=None if math.isnan(mean.low) else mean.half,
            error_kw={"elinewidth": 0.9, "capsize": 2},
        )  # fmt: skip
        search = statistics.mean(values(runs, searched)).mean
        if search:
            axes.barh(y, search, 0.36, color="white", edgecolor=color, hatch="////", linewidth=0.8)
    else:
        axes.plot(reached, [y] * len(reached), "o", color=color, alpha=strength, markersize=4)
    axes.annotate(
        _label(runs, found), (end, y), (4, 0), textcoords="offset points", va="center", fontsize=7
    )
    return end


def _end(interval: Interval) -> float:
    return interval.mean if math.isnan(interval.low) else interval.high


def _label(runs: list[Result], found: Values) -> str:
    text = said(found)
    budget = max(r.settings.max_time for r in runs)
    if text == "never" and math.isfinite(budget):
        return f"never in {budget:g} s"
    search = values(runs, searched)
    if any(search.values()) and text.endswith(" s"):
        without = {seed: seconds - search[seed] for seed, seconds in found.items()}
        return f"{text}; {said(without)} without its search"
    return text


def legend(figure: Figure, columns: int = 6, **more: Any) -> None:
    """Every label of the figure's panels once, above them."""
    handles = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=columns, fontsize=8,
        **more,
    )  # fmt: skip
