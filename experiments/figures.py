"""The report's plots: a function each, which returns a matplotlib figure; `svg` makes it text.

Colours are Okabe and Ito's; every series has a line style or a width of its own too, so that
neither colour-blindness nor grey print loses it. A plot has one clock only.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import matplotlib
import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from cbdybw import topology
from cbdybw.clusters.trace import Span, decode, load
from experiments.comparison import Cell, Run, setting

STYLE = {
    "svg.fonttype": "none",  # text stays text, set in the page's font
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.edgecolor": "#8a8a8a",
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
LINES = (
    {"color": "#D55E00", "linestyle": "-", "linewidth": 1.2},
    {"color": "#9A9A9A", "linestyle": "--", "linewidth": 1.5},
    {"color": "#0072B2", "linestyle": "-", "linewidth": 2.2},
)
"""Of the cells, in their order."""

COMPUTING, WAITING, AVERAGING = "#0072B2", "#DDDDDD", "#D55E00"
SHOWN = 10  # iterations in the picture of the ranks
SMOOTHED = 10  # iterations in a moving average


def svg(name: str, draw: Callable[..., Figure], *args: object) -> str:
    """What `draw(*args)` returns, as an <svg> element; `name` keeps its ids apart from others'."""
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": name}):
        text = io.StringIO()
        draw(*args).savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    element = text.getvalue()[text.getvalue().index("<svg") :]
    return re.sub(r' id="[a-z0-9.]+_\d+"', "", element)  # numbered afresh in each figure


def learning_by_iteration(cells: list[Cell]) -> Figure:
    """Training loss and test error against k, as measured."""
    return _learning(cells, "iteration", "iteration k", lambda cell: cell.measured)


def learning_by_wall_clock(cells: list[Cell]) -> Figure:
    """Training loss and test error against seconds on MPI."""
    return _learning(
        cells, "clock_seconds", "wall-clock seconds on MPI", lambda cell: cell.measured
    )


def learning_by_virtual_clock(cells: list[Cell]) -> Figure:
    """Training loss and test error against virtual seconds."""
    return _learning(cells, "clock_seconds", "virtual seconds", lambda cell: cell.predicted)


def _learning(cells: list[Cell], x: str, label: str, which: Callable[[Cell], Run]) -> Figure:
    figure = Figure(figsize=(4.6, 4.6))
    loss, error = figure.subplots(2, sharex=True)
    for cell, line in zip(cells, LINES, strict=True):
        rows = [row for row in which(cell).metrics if row["iteration"]]
        at = [row[x] for row in rows]
        loss.plot(at, [row["train_loss"] for row in rows], label=cell.title, **line)
        error.plot(at, [100 * row["test_error"] for row in rows], **line)
    target = cells[0].measured.settings.target_loss
    loss.axhline(target, color="#555555", linewidth=0.8, linestyle=":")
    loss.annotate(
        f"target {target:.2f}", (1, target), xycoords=("axes fraction", "data"),
        ha="right", va="bottom", color="#555555",
    )  # fmt: skip
    loss.set_title("Training loss")
    error.set_title("Test error, %")
    error.set_xlabel(label)
    loss.legend()
    for axes in (loss, error):
        _cut_off_the_start(axes)
    return figure


def _cut_off_the_start(axes: Axes) -> None:
    """The first evaluations are so high that the rest would be a flat line."""
    values = np.concatenate([line.get_ydata() for line in axes.lines if len(line.get_ydata()) > 2])
    low, high = values.min(), np.quantile(values, 0.97)
    if high > low:
        axes.set_ylim(low - 0.08 * (high - low), high)


def durations(cells: list[Cell]) -> Figure:
    """Share of iterations that last no longer than so many seconds, on MPI."""
    figure = Figure(figsize=(4.6, 2.9))
    axes = figure.subplots()
    for cell, line in zip(cells, LINES, strict=True):
        seconds = cell.measured.durations
        mean = cell.measured.result["mean_iteration_seconds"]
        axes.ecdf(seconds, label=f"{cell.title} (mean {mean:.3f} s)", **line)
    axes.set_title("Iterations that last at most …")
    axes.set_xlabel("wall-clock seconds on MPI")
    axes.set_ylabel("share of iterations")
    axes.set_xlim(left=0)
    axes.legend(loc="lower right")
    return figure


def backup_workers(cells: list[Cell]) -> Figure:
    """b(k) of cb-DyBW on MPI: each iteration, and a moving average."""
    figure = Figure(figsize=(4.6, 2.9))
    axes = figure.subplots()
    b = cells[-1].measured.backup_workers
    axes.plot(b, ".", color="#9BBFD6", markersize=4, label="an iteration")
    smooth = np.convolve(b, np.full(SMOOTHED, 1 / SMOOTHED), mode="valid")
    axes.plot(
        np.arange(len(smooth)) + SMOOTHED - 1, smooth, label=f"mean of {SMOOTHED}", **LINES[-1]
    )
    axes.set_title("Neighbours left out of an iteration")
    axes.set_xlabel("iteration k")
    axes.set_ylabel("b(k), mean over workers")
    axes.set_ylim(0, 2)
    axes.legend(loc="lower right", ncols=2)
    return figure


