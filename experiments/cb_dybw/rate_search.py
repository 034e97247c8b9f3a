"""The search for learning rates: final training loss against η0, the chosen one marked (group 0).

No published number [choice]: every algorithm gets the same five values, the same budget and a seed
that no result is taken from, see `experiments.cb_dybw.rates`. Expect the minimum inside the grid.

    python -m experiments.reproduce --paper=cb_dybw --figures_only --out=RESULTS
    python -m experiments.cb_dybw.rate_search RESULTS
"""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.cb_dybw import alone, look
from experiments.cb_dybw.rates import SEED
from experiments.cb_dybw.reading import TITLES, Result, model, read, select, split, title
from experiments.figures import STYLE

TITLE = "Learning rates"
SAYS = (
    "Training loss at the end of the same budget, for every algorithm the same five values of η0. "
    "A ring marks the chosen one; a run that diverged has no point."
)
COLUMNS = 3


@matplotlib.rc_context(STYLE)
def draw(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """One figure with a panel for each workload."""
    workloads = split(
        [r for r in read(rows) if r.seed == SEED],
        "dataset", "workload", "batch_size", "partition", "workers",
    )  # fmt: skip
    if not workloads:
        return {}
    lines = -(-len(workloads) // COLUMNS)
    figure = Figure(figsize=(look.FULL, 0.9 + 2.5 * lines))
    panels = figure.subplots(lines, COLUMNS, squeeze=False).flat
    for axes, runs in zip(panels, workloads.values(), strict=False):
        _panel(axes, runs)
    for axes in list(panels)[len(workloads) :]:
        axes.set_axis_off()
    every = [r for runs in workloads.values() for r in runs]
    handles = {
        h.get_label(): h for axes in figure.axes for h in axes.lines if h.get_label()[0] != "_"
    }
    figure.legend(handles=list(handles.values()), loc="outside upper center", ncols=6, fontsize=8)
    look.note(figure, every)
    return {"rates": figure}


def _panel(axes: Axes, runs: list[Result]) -> None:
    for algorithm in TITLES:
        own = sorted(select(runs, algorithm=algorithm), key=lambda r: r.settings.eta0)
        if not own:
            continue
        eta0 = np.array([r.settings.eta0 for r in own])
        loss = np.array([r.value("train_loss") for r in own])
        line = look.LINES[algorithm]
        axes.plot(eta0, loss, marker=".", label=title(own[0].settings), **line)
        if np.isfinite(loss).any():
            best = np.nanargmin(loss)
            axes.plot(
                eta0[best], loss[best], "o", markersize=9, fillstyle="none", color=line["color"]
            )
    s = runs[0].settings
    look.logarithmic(axes, "x", subs=(1, 3))
    look.logarithmic(axes, "y")
    axes.set_title(f"{model(s)}, N={s.workers}, batch {s.batch_size}", fontsize=8)
    axes.set_xlabel("η0")


if __name__ == "__main__":
    alone.main("rates", draw)
