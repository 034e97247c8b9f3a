"""The claims about the bound on the cost of a perturbation.

Ranges were fixed before the short scale had been run, and are not changed by what it gives.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from experiments.claims import SEPARATOR, Claim, Evidence, Rows
from experiments.scar import reading
from experiments.scar.bound import broken, share_broken
from experiments.scar.reading import Points, setting
from experiments.statistics import Interval

Verdict = dict[str, Any]

FEW = 0.1
"""Share of perturbations that may cost more than the bound [choice]: it compares worst cases."""
TIGHT = 0.05
"""Iterations by which the mean cost of a tight case may be beside the bound [choice]."""


def holds(rows: Rows) -> Verdict:
    """Theorem 3.2, and its study."""
    claim = Claim(
        "The iteration cost of a perturbation stays below the bound of Theorem 3.2",
        "[recalled]; that it compares worst cases: [derived]",
        "below, adversarial ones close to it",
        f"at most {FEW:.0%} of a kind cost a whole iteration more than the bound [choice]",
        _percent,
    )
    cells = [c for c in _cells(rows) if not c.settings.tight]
    if not cells:
        return claim.untested("perturbations in group bound")
    evidence = {
        f"{c.name}{SEPARATOR}{kind}": Evidence(share_broken(c, kind), 0.0, FEW)
        for c in cells
        for kind in c.kinds
    }
    cautious = "; ".join(f"{c.name} {int(broken(c, 'cautious').sum())}" for c in cells)
    all_points = "; ".join(f"{c.name} {len(broken(c))}" for c in cells)
    beside = f"Above the cautious bound: {cautious}; of {all_points}"
    return claim.judged(evidence, setting(cells), beside)


def is_tight(rows: Rows) -> Verdict:
    """Start and perturbation along the slowest direction."""
    claim = Claim(
        "Along the slowest direction the cost is the bound, up to whole iterations",
        "[derived]",
        "1.683 for (T, ‖δ‖) = (50, 0.01), 10.236 for (50, 0.1); c = 0.9, ‖x(0) - x*‖ = 10",
        f"the mean over targets - the bound is 0 ± {TIGHT} iterations [choice], and no cost is a "
        "whole iteration beside it",
        lambda v: v.plus_minus("z.3f"),
    )
    cells = [c for c in _cells(rows) if c.settings.tight]
    if not cells:
        return claim.untested("the tight cases in group bound")
    evidence = {}
    for (at, norm), off in _offsets(cells[0]).items():
        mean = float(np.mean(off)) if np.abs(off).max() < 1 else math.inf
        evidence[f"T={at:g}, ‖δ‖={norm:g}"] = Evidence(
            Interval(mean, math.nan, math.nan, len(off)), -TIGHT, TIGHT
        )
    return claim.judged(evidence, setting(cells))


def _offsets(cell: Points) -> dict[tuple[float, float], np.ndarray]:
    """Case → cost - bound for each target."""
    columns = cell.columns
    cases = dict.fromkeys(zip(columns["at"].tolist(), columns["norm"].tolist(), strict=True))
    off = columns["cost"] - columns["bound"]
    return {case: off[(columns["at"] == case[0]) & (columns["norm"] == case[1])] for case in cases}


def _percent(share: Interval) -> str:
    return f"{share.map(lambda s: 100 * s).text('.0f')} %"


def _cells(rows: Rows) -> list[Points]:
    return reading.cells(rows.get("bound", []), "perturbed")


CLAIMS = (holds, is_tight)
