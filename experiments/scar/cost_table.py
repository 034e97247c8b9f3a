"""Every scheme's cost as a table: `python -m experiments.scar.cost_table OUT`

prints that of the rows in OUT as Markdown, a line for each cell and scheme.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from cbdybw.clusters.guard import guard
from cbdybw.errors import BadInput
from experiments import drawing, rows, statistics
from experiments.rows import Row
from experiments.scar import reading, staleness
from experiments.scar.reading import Trials
from experiments.scar.trial import TRADITIONAL, Mode

HEADS = [
    "learnt",
    "restored",
    "saved by",
    "r",
    "lost",
    "iteration cost",
    "saved",
    "age of copies",
    "… expected",
    "values in C",
    "given up",
    "n",
]
WORDS = 3  # columns


def table(found: list[Row]) -> list[list[str]]:
    """A line for each scheme, after the heads. Ages are iterations, values are multiples of all."""
    cells: list[Trials] = reading.cells(found, "trials")
    return [HEADS, *(_line(cell, mode) for cell in cells for mode in cell.modes)]


def _line(cell: Trials, mode: Mode) -> list[str]:
    columns = cell.modes[mode]
    full = mode.recovery == "full"
    return [
        cell.name,
        "everything" if full else "the lost",
        mode.policy,
        f"{mode.fraction:g}",
        "any" if full else f"{cell.share_lost(mode):.3g}",
        cell.cost(mode).plus_minus("z.2f"),
        "–" if mode == TRADITIONAL else reading.percent(cell.reduction(mode)),
        statistics.mean(columns["age"]).plus_minus("z.2f"),
        _number(staleness.expected(cell, mode)),
        f"{np.mean(columns['values']):.3g}",
        str(cell.given_up(mode)),
        str(cell.n),
    ]


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}"


def main(argv: list[str]) -> None:
    """The binary."""
    with guard():
        if len(argv) != 2:
            raise BadInput(f"{len(argv) - 1} arguments: give the folder of a sweep's results")
        print(drawing.markdown(table(rows.collected(Path(argv[1])).get("recovery", []))), end="")


if __name__ == "__main__":
    main(sys.argv)
