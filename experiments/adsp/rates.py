"""Learning rates of ADSP's experiments: the search of `experiments.cb_dybw.rates`, the same rule.

    python -m experiments.reproduce --paper=adsp --scale=rates --out=OUT
    python -m experiments.adsp.rates OUT
    python -m experiments.adsp.cells

Every algorithm learns for the same time with the same rates, on seeds that no result is taken from.
[choice] All of this; the authors' η' for the CNN is 0.1 [code], and stays.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cbdybw.storage import atomic
from experiments.cb_dybw import rates

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


if __name__ == "__main__":
    rates.main(sys.argv, RATES)
