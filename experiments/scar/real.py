"""Servers and a worker killed for real, measured beside simulated (group `real`).

Four servers and three workers are MPI ranks, and SIGKILL ends half of the servers, or a worker, in
a given iteration. Expect the same iteration costs on the virtual cluster: what is computed depends
on neither clock. Only the newest save may be lost with its server on its way to disk, which the
virtual cluster, where saving takes no time, does not know.

    python -m experiments.reproduce --paper=scar --figures_only --out=RESULTS
    python -m experiments.scar.real RESULTS
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cbdybw import specs
from experiments import alone, look, statistics
from experiments.figures import STYLE
from experiments.reading import Result, read, split
from experiments.rows import Row
from experiments.scar.failures import ITERATIONS, SECONDS, arrivals, costs, file, losses, repairs
from experiments.scar.reading import NAMES, WORDS
from experiments.statistics import Values
from experiments.words import law

TITLE = "Ranks that are really killed"
SAYS = (
    "Four parameter servers and three workers on MPI ranks; two servers, which hold half of the "
    "blocks, or one worker end by SIGKILL. Survivors share the lost blocks out and read them from "
    "the running checkpoints on disk. The virtual cluster has the same flags and the same file of "
    "faults. Iteration cost: iterations to the criterion beyond those of the failure-free run of "
    "the same seed on the same cluster. Wall seconds are those of this machine's cores, which all "
    "ranks share; a gradient takes at least the time of the delay law, so that they mean something."
)

Schemes = Mapping[str, list[Result]]
SCHEMES = {
    "clean": ("nothing is lost", "#9A9A9A"),
    "scar": ("½ of the servers lost: SCAR", "#0072B2"),
    "traditional": ("… everything restored\nfrom full checkpoints", "#D55E00"),
    "worker": ("a worker lost", "#009E73"),
}
"""Names in cells → words and colours."""
CLUSTERS = {"mpi": ("measured on MPI", 1.0), "virtual": ("simulated", 0.45)}
"""And how strong a bar's colour is."""


def scheme(r: Result) -> str:
    """What was lost and how it was recovered, one of SCHEMES."""
    if not r.settings.faults:
        return "clean"
    if "worker" in file(r):
        return "worker"
    return "traditional" if r.settings.recovery == "full" else "scar"


def learnt(rows: list[Row]) -> dict[str, dict[str, Schemes]]:
    """What is learnt, in words → cluster → scheme → runs."""
    found: dict[str, dict[str, dict[str, list[Result]]]] = {}
    for runs in split(read(rows), "workload", "dataset").values():
        by_cluster = found.setdefault(name(runs[0]), {})
        for r in runs:
            by_cluster.setdefault(r.settings.cluster, {}).setdefault(scheme(r), []).append(r)
    return found


def name(r: Result) -> str:
    """What is learnt from what: `LDA, 20 Newsgroups`."""
    workload, data = specs.parse(r.settings.workload, "--workload")[0], r.settings.dataset
    return f"{workload.upper()}, {(NAMES | WORDS).get(data, data)}"


def of_scheme(schemes: Schemes, which: str, what: str = ITERATIONS) -> Values:
    """Seed → cost of a scheme on a cluster; of none where a run of the kind is missing."""
    return costs(schemes.get(which, []), schemes.get("clean", []), what)


@matplotlib.rc_context(STYLE)
def draw(rows: list[Row]) -> dict[str, Figure]:
    """Costs and times of all schemes, and one failure by the clock."""
    found = learnt(rows)
    figures = {"real-1-costs": _costs(found)} if found else {}
    failed = {
        name: by_cluster["mpi"]
        for name, by_cluster in found.items()
        if any(repairs(r) for runs in by_cluster.get("mpi", {}).values() for r in runs)
    }
    if failed:
        figures["real-2-failure"] = _failures(failed)
    return figures


# Costs


def _costs(found: dict[str, dict[str, Schemes]]) -> Figure:
    figure = Figure(figsize=(look.FULL, 0.9 + 2.6 * len(found)))
    grid = figure.subplots(len(found), 2, squeeze=False, sharey=True)
    for (left, right), (title, by_cluster) in zip(grid, found.items(), strict=True):
        for axes, what in ((left, ITERATIONS), (right, SECONDS)):
            _bars(axes, by_cluster, what)
        left.set_title(title)
        left.set_xlabel("iteration cost: iterations beyond the failure-free run's")
        right.set_xlabel("seconds to the criterion: wall (MPI), virtual (simulated)")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=8)
    every = [r for by in found.values() for schemes in by.values() for rs in schemes.values()
             for r in rs]  # fmt: skip
    look.note(figure, setting(every), "Bars: means over seeds; circles: single seeds")
    return figure


