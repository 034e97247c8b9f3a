"""What is cb-DyBW's own on the page of `experiments.page`: workloads folded, the table of laws, the
chosen learning rates. `python -m experiments.cb_dybw.page OUT` writes the page.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from experiments.cb_dybw import law_table, learning_table, rates
from experiments.cb_dybw.learning import workloads
from experiments.page import Page, figures, group_figures, table
from experiments.rows import Row
from experiments.words import TITLES, model


def body(group: str, found: list[Row], folder: Path) -> str:
    """A group's figures, with its tables."""
    if group == "learning":
        return _learning(found, folder)
    if group == "mpi":
        return figures(folder.glob("prediction*.svg"))
    shown = group_figures(group, found, folder)
    if group == "rates":
        return shown + _chosen(found)
    return shown + (table(law_table.table(found), left=3) if group == "laws" else "")


def _learning(found: list[Row], folder: Path) -> str:
    """A workload at a time, all but the one with the most runs folded."""
    parts, all_runs = [], workloads(found)
    most = max(all_runs, key=lambda name: len(all_runs[name]))
    tables = learning_table.tables(found).values()
    for (name, runs), lines in zip(all_runs.items(), tables, strict=True):
        s = runs[0].settings
        opened = " open" if name == most else ""
        body = table(lines, left=1) + figures(folder.glob(f"{name}-*.svg"))
        label = escape(f"{model(s)}, N={s.workers}, target {s.target_loss:g}")
        parts.append(f"<details{opened}><summary>{label}</summary>{body}</details>")
    return "".join(parts)


def _chosen(found: list[Row]) -> str:
    """η0 by workload and algorithm."""
    chosen = rates.choose(found)
    names = [a for a in TITLES if any(a in by_algorithm for by_algorithm in chosen.values())]
    lines = [["η0", *(TITLES[a] for a in names)]]
    for workload, by_algorithm in chosen.items():
        eta0 = [f"{by_algorithm[a]['eta0']:g}" if a in by_algorithm else "–" for a in names]
        lines.append([workload, *eta0])
    return table(lines, left=1)


PAGE = Page("cb_dybw", "cb-DyBW", example="laws", body=body)

if __name__ == "__main__":
    PAGE.main()
