"""What is cb-DyBW's own on the page of `experiments.page`: workloads folded, the table of laws, the
chosen learning rates. `python -m experiments.cb_dybw.page OUT` writes the page.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from experiments.cb_dybw import law_table, learning_table, rate_search, rates
from experiments.cb_dybw.learning import workloads
from experiments.page import Page, figures, group_figures, table
from experiments.rows import Row
from experiments.words import model


def body(group: str, found: list[Row], folder: Path) -> str:
    """A group's figures, with its tables."""
    if group == "learning":
        return _learning(found, folder)
    if group == "mpi":
        return figures(folder.glob("prediction*.svg"))
    shown = group_figures(group, found, folder)
    if group == "rates":
        return shown + table(rate_search.table(rates.choose(found)), left=1)
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


PAGE = Page("cb_dybw", "cb-DyBW", example="laws", body=body)

if __name__ == "__main__":
    PAGE.main()
