"""cb-Full: its times, its averages, its end, and the linear speed-up of consensus SGD."""

import numpy as np
import pytest

from cbdybw import theory
from cbdybw.clusters import delays
from cbdybw.clusters.network import Network
from cbdybw.clusters.worker import keyed_rng
from cbdybw.learning.quadratic import Quadratic
from cbdybw.mixing import full_matrix
from cbdybw.recorder import Recorder
from cbdybw.topology import build
from tests.timing import run


class Closes(Recorder):
    """A recorder that also keeps when each worker ended each iteration."""

    def __init__(self, iterations, workers):
        super().__init__(iterations, holders=workers)
        self.times = np.zeros((iterations, workers))

    def record(self, rank, time, event, fields):
        super().record(rank, time, event, fields)
        self.times[fields["k"], rank] = time


@pytest.mark.parametrize("workers", [1, 2, 6, 10])
def test_the_global_barrier_takes_the_harmonic_number_of_mean_times(workers):
    timed = run("cb_full", build("path", workers, 0), "exponential:mean=1", 120_000 // workers)
    assert timed.mean == pytest.approx(float(theory.harmonic(workers)), rel=0.01)
    assert timed.active == timed.used == 1.0


def test_with_the_global_barrier_an_iteration_lasts_as_long_as_its_slowest_worker():
    law = delays.parse("exponential:mean=1", 5, 7)
    timed = run("cb_full", build("ring", 5, 0), law, 50)
    longest = [max(law(j, k) for j in range(5)) for k in range(50)]
    np.testing.assert_allclose(np.diff(timed.recorder.last_close, prepend=0), longest, rtol=1e-9)


@pytest.mark.parametrize("graph", ["ring", "path", "star", "complete"])
def test_with_the_neighbour_barrier_a_worker_waits_for_its_neighbours_only(graph):
    graph, law = build(graph, 6, 0), delays.parse("exponential:mean=1", 6, 7)
    closes = Closes(80, 6)
    run("cb_full", graph, law, 80, recorder=closes, barrier="neighbours")
    ended = np.zeros(6)
    for k in range(80):
        finished = [ended[j] + law(j, k) for j in range(6)]
        ended = np.array([max(finished[i] for i in (j, *graph[j])) for j in range(6)])
        assert closes.times[k].tolist() == ended.tolist()


def test_latency_comes_on_top_of_each_iteration():
    law = "constant:mean=1"
    neighbours = run(
        "cb_full", build("ring", 6, 0), law, 20, network=Network(0.25), barrier="neighbours"
    )
    assert neighbours.mean == 1.25
    everybody = run("cb_full", build("ring", 6, 0), law, 20, network=Network(0.25))
    # Between two iterations a barrier of ⌈log₂ 6⌉ rounds.
    assert everybody.recorder.last_close.tolist() == pytest.approx(
        [1.25 + k * (1.25 + 3 * 0.25) for k in range(20)]
    )


def test_each_iteration_adapts_and_then_combines_with_the_matrix_of_all_neighbours():
    graph = build("path", 5, 0)
    problem = Quadratic(np.eye(5), lam=1.0, sigma=0.0, seed=0)
    timed = run("cb_full", graph, "exponential:mean=1", 30, problem=problem, eta=0.5)
    first = problem.initial(keyed_rng(0, "init", 0, 0))
    p, w = full_matrix(graph), np.tile(first, (5, 1)).astype(float)
    for _ in range(30):
        w = p @ (w - 0.5 * (w - np.eye(5)))
    np.testing.assert_allclose([timed.states[j].w for j in range(5)], w, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["cb_full", "cb_dybw", "cb_static", "dsgd_aau"])
@pytest.mark.parametrize("order", ["atc", "cta"])
@pytest.mark.parametrize("m", [1, 3])
def test_both_orders_and_any_local_steps_follow_the_recursion_of_matrices(algorithm, order, m):
    """Equal times leave nobody out: P is that of all neighbours, whatever the algorithm."""
    graph, eta = build("path", 5, 0), 0.1
    problem = Quadratic(np.eye(5), lam=1.0, sigma=0.0, seed=0)
    timed = run(
        algorithm,
        graph,
        "constant:mean=2",
        30,
        problem=problem,
        eta=eta,
        combine=order,
        local_steps=m,
        barrier="neighbours",
    )
    p, w = full_matrix(graph), np.tile(problem.initial(keyed_rng(0, "init", 0, 0)), (5, 1))
    for _ in range(30):
        # m steps of gradient descent towards the centre shrink the distance to it by (1-η)^m.
        progress = (1 - (1 - eta) ** m) * (np.eye(5) - w)
        w = p @ (w + progress) if order == "atc" else p @ w + progress
    np.testing.assert_allclose([timed.states[j].w for j in range(5)], w, atol=1e-6)
    assert timed.recorder.last_close.tolist() == [2.0 * m * (k + 1) for k in range(30)]


@pytest.mark.parametrize("order", ["atc", "cta"])
def test_the_mean_of_all_estimates_moves_alike_in_both_orders(order):
    """Same gradients as long as they do not depend on the estimate, so the same mean."""

    class Slope(Quadratic):
        def gradient(self, w, batch):
            return batch[1]

    problem = Slope(np.zeros((6, 8)), lam=1.0, sigma=1.0, seed=5)
    timed = run(
        "cb_dybw",
        build("ring", 6, 0),
        "exponential:mean=1",
        50,
        problem=problem,
        policy="late",
        combine=order,
    )
    noise = [[problem.batch(j, k)[1] for j in range(6)] for k in range(50)]
    mean = np.mean([timed.states[j].w for j in range(6)], axis=0, dtype=float)
    first = problem.initial(keyed_rng(0, "init", 0, 0))
    np.testing.assert_allclose(mean, first - 0.1 * np.sum(np.mean(noise, 1), 0), atol=5e-6)


@pytest.mark.parametrize("barrier", ["global", "neighbours"])
@pytest.mark.parametrize("latency", [0.0, 0.3, 5.0])
def test_max_time_stops_all_workers_before_the_same_iteration(barrier, latency):
    timed = run(
        "cb_full",
        build("path", 6, 0),
        "exponential:mean=1",
        10_000,
        network=Network(latency),
        barrier=barrier,
        max_time=20.0,
    )
    (end,) = {(state.k, state.stop) for state in timed.states.values()}
    assert end[0] == end[1] < 100
    closes = timed.recorder.last_close[: end[0]]
    assert closes[-1] >= 20.0
    # Whoever notices names an iteration that is diameter + 1 = 6 ahead.
    assert closes[-1 - 6] < 20.0 + latency


def test_the_news_that_the_time_is_over_needs_diameter_iterations():
    timed = run("cb_full", build("path", 5, 0), "constant:mean=1", 100, max_time=3.5)
    assert {state.k for state in timed.states.values()} == {3 + 4 + 1}
    alone = run("cb_full", build("path", 1, 0), "constant:mean=1", 100, max_time=3.5)
    assert alone.states[0].k == 4


def test_the_news_passes_consistent_cuts():
    timed = run(
        "cb_full",
        build("path", 5, 0),
        lambda rank, index: 3.0 if rank == 0 else 1.0,
        100,
        barrier="neighbours",
        max_time=2.5,
        checkpoint_every=1,
    )
    # Worker 0 alone notices in iteration 0, all others in iteration 1.
    assert {state.k for state in timed.states.values()} == {0 + 4 + 1}


def test_a_run_that_ends_by_its_iterations_has_no_time_limit_in_its_state():
    timed = run("cb_full", build("ring", 3, 0), "constant:mean=1", 4, max_time=1e9)
    assert [(state.k, state.stop) for state in timed.states.values()] == [(4, None)] * 3


def stationary(algorithm, workers, centres, iterations=1500, dim=200, **plan):
    """E‖w̄ - w*‖² / dim after the transient, η = 0.1, λ = σ = 1."""
    problem = Quadratic(centres, lam=1.0, sigma=1.0, seed=11)
    squares = []

    def complete(done, estimates):
        mean = np.mean([estimates[rank] for rank in sorted(estimates)], axis=0, dtype=float)
        squares.append(np.mean((mean - problem.optimum) ** 2))

    recorder = Recorder(iterations, eval_every=1, holders=workers, complete=complete)
    graph = build("ring", workers, 0)
    run(
        algorithm,
        graph,
        "exponential:mean=1",
        iterations,
        problem=problem,
        recorder=recorder,
        **plan,
    )
    assert len(squares) == iterations
    return np.mean(squares[150:])


@pytest.mark.parametrize(
    ("algorithm", "policy", "workers", "expected"),
    [
        ("cb_full", "carry", 1, 0.0526316),
        ("cb_full", "carry", 6, 0.0087719),
        ("cb_dybw", "late", 6, 0.0087719),
        ("cb_dybw", "paper", 6, 0.0087719),
        ("cb_dybw", "late", 10, 0.0052632),
        ("cb_static", "late", 6, 0.0087719),
    ],
)
def test_the_stationary_error_falls_as_one_over_the_number_of_workers(
    algorithm, policy, workers, expected
):
    centres = np.random.default_rng(2).standard_normal((workers, 200))
    error = stationary(algorithm, workers, centres, policy=policy, backup_workers=1)
    assert error == pytest.approx(expected, rel=0.04)


def test_dropping_the_gradients_of_stragglers_costs_accuracy_where_objectives_differ():
    centres = 2 * np.random.default_rng(2).standard_normal((6, 200))
    assert stationary("cb_dybw", 6, centres, policy="drop") > 1.5 * 0.0087719
