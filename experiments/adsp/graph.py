"""ADSP's commit rate on a graph, beside cb-DyBW, cb-Full and ADSP on the same machines (`graph`).

No published number [choice]: cb-ADSP's workers take local steps between exchanges with their
neighbours, equally many exchanges each. Expect it to be close to ADSP, which has a server that
everybody reaches, and ahead of cb-Full, which waits for the slowest.

    python -m experiments.reproduce --paper=adsp --figures_only --out=RESULTS
    python -m experiments.adsp.graph RESULTS
"""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure

from experiments import alone, look
from experiments.adsp import targets
from experiments.adsp.targets import Cells
from experiments.figures import STYLE
from experiments.reading import Result, by_cell, read
from experiments.rows import Row

TITLE = "On a graph"
SAYS = (
    "Loss of the mean of the workers' models, or of the server's, on samples that nobody trains "
    "on. ADSP, in grey, has a server, the others have neighbours on a ring only."
)

LINES = look.LINES | {"adsp": {"color": "#777777", "linestyle": ":", "linewidth": 2.0}}
"""ADSP is there for comparison only; elsewhere it has the line that is cb-DyBW's here."""


@matplotlib.rc_context(STYLE)
def draw(rows: list[Row]) -> dict[str, Figure]:
    """Loss against seconds and steps, and times to the target."""
    found = targets.looked(read(rows))
    if not found:
        return {}
    cells = by_cell(found)
    return {"graph-1-loss": _loss(cells, found), "graph-2-target": targets.bar_figure(cells)}


def _loss(cells: Cells, found: list[Result]) -> Figure:
    figure = Figure(figsize=(look.FULL, 3.6))
    labels = {"seconds": "virtual seconds", "steps": "steps of all workers, in the model"}
    for axes, (column, label) in zip(figure.subplots(1, 2), labels.items(), strict=True):
        targets.curves(axes, cells, column, LINES)
        axes.set_xlabel(label)
    figure.axes[0].set_ylabel("held-out loss")
    targets.legend(figure)
    look.note(figure, found)
    return figure


if __name__ == "__main__":
    alone.main("graph", draw)
