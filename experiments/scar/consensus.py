"""Workers on a graph are lost: from a checkpoint, from the neighbours, or without (`consensus`).

Each worker holds all of the model, so what a loss takes away is little: how far one estimate had
come, or one worker's gradients. Expect costs of an iteration or two, the one that is open when the
worker dies among them, and several only where everybody goes back to a full checkpoint.

    python -m experiments.reproduce --paper=scar --figures_only --out=RESULTS
    python -m experiments.scar.consensus RESULTS
"""

from __future__ import annotations

import math

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import alone, look, statistics
from experiments.figures import STYLE
from experiments.reading import Result, read, split
from experiments.rows import Row
from experiments.scar.failures import ITERATIONS, SECONDS, arrivals, costs, losses
from experiments.words import TITLES

TITLE = "Workers on a graph are lost"
SAYS = (
    "cb-Full and cb-DyBW lose one worker of six, or two of ten at once, in the same iteration of "
    "every run. The living repair graph and connecting path, and either go on without the lost, or "
    "a new worker is there at once and begins from the Metropolis average of its living "
    "neighbours, from the lost one's own running checkpoint (partial: r = 1/8, by priority), or "
    "all workers go back to their last full checkpoints. Cost: iterations, or virtual seconds, to "
    "a training loss of the mean model, beyond those of the failure-free run of the same seed, "
    "which has the same minibatches and delays. Going on without leaves out the lost worker's "
    "samples; to start a process takes no time here."
)

RECOVERIES = {
    "without": "going on without",
    "neighbour": "anew, from its neighbours",
    "partial": "anew, from its checkpoint",
    "full": "all, from full checkpoints",
}
"""--recovery → words."""
ALGORITHMS = ("cb_full", "cb_dybw")
UNITS = {ITERATIONS: "iterations", SECONDS: "virtual seconds"}

Runs = dict[str, dict[str, list[Result]]]


def sizes(rows: list[Row]) -> dict[int, Runs]:
    """Number of workers → algorithm → recovery → runs; "none" are those without failure."""
    found: dict[int, Runs] = {}
    for (workers, algorithm, recovery), runs in split(
        read(rows), "workers", "algorithm", "survives"
    ).items():
        found.setdefault(workers, {}).setdefault(algorithm, {})[recovery] = runs
    return found


def cost(runs: dict[str, list[Result]], recovery: str, what: str = ITERATIONS) -> statistics.Values:
    """Seed → cost of a recovery; of none where runs are missing."""
    return costs(runs.get(recovery, []), runs.get("none", []), what)


def lost(runs: Runs) -> int:
    """How many workers were lost in each run with a failure."""
    every = _all({0: runs})
    return max((len(loss["lost"]) for r in every for loss in losses(r)), default=0)


@matplotlib.rc_context(STYLE)
def draw(rows: list[Row]) -> dict[str, Figure]:
    """Costs in iterations and seconds; the loss around a failure."""
    found = sizes(rows)
    if not found:
        return {}
    figures = {"consensus-1-costs": _costs(found)}
    if any("none" in runs for by in found.values() for runs in by.values()):
        figures["consensus-2-loss"] = _losses(found)
    return figures


# Costs


def _costs(found: dict[int, Runs]) -> Figure:
    figure = Figure(figsize=(look.FULL, 1.0 + 2.4 * len(found)))
    grid = figure.subplots(len(found), len(UNITS), squeeze=False, sharey=True, sharex="col")
    for line, (workers, runs) in zip(grid, found.items(), strict=True):
        for axes, (what, unit) in zip(line, UNITS.items(), strict=True):
            _bars(axes, runs, what)
            axes.set_title(f"{lost(runs)} of {workers} workers lost: cost in {unit}")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=8)
    every = _all(found)
    look.note(figure, every, f"{failure(every)}. {reach(found)}")
    return figure


