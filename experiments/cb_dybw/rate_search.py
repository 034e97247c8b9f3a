"""The search for learning rates: final training loss against η0, the chosen one marked (group 0).

No published number [choice]: every algorithm gets the same five values, the same budget and the
same rule, see `experiments.cb_dybw.rates`. Expect the chosen one inside the grid of most.

    python -m experiments.reproduce --paper=cb_dybw --figures_only --out=RESULTS
    python -m experiments.cb_dybw.rate_search RESULTS
"""

from __future__ import annotations

import math
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import alone, look
from experiments.cb_dybw import rates
from experiments.figures import STYLE
from experiments.reading import read
from experiments.words import TITLES

TITLE = "Learning rates"
SAYS = (
    "Training loss at the end of the same budget, the higher one of two seeds, for every algorithm "
    "at the same five values of η0; one that diverged has no point. A ring marks the chosen one: "
    "the best of those whose next larger one still learns."
)
COLUMNS = 3

Chosen = dict[str, dict[str, dict[str, Any]]]
"""Workload → algorithm → its `eta0`, and quantities of all that were tried, by η0."""


def draw(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """One figure with a panel for each workload."""
    found = [row for row in rows if row["seed"] in rates.SEEDS]
    return figure(found, rates.choose(found), "train_loss") if found else {}


@matplotlib.rc_context(STYLE)
def figure(found: list[dict[str, Any]], chosen: Chosen, quantity: str) -> dict[str, Figure]:
    """A panel for each workload: a quantity of each algorithm's by η0, the chosen η0 marked."""
    lines = -(-len(chosen) // COLUMNS)
    drawn = Figure(figsize=(look.FULL, 0.9 + 2.5 * lines))
    panels = list(drawn.subplots(lines, COLUMNS, squeeze=False).flat)
    for axes, (workload, by_algorithm) in zip(panels, chosen.items(), strict=False):
        _panel(axes, by_algorithm, quantity)
        axes.set_title(workload, fontsize=8)
    for axes in panels[len(chosen) :]:
        axes.set_axis_off()
    handles = {
        h.get_label(): h for axes in drawn.axes for h in axes.lines if h.get_label()[0] != "_"
    }
    drawn.legend(handles=list(handles.values()), loc="outside upper center", ncols=6, fontsize=8)
    look.note(drawn, read(found), "b32: batch 32." if any("b32" in w for w in chosen) else "")
    return {"rates": drawn}


def table(chosen: Chosen) -> list[list[str]]:
    """The chosen η0 by workload and algorithm; the first line holds the heads."""
    names = [a for a in TITLES if any(a in by_algorithm for by_algorithm in chosen.values())]
    lines = [["η0", *(TITLES[a] for a in names)]]
    for workload, by_algorithm in chosen.items():
        eta0 = [f"{by_algorithm[a]['eta0']:g}" if a in by_algorithm else "–" for a in names]
        lines.append([workload, *eta0])
    return lines


def _panel(axes: Axes, by_algorithm: dict[str, dict[str, Any]], quantity: str) -> None:
    for algorithm in [name for name in TITLES if name in by_algorithm]:
        found, line = by_algorithm[algorithm], look.LINES[algorithm]
        loss = {eta0: x if x is not None else math.nan for eta0, x in found[quantity].items()}
        axes.plot(list(loss), list(loss.values()), marker=".", label=TITLES[algorithm], **line)
        axes.plot(
            found["eta0"], loss[found["eta0"]],
            "o", markersize=9, fillstyle="none", color=line["color"],
        )  # fmt: skip
    look.logarithmic(axes, "x", subs=(1, 3))
    look.logarithmic(axes, "y")
    axes.set_xlabel("η0")


if __name__ == "__main__":
    alone.main("rates", draw)
