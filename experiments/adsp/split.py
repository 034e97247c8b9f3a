"""Where the time of three workers goes, and how many steps a second they take (group `split`).

The authors' three workers wait most of the time under BSP and SSP and next to never under ADSP;
without communication ADSP takes H times as many steps a second as BSP [paper: in other words].
Expect the same order of the algorithms, smaller shares of waiting, and the law within 2 %.

    python -m experiments.reproduce --paper=adsp --figures_only --out=RESULTS
    python -m experiments.adsp.split RESULTS

A worker that does not compute waits for a message, its own on their way included. Of that we count
as communicating what its commits would take if nobody else used the links, the rest as waiting.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cbdybw import commit_theory, specs
from cbdybw.clusters import delays, machines, network
from cbdybw.clusters.worker import Kind, Message
from cbdybw.learning.workloads import WORKLOADS
from cbdybw.problem import Weightless
from experiments import alone, look, statistics
from experiments.adsp.published import THREE_WORKERS
from experiments.figures import COMPUTING, STYLE, WAITING
from experiments.reading import Result, by_cell, read, values
from experiments.settings import Settings
from experiments.statistics import Interval
from experiments.words import TITLES

TITLE = "Three workers: computing, communicating, waiting"
SAYS = (
    "Shares of a worker's time, means over the three workers and over seeds. Communicating is what "
    "commits take when nobody else uses the links, computed; waiting is the rest of what is not "
    "computing, competition for the links included. The published runs [code] tell computing from "
    "the rest only: most of what they do not compute under BSP and SSP cannot be waiting for the "
    "slowest worker, which computes a tenth of the time itself. Steps per second are those of all "
    "workers, beside what follows from speeds, commits and the time that a commit takes."
)
CLASSES = 10  # of MNIST and the digits
COMMUNICATING = "#E69F00"


# What a commit takes


def parameters(s: Settings) -> int:
    """Of the workload's model: dense layers on principal components, or a size that is given."""
    keys = specs.select(s.workload, "--workload", WORKLOADS)[1]
    if "parameters" in keys:
        return keys["parameters"]
    widths = [s.pca] + [keys["width"]] * keys["depth"] if keys else [s.pca]
    widths.append(CLASSES)
    return sum((a + 1) * b for a, b in itertools.pairwise(widths))


def overhead(s: Settings, answers: int = 1) -> float:
    """O: seconds from a push to its answer, where the server's link sends `answers` of them."""
    model = Weightless(4 * parameters(s))

    def travel(source: int, dest: int, messages: int) -> float:
        links = network.parse(s.network, s.ranks, s.seed)
        m = Message(Kind.PUSH, 0, source, vector=model)
        return max(links.arrival(source, dest, m, 0.0)[0] for _ in range(messages))

    server = s.ranks - 1
    return travel(0, server, 1) + travel(server, 0, answers)


def commits(r: Result) -> float:
    """Of a worker, on average; each step is one where nothing else is counted."""
    each = r.commits if len(r.commits) else r.value("gradients_used") / r.settings.workers
    return float(np.mean(each))


class Shares(NamedTuple):
    """Of a worker's time."""

    computing: Interval
    communicating: Interval
    waiting: Interval


def shares(runs: list[Result]) -> Shares:
    """Mean over the workers of each run, then over runs."""
    rows = []
    for r in runs:
        computing = float(np.mean(r.computing)) / seconds(r)
        communicating = min(commits_per_second(r) * overhead(r.settings), 1 - computing)
        rows.append((computing, communicating, 1 - computing - communicating))
    return Shares(*(statistics.mean(column) for column in np.transpose(rows)))


# Steps per second


def speeds(s: Settings) -> np.ndarray:
    """v_i, minibatches per second of mean length, shape (M,); the machines jitter upwards."""
    keys = specs.select(s.delay, "--delay", delays.LAWS)[1]
    seconds = machines.load(keys["path"]).step_seconds(keys["heterogeneity"], keys["processes"])
    return 1 / (keys["scale"] * (1 + keys["jitter"] / 2) * seconds)


def steps_per_second(r: Result) -> float:
    """Of all workers, those that were used."""
    return r.value("gradients_used") / seconds(r)


def commits_per_second(r: Result) -> float:
    """Of a worker, on average."""
    return commits(r) / seconds(r)


def seconds(r: Result) -> float:
    """How long the workers took part, on average."""
    return float(np.mean(r.computing + r.waiting))


def law(s: Settings) -> float:
    """The same as theory has it; nan where the algorithm changes what it would follow from."""
    v, m = speeds(s), s.workers
    if s.algorithm == "adsp" and s.commit_rate:
        gamma = s.check_period * s.time_factor
        return commit_theory.adsp_steps(v, s.commit_rate, gamma, overhead(s))
    if s.algorithm in ("bsp", "ssp"):  # of SSP but for the lead of at most s steps
        return commit_theory.bsp_steps(v, overhead(s, answers=m))
    if s.algorithm == "fixed_adacomm":
        return commit_theory.fixed_adacomm_steps(v, s.tau, overhead(s, answers=m))
    return math.nan


class Throughput(NamedTuple):
    """Steps per second of an algorithm, and by how much they are above the law's."""

    algorithm: str
    measured: Interval
    law: float
    runs: list[Result]

    @property
    def deviation(self) -> float:
        return self.measured.mean / self.law - 1


