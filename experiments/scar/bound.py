"""Perturbations: what they cost, against the bound on it (group `bound`).

Theorem 3.2 bounds the difference of worst cases. Expect most costs below it, adversarial ones
nearest, and some above where a clean run came nearer to x* than its worst case would.

    python -m experiments.reproduce --paper=scar --figures_only --out=RESULTS
    python -m experiments.scar.bound RESULTS
"""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import alone, look, statistics
from experiments.figures import STYLE
from experiments.scar import reading
from experiments.scar.reading import Points
from experiments.statistics import Interval

TITLE = "Perturbations and the bound on their cost"
SAYS = (
    "A point is a perturbation of one run. Its bound stands on when it came, on its norm, on "
    "‖x(0) - x*‖ and on c, from a line through the logarithms of the distances from x* [choice]; "
    "the quadratic program's is exact. A cost up to the bound, or less than one whole iteration "
    "more, keeps it; the others are ringed and counted. The cautious bound has the largest ratio "
    "of consecutive distances as c, or the upper end of c's interval where noise makes that 1, and "
    "‖x(0) - x*‖ as the line has it."
)
MARKS = {
    "random": {"color": "#0072B2", "marker": "o"},
    "adversarial": {"color": "#D55E00", "marker": "^"},
    "reset": {"color": "#009E73", "marker": "s"},
}


def broken(cell: Points, bound: str = "bound") -> np.ndarray:
    """Which points cost more than the bound allows, in whole iterations."""
    return cell.columns["cost"] >= cell.columns[bound] + 1


def share_broken(cell: Points, kind: str, bound: str = "bound") -> Interval:
    """Of a kind of perturbation."""
    of_kind = cell.columns["kind"] == kind
    return statistics.share(int(broken(cell, bound)[of_kind].sum()), int(of_kind.sum()))


@matplotlib.rc_context(STYLE)
def draw(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """Costs against bounds, and the cases in which the bound is tight."""
    cells: list[Points] = reading.cells(rows, "perturbed")
    tight = [cell for cell in cells if cell.settings.tight]
    loose = [cell for cell in cells if not cell.settings.tight]
    figures = {}
    if loose:
        figures["bound-1-costs"] = _scatter(loose)
    if tight:
        figures["bound-2-tight"] = _tight(tight[0])
    return figures


def _scatter(cells: list[Points]) -> Figure:
    across = min(3, len(cells))
    lines = -(-len(cells) // across)
    figure = Figure(figsize=(look.FULL, 0.9 + 3.0 * lines))
    panels = list(figure.subplots(lines, across, squeeze=False).flat)
    for axes in panels[len(cells) :]:
        axes.set_axis_off()
    for axes, cell in zip(panels, cells, strict=False):
        _panel(axes, cell)
    for axes in panels[: len(cells) : across]:
        axes.set_ylabel("iteration cost")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, fontsize=8)
    look.note(figure, reading.setting(cells), "Perturbed runs that were given up are hollow")
    return figure


def _panel(axes: Axes, cell: Points) -> None:
    columns = cell.columns
    most = float(max(columns["bound"].max(), 5)) * 1.04
    axes.plot([0, most], [0, most], label="the bound", **look.IDEAL)
    reached = columns["reached"].astype(bool)
    for kind in cell.kinds:
        mine = columns["kind"] == kind
        for there, face in ((True, MARKS[kind]["color"]), (False, "none")):
            some = mine & (reached == there)
            axes.scatter(
                columns["bound"][some], columns["cost"][some], 15, facecolors=face, alpha=0.75,
                edgecolors=MARKS[kind]["color"], linewidths=0.6, marker=MARKS[kind]["marker"],
                label=kind if there else None,
            )  # fmt: skip
    above = broken(cell)
    axes.scatter(
        columns["bound"][above], columns["cost"][above], 55, facecolors="none", edgecolors="black",
        linewidths=0.9, label="above the bound",
    )  # fmt: skip
    axes.set_xlabel("bound, iterations")
    axes.set_title(f"{cell.name}: {int(above.sum())} of {len(above)} above")


def _tight(cell: Points) -> Figure:
    """Cost over where in an iteration's fall the target lies, beside the bound."""
    figure = Figure(figsize=(look.FULL, 2.8))
    axes = figure.subplots()
    columns = cell.columns
    cases = sorted(set(zip(columns["at"].tolist(), columns["norm"].tolist(), strict=True)))
    for (at, norm), color in zip(cases, ("#0072B2", "#D55E00"), strict=False):
        mine = (columns["at"] == at) & (columns["norm"] == norm)
        cost, bound = columns["cost"][mine], float(columns["bound"][mine][0])
        axes.plot(np.linspace(0, 1, len(cost), endpoint=False), cost, ".", color=color, ms=3,
                  label=f"T = {at}, ‖δ‖ = {norm:g}: mean {cost.mean():.3f}")  # fmt: skip
        axes.axhline(bound, color=color, linestyle=(0, (4, 3)), linewidth=1)
        axes.annotate(f"bound {bound:.3f}", (1.005, bound), xycoords=("axes fraction", "data"),
                      va="center", fontsize=8, color=color, annotation_clip=False)  # fmt: skip
    axes.set_ylim(0, columns["cost"].max() + 4)
    axes.set(xlabel="where the target lies in the fall of an iteration", ylabel="iteration cost")
    axes.legend(fontsize=8, loc="upper left", ncols=2)
    return figure


if __name__ == "__main__":
    alone.main("bound", draw)
