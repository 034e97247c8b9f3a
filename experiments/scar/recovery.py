"""Trials: a share of the parameters is lost, what does it cost (group `recovery`).

Partial recovery from running checkpoints saves 78 to 95 % of the traditional scheme's iteration
cost [paper]. Expect less where restoring half of the parameters perturbs √½ as much.

    python -m experiments.reproduce --paper=scar --figures_only --out=RESULTS
    python -m experiments.scar.recovery RESULTS
"""

from __future__ import annotations

from typing import Any

import matplotlib
from matplotlib.figure import Figure

from experiments import alone
from experiments.figures import STYLE
from experiments.scar import partial, policies, reading
from experiments.scar.reading import Trials

TITLE = "Losing a share of the parameters"
SAYS = (
    "Iteration cost: iterations beyond the failure-free run's of the same seed until the same "
    "criterion is met, the mean over trials; it can be 0 or negative, and stays so. What a scheme "
    "saves is 1 - (its mean cost)/(mean cost of full checkpoints and full recovery); the interval "
    "is the bootstrap's over trials, each of which ran all schemes. All schemes may save as many "
    "values in C iterations as there are, in whole blocks; the table tells how many they did: less "
    "where large blocks have to be waited for, such as layers. Where the norm of the perturbation "
    "is all that counts, and small, partial recovery saves 1 - √p [derived]."
)


@matplotlib.rc_context(STYLE)
def draw(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """What partial recovery saves, how far it moves x, policies, and the headline."""
    cells: list[Trials] = reading.cells(rows, "trials")
    if not cells:
        return {}
    return {
        "recovery-1-headline": policies.headline(cells),
        "recovery-2-partial": partial.saved(cells),
        "recovery-3-policies": policies.compared(cells),
        "recovery-4-norms": partial.norms(cells),
    }


if __name__ == "__main__":
    alone.main("recovery", draw)
