"""The searches of ADSP's scheduler, driven by hand: what they order after what they see."""

import math
from itertools import product

import pytest

from cbdybw.algorithms import search
from cbdybw.algorithms.plan import Pace
from cbdybw.algorithms.search import Sight

PACE = Pace(period=60, window=40, epoch=1000, points=3, momentum=0.3)


class Course:
    """A search at work: `see` shows it a loss when its order's seconds are over."""

    def __init__(self, find, pace=PACE):
        self.journal, self.time = [], 0.0
        self._search = find(pace, self.journal)
        self.order = next(self._search)

    def see(self, loss):
        self.time += self.order.seconds
        self.order = self._search.send(Sight(self.time, loss))
        return self.order

    def probe(self, loss):
        """Show a probe of ADSP the curve loss(t) from its second look on."""
        for _ in range(2):
            self.see(loss(self.time + self.order.seconds))


def falling(pole, floor=0.0):
    """1/(t/100 + pole) + floor."""
    return lambda t: 1 / (t / 100 + pole) + floor


def test_a_fixed_rate_is_announced_in_every_period_and_nothing_is_searched_for():
    course = Course(search.fixed_rate, Pace(rate=4, period=60))
    assert course.order == search.Order(0, blind=True)
    orders = [course.see(loss) for loss in (1.0, math.nan, 5.0)]
    assert {(order.seconds, order.rate) for order in orders} == {(60, 4)}
    assert course.journal == []


# ADSP


def test_a_probe_announces_its_rate_once_for_the_whole_window_and_looks_at_equal_distances():
    course = Course(search.adsp, Pace(period=60, window=40, points=5))
    orders = [course.see(5.0 - 0.1 * n) for n in range(5)]
    assert [(o.seconds, o.rate, o.span) for o in orders[:4]] == [
        (10, 1, 40),
        (10, 0, 40),
        (10, 0, 40),
        (10, 0, 40),
    ]
    assert (orders[4].rate, orders[4].span) == (2, 40)  # C + 1, from where the model is
    (first,) = course.journal
    assert [sight.time for sight in first.sights] == [0, 10, 20, 30, 40]


def rates_of(course):
    return [probe.order.rate for probe in course.journal]


def test_the_rate_goes_up_while_each_next_curve_comes_sooner_to_where_it_ends():
    """Windows of curves that fall faster and faster, but for the fourth."""
    course = Course(search.adsp)
    course.see(1.0)
    level = 1.0
    for speed in (1.0, 2.0, 4.0, 0.5):
        begin, start = course.time, level

        def loss(t, begin=begin, start=start, speed=speed):
            return 1 / (speed * (t - begin) / 100 + 1 / start)

        course.probe(loss)
        level = loss(course.time)
    assert rates_of(course) == [1, 2, 3, 4]
    assert (course.order.rate, course.order.seconds, course.order.momentum) == (3, 60, 0.3)


def test_the_rate_stays_where_the_next_one_has_no_reward():
    course = Course(search.adsp)
    course.see(1.0)
    course.probe(falling(1.0))
    course.probe(lambda t: 1.0)  # a flat window has no curve
    assert rates_of(course) == [1, 2]
    assert math.isnan(course.journal[1].reward)
    assert course.journal[1].fit.failure
    assert course.order.rate == 1


def test_a_first_rate_without_reward_is_worse_than_any_with_one():
    course = Course(search.adsp)
    course.see(2.0)
    course.probe(lambda t: 2.0)
    course.probe(lambda t: 1 / ((t - 40) / 100 + 0.5))
    assert rates_of(course) == [1, 2]
    assert (course.order.rate, course.order.span) == (3, 40)  # a third probe


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 0.0])
def test_losses_of_any_kind_end_no_search_with_an_error(loss):
    for find in (search.adsp, search.adsp_plus, search.adsp_plus_plus, search.adacomm):
        course = Course(find)
        for _ in range(80):
            order = course.see(loss)
            assert order.seconds > 0
            assert order.tau >= 1


def trained(periods, losses=lambda n: 1.0):
    """A course of ADSP that has found rate 1 and then trained for some check periods."""
    course = Course(search.adsp)
    course.see(1.0)
    course.probe(falling(1.0))
    course.probe(lambda t: 1.0)
    for n in range(periods):
        course.see(losses(n))
    return course


def test_it_searches_anew_when_an_epoch_is_over_from_the_rate_that_it_has():
    course = trained(16)  # of 17 periods of 60 s that 1000 s end in
    assert len(course.journal) == 2
    assert (course.order.rate, course.order.span) == (1, 0)
    course.see(1.0)
    assert (course.order.rate, course.order.span, course.order.seconds) == (1, 40, 20)
    course.probe(falling(1.0))
    assert rates_of(course) == [1, 2, 1]


