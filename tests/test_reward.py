"""The curve through a probe window's losses, and its reward."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbdybw.algorithms.reward import Fit, fit, reward


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
