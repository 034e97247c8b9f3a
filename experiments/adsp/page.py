"""What is ADSP's own on the page of `experiments.page`: what to know before the verdicts.

`python -m experiments.adsp.page OUT` writes the page.
"""

from __future__ import annotations

from pathlib import Path

from experiments.adsp import rates, target_table
from experiments.cb_dybw import rate_search
from experiments.page import Page, group_figures, table
from experiments.rows import Row

SAYS = (
    "Workers of unequal speed learn one model at a parameter server, and none of them ever waits "
    "for another. Each takes steps on its own copy and commits what they came to, all equally "
    "often: a scheduler sets how many commits a check period Γ has, ΔC, by an online search for "
    "the rate at which the loss falls soonest.",
    "Marks: [paper] stated in arXiv 1911.06949; [code] read from the authors' published code, a "
    "later state than the paper's; [derived] follows from either; [choice] ours. The instance "
    "types, the levels of heterogeneity H, τ = 40, s = 40, batch 128 and the CNN are [code]. The "
    "speeds of the machines, 2NN on MNIST in place of larger models, learning rates but the CNN's, "
    "targets and lengths of runs are [choice].",
    "In each comparison all methods have one loss target, on held-out samples that nobody trains "
    "on; the scripts behind the authors' bars have targets that differ from method to method "
    "[code]. Times are taken to the first look at the loss that is at the target and to the tenth, "
    "as the authors count [code]. A method that never gets there is shown as such.",
)

TIMED = ("race", "heterogeneity", "scale", "delay", "variants", "graph")
"""Groups that are about the time to the target."""


def body(group: str, found: list[Row], folder: Path) -> str:
    """A group's figures, with the table of its times, or of the learning rates that it chose."""
    shown = group_figures(group, found, folder)
    if group == "rates":
        return shown + table(rate_search.table(rates.choose(found)), left=1)
    if group in TIMED:
        return shown + table(target_table.table(found), left=target_table.WORDS)
    return shown


PAGE = Page("adsp", "ADSP", example="race", body=body, says=SAYS)

if __name__ == "__main__":
    PAGE.main()
