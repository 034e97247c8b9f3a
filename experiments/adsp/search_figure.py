"""What ADSP's search saw and decided in one run, and how equal its workers' commit counts are."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from cbdybw.algorithms.reward import fit, reward
from experiments import look
from experiments.reading import Probe, Result

COLOUR = look.LINES["adsp"]["color"]
ACROSS, SHOWN = 4, 8  # windows abreast, and in all


def figure(runs: list[Result], name: str) -> Figure:
    """Losses and curves of the first seed's windows above; commit counts of all seeds below."""
    first = min((r for r in runs if r.probes), key=lambda r: r.seed)
    lines = -(-min(SHOWN, len(first.probes)) // ACROSS)
    drawn = Figure(figsize=(look.FULL, 2.9 + 2.2 * lines))
    above, below = drawn.subfigures(2, height_ratios=(2.2 * lines, 2.3))
    _windows(above, first)
    counts, spread = below.subplots(1, 2)
    _counts(counts, first)
    _spread(spread, runs)
    drawn.suptitle(f"ADSP's search, {name}", x=0.01, ha="left", fontsize=10)
    look.note(
        drawn, runs,
        f"Windows and counts: seed {first.seed}. A curve is 1/(a1² t + a2) + a3; r = 1/t at which "
        "it meets the loss at the end of the later of two windows",
    )  # fmt: skip
    return drawn


def decisions(probes: list[Probe]) -> list[str]:
    """What a search made of each window, compared with the one before, in words.

    A search begins with a window and goes on for as long as one commit more has a larger reward.
    """
    said, before = [], None
    for probe in probes:
        fitted = fit(probe.seconds, probe.losses)
        begins = before is None or probe.rate != before.rate + 1
        if begins:
            why = f"no fit: {fitted.failure}" if fitted.failure else "a curve"
            said.append(f"search begins\n{why}")
        elif fitted.failure:
            said.append(f"ΔC={before.rate:g} stays\nno fit: {fitted.failure}")
        else:
            end = probe.losses[-1]
            r1, r2 = (reward(fit(p.seconds, p.losses), end) for p in (before, probe))
            better = not (math.isnan(r2) or r2 <= r1)
            one = "no reward" if math.isnan(r1) else f"{r1:.2g}"
            two = "no reward" if math.isnan(r2) else f"{r2:.2g}"
            verdict = "better" if better else f"ΔC={before.rate:g} stays"
            said.append(f"{verdict}\nr {one} → {two}")
        before = probe
    return said


def _windows(part: SubFigure, r: Result) -> None:
    """A panel for each probe: its losses, its curve, and what the search made of it."""
    probes = r.probes[:SHOWN]
    grid = part.subplots(-(-len(probes) // ACROSS), ACROSS, squeeze=False)
    for axes in list(grid.flat)[len(probes) :]:
        axes.set_axis_off()
    for axes, probe, said in zip(grid.flat, probes, decisions(probes), strict=False):
        axes.plot(probe.seconds, probe.losses, "o", color=COLOUR, markersize=3.5)
        fitted = fit(probe.seconds, probe.losses)
        if not fitted.failure:
            t = np.linspace(probe.seconds[0], probe.seconds[-1], 100)
            curve = 1 / (fitted.a1_squared * t + fitted.a2) + fitted.a3
            axes.plot(t, curve, color="#D55E00", linewidth=1.4)
        axes.set_title(f"ΔC={probe.rate:g}: {said}", fontsize=7.5, fontweight="normal")
        axes.tick_params(labelsize=7.5)
    more = len(r.probes) - len(probes)
    part.supxlabel(
        "virtual seconds" + (f"; {more} more windows follow" if more else ""), fontsize=9
    )
    part.supylabel("held-out loss", fontsize=9)


def _counts(axes: Axes, r: Result) -> None:
    """C_target, and the range of the workers' counts, at check points."""
    seconds, target, least, most = np.array(r.check_points).T
    axes.fill_between(
        seconds, least, most, color=COLOUR, alpha=0.35, linewidth=0, label="all workers"
    )
    axes.plot(seconds, least, color=COLOUR, linewidth=1.2)
    axes.plot(seconds, target, **look.IDEAL, label="C_target")
    axes.set_title("Commits of a worker at check points")
    axes.set_xlabel("virtual seconds")
    axes.legend(fontsize=8, loc="upper left")


def _spread(axes: Axes, runs: list[Result]) -> None:
    """Most - least of the workers' counts at each check point, every seed."""
    for r in runs:
        seconds, _, least, most = np.array(r.check_points).T
        axes.plot(seconds, most - least, "o", color=COLOUR, alpha=0.35, markersize=4)
    axes.axhline(1, **look.IDEAL)
    axes.set_title("Most - least commits of a worker, every seed")
    axes.set_xlabel("virtual seconds")
    top = max(c.most - c.least for r in runs for c in r.check_points)
    axes.set_ylim(-0.2, max(2.2, 1.1 * top))
    axes.set_yticks(range(0, int(max(2, top)) + 1, max(1, int(top) // 5)))
