"""ADACOMM, Fixed ADACOMM and minibatches in proportion to speed."""

import numpy as np
import pytest

from cbdybw import commit_theory
from cbdybw.algorithms import search
from cbdybw.algorithms.plan import Pace
from cbdybw.clusters.network import Network
from cbdybw.clusters.worker import keyed_rng
from cbdybw.learning.quadratic import Quadratic
from cbdybw.topology import build
from tests.runs import run
from tests.timing import run as timed_run


def serve(algorithm, workers, delay, iterations, servers=1, **kwargs):
    graph = build("path", workers, 0)
    return timed_run(algorithm, graph, delay, iterations, servers=servers, **kwargs)


def model(done):
    n = len(done.plan.neighbours)
    return np.concatenate([done.states[rank].w for rank in sorted(done.states) if rank >= n])


# The pace


@pytest.mark.parametrize("seed", range(10))
def test_an_iteration_lasts_as_long_as_the_slowest_worker_needs_for_tau_steps_and_a_commit(seed):
    rng = np.random.default_rng((seed, 9))
    speeds = rng.uniform(0.5, 4.0, 2 + seed % 5)
    tau, latency = int(rng.integers(1, 50)), float(rng.choice([0.0, 0.5]))
    done = serve(
        "fixed_adacomm",
        len(speeds),
        lambda j, c: 1 / speeds[j],
        200,
        network=Network(latency=latency),
        pace=Pace(tau=tau),
    )
    steps_per_second = len(speeds) * tau * 200 / done.recorder.last_close[-1]
    expected = commit_theory.fixed_adacomm_steps(speeds, tau, overhead=2 * latency)
    # The run ends at the server: the last answer is not waited for.
    assert steps_per_second == pytest.approx(expected, rel=0.003)
    assert done.recorder.finishers.tolist() == [len(speeds)] * 200
    assert done.recorder.used.tolist() == [len(speeds) * tau] * 200


# Arithmetic


def local_sgd(problem, workers, tau, rounds, eta):
    """Local SGD with the mean of all after every τ steps, in float64."""
    w = problem.initial(keyed_rng(0, "init", 0, 0)).astype(float)
    for k in range(rounds):
        arrived = []
        for j in range(workers):
            local = w
            for s in range(tau):
                local = local - eta * problem.gradient(local, problem.batch(j, tau * k + s))
            arrived.append(local)
        w = np.mean(arrived, axis=0)
    return w


@pytest.mark.parametrize("servers", [1, 2])
def test_fixed_adacomm_is_the_mean_of_local_sgd(servers):
    problem = Quadratic(np.eye(3, 5), lam=1.0, sigma=1.0, seed=5)
    pace = Pace(tau=4)
    law = "exponential:mean=1"
    done = serve("fixed_adacomm", 3, law, 10, servers, problem=problem, eta=0.3, pace=pace)
    np.testing.assert_allclose(model(done), local_sgd(problem, 3, 4, 10, 0.3), atol=1e-6)


def test_with_one_step_it_is_bsp():
    problem = Quadratic(np.eye(3, 5), lam=1.0, sigma=1.0, seed=5)
    law, pace = "exponential:mean=1", Pace(tau=1)
    one = serve("fixed_adacomm", 3, law, 20, problem=problem, eta=0.3, pace=pace)
    other = serve("bsp", 3, law, 20, problem=problem, eta=0.3)
    np.testing.assert_allclose(model(one), model(other), atol=1e-6)
    np.testing.assert_array_equal(one.recorder.last_close, other.recorder.last_close)


