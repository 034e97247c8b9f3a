"""The claims about what is saved when parameters are lost.

Ranges were fixed before the short scale had been run, and are not changed by what it gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from experiments import statistics
from experiments.claims import SEPARATOR, Claim, Evidence, Rows
from experiments.scar import partial, policies, published, reading, staleness
from experiments.scar.partial import WORDS
from experiments.scar.reading import Trials, setting
from experiments.scar.trial import FRACTIONS, HALF, SCAR, SHARES, TRADITIONAL, Mode
from experiments.statistics import Interval

Verdict = dict[str, Any]

NEAR = 0.06
"""By which the mean of ‖δ'‖²/‖δ‖² may be beside p [choice]."""
CLOSE = 0.05
"""By which bytes and ages may be beside what they should be, relative [choice]."""


def headline(rows: Rows) -> Verdict:
    """Abstract: partial failures cost 78 to 95 % fewer iterations."""
    low, high = published.HEADLINE
    claim = Claim(
        "SCAR lowers the iteration cost of partial failures by 78 to 95 %",
        "[paper]; that ½ is lost and r = 1/8: [recalled]",
        f"{low:.0%} to {high:.0%}",
        f"partial recovery, priority, r = 1/8, ½ lost: at least {low:.0%} is saved",
        reading.percent,
    )
    cells = _costly(rows)
    return _judged(
        claim, {c.name: Evidence(c.reduction(SCAR), low, math.inf) for c in cells}, cells
    )


def partial_alone(rows: Rows) -> Verdict:
    """Study of partial recovery from full checkpoints."""
    ranges = ", ".join(f"{WORDS[p]} lost: {a:.0%} to {b:.0%}" for p, (a, b) in _ranges())
    claim = Claim(
        "Partial recovery alone saves a part of the cost that grows as less is lost",
        "[recalled]",
        ranges,
        "what is saved lies in the range",
        reading.percent,
    )
    cells = _costly(rows)
    evidence = {
        f"{c.name}{SEPARATOR}{WORDS[p]}": Evidence(c.reduction(partial.mode(p)), *ends)
        for c in cells
        for p, ends in _ranges()
    }
    return _judged(claim, evidence, cells)


def _ranges() -> list[tuple[float, tuple[float, float]]]:
    return sorted(published.PARTIAL.items())


def norm(rows: Rows) -> Verdict:
    """Theorem 4.2."""
    claim = Claim(
        "Losing a random share p of the parameters perturbs by p of the square norm: "
        "E‖δ'‖² = p‖δ‖²",
        "[derived]",
        "p",
        f"the mean of ‖δ'‖²/‖δ‖² - p is 0 ± {NEAR} [choice]",
        lambda v: v.plus_minus("z.3f"),
    )
    cells = _cells(rows)
    evidence = {
        f"{c.name}{SEPARATOR}{WORDS[p]}": Evidence(_off(c, p), -NEAR, NEAR)
        for c in cells
        for p in SHARES
    }
    return _judged(claim, evidence, cells)


def _off(cell: Trials, p: float) -> Interval:
    lost = cell.share_lost(partial.mode(p))
    return partial.norm_share(cell, p).map(lambda share: share - lost)


def priority_is_best(rows: Rows) -> Verdict:
    """Study of policies."""
    claim = Claim(
        "Saving first what changed most is better than saving in turn, at random, or everything",
        "[recalled]",
        "best everywhere",
        "its cost - the other's at the same r, paired by trial, is at most 0",
        lambda v: v.plus_minus("z.2f"),
    )
    cells = _cells(rows)
    evidence = {}
    for cell in cells:
        for name, mine, other in _rivals():
            found = _difference(cell, mine, other)
            evidence[f"{cell.name}{SEPARATOR}{name}"] = Evidence(found, -math.inf, 0.0)
    return _judged(claim, evidence, cells)


