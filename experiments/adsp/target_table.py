"""Times to the target as a table, a line a cell: `python -m experiments.adsp.target_table OUT`

prints those of all groups in OUT as Markdown. Means over seeds with 95 % intervals; seconds are
those of the virtual clock.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from cbdybw.clusters.guard import guard
from cbdybw.errors import BadInput
from experiments import drawing, rows, statistics
from experiments.adsp import targets
from experiments.adsp.split import steps_per_second
from experiments.reading import Result, by_cell, read, split, values
from experiments.rows import Row
from experiments.words import law, model, title

HEADS = [
    "method",
    "machines",
    "latency, s",
    "learnt",
    "η'",
    "target",
    "first look, virtual s",
    "tenth look, virtual s",
    "of that its search, s",
    "final held-out loss",
    "steps per virtual s",
    "not computing",
    "n",
]
WORDS = 4  # columns
SAME = ("workload", "dataset", "partition", "target_loss", "workers", "delay", "network")


def table(found: list[Row]) -> list[list[str]]:
    """A line for each cell with looks at the held-out loss, after the heads."""
    parts = split(targets.looked(read(found)), *SAME).values()
    return [HEADS, *(_line(runs) for part in parts for runs in by_cell(part).values())]


def _line(runs: list[Result]) -> list[str]:
    s = runs[0].settings

    def mean(number) -> statistics.Interval:
        return statistics.mean(values(runs, number))

    search = mean(targets.searched)
    return [
        title(s),
        law(s.delay),
        s.network.partition("latency=")[2].partition(",")[0] or "0",
        model(s),
        f"{s.eta0:g}",
        f"{s.target_loss:g}",
        *(targets.said(targets.arrivals(runs, nth)).removesuffix(" s") for nth in targets.LOOKS),
        f"{search.mean:.0f}" if search.mean else "–",
        mean(lambda r: r.value("held_out_loss")).plus_minus(".3f"),
        mean(steps_per_second).plus_minus(".2f"),
        mean(waiting).percent(),
        str(len(runs)),
    ]


def waiting(r: Result) -> float:
    """Share of the workers' time that is not computing, messages on their way included: as the
    authors draw it [code]."""
    return 1 - float(np.mean(r.computing) / np.mean(r.computing + r.waiting))


def main(argv: list[str]) -> None:
    """The binary."""
    with guard():
        if len(argv) != 2:
            raise BadInput(f"{len(argv) - 1} arguments: give the folder of a sweep's results")
        for group, found in rows.collected(Path(argv[1])).items():
            if len(lines := table(found)) > 1:
                print(f"{group}\n\n{drawing.markdown(lines)}")


if __name__ == "__main__":
    main(sys.argv)
