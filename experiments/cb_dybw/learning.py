"""Training loss, test error, iteration time and backup workers (cb-DyBW's main figures; group 1).

The paper's claims [paper]: loss and error fall with k much as cb-Full's do, iterations are 65-70 %
shorter, the number of backup workers fluctuates, and all this holds on non-iid data as well. Expect
the curves of cb-Full and cb-DyBW close to each other against k, and apart against seconds.

    python -m experiments.reproduce --paper=cb_dybw --figures_only --out=RESULTS
    python -m experiments.cb_dybw.learning RESULTS

Other algorithms stand in panels of their own, the pair in grey beside them. Lines are means over
seeds, shades their 95 % intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import alone, look, statistics
from experiments.figures import STYLE
from experiments.reading import WORKLOAD, Result, by_cell, read, split
from experiments.settings import Settings
from experiments.words import model, slug, title

TITLE = "Learning"
SAYS = (
    "Against iterations one sees what an iteration brings; against seconds, what shorter "
    "iterations are worth. An iteration of an asynchronous algorithm is N gradients. Each "
    "algorithm has the learning rate that was best for it in the same search."
)

SMOOTHED = 10  # iterations in a moving average
Runs = dict[str, list[Result]]

REFERENCE = ("cb_full", "cb_dybw")
REFERENCE_LINES = {
    "cb_full": {"color": "#A8A8A8", "linestyle": ":", "linewidth": 1.4},
    "cb_dybw": {"color": "#A8A8A8", "linestyle": "-", "linewidth": 1.4},
}
"""Of the two where they are there for comparison only."""

FAMILIES = {
    "Consensus": ("cb_full", "cb_dybw", "cb_static", "dsgd_aau"),
    "Asynchronous": ("ad_psgd", "asp", "ssp"),
    "Synchronous, servers": ("allreduce", "bsp", "ps_backup", "dbw"),
}


@matplotlib.rc_context(STYLE)
def draw(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """Up to four figures for each number of workers, data set, model and partition."""
    return {
        f"{name}-{kind}": figure
        for name, runs in workloads(rows).items()
        for kind, figure in _figures(by_cell(runs)).items()
    }


def workloads(rows: list[dict[str, Any]]) -> dict[str, list[Result]]:
    """How the names of a workload's figures begin → the runs in them."""
    return {_name(runs[0].settings): runs for runs in split(read(rows), *WORKLOAD).values()}


def _name(s: Settings) -> str:
    workload = s.workload.partition(":")[0]
    return slug("learning", f"n{s.workers}", s.dataset, workload, s.partition)


def _figures(cells: Runs) -> dict[str, Figure]:
    figures = {
        "1-iteration": _curves(cells, "iteration", "iteration k"),
        "2-seconds": _curves(cells, "clock_seconds", "virtual seconds"),
    }
    timed = {name: runs for name, runs in cells.items() if "durations" in runs[0].row}
    if timed:
        figures["3-durations"] = _durations(timed)
    waiting = {name: runs for name, runs in timed.items() if "backup_workers" in runs[0].row}
    waiting = {n: runs for n, runs in waiting.items() if runs[0].settings.algorithm != "cb_full"}
    if waiting:
        figures["4-backup-workers"] = _backup_workers(waiting)
    return figures


def _curves(cells: Runs, x: str, label: str) -> Figure:
    """Training loss above, test error below, a column for each family."""

    def loss(axes: Axes, runs: list[Result], **line: Any) -> None:
        _band(axes, runs, x, lambda r: r.curve["train_loss"], **line)

    def error(axes: Axes, runs: list[Result], **line: Any) -> None:
        _band(axes, runs, x, lambda r: 100 * r.curve["test_error"], **line)

    figure, panels = _panels(cells, (loss, error), height=4.6)
    start = max(r.curve["train_loss"][0] for runs in cells.values() for r in runs)
    # One that diverges leaves the picture, as does a shade that reaches below zero.
    for line, name, top in zip(
        panels, ("training loss", "test error, %"), (1.1 * start, 100.0), strict=True
    ):
        least = min(np.nanmin(drawn.get_ydata()) for axes in line for drawn in axes.lines)
        line[0].set_ylabel(name)
        look.logarithmic(line[0], "y")
        line[0].set_ylim(0.85 * max(least, 1e-3), top)
    for axes in panels[1]:
        axes.set_xlabel(label)
        axes.set_xlim(left=0)
    return figure


