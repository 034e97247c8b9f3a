"""ADSP's theory against printed values, published runs and simulated timers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbdybw.commit_theory import (
    adsp_steps,
    bsp_steps,
    equalises,
    fixed_adacomm_steps,
    heterogeneity,
    implicit_momentum,
    slowdown,
)
from cbdybw.errors import BadInput
from experiments.adsp.published import THREE_SPEEDS, THREE_WORKERS

SPEEDS = st.lists(st.floats(0.1, 10), min_size=2, max_size=20)


@pytest.mark.parametrize(
    ("rate", "momentum"),
    [
        (0.25, 0.7727),
        (0.5, 0.6296),
        (1, 0.4595),
        (2, 0.2982),
        (3, 0.2208),
        (4, 0.1753),
        (5, 0.1453),
        (6, 0.1241),
        (8, 0.0960),
        (10, 0.0783),
    ],
)
def test_implicit_momentum_has_the_printed_values(rate, momentum):
    assert implicit_momentum([0.05] * 18, rate) == pytest.approx(momentum, abs=5e-5)


def test_implicit_momentum_falls_with_every_rate_and_is_none_for_a_lone_worker():
    even = implicit_momentum([0.05] * 18, [4.0] * 18)
    assert even == implicit_momentum([0.05] * 18, 4)
    for i in range(18):
        assert implicit_momentum([0.05] * 18, np.where(np.arange(18) == i, 5.0, 4.0)) < even
    assert implicit_momentum([7.0], 2) == 0


@pytest.mark.parametrize("k", [0.1, 1, 5])
def test_equal_workers_have_the_momentum_of_the_authors_example(k):
    assert implicit_momentum([k] * 3, 1) == pytest.approx(1 - 1 / (1 + k * (3 - 1)))


def test_heterogeneity_has_the_printed_values():
    assert heterogeneity([1, 1, 1 / 3]) == pytest.approx(7 / 3)
    assert heterogeneity([2.039, 2.499, 0.670]) == pytest.approx(2.59, abs=5e-3)
    assert heterogeneity([0.7] * 9) == 1


@pytest.mark.parametrize(("wanted", "s"), [(1.45, 1.736), (2, 2.636), (2.6, 3.618), (3.2, 4.6)])
def test_seven_of_eighteen_equal_workers_are_slowed_as_printed(wanted, s):
    assert slowdown([1.0] * 18, range(11, 18), wanted) == pytest.approx(s, abs=5e-4)


@given(SPEEDS, st.data(), st.floats(0, 9))
def test_the_slowed_group_makes_the_heterogeneity_that_is_wanted(speeds, data, more):
    slowed = data.draw(
        st.sets(st.integers(0, len(speeds) - 1), min_size=1, max_size=len(speeds) - 1)
    )
    v, group = np.array(speeds), np.isin(np.arange(len(speeds)), list(slowed))
    level = max(1.0, v[group].min() / v[~group].min())
    least = heterogeneity(np.where(group, v / level, v))
    s = slowdown(speeds, slowed, least + more)
    assert s >= 1
    assert heterogeneity(np.where(group, v / s, v)) == pytest.approx(least + more)
    with pytest.raises(BadInput, match=f"gives {least:.4g} at least"):
        slowdown(speeds, slowed, least * 0.99)


@pytest.mark.parametrize("slowed", [(), (0, 1, 2)])
def test_nobody_and_everybody_cannot_be_slowed(slowed):
    with pytest.raises(BadInput, match=f"{len(slowed)} of 3 workers are slowed; slow some"):
        slowdown([1.0, 1.0, 1.0], slowed, 2)


@given(SPEEDS)
def test_without_communication_adsp_takes_h_times_the_steps_of_bsp(speeds):
    assert adsp_steps(speeds) == pytest.approx(sum(speeds))
    assert adsp_steps(speeds) / bsp_steps(speeds) == pytest.approx(heterogeneity(speeds))
    assert fixed_adacomm_steps(speeds, 40) == pytest.approx(bsp_steps(speeds))


def test_commits_cost_what_they_take():
    assert bsp_steps([2.0, 1.0], overhead=0.25) == pytest.approx(2 / 1.25)
    assert fixed_adacomm_steps([2.0, 1.0], 40, overhead=10) == pytest.approx(80 / 50)
    # 5 commits of 2 s and 10 of 3 s in 60 s leave 5/6 and 1/2 of the time
    steps = adsp_steps([2.0, 4.0], rates=[5, 10], gamma=60, overhead=[2, 3])
    assert steps == pytest.approx(2 * 5 / 6 + 4 / 2)


def test_a_worker_commits_once_a_step_at_most():
    each_step = 1 / (1 / 2 + 3)
    assert adsp_steps([2.0], rates=60 * each_step, overhead=3) == pytest.approx(each_step)
    assert adsp_steps([2.0], rates=1000, overhead=3) == pytest.approx(each_step)


@pytest.mark.parametrize(
    ("method", "share"),
    [
        ("bsp", 0.953),
        ("ssp", 0.906),
        ("adacomm", 0.543),
        ("fixed_adacomm", 0.563),
        ("adsp", 0.062),
    ],
)
def test_the_published_runs_wait_for_the_published_shares(method, share):
    assert THREE_WORKERS[method].waiting == pytest.approx(share, abs=5e-4)


def test_the_published_steps_of_adsp_obey_the_throughput_law():
    speeds, measured = THREE_SPEEDS, THREE_WORKERS["adsp"].steps_per_second
    assert speeds == pytest.approx((2.039, 2.499, 0.670), abs=5e-4)
    assert heterogeneity(speeds) == pytest.approx(2.59, abs=5e-3)
    assert adsp_steps(speeds) == pytest.approx(5.208, abs=5e-4)
    assert measured == pytest.approx(5.190, abs=5e-4)
    assert 1 - measured / adsp_steps(speeds) == pytest.approx(0.003, abs=5e-4)


def commits(step: float, overhead: float, gamma: float, rate: int, periods: int) -> list[int]:
    """Commits begun by each check point, with timers that have due times, steps of equal length."""
    made, now, counts = 0, 0.0, []
    while len(counts) < periods:
        now += step
        while len(counts) < periods and now > (len(counts) + 1) * gamma:
            counts.append(made)
        if now >= (made + 1) * gamma / rate - overhead:
            made, now = made + 1, now + overhead
    return counts


@given(
    rate=st.integers(1, 10),
    shares=st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 1)), min_size=2, max_size=6),
)
def test_due_times_keep_commit_counts_within_one_of_each_other(rate, shares):
    gamma, counts = 60.0, []
    for length, part in shares:
        both = length * gamma / (2 * rate)  # step + O
        step, overhead = both * (1 - 0.9 * part), both * 0.9 * part
        assert equalises(step * (1 - 1e-9), overhead, gamma, rate)
        counts.append(commits(step, overhead, gamma, rate, periods=20))
    assert np.ptp(counts, axis=0).max() <= 1


def test_steps_that_are_too_long_for_the_rate_fall_behind():
    assert equalises(4, 1, 60, 6)
    assert not equalises(4.001, 1, 60, 6)
    assert not equalises(12, 1, 60, 6)
    fast, slow = (commits(step, 1, 60, 6, periods=20) for step in (1, 12))
    assert max(np.subtract(fast, slow)) > 1
