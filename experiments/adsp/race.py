"""Eighteen workers, all methods: loss against time and steps, time to the target (group `race`).

ADSP converges first [paper]. Expect ADSP and ASP, which never wait either, far ahead of the others
against seconds; against steps all should be closer, for who waits takes fewer steps in a second.

    python -m experiments.reproduce --paper=adsp --figures_only --out=RESULTS
    python -m experiments.adsp.race RESULTS

The last figure is ADSP's search in one run, and how far its workers' commit counts are apart.
"""

from __future__ import annotations

from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import alone, look
from experiments.adsp import search_figure, targets
from experiments.adsp.targets import Cells
from experiments.figures import STYLE
from experiments.reading import WORKLOAD, Result, by_cell, read, select, split
from experiments.words import model

TITLE = "Eighteen workers: which method is first"
SAYS = (
    "Loss is that of the server's model, or of the mean of the workers', on samples that nobody "
    "trains on; steps are the minibatches of all workers that went into it. Bars end at the first "
    "and, paler, at the tenth look at the target; a search before training is hatched, and its "
    "probes are part of the curves. Each method has the learning rate that was best for it in the "
    "same search, but for panels that name one η' of all. Lines are means, shades and whiskers "
    "95 % intervals over seeds."
)
ACROSS = 2  # panels abreast


@matplotlib.rc_context(STYLE)
def draw(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """Loss by seconds and by steps, times to the target, and ADSP's search."""
    found = workloads(rows)
    if not found:
        return {}
    figures = {
        "race-1-seconds": _curves(found, "seconds", "virtual seconds"),
        "race-2-steps": _curves(found, "steps", "steps of all workers, in the model"),
        "race-3-target": _bars(found),
    }
    for name, cells in found.items():
        adsp = select((r for runs in cells.values() for r in runs), algorithm="adsp")
        if any(r.probes for r in adsp):
            figures[f"race-4-search-{len(figures) - 2}"] = search_figure.figure(adsp, name)
    return figures


def workloads(rows: list[dict[str, Any]]) -> dict[str, Cells]:
    """What is learnt, to which loss, in words → cells with looks at the held-out loss."""
    found = split(targets.looked(read(rows)), *WORKLOAD, "target_loss")
    return {_name(runs): by_cell(runs) for runs in found.values()}


def _name(runs: list[Result]) -> str:
    rates = {r.settings.eta0 for r in runs}
    same = f", η' = {rates.pop():g}" if len(rates) == 1 else ""
    return f"{model(runs[0].settings)}{same}, to {runs[0].settings.target_loss:g}"


def _panels(found: dict[str, Cells], heights: list[float]) -> tuple[Figure, list[Axes]]:
    """A panel for each workload; `heights` are those of its lines."""
    columns = min(ACROSS, len(found))
    figure = Figure(figsize=(look.FULL, 0.9 + sum(heights)))
    grid = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    panels = list(grid.flat)
    for axes in panels[len(found) :]:
        axes.set_axis_off()
    for axes, name in zip(panels, found, strict=False):
        axes.set_title(name)
    return figure, panels[: len(found)]


def _curves(found: dict[str, Cells], column: str, label: str) -> Figure:
    figure, panels = _panels(found, [2.7] * -(-len(found) // ACROSS))
    for axes, cells in zip(panels, found.values(), strict=True):
        targets.curves(axes, cells, column)
        axes.set_xlabel(label)
        axes.set_ylabel("held-out loss")
    targets.legend(figure)
    look.note(figure, _all(found))
    return figure


def _bars(found: dict[str, Cells]) -> Figure:
    numbers = [len(cells) for cells in found.values()]
    lines = [max(numbers[i : i + ACROSS]) for i in range(0, len(numbers), ACROSS)]
    figure, panels = _panels(found, [0.7 + 0.42 * rows for rows in lines])
    for axes, cells in zip(panels, found.values(), strict=True):
        targets.bars(axes, cells)
    look.note(figure, _all(found), targets.PALER)
    return figure


def _all(found: dict[str, Cells]) -> list[Result]:
    return [r for cells in found.values() for runs in cells.values() for r in runs]


if __name__ == "__main__":
    alone.main("race", draw)
