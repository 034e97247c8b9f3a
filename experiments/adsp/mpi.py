"""Predicted against measured: a server and three workers on MPI ranks, and on the virtual cluster
(groups `mpi` and, where `experiments.adsp.namespaces` was at work, `links`).

The machines of `split`, many times as fast, by the wall clock. Expect the points close to the
identity: steps and commits a little fewer on ranks, for what a rank needs beside its delay is
measured and not predicted.

    python -m experiments.reproduce --paper=adsp --figures_only --out=RESULTS
    python -m experiments.adsp.mpi RESULTS
"""

from __future__ import annotations

from typing import Any

import matplotlib
from matplotlib.figure import Figure

from experiments import alone, look, prediction
from experiments.adsp.split import commits_per_second, steps_per_second
from experiments.figures import STYLE
from experiments.reading import Result

TITLE = "Predicted and measured"
SAYS = (
    "The virtual cluster predicts runs on MPI ranks that really sleep the same delays. Beside each "
    "point: by how much the prediction is off, in per cent of what was measured. An iteration is "
    "as many commits as there are workers. Where a network is named, ranks are in network "
    "namespaces behind links of that file's rates."
)


def iteration(r: Result) -> float:
    """Mean seconds between two."""
    return r.value("mean_iteration_seconds")


PANELS = {
    "Steps of all workers": (steps_per_second, "in a {} second"),
    "Commits of a worker": (commits_per_second, "in a {} second"),
    "An iteration": (iteration, "{} seconds"),
}


@matplotlib.rc_context(STYLE)
def draw(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """One figure, named after the group, a panel for each number."""
    found = {name: prediction.points(rows, number) for name, (number, _) in PANELS.items()}
    runs = [r for p in found["An iteration"] for r in p.runs]
    if not runs:
        return {}
    figure = Figure(figsize=(look.FULL, 3.4))
    for axes, (name, points) in zip(figure.subplots(1, 3), found.items(), strict=True):
        unit = PANELS[name][1]
        prediction.panel(axes, points, logarithmic=True)
        axes.set_title(name)
        axes.set_xlabel(f"predicted, {unit.format('virtual')}")
        axes.set_ylabel(f"measured, {unit.format('wall')}")
        axes.tick_params(labelsize=7)
    look.note(figure, runs)
    return {runs[0].cell.partition("/")[0]: figure}


if __name__ == "__main__":
    alone.main("mpi", draw)
