"""Implicit momentum measured: μ from the sequence of models of many runs, beside Theorem 1.

    python -m experiments.adsp.implicit [FILE.svg]

prints a table, and draws it into a file. Run time about 2 minutes on one core.

Asynchronous updates behave like SGD with momentum in expectation,

    E(W_{t+1} - W_t) = μ E(W_t - W_{t-1}) - a E∇L(W_t),

with t the number of commits. Runs go down a bowl L = ½W² whose gradient is exact and linear, so
that expectations are over step times alone, which are exponential: means over seeds.

Where M workers commit each step that they take (ASP) it is chance alone who commits next, and
μ = 1 - 1/M exactly (Mitliagkas, Zhang, Hadjis and Ré, 2016): the check of the measurement. We
measure 0.7504 ± 0.0048, 0.8751 ± 0.0027 and 0.9378 ± 0.0013 for M = 4, 8 and 16.

ADSP runs as in the authors' figure [code]: 18 workers, Γ/v = 0.05 each, which is Γ = 1 minute at
20 minibatches a minute. What is found: a momentum there is, but from one commit to the next it is
0.91 to 0.95 whatever ΔC is, near 1 - 1/M, not the 0.46 to 0.08 of Theorem 1: whoever commits, the
M - 1 others have done so once meanwhile. In a fixed time it falls with ΔC as the theorem says, for
a higher ΔC has more commits in it: in one Γ μ to the power M ΔC is left.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from scipy import stats

from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Pace, Plan, State
from cbdybw.clusters import delays
from cbdybw.clusters.guard import guard
from cbdybw.clusters.network import Network
from cbdybw.clusters.trace import Trace
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.commit_theory import implicit_momentum
from cbdybw.errors import BadInput
from experiments import look
from experiments.figures import STYLE
from experiments.statistics import Interval

RATES = (1, 2, 3, 4, 5, 6, 8, 10)
COLOUR = look.LINES["adsp"]["color"]
WORKERS, GAMMA, STEP = 18, 60.0, 3.0  # [code]: Γ/v = 1/20; seconds
ROUNDS = 8
"""Commits of a worker in a run."""
LEFT = 0.25
"""[choice] Of W after the local steps of a commit, which sets η'. So large that the mean model
swings: while it falls by the same share with each commit, μ and a cannot be told apart."""
CHECKED = (4, 8, 16)
"""M of ASP, with η = 1."""
SEEDS, SEEDS_OF_ASP = 100, 400
TIMERS = {"due times": False, "restarts": True}


class Bowl:
    """L = ½ W², from W = 1."""

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        return np.ones(1, np.float32)

    def batch(self, rank: int, index: int) -> None:
        return None

    def gradient(self, w: np.ndarray, batch: None) -> np.ndarray:
        return w

    def held_out_loss(self, w: np.ndarray) -> float:
        return float(0.5 * w @ w)


class Models:
    """Keeps the model after each commit."""

    def __init__(self):
        self.w = [1.0]

    def record(self, rank: int, time: float, event: str, fields: dict[str, Any]) -> None:
        if event == "commit":
            self.w.append(float(fields["w"][0]))


def models(
    algorithm: str, workers: int, rounds: int, eta: float, pace: Pace, seeds: int
) -> np.ndarray:
    """W_t after t commits, shape (seeds, workers·rounds + 1), of runs with exponential steps."""
    return np.array([_run(algorithm, workers, rounds, eta, pace, seed) for seed in range(seeds)])


def _run(
    algorithm: str, workers: int, rounds: int, eta: float, pace: Pace, seed: int
) -> list[float]:
    plan = Plan(((),) * workers, (), 0, lambda k: eta, rounds, pace=pace)
    kept, bowl = Models(), Bowl()
    cluster = VirtualCluster(
        workers + 1,
        delay=delays.parse(f"exponential:mean={STEP}", workers, seed),
        network=Network(),
        seed=seed,
        trace=Trace(),
        recorder=kept,
        servers=1,
    )
    first = bowl.initial(np.random.default_rng(0))
    cluster.run(lambda worker: ALGORITHMS[algorithm].run(worker, bowl, plan, State(0, first)))
    return kept.w[: workers * rounds + 1]


class Measured(NamedTuple):
    """μ with its interval, and the share of E(W_{t+1} - W_t)² that the fit explains."""

    mu: Interval
    explained: float


def measure(runs: np.ndarray) -> Measured:
    """μ and a by least squares over t, from models of shape (seeds, T).

    Products of means are of different seeds always: within a seed step and model share their
    chance, which would draw μ towards 0. For the same reason the interval is the jackknife's: among
    seeds that are drawn again there are pairs of the same.
    """
    step = np.diff(runs)
    rows = np.stack((step[:, :-1], -runs[:, 1:-1], step[:, 1:]))  # known, known, new
    own = np.einsum("ist,jst->sij", rows, rows)

    def fit(of: slice | np.ndarray) -> tuple[float, float]:
        total = rows[:, of].sum(axis=1)
        moments = total @ total.T - own[of].sum(axis=0)
        both = np.linalg.solve(moments[:2, :2], moments[:2, 2])
        weights = np.append(-both, 1)
        return float(both[0]), float(1 - weights @ moments @ weights / moments[2, 2])

    n = len(runs)
    mu, explained = fit(slice(None))
    without = [fit(np.delete(np.arange(n), seed))[0] for seed in range(n)]
    half = stats.t.ppf(0.975, n - 1) * (n - 1) * np.std(without) / np.sqrt(n - 1)
    return Measured(Interval(mu, mu - half, mu + half, n), explained)


class Row(NamedTuple):
    """`left`: of the momentum after one Γ."""

    name: str
    rate: int
    theory: float
    measured: Measured
    left: float


def check(seeds: int = SEEDS_OF_ASP) -> list[Row]:
    """ASP, of which μ is known."""
    found = []
    for m in CHECKED:
        measured = measure(models("asp", m, 10, 1.0, Pace(), seeds))
        found.append(Row(f"ASP, M = {m}", 0, 1 - 1 / m, measured, math.nan))
    return found


def study(rates: Sequence[int] = RATES, seeds: int = SEEDS) -> list[Row]:
    """ADSP with fixed commit rates and both timers, beside Theorem 1."""
    found = []
    for (name, restarts), rate in itertools.product(TIMERS.items(), rates):
        eta = 1 - LEFT ** (rate * STEP / GAMMA)
        pace = Pace(rate=rate, period=GAMMA, restarts=restarts, shortest=0.0)
        measured = measure(models("adsp", WORKERS, ROUNDS, eta, pace, seeds))
        theory = implicit_momentum([GAMMA / 60 / (60 / STEP)] * WORKERS, rate)
        left = measured.mu.mean ** (WORKERS * rate)
        found.append(Row(name, rate, theory, measured, left))
    return found


def table(rows: Sequence[Row]) -> Table:
    """In 80 columns."""
    view = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head in ("", "ΔC", "theory", "measured", "explained", "left after Γ"):
        view.add_column(head, justify="right" if head else "left")
    for row in rows:
        view.add_row(
            row.name,
            str(row.rate or ""),
            f"{row.theory:.4f}",
            row.measured.mu.plus_minus(".4f"),
            f"{row.measured.explained:.0%}",
            "" if math.isnan(row.left) else f"{row.left:.2g}",
        )
    return view


@matplotlib.rc_context(STYLE)
def draw(checked: Sequence[Row], found: Sequence[Row]) -> Figure:
    """The check to the left, ADSP's μ against ΔC to the right."""
    figure = Figure(figsize=(look.FULL, 3.2))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1, 2))
    at = np.arange(len(checked))
    left.plot(at, [row.theory for row in checked], "_", color="black", markersize=22)
    _points(left, at, checked, "o", look.LINES["asp"]["color"], "measured")
    left.set_xticks(at, [row.name.removeprefix("ASP, ") for row in checked])
    left.set_xlim(-0.6, len(checked) - 0.4)
    left.set_title("ASP: known to be 1 - 1/M (bars)")
    left.set_ylabel("μ from one commit to the next")
    left.set_ylim(0, 1.05)
    for name, marker, shift in zip(TIMERS, "os", (-0.08, 0.08), strict=True):
        rows = [row for row in found if row.name == name]
        rates = np.array([row.rate for row in rows])
        _points(right, rates + shift, rows, marker, COLOUR, f"measured, {name}")
    right.plot(rates, [row.theory for row in rows], "k--", label="Theorem 1, Γ/v = 0.05")
    after = [row.left for row in rows]
    right.plot(rates, after, ":", color=COLOUR, label=f"left of it after Γ, {name}")
    right.axhline(1 - 1 / WORKERS, **look.IDEAL)
    right.annotate(f"1 - 1/{WORKERS}", (10.4, 1 - 1 / WORKERS), (0, 3), fontsize=8,
                   textcoords="offset points", ha="right", color=look.SOFT)  # fmt: skip
    right.set_title(f"ADSP, {WORKERS} workers")
    right.set_xlabel("ΔC, commits in a check period Γ")
    right.set_xlim(0, 10.6)
    right.legend(fontsize=7.5, loc="center right")
    figure.supxlabel(
        f"L = ½W² · Exp(mean {STEP:g} s) a step · Γ = {GAMMA:g} s · virtual cluster, instant "
        f"network · {found[0].measured.mu.n} seeds, ASP {checked[0].measured.mu.n} · bars: 95 %",
        x=0.01, ha="left", fontsize=7, color=look.SOFT,
    )  # fmt: skip
    return figure


def _points(
    axes: Axes, x: np.ndarray, rows: Sequence[Row], marker: str, colour: str, label: str
) -> None:
    mu = [row.measured.mu for row in rows]
    axes.errorbar(
        x, [i.mean for i in mu], [i.half for i in mu], fmt=marker, capsize=2, markersize=4.5,
        color=colour, markerfacecolor=colour if marker == "o" else "white", label=label,
    )  # fmt: skip


if __name__ == "__main__":
    with guard():
        if len(sys.argv) > 2:
            raise BadInput(f"{len(sys.argv) - 1} arguments: give a file to draw into, or none")
        checked, found = check(), study()
        Console(highlight=False).print(table([*checked, *found]))
        if len(sys.argv) > 1:
            draw(checked, found).savefig(sys.argv[1])
