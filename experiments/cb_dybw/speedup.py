"""Linear speed-up: what N workers gain, held against exact numbers, and where it ends (group 3).

The paper proves O(1/√(NK) + 1/K) with η = √(N/K), and linear speed-up from it [paper]. Expect
iterations to a target falling as 1/N until η reaches its ceiling; on the quadratic problem a
stationary error of ησ²·dim/(Nλ(2-ηλ)) on any graph, where all gradients are used.

    python -m experiments.reproduce --paper=cb_dybw --figures_only --out=RESULTS
    python -m experiments.cb_dybw.speedup RESULTS

Of w̄ the closed form holds for any N. What ends the gain is a worker's own estimate: its squared
distance from w̄ does not fall with N, and on a ring it grows.
"""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import alone, look, statistics
from experiments.cb_dybw import expected
from experiments.figures import STYLE
from experiments.reading import Result, read, split, values
from experiments.settings import Settings
from experiments.statistics import Interval
from experiments.words import model, title

TITLE = "Linear speed-up"
SAYS = (
    "With N workers an average of N gradients is N times less noisy. Dashed lines fall as 1/N; "
    "where the marks leave them the speed-up ends."
)

MARKS = {"complete": "o", "ring": "s"}
LATE = "#56B4E9"
"""cb-DyBW's colour where all gradients are used, lighter than its own."""
RATE = "rate-"
"""How names of cells begin whose learning rate is η = c·√(N/K)."""


def is_rate(r: Result) -> bool:
    """Whether it belongs to the test of the rate O(1/√(NK))."""
    return r.cell.partition("/")[2].startswith(RATE)


def is_stationary(r: Result) -> bool:
    """Whether it runs the quadratic problem with a constant η, to no target, to its end."""
    s = r.settings
    aims = np.isfinite(s.target_loss)
    return s.workload.startswith("quadratic") and s.eta_decay == 1 and not aims and not is_rate(r)


def aims(r: Result) -> bool:
    """Whether it counts iterations to a target."""
    return r.learns and bool(np.isfinite(r.settings.target_loss)) and not is_rate(r)


def stationary_error(r: Result) -> float:
    """‖w̄ - w*‖², mean over the evaluations of the last three quarters of the run."""
    return float(expected.errors(r)[_settled(r)].mean())


def worker_error(r: Result) -> float:
    """(1/N) Σ ‖w_j - w*‖² = ‖w̄ - w*‖² + consensus distance², in the same evaluations."""
    return stationary_error(r) + float((r.curve["consensus_distance"][_settled(r)] ** 2).mean())


def _settled(r: Result) -> np.ndarray:
    return r.curve["iteration"] >= r.settings.iterations / 4


def mean_gradient(r: Result) -> float:
    """Mean of ‖∇F(w̄(k))‖² = 2λ·loss over the evaluations."""
    return 2 * expected.quadratic(r).lam * r.row["mean_train_loss"]


def exact_mean_gradient(r: Result) -> float:
    """What `mean_gradient` is on average, if all N gradients are used in each iteration."""
    q, s = expected.quadratic(r), r.settings
    k = np.arange(0, s.iterations + 1, s.eval_every)
    return float(q.lam**2 * q.error(k, expected.errors(r)[0]).mean())


