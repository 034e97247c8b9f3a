"""How often ADSP's search decides rightly when losses are noisy, by the losses in a probe window.

    python -m experiments.adsp.noise

Losses on ℓ(t) = 1/(0.002 t + 0.3) + 0.5 in the minute from t = 100 carry 1 % of noise, each its
own. The reward is compared with that of a curve that is 10 % or 30 % slower, ℓ(0.9 t) or ℓ(0.7 t),
in the same minute, and with that of the same curve a minute later, where neither is better; who
has no reward wins nothing. ℓ_end is near, the loss at the window's end, or far, met at t = 850.

With 3 losses 23 % of draws have no fit, with 17 some 11 %. When ℓ_end is near, the better curve
wins against one 10 % slower in 55 % of draws with 3 losses and in 77 % with 17; it hardly ever
loses, the rest has no reward. When ℓ_end is far, right and wrong are about as frequent, however
many losses.

As many losses taken in three groups, at the start, in the middle and at the end, and averaged, do
better than spread evenly: of 17 only 4 % of draws have no fit, and 90 % are right, for the bend is
seen best from there. What is averaged must have noise of its own: more batches in an evaluation
do if the noise is that of the batches, not if it is that of the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from cbdybw.algorithms.reward import Fit, fit, reward
from cbdybw.clusters.guard import guard
from experiments.figures import STYLE

LOSSES = (3, 5, 7, 9, 13, 17, 33)
NOISE, START, WINDOW = 0.01, 100.0, 60.0
DRAWS = 1000


class Decisions(NamedTuple):
    """Shares of draws in which the curve, or the other one, has the larger reward."""

    right: float
    wrong: float

    def text(self) -> str:
        return f"{100 * self.right:.0f}/{100 * self.wrong:.0f}"


class Outcome(NamedTuple):
    """What one way to take losses gives; `near` and `far` by name of the other curve."""

    no_fit: float
    near: dict[str, Decisions]
    far: dict[str, Decisions]


class Row(NamedTuple):
    """What a number of losses gives, spread evenly or averaged in three groups."""

    losses: int
    spread: Outcome
    grouped: Outcome


def true_loss(t: np.ndarray | float) -> np.ndarray | float:
    """The curve."""
    return 1 / (0.002 * t + 0.3) + 0.5


NEAR, FAR = true_loss(START + WINDOW), true_loss(850.0)
OTHERS = {"10 %": (0.9, START), "30 %": (0.7, START), "later": (1.0, START + WINDOW)}
"""Name → its pace and the start of its window."""


def study(losses: Sequence[int] = LOSSES, draws: int = DRAWS) -> list[Row]:
    """A row for each number of losses; each has random numbers of its own."""
    rows = []
    for n in losses:
        rng = np.random.default_rng(n)
        grouped_noise = NOISE / np.sqrt(n / 3)
        rows.append(Row(n, _outcome(n, NOISE, draws, rng), _outcome(3, grouped_noise, draws, rng)))
    return rows


def _outcome(points: int, noise: float, draws: int, rng: np.random.Generator) -> Outcome:
    def fits(pace: float, start: float) -> list[Fit]:
        t = np.linspace(start, start + WINDOW, points)
        factors = 1 + noise * rng.standard_normal((draws, points))
        return [fit(t, losses) for losses in true_loss(pace * t) * factors]

    curve = fits(1.0, START)
    others = {name: fits(*window) for name, window in OTHERS.items()}
    near, far = (
        {name: _decisions(curve, other, loss_end) for name, other in others.items()}
        for loss_end in (NEAR, FAR)
    )
    return Outcome(float(np.mean([bool(fitted.failure) for fitted in curve])), near, far)


def _decisions(curve: list[Fit], other: list[Fit], loss_end: float) -> Decisions:
    first = np.array([reward(fitted, loss_end) for fitted in curve])
    second = np.array([reward(fitted, loss_end) for fitted in other])
    # nan, no reward, is on neither side
    return Decisions(float((first > second).mean()), float((first < second).mean()))


def table(rows: list[Row]) -> Table:
    """Shares in per cent, in 80 columns."""
    view = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    heads = ("no fit", *(f"near\n{name}" for name in OTHERS), "far\n10 %", "far\n30 %")
    for head in ("losses", *heads, "in 3\nno fit", "in 3\n10 %", "in 3\n30 %"):
        view.add_column(head, justify="right")
    for row in rows:
        even, grouped = row.spread, row.grouped
        decided = (*even.near.values(), even.far["10 %"], even.far["30 %"])
        view.add_row(
            str(row.losses),
            f"{100 * even.no_fit:.0f}",
            *(d.text() for d in decided),
            f"{100 * grouped.no_fit:.0f}",
            grouped.near["10 %"].text(),
            grouped.near["30 %"].text(),
        )
    return view


SAYS = f"""
right/wrong decisions in % of {DRAWS} draws against a curve 10 % or 30 % slower, or
against itself later, where neither is right; the rest has no reward.
near: ℓ_end = {NEAR:.2f}, the loss at the window's end; far: ℓ_end = {FAR:.1f}.
in 3: as many losses, averaged at start, middle and end; ℓ_end is near."""


@matplotlib.rc_context(STYLE)
def draw(rows: list[Row] | None = None) -> Figure:
    """Against a curve 10 % slower: right, wrong, no fit by losses, for three ways."""
    rows = study() if rows is None else rows
    panels = {
        f"Spread evenly, ℓ_end near ({NEAR:.2f})": [(r.spread, r.spread.near) for r in rows],
        f"Spread evenly, ℓ_end far ({FAR:.1f})": [(r.spread, r.spread.far) for r in rows],
        "In three groups, ℓ_end near": [(r.grouped, r.grouped.near) for r in rows],
    }
    losses = [row.losses for row in rows]
    figure = Figure(figsize=(9.2, 3.2))
    for axes, (title, found) in zip(
        figure.subplots(1, 3, sharey=True), panels.items(), strict=True
    ):
        decided = [decisions["10 %"] for _, decisions in found]
        lines = {
            "right": ([d.right for d in decided], "o-", "#0072B2"),
            "wrong": ([d.wrong for d in decided], "v-.", "#D55E00"),
            "no fit": ([outcome.no_fit for outcome, _ in found], "s--", "#9A9A9A"),
        }
        for label, (shares, style, colour) in lines.items():
            axes.plot(losses, 100 * np.array(shares), style, color=colour, label=label)
        axes.set_title(title)
        axes.set_xlabel("losses in the probe window")
        axes.set(xscale="log", ylim=(0, 100))
        axes.set_xticks(losses, [str(n) for n in losses])
        axes.minorticks_off()
    figure.axes[0].set_ylabel("% of draws")
    figure.axes[1].legend()
    return figure


if __name__ == "__main__":
    with guard():
        console = Console(highlight=False)
        console.print(table(study()))
        console.print(SAYS)
