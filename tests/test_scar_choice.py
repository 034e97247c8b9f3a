"""Which r and C `auto` chooses, and what they cost a quadratic that is really checkpointed."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbdybw.errors import BadInput
from cbdybw.scar.blocks import Blocks, euclidean
from cbdybw.scar.checkpoint import Memory, RunningCheckpoint
from cbdybw.scar.choice import (
    FRACTIONS,
    PERIODS,
    Costs,
    choose,
    evenness,
    failure_cost,
    interval,
)
from cbdybw.scar.iteration_cost import Online, bound_single, mean_full_recovery_cost

MEASURED = Costs(iteration=0.1, save=1e-3, save_byte=1e-9, nbytes=4_000_000)
GRID = list(itertools.product(FRACTIONS, PERIODS))

SETTINGS = (  # costs, c, lost share, evenness
    st.builds(
        Costs,
        iteration=st.floats(1e-3, 10),
        save=st.just(0.0) | st.floats(1e-9, 1),  # far below, rounding decides which one is least
        save_byte=st.just(0.0) | st.floats(1e-15, 1e-6),
        nbytes=st.integers(1, 10**8),
    ),
    st.floats(0.3, 0.9999),
    st.floats(0.01, 1),
    st.floats(0.01, 1),
)


def total(costs, c, rate, lost, even, r, period):
    return costs.overhead(r, period) + rate * failure_cost(c, lost, r, period, even)


def test_overhead_is_the_time_of_a_save_over_that_of_the_iterations_between_two():
    # 1 ms + 1/8 of 4 ms in every 2 iterations of 0.1 s; 1 ms + 4 ms in every 16
    assert MEASURED.overhead(1 / 8, 16) == pytest.approx(1.5e-3 / 0.2)
    assert MEASURED.overhead(1, 16) == pytest.approx(5e-3 / 1.6)
    assert [interval(r, 4) for r in FRACTIONS] == [1, 1, 2, 4]


def test_to_lose_everything_costs_what_came_after_the_checkpoint():
    for c, period in itertools.product((0.5, 0.9, 0.999), PERIODS):
        cost = failure_cost(c, 1.0, 1.0, period)
        assert cost == pytest.approx((period - 1) / 2)
        assert cost == pytest.approx(mean_full_recovery_cost(1e-9, period))


@pytest.mark.parametrize("lost", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("c", [0.6, 0.9, 0.99])
def test_a_failure_costs_less_than_the_bound_whatever_r0_and_iteration(lost, c):
    for r0, k in ((1.0, 100), (50.0, 7)):
        distance = c**k * r0  # of x(k) from x*; of x(k - a): c^-a times that
        bounds = [
            bound_single(c, r0, k, math.sqrt(lost) * (c**-age - 1) * distance) for age in range(16)
        ]
        assert failure_cost(c, lost, 1.0, 16) < np.mean(bounds)
    by_hand = [math.log(1 - lost + lost * c ** (-2 * a)) for a in range(16)]
    assert failure_cost(c, lost, 1.0, 16) == pytest.approx(np.mean(by_hand) / -2 / math.log(c))


def test_the_square_of_the_distance_after_a_loss_is_as_derived():
    rng = np.random.default_rng(4)
    x, c, age, lost = rng.normal(size=40), 0.9, 6, 0.25
    squares = []
    for _ in range(5_000):
        gone = np.isin(np.arange(40), rng.choice(40, 10, replace=False))
        squares.append((np.where(gone, c**-age * x, x) ** 2).sum())
    ratio = np.array(squares) / (x @ x)
    expected = 1 - lost + lost * c ** (-2 * age)
    assert ratio.mean() == pytest.approx(expected, abs=4 * ratio.std() / math.sqrt(5_000))


def test_costs_of_failures_are_numbers_where_powers_of_c_are_none():
    assert failure_cost(1e-9, 0.5, 1.0, 64) == pytest.approx(31.5, abs=0.1)
    assert failure_cost(1 - 1e-12, 0.5, 1.0, 64) == pytest.approx(0.5 * 31.5, rel=1e-3)


def test_evenness_is_one_of_equal_blocks_and_one_nth_of_a_lone_one():
    assert evenness(np.full(7, 0.3)) == pytest.approx(1)
    assert evenness(np.eye(8)[2]) == pytest.approx(1 / 8)
    assert evenness(np.array([1.0, 3.0])) == pytest.approx(4 / 5)
    assert evenness(np.zeros(4)) == 1


@given(*SETTINGS, st.floats(0, 1))
def test_the_choice_is_the_cheapest_of_the_grid(costs, c, lost, even, rate):
    choice = choose(costs, c, rate, lost, even)
    totals = [total(costs, c, rate, lost, even, r, period) for r, period in GRID]
    assert choice.overhead + choice.rework == choice.total == min(totals)
    assert choice.overhead == costs.overhead(choice.fraction, choice.period)


@given(*SETTINGS, st.floats(0, 1), st.floats(1.01, 1000))
def test_with_more_failures_more_is_spent_on_saves_and_less_lost_by_each(
    costs, c, lost, even, few, factor
):
    many = min(1.0, few * factor)
    rare, often = (choose(costs, c, rate, lost, even) for rate in (few, many))
    rounding = 1e-12 * often.total
    assert often.overhead >= rare.overhead - rounding
    cost = [failure_cost(c, lost, x.fraction, x.period, even) for x in (rare, often)]
    assert many * cost[1] <= many * cost[0] + rounding


@given(*SETTINGS, st.floats(0, 1), st.floats(1e-3, 10))
def test_dearer_saves_come_more_rarely(costs, c, lost, even, rate, more):
    dearer = dataclasses.replace(costs, save=costs.save + more)
    cheap, dear = (choose(x, c, rate, lost, even) for x in (costs, dearer))
    assert interval(dear.fraction, dear.period) >= interval(cheap.fraction, cheap.period)


def test_the_period_follows_the_failure_rate_step_by_step():
    rates = np.geomspace(1e-7, 1, 60)
    waits = [
        interval(x.fraction, x.period) for x in (choose(MEASURED, 0.95, q, 0.5) for q in rates)
    ]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] == 64
    assert waits[-1] <= 4


@given(*SETTINGS)
def test_without_failures_saves_are_as_rare_as_they_can_be(costs, c, lost, even):
    choice = choose(costs, c, 0.0, lost, even)
    if costs.save > 0 or costs.save_byte == 0:
        assert (choice.fraction, choice.period) == (1, 64)
    assert choice.rework == 0
    assert choice.period == 64


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({"c": 1.0}, "c=1: .*use 0 < c < 1, estimated from a run that converges"),
        ({"c": math.nan}, "c=nan"),
        ({"failure_rate": 1.5}, "failure_rate=1.5: .*use failures per iteration, 0 to 1"),
        ({"lost_share": 0.0}, "lost_share=0: .*use a share above 0, up to 1"),
        ({"costs": dataclasses.replace(MEASURED, iteration=0.0)}, "iteration=0: .*seconds above 0"),
    ],
)
def test_nothing_is_chosen_for_settings_that_make_no_sense(given_, says):
    settings = {"costs": MEASURED, "c": 0.9, "failure_rate": 0.01, "lost_share": 0.5}
    with pytest.raises(BadInput, match=says):
        choose(**(settings | given_))


# Against a quadratic

N, K = 64, 200


def quadratic(c, spread, rng):
    """Gradient descent on a random quadratic as a matrix, x* = 0, and x(0). Its slowest direction
    has log-normal components of this spread, so that blocks of one value move at unequal speeds."""
    slow = np.exp(spread * rng.normal(size=N))
    q, _ = np.linalg.qr(np.column_stack([slow, rng.normal(size=(N, N - 1))]))
    step = (q * np.concatenate([[c], rng.uniform(0.5 * c, c, N - 1)])) @ q.T
    return step, q @ np.concatenate([[5.0], rng.normal(size=N - 1)])


def measured_cost(step, x, fraction, period, lost_share, rng, trials=60):
    """Mean iteration cost of failures between iterations 64 and 128 under "priority".

    At which of eight targets, all within one iteration's fall, makes whole iterations of a mean.
    """
    x = x.astype(np.float32)
    blocks = Blocks.rows(N, 1)
    running = RunningCheckpoint(
        blocks,
        np.arange(N),
        x,
        fraction=fraction,
        period=period,
        policy="priority",
        distance=euclidean,
        rng=np.random.default_rng,
        store=Memory(blocks),
    )
    states, saved = [x], [running.cached.copy()]
    for k in range(1, K + 1):
        x = (step @ x).astype(np.float32)
        if running.due(k):
            running.save(x, k)
        states.append(x)
        saved.append(running.cached.copy())
    clean = np.linalg.norm(states, axis=1)
    at = rng.integers(64, 129, trials)
    lost = np.argsort(rng.random((trials, N)), axis=1) < lost_share * N
    y = np.where(lost, np.array(saved)[at], np.array(states)[at]).astype(float)
    after = []
    while len(after) < 2 * K:
        after.append(np.linalg.norm(y, axis=1))
        y = y @ step.T
    assert after[-1].max() < clean[-1]
    targets = np.geomspace(clean[-1], clean[-2], 9)[:-1]
    return np.mean([(after > e).sum(0) + at - (clean > e).sum() for e in targets])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("lost", [0.25, 0.75])
@pytest.mark.parametrize("spread", [0.0, 1.5], ids=["even", "uneven"])
def test_the_choice_costs_little_more_than_the_best_of_the_grid_really_does(spread, lost, seed):
    rng = np.random.default_rng(seed)
    step, x0 = quadratic(0.97, spread, rng)
    watch, x = Online(), x0
    for k in range(64):
        after = step @ x
        watch.tell(k, np.linalg.norm(after - x))
        x = after
    even = evenness(np.abs(step @ x - x))
    cost = {
        (r, period): measured_cost(step, x0, r, period, lost, np.random.default_rng(seed))
        for r, period in GRID
    }
    for rate, save, save_byte in itertools.product(
        (1e-4, 1e-3, 1e-2, 5e-2), (0, 1e-3, 0.05, 1), (0, 1e-5, 1e-3)
    ):
        costs = Costs(iteration=0.1, save=save, save_byte=save_byte, nbytes=4 * N)
        real = {
            (r, period): costs.overhead(r, period) + rate * cost[r, period] for r, period in GRID
        }
        choice = choose(costs, watch.c, rate, lost, even)
        ratio = real[choice.fraction, choice.period] / min(real.values())
        assert ratio < 1.5, f"{seed=} {rate=} {costs} {choice}: {ratio:.3f} times the best"
