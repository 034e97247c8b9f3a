"""Partial recovery alone, from full checkpoints: what it saves, and how far it moves x."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from experiments import look, statistics
from experiments.scar.published import PARTIAL
from experiments.scar.reading import Trials, setting
from experiments.scar.trial import SHARES, TRADITIONAL, Mode
from experiments.statistics import Interval

COLOURS = dict(zip(SHARES, ("#56B4E9", "#0072B2", "#00405f"), strict=True))
WORDS = dict(zip(SHARES, ("¼", "½", "¾"), strict=True))
RECALLED = {"color": "#e4e4e8", "zorder": 0}


def mode(lost: float) -> Mode:
    """Partial recovery from a full checkpoint."""
    return Mode("partial", "full", 1.0, lost)


def saved(cells: list[Trials]) -> Figure:
    """By how much the cost is below that of full recovery, for each share that is lost."""
    figure = Figure(figsize=(look.FULL, 3.9))
    axes = figure.subplots()
    width = 0.8 / len(SHARES)
    for column, cell in enumerate(cells):
        for i, share in enumerate(SHARES):
            x = column + (i - 1) * width
            first = column == 0
            axes.bar(
                x, [100 * (b - a) for a, b in [PARTIAL[share]]], 0.96 * width,
                [100 * PARTIAL[share][0]], label="published range [recalled]" if i == 0 and first
                else "", **RECALLED,
            )  # fmt: skip
            _bar(axes, x, width, cell.reduction(mode(share)), share, first)
            axes.plot(
                [x - 0.44 * width, x + 0.44 * width],
                [100 * (1 - math.sqrt(cell.share_lost(mode(share))))] * 2, color="black",
                linewidth=1.3, label="1 - √p [derived]" if i == 0 and first else "",
            )  # fmt: skip
    axes.set_xticks(range(len(cells)), [cell.label for cell in cells], fontsize=7)
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="x", visible=False)
    axes.axhline(0, color="#8a8a8a", linewidth=0.8)
    axes.set_ylim(_floor(cells), 100)
    axes.set_ylabel("iteration cost saved, %")
    figure.legend(loc="outside upper center", ncols=5, fontsize=8)
    look.note(figure, setting(cells), "Saved: of the mean cost of restoring everything")
    return figure


def _bar(axes, x: float, width: float, reduction: Interval, share: float, label: bool) -> None:
    shown = reduction.map(lambda r: 100 * r)
    axes.bar(x, shown.mean, 0.62 * width, color=COLOURS[share],
             label=f"{WORDS[share]} lost" if label else "")  # fmt: skip
    if not math.isnan(shown.low):
        axes.plot([x] * 2, [max(shown.low, -1e3), shown.high], "_-", color="#D55E00", linewidth=1)


def _floor(cells: list[Trials]) -> float:
    """The lower end of the axis; an interval that goes far below is cut."""
    lows = [100 * cell.reduction(mode(p)).low for cell in cells for p in SHARES]
    least = max(-50.0, min([0.0, *(low for low in lows if not math.isnan(low))]))
    return 10.0 * math.floor(least / 10)


def norm_share(cell: Trials, lost: float) -> Interval:
    """E‖δ'‖²/‖δ‖² over trials in which x had changed since the checkpoint."""
    full, part = (cell.modes[m]["change"] for m in (TRADITIONAL, mode(lost)))
    some = full > 0
    return statistics.mean(np.square(part[some] / full[some]))


def norms(cells: list[Trials]) -> Figure:
    """E‖δ'‖²/‖δ‖² for each share that is lost, beside that share."""
    figure = Figure(figsize=(look.FULL, 3.0))
    axes = figure.subplots()
    width = 0.8 / len(SHARES)
    for column, cell in enumerate(cells):
        for i, share in enumerate(SHARES):
            x, found = column + (i - 1) * width, norm_share(cell, share)
            first = column == 0
            axes.errorbar(
                x, found.mean, 0 if math.isnan(found.low) else found.half, marker="o",
                markersize=5, elinewidth=1.2, capsize=3, color=COLOURS[share], linewidth=0,
                label=f"{WORDS[share]} lost" if first else None,
            )  # fmt: skip
            axes.plot(
                [x - 0.4 * width, x + 0.4 * width], [cell.share_lost(mode(share))] * 2,
                color="black", linewidth=1, label="p [derived]" if i == 0 and first else None,
            )  # fmt: skip
    axes.set_xticks(range(len(cells)), [cell.label for cell in cells], fontsize=7)
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="x", visible=False)
    axes.set_ylim(0, 1)
    axes.set_ylabel("mean of ‖δ'‖²/‖δ‖²")
    figure.legend(loc="outside upper center", ncols=4, fontsize=8)
    look.note(figure, setting(cells), "p: the share of the blocks, as whole blocks allow")
    return figure
