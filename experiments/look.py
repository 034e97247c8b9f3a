"""How figures of rows look: a line for each algorithm, scales, the setting in small print."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from experiments.reading import Result
from experiments.statistics import Band
from experiments.words import setting

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
    "adsp": {"color": "#0072B2", "linestyle": "-", "linewidth": 2.4},
    "adsp_plus": {"color": "#0072B2", "linestyle": "--", "linewidth": 1.8},
    "adsp_plus_plus": {"color": "#0072B2", "linestyle": ":", "linewidth": 2.0},
    "adacomm": {"color": "#CC79A7", "linestyle": "--", "linewidth": 1.8},
    "fixed_adacomm": {"color": "#CC79A7", "linestyle": "-", "linewidth": 1.8},
    "scar": {"color": "#0072B2", "linestyle": "-", "linewidth": 1.8},
    "cb_adsp": {"color": "#56B4E9", "linestyle": "-.", "linewidth": 2.0},
}
IDEAL = {"color": "#555555", "linestyle": (0, (4, 3)), "linewidth": 0.9}
"""Of lines that are not measured."""

SOFT = "#5c5c62"


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


def note(figure: Figure, results: Sequence[Result] | str, more: str = "") -> None:
    """The setting, or what is to be said of it, and whatever else is needed to read the figure, in
    small print below it."""
    where = results if isinstance(results, str) else setting(results)
    text = where + (f". {more}" if more else "")
    width = int(figure.get_figwidth() * 19)
    figure.supxlabel(textwrap.fill(text, width), x=0.01, ha="left", fontsize=7, color=SOFT)