def network(cell: Cell) -> Figure:
    """The communication graph; along the connecting path, how often each edge was averaged."""
    run = cell.measured
    graph = topology.build(run.settings.graph, run.settings.workers, run.settings.seed)
    path = set(map(tuple, run.arrays["connecting"].tolist()))
    pairs, counts = np.unique(run.arrays["edges"][:, 1:], axis=0, return_counts=True)
    share = dict(zip(map(tuple, pairs.tolist()), counts / run.result["iterations"], strict=True))
    at = nx.circular_layout(graph)
    figure = Figure(figsize=(4.6, 3.4))
    axes = figure.subplots()
    for style, wanted in (("-", True), (":", False)):
        edges = [edge for edge in graph.edges if (edge in path) == wanted]
        nx.draw_networkx_edges(
            graph, at, edges, width=3 if wanted else 1.5, style=style, edge_color="#0072B2", ax=axes
        )
    nx.draw_networkx_nodes(graph, at, node_color="#FFFFFF", edgecolors="#333333", ax=axes)
    nx.draw_networkx_labels(graph, at, font_size=10, ax=axes)
    labels = {edge: f"{100 * share.get(edge, 0):.0f} %" for edge in graph.edges}
    nx.draw_networkx_edge_labels(graph, at, labels, font_size=8, rotate=False, ax=axes)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.margins(0.12)
    return figure


def ranks(full: Cell, dybw: Cell) -> Figure:
    """What the six ranks did in ten iterations of cb-Full, above, and of cb-DyBW, below."""
    figure = Figure(figsize=(9.2, 4.9))
    panels = figure.subplots(2, sharex=True)
    for axes, cell in zip(panels, (full, dybw), strict=True):
        _timeline(axes, cell)
    panels[1].set_xlabel(f"seconds on MPI ({setting(dybw.measured, short=True)})")
    panels[1].set_xlim(left=0)
    handles = [
        Patch(color=COMPUTING, label="computes a gradient"),
        Patch(color=WAITING, label="waits"),
        Line2D([], [], color=AVERAGING, marker="o", linewidth=2, label="averages with a neighbour"),
        Line2D([], [], color="#333333", linestyle=":", label="an iteration ends"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def typical_window(ends: np.ndarray, length: int) -> int:
    """The first of the `length` consecutive iterations that last most nearly as long as the mean.

    Iteration 0 is left out: it has no end before it.
    """
    spans = ends[length:] - ends[:-length]
    return int(np.argmin(np.abs(spans - length * ends[-1] / len(ends)))) + 1


def _timeline(axes: Axes, cell: Cell) -> None:
    run = cell.measured
    length = min(SHOWN, len(run.ends) - 1)
    first = typical_window(run.ends, length)
    begin, end = run.ends[first - 1], run.ends[first + length - 1]
    _draw_spans(axes, run, begin, end)
    for k in range(first, first + length):
        close = run.ends[k] - begin
        axes.axvline(close, color="#333333", linestyle=":", linewidth=0.8)
        for _, i, j in run.arrays["edges"][run.arrays["edges"][:, 0] == k].tolist():
            # The edge that closes the ring leaves the picture below and comes in again above.
            for ends in [(i, j)] if j - i == 1 else [(i, i - 0.5), (j, j + 0.5)]:
                axes.plot([close, close], ends, color=AVERAGING, linewidth=2)
            axes.plot([close, close], [i, j], "o", color=AVERAGING, markersize=3.5)
    axes.set_title(f"{cell.title}: {length} iterations in {end - begin:.2f} s")
    axes.set_yticks(range(run.settings.workers), [f"rank {r}" for r in range(run.settings.workers)])
    axes.set_ylim(run.settings.workers - 0.45, -0.55)
    axes.grid(False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _draw_spans(axes: Axes, run: Run, begin: float, end: float) -> None:
    """Computing and waiting between two times, clipped to them."""
    spans, _ = load(run.folder / "trace")
    rank, kind, _, _ = decode(spans["code"])
    start, stop = np.clip(spans["start"], begin, end), np.clip(spans["end"], begin, end)
    waiting = (kind == Span.WAIT) | (kind == Span.COLLECTIVE)
    # One wait is several spans, a message each; two computations are kept apart by a white edge.
    for mask, color, edge in (
        (waiting, WAITING, WAITING),
        (kind == Span.COMPUTE, COMPUTING, "white"),
    ):
        chosen = np.flatnonzero(mask & (stop > start))
        axes.barh(
            rank[chosen], stop[chosen] - start[chosen], 0.62, start[chosen] - begin,
            color=color, edgecolor=edge, linewidth=0.6,
        )  # fmt: skip
