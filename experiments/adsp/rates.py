"""Learning rates of ADSP's experiments: `python -m experiments.adsp.rates OUT`

chooses η0 for each algorithm from the rows of `reproduce --paper=adsp --scale=rates` in OUT, and
writes rates.json beside this file; then `python -m experiments.adsp.cells` writes it into the
cells. What the experiments measure is the time to a target, so that is what an η0 is as good as:
seconds until the held-out loss has come to the target for good, on the worse of two seeds that no
result is taken from; where no η0 gets there, the final training loss decides. Every algorithm has
the same η0 to choose from and the same 600 s. [choice] All of this; the authors' η' for the CNN is
0.1 [code], and stays.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from cbdybw.storage import atomic
from experiments.cb_dybw import rates
from experiments.reading import Result, read

RATES = Path(__file__).with_name("rates.json")
SEEDS = rates.SEEDS
GRID = (0.1, 0.2, 0.5, 1, 2, 4)
BEFORE = 0.1
"""η0 as long as nothing has been chosen."""


def chosen(workload: str, algorithm: str) -> float:
    """η0 of an algorithm; ADSP+ and ADSP++ have that of ADSP."""
    found = atomic.read_json(RATES) if RATES.exists() else {}
    name = "adsp" if algorithm.startswith("adsp") else algorithm
    return found.get(workload, {}).get(name, {}).get("eta0", BEFORE)


def choose(found: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Workload → algorithm → the chosen η0, and of all of them the seconds to the target and the
    final training loss, None where a run does not get there or has diverged."""
    worst: dict[str, dict[str, dict[float, tuple[float, float]]]] = {}
    for result in read(found):
        workload, algorithm, eta0 = result.cell.partition("/")[2].rsplit("-", 2)
        loss = result.value("train_loss")
        this = settled(result), math.inf if math.isnan(loss) else loss
        tried = worst.setdefault(workload, {}).setdefault(algorithm, {})
        before = tried.get(float(eta0), (0.0, 0.0))
        tried[float(eta0)] = max(this[0], before[0]), max(this[1], before[1])
    return {
        workload: {
            algorithm: {
                "eta0": min(sorted(tried), key=tried.__getitem__),
                "seconds": {eta0: _finite(pair[0]) for eta0, pair in sorted(tried.items())},
                "train_loss": {eta0: _finite(pair[1]) for eta0, pair in sorted(tried.items())},
            }
            for algorithm, tried in sorted(by_algorithm.items())
        }
        for workload, by_algorithm in sorted(worst.items())
    }


def settled(result: Result) -> float:
    """Seconds of the first look from which on the held-out loss is at the target; inf for never."""
    seconds, loss = result.looks["seconds"], result.looks["held_out_loss"]
    there = loss <= result.settings.target_loss
    if not len(there) or not there[-1]:
        return math.inf
    away = seconds[~there]
    return float(seconds[seconds > away[-1]][0] if len(away) else seconds[0])


def _finite(x: float) -> float | None:
    return x if x < math.inf else None


if __name__ == "__main__":
    rates.main(sys.argv, RATES, choose)
