"""Intervals over seeds: by hand, and by how often they hold the truth."""

import math

import numpy as np
import pytest
from scipy import stats

from experiments import statistics
from experiments.statistics import Interval


def test_the_mean_has_students_interval():
    x = statistics.mean([1.0, 2.0, 3.0, 4.0])
    half = 3.182446 * math.sqrt(5 / 3) / 2  # t at 97.5 % with 3 degrees of freedom
    assert x.n == 4
    assert (x.mean, x.half) == pytest.approx((2.5, half), rel=1e-6)
    by_scipy = stats.ttest_1samp([1, 2, 3, 4], 0).confidence_interval(0.95)
    assert (x.low, x.high) == pytest.approx(tuple(by_scipy))


def test_ninety_five_per_cent_of_the_intervals_hold_the_truth():
    draws = np.random.default_rng(0).normal(3.0, 2.0, (4000, 5))
    held = [x.low <= 3.0 <= x.high for x in map(statistics.mean, draws)]
    assert abs(np.mean(held) - 0.95) < 0.011  # three standard deviations of the share


def test_one_seed_has_a_mean_and_no_interval():
    x = statistics.mean({7: 2.0})
    assert (x.mean, x.n) == (2.0, 1)
    assert math.isnan(x.low)
    assert math.isnan(x.high)


def test_what_a_seed_does_to_both_is_no_noise():
    a, b = {0: 10.0, 1: 20.0, 2: 31.0}, {2: 30.0, 1: 19.0, 0: 9.0, 3: 500.0}
    x = statistics.difference(a, b)
    assert x == Interval(1.0, 1.0, 1.0, 3)


def test_a_reduction_is_of_each_seed():
    x = statistics.reduction({0: 1.0, 1: 3.0}, {0: 4.0, 1: 4.0})
    assert x.mean == pytest.approx(0.5)
    assert x.half == pytest.approx(stats.t.ppf(0.975, 1) * 0.25)


def test_a_ratio_upside_down_is_its_reciprocal():
    a, b = {0: 1.0, 1: 2.0, 2: 5.0}, {0: 3.0, 1: 4.0, 2: 5.0}
    x, y = statistics.ratio(a, b), statistics.ratio(b, a)
    assert x.mean == pytest.approx((1 / 6) ** (1 / 3))
    assert (y.mean, y.low, y.high) == pytest.approx((1 / x.mean, 1 / x.high, 1 / x.low))


def test_a_run_without_a_number_leaves_none():
    for x in (
        statistics.ratio({0: 1.0, 1: math.nan}, {0: 1.0, 1: 1.0}),
        statistics.difference({0: math.nan}, {0: 1.0}),
        statistics.difference({0: 1.0}, {1: 1.0}),
    ):
        assert math.isnan(x.mean)
        assert x.within(-math.inf, math.inf) is False


def test_an_interval_lies_inside_outside_or_cannot_tell():
    assert Interval(0.5, 0.4, 0.6, 3).within(0.3, 0.7) is True
    assert Interval(0.9, 0.8, 1.0, 3).within(0.3, 0.7) is False
    assert Interval(0.8, 0.4, 1.2, 3).within(0.3, 0.7) is None  # outside, as likely as not
    assert Interval(0.8, math.nan, math.nan, 1).within(0.3, 0.7) is False
    assert Interval(math.nan, math.nan, math.nan, 3).within(0.3, 0.7) is False
    assert Interval(0.5, 0.2, 0.8, 3).within(0.3, 0.7) is None
    assert Interval(0.5, math.nan, math.nan, 1).within(0.3, 0.7) is True


def test_a_power_law_is_found_with_the_interval_of_its_exponent():
    x = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    assert statistics.power(x, 3 * x**-0.5)[:3] == pytest.approx((-0.5, -0.5, -0.5))
    y = x**-0.5 * np.array([1.1, 0.9, 1.05, 0.95, 1.0])
    design = np.stack([np.log(x), np.ones(5)], axis=1)
    (slope, _), (rest,), *_ = np.linalg.lstsq(design, np.log(y), rcond=None)
    error = math.sqrt(rest / 3 * np.linalg.inv(design.T @ design)[0, 0])
    fit = statistics.power(x, y)
    assert (fit.mean, fit.half) == pytest.approx((slope, stats.t.ppf(0.975, 3) * error))


def test_two_points_fit_any_power():
    assert math.isnan(statistics.power([1.0, 2.0, 2.0], [1.0, 0.5, 0.6]).mean)


def test_a_crossing_lies_between_two_evaluations():
    x, y = np.array([0.0, 10.0, 20.0, 30.0]), np.array([2.0, 1.0, 0.5, 0.7])
    assert statistics.crossing(x, y, 0.6) == pytest.approx(18.0)
    assert statistics.crossing(x, y, 2.5) == 0.0
    assert math.isnan(statistics.crossing(x, y, 0.4))


def test_curves_with_other_times_are_averaged_where_all_are():
    slow = np.array([0.0, 4.0]), np.array([4.0, 0.0])
    fast = np.array([0.0, 1.0, 2.0]), np.array([4.0, 2.0, 0.0])
    band = statistics.band([slow, fast], points=3)
    assert band.x.tolist() == [0.0, 1.0, 2.0]
    assert band.mean == pytest.approx([4.0, 2.5, 1.0])
    assert band.high - band.mean == pytest.approx(stats.t.ppf(0.975, 1) * np.array([0.0, 0.5, 1.0]))


def test_numbers_are_printed_with_their_intervals():
    x = Interval(0.6234, 0.62, 0.6268, 5)
    assert x.percent() == "62.3 ± 0.3 %"
    assert x.text() == "0.623 [0.62, 0.627]"
    assert Interval(math.nan, math.nan, math.nan, 3).percent() == "not reached"
