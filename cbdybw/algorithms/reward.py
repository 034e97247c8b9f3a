"""What ADSP's scheduler makes of a probe window: a curve through its losses, and a reward.

    ℓ(t) = 1/(a1² t + a2) + a3,    r = a1² / (1/(ℓ_end - a3) - a2) = 1/t_hit

t_hit being the time at which the curve meets ℓ_end (Hu et al. 2020, OnlineEvaluate). Three losses
are interpolated, as the authors do [code]; of more the curve of least squares is taken [choice].

Over a window scaled to s = 0 … 1 each such curve is

    ℓ = p - d φ(s),    φ(s) = s (1 + κ)/(1 + κ s),    κ > 0

with p and p - d its ends and κ its bend: linear in p and d, so only the bend is searched for. A
straight line (κ = 0) and a step (κ = ∞) are no such curves; where one of them comes nearest to the
losses there is no fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares


class Fit(NamedTuple):
    """The curve 1/(a1² t + a2) + a3, or, in a few words, why there is none."""

    a1_squared: float
    a2: float
    a3: float
    failure: str = ""


BENDS = np.geomspace(1e-3, 1e3, 61)
"""κ from which a least-squares fit may start [choice]; best at either end: no fit."""


def fit(times: Sequence[float], losses: Sequence[float]) -> Fit:
    """The curve through three losses, or nearest to more; times ascend.

    Data that no such curve fits are told by `failure`, never raised.
    """
    t, loss = np.asarray(times, float), np.asarray(losses, float)
    if len(loss) < 3:
        return _none("fewer than three losses")
    with np.errstate(all="ignore"):  # a number that is out of range shows in the curve
        span, spread, least = t[-1] - t[0], np.ptp(loss), loss.min()
        if not math.isfinite(span + spread):
            return _none("a time or loss is not finite")
        if not np.all(np.diff(t) > 0):
            return _none("times do not ascend")
        if spread == 0:
            return _none("all losses are equal")
        s, u = (t - t[0]) / span, (loss - least) / spread
        p, d, bend, failure = _through(s, u) if len(u) == 3 else _nearest(s, u)
        if failure:
            return _none(failure)
        floor = p - d * (1 + bend) / bend
        if floor >= 0:
            return _none("the curve ends above the lowest loss")
        a2 = 1 / (p - floor)
        slope = a2 * bend / (spread * span)
        fitted = Fit(float(slope), float(a2 / spread - slope * t[0]), float(least + spread * floor))
    if not (0 < fitted.a1_squared < math.inf and math.isfinite(fitted.a2 + fitted.a3)):
        return _none("the curve is beyond floating point")
    return fitted


def reward(fitted: Fit, loss_end: float) -> float:
    """1/t_hit: the larger, the sooner the curve meets `loss_end`; nan where it never does."""
    if fitted.failure or not loss_end > fitted.a3:
        return math.nan
    ahead = 1 / (loss_end - fitted.a3) - fitted.a2
    return fitted.a1_squared / ahead if ahead > 0 else math.nan


def _none(failure: str) -> Fit:
    return Fit(math.nan, math.nan, math.nan, failure)


Curve = tuple[float, float, float, str]
"""p, d, κ and, where there is no curve, why."""


def _no_curve(failure: str) -> Curve:
    return math.nan, math.nan, math.nan, failure


def _through(s: np.ndarray, u: np.ndarray) -> Curve:
    """Through three losses: φ(s_1) = g solved for κ, with g the share of d that is gone at s_1."""
    d = u[0] - u[2]
    if d <= 0:
        return _no_curve("losses do not fall")
    gone = (u[0] - u[1]) / d
    if gone >= 1:
        return _no_curve("losses fall at once and no further")
    if gone <= s[1]:
        return _no_curve("losses fall no slower later on")
    return u[0], d, (gone - s[1]) / (s[1] * (1 - gone)), ""


def _nearest(s: np.ndarray, u: np.ndarray) -> Curve:
    """Least squares, from the best of `BENDS`, each with the p and d that regression gives it."""
    phi = _phi(s, BENDS[:, None])
    centred = phi - phi.mean(axis=1, keepdims=True)
    fall = -centred @ u / np.square(centred).sum(axis=1)  # d for each bend
    if not (fall > 0).any():
        return _no_curve("losses do not fall")
    explained = np.where(fall > 0, np.square(fall) * np.square(centred).sum(axis=1), 0)
    best = int(explained.argmax())
    if best == 0:
        return _no_curve("losses fall no slower later on")
    if best == len(BENDS) - 1:
        return _no_curve("losses fall at once and no further")

    def residuals(x: np.ndarray) -> np.ndarray:
        p, d, log_bend = x
        return p - d * _phi(s, np.exp(log_bend)) - u

    start = [u.mean() + fall[best] * phi[best].mean(), fall[best], np.log(BENDS[best])]
    p, d, log_bend = least_squares(residuals, start, method="lm", xtol=1e-14, ftol=1e-14).x
    return p, d, np.exp(log_bend), ""


def _phi(s: np.ndarray, bend: np.ndarray | float) -> np.ndarray:
    return s * (1 + bend) / (1 + bend * s)
