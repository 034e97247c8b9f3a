"""When iterations are 65-70 % shorter: delay law × straggler policy × clock (group 2).

The paper reports 65-70 % shorter iterations than cb-Full's [paper], without the law of its delays
or what a straggler does. Expect, for N = 6 on a path: 62 % for Exp with carry, drop and on the
paper's clock and 31 % with late; 80, 67 and 0 % for a lone straggler at the path's end.

    python -m experiments.reproduce --paper=cb_dybw --figures_only --out=RESULTS
    python -m experiments.cb_dybw.laws RESULTS

Cells within the published band have a frame; exact theory stands below where it exists. The second
table asks for what matters in the end, the time to a loss, the third tells why the two differ.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from experiments import alone, look
from experiments.cb_dybw.law_table import COLUMNS, FULL, Entry, entries
from experiments.figures import STYLE

TITLE = "Delay laws, policies and clocks"
SAYS = (
    "By how much an iteration is shorter than that of cb-Full with its global barrier belongs to "
    "the delay law and to what a straggler does. How much sooner a loss is reached is another "
    "number, for an iteration that leaves gradients out brings less. Exact numbers of stragglers "
    "are those without jitter."
)

PUBLISHED = (0.65, 0.70)
"""By how much iterations are shorter [paper]."""


@matplotlib.rc_context(STYLE)
def draw(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """For each N a table of iteration times, of times to the target loss, and of gradients."""
    drawn = {}
    found = entries(rows)
    for n in sorted({e.workers for e in found}):
        of_n = [e for e in found if e.workers == n]
        drawn[f"laws-n{n}-1-iteration"] = _table(
            of_n, f"An iteration is shorter than cb-Full's, N={n}", _shorter
        )
        if any(e.way != FULL and e.sooner.n for e in of_n):
            drawn[f"laws-n{n}-2-to-target"] = _table(
                of_n, f"The target loss is reached sooner than by cb-Full, N={n}", _sooner
            )
        drawn[f"laws-n{n}-3-gradients"] = _table(
            of_n, f"Gradients used in an iteration, of N={n}", _used
        )
    return drawn


def _shorter(e: Entry) -> tuple[float, str]:
    exact = "" if e.exact_shorter is None else f"\nexact {100 * e.exact_shorter:.1f} %"
    return e.shorter.mean, f"{e.shorter.percent()}{exact}"


def _sooner(e: Entry) -> tuple[float, str]:
    return e.sooner.mean, e.sooner.percent().replace(" ± ", "\n± ")


def _used(e: Entry) -> tuple[float, str]:
    return e.used, f"{100 * e.used:.0f} %"


def _table(found: list[Entry], name: str, cell: Callable[[Entry], tuple[float, str]]) -> Figure:
    """Laws down, ways to wait across; `cell` gives the number that colours a cell and its text."""
    laws = list(dict.fromkeys(e.law for e in found))
    ways = [way for way in COLUMNS[1:] if any(e.way == way for e in found)]
    figure = Figure(figsize=(look.FULL, 1.5 + 0.52 * len(laws)))
    axes = figure.subplots()
    colours = np.full((len(laws), len(ways)), np.nan)
    for e in found:
        if e.way == FULL:
            continue
        row, column = laws.index(e.law), ways.index(e.way)
        number, text = cell(e)
        colours[row, column] = number
        dark = number > 0.55
        axes.text(
            column, row, text, ha="center", va="center", fontsize=8, linespacing=1.3,
            color="white" if dark else "black",
        )  # fmt: skip
        if PUBLISHED[0] <= number <= PUBLISHED[1] and cell is not _used:
            axes.add_patch(
                Rectangle(
                    (column - 0.47, row - 0.45), 0.94, 0.9,
                    fill=False, edgecolor="#D55E00", linewidth=2.5,
                )
            )  # fmt: skip
    axes.imshow(colours, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_yticks(range(len(laws)), [textwrap.fill(law, 26) for law in laws])
    axes.set_xticks(range(len(ways)), [_head(way) for way in ways])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_title(name, pad=10)
    if cell is not _used:
        low, high = PUBLISHED
        frame = Patch(
            fill=False,
            edgecolor="#D55E00",
            linewidth=2,
            label=f"published: {low:.0%} to {high:.0%}",
        )
        figure.legend(handles=[frame], loc="outside upper right", fontsize=8)
    look.note(figure, [r for e in found for r in e.runs])
    return figure


def _head(way: str) -> str:
    return f"{way} clock" if way.endswith("paper") else way if " " in way else f"{way} carry"


if __name__ == "__main__":
    alone.main("laws", draw)
