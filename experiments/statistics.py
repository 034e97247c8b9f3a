"""Intervals of confidence over seeds: means, paired differences and ratios, fitted powers; and over
trials: reductions of a mean, shares, medians.

All are at 95 %, and Student's t where nothing else is said. With one seed there is a mean and no
interval: its ends are nan, and so is whatever is computed from a run that diverged; no comparison
with nan is ever true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.95
DRAWS = 10_000
"""Of a bootstrap."""
Values = Mapping[int, float]
"""Seed → a run's number."""


class Interval(NamedTuple):
    """An estimate, the ends of its interval of confidence, and from how many numbers it is."""

    mean: float
    low: float
    high: float
    n: int

    def within(self, low: float, high: float) -> bool | None:
        """Whether the truth lies in [low, high]: True where the whole interval does, False where
        none of it does, None where it is too wide to tell. A lone number has no interval and is
        taken as it is; what is not a number lies nowhere."""
        if math.isnan(self.mean):
            return False
        least, most = (self.mean, self.mean) if math.isnan(self.low) else (self.low, self.high)
        if most < low or high < least:
            return False
        return True if low <= least and most <= high else None

    def map(self, function: Callable[[float], float]) -> Interval:
        """A monotone function of the estimate and of both ends."""
        low, high = sorted((function(self.low), function(self.high)))
        return Interval(function(self.mean), low, high, self.n)

    @property
    def half(self) -> float:
        """Half the interval's width."""
        return (self.high - self.low) / 2

    def text(self, form: str = ".3g") -> str:
        """As it is printed: the estimate and the ends of its interval, if it has one."""
        if math.isnan(self.mean):
            return "not reached"
        ends = "" if math.isnan(self.low) else f" [{self.low:{form}}, {self.high:{form}}]"
        return f"{self.mean:{form}}{ends}"

    def plus_minus(self, form: str = "z.1f") -> str:
        """The same with half the interval's width: `62.2 ± 0.4`."""
        if math.isnan(self.mean):
            return "not reached"
        half = "" if math.isnan(self.low) else f" ± {self.half:{form}}"
        return f"{self.mean:{form}}{half}"

    def percent(self) -> str:
        """`62.2 ± 0.4 %` of a fraction."""
        text = self.map(lambda x: 100 * x).plus_minus()
        return text if math.isnan(self.mean) else f"{text} %"


def mean(values: Sequence[float] | Values) -> Interval:
    """The mean of independent numbers, one a seed."""
    x = np.array(list(values.values() if isinstance(values, Mapping) else values), float)
    if len(x) == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    half = _half(x)
    return Interval(float(x.mean()), float(x.mean() - half), float(x.mean() + half), len(x))


def _half(x: np.ndarray) -> np.ndarray | float:
    """Half the interval's width, over the first axis."""
    n = len(x)
    if n < 2:
        return np.full(x.shape[1:], math.nan)
    return stats.t.ppf((1 + LEVEL) / 2, n - 1) * x.std(axis=0, ddof=1) / math.sqrt(n)


def difference(a: Values, b: Values) -> Interval:
    """a - b; of the seeds that both have, so that what a seed does to both is no noise."""
    return mean([a[seed] - b[seed] for seed in _common(a, b)])


def reduction(a: Values, b: Values) -> Interval:
    """1 - a/b, by how much a is below b; paired like `difference`."""
    return mean([1 - a[seed] / b[seed] for seed in _common(a, b)])


def ratio(a: Values, b: Values) -> Interval:
    """a/b, paired; a geometric mean [choice], so that b/a is its reciprocal."""
    return mean([math.log(a[seed] / b[seed]) for seed in _common(a, b)]).map(math.exp)


def mean_reduction(a: Sequence[float], b: Sequence[float]) -> Interval:
    """1 - (mean of a)/(mean of b), of numbers that are paired by their places.

    Ends by the percentile bootstrap, pairs drawn together: single ratios would not do where some of
    b are 0. A draw whose mean of b is not above 0 counts as -inf; nan where that of all is not.
    """
    pairs = np.array([a, b], float)
    n = pairs.shape[1]
    if not (n and pairs[1].mean() > 0):
        return Interval(math.nan, math.nan, math.nan, n)
    mean = float(1 - pairs[0].mean() / pairs[1].mean())
    if n < 2:
        return Interval(mean, math.nan, math.nan, n)
    drawn = pairs[:, np.random.default_rng(0).integers(n, size=(DRAWS, n))].mean(axis=2)
    above = np.where(drawn[1] > 0, drawn[1], np.nan)
    reduced = np.nan_to_num(1 - drawn[0] / above, nan=-math.inf)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(reduced, [tail, 1 - tail], method="nearest")
    return Interval(mean, float(low), float(high), n)


def share(successes: int, n: int) -> Interval:
    """A share of n independent trials, with Wilson's interval."""
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    ends = stats.binomtest(successes, n).proportion_ci(LEVEL, method="wilson")
    return Interval(successes / n, float(ends.low), float(ends.high), n)


def median(values: Sequence[float]) -> Interval:
    """The median, between two of the numbers that hold it by the binomial law of their ranks."""
    x = np.array(values, float)
    if len(x) == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    at = float(np.median(x))
    ends = stats.quantile_test(x, q=at, p=0.5).confidence_interval(LEVEL)
    return Interval(at, float(ends.low), float(ends.high), len(x))


def _common(a: Values, b: Values) -> list[int]:
    return sorted(a.keys() & b.keys())


def power(x: Sequence[float], y: Sequence[float]) -> Interval:
    """The exponent p of y ∝ x^p, by least squares of the logarithms; all must be positive."""
    x, y = np.log(x), np.log(y)
    if len(np.unique(x)) < 3:
        return Interval(math.nan, math.nan, math.nan, len(x))
    fit = stats.linregress(x, y)
    half = stats.t.ppf((1 + LEVEL) / 2, len(x) - 2) * fit.stderr
    return Interval(float(fit.slope), float(fit.slope - half), float(fit.slope + half), len(x))


class Band(NamedTuple):
    """The mean curve of several runs and its pointwise interval, each of shape (points,)."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band(curves: Sequence[tuple[np.ndarray, np.ndarray]], points: int = 100) -> Band:
    """Curves (x, y) with x ascending, between the last start and the first end of them.

    Where all share their x those are the points, elsewhere `points` of equal distance.
    """
    first = curves[0][0]
    if all(np.array_equal(x, first) for x, _ in curves):
        at = first
    else:
        at = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), points)
    y = np.array([np.interp(at, *curve) for curve in curves])
    half = _half(y)
    return Band(at, y.mean(axis=0), y.mean(axis=0) - half, y.mean(axis=0) + half)


def crossing(x: np.ndarray, y: np.ndarray, target: float) -> float:
    """Where y first comes down to `target`, linear between two evaluations; nan: nowhere.

    The first evaluation below would be late by up to the distance between two of them.
    """
    below = np.flatnonzero(y <= target)
    if len(below) == 0:
        return math.nan
    i = below[0]
    return float(np.interp(target, [y[i], y[i - 1]], [x[i], x[i - 1]])) if i else float(x[0])
