"""Exact mean iteration times against printed values, hand calculation and simulation."""

from fractions import Fraction
from itertools import permutations
from math import gamma

import numpy as np
import pytest

from cbdybw.errors import BadInput
from cbdybw.theory import (
    dtur,
    dtur_exponential,
    harmonic,
    one_random_straggler,
    persistent_straggler,
    shifted_exponential,
)


@pytest.mark.parametrize(
    ("n", "rule", "mean", "reduction", "iterations"),
    [
        (2, "one", 1.5, 0.0, 1),
        (2, "all", 1.5, 0.0, 1),
        (3, "one", 1.33333, 0.273, 2),
        (3, "all", 1.3, 0.291, 1.6667),
        (4, "one", 1.14583, 0.450, 3),
        (4, "all", 1.12234, 0.461, 2.6111),
        (6, "one", 0.92317, 0.623, 5),
        (6, "all", 0.91667, 0.626, 4.3953),
        (10, "one", 0.69868, 0.761, 9),
        (10, "all", 0.69989, 0.761, 8.1119),
    ],
)
def test_exponential_times_have_the_printed_means(n, rule, mean, reduction, iterations):
    exact = dtur_exponential(n, rule)
    assert exact.full == float(harmonic(n))
    assert exact.mean == pytest.approx(mean, abs=5e-6)
    assert exact.reduction == pytest.approx(reduction, abs=5e-4)
    assert exact.iterations_per_epoch == pytest.approx(iterations, abs=5e-5)


@pytest.mark.parametrize(
    ("n", "active"), [(2, 1.0), (3, 0.8333), (4, 0.7240), (6, 0.5984), (10, 0.4734)]
)
def test_the_printed_share_of_the_workers_is_active(n, active):
    assert dtur_exponential(n, "one").active == pytest.approx(active, abs=5e-5)


def test_small_paths_are_exact_fractions():
    assert dtur_exponential(3, "one").mean == float(Fraction(4, 3))
    assert dtur_exponential(3, "all").mean == float(Fraction(13, 10))
    assert dtur_exponential(4, "one").mean == float(Fraction(55, 48))
    assert dtur_exponential(4, "all").mean == float(Fraction(211, 188))
    assert harmonic(4) == Fraction(25, 12)
    assert harmonic(0) == 0


@pytest.mark.parametrize(
    ("n", "slowdown", "interior", "mean", "reduction"),
    [
        (6, 6, False, 2.0, 0.667),
        (6, 6, True, 3.0, 0.500),
        (6, 10, False, 2.8, 0.720),
        (6, 10, True, 4.6, 0.540),
        (10, 10, False, 2.0, 0.800),
        (10, 10, True, 3.0, 0.700),
    ],
)
def test_a_persistent_straggler_costs_as_printed(n, slowdown, interior, mean, reduction):
    exact = persistent_straggler(n, slowdown, interior)
    assert exact.full == slowdown
    assert exact.mean == pytest.approx(mean, abs=1e-12)
    assert exact.reduction == pytest.approx(reduction, abs=5e-4)


@pytest.mark.parametrize(
    ("n", "slowdown", "mean", "reduction"),
    [
        (6, 3, 1.17, 0.61),
        (6, 6, 1.41, 0.76),
        (6, 10, 1.76, 0.82),
        (10, 3, 1.05, 0.65),
        (10, 6, 1.13, 0.81),
        (10, 10, 1.24, 0.88),
    ],
)
def test_a_random_straggler_costs_what_was_simulated(n, slowdown, mean, reduction):
    exact = one_random_straggler(n, slowdown)
    assert exact.mean == pytest.approx(mean, rel=0.01)
    assert exact.reduction == pytest.approx(reduction, abs=0.0075)


def test_a_shift_adds_to_both_clocks():
    exact = shifted_exponential(6, base=0.5, mean=0.5, rule="all")
    assert exact.full == 0.5 + 0.5 * float(harmonic(6))
    assert exact.mean == pytest.approx(0.5 + 0.5 * dtur_exponential(6, "all").mean, rel=1e-15)
    assert exact.reduction == pytest.approx(0.445, abs=1e-3)


def pareto_places(n, alpha):
    """E of the m-th smallest of n Pareto(scale 1) times: n!/(n-m)! Γ(n-m+1-1/α)/Γ(n+1-1/α)."""
    full = gamma(n + 1) / gamma(n + 1 - 1 / alpha)
    return [full * gamma(n - m + 1 - 1 / alpha) / gamma(n - m + 1) for m in range(1, n + 1)]


