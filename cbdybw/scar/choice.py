"""`--checkpoint_policy=auto`: what fraction of the blocks to save, and how often.

Cheapest is what costs least in each iteration, saving and repeating together. Saves are of the
policy "priority" [choice], of the fraction r every round(rC) iterations. Both parts of the cost are
counted in iterations:

    overhead = seconds of a save / (seconds of an iteration · round(rC))
    rework   = failures per iteration · E[iteration cost of one]

While a run goes straight to x*, a copy that is a iterations old is c^-a times as far from it, and a
failure sets a share p of the blocks, whichever, back to their copies [choice]. Then (after Theorem
4.2 of SCAR, arXiv 1810.07354, by which E‖δ'‖² = p ‖δ‖²)

    E‖y - x*‖² = (1 - p + p c^-2a) ‖x - x*‖²
    cost(a)    = ½ log(1 - p + p c^-2a) / log(1/c),

which is a for p = 1, what full recovery repeats exactly, and otherwise below the bound of Theorem
3.2, log(1 + √p (c^-a - 1)) / log(1/c). Neither k nor r0 is left in it.

Copies have all ages below C. Where blocks move at unequal speeds v_i, "priority" saves a block when
it has come as far as the others at their saves, so that the ages of those that matter are shorter
than C by (mean v)²/mean(v²), the `evenness` of the change; but not shorter than rC, for no block is
saved more often [choice]. That is for distances that grow with age in proportion; where c^-C is far
above 1, they grow faster and uneven blocks cost more than expected.
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


def failure_cost(
    c: float, lost_share: float, fraction: float, period: int, even: float = 1.0
) -> float:
    """Expected iterations that a failure costs, which any iteration may be hit by.

    At each time there are copies of 1/r ages, `interval` apart. `even` is the blocks' `evenness`.
    """
    step, decay = interval(fraction, period), -math.log(c)
    ages = np.arange(step)[:, None] + step * np.arange(round(1 / fraction))
    back = 2 * decay * max(even, fraction) * ages  # log c^-2a, too large for c^-2a itself
    lost = np.logaddexp.reduce(back, axis=1) + math.log(lost_share / back.shape[1])
    kept = math.log1p(-lost_share) if lost_share < 1 else -math.inf
    return float(np.logaddexp(kept, lost).mean() / (2 * decay))


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