def throughput(rows: list[dict[str, Any]]) -> list[Throughput]:
    """One for each algorithm that ran without learning."""
    timed = [r for r in read(rows) if not r.learns]
    return [
        Throughput(
            runs[0].settings.algorithm,
            statistics.mean(values(runs, steps_per_second)),
            law(runs[0].settings),
            runs,
        )
        for runs in cells(timed)
    ]


def cells(results: list[Result]) -> list[list[Result]]:
    """Runs that differ in nothing but the seed, in the paper's order of the algorithms."""
    order = list(THREE_WORKERS)
    return sorted(
        by_cell(results).values(), key=lambda runs: order.index(runs[0].settings.algorithm)
    )


# Figures


@matplotlib.rc_context(STYLE)
def draw(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """Shares of time, and steps per second."""
    figures = {}
    learning = [r for r in read(rows) if r.learns]
    if learning:
        figures["split-1-time"] = _time(cells(learning))
    found = throughput(rows)
    if found:
        figures["split-2-throughput"] = _throughput(found)
    return figures


def _time(found: list[list[Result]]) -> Figure:
    figure = Figure(figsize=(look.FULL, 0.9 + 0.5 * len(found)))
    axes = figure.subplots()
    algorithms = [runs[0].settings.algorithm for runs in found]
    for row, (algorithm, runs) in enumerate(zip(algorithms, found, strict=True)):
        _bar(axes, row, shares(runs))
        axes.plot(
            100 * (1 - THREE_WORKERS[algorithm].waiting), row, "D", markerfacecolor="white",
            markeredgecolor="black", markersize=7,
            label="" if row else "published: computing up to here [code]",
        )  # fmt: skip
    _rows(axes, algorithms)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of a worker's virtual time, with 95 % intervals over seeds")
    figure.legend(loc="outside upper center", ncols=4, fontsize=8)
    look.note(figure, [r for runs in found for r in runs])
    return figure


def _bar(axes: Axes, row: int, split: Shares) -> None:
    """A row's three parts; numbers stand in those that are wide enough."""
    left = 0.0
    colours = {"computing": COMPUTING, "communicating": COMMUNICATING, "waiting": WAITING}
    for (name, share), colour in zip(split._asdict().items(), colours.values(), strict=True):
        part = share.map(lambda x: 100 * x)
        axes.barh(
            row, part.mean, 0.62, left, color=colour, label="" if row else name,
            xerr=None if math.isnan(part.low) or name == "waiting" else part.half,
            error_kw={"elinewidth": 0.8, "capsize": 2, "ecolor": "black"},
        )  # fmt: skip
        if part.mean > 12:  # in the middle, away from the published marks
            axes.text(
                left + part.mean / 2, row, part.plus_minus(), va="center", ha="center", fontsize=8,
                color="white" if name == "computing" else "black",
            )  # fmt: skip
        left += part.mean


def _throughput(found: list[Throughput]) -> Figure:
    figure = Figure(figsize=(look.FULL, 1.1 + 0.42 * len(found)))
    axes = figure.subplots()
    for row, t in enumerate(found):
        colour = look.LINES[t.algorithm]["color"]
        axes.barh(row, t.measured.mean, 0.55, color=colour, alpha=0.85)
        axes.plot([t.law] * 2, [row - 0.4, row + 0.4], color="black", linewidth=1.6)
        said = "no law: τ changes" if math.isnan(t.law) else f"law {t.law:.3f}, {t.deviation:+z.1%}"
        end = max(t.measured.mean, 0.0 if math.isnan(t.law) else t.law)
        axes.annotate(
            f"{t.measured.text('.3f')}   {said}", (end, row), (6, 0),
            textcoords="offset points", va="center", fontsize=8,
            bbox={"facecolor": "white", "linewidth": 0, "pad": 1},
        )  # fmt: skip
    v = speeds(found[0].runs[0].settings)
    bounds = {"Σv, nobody waits": v.sum(), "M·min v, all wait": len(v) * v.min()}
    for name, steps in bounds.items():
        axes.axvline(steps, **look.IDEAL)
        axes.annotate(
            f"{name}: {steps:.3g}", (steps, 1), (0, 3), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="center", fontsize=8, color=look.SOFT,
        )  # fmt: skip
    _rows(axes, [t.algorithm for t in found])
    axes.set_xlim(0, 1.45 * max(v.sum(), *(t.measured.mean for t in found)))
    axes.set_xlabel("steps of all workers per virtual second; black: the law")
    axes.set_title(_ratio(found, v), pad=18)
    look.note(figure, [r for t in found for r in t.runs])
    return figure


def _ratio(found: list[Throughput], v: np.ndarray) -> str:
    """ADSP's steps over BSP's, beside H."""
    pair = {t.algorithm: t for t in found if t.algorithm in ("adsp", "bsp")}
    if len(pair) < 2:
        return ""
    adsp, bsp, h = pair["adsp"], pair["bsp"], commit_theory.heterogeneity(v)
    return (
        f"ADSP/BSP: {adsp.measured.mean / bsp.measured.mean:.2f}; by the laws "
        f"{adsp.law / bsp.law:.2f}; if commits took no time, H = {h:.2f}"
    )


def _rows(axes: Axes, algorithms: list[str]) -> None:
    axes.set_yticks(range(len(algorithms)), [TITLES[name] for name in algorithms])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


if __name__ == "__main__":
    alone.main("split", draw)
