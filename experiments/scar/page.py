"""What is SCAR's own on the page of `experiments.page`: what to know before the verdicts.

`python -m experiments.scar.page OUT` writes the page.
"""

from __future__ import annotations

from pathlib import Path

from experiments.page import Page, group_figures, table
from experiments.rows import Row
from experiments.scar import cost_table, real

SAYS = (
    "Training is an iteration that contracts towards its end, so a failure is a perturbation and "
    "costs iterations rather than everything. SCAR restores only the parameters that were lost, "
    "and saves a fraction r of them in every rC iterations, those first that changed most, where "
    "the traditional scheme saves and restores all of them in every C.",
    "Marks: [paper] stated in arXiv 1810.07354; [recalled] from memory of it and not checked; "
    "[derived] follows from what is stated; [choice] ours. The paper's hyper-parameters are not "
    "reliably known: minibatches, learning rates, ranks, numbers of topics, targets and C are "
    "[choice], and so are the parts of the data that short runs take.",
    "A trial is one failure with a seed of its own: initial state, minibatches, which blocks are "
    "lost. Its failure-free run and the runs of all schemes share that seed. The failure comes "
    "after a geometrically distributed number of iterations, K0/2 on average, given that a period "
    "C has gone by and the failure-free run is not yet at its end [choice]. Iterations go on being "
    "numbered as they were, so full recovery of a deterministic problem costs exactly what it goes "
    "back by.",
)


def body(group: str, found: list[Row], folder: Path) -> str:
    """A group's figures, with a table of all schemes below the trials', of all runs below MPI's."""
    shown = group_figures(group, found, folder)
    if group == "recovery":
        return shown + table(cost_table.table(found), left=cost_table.WORDS)
    if group == "real":
        return shown + table(real.table(found), left=real.WORDS_IN_TABLE)
    return shown


PAGE = Page(
    "scar",
    "SCAR",
    example="recovery",
    body=body,
    says=SAYS,
    binary="scar.KIND",
    units="Seconds are the wall clock's where it does not say virtual. Intervals are 95 %: "
    "Student's t over trials or seeds; of reductions the percentile bootstrap's, of shares "
    "Wilson's, of medians by ranks",
)

if __name__ == "__main__":
    PAGE.main()