def _band(
    axes: Axes, runs: list[Result], x: str, y: Callable[[Result], np.ndarray], **line: Any
) -> None:
    band = statistics.band([(r.curve[x], y(r)) for r in runs])
    look.draw_band(axes, band, line.pop("label"), line)


def _durations(cells: Runs) -> Figure:
    """Share of iterations, of all seeds, that last no longer than so many seconds."""

    def ecdf(axes: Axes, runs: list[Result], **line: Any) -> None:
        axes.ecdf(np.concatenate([r.row["durations"] for r in runs]), **line)

    figure, panels = _panels(cells, (ecdf,), height=2.9)
    panels[0, 0].set_ylabel("share of iterations")
    # A lone iteration in a thousand that is far longer would squeeze all others.
    most = max(np.quantile(r.row["durations"], 0.995) for runs in cells.values() for r in runs)
    for axes in panels[0]:
        axes.set_xlabel("an iteration lasts at most … virtual seconds")
        axes.set_xlim(0, most)
    return figure


def _backup_workers(cells: Runs) -> Figure:
    """b(k), smoothed, mean over seeds; at a server of all workers, elsewhere of neighbours."""

    def smooth(axes: Axes, runs: list[Result], **line: Any) -> None:
        window = min(SMOOTHED, *(len(r.row["backup_workers"]) for r in runs))
        kernel = np.full(window, 1 / window)
        curves = [np.convolve(r.row["backup_workers"], kernel, mode="valid") for r in runs]
        band = statistics.band([(np.arange(len(c)) + window - 1, c) for c in curves])
        look.draw_band(axes, band, line.pop("label"), line)

    figure, panels = _panels(cells, (smooth,), height=2.9)
    panels[0, 0].set_ylabel("b(k), not waited for")
    panels[0, 0].set_ylim(bottom=0)
    for axes in panels[0]:
        axes.set_xlabel(f"iteration k (moving average of {SMOOTHED})")
    return figure


def _panels(
    cells: Runs, rows: tuple[Callable[..., None], ...], height: float
) -> tuple[Figure, np.ndarray]:
    """A column for each family that has members here, a row for each of `rows`, which draw a
    cell; shape (rows, families). The pair is in every column."""
    present = {runs[0].settings.algorithm for runs in cells.values()}
    families = [name for name, members in FAMILIES.items() if present & set(members)]
    figure = Figure(figsize=(look.FULL if len(families) > 1 else look.HALF, height))
    panels = figure.subplots(len(rows), len(families), sharex=True, sharey="row", squeeze=False)
    for family, column in zip(families, panels.T, strict=True):
        for runs in cells.values():
            algorithm = runs[0].settings.algorithm
            if algorithm in (*FAMILIES[family], *REFERENCE):
                line = _line_of(algorithm, family) | {"label": title(runs[0].settings)}
                for axes, draw_cell in zip(column, rows, strict=True):
                    draw_cell(axes, runs, **line)
        column[0].set_title(family if len(families) > 1 else "")
        column[0].legend(fontsize=7.5)
    every = [r for runs in cells.values() for r in runs]
    s = every[0].settings
    figure.suptitle(f"{model(s)}, N={s.workers}", x=0.01, ha="left", fontsize=10)
    look.note(figure, every)
    return figure, panels


def _line_of(algorithm: str, family: str) -> dict[str, object]:
    """How an algorithm is drawn in its family's panel."""
    return (look.LINES if algorithm in FAMILIES[family] else REFERENCE_LINES)[algorithm]


if __name__ == "__main__":
    alone.main("learning", draw)
