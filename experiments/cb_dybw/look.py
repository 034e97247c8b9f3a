"""How the figures of cb-DyBW look: a line for each algorithm, families, scales, the setting."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from experiments.cb_dybw.reading import Result, setting
from experiments.statistics import Band

FULL, HALF = 9.2, 4.6
"""Widths of figures, inches: as wide as the page, or two abreast."""

LINES = {
    "cb_full": {"color": "#D55E00", "linestyle": "-", "linewidth": 1.4},
    "cb_dybw": {"color": "#0072B2", "linestyle": "-", "linewidth": 2.2},
    "cb_static": {"color": "#009E73", "linestyle": "--", "linewidth": 1.6},
    "dsgd_aau": {"color": "#CC79A7", "linestyle": "-.", "linewidth": 1.8},
    "ad_psgd": {"color": "#0072B2", "linestyle": "-", "linewidth": 1.6},
    "asp": {"color": "#D55E00", "linestyle": "--", "linewidth": 1.6},
    "ssp": {"color": "#009E73", "linestyle": "-.", "linewidth": 1.6},
    "allreduce": {"color": "#0072B2", "linestyle": "-", "linewidth": 2.4},
    "bsp": {"color": "#E69F00", "linestyle": "--", "linewidth": 1.6},
    "ps_backup": {"color": "#009E73", "linestyle": "-.", "linewidth": 1.6},
    "dbw": {"color": "#CC79A7", "linestyle": ":", "linewidth": 2.0},
}
REFERENCE = ("cb_full", "cb_dybw")
REFERENCE_LINES = {
    "cb_full": {"color": "#A8A8A8", "linestyle": ":", "linewidth": 1.4},
    "cb_dybw": {"color": "#A8A8A8", "linestyle": "-", "linewidth": 1.4},
}
"""Of the two where they are there for comparison only."""

FAMILIES = {
    "Consensus": ("cb_full", "cb_dybw", "cb_static", "dsgd_aau"),
    "Asynchronous": ("ad_psgd", "asp", "ssp"),
    "Synchronous, servers": ("allreduce", "bsp", "ps_backup", "dbw"),
}
IDEAL = {"color": "#555555", "linestyle": (0, (4, 3)), "linewidth": 0.9}
"""Of lines that are not measured."""

SOFT = "#5c5c62"


def line_of(algorithm: str, family: str) -> dict[str, object]:
    """How an algorithm is drawn in its family's panel."""
    return (LINES if algorithm in FAMILIES[family] else REFERENCE_LINES)[algorithm]


def draw_band(axes: Axes, band: Band, label: str, style: dict[str, object]) -> None:
    """A mean curve with its interval shaded."""
    axes.plot(band.x, band.mean, label=label, **style)
    axes.fill_between(band.x, band.low, band.high, color=style["color"], alpha=0.18, linewidth=0)


def logarithmic(axes: Axes, which: str, subs: Sequence[float] = (1, 2, 5)) -> None:
    """A logarithmic axis, "x" or "y", with plain numbers on it."""
    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=subs, numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def note(figure: Figure, results: Sequence[Result], more: str = "") -> None:
    """The setting, and whatever else is needed to read it, in small print below the figure."""
    text = setting(results) + (f". {more}" if more else "")
    width = int(figure.get_figwidth() * 19)
    figure.supxlabel(textwrap.fill(text, width), x=0.01, ha="left", fontsize=7, color=SOFT)