@matplotlib.rc_context(STYLE)
def draw(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    """Iterations and seconds to a target, stationary errors, the rate."""
    found = read(rows)
    drawn = {}
    for (workload, dataset), runs in split(filter(aims, found), "workload", "dataset").items():
        name = workload.partition(":")[0]
        kind = name if name == "quadratic" else f"{dataset}-{name}"
        drawn[f"speedup-to-target-{kind}"] = _to_target(runs)
    if stationary := list(filter(is_stationary, found)):
        drawn["speedup-stationary"] = _stationary(stationary)
    if rates := list(filter(is_rate, found)):
        drawn["speedup-rate"] = _rate(rates)
    return drawn


def series(runs: list[Result]) -> dict[tuple[str, str], dict[int, list[Result]]]:
    """(title, graph) → N → runs."""
    lines: dict[tuple[str, str], dict[int, list[Result]]] = {}
    for r in runs:
        key = title(r.settings), r.settings.graph
        lines.setdefault(key, {}).setdefault(r.settings.workers, []).append(r)
    return {key: dict(sorted(by_n.items())) for key, by_n in lines.items()}


def _to_target(runs: list[Result]) -> Figure:
    figure = Figure(figsize=(look.FULL, 3.6))
    panels = figure.subplots(1, 2)
    for axes, axis, label in zip(
        panels, ("iteration", "clock_seconds"), ("iterations", "virtual seconds"), strict=True
    ):
        first = []
        for (name, graph), by_n in series(runs).items():
            points = {
                n: statistics.mean([r.to_loss(r.settings.target_loss, axis) for r in of_n])
                for n, of_n in by_n.items()
            }
            _points(axes, points, f"{name}, {graph}", by_n)
            first.append(next((n, p.mean) for n, p in points.items()))
        _ideal(axes, sorted({r.settings.workers for r in runs}), min(first))
        axes.set_title(f"{label} to training loss {runs[0].settings.target_loss:g}")
    panels[0].legend(fontsize=7.5)
    figure.suptitle(model(runs[0].settings), x=0.01, ha="left", fontsize=10)
    etas = sorted({(r.settings.workers, r.settings.eta0) for r in runs})
    look.note(figure, runs, "η0 by N: " + ", ".join(f"{n}: {eta:g}" for n, eta in etas))
    return figure


def _points(
    axes: Axes, points: dict[int, Interval], label: str, by_n: dict[int, list[Result]]
) -> None:
    """Means with their intervals against N."""
    s = next(iter(by_n.values()))[0].settings
    x = np.array(list(points))
    y, low, high = (
        np.array([getattr(p, end) for p in points.values()]) for end in Interval._fields[:3]
    )
    line = _line(s) | {"linestyle": "-" if s.graph == "complete" else "--"}
    half = np.nan_to_num([y - low, high - y])
    axes.errorbar(
        x, y, half, label=label, marker=MARKS.get(s.graph, "^"), markersize=4, capsize=2, **line
    )


def _line(s: Settings) -> dict[str, Any]:
    return look.LINES[s.algorithm] | ({"color": LATE} if s.policy == "late" else {})


def _ideal(axes: Axes, sizes: list[int], start: tuple[int, float]) -> None:
    """What falls as 1/N from (N, number) on, and both axes logarithmic."""
    n = np.array(sizes)
    axes.plot(n, start[1] * start[0] / n, label="∝ 1/N", zorder=1, **look.IDEAL)
    _over_workers(axes, sizes)


def _over_workers(axes: Axes, sizes: list[int]) -> None:
    look.logarithmic(axes, "x")
    look.logarithmic(axes, "y")
    axes.set_xticks(sizes, [f"{n:g}" for n in sizes])
    axes.set_xlabel("workers N")


def _stationary(runs: list[Result]) -> Figure:
    figure = Figure(figsize=(look.FULL, 3.9))
    mean, worker = figure.subplots(1, 2, sharey=True)
    for (name, graph), by_n in series(runs).items():
        label = f"{name}, {graph}"
        for axes, number in ((mean, stationary_error), (worker, worker_error)):
            points = {n: statistics.mean(values(of_n, number)) for n, of_n in by_n.items()}
            _points(axes, points, label, by_n)
    closed = {r.settings.workers: expected.quadratic(r).stationary for r in runs}
    n = sorted(closed)
    for axes in (mean, worker):
        axes.plot(n, [closed[x] for x in n], label="ησ²·dim/(Nλ(2-ηλ))", **look.IDEAL)
        _over_workers(axes, n)
    mean.set_title("mean of all estimates: E‖w̄ - w*‖²")
    worker.set_title("a worker's own: E‖w_j - w*‖²")
    mean.legend(fontsize=7.5)
    etas = ", ".join(f"{eta:g}" for eta in sorted({r.settings.eta0 for r in runs}))
    look.note(figure, runs, f"η = {etas}, constant")
    return figure


def _rate(runs: list[Result]) -> Figure:
    figure = Figure(figsize=(look.FULL, 3.9))
    axes = figure.subplots()
    for (name, _), by_n in series(runs).items():
        _rate_marks(axes, name, by_n)
    _rate_expected(axes, runs)
    look.logarithmic(axes, "x")
    look.logarithmic(axes, "y")
    axes.set_xlabel("N·K; marks show N")
    axes.set_ylabel("mean of ‖∇F(w̄(k))‖²")
    axes.set_title("Rate on the quadratic problem, η = c·√(N/K)")
    axes.legend(fontsize=7.5)
    look.note(figure, runs)
    return figure


def _rate_marks(axes: Axes, name: str, by_n: dict[int, list[Result]]) -> None:
    """An algorithm's means over seeds; each mark is the number of workers."""
    color = _line(next(iter(by_n.values()))[0].settings)["color"]
    for n, of_n in by_n.items():
        by_k = {k: runs for (k,), runs in split(of_n, "iterations").items()}
        means = [statistics.mean(values(runs, mean_gradient)) for runs in by_k.values()]
        axes.errorbar(
            [n * k for k in by_k], [m.mean for m in means], np.nan_to_num([m.half for m in means]),
            marker=f"${n}$", markersize=8, capsize=2, linestyle="none", color=color,
            label=name if n == min(by_n) else None,
        )  # fmt: skip


def _rate_expected(axes: Axes, runs: list[Result]) -> None:
    """What theory says of the same N, K and η, and the slope that is proved."""
    exact = sorted(
        {(r.settings.workers * r.settings.iterations, exact_mean_gradient(r)) for r in runs}
    )
    x, y = np.array(exact).T
    axes.plot(x, y, "k+", markersize=9, label="exact, all gradients used")
    axes.plot(x, y[0] * (x / x[0]) ** -0.5, label="∝ (NK)^-1/2", **look.IDEAL)


if __name__ == "__main__":
    alone.main("speedup", draw)