@pytest.mark.parametrize(
    ("before", "after", "again"),
    [
        (1.0, 1.29, False),
        (1.0, 1.31, True),
        (-100.0, -120.0, False),  # it falls
        (-100.0, -71.0, False),
        (-100.0, -69.0, True),
        (0.0, 0.0, False),
        (1.0, math.nan, False),
        (1.0, math.inf, True),
    ],
)
def test_it_searches_anew_after_a_rise_by_30_percent_between_two_check_points(before, after, again):
    course = trained(2, [before, after].__getitem__)
    assert (course.order.span > 0) == again


def test_the_first_check_point_after_a_search_is_compared_with_its_end():
    assert trained(1, lambda n: 1.2).order.span == 0
    assert trained(1, lambda n: 1.4).order.span == 40


# Before training


def offline_course(find, losses, pace=PACE):
    """A course whose probe n ends at losses[n]; the orders that were in force in them."""
    course = Course(find, pace)
    course.see(10.0)
    orders = []
    for loss in losses:
        orders.append(course.order)
        course.see(loss)
    return course, orders


def test_adsp_plus_tries_every_rate_from_the_first_model_and_keeps_the_one_with_the_lowest_loss():
    losses = [5.0, 4.0, 3.0, 2.0, math.nan, 2.0, 2.5, 11.0]
    course, orders = offline_course(search.adsp_plus, losses)
    assert [(o.rate, o.seconds, o.momentum) for o in orders] == [
        (rate, 40, 0.3) for rate in search.RATES
    ]
    assert all(order.restart for order in orders)
    assert [probe.reward for probe in course.journal[:4]] == [5.0, 6.0, 7.0, 8.0]
    assert (course.order.rate, course.order.restart, course.order.seconds) == (4, True, 60)
    assert course.see(1.0) == course.see(100.0) == course.order._replace(restart=False)


def test_adsp_plus_plus_tries_all_combinations_and_small_momenta_where_none_is_best():
    count = len(search.MOMENTA) * len(search.DIVISORS) * len(search.JOINT_RATES)
    losses = [5.0] * count
    losses[3] = 4.0  # μ = 0, divisor 1, the fourth rate
    more = [5.0] * (len(search.SMALL_MOMENTA) * 8)
    more[9] = 3.0  # μ = 0.2, divisor 1, the second rate
    course, orders = offline_course(search.adsp_plus_plus, losses + more)
    tried = [(o.momentum, o.divisor, o.rate) for o in orders]
    assert tried[:count] == list(product(search.MOMENTA, search.DIVISORS, search.JOINT_RATES))
    assert tried[count:] == list(product(search.SMALL_MOMENTA, search.DIVISORS, search.JOINT_RATES))
    best = course.order
    assert (best.momentum, best.divisor, best.rate, best.restart) == (0.2, 1, 2, True)


def test_adsp_plus_plus_is_content_with_a_momentum_that_is_not_0():
    losses = [5.0] * 32
    losses[31] = 4.0
    course, _ = offline_course(search.adsp_plus_plus, losses)
    best = course.order
    assert (best.momentum, best.divisor, best.rate, best.seconds) == (0.9, 10, 8, 60)


def test_adacomm_tries_every_tau_and_lets_it_fall_with_the_loss_or_by_half():
    """F0 = 10, τ0 = 20: √(F/10) 20, as long as that is below τ, else half of it."""
    losses = [9.0] * 8
    losses[3] = 1.0
    course, orders = offline_course(search.adacomm, losses)
    assert [o.tau for o in orders] == list(search.TAUS)
    assert all(order.restart for order in orders)
    assert (course.order.tau, course.order.restart, course.order.seconds) == (20, True, 60)
    found = [course.see(loss) for loss in (5.0, 3.0, 9.0, 0.1, 0.1, 0.1)]
    #     ⌈14.14⌉, ⌈10.95⌉, half of 11, ⌈2⌉, half of 2, 1 as long as it lasts
    assert [o.tau for o in found] == [15, 11, 6, 2, 1, 1]
    assert {(o.seconds, o.restart) for o in found} == {(60, False)}


@pytest.mark.parametrize(
    ("f0", "f", "tau"),
    [
        (0.0, -5.0, 10),  # no root: half
        (-1.0, -5.0, 10),
        (1.0, math.nan, 10),
        (1.0, math.inf, 10),
        (1.0, -5.0, 1),  # below 0 by now
        (4.0, 1.0, 10),
        (4.0, 3.9999, 20),
    ],
)
def test_tau_where_the_loss_is_of_any_sign(f0, f, tau):
    assert search.next_tau(20, 20, f0, f) == tau


def test_the_sights_alone_lead_a_search_back_to_where_it_was():
    for find in (search.adsp, search.adsp_plus, search.adsp_plus_plus, search.adacomm):
        course, sights, orders = Course(find), [], []
        for n in range(60):
            loss = 1 / (1 + n * 0.1) + 0.3 * (n % 7 == 3)
            orders.append(course.see(loss))
            sights.append(Sight(course.time, loss))
        journal = []
        again = find(PACE, journal)
        next(again)
        assert [again.send(sight) for sight in sights] == orders
        assert repr(journal) == repr(course.journal)
