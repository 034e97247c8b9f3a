"""Predicted against measured: virtual seconds on one axis, MPI ranks' wall seconds on the other.

The virtual cluster draws the same delays as the ranks sleep (group 5). Expect the points a little
below the identity: what a rank needs beside its delay is measured and not predicted.

    python -m experiments.reproduce --paper=cb_dybw --figures_only --out=RESULTS
    python -m experiments.cb_dybw.prediction RESULTS
"""

from __future__ import annotations

from typing import Any

import matplotlib
from matplotlib.figure import Figure

from experiments import alone, look, prediction
from experiments.figures import STYLE
from experiments.prediction import Point

TITLE = "Predicted and measured"
SAYS = (
    "The virtual cluster predicts how long an iteration takes, with the delays that the MPI ranks "
    "really sleep. Beside each point: by how much the prediction is off, in per cent of what was "
    "measured."
)


def points(rows: list[dict[str, Any]]) -> list[Point]:
    """Mean iteration time of each algorithm on both clusters."""
    return prediction.points(rows, lambda r: r.value("mean_iteration_seconds"))


@matplotlib.rc_context(STYLE)
def draw(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """One figure."""
    found = points(rows)
    if not found:
        return {}
    figure = Figure(figsize=(6.0, 4.8))
    axes = figure.subplots()
    prediction.panel(axes, found)
    axes.set_xlabel("predicted mean iteration, virtual seconds")
    axes.set_ylabel("measured mean iteration, wall seconds on MPI")
    look.note(figure, [r for p in found for r in p.runs])
    return {"prediction": figure}


if __name__ == "__main__":
    alone.main("mpi", draw)
