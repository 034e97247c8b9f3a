"""Time to the target where something grows: H, the number of workers, or what a commit takes.

ADSP is 62.4 % faster than Fixed ADACOMM at H = 3.2, and the gap grows with H; it scales to 36
workers and bears delays that slow the others [paper]. Expect it ahead at every H and more so at
larger ones: Fixed ADACOMM goes at the pace of the slowest, ADSP at that of the mean.

    python -m experiments.reproduce --paper=adsp --figures_only --out=RESULTS
    python -m experiments.adsp.sweeps RESULTS
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cbdybw import specs
from cbdybw.clusters import machines
from experiments import alone, look, statistics
from experiments.adsp import bandwidth, targets
from experiments.adsp import machines as time_model
from experiments.adsp.published import SOONER_THAN_FIXED_ADACOMM
from experiments.figures import STYLE
from experiments.reading import Result, read
from experiments.rows import Row
from experiments.settings import Settings
from experiments.statistics import Interval
from experiments.words import TITLES

TITLE = "Unequal workers, more workers, slow commits"
SAYS = (
    "Virtual seconds to the same loss target for all methods, to the first and to the tenth look "
    "at it, and what they come to by the tenth. A cross at the top: not every seed gets there in "
    "the time of the run. Whiskers are 95 % intervals over seeds; comparisons are made seed by "
    "seed. The machines are a model: types and levels of H are the authors' [code], speeds are "
    "ours. Bandwidth is what commits and models come to, without what wraps them on a wire."
)

MARKERS = "so^vD"

Series = dict[str, dict[float, list[Result]]]
"""Algorithm → what grows → runs, both ascending."""
Compare = Callable[[Series, str, float], Interval]
"""(series, algorithm, what grows) → the number in the last panel."""


def level(s: Settings) -> float:
    """H."""
    return float(specs.parse(s.delay, "--delay")[1].get("heterogeneity", 0))


def extra_seconds(s: Settings) -> float:
    """By how much a commit, push and pull, takes longer than the machines' links make it."""
    latency = float(specs.parse(s.network, "--network")[1]["latency"])
    return round(2 * (latency - machines.load(time_model.EIGHTEEN).latency), 6)


def gain(series: Series, algorithm: str, x: float) -> Interval:
    """Share of the method's time that ADSP saves."""
    adsp, other = (targets.arrivals(series.get(a, {}).get(x, [])) for a in ("adsp", algorithm))
    return statistics.reduction(adsp, other)


def ratio_to_least(series: Series, algorithm: str, x: float) -> Interval:
    """Time over that at the least x of all."""
    by_x, least = series[algorithm], _levels(series)[0]
    return statistics.ratio(*(targets.arrivals(by_x.get(at, [])) for at in (x, least)))


def _levels(series: Series) -> list[float]:
    return sorted({x for by_x in series.values() for x in by_x})


class Sweep(NamedTuple):
    """How a group is drawn: `x` is what grows, `last` the last panel's number, `name` its title."""

    label: str
    x: Callable[[Settings], float]
    last: Compare
    name: str
    percent: bool = False


SWEEPS = {
    "heterogeneity": Sweep("H", level, gain, "Saved by ADSP, tenth look", percent=True),
    "scale": Sweep("workers", lambda s: s.workers, ratio_to_least, "Time / that of fewest workers"),
    "delay": Sweep(
        "a commit takes longer by, s", extra_seconds, ratio_to_least, "Time / that of least delay"
    ),
}


def series(rows: list[Row], x: Callable[[Settings], float]) -> Series:
    """The runs of a group that look at the held-out loss."""
    found: Series = {}
    for r in sorted(targets.looked(read(rows)), key=lambda r: x(r.settings)):
        by_x = found.setdefault(r.settings.algorithm, {})
        by_x.setdefault(x(r.settings), []).append(r)
    return {name: found[name] for name in TITLES if name in found}


