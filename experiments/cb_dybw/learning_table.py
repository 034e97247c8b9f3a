"""All algorithms beside each other, a line each: `python -m experiments.cb_dybw.learning_table OUT`

prints the table of every workload in OUT/learning.jsonl as Markdown. Means over seeds with 95 %
intervals; seconds are those of the virtual clock.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from cbdybw.clusters.guard import guard
from cbdybw.errors import BadInput
from experiments import drawing, rows, statistics
from experiments.cb_dybw.learning import workloads
from experiments.reading import Result, by_cell, values
from experiments.words import model, setting, title

HEADS = [
    "algorithm",
    "η0",
    "mean iteration, virtual s",
    "iterations to target",
    "to target, virtual s",
    "final training loss",
    "final test error",
    "gradients used / N",
    "not waited for",
]


def tables(found: list[dict[str, Any]]) -> dict[str, list[list[str]]]:
    """Workload and setting in words → its table as text; the first line holds the heads."""
    return {
        _caption(runs): [HEADS, *(_line(of_cell) for of_cell in by_cell(runs).values())]
        for runs in workloads(found).values()
    }


def _caption(runs: list[Result]) -> str:
    s = runs[0].settings
    return f"{model(s)}, N={s.workers}, target {s.target_loss:g} ({setting(runs)})"


def _line(runs: list[Result]) -> list[str]:
    target = runs[0].settings.target_loss

    def mean(name: str) -> statistics.Interval:
        return statistics.mean(values(runs, lambda r: r.value(name)))

    def to_target(axis: str) -> str:
        found = values(runs, lambda r: r.to_loss(target, axis))
        reached = [number for number in found.values() if not math.isnan(number)]
        if len(reached) < len(found):
            return f"reached by {len(reached)} of {len(found)}"
        return statistics.mean(found).plus_minus()

    used = statistics.mean(values(runs, lambda r: r.share_used))
    omitted = mean("mean_backup_workers")
    return [
        title(runs[0].settings),
        f"{runs[0].settings.eta0:g}",
        mean("mean_iteration_seconds").plus_minus(".4f"),
        to_target("iteration"),
        to_target("clock_seconds"),
        mean("train_loss").plus_minus(".4f"),
        mean("test_error").percent(),
        f"{used.mean:.2f}",
        "–" if omitted.mean != omitted.mean else f"{omitted.mean:.2f}",
    ]


def main(argv: list[str]) -> None:
    """The binary."""
    with guard():
        found = rows.collected(Path(argv[1])) if len(argv) == 2 else {}
        if "learning" not in found:
            raise BadInput(
                f"{' '.join(argv[1:]) or 'no folder'}: holds no learning.jsonl; "
                "name the folder of python -m experiments.reproduce"
            )
        for caption, table in tables(found["learning"]).items():
            print(f"{caption}\n\n{drawing.markdown(table)}")


if __name__ == "__main__":
    main(sys.argv)
