"""What a perturbation costs in iterations: the bounds, and estimates of what they stand on.

Source: SCAR (arXiv 1810.07354), sections 2 and 3. x(k+1) = f(x(k)) contracts towards x*:
‖f(x) - x*‖ ≤ c ‖x - x*‖ with 0 < c < 1, in expectation where f is stochastic. A perturbed run is
y(0) = x(0), y(k+1) = f(y(k) + δ_k). Symbols: r0 = ‖x(0) - x*‖; T iteration of a perturbation;
ε distance from x* that is wanted. Costs are iterations, distances those of one norm.

The bounds compare worst cases: after k iterations y is within c^k (r0 + Δ) of x*, and x within
c^k r0, with Δ = Σ c^-ℓ ‖δ_ℓ‖. The iterations until these fall below ε differ by the bound.
A run counts whole iterations, which can add one. It can also cost more where x(k) itself came
nearer than c^k r0: by as many iterations as it was sooner than its own worst case.

c and r0 are estimated from a record that falls like c^k: distances from x* (`fit`), or norms of
steps as they come (`Online`). A straight line through the logarithms, over [choice] the later half
of the fall, so that faster directions have died out, up to where noise or rounding keeps the record
level. What noise there is may be fresh in each iteration or add up from one to the next, and
intervals of plain least squares are far too narrow for the latter, so its autocorrelation is
estimated too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student

from cbdybw.errors import BadInput

LEVEL = 0.95
"""Confidence of the intervals [choice]."""
SURE = 0.999
"""Confidence with which a record must still fall not to be taken as level [choice]."""
FEWEST = 10
"""Values that a line is drawn through, at least [choice]."""


def iterations_to(errors: ArrayLike, epsilon: float) -> float:
    """κ(a, ε): the least m such that errors[k] < ε for all k ≥ m; inf where the last one is not.

    `errors` are the distances ‖a(k) - x*‖ of a run, shape (iterations + 1,).
    """
    above = np.flatnonzero(~(np.asarray(errors) < epsilon))
    m = int(above[-1]) + 1 if len(above) else 0
    return m if m < np.size(errors) else math.inf


def first_below(criterion: ArrayLike, target: float) -> float:
    """The first iteration whose criterion is at or below the target, which is what experiments
    count; inf where there is none."""
    reached = np.flatnonzero(np.asarray(criterion) <= target)
    return int(reached[0]) if len(reached) else math.inf


def bound(c: float, r0: float, perturbations: Mapping[int, float]) -> float:
    """Theorem 3.2: ι ≤ log(1 + Δ/r0) / log(1/c), with Δ = Σ c^-ℓ E‖δ_ℓ‖.

    `perturbations` maps iterations ℓ to norms E‖δ_ℓ‖.
    """
    _check(c, r0)
    with np.errstate(divide="ignore"):  # a norm of 0 is a logarithm of -inf
        terms = [np.log(norm / r0) - at * math.log(c) for at, norm in perturbations.items()]
    return float(np.logaddexp.reduce([0.0, *terms]) / -math.log(c))


def bound_single(c: float, r0: float, at: int, norm: float) -> float:
    """Theorem 3.2 for one perturbation of this norm in iteration `at` (T)."""
    return bound(c, r0, {at: norm})


def irreducible(c: float, delta: float) -> float:
    """cΔ/(1 - c): how near to x* a run may never come whose every ‖δ_k‖ may be Δ."""
    _check(c)
    return c * delta / (1 - c)


def bound_infinite(c: float, r0: float, delta: float, epsilon: float) -> float:
    """The cost where every ‖δ_k‖ ≤ Δ, without end: log[(1 - r*/r0)/(1 - r*/ε)] / log(1/c), r* the
    irreducible error; inf where ε is not above it. Nothing where ε ≥ r0: both runs start there."""
    _check(c, r0)
    rest = irreducible(c, delta)
    if epsilon <= rest:
        return math.inf
    if epsilon >= r0:
        return 0.0
    return (math.log1p(-rest / r0) - math.log1p(-rest / epsilon)) / -math.log(c)


def partial_reduction(lost: float, x: float) -> float:
    """By what share the bound is lower when only the lost fraction p of the parameters is restored:
    1 - log(1 + √p X)/log(1 + X), where X = c^-T ‖δ‖/r0 of restoring all (Theorem 4.2: E‖δ'‖² is
    p ‖δ‖²). X = 0 gives the limit of small perturbations, 1 - √p."""
    root = math.sqrt(lost)
    return 1 - (math.log1p(root * x) / math.log1p(x) if x else root)


def full_recovery_cost(at: int, period: int) -> int:
    """Full recovery of a deterministic f repeats exactly what came after the last checkpoint."""
    return at % period


def mean_full_recovery_cost(q: float, period: int) -> float:
    """E[T mod C] for T ~ Geometric(q) on 1, 2, …: Σ_{j<C} j (1-q)^(j-1) q / (1 - (1-q)^C)."""
    j = np.arange(1, period)
    return float((j * q * (1 - q) ** (j - 1)).sum() / -math.expm1(period * math.log1p(-q)))


def _check(c: float, r0: float = 1.0) -> None:
    if not 0 < c < 1:
        raise BadInput(f"c={c:g}: bounds hold for contractions; use 0 < c < 1")
    if not r0 > 0:
        raise BadInput(f"r0={r0:g}: bounds are relative to it; start at a distance from x*")


class Estimate(NamedTuple):
    """c and r0 of a run, with intervals of confidence LEVEL.

    r0 is where the line through the record begins, the share of the slowest direction: at most
    ‖x(0) - x*‖, and with c it tells when the run comes to an ε better than that does.
    """

    c: float
    r0: float
    c_interval: tuple[float, float]
    r0_interval: tuple[float, float]


def fit(distances: ArrayLike) -> Estimate:
    """c and r0 from the distances ‖x(k) - x*‖ of an unperturbed run, k = 0, 1, …

    As x* take an iterate from well after the last of them, else the record falls too steeply at its
    end. Raises BadInput where too few are given, or it cannot be told that they fall.
    """
    distances = np.asarray(distances, float)
    line = _line_of(np.arange(len(distances)), distances)
    if line is None:
        raise BadInput(
            f"distances: no steady fall in {len(distances)} of them; give a run that converges, "
            f"of {2 * FEWEST} iterations or more"
        )
    return line.estimate(steps=False)


def largest_ratio(distances: ArrayLike) -> float:
    """The conservative c of a deterministic run: the largest ratio of distances that follow each
    other, over the same part as `fit`. Noise makes it exceed 1."""
    distances = np.asarray(distances, float)
    part = distances[_linear_part(np.arange(len(distances)), distances)]
    return float((part[1:] / part[:-1]).max())


class Online:
    """c and r0 of a run that is under way, from s_k = ‖x(k+1) - x(k)‖ alone.

    In a direction with multiplier m of f, x(k) - x* = m^k e, and s_k = |1 - m| |m|^k ‖e‖. Once the
    slowest is left, with m = c, s_k falls like c^k and r0 = s_0/(1 - c). Faster directions have
    longer steps for their distance, so c comes out too small early in a run. Where f overshoots
    (m = -c) r0 would be s_0/(1 + c) and comes out too large. Noise of a stochastic f is part of
    each step, and hides the fall of s_k before that of the distance ends.

    Steps across a recovery belong to no fall: begin a new one after it, with k as it goes on.
    """

    def __init__(self) -> None:
        self._k: list[int] = []
        self._norms: list[float] = []
        self._known: Estimate | None = None
        self._looked = 0

    def tell(self, k: int, step_norm: float) -> None:
        """The next iteration, k, went this far."""
        self._k.append(k)
        self._norms.append(step_norm)

    @property
    def estimate(self) -> Estimate | None:
        """The last that could be had: None as long as too few steps have been told, or it cannot be
        told that they fall. Some milliseconds where there are new steps."""
        if self._looked < len(self._k):
            self._looked = len(self._k)
            line = _line_of(np.array(self._k), np.array(self._norms))
            self._known = line.estimate(steps=True) if line else self._known
        return self._known

    @property
    def c(self) -> float:
        """nan while there is no estimate."""
        return self.estimate.c if self.estimate else math.nan

    @property
    def r0(self) -> float:
        """nan while there is no estimate."""
        return self.estimate.r0 if self.estimate else math.nan

    def interval(self) -> tuple[float, float]:
        """Of c; (0, 1) while there is no estimate."""
        return self.estimate.c_interval if self.estimate else (0.0, 1.0)


class _Line(NamedTuple):
    """log v = beta[0] + beta[1] k, with the covariance of beta and its degrees of freedom."""

    beta: np.ndarray
    covariance: np.ndarray
    freedom: int

    def interval(
        self, value: float, gradient: ArrayLike, level: float = LEVEL
    ) -> tuple[float, float]:
        """Student's interval of a function of beta."""
        deviation = math.sqrt(gradient @ self.covariance @ gradient)
        half = student.ppf((1 + level) / 2, self.freedom) * deviation
        return value - half, value + half

    def slope_interval(self, level: float = LEVEL) -> tuple[float, float]:
        return self.interval(self.beta[1], np.array([0.0, 1.0]), level)

    def estimate(self, steps: bool) -> Estimate:
        """Of a line through distances, or through norms of steps, which are (1 - c) of them."""
        start, slope = self.beta
        c = math.exp(slope)
        shift, by_slope = (-math.log1p(-c), c / (1 - c)) if steps else (0.0, 0.0)
        r0_ends = self.interval(start + shift, np.array([1.0, by_slope]))
        c_interval, r0_interval = (
            tuple(map(float, np.exp(e))) for e in (self.slope_interval(), r0_ends)
        )
        return Estimate(c, math.exp(start + shift), c_interval, r0_interval)


