"""allreduce: synchronous SGD on the mean gradient, and what an iteration of it costs."""

import math

import numpy as np
import pytest

from cbdybw.clusters import delays
from cbdybw.clusters.network import Network
from cbdybw.clusters.worker import keyed_rng
from cbdybw.learning.quadratic import Quadratic
from cbdybw.problem import Timing
from cbdybw.topology import build
from tests.timing import run as timed_run


def all_reduce(workers, delay="exponential:mean=1", iterations=50, **kwargs):
    return timed_run("allreduce", build("ring", workers, 0), delay, iterations, **kwargs)


@pytest.mark.parametrize("workers", [1, 2, 6])
def test_it_is_sgd_on_the_mean_gradient(workers):
    """Without noise w* - w(k) shrinks by 1 - ηλ in each iteration: an exact recursion."""
    problem = Quadratic(np.eye(workers, 8), lam=0.5, sigma=0.0, seed=0)
    done = all_reduce(workers, iterations=30, problem=problem, eta=0.2)
    first = problem.initial(keyed_rng(0, "init", 0, 0)).astype(float)
    expected = problem.optimum + 0.9**30 * (first - problem.optimum)
    for state in done.states.values():
        np.testing.assert_allclose(state.w, expected, atol=1e-6)


def test_every_worker_adds_its_own_minibatch_of_the_same_iteration():
    problem = Quadratic(np.eye(4), lam=1.0, sigma=1.0, seed=5)
    done = all_reduce(4, iterations=20, problem=problem, eta=0.3)
    w = problem.initial(keyed_rng(0, "init", 0, 0)).astype(float)
    for k in range(20):
        w = w - 0.3 * np.mean([problem.gradient(w, problem.batch(j, k)) for j in range(4)], axis=0)
    for state in done.states.values():
        np.testing.assert_allclose(state.w, w, atol=1e-6)


def test_with_local_steps_it_averages_where_the_workers_have_arrived():
    problem = Quadratic(np.eye(3), lam=1.0, sigma=1.0, seed=5)
    done = all_reduce(3, iterations=10, problem=problem, eta=0.3, local_steps=4)
    w = problem.initial(keyed_rng(0, "init", 0, 0)).astype(float)
    for k in range(10):
        arrived = []
        for j in range(3):
            local = w
            for s in range(4):
                local = local - 0.3 * problem.gradient(local, problem.batch(j, 4 * k + s))
            arrived.append(local)
        w = np.mean(arrived, axis=0)
    np.testing.assert_allclose(done.states[2].w, w, atol=1e-6)


def test_it_equals_cb_full_on_the_complete_graph():
    """There P = 1/N: the mean of the local models is one step on the mean gradient."""
    graph, problem = build("complete", 5, 0), Quadratic(np.eye(5), 1.0, 1.0, seed=3)
    ours, cb_full = (
        timed_run(algorithm, graph, "exponential:mean=1", 40, problem=problem)
        for algorithm in ("allreduce", "cb_full")
    )
    for rank in range(5):
        np.testing.assert_allclose(ours.states[rank].w, cb_full.states[rank].w, atol=2e-6)
    assert ours.recorder.last_close.tolist() == cb_full.recorder.last_close.tolist()


def test_an_iteration_lasts_as_long_as_its_slowest_worker_and_the_ring():
    """Each of n workers sends 2(n - 1) messages of an n-th of the vector."""
    law, latency, bandwidth = delays.parse("exponential:mean=1", 6, 4), 0.125, 4096.0
    done = all_reduce(
        6, law, 50, network=Network(latency, bandwidth), problem=Timing(parameters=6 * 512)
    )
    ring = 2 * 5 * (latency + 512 * 4 / bandwidth)
    expected = [max(law(j, k) for j in range(6)) + ring for k in range(50)]
    np.testing.assert_allclose(np.diff(done.recorder.last_close, prepend=0), expected, rtol=1e-12)


def test_everybody_takes_part_in_every_iteration_and_has_no_edges():
    done = all_reduce(6)
    assert done.active == done.used == 1.0
    assert done.recorder.active.tolist() == [0] * 50


@pytest.mark.parametrize("problem", [Timing(100), Quadratic(np.eye(4), 1.0, 1.0, seed=0)])
@pytest.mark.parametrize("network", [{}, {"latency": 0.5, "jitter": 0.2}])
def test_max_time_stops_all_workers_after_the_iteration_in_which_it_is_over(problem, network):
    law = delays.parse("exponential:mean=1", 4, 2)
    done = all_reduce(4, law, 1000, problem=problem, network=Network(**network), max_time=20.0)
    (end,) = {(state.k, state.stop) for state in done.states.values()}
    closes = done.recorder.last_close[: end[0]]
    assert end[0] == end[1] < 1000
    assert math.isfinite(closes[-1])
    last = [begin + max(law(j, k) for j in range(4)) for k, begin in enumerate([0, *closes[:-1]])]
    assert last[-1] >= 20.0 > last[-2]


def test_the_flag_of_the_time_changes_no_parameter():
    problem = Quadratic(np.eye(4), 1.0, 1.0, seed=0)
    limited, free = (all_reduce(4, problem=problem, max_time=time) for time in (1e9, math.inf))
    assert limited.states[3].w.tobytes() == free.states[3].w.tobytes()
    assert [state.stop for state in limited.states.values()] == [None] * 4
