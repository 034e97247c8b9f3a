"""The measurement of implicit momentum finds what is known, and not what it would like to."""

import math

import numpy as np
import pytest

from cbdybw.algorithms.plan import Pace
from experiments.adsp import implicit
from experiments.adsp.implicit import check, draw, measure, models, study, table


def with_momentum(mu: float, a: float, noise: float, seeds: int) -> np.ndarray:
    """W of SGD with momentum whose every step is off by chance."""
    rng = np.random.default_rng(0)
    w = np.ones((seeds, 60))
    for t in range(1, 59):
        step = mu * (w[:, t] - w[:, t - 1]) - a * w[:, t]
        w[:, t + 1] = w[:, t] + step + noise * rng.standard_normal(seeds)
    return w


def test_momentum_without_noise_is_found_exactly():
    got = measure(with_momentum(0.7, 0.1, 0.0, 3))
    assert got.mu.mean == pytest.approx(0.7, abs=1e-9)
    assert got.explained == pytest.approx(1)


def test_noise_does_not_draw_momentum_towards_zero():
    got = measure(with_momentum(0.7, 0.1, 0.02, 200))
    assert got.mu.low < 0.7 < got.mu.high
    assert got.mu.half < 0.02


def test_the_interval_shrinks_with_the_root_of_the_seeds():
    few, many = (measure(with_momentum(0.7, 0.1, 0.02, n)).mu.half for n in (50, 800))
    assert few / many == pytest.approx(4, rel=0.5)


def test_asynchronous_workers_have_the_momentum_that_is_known():
    got = measure(models("asp", 4, 10, 1.0, Pace(), 200)).mu
    assert got.low < 0.75 < got.high
    assert got.half < 0.02


def test_models_are_those_after_each_commit():
    w = models("asp", 3, 2, 0.3, Pace(), 2)
    assert w.shape == (2, 7)
    assert (w[:, 0] == 1).all()
    assert w[:, 1] == pytest.approx(0.9)  # w - η/M w


def test_with_adsp_momentum_is_near_one_for_any_commit_rate_and_the_theorem_is_not():
    low, high = study(rates=(2, 10), seeds=25)[2:]  # with restarts
    assert (low.rate, high.rate, low.name) == (2, 10, "restarts")
    assert low.theory == pytest.approx(0.2982, abs=1e-4)
    assert high.theory == pytest.approx(0.0783, abs=1e-4)
    for row in (low, high):
        assert 0.9 < row.measured.mu.mean < 0.97
        assert row.left == pytest.approx(row.measured.mu.mean ** (18 * row.rate))
        assert row.theory < row.measured.mu.low


def test_table_and_figure_show_the_rows(monkeypatch):
    monkeypatch.setattr(implicit, "CHECKED", (4,))
    checked, found = check(seeds=5), study(rates=(5, 10), seeds=4)
    assert [row.theory for row in checked] == [0.75]
    assert math.isnan(checked[0].left)
    assert table([*checked, *found]).row_count == 5
    left, right = draw(checked, found).axes
    assert [text.get_text() for text in left.get_xticklabels()] == ["M = 4"]
    theory = next(line for line in right.lines if line.get_label().startswith("Theorem"))
    assert theory.get_ydata() == pytest.approx([0.1453, 0.0783], abs=1e-4)
