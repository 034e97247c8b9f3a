"""The time model of the 18 workers: seconds of a step of each, for every H of the paper.

    python -m experiments.adsp.machines FILE.svg

draws it from `machines/eighteen.toml`, where its numbers are explained.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from cbdybw.clusters.guard import guard
from cbdybw.clusters.machines import load
from cbdybw.commit_theory import heterogeneity
from cbdybw.errors import BadInput
from experiments.adsp.published import HETEROGENEITIES
from experiments.figures import STYLE

EIGHTEEN = Path(__file__).parent / "machines" / "eighteen.toml"
COLOURS = ("#9A9A9A", "#56B4E9", "#0072B2", "#009E73", "#D55E00")
MARKERS = "osD^v"


@matplotlib.rc_context(STYLE)
def draw() -> Figure:
    """Seconds of a minibatch by worker: as the file says, and slowed to each H."""
    eighteen = load(EIGHTEEN)
    ranks = np.arange(len(eighteen.names))
    figure = Figure(figsize=(9.2, 3.2))
    axes = figure.subplots()
    for wanted, colour, marker in zip((0, *HETEROGENEITIES), COLOURS, MARKERS, strict=True):
        steps = eighteen.step_seconds(wanted)
        h, slower = heterogeneity(1 / steps), eighteen.slowdown(wanted)
        label = f"H = {h:.2f}" + (f", slowed {slower:.2f} times" if wanted else ", as they are")
        axes.plot(ranks, steps, marker, color=colour, markersize=5, label=label)
    axes.set_title("Seconds of one minibatch on each of 18 workers, the last seven slowed [choice]")
    axes.set_ylabel("virtual seconds")
    axes.set_ylim(bottom=0)
    axes.set_xticks(ranks, [f"{name}  {rank}" for rank, name in enumerate(eighteen.names)])
    axes.tick_params(axis="x", rotation=90, labelsize=8)
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper left")
    return figure


if __name__ == "__main__":
    with guard():
        if len(sys.argv) != 2:
            raise BadInput(f"{len(sys.argv) - 1} arguments: give the file to draw into")
        draw().savefig(sys.argv[1])