def test_a_heavy_tail_is_a_matter_of_its_places():
    exact = dtur(6, pareto_places(6, 2), "all")
    assert exact.full == pytest.approx(4.4329, abs=5e-5)
    assert exact.reduction == pytest.approx(0.5970, abs=5e-5)


def complete_edges(order, unvisited):
    """(m, edges that the m-th finisher completes): the first such m, straight from the rule."""
    done = set()
    for m, worker in enumerate(order, 1):
        done.add(worker)
        complete = [e for e in unvisited if worker in e and done.issuperset(e)]
        if complete:
            return m, complete
    raise AssertionError("all workers finish")


@pytest.mark.parametrize("rule", ["one", "all"])
def test_five_workers_agree_with_counting_all_orders(rule):
    orders = list(permutations(range(5)))
    reached = {frozenset((i, i + 1) for i in range(4)): Fraction(1)}
    epoch, iterations, finished = Fraction(0), Fraction(0), Fraction(0)
    while reached:
        unvisited = max(reached, key=len)
        share = reached.pop(unvisited)
        iterations += share
        for order in orders if unvisited else ():
            p = share / len(orders)
            m, complete = complete_edges(order, unvisited)
            epoch += p * (harmonic(5) - harmonic(5 - m))
            finished += p * Fraction(m, 5)
            left = unvisited - set(complete if rule == "all" else [min(complete)])
            reached[left] = reached.get(left, 0) + p
        if not unvisited:
            iterations -= share
    exact = dtur_exponential(5, rule)
    assert exact.mean == float(epoch / iterations)
    assert exact.active == float(finished / iterations)
    assert exact.iterations_per_epoch == float(iterations)


def simulated_epochs(n, rule, times):
    """Sum of θ and number of iterations of each epoch, whose times are (epochs, iterations, n)."""
    epochs = len(times)
    unvisited = np.ones((epochs, n - 1), dtype=bool)
    total, length = np.zeros(epochs), np.zeros(epochs)
    for k in range(n - 1):
        t = times[:, k]
        complete = np.where(unvisited, np.maximum(t[:, :-1], t[:, 1:]), np.inf)
        theta = complete.min(axis=1)
        running = unvisited.any(axis=1)
        total[running] += theta[running]
        length[running] += 1
        if rule == "all":
            unvisited &= complete > theta[:, None]
        else:
            unvisited[np.arange(epochs), complete.argmin(axis=1)] = False
    assert not unvisited.any()
    return total, length


@pytest.mark.parametrize("rule", ["one", "all"])
@pytest.mark.parametrize("n", [4, 6, 10])
@pytest.mark.parametrize("law", ["exponential", "pareto", "random straggler"])
def test_simulated_epochs_agree_within_four_standard_errors(law, n, rule):
    rng = np.random.default_rng(6)
    shape = (40_000, n - 1, n)
    if law == "exponential":
        times, exact = rng.exponential(size=shape), dtur_exponential(n, rule)
    elif law == "pareto":
        times, exact = 1 + rng.pareto(4, size=shape), dtur(n, pareto_places(n, 4), rule)
    else:
        times = rng.uniform(1, 1 + 1e-9, size=shape)
        straggler = rng.integers(n, size=(*shape[:2], 1))
        times[straggler == np.arange(n)] = 6.0
        exact = one_random_straggler(n, 6.0, rule)
    total, length = simulated_epochs(n, rule, times)
    error = (total - exact.mean * length).std() / np.sqrt(len(total)) / length.mean()
    assert total.sum() / length.sum() == pytest.approx(exact.mean, abs=4 * error)


@pytest.mark.parametrize("interior", [False, True])
def test_a_simulated_persistent_straggler_agrees_exactly(interior):
    times = np.ones((1, 5, 6))
    times[..., 2 if interior else 0] = 7.0
    total, length = simulated_epochs(6, "one", times)
    exact = persistent_straggler(6, 7.0, interior)
    assert total[0] / length[0] == pytest.approx(exact.mean, rel=1e-15)


@pytest.mark.parametrize(
    "call",
    [
        lambda: dtur_exponential(1),
        lambda: dtur_exponential(13),
        lambda: dtur_exponential(6, "some"),
        lambda: persistent_straggler(2, 6, interior=True),
        lambda: persistent_straggler(1, 6, interior=False),
    ],
)
def test_what_has_no_exact_value_is_refused(call):
    with pytest.raises(BadInput, match="use"):
        call()
