"""Bandwidth that commits need: each is a push and a pull of all parameters, 4 bytes each."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from experiments import look, statistics
from experiments.adsp.published import THREE_WORKERS
from experiments.adsp.split import commits, parameters
from experiments.reading import Result, values
from experiments.words import TITLES, model


def megabits_per_second(r: Result) -> float:
    """Of all workers together, over the run."""
    seconds = float(np.mean(r.computing + r.waiting))
    bits = 2 * commits(r) * r.settings.workers * 32 * parameters(r.settings)
    return bits / seconds / 1e6


def figure(found: dict[str, dict[float, list[Result]]]) -> Figure:
    """Algorithm → number of workers → runs: bars, beside the published numbers."""
    drawn = Figure(figsize=(look.FULL, 1.3 + 0.55 * len(found)))
    axes = drawn.subplots()
    sizes = sorted({n for by_n in found.values() for n in by_n})
    for row, (algorithm, by_n) in enumerate(found.items()):
        for n, runs in by_n.items():
            used = statistics.mean(values(runs, megabits_per_second))
            at = row + (sizes.index(n) - (len(sizes) - 1) / 2) * 0.36
            axes.barh(
                at, used.mean, 0.32, color=look.LINES[algorithm]["color"],
                alpha=1 - 0.5 * sizes.index(n) / max(1, len(sizes) - 1),
            )  # fmt: skip
            axes.annotate(
                f"{n:g} workers: {used.text()}", (used.mean, at), (4, 0),
                textcoords="offset points", va="center", fontsize=7.5,
            )  # fmt: skip
        if algorithm in THREE_WORKERS:
            axes.plot(
                THREE_WORKERS[algorithm].megabits_per_second, row, "D", markersize=7,
                markerfacecolor="white", markeredgecolor="black", zorder=5,
                label="" if row else "published, three workers [code]",
            )  # fmt: skip
    look.logarithmic(axes, "x", subs=(1, 3))
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * 4)
    axes.set_yticks(range(len(found)), [TITLES[algorithm] for algorithm in found])
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("Mbit per virtual second, pushes and pulls of all workers")
    drawn.legend(loc="outside upper right", fontsize=8)
    every = [r for by_n in found.values() for runs in by_n.values() for r in runs]
    look.note(
        drawn, every,
        f"Ours: {model(every[0].settings)} with {parameters(every[0].settings):,} parameters. The "
        "published runs have another model, three workers and other machines, and count in a way "
        "that we do not know: compare the methods with each other, not the numbers",
    )  # fmt: skip
    return drawn