def test_adacomm_tries_each_tau_from_the_first_model():
    """Every probe begins at the first model; what is on its way at its end is of no use."""
    problem = Quadratic(np.eye(2, 3), lam=1.0, sigma=0.0, seed=5)
    pace = Pace(period=50, window=100)
    done = serve("adacomm", 2, "constant:mean=1", 500, problem=problem, eta=0.02, pace=pace)
    memory = done.states[2].memory
    probes = memory["probes"]
    assert probes[:, 1].tolist() == list(search.TAUS)
    assert (probes[:, 6] == probes[0, 6]).all()
    # The first second ends a step of before; what does not come to an average is lost.
    steps = [tau * (99 // tau) for tau in search.TAUS]
    w = problem.initial(keyed_rng(0, "init", 0, 0))
    for probe, of_probe in zip(probes, steps, strict=True):
        after = problem.optimum + (w - problem.optimum) * 0.98**of_probe
        assert probe[8] == pytest.approx(problem.held_out_loss(after), rel=1e-3)
    assert memory["restarted"] == 800
    assert done.states[0].memory["counts"][0] == pytest.approx(done.recorder.last_close[-1])


def test_adacomm_goes_down_from_the_best_tau():
    """Commits that take long make a large τ the best; near the optimum it comes to 1."""
    problem = Quadratic(np.eye(2, 3), lam=1.0, sigma=0.0, seed=5)
    kwargs = {"problem": problem, "eta": 0.02, "network": Network(latency=5.0)}
    pace = Pace(period=50, window=200)
    done = serve("adacomm", 2, "constant:mean=1", 150, pace=pace, **kwargs)
    memory = done.states[2].memory
    best = search.TAUS[memory["probes"][:, 4].argmax()]
    assert best >= 20
    assert memory["restarted"] == 1600
    trained = done.recorder.used[done.recorder.last_close > 1600] / 2
    assert trained[0] == best
    assert trained[-1] == memory["tau"] == 1
    assert (np.diff(trained) <= 0).all()


# Minibatches in proportion to speed


def tuned(algorithm, speeds, samples, period, iterations, **kwargs):
    """A run in which a step takes as long as its samples need; b_i in its last rounds."""
    pace = Pace(batch_size=samples, period=period, tau=5)
    n = len(speeds)
    done = serve(algorithm, n, lambda j, c: 1 / speeds[j], iterations, pace=pace, **kwargs)
    return done, done.states[n].memory["sizes"].tolist()


@pytest.mark.parametrize("algorithm", ["bsp", "fixed_adacomm"])
def test_minibatches_become_proportional_to_speed_and_nobody_waits_any_more(algorithm):
    speeds = [1.0, 1.0, 0.5, 2.5]
    done, sizes = tuned(algorithm, speeds, 100, period=20, iterations=400)
    assert sizes == [80, 80, 40, 200]  # ⌊100 · 4 v_i / 5⌋
    ends = np.diff(done.recorder.last_close)
    tau = 1 if algorithm == "bsp" else 5
    assert ends[0] == pytest.approx(tau * 2.0)  # the slowest worker's time
    assert ends[-1] == pytest.approx(tau * 0.8)  # everybody's
    # The rule is used when the first round after a check period has ended.
    first = int(np.argmax(ends < 1.9 * tau))
    assert done.recorder.last_close[first] == pytest.approx(20)


def test_sizes_are_rounded_down_and_are_one_at_least():
    _, sizes = tuned("bsp", [1.0, 2.0, 0.001], 8, period=5, iterations=30)
    assert sizes == [7, 15, 1]  # 7.997, 15.99, 0.008


@pytest.mark.parametrize("samples", [1, 7, 49, 100, 1024])
def test_equal_speeds_keep_equal_minibatches(samples):
    """M v_i / Σ v_j is 1, and no rounding error makes it less."""
    for n in range(1, 40):
        for speed in (0.7, 1.0, 3.0):
            _, sizes = tuned("bsp", [speed] * n, samples, period=1, iterations=3)
            assert sizes == [samples] * n


def test_speeds_are_of_samples_so_that_sizes_stay_once_they_fit():
    done, _ = tuned("bsp", [1.0, 3.0], 60, period=3, iterations=200)
    ends = np.diff(done.recorder.last_close)
    assert np.ptp(ends[10:]) < 1e-9


@pytest.mark.parametrize("servers", [1, 3])
def test_a_tuned_run_computes_on_minibatches_of_these_sizes(servers):
    drawn = set()

    class Noted(Quadratic):
        def batch(self, rank, index, size=None):
            drawn.add((rank, size))
            return super().batch(rank, index)

    problem = Noted(np.eye(2, 4), lam=1.0, sigma=0.1, seed=0)
    _, sizes = tuned(
        "bsp", [1.0, 3.0], 60, period=10, iterations=50, servers=servers, problem=problem
    )
    assert sizes == [30, 90]
    assert drawn == {(0, 60), (1, 60), (0, 30), (1, 90)}


def test_the_flag_sets_sizes_about_the_workloads_own():
    flags = {"workload": "quadratic:dim=4", "algorithm": "bsp", "workers": 3}
    flags |= {"delay": "persistent:ranks=1,slowdown=4,base=1,jitter=0", "check_period": 10.0}
    plain = run(**flags, batch_size=64)
    with_tuning = run(**flags, batch_size=64, batch_tune=True)
    assert plain["mean_iteration_seconds"] == pytest.approx(4.0)
    assert with_tuning["mean_iteration_seconds"] < 1.6
    assert sum(with_tuning["waiting_seconds"]) < 0.15 * sum(plain["waiting_seconds"])
    assert with_tuning["mean_backup_workers"] == 0
