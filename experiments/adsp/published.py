"""Numbers that ADSP's authors publish, for tables that show them beside ours.

The three workers at a parameter server stand as constants in the scripts that draw the paper's
figures [code]; shares of waiting and speeds are computed from them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Published(NamedTuple):
    """One method's run to convergence; `compute` is for each worker."""

    seconds: float
    steps: int
    compute: tuple[float, float, float]
    megabits_per_second: float

    @property
    def waiting(self) -> float:
        """Share of the time that is not spent on computing, communication included: as drawn."""
        return 1 - float(np.mean(self.compute)) / self.seconds

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds


THREE_WORKERS = {
    "bsp": Published(30336, 5420, (885.9, 722.95, 2698.1), 0.4189),
    "ssp": Published(16308, 5909, (951.8, 778.5, 2881.3), 0.7040),
    "adacomm": Published(3579, 6392, (1020.7, 833.7, 3048.2), 0.063),
    "fixed_adacomm": Published(4901.4, 8400, (1277.0, 1042.6, 4099.4), 0.096),
    "adsp": Published(2448.6, 12709, (2315.1, 2289.5, 2284.2), 0.118),
}
"""By `--algorithm` [code]; steps are those of all workers, SSP's threshold is 40."""

THREE_SPEEDS = tuple(
    THREE_WORKERS["bsp"].steps / 3 / seconds for seconds in THREE_WORKERS["bsp"].compute
)
"""Minibatches per second: under BSP each worker takes a third of the steps [derived]."""

SOONER_THAN_FIXED_ADACOMM = 0.624
"""Share of time saved by ADSP at H = 3.2, 18 workers, CNN on CIFAR-10 [paper]."""

HETEROGENEITIES = (1.45, 2.0, 2.6, 3.2)
"""Of the sweep [code]."""
