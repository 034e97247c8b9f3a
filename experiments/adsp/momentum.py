"""The commit rate ΔC: the implicit momentum that it brings, and how soon a loss is reached (group
`momentum`).

Commits that are made of steps at an older model act like momentum: the more of them there are in a
check period, the less [paper: Theorem 1]. The paper concludes that there is a best ΔC, which the
online search looks for. Expect μ to fall with ΔC, and the time to the target to have a minimum.

    python -m experiments.reproduce --paper=adsp --figures_only --out=RESULTS
    python -m experiments.adsp.momentum RESULTS

Whether updates really have such a momentum is measured by `experiments.adsp.implicit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cbdybw.commit_theory import implicit_momentum
from experiments import alone, look, statistics
from experiments.adsp.split import speeds
from experiments.figures import STYLE
from experiments.reading import Result, read, select, split, values
from experiments.settings import Settings
from experiments.statistics import Interval

TITLE = "The commit rate"
SAYS = (
    "Left: μ of Theorem 1. As printed its sum of Γ/(ΔC v) has the unit of a time per step, so μ "
    "stands on the unit of Γ and v: the authors put in 0.05 for each of 18 workers [code]. Middle "
    "and right: runs whose commit rate is fixed, without a search; bars are 95 % intervals, a thin "
    "line is a seed's."
)
AUTHORS = 0.05  # Γ/v of each worker [code]
COLOUR = look.LINES["adsp"]["color"]


class Rate(NamedTuple):
    """Runs with one ΔC: seconds to the target, at the first and the tenth look that is there, and
    the held-out loss in the end."""

    rate: int
    first: Interval
    tenth: Interval
    loss: Interval
    runs: list[Result]


def found(rows: list[dict[str, Any]]) -> list[Rate]:
    """One for each commit rate, ascending."""
    fixed = [r for r in select(read(rows), algorithm="adsp") if r.settings.commit_rate]
    return [
        Rate(
            rate,
            statistics.mean(values(runs, lambda r: r.held_out_time)),
            statistics.mean(values(runs, lambda r: r.held_out_tenth)),
            statistics.mean(values(runs, lambda r: r.value("held_out_loss"))),
            runs,
        )
        for (rate,), runs in split(fixed, "commit_rate").items()
    ]


def theory(s: Settings) -> dict[str, list[float]]:
    """Whose Γ/v_i in what unit → Γ/v_i of each worker."""
    gamma, v = s.check_period * s.time_factor, speeds(s)
    return {
        "Γ/v = 0.05, 18 workers [code]": [AUTHORS] * 18,
        "these machines, minutes": list(gamma / 60 / (60 * v)),
        "these machines, seconds": list(gamma / v),
    }


@matplotlib.rc_context(STYLE)
def draw(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """One figure: μ, time and loss against ΔC."""
    rates = found(rows)
    if not rates:
        return {}
    runs = [r for rate in rates for r in rate.runs]
    figure = Figure(figsize=(look.FULL, 3.4))
    left, middle, right = figure.subplots(1, 3)
    _theory(left, theory(runs[0].settings))
    target = runs[0].settings.target_loss
    middle.set_title(f"Time to a held-out loss of {target:g}")
    middle.set_ylabel("virtual seconds")
    _seeds(middle, rates, lambda r: r.held_out_time)
    _points(middle, rates, lambda r: r.first, "o", "first look that is there", -0.08)
    _points(middle, rates, lambda r: r.tenth, "s", "tenth, as the authors", 0.08)
    _reach(middle, rates)
    right.set_title("Held-out loss in the end")
    right.set_ylabel(f"after {max(r.settings.max_time for r in runs):g} virtual seconds")
    _seeds(right, rates, lambda r: r.value("held_out_loss"))
    _points(right, rates, lambda r: r.loss, "o", "", 0.0)
    for axes in figure.axes:
        axes.set_xlabel("ΔC, commits in a check period Γ")
        axes.set_xticks(range(0, 11, 2))
        axes.set_xlim(0, 10.6)
    there = [i.mean for rate in rates for i in (rate.first, rate.tenth) if not math.isnan(i.mean)]
    if there:
        middle.legend(fontsize=7.5, loc="upper right")
    middle.set_ylim(0, 1.5 * max(there) if there else None)
    look.note(figure, runs)
    return {"momentum": figure}


def _theory(axes: Axes, workers: dict[str, list[float]]) -> None:
    rates = np.geomspace(0.25, 10, 60)
    lines = zip(workers.items(), ("-", "--", ":"), ("#555555", COLOUR, COLOUR), strict=True)
    for (name, ratios), style, colour in lines:
        mu = [implicit_momentum(ratios, rate) for rate in rates]
        axes.plot(rates, mu, style, color=colour, linewidth=1.8, label=name)
    axes.set_title("Implicit momentum μ, theory")
    axes.set_ylabel("μ")
    axes.set_ylim(0, 1.42)
    axes.set_yticks(np.arange(0, 1.1, 0.25))
    axes.legend(fontsize=7.5, loc="upper right")


def _points(
    axes: Axes,
    rates: Sequence[Rate],
    number: Callable[[Rate], Interval],
    marker: str,
    label: str,
    shift: float,
) -> None:
    x = np.array([rate.rate + shift for rate in rates])
    y = [number(rate) for rate in rates]
    axes.errorbar(
        x, [i.mean for i in y], np.nan_to_num([i.half for i in y]), fmt=marker, capsize=2,
        color=COLOUR, markerfacecolor=COLOUR if marker == "o" else "white", label=label,
    )  # fmt: skip


def _seeds(axes: Axes, rates: Sequence[Rate], number: Callable[[Result], float]) -> None:
    """A line for each seed: what a seed does to all rates is no difference between them."""
    for seed in sorted({r.seed for rate in rates for r in rate.runs}):
        runs = [r for rate in rates for r in rate.runs if r.seed == seed]
        x = [r.settings.commit_rate for r in runs]
        axes.plot(x, [number(r) for r in runs], color="#9A9A9A", linewidth=0.7)


def _reach(axes: Axes, rates: Sequence[Rate]) -> None:
    """A cross, and how many come to the target, where not all do, or not for ten looks."""
    for rate in rates:
        if math.isnan(rate.tenth.mean):
            there = sum(not math.isnan(r.held_out_tenth) for r in rate.runs)
            axes.annotate(
                f"×\n{there}/{len(rate.runs)}", (rate.rate, 0.02),
                xycoords=("data", "axes fraction"), ha="center", fontsize=8, color="#D55E00",
            )  # fmt: skip
    if any(math.isnan(rate.tenth.mean) for rate in rates):
        axes.annotate(
            "× not all seeds get there ten times", (0.02, 0.16), xycoords="axes fraction",
            fontsize=7.5, color="#D55E00",
        )  # fmt: skip


if __name__ == "__main__":
    alone.main("momentum", draw)
