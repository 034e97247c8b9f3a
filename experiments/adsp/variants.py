"""ADSP's variants, batch tuning and imbalanced labels (group `variants`).

ADSP+ and ADSP++ search before training for what ADSP finds on the way, and are not much better
without the time of that search, which is long [paper: as recalled]. Expect restarting timers to be
close to due ones in time, with counts that are further apart, and imbalance to cost all methods.

    python -m experiments.reproduce --paper=adsp --figures_only --out=RESULTS
    python -m experiments.adsp.variants RESULTS
"""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure

from experiments import alone
from experiments.adsp import targets
from experiments.figures import STYLE
from experiments.reading import WORKLOAD, by_cell, read, split
from experiments.rows import Row

TITLE = "Variants of ADSP, tuned batches, imbalanced labels"
SAYS = (
    "Virtual seconds to the target as above, a search before training hatched, and said without it "
    "too. Restarting timers and three points in a window are the authors' [code]; due times and 17 "
    "points are ours. Tuned batches are in proportion to the workers' speeds."
)


@matplotlib.rc_context(STYLE)
def draw(rows: list[Row]) -> dict[str, Figure]:
    """A figure of times for each partition of the data."""
    found = split(targets.looked(read(rows)), *WORKLOAD)
    return {
        f"variants-{at}-target": targets.bar_figure(by_cell(runs))
        for at, runs in enumerate(found.values(), 1)
    }


if __name__ == "__main__":
    alone.main("variants", draw)
