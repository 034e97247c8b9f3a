"""Running checkpoints by priority, in turn and at random, and the paper's main claim."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import look
from experiments.scar import partial
from experiments.scar.published import HEADLINE
from experiments.scar.reading import Trials, setting
from experiments.scar.trial import FRACTIONS, HALF, SCAR, TRADITIONAL, Mode

STYLES = {
    "priority": {"color": "#0072B2", "linestyle": "-", "marker": "o", "linewidth": 2.0},
    "round": {"color": "#009E73", "linestyle": "-.", "marker": "s", "linewidth": 1.5},
    "random": {"color": "#CC79A7", "linestyle": "--", "marker": "^", "linewidth": 1.5},
}
ACROSS = 3


def mode(policy: str, fraction: float) -> Mode:
    """Partial recovery of half of the blocks."""
    return Mode("partial", policy, fraction, HALF)


def compared(cells: list[Trials]) -> Figure:
    """Cost by policy and fraction, beside those of full checkpoints; a panel for each cell."""
    lines = -(-len(cells) // ACROSS)
    figure = Figure(figsize=(look.FULL, 0.9 + 2.3 * lines))
    panels = list(figure.subplots(lines, ACROSS, squeeze=False).flat)
    for axes in panels[len(cells) :]:
        axes.set_axis_off()
    for axes, cell in zip(panels, cells, strict=False):
        _panel(axes, cell)
        axes.set_title(cell.name)
    for axes in panels[: len(cells) : ACROSS]:
        axes.set_ylabel("iteration cost")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, fontsize=8)
    look.note(figure, setting(cells), "Half of the blocks are lost; bars are 95 % intervals")
    return figure


def _panel(axes: Axes, cell: Trials) -> None:
    for i, (policy, style) in enumerate(STYLES.items()):
        costs = [cell.cost(mode(policy, r)) for r in FRACTIONS]
        axes.errorbar(
            [k + 0.06 * (i - 1) for k in range(len(FRACTIONS))], [c.mean for c in costs],
            [0 if math.isnan(c.low) else c.half for c in costs], markersize=4, elinewidth=0.9,
            capsize=2, label=policy, **style,
        )  # fmt: skip
    for m, name, style in (
        (TRADITIONAL, "everything restored from full checkpoints", "-"),
        (partial.mode(HALF), "the lost restored from full checkpoints", ":"),
    ):
        axes.axhline(cell.cost(m).mean, color="#555555", linestyle=style, linewidth=1.1, label=name)
    axes.set_xticks(range(len(FRACTIONS)), ["r = 1/8", "1/4", "1/2"])
    axes.set_xlim(-0.4, len(FRACTIONS) - 0.6)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.grid(axis="x", visible=False)


def headline(cells: list[Trials]) -> Figure:
    """What partial recovery from priority checkpoints saves of the traditional scheme's cost."""
    figure = Figure(figsize=(look.FULL, 1.3 + 0.36 * len(cells)))
    axes = figure.subplots()
    low, high = (100 * end for end in HEADLINE)
    axes.axvspan(low, high, **partial.RECALLED, label="published: 78 to 95 % [paper]")
    for row, cell in enumerate(cells):
        saved = cell.reduction(SCAR).map(lambda r: 100 * r)
        axes.barh(row, saved.mean, 0.6, color=STYLES["priority"]["color"])
        if not math.isnan(saved.low):
            axes.plot(
                [max(saved.low, -1e3), saved.high], [row] * 2, "|-", color="#D55E00", linewidth=1
            )
        costs = " against ".join(f"{cell.cost(m).mean:.2f}" for m in (SCAR, TRADITIONAL))
        share = "–" if math.isnan(saved.mean) else f"{saved.mean:.0f} %"
        axes.text(
            1.01, row, f"{share}: {costs}", transform=axes.get_yaxis_transform(),
            va="center", fontsize=8,
        )  # fmt: skip
    axes.set_yticks(range(len(cells)), [cell.name for cell in cells])
    axes.set_ylim(len(cells) - 0.5, -0.5)
    left = min([0.0, *(100 * c.reduction(SCAR).low for c in cells if c.n > 1)])
    axes.set_xlim(max(-50.0, left), 100)
    axes.axvline(0, color="#8a8a8a", linewidth=0.8)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("iteration cost saved, % (½ lost; partial recovery, priority, r = 1/8)")
    figure.legend(loc="outside upper center", fontsize=8)
    look.note(figure, setting(cells))
    return figure
