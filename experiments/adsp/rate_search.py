"""The search for learning rates: seconds to the target against η0, the chosen one marked (group 0).

python -m experiments.reproduce --paper=adsp --figures_only --out=RESULTS
python -m experiments.adsp.rate_search RESULTS
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from experiments import alone
from experiments.adsp import rates
from experiments.cb_dybw import rate_search

TITLE = "Learning rates"
SAYS = (
    "Seconds until the held-out loss has come to the target for good, on the worse of two seeds, "
    "for every algorithm at the same six values of η0; one that does not get there in 600 s has no "
    "point. A ring marks the chosen one."
)


def draw(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """One figure with a panel for each group of experiments."""
    found = [row for row in rows if row["seed"] in rates.SEEDS]
    if not found:
        return {}
    figures = rate_search.figure(found, rates.choose(found), "seconds")
    figures["rates"].axes[0].set_ylabel("time to the target (virtual s)")
    return figures


if __name__ == "__main__":
    alone.main("rates", draw)