def _bars(axes: Axes, by_cluster: dict[str, Schemes], what: str) -> None:
    for row, (which, (_, color)) in enumerate(SCHEMES.items()):
        for i, (cluster, (_, strength)) in enumerate(CLUSTERS.items()):
            schemes = by_cluster.get(cluster, {})
            found = (
                of_scheme(schemes, which) if what == ITERATIONS
                else arrivals(schemes.get(which, []), what)
            )  # fmt: skip
            if not found:
                continue
            y, mean = row + 0.38 * i - 0.19, statistics.mean(found)
            axes.barh(y, np.nan_to_num(mean.mean), 0.34, color=color, alpha=strength)
            axes.plot(
                list(found.values()), [y] * len(found), "o", markerfacecolor="white",
                markeredgecolor="black", markersize=3.2, markeredgewidth=0.7,
            )  # fmt: skip
            end = np.nanmax([0.0, *found.values()])
            axes.annotate(
                f"{mean.mean:.3g}" if not math.isnan(mean.mean) else "not reached", (end, y),
                (6, 0), textcoords="offset points", va="center", fontsize=8,
            )  # fmt: skip
    for words, strength in CLUSTERS.values():
        axes.barh(0, 0, color="#333333", alpha=strength, label=words)
    axes.axvline(0, color="#8a8a8a", linewidth=0.8)
    axes.set_yticks(range(len(SCHEMES)), [words for words, _ in SCHEMES.values()])
    axes.set_ylim(len(SCHEMES) - 0.5, -0.5)
    axes.set_axisbelow(True)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.15)


def setting(runs: Sequence[Result]) -> str:
    """What is learnt to which criterion, where, and what is saved and lost: without it no number
    means anything."""
    s = runs[0].settings
    ends = dict.fromkeys(f"{name(r)}, to {r.settings.target_loss:g}" for r in runs)
    repaired = sorted({loss["iteration"] for r in runs for loss in losses(r)})
    seeds = sorted({r.seed for r in runs})
    parts = [
        "; ".join(ends),
        f"{s.workers} workers, {s.servers} servers",
        f"a gradient takes {law(s.delay)}",
        f"C = {s.checkpoint_period}, r = 1/8 by priority or everything",
        f"a loss is repaired in iteration {', '.join(map(str, repaired)) or '–'}",
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}",
        *(["NOT the original data"] if any(r.notice for r in runs) else []),
    ]
    return " · ".join(parts)


# One failure


def _failures(found: dict[str, Schemes]) -> Figure:
    """Loss by wall seconds around the failure of the first seed."""
    figure = Figure(figsize=(look.FULL, 0.8 + 2.7 * len(found)))
    shown = []
    for axes, (title, schemes) in zip(
        figure.subplots(len(found), 1, squeeze=False).flat, found.items(), strict=True
    ):
        for which in ("scar", "traditional"):
            runs = [r for r in schemes.get(which, []) if repairs(r)]
            if runs:
                shown.append(runs[0])
                _failure(axes, runs[0], *SCHEMES[which])
        axes.set_title(title)
        axes.set_ylabel("criterion")
        axes.legend(fontsize=8, loc="upper right")
    figure.axes[-1].set_xlabel("wall seconds since the first server was killed")
    look.note(figure, setting(shown), "Shaded: from the notice to where training goes on")
    return figure


WINDOW = (-0.5, 1.5)
"""Seconds around a kill that are shown."""


def _failure(axes: Axes, r: Result, words: str, color: str) -> None:
    (repair, *_) = repairs(r)
    x, y = r.curve["clock_seconds"] - repair.killed, r.curve["train_loss"]
    inside = (x >= WINDOW[0]) & (x <= WINDOW[1])
    noticed, resumed = repair.noticed - repair.killed, repair.resumed - repair.killed
    says = f"{words.lstrip('… ')}: noticed after {noticed:.3f} s, going on after {resumed:.3f} s"
    axes.plot(x[inside], y[inside], "o-", markersize=3, color=color, label=says.replace("\n", " "))
    axes.axvspan(noticed, resumed, color=color, alpha=0.15, linewidth=0)
    axes.axvline(0, color="#333333", linewidth=0.9, linestyle=":")


# All runs


HEADS = [
    "learnt", "lost", "seed", "ranks", "noticed after", "going on after", "iterations, measured",
    "… simulated", "cost, measured", "… simulated", "same parameters",
]  # fmt: skip


WORDS_IN_TABLE = 2  # columns


def table(rows: list[Row]) -> list[list[str]]:
    """A line for each run on MPI, after the heads; the last column is whether the final parameters
    are those of the simulated run bit for bit."""
    lines = [HEADS]
    for title, by_cluster in learnt(rows).items():
        measured, simulated = by_cluster.get("mpi", {}), by_cluster.get("virtual", {})
        for which, (words, _) in SCHEMES.items():
            twins = {r.seed: r for r in simulated.get(which, [])}
            mine, theirs = of_scheme(measured, which), of_scheme(simulated, which)
            for r in measured.get(which, []):
                twin = twins.get(r.seed)
                lines.append(
                    [title, " ".join(words.split()), str(r.seed), *_repair(r)]
                    + [_whole(run.value(ITERATIONS)) if run else "–" for run in (r, twin)]
                    + [_whole(found.get(r.seed, math.nan)) for found in (mine, theirs)]
                    + ["–" if twin is None else "yes" if same(r, twin) else "no"]
                )
    return lines


def same(a: Result, b: Result) -> bool:
    """Whether two runs ended with the same parameters, bit for bit."""
    return a.row["result"]["parameters_sha256"] == b.row["result"]["parameters_sha256"]


def _repair(r: Result) -> list[str]:
    lost = ", ".join(map(str, r.row["result"]["lost"])) or "–"
    found = repairs(r)
    if not found:
        return [lost, "–", "–"]
    killed, noticed, resumed = found[0]
    return [lost, f"{noticed - killed:.3f} s", f"{resumed - killed:.3f} s"]


def _whole(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0f}"


if __name__ == "__main__":
    alone.main("real", draw)
