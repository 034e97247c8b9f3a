"""Exact numbers to hold against runs: iteration times, and errors on the quadratic problem."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from cbdybw import specs, theory
from cbdybw.clusters.delays import LAWS
from cbdybw.learning.workloads import WORKLOADS
from experiments.reading import Result
from experiments.settings import Settings


def pareto_places(n: int, scale: float, alpha: float) -> list[float]:
    """E t_(m), m = 1 … n, of n independent times with P(t > x) = (scale/x)^alpha, alpha > 1:
    scale · Γ(n+1) Γ(n-m+1-1/alpha) / (Γ(n-m+1) Γ(n+1-1/alpha))."""
    left = n + 1 - np.arange(1, n + 1)
    logs = gammaln(n + 1) - gammaln(n + 1 - 1 / alpha) + gammaln(left - 1 / alpha) - gammaln(left)
    return [float(x) for x in scale * np.exp(logs)]


def iteration(settings: Settings) -> float | None:
    """Mean seconds of an iteration; None where no exact number is known.

    cb-Full behind a global barrier: E[max t_j]. cb-DyBW along a path or ring with times drawn
    afresh at every θ(k): the policy drop and the paper's clock; carry as well if the times are
    exponential (`cbdybw.theory`). Straggler laws: the limit of no jitter.
    """
    laws = _drawn_afresh(settings)
    if laws is None or settings.network:
        return None
    if settings.algorithm == "cb_full" and settings.barrier == "global":
        return laws.full
    law = specs.parse(settings.delay, "--delay")[0]
    afresh = settings.policy in ("drop", "paper") or (
        settings.policy == "carry" and law == "exponential"
    )
    along_path = settings.graph in ("path", "ring")
    return laws.mean if settings.algorithm == "cb_dybw" and afresh and along_path else None


def _drawn_afresh(settings: Settings) -> theory.Expected | None:
    n, rule = settings.workers, settings.edge_rule
    if not 2 <= n <= theory.MOST_WORKERS:
        return None
    law = specs.parse(settings.delay, "--delay")[0]
    keys = specs.select(settings.delay, "--delay", LAWS)[1]
    if law == "exponential":
        return theory.shifted_exponential(n, 0.0, keys["mean"], rule)
    if law == "shifted_exponential":
        return theory.shifted_exponential(n, keys["base"], keys["mean"], rule)
    if law == "pareto":
        return theory.dtur(n, pareto_places(n, keys["scale"], keys["alpha"]), rule)
    if law == "random_straggler" and keys["count"] == 1:
        return _scaled(theory.one_random_straggler(n, keys["slowdown"], rule), keys["base"])
    if law == "persistent" and len(keys["ranks"]) == 1 and rule == "one" and _is_path(settings):
        interior = keys["ranks"][0] not in (0, n - 1)
        return _scaled(theory.persistent_straggler(n, keys["slowdown"], interior), keys["base"])
    return None


def _is_path(settings: Settings) -> bool:
    return settings.graph == "path" and settings.workers > 2


def _scaled(expected: theory.Expected, base: float) -> theory.Expected:
    base = float(Fraction(base))
    return theory.Expected(
        expected.mean * base,
        expected.full * base,
        expected.iterations_per_epoch,
        expected.active,
    )


class Quadratic(NamedTuple):
    """Consensus SGD on ½λ‖w‖² with constant η and gradient noise σ, all N gradients used and P
    doubly stochastic: w̄(k) = (1-ηλ) w̄(k-1) + noise of variance η²σ²/N a coordinate."""

    eta: float
    lam: float
    sigma: float
    dim: int
    workers: int

    @property
    def stationary(self) -> float:
        """E‖w̄ - w*‖² in the end: ησ²·dim / (Nλ(2-ηλ))."""
        eta, lam = self.eta, self.lam
        return eta * self.sigma**2 * self.dim / (self.workers * lam * (2 - eta * lam))

    def error(self, k: np.ndarray, start: float) -> np.ndarray:
        """E‖w̄(k) - w*‖² after k iterations from ‖w̄(0) - w*‖² = start."""
        left = (1 - self.eta * self.lam) ** (2 * np.asarray(k, float))
        return left * start + self.stationary * (1 - left)


def quadratic(result: Result) -> Quadratic:
    """The constants of a run on the quadratic problem."""
    s = result.settings
    keys = specs.select(s.workload, "--workload", WORKLOADS)[1]
    return Quadratic(s.eta0, keys["lam"], keys["sigma"], keys["dim"], s.workers)


def errors(result: Result) -> np.ndarray:
    """‖w̄ - w*‖² = 2·loss/λ at each evaluation of a run on the quadratic problem."""
    return 2 * result.curve["train_loss"] / quadratic(result).lam
