"""How old saved copies are, by theory: full, round and random; of priority nothing is known.

A block that a scheme has passed over j times in a row was last saved j·s iterations before the last
save, s = round(rC); nothing is older than the run. Passing over is j < 1/r in turn, each equally
likely, or has probability (1-r)^j at random [derived]. After many periods the means over a period
are (C-1)/2 for full and round, and C - rC/2 - ½ for random.
"""

from __future__ import annotations

import math

import numpy as np

from experiments.scar.reading import Trials
from experiments.scar.trial import Mode


def expected(cell: Trials, mode: Mode) -> float:
    """The mean, over the cell's trials, of what `trial.Outcome.age` should be; nan for priority."""
    n, period = cell.result["blocks"], cell.settings.period
    if mode.policy == "priority":
        return math.nan
    fraction = max(1, round(mode.fraction * n)) / n
    every = max(1, round(mode.fraction * period))
    ages = [
        np.mean([age(mode.policy, k, every, fraction) for k in range(at - period + 1, at + 1)])
        for at in cell.failure
    ]
    return float(np.mean(ages))


def age(policy: str, k: int, every: int, fraction: float) -> float:
    """Expected age of a copy in iteration k, with `fraction` of the blocks saved in every `every`
    iterations since the run began."""
    saves = k // every
    if policy == "random":
        passed = (1 - fraction) * (1 - (1 - fraction) ** saves) / fraction
    else:
        turns = np.arange(max(1, round(1 / fraction)))
        passed = np.minimum(turns, saves).mean()
    return k - every * saves + every * float(passed)