def _line_of(k: np.ndarray, record: np.ndarray) -> _Line | None:
    """The line through the linear part of a record, if that is long enough and clearly falls."""
    part = _linear_part(k, record)
    if part.stop - part.start < FEWEST:
        return None
    line = _line(k[part], np.log(record[part]))
    return line if line.slope_interval()[1] < 0 else None


def _linear_part(k: np.ndarray, record: np.ndarray) -> slice:
    """The later half of the fall [choice].

    The fall ends at the first value that is 0 or not finite, or, if the record has become level, at
    the first value below three times that level.
    """
    bad = np.flatnonzero(~(np.isfinite(record) & (record > 0)))
    stop = int(bad[0]) if len(bad) else len(record)
    last = 3 * stop // 4
    if stop - last >= FEWEST:
        y = np.log(record[:stop])
        if _has_become_level(k[:stop], y):
            stop = int(np.argmax(y < np.median(y[last:]) + math.log(3)))
    return slice(stop // 2, stop)


def _has_become_level(k: np.ndarray, y: np.ndarray) -> bool:
    """Whether the later half is not SURE to fall, or the last quarter falls less than half as
    steeply as what was before it and is not SURE to fall either [choice]."""
    half, last = len(k) // 2, 3 * len(k) // 4
    if _line(k[half:], y[half:]).slope_interval(SURE)[1] >= 0:
        return True
    before, after = _line(k[:last], y[:last]), _line(k[last:], y[last:])
    return after.beta[1] > before.beta[1] / 2 and after.slope_interval(SURE)[1] >= 0


def _line(k: np.ndarray, y: np.ndarray) -> _Line:
    """Least squares of y = a + b k + u with u(k) = ρ u(k-1) + noise: Prais and Winsten's, with ρ
    from the residuals of the line before.

    That ρ comes out too small, by about (2 + 8ρ)/n, which is Kendall's at ρ = 0 and Dickey and
    Fuller's at 1. A ρ within 1/√n of 1 is taken as 1 (Perron and Yabu 2009), without which the
    intervals of noise that adds up are too narrow. u is 0 before the first iteration.
    """
    n, rho = len(k), 0.0
    design = np.column_stack([np.ones(n), k])
    for _ in range(4):
        m = k[0] + 1  # iterations that the noise of the first value comes from
        first = 1 / math.sqrt((1 - rho ** (2 * m)) / (1 - rho**2) if rho < 1 else m)
        whitened, target = (
            np.concatenate([first * v[:1], v[1:] - rho * v[:-1]]) for v in (design, y)
        )
        beta = np.linalg.lstsq(whitened, target)[0]
        u = y - design @ beta
        square = u[:-1] @ u[:-1]
        rho = u[1:] @ u[:-1] / square if square else 0.0
        rho = max(0.0, rho + (2 + 8 * rho) / n)
        rho = 1.0 if rho > 1 - n**-0.5 else rho
    rest = target - whitened @ beta
    covariance = np.linalg.inv(whitened.T @ whitened) * (rest @ rest) / (n - 2)
    return _Line(beta, covariance, n - 2)
