"""Predicted against measured: virtual seconds on one axis, MPI ranks' wall seconds on the other.

The virtual cluster draws the same delays as the ranks sleep (group 5). Expect the points a little
below the identity: what a rank needs beside its delay is measured and not predicted.

    python -m experiments.reproduce --paper=cb_dybw --figures_only --out=RESULTS
    python -m experiments.cb_dybw.prediction RESULTS
"""

from __future__ import annotations

from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import alone, look, statistics
from experiments.figures import STYLE
from experiments.reading import Result, read, select, split, values
from experiments.statistics import Interval
from experiments.words import TITLES, title

TITLE = "Predicted and measured"
SAYS = (
    "The virtual cluster predicts how long an iteration takes, with the delays that the MPI ranks "
    "really sleep. Beside each point: by how much the prediction is off, in per cent of what was "
    "measured."
)


class Point(NamedTuple):
    """Mean iteration time of an algorithm on both clusters; `error`: predicted/measured - 1."""

    title: str
    algorithm: str
    measured: Interval
    predicted: Interval
    error: Interval
    runs: list[Result]


def points(rows: list[dict[str, Any]]) -> list[Point]:
    """One for each algorithm (and policy, barrier) that ran on both clusters with equal flags."""
    found = []
    same = ("algorithm", "barrier", "policy", "workers", "graph", "delay", "workload", "dataset")
    for runs in split(read(rows), *same).values():
        measured, predicted = (
            values(select(runs, cluster=cluster), lambda r: r.value("mean_iteration_seconds"))
            for cluster in ("mpi", "virtual")
        )
        if measured.keys() & predicted.keys():
            s = runs[0].settings
            error = statistics.reduction(predicted, measured).map(lambda x: -x)
            means = statistics.mean(measured), statistics.mean(predicted)
            found.append(Point(title(s), s.algorithm, *means, error, runs))
    return sorted(found, key=lambda p: list(TITLES).index(p.algorithm))


@matplotlib.rc_context(STYLE)
def draw(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """One figure."""
    found = points(rows)
    if not found:
        return {}
    figure = Figure(figsize=(6.0, 4.8))
    axes = figure.subplots()
    for p in found:
        x, y = p.predicted, p.measured
        color = look.LINES[p.algorithm]["color"]
        axes.errorbar(
            x.mean, y.mean, np.nan_to_num(y.half), np.nan_to_num(x.half),
            fmt="o", color=color, capsize=2,
        )  # fmt: skip
    _label(axes, found)
    top = 1.12 * max(max(p.measured.mean, p.predicted.mean) for p in found)
    axes.plot([0, top], [0, top], **look.IDEAL)
    axes.set_xlim(0, top)
    axes.set_ylim(0, top)
    axes.set_aspect("equal")
    axes.set_xlabel("predicted mean iteration, virtual seconds")
    axes.set_ylabel("measured mean iteration, wall seconds on MPI")
    look.note(figure, [r for p in found for r in p.runs])
    return {"prediction": figure}


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


if __name__ == "__main__":
    alone.main("mpi", draw)