@matplotlib.rc_context(STYLE)
def draw(rows: list[Row]) -> dict[str, Figure]:
    """A figure of times for the group; of `heterogeneity` the machines besides, of `scale` the
    bandwidth."""
    group = rows[0]["cell"].partition("/")[0]
    sweep = SWEEPS[group]
    found = series(rows, sweep.x)
    if not found:
        return {}
    figures = {f"{group}-1-target": _figure(found, sweep)}
    if group == "heterogeneity":
        figures["heterogeneity-2-machines"] = time_model.draw()
    if group == "scale":
        figures["scale-2-bandwidth"] = bandwidth.figure(found)
    return figures


def _figure(found: Series, sweep: Sweep) -> Figure:
    figure = Figure(figsize=(look.FULL, 3.7))
    first, tenth, last = figure.subplots(1, 3)
    for axes, (nth, name) in zip((first, tenth), targets.LOOKS.items(), strict=True):
        _times(axes, found, nth)
        axes.set_title(name.capitalize())
    top = max(first.get_ylim()[1], tenth.get_ylim()[1])
    for axes in (first, tenth):
        axes.set_ylim(0, top)
    first.set_ylabel("virtual seconds to the target")
    _last(last, found, sweep)
    levels = _levels(found)
    for axes in (first, tenth, last):
        axes.set_xticks(levels, [f"{x:g}" for x in levels])
        axes.set_xlabel(sweep.label)
        axes.margins(x=0.12)
    targets.legend(figure)
    look.note(figure, [r for by_x in found.values() for runs in by_x.values() for r in runs])
    return figure


def _times(axes: Axes, found: Series, nth: int) -> None:
    for algorithm, by_x in found.items():
        numbers = {x: statistics.mean(targets.arrivals(runs, nth)) for x, runs in by_x.items()}
        _line(axes, found, algorithm, numbers)
        for x, number in numbers.items():
            if math.isnan(number.mean):
                axes.plot(
                    x, 1, "x", color=look.LINES[algorithm]["color"], markersize=7,
                    transform=axes.get_xaxis_transform(), clip_on=False,
                )  # fmt: skip
    axes.set_ylim(bottom=0)


def _line(
    axes: Axes, found: Series, algorithm: str, numbers: dict[float, Interval], factor: float = 1
) -> None:
    """A method's points, joined, a little beside those of the others, so that all whiskers show."""
    levels, at = _levels(found), list(found).index(algorithm)
    beside = 0.012 * (levels[-1] - levels[0]) * (at - (len(found) - 1) / 2)
    means = factor * np.array([number.mean for number in numbers.values()])
    halves = factor * np.nan_to_num([number.half for number in numbers.values()])
    axes.errorbar(
        np.array(list(numbers)) + beside, means, halves, marker=MARKERS[at % len(MARKERS)],
        markersize=4.5, capsize=2.5, elinewidth=0.9, label=TITLES[algorithm],
        **look.LINES[algorithm],
    )  # fmt: skip


def _last(axes: Axes, found: Series, sweep: Sweep) -> None:
    factor = 100 if sweep.percent else 1
    for algorithm, by_x in found.items():
        if sweep.last is gain and algorithm == "adsp":
            continue
        numbers = {x: sweep.last(found, algorithm, x) for x in by_x}
        _line(axes, found, algorithm, numbers, factor)
    axes.axhline(0 if sweep.percent else 1, **look.IDEAL)
    axes.set_ylabel("% of a method's time" if sweep.percent else "ratio of times, tenth look")
    axes.set_title(sweep.name)
    if sweep.last is not gain:
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    else:
        axes.plot(
            3.2, 100 * SOONER_THAN_FIXED_ADACOMM, "D", markersize=8, markeredgecolor="black",
            markerfacecolor="white", label="paper, Fixed ADACOMM, its CNN",
        )  # fmt: skip
        axes.set_ylim(top=105)


if __name__ == "__main__":
    for name in SWEEPS:
        alone.main(name, draw)
