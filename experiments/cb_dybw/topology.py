"""Graphs and many workers: where DTUR's threshold fires too early (group 4).

Nothing published to compare with [choice]. DTUR ends an iteration as soon as one new edge of its
path has both ends finished, the earlier the more edges there are: expect the share of finishers to
fall with N, until an iteration brings so little that cb-Full is ahead at equal times.

    python -m experiments.reproduce --paper=cb_dybw --figures_only --out=RESULTS
    python -m experiments.cb_dybw.topology RESULTS
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments import alone, look, statistics
from experiments.figures import STYLE
from experiments.reading import Result, read, split, values
from experiments.words import title

TITLE = "Graphs and many workers"
SAYS = (
    "Each column is a graph. Loss at equal time is taken when the first of the compared runs ends. "
    "Where cb-DyBW's line is above cb-Full's there, its threshold fires too early."
)

Number = Callable[[Result], float]


def equal_time(runs: list[Result]) -> float:
    """Seconds at which the first of the runs ends: up to then all can be compared."""
    return min(float(r.curve["clock_seconds"][-1]) for r in runs)


def rows_of(found: list[Result]) -> dict[str, tuple[list[Result], Number]]:
    """Label of a row of panels → the runs it shows, and their number."""
    learning = [r for r in found if r.learns]
    ends = {key: equal_time(runs) for key, runs in split(learning, *PLACE).items()}

    def loss(r: Result) -> float:
        return r.loss_at(ends[tuple(getattr(r.settings, name) for name in PLACE)])

    rows = {
        "mean iteration,\nvirtual s": (found, lambda r: r.value("mean_iteration_seconds")),
        "gradients used\nin an iteration / N": (found, lambda r: r.share_used),
    }
    if learning:
        rows |= {
            "training loss\nat equal time": (learning, loss),
            "virtual s to\ntarget loss": (learning, _to_target),
            "consensus distance\nat the end": (learning, lambda r: r.value("consensus_distance")),
        }
    return rows


PLACE = ("workers", "graph", "workload", "dataset", "delay")
"""What runs share that are compared at equal times."""


def _to_target(r: Result) -> float:
    target = r.settings.target_loss
    return r.to_loss(target, "clock_seconds") if math.isfinite(target) else math.nan


@matplotlib.rc_context(STYLE)
def draw(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """One figure: a column for each kind of graph, a row for each number, a line an algorithm."""
    found = read(rows)
    if not found:
        return {}
    graphs = sorted({_kind(r) for r in found})
    shown = rows_of(found)
    figure = Figure(figsize=(look.FULL, 1.1 + 1.65 * len(shown)))
    panels = figure.subplots(len(shown), len(graphs), sharex=True, sharey="row", squeeze=False)
    for line, (label, (runs, number)) in zip(panels, shown.items(), strict=True):
        line[0].set_ylabel(label, fontsize=8)
        for axes, graph in zip(line, graphs, strict=True):
            _lines(axes, [r for r in runs if _kind(r) == graph], number)
        look.logarithmic(line[0], "y", subs=(1, 3))
    sizes = sorted({r.settings.workers for r in found})
    for axes, graph in zip(panels[0], graphs, strict=True):
        axes.set_title(graph.replace("_", " "))
    for axes in panels[-1]:
        look.logarithmic(axes, "x")
        axes.set_xticks(sizes, [f"{n:,}" if n < 1000 else f"{n // 1000}k" for n in sizes])
        axes.set_xlabel("workers N")
    handles = {h.get_label(): h for axes in panels.flat for h in axes.lines}
    figure.legend(handles=list(handles.values()), loc="outside upper right", ncols=3)
    look.note(
        figure, found, "Marks are means, bars their 95 % intervals where there are two seeds."
    )
    return {"topology": figure}


def _kind(r: Result) -> str:
    return r.settings.graph.partition(":")[0]


def _lines(axes: Any, runs: list[Result], number: Number) -> None:
    for (algorithm,), own in split(runs, "algorithm").items():
        by_n = {
            n: statistics.mean(values(of_n, number)) for (n,), of_n in split(own, "workers").items()
        }
        line = look.LINES[algorithm]
        axes.plot(
            list(by_n), [m.mean for m in by_n.values()],
            marker="o", markersize=3.5, label=title(own[0].settings), **line,
        )  # fmt: skip
        low, high = (np.array([getattr(m, end) for m in by_n.values()]) for end in ("low", "high"))
        axes.vlines(list(by_n), low, high, color=line["color"], linewidth=1)


if __name__ == "__main__":
    alone.main("topology", draw)
