"""What checkpoints cost while nothing fails: how much longer an iteration is (group `overhead`).

About 13 s in 4 iterations of LDA on ClueWeb12 [paper], some 2.7 % of them [derived].

    python -m experiments.reproduce --paper=scar --figures_only --out=RESULTS
    python -m experiments.scar.timing RESULTS
"""

from __future__ import annotations

import math
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments import alone, look
from experiments.figures import STYLE
from experiments.scar import reading
from experiments.scar.published import OVERHEAD
from experiments.scar.reading import Timed

TITLE = "Overhead of checkpoints"
SAYS = (
    "Wall seconds of iterations, one process with nothing beside it: medians over blocks of "
    "iterations, with the interval that ranks give. All ways save as many values in C iterations, "
    "and end each block of iterations with all of them on disk. What a share is depends on how "
    "long an iteration takes for each value that it changes, on this machine and disk."
)
VARIANTS = {
    "running": ("running checkpoint, r = 1/8", "#0072B2"),
    "tensorflow": ("tf.train.Checkpoint", "#E69F00"),
    "numpy": ("np.save", "#9A9A9A"),
}


@matplotlib.rc_context(STYLE)
def draw(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """By how much each way of saving makes an iteration longer."""
    cells: list[Timed] = reading.cells(rows, "overhead")
    if not cells:
        return {}
    figure = Figure(figsize=(look.FULL, 1.4 + 0.95 * len(cells)))
    axes = figure.subplots()
    height = 0.8 / len(VARIANTS)
    for row, cell in enumerate(cells):
        for i, (variant, (name, color)) in enumerate(VARIANTS.items()):
            share = cell.share(variant).map(lambda s: 100 * s)
            y = row + (i - 1) * height
            axes.barh(y, share.mean, 0.9 * height, color=color, label="" if row else name)
            if not math.isnan(share.low):
                ends = [[share.mean - share.low], [share.high - share.mean]]
                axes.errorbar(share.mean, y, xerr=ends, color="black", linewidth=0.9, capsize=2)
            axes.annotate(
                f"{share.mean:+.{share.mean < 10:d}f} %",
                (np.nanmax([share.mean, share.high, 0]), y), (5, 0),
                textcoords="offset points", va="center", fontsize=8,
            )  # fmt: skip
    axes.axvline(100 * OVERHEAD, **look.IDEAL, label=f"the paper's {OVERHEAD:.1%} [derived]")
    axes.axvline(0, color="#8a8a8a", linewidth=0.8)
    axes.set_yticks(range(len(cells)), [_label(cell) for cell in cells])
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.12)
    axes.set_xlabel("longer than without checkpoints, % of an iteration")
    figure.legend(loc="outside upper center", ncols=4, fontsize=8)
    look.note(figure, reading.setting(cells), machine(cells))
    return {"overhead": figure}


def _label(cell: Timed) -> str:
    return f"{cell.name}\n{1000 * float(np.median(cell.seconds['none'])):.3g} ms an iteration"


def machine(cells: list[Timed]) -> str:
    """Where it was measured."""
    found = (cell.result["machine"] for cell in cells)
    return "; ".join(dict.fromkeys(f"{m['cores']} cores of {m['processor']}" for m in found))


if __name__ == "__main__":
    alone.main("overhead", draw)
