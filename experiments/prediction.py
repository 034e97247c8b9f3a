"""Predicted against measured: a number of runs on the virtual cluster on one axis, of the same runs
on MPI ranks on the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from experiments import look, statistics
from experiments.reading import Result, read, select, split, values
from experiments.statistics import Interval
from experiments.words import TITLES, title

SAME = ("algorithm", "barrier", "policy", "workers", "graph", "delay", "workload", "dataset")


class Point(NamedTuple):
    """A number of an algorithm's runs on both clusters; `error`: predicted/measured - 1."""

    title: str
    algorithm: str
    measured: Interval
    predicted: Interval
    error: Interval
    runs: list[Result]


def points(rows: list[dict[str, Any]], number: Callable[[Result], float]) -> list[Point]:
    """One for each algorithm (and policy, barrier) that ran on both clusters with equal flags."""
    found = []
    for runs in split(read(rows), *SAME).values():
        measured, predicted = (
            values(select(runs, cluster=cluster), number) for cluster in ("mpi", "virtual")
        )
        if measured.keys() & predicted.keys():
            s = runs[0].settings
            error = statistics.reduction(predicted, measured).map(lambda x: -x)
            means = statistics.mean(measured), statistics.mean(predicted)
            found.append(Point(title(s), s.algorithm, *means, error, runs))
    return sorted(found, key=lambda p: list(TITLES).index(p.algorithm))


def panel(axes: Axes, found: list[Point], logarithmic: bool = False) -> None:
    """The points beside the line on which a prediction is right."""
    for p in found:
        x, y = p.predicted, p.measured
        color = look.LINES[p.algorithm]["color"]
        axes.errorbar(
            x.mean, y.mean, np.nan_to_num(y.half), np.nan_to_num(x.half),
            fmt="o", color=color, capsize=2,
        )  # fmt: skip
    _label(axes, found)
    means = [i.mean for p in found for i in (p.measured, p.predicted)]
    ends = (min(means) / 1.5, 1.5 * max(means)) if logarithmic else (0, 1.12 * max(means))
    axes.plot(ends, ends, **look.IDEAL)
    if logarithmic:
        look.logarithmic(axes, "x", (1, 3))
        look.logarithmic(axes, "y", (1, 3))
    else:
        axes.set_aspect("equal")
    axes.set_xlim(ends)
    axes.set_ylim(ends)


def _label(axes: Axes, found: list[Point]) -> None:
    """Names and errors in a column to the right, a thin line to each point: points that lie close
    together would have their names on top of each other."""
    ordered = sorted(found, key=lambda p: p.measured.mean)
    for height, p in zip(np.linspace(0.1, 0.9, len(ordered)), ordered, strict=True):
        axes.annotate(
            f"{p.title} {100 * p.error.mean:+.1f} %", (p.predicted.mean, p.measured.mean),
            xytext=(1.06, height), textcoords="axes fraction", va="center", fontsize=8,
            arrowprops={"arrowstyle": "-", "color": look.SOFT, "linewidth": 0.5},
        )  # fmt: skip
