"""What ADSP's theory predicts from speeds and commit rates, for tests and for the report.

Symbols as in Hu, Wang and Wu (2020): M workers; v_i speed of worker i, minibatches per second;
Γ seconds between two check points; ΔC_i commits of worker i in one Γ; O seconds a commit takes.
Speeds, rates and overheads may be one number for all workers or one for each.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike

from cbdybw.errors import BadInput


def implicit_momentum(gamma_over_speed: Sequence[float], rates: ArrayLike) -> float:
    """Theorem 1: μ = 1 - p with p = 1/(1 + (1 - 1/M) Σ_i Γ/(ΔC_i v_i)).

    `gamma_over_speed` holds Γ/v_i for each worker. As printed the sum is no pure number: 1 minute
    over 20 minibatches a minute is 0.05, the same in seconds is 180. The authors' code puts in 0.05
    for each of 18 workers [code] and does not tell the unit, so compare μ between settings of one
    unit; its absolute value stands on that number.
    """
    ratios = np.asarray(gamma_over_speed, float)
    total = float((ratios / rates).sum())
    return 1 - 1 / (1 + (1 - 1 / len(ratios)) * total)


def heterogeneity(speeds: Sequence[float]) -> float:
    """H = (Σ v_i / M) / min v_i [code]: 1 where all are equal."""
    return float(np.mean(speeds) / np.min(speeds))


def slowdown(speeds: Sequence[float], slowed: Collection[int], wanted: float) -> float:
    """The factor s ≥ 1 by which the workers `slowed` are slowed together to make H `wanted`.

    Once the slowest of the group, of speed b, is the slowest of all, H = (A + B/s)/M / (b/s) with A
    and B the speeds of the others and of the group: H grows with s from there on without end.
    Raises BadInput where no such s gives it.
    """
    v = np.asarray(speeds, float)
    group = np.isin(np.arange(len(v)), list(slowed))
    if not group.any() or group.all():
        raise BadInput(
            f"heterogeneity={wanted:g}: {group.sum()} of {len(v)} workers are slowed; "
            "slow some and leave some as they are"
        )
    slowest = v[group].min()
    least_s = max(1.0, slowest / v[~group].min())
    least = heterogeneity(np.where(group, v / least_s, v))
    if not least <= wanted:
        raise BadInput(
            f"heterogeneity={wanted:g}: slowing {group.sum()} of {len(v)} workers gives "
            f"{least:.4g} at least; use more than that"
        )
    s = (wanted * len(v) * slowest - v[group].sum()) / v[~group].sum()
    return max(float(s), least_s)  # equal but for rounding where `wanted` is the least


def adsp_steps(
    speeds: Sequence[float], rates: ArrayLike = 0, gamma: float = 60, overhead: ArrayLike = 0
) -> float:
    """Steps per second of all workers under ADSP: Σ v_i (1 - ΔC_i O_i/Γ), for nobody waits.

    Commits fall after steps: however high its rate, a worker makes one a step at most.
    """
    v, o = np.asarray(speeds, float), np.asarray(overhead)
    share = 1 - np.asarray(rates) * o / gamma
    return float(np.maximum(v * share, 1 / (1 / v + o)).sum())


def bsp_steps(speeds: Sequence[float], overhead: float = 0) -> float:
    """Steps per second of all workers where every step waits for the slowest."""
    return fixed_adacomm_steps(speeds, 1, overhead)


def fixed_adacomm_steps(speeds: Sequence[float], tau: int, overhead: float = 0) -> float:
    """The same where all wait after τ steps each: M τ/(τ/min v + O)."""
    return len(speeds) * tau / (tau / min(speeds) + overhead)


def equalises(step: float, overhead: float, gamma: float, rate: float) -> bool:
    """Whether timers with due times keep commit counts within 1 of each other at check points.

    Commit n is due at n Γ/ΔC - O from the check point; made after the step that is under way, it is
    in time if step + O ≤ Γ/(2 ΔC). A timer that restarts at each commit loses up to a step a time.
    """
    return step + overhead <= gamma / (2 * rate)