def _bars(axes: Axes, runs: Runs, what: str) -> None:
    for row, recovery in enumerate(RECOVERIES):
        for i, algorithm in enumerate(ALGORITHMS):
            y, found = row + 0.38 * i - 0.19, cost(runs.get(algorithm, {}), recovery, what)
            if not found:
                continue
            interval, color = statistics.mean(found), look.LINES[algorithm]["color"]
            if math.isnan(interval.mean):
                axes.annotate(
                    "not at the target in all seeds", (0, y), (4, 0), textcoords="offset points",
                    va="center", fontsize=7,
                )  # fmt: skip
                continue
            half = 0.0 if math.isnan(interval.low) else interval.half
            axes.barh(
                y, interval.mean, 0.34, color=color, alpha=0.85, xerr=half or None,
                error_kw={"elinewidth": 0.9, "capsize": 2},
            )  # fmt: skip
            axes.annotate(
                interval.plus_minus("z.1f"), (max(0.0, interval.mean + half), y), (5, 0),
                textcoords="offset points", va="center", fontsize=7,
            )  # fmt: skip
    for algorithm in ALGORITHMS:
        axes.barh(0, 0, color=look.LINES[algorithm]["color"], alpha=0.85, label=TITLES[algorithm])
    axes.axvline(0, color="#8a8a8a", linewidth=0.8)
    axes.set_yticks(range(len(RECOVERIES)), RECOVERIES.values())
    axes.set_ylim(len(RECOVERIES) - 0.5, -0.5)
    axes.set_axisbelow(True)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(labelbottom=True)
    axes.margins(x=0.28)


def failure(runs: list[Result]) -> str:
    """On which graphs workers are lost, when, and what is saved for it, in the setting's words."""
    at = sorted({loss["iteration"] for r in runs for loss in losses(r)})
    graphs = ", ".join(dict.fromkeys(f"{r.settings.workers} on {r.settings.graph}" for r in runs))
    periods = ", ".join(str(p) for p in sorted({r.settings.checkpoint_period for r in runs}))
    targets = ", ".join(f"{t:g}" for t in sorted({r.settings.target_loss for r in runs}))
    ends = f"{at[0]} to {at[-1]}" if len(at) > 1 else ", ".join(map(str, at))
    return f"{graphs}; C = {periods}; to a training loss of {targets}; repaired in iteration {ends}"


def reach(found: dict[int, Runs]) -> str:
    """Iterations that runs without failure take to the target."""
    parts = [
        f"{TITLES[algorithm]} of {workers}: "
        f"{statistics.mean(arrivals(runs['none'], ITERATIONS)).plus_minus('z.0f')}"
        for workers, by in found.items()
        for algorithm, runs in by.items()
        if "none" in runs
    ]
    return f"Iterations without failure: {', '.join(parts)}"


def _all(found: dict[int, Runs]) -> list[Result]:
    return [r for by in found.values() for of in by.values() for runs in of.values() for r in runs]


# The loss around the failure

STYLES = {
    "without": {"color": "#777777", "linestyle": ":", "linewidth": 1.8},
    "neighbour": {"color": "#009E73", "linestyle": "-", "linewidth": 2.0},
    "partial": {"color": "#0072B2", "linestyle": "--", "linewidth": 1.8},
    "full": {"color": "#D55E00", "linestyle": "-.", "linewidth": 1.6},
}
BEFORE, AFTER = 4, 40
"""Iterations around the failure that are shown."""


def _losses(found: dict[int, Runs]) -> Figure:
    """How far the loss is above that of the failure-free run, by iteration."""
    figure = Figure(figsize=(look.FULL, 0.9 + 2.3 * len(found)))
    grid = figure.subplots(len(found), len(ALGORITHMS), squeeze=False, sharex=True)
    for line, (workers, runs) in zip(grid, found.items(), strict=True):
        for axes, algorithm in zip(line, ALGORITHMS, strict=True):
            _excess(axes, runs.get(algorithm, {}))
            axes.set_title(f"{TITLES[algorithm]}, {lost(runs)} of {workers} lost")
        line[0].set_ylabel("loss above the\nfailure-free run's")
    for axes in grid[-1]:
        axes.set_xlabel("iterations since the repair")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=8)
    look.note(figure, _all(found), "Means over seeds, with 95 % intervals")
    return figure


def _excess(axes: Axes, runs: dict[str, list[Result]]) -> None:
    clean = {r.seed: r.curve for r in runs.get("none", [])}
    for recovery, style in STYLES.items():
        curves = [_beyond(r, clean[r.seed]) for r in runs.get(recovery, []) if r.seed in clean]
        if curves:
            look.draw_band(axes, statistics.band(curves), RECOVERIES[recovery], style)
    axes.axhline(0, color="#8a8a8a", linewidth=0.8)


def _beyond(r: Result, clean: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Iterations since the repair, and the loss above that of the failure-free run."""
    at = losses(r)[0]["iteration"]
    k = np.arange(-BEFORE, min(AFTER, r.settings.iterations - at) + 1)
    here, there = (
        np.interp(k + at, curve["iteration"], curve["train_loss"]) for curve in (r.curve, clean)
    )
    return k, here - there


if __name__ == "__main__":
    alone.main("consensus", draw)
