"""`--checkpoint_policy=auto`: what fraction of the blocks to save, and how often.

Cheapest is what costs least in each iteration, saving and repeating together. Saves are of the
policy "priority" [choice], of the fraction r every round(rC) iterations. Both parts of the cost are
counted in iterations:

    overhead = seconds of a save / (seconds of an iteration · round(rC))
    rework   = failures per iteration · E[iteration cost of one]

The cost of a failure is the bound of one perturbation (SCAR, arXiv 1810.07354, Theorem 3.2), with
‖δ'‖ for its mean. A copy that is a iterations old is ‖x(k) - x(k-a)‖ away, or (c^-a - 1) ‖x(k) - x*‖
while the run converges along its slowest direction [choice]. Of a lost share p of the blocks, with
E‖δ'‖² = p ‖δ‖² (Theorem 4.2),

    cost(a) = log(1 + √p (c^-a - 1)) / log(1/c),

in which neither k nor r0 is left. With p = 1 it is a, what full recovery repeats exactly.

Where blocks change at unequal speeds v_i, "priority" saves a block when it has come as far as all
others: the squares of the distances are on average (mean v)²/mean(v²) of what they would be if all
copies were of one age. This is the `evenness` of the change; as no block is saved more often than
every round(rC) iterations, r² is the least there can be [choice].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cbdybw.errors import BadInput

FRACTIONS = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""r, of which one is chosen [choice]."""
PERIODS = (4, 8, 16, 32, 64)
"""C, of which one is chosen [choice]."""


@dataclass(frozen=True)
class Costs:
    """What has been measured.

    Attributes:
        iteration: seconds of an iteration.
        save: seconds that a save holds up training however small it is.
        save_byte: seconds more for each byte saved.
        nbytes: bytes of all blocks.
    """

    iteration: float
    save: float
    save_byte: float
    nbytes: int

    def overhead(self, fraction: float, period: int) -> float:
        """Cost of saving, in iterations an iteration."""
        seconds = self.save + self.save_byte * fraction * self.nbytes
        return seconds / (self.iteration * interval(fraction, period))


@dataclass(frozen=True)
class Choice:
    """r and C, with the overhead and rework that are expected of them, in iterations an iteration.

    `period` is C: the fraction r is saved every `interval(fraction, period)` iterations.
    """

    fraction: float
    period: int
    overhead: float
    rework: float

    @property
    def total(self) -> float:
        return self.overhead + self.rework


def interval(fraction: float, period: int) -> int:
    """Iterations between two saves: round(rC), at least 1."""
    return max(1, round(fraction * period))


def evenness(changes: np.ndarray) -> float:
    """(mean v)²/mean(v²) of how far each block went in an iteration, v of shape (n,).

    From 1/n, where one block moves alone, to 1, where all move alike or none does.
    """
    squares = float(np.mean(np.square(changes)))
    return float(np.mean(changes)) ** 2 / squares if squares else 1.0


def failure_cost(c: float, lost_share: float, fraction: float, period: int, even: float) -> float:
    """Expected iterations that a failure costs; any iteration may be the one in which it happens.

    Copies of 1/r ages, `interval` apart, exist at a time. `even` is their blocks' `evenness`.
    """
    step = interval(fraction, period)
    ages = np.arange(step)[:, None] + step * np.arange(round(1 / fraction))
    # in units of c^-oldest: that can be too large for a float
    oldest = int(ages.max())
    scale = oldest * math.log(1 / c)
    distances = np.exp(ages * math.log(1 / c) - scale) - math.exp(-scale)
    square = max(even, fraction**2) * (distances**2).mean(1)
    with np.errstate(divide="ignore"):  # nothing is lost where all copies are of now
        logs = 0.5 * np.log(lost_share * square) + scale
    return float(np.logaddexp(0, logs).mean() / math.log(1 / c))


def choose(
    costs: Costs, c: float, failure_rate: float, lost_share: float, even: float = 1.0
) -> Choice:
    """The cheapest of FRACTIONS × PERIODS; where several are, the one that saves most rarely.

    Args:
        c: contraction of the run, such as `Online.c`.
        failure_rate: failures per iteration.
        lost_share: share p of the blocks that a failure loses.
        even: `evenness` of the blocks' change; 1 where it is not known.
    """
    for name, value, fits, allowed in (
        ("c", c, 0 < c < 1, "0 < c < 1, estimated from a run that converges"),
        ("failure_rate", failure_rate, 0 <= failure_rate <= 1, "failures per iteration, 0 to 1"),
        ("lost_share", lost_share, 0 < lost_share <= 1, "a share above 0, up to 1"),
        ("even", even, 0 < even <= 1, "a value above 0, up to 1"),
        ("iteration", costs.iteration, 0 < costs.iteration < math.inf, "seconds above 0"),
    ):
        if not fits:
            raise BadInput(f"{name}={value:g}: no checkpoints can be chosen for it; use {allowed}")
    choices = [
        Choice(
            r,
            period,
            costs.overhead(r, period),
            failure_rate * failure_cost(c, lost_share, r, period, even),
        )
        for r in FRACTIONS
        for period in PERIODS
    ]
    return min(choices, key=lambda x: (x.total, -interval(x.fraction, x.period), -x.period))