def _rivals() -> Iterator[tuple[str, Mode, Mode]]:
    """Priority against each other policy at each r."""
    for r in FRACTIONS:
        mine = policies.mode("priority", r)
        for how in ("round", "random"):
            yield f"r={r:g} {how}", mine, policies.mode(how, r)
        yield f"r={r:g} full", mine, partial.mode(HALF)


def others_are_no_better(rows: Rows) -> Verdict:
    """The same study: what priority is needed for."""
    claim = Claim(
        "Saving in turn or at random more often is no better than full checkpoints",
        "[recalled]; of the ages of copies: [derived]",
        "often no better",
        "their cost - that of full checkpoints, both with partial recovery of ½, paired by trial, "
        "is at least 0",
        lambda v: v.plus_minus("z.2f"),
    )
    cells = _cells(rows)
    evidence = {
        f"{c.name}{SEPARATOR}{how} r={r:g}": Evidence(
            _difference(c, policies.mode(how, r), partial.mode(HALF)), 0.0, math.inf
        )
        for c in cells
        for how in ("round", "random")
        for r in FRACTIONS
    }
    return _judged(claim, evidence, cells)


def _difference(cell: Trials, mine: Mode, other: Mode) -> Interval:
    """Of costs, paired by trial."""
    return statistics.mean(cell.modes[mine]["cost"] - cell.modes[other]["cost"])


def bytes_are_equal(rows: Rows) -> Verdict:
    """Running checkpoints write no more than full ones."""
    claim = Claim(
        "A running checkpoint writes the same number of bytes in C iterations for every r",
        "[derived]",
        "1",
        f"values saved in C iterations are 1 ± {CLOSE} times all [choice]; a block that is larger "
        "than what may be saved is waited for",
        Interval.text,
    )
    cells = _cells(rows)
    evidence = {
        f"{c.name}{SEPARATOR}{_words(m)}": Evidence(
            _plain(np.mean(c.modes[m]["values"]), c.n), 1 - CLOSE, 1 + CLOSE
        )
        for c in cells
        for m in c.modes
        if m.lost == HALF
    }
    return _judged(claim, evidence, cells)


def ages(rows: Rows) -> Verdict:
    """How old copies are."""
    claim = Claim(
        "Copies saved in turn are as old as full checkpoints', for every r; at random older",
        "[derived]",
        "(C-1)/2 in turn; C - rC/2 - ½ at random",
        f"the mean age / the expected one, which knows how long runs are, is 1 ± {CLOSE} [choice]",
        Interval.text,
    )
    cells = _cells(rows)
    evidence = {}
    for c in cells:
        for m in c.modes:
            expected = staleness.expected(c, m)
            if m.lost == HALF and not math.isnan(expected):
                ratio = statistics.mean(c.modes[m]["age"] / expected)
                found = _plain(ratio.mean, c.n) if m.policy != "random" else ratio
                evidence[f"{c.name}{SEPARATOR}{_words(m)}"] = Evidence(found, 1 - CLOSE, 1 + CLOSE)
    return _judged(claim, evidence, cells)


def _words(mode: Mode) -> str:
    return f"{mode.policy} r={mode.fraction:g}" + (" all" if mode == TRADITIONAL else "")


def _plain(value: float, n: int) -> Interval:
    """A number that is no estimate."""
    return Interval(float(value), math.nan, math.nan, n)


def _cells(rows: Rows) -> list[Trials]:
    return reading.cells(rows.get("recovery", []), "trials")


def _costly(rows: Rows) -> list[Trials]:
    """Those cells whose traditional scheme costs anything: of the others nothing can be saved."""
    return [c for c in _cells(rows) if c.cost(TRADITIONAL).mean > 0]


def _judged(claim: Claim, evidence: dict[str, Evidence], cells: list[Trials]) -> Verdict:
    if not evidence:
        return claim.untested("trials in group recovery")
    return claim.judged(evidence, setting(cells))


CLAIMS = (
    headline,
    partial_alone,
    priority_is_best,
    others_are_no_better,
    norm,
    bytes_are_equal,
    ages,
)
