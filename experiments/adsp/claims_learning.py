"""The claims about learning: commits are equally many, and all runs converge.

Ranges were fixed before the short scale had been run, and are not changed by what it gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from experiments.adsp import sweeps, targets
from experiments.claims import SEPARATOR, Claim, Evidence, Rows
from experiments.reading import Result, by_cell, read, select
from experiments.statistics import Interval
from experiments.words import law, model

SPREAD = 1
"""Commits that two workers may be apart at a check point [derived]."""

Verdict = dict[str, Any]


def equal_commits(rows: Rows) -> Verdict:
    """Section on the parameter server: at check points all have committed equally often."""
    claim = Claim(
        "At every check point all workers have made equally many commits",
        "[paper]",
        "equal",
        f"with due times, the largest range of commits at a check point is at most {SPREAD}",
        Interval.text,
    )
    cells = _online(rows, "race", "heterogeneity", "scale")
    if not cells:
        return claim.untested("adsp in groups race, heterogeneity and scale")
    evidence = {
        name: Evidence(_largest(map(_range, runs)), 0.0, SPREAD) for name, runs in cells.items()
    }
    restarting = [r for r in _adsp(rows, "variants") if r.settings.commit_timer == "restart"]
    beside = ""
    if restarting:
        beside = f"With timers that restart: {_largest(map(_range, restarting)).text()}"
    return claim.judged(evidence, [r for runs in cells.values() for r in runs], beside)


def _range(r: Result) -> float:
    """Most - least commits of a worker, at the check point where they are furthest apart."""
    return max(check.most - check.least for check in r.check_points)


def converges(rows: Rows) -> Verdict:
    """Theorem 2: with commits equally many, ADSP converges."""
    claim = Claim(
        "ADSP converges",
        "[paper]",
        "converges",
        "every seed comes to the target ten times and ends at or below it: "
        "the largest final loss - target is at most 0",
        Interval.text,
    )
    cells = _online(rows, "race", "heterogeneity", "scale", "delay")
    if not cells:
        return claim.untested("adsp in groups race, heterogeneity, scale and delay")
    evidence = {
        name: Evidence(_largest(map(_above_target, runs)), -math.inf, 0.0)
        for name, runs in cells.items()
    }
    return claim.judged(evidence, [r for runs in cells.values() for r in runs])


def _above_target(r: Result) -> float:
    """The final loss above the target; nan where the run never got there."""
    if math.isnan(targets.arrival(r)):
        return math.nan
    return float(r.looks["held_out_loss"][-1]) - r.settings.target_loss


def _largest(numbers: Iterable[float]) -> Interval:
    """Of every seed's number, for what is claimed of all of them; nan where one of them is."""
    found = np.array(list(numbers))
    return Interval(float(found.max()), math.nan, math.nan, len(found))


def _adsp(rows: Rows, *groups: str) -> list[Result]:
    found = [r for group in groups for r in read(rows.get(group, []))]
    return [r for r in select(targets.looked(found), algorithm="adsp") if r.check_points]


def _online(rows: Rows, *groups: str) -> dict[str, list[Result]]:
    """Cells of ADSP with its search and due times, by setting; equal ones of two groups once."""
    found = [r for r in _adsp(rows, *groups) if r.settings.commit_timer == "due" and r.check_points]
    cells: dict[str, list[Result]] = {}
    for runs in by_cell(found).values():
        s = runs[0].settings
        extra = sweeps.extra_seconds(s)
        parts = [model(s), f"to {s.target_loss:g}", law(s.delay)]
        parts += [f"commits {extra:g} s longer"] if extra else []
        cells.setdefault(SEPARATOR.join(parts), runs)
    return cells


CLAIMS = (equal_commits, converges)
