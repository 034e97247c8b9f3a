"""The curve through a probe window's losses, and its reward."""

import io
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cbdybw.algorithms.reward import Fit, fit, reward
from experiments.adsp import noise


def curve(a1_squared, a2, a3):
    return lambda t: 1 / (a1_squared * np.asarray(t) + a2) + a3


PRINTED = curve(0.002, 0.3, 0.5)


@pytest.mark.parametrize("times", [(100, 130, 160), (100, 101, 160), np.linspace(100, 160, 17)])
def test_the_printed_example_has_its_reward(times):
    fitted = fit(times, PRINTED(times))
    assert fitted == (pytest.approx(0.002), pytest.approx(0.3), pytest.approx(0.5), "")
    assert 1 / reward(fitted, 1.0) == pytest.approx(850)
    assert reward(fitted, 1.0) == pytest.approx(0.00117647, abs=5e-9)


@given(
    points=st.integers(3, 20),
    start=st.floats(0, 1e4),
    window=st.floats(0.1, 1e3),
    bend=st.floats(0.02, 50),
    loss=st.floats(0.01, 100),
    floor=st.floats(-10, 10),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_reward_of_a_noiseless_curve_is_exact(points, start, window, bend, loss, floor, seed):
    gaps = np.random.default_rng(seed).uniform(0.2, 1, points - 1)
    times = start + window * np.concatenate([[0], np.cumsum(gaps) / gaps.sum()])
    a1_squared = bend / (loss * window)  # the window begins at `loss` above the floor
    a2 = 1 / loss - a1_squared * start
    fitted = fit(times, curve(a1_squared, a2, floor)(times))
    assert fitted.failure == ""
    loss_end = floor + loss / (1 + 2 * bend)  # met when twice the window is over
    assert reward(fitted, loss_end) == pytest.approx(1 / (start + 2 * window), rel=1e-6)


@given(
    st.lists(
        st.tuples(st.floats(), st.one_of(st.floats(), st.integers(0, 3).map(float))), max_size=9
    ),
    st.booleans(),
    st.floats(),
)
def test_a_fit_of_anything_is_a_falling_curve_or_says_why_not(points, in_order, loss_end):
    if in_order:
        points = sorted(points)
    times, losses = [t for t, _ in points], [loss for _, loss in points]
    fitted = fit(times, losses)
    if fitted.failure:
        assert all(map(math.isnan, fitted[:3]))
        assert math.isnan(reward(fitted, loss_end))
    else:
        assert 0 < fitted.a1_squared < math.inf
        assert fitted.a3 <= min(losses)
        assert not reward(fitted, loss_end) < 0


@pytest.mark.parametrize("points", [4, 9])
def test_more_than_three_losses_are_fitted_by_least_squares(points):
    times = np.linspace(100, 160, points)
    losses = PRINTED(times) + 0.002 * (-1.0) ** np.arange(points)
    fitted = fit(times, losses)

    def squares(a1_squared, a2, a3):
        return np.square(curve(a1_squared, a2, a3)(times) - losses).sum()

    least = squares(*fitted[:3])
    assert 0 < least <= squares(0.002, 0.3, 0.5)
    for i in range(3):
        for factor in (1 - 1e-4, 1 + 1e-4):
            beside = list(fitted[:3])
            beside[i] *= factor
            assert squares(*beside) > least


nan, inf = math.nan, math.inf


@pytest.mark.parametrize(
    ("times", "losses", "failure"),
    [
        ([], [], "fewer than three losses"),
        ([0, 1], [2, 1], "fewer than three losses"),
        ([0, 1, 2], [3, nan, 1], "a time or loss is not finite"),
        ([0, 1, 2], [inf, 2, 1], "a time or loss is not finite"),
        ([0, 1, inf], [3, 2, 1], "a time or loss is not finite"),
        ([0, 1, 1], [3, 2, 1], "times do not ascend"),
        ([0, nan, 1], [3, 2, 1], "times do not ascend"),
        ([0, 2, 1], [3, 2, 1], "times do not ascend"),
        ([0, 1, 2], [1, 1, 1], "all losses are equal"),
        ([0, 1, 2], [1, 2, 3], "losses do not fall"),
        ([0, 1, 2, 3], [1, 2, 3, 4], "losses do not fall"),
        ([0, 1, 2], [3, 2, 1], "losses fall no slower later on"),
        ([0, 1, 2], [3, 2.5, 1], "losses fall no slower later on"),
        ([0, 1, 2, 3], [4, 3.5, 2.5, 1], "losses fall no slower later on"),
        ([0, 1, 2], [3, 1, 1], "losses fall at once and no further"),
        ([0, 1, 2], [3, 1, 1.5], "losses fall at once and no further"),
        ([0, 1, 2, 3], [3, 1, 1, 1], "losses fall at once and no further"),
        ([0, 1, 2, 3, 4], [3, 1.4, 1, 1.5, 1.3], "the curve ends above the lowest loss"),
    ],
)
def test_losses_that_no_curve_fits_say_why(times, losses, failure):
    assert fit(times, losses).failure == failure


def test_there_is_no_reward_for_a_loss_that_is_never_met():
    fitted = Fit(0.002, 0.3, 0.5)
    assert math.isnan(reward(fitted, 0.5))
    assert math.isnan(reward(fitted, 0.4))
    assert math.isnan(reward(fitted, 0.5 + 1 / 0.3))  # where the curve stands at t = 0
    assert math.isnan(reward(fitted, nan))
    assert reward(fitted, 0.5 + 1 / 0.302) == pytest.approx(1)


@pytest.fixture(scope="module")
def studied():
    return {row.losses: row for row in noise.study((3, 17), draws=500)}


def test_noise_of_one_per_cent_leaves_the_exact_share_of_three_losses_without_a_fit(studied):
    losses = PRINTED([100, 130, 160])
    bends_by = (losses @ [1, -2, 1]) / math.hypot(losses[0], 2 * losses[1], losses[2])
    no_fit = {n: NormalDist().cdf(-bends_by / (0.01 / math.sqrt(n / 3))) for n in (3, 17)}
    assert no_fit == pytest.approx({3: 0.23, 17: 0.04}, abs=5e-3)
    for share in (studied[3].spread.no_fit, studied[3].grouped.no_fit):
        assert share == pytest.approx(no_fit[3], abs=0.06)  # 3 deviations of 500 draws
    assert studied[17].grouped.no_fit == pytest.approx(no_fit[17], abs=0.03)


def test_more_losses_help_where_the_target_is_near_and_in_three_groups_most(studied):
    few, many = studied[3], studied[17]
    assert many.spread.no_fit == pytest.approx(0.11, abs=0.04)
    assert few.spread.near["10 %"].right == pytest.approx(0.55, abs=0.07)
    assert many.spread.near["10 %"].right == pytest.approx(0.77, abs=0.06)
    assert many.grouped.near["10 %"].right == pytest.approx(0.90, abs=0.04)
    for row in studied.values():
        for outcome in (row.spread, row.grouped):
            assert outcome.near["10 %"].wrong < 0.04
            assert outcome.near["30 %"].wrong == 0


def test_no_number_of_losses_helps_where_the_target_is_far(studied):
    for row in studied.values():
        for decided in row.spread.far.values():
            assert decided.right < 0.25
            assert abs(decided.right - decided.wrong) < 0.1


def test_the_study_is_shown_in_eighty_columns_and_drawn(studied):
    rows = list(studied.values())
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(noise.table(rows))
    text = console.export_text()
    assert "…" not in text
    assert studied[17].grouped.near["10 %"].text() in text
    assert all(len(line) <= 80 for line in noise.SAYS.splitlines())
    panels = noise.draw(rows).axes
    for axes, right in zip(
        panels,
        (
            [row.spread.near["10 %"].right for row in rows],
            [row.spread.far["10 %"].right for row in rows],
            [row.grouped.near["10 %"].right for row in rows],
        ),
        strict=True,
    ):
        assert axes.lines[0].get_ydata() == pytest.approx(100 * np.array(right))
