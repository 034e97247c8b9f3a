"""ps_backup and dbw: exact times, both policies by hand, and estimators against known truth."""

import heapq

import numpy as np
import pytest

from cbdybw import theory
from cbdybw.algorithms.backup import FULL_WAIT_EVERY, WARM_UP, Estimates, how_many
from cbdybw.clusters import delays
from cbdybw.clusters.network import Network
from cbdybw.clusters.worker import keyed_rng
from cbdybw.learning.quadratic import Quadratic
from cbdybw.recorder import Recorder
from cbdybw.topology import build
from tests.timing import run as timed_run


def serve(algorithm, workers, delay, iterations, servers=1, **kwargs):
    graph = build("path", workers, 0)
    return timed_run(algorithm, graph, delay, iterations, servers=servers, **kwargs)


# ps_backup: times


@pytest.mark.parametrize("policy", ["drop", "carry"])
@pytest.mark.parametrize(("workers", "b"), [(4, 1), (6, 2), (6, 5), (10, 3)])
def test_an_iteration_takes_the_harmonic_difference_of_mean_times(policy, workers, b):
    """Exp(1) has no memory: whoever is left out is, at the next iteration, as one that begins."""
    done = serve("ps_backup", workers, "exponential:mean=1", 8_000, policy=policy, backup_workers=b)
    exact = float(theory.harmonic(workers) - theory.harmonic(b))
    assert done.mean == pytest.approx(exact, rel=0.02)
    assert (done.recorder.used == workers - b).all()


def test_with_drop_an_iteration_takes_an_order_statistic_of_fresh_times():
    law = delays.parse("pareto:scale=1,alpha=1.5", 5, 3)
    done = serve("ps_backup", 5, law, 500, policy="drop", backup_workers=2)
    third = [sorted(law(j, k) for j in range(5))[2] for k in range(500)]
    np.testing.assert_allclose(np.diff(done.recorder.last_close, prepend=0), third, atol=1e-9)


def carried(law, workers, n, iterations):
    """When each iteration closes under carry, without any messages."""
    ends = [(law(j, 0), j) for j in range(workers)]
    heapq.heapify(ends)
    closes = []
    for k in range(iterations):
        members = [heapq.heappop(ends) for _ in range(n)]
        closes.append(members[-1][0])
        for _, j in members:
            heapq.heappush(ends, (closes[-1] + law(j, k + 1), j))
    return closes


@pytest.mark.parametrize(
    "law", ["shifted_exponential:base=0.5,mean=0.5", "lognormal:mean=1,sigma=1"]
)
@pytest.mark.parametrize("n", [1, 3, 5])
def test_with_carry_a_straggler_goes_on_from_where_it_is(law, n):
    law = delays.parse(law, 6, 3)
    done = serve("ps_backup", 6, law, 400, policy="carry", backup_workers=6 - n)
    np.testing.assert_allclose(done.recorder.last_close, carried(law, 6, n, 400), rtol=1e-12)


def test_without_backup_workers_it_is_bsp_bit_for_bit():
    problem = Quadratic(np.eye(4, 9), lam=1.0, sigma=1.0, seed=5)
    bsp = serve("bsp", 4, "exponential:mean=1", 40, problem=problem)
    for policy in ("drop", "carry"):
        done = serve(
            "ps_backup",
            4,
            "exponential:mean=1",
            40,
            problem=problem,
            backup_workers=0,
            policy=policy,
        )
        assert done.states[4].w.tobytes() == bsp.states[4].w.tobytes()
        assert done.recorder.last_close.tolist() == bsp.recorder.last_close.tolist()


# ps_backup: what a straggler does


def test_with_drop_a_straggler_begins_anew_at_the_new_model():
    """Worker 2 needs 5 s in iteration 0 and 1 s later on, the others 1 s and 2 s."""
    problem = Quadratic(np.eye(3), lam=1.0, sigma=1.0, seed=5)
    seconds = {(0, 0): 1, (1, 0): 1, (2, 0): 5}
    law = lambda j, k: seconds.get((j, k), 1.0 if j == 2 else 2.0)  # noqa: E731
    done = serve("ps_backup", 3, law, 2, problem=problem, eta=0.5, policy="drop", backup_workers=2)
    w = problem.initial(keyed_rng(0, "init", 0, 0)).astype(float)
    w = w - 0.5 * problem.gradient(w, problem.batch(0, 0))
    w = w - 0.5 * problem.gradient(w, problem.batch(2, 1))
    np.testing.assert_allclose(done.states[3].w, w, atol=1e-6)
    assert done.recorder.last_close.tolist() == [1, 2]


def test_with_carry_the_gradient_of_an_old_model_joins_the_iteration_that_is_open():
    """Worker 2 needs 2.5 s: its first gradient, of w(-1), is the first of iteration 2."""
    problem = Quadratic(np.eye(3), lam=1.0, sigma=1.0, seed=5)
    law = lambda j, k: 2.5 if j == 2 else 1.0 + 0.25 * j  # noqa: E731
    done = serve("ps_backup", 3, law, 3, problem=problem, eta=0.5, policy="carry", backup_workers=1)
    w = [problem.initial(keyed_rng(0, "init", 0, 0)).astype(float)]
    # Ends of computations: 0 at 1, 1 at 1.25 | 0 at 2.25, 1 and 2 at 2.5, and 2 began first | …
    for members in ([(0, 0), (1, 0)], [(0, 1), (2, 0)], [(1, 1), (0, 2)]):
        gradients = [problem.gradient(w[c], problem.batch(j, c)) for j, c in members]
        w.append(w[-1] - 0.5 * np.mean(gradients, axis=0))
    np.testing.assert_allclose(done.states[3].w, w[3], atol=1e-6)
    assert done.recorder.last_close.tolist() == [1.25, 2.5, 3.5]


class Twins(Quadratic):
    """A problem whose two halves are the same."""

    def initial(self, rng):
        return self._doubled(super().initial(rng))

    def batch(self, rank, index):
        return tuple(map(self._doubled, super().batch(rank, index)))

    def _doubled(self, vector):
        return np.tile(vector[: self.dim // 2], 2)


@pytest.mark.parametrize("policy", ["drop", "carry"])
@pytest.mark.parametrize("slow", [(0, 3), (3, 0), (0, 4), (4, 0), (3, 4)])
def test_all_shards_take_the_same_gradients_whatever_link_is_slow(policy, slow):
    """Servers 3 and 4 learn the same here, as long as they use the same gradients."""
    problem = Twins(np.eye(3, 6), lam=1.0, sigma=1.0, seed=5)
    done = serve(
        "ps_backup",
        3,
        "exponential:mean=1",
        60,
        2,
        problem=problem,
        policy=policy,
        backup_workers=1,
        network=Network(latency=0.01, links={slow: (3.0, np.inf)}),
    )
    assert done.states[3].w.tobytes() == done.states[4].w.tobytes()
    assert done.recorder.used.tolist() == [2] * 60


# dbw: the choice


def formula(n, eta, squared_gradient, variance, smoothness, seconds):
    gain = (eta - smoothness * eta**2 / 2) * squared_gradient
    return (gain - smoothness * eta**2 * variance / (2 * n)) / seconds[n - 1]


@pytest.mark.parametrize("seed", range(200))
def test_the_choice_is_where_the_formula_is_largest(seed):
    rng = np.random.default_rng(seed)
    seconds = np.sort(rng.exponential(size=rng.integers(1, 12)))
    eta, smoothness = rng.uniform(0.01, 0.5), rng.uniform(0, 3)
    squared_gradient, variance = rng.exponential(), rng.exponential(5)
    worth = [
        formula(n, eta, squared_gradient, variance, smoothness, seconds)
        for n in range(1, len(seconds) + 1)
    ]
    chosen = how_many(eta, squared_gradient, variance, smoothness, seconds)
    if max(worth) > 0:
        assert worth[chosen - 1] == pytest.approx(max(worth), rel=1e-12)
    else:
        assert chosen == len(seconds)


def test_without_noise_it_waits_for_what_is_cheapest():
    assert how_many(0.1, 1.0, 0.0, 1.0, np.array([1.0, 2.0, 4.0])) == 1
    assert how_many(0.1, 1.0, 0.0, 1.0, np.array([1.0, 1.0, 4.0])) == 2  # more cost nothing
    assert how_many(0.1, 1.0, 0.0, 1.0, np.array([0.0, 0.0, 4.0])) == 2


def test_when_noise_is_all_there_is_it_waits_for_everybody():
    assert how_many(0.1, 1e-9, 1e6, 1.0, np.array([1.0, 2.0, 400.0])) == 3


def test_when_the_step_is_too_long_for_any_gain_it_waits_for_everybody():
    assert how_many(2.5, 1.0, 0.0, 1.0, np.array([1.0, 2.0, 400.0])) == 3


def test_in_between_it_weighs_noise_against_time():
    # Gains 0.1 · (1 - 0.05) - 0.005 · 10 / n = 0.045, 0.07, 0.0783; per second .045, .0467, .0087.
    assert how_many(0.1, 1.0, 10.0, 1.0, np.array([1.0, 1.5, 9.0])) == 2


# dbw: the estimators


def observed(problem, eta, iterations, n, at=None):
    """Estimates of n gradients an iteration, as in a run; `at`: without moving from there."""
    estimates = Estimates({}, n)
    w = problem.initial(np.random.default_rng(0)) if at is None else at
    for k in range(iterations):
        gradients = [problem.gradient(w, problem.batch(j, k)) for j in range(n)]
        mean = np.mean(gradients, axis=0)
        estimates.learn(eta, n, estimates.squares(gradients, mean), np.arange(1.0, n + 1))
        w = w if at is not None else w - np.float32(eta) * mean
    return estimates


@pytest.mark.parametrize("n", [2, 8])
def test_the_variance_is_that_of_one_gradient(n):
    problem = Quadratic(np.zeros((1, 500)), lam=1.0, sigma=0.7, seed=5)
    at = np.ones(500, np.float32)
    assert observed(problem, 0.1, 100, n, at).variance == pytest.approx(500 * 0.7**2, rel=0.03)


@pytest.mark.parametrize("n", [2, 8])
def test_the_squared_gradient_is_without_the_noise_that_is_in_the_mean(n):
    problem = Quadratic(np.zeros((1, 500)), lam=1.0, sigma=0.7, seed=5)
    at = np.full(500, 0.5, np.float32)
    biased = 500 * (0.25 + 0.49 / n)
    found = observed(problem, 0.1, 100, n, at).squared_gradient
    assert found == pytest.approx(500 * 0.25, rel=0.04) != pytest.approx(biased, rel=0.04)


def test_the_squared_gradient_is_never_negative():
    problem = Quadratic(np.zeros((1, 3)), lam=1.0, sigma=1.0, seed=5)
    at = np.zeros(3, np.float32)
    found = [observed(problem, 0.1, k, 3, at).squared_gradient for k in range(1, 30)]
    assert min(found) == 0.0 < max(found)


@pytest.mark.parametrize("lam", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_the_smoothness_is_the_curvature_of_a_quadratic(lam, sigma):
    """Also where the iterates only follow the noise, which is in Δw as well as in Δḡ."""
    problem = Quadratic(np.zeros((1, 20_000)), lam=lam, sigma=sigma, seed=5)
    found = observed(problem, 0.3, 8 if sigma == 0 else 200, 4).smoothness
    assert found == pytest.approx(lam, rel=1e-3 if sigma == 0 else 0.1)


def test_nothing_is_estimated_before_it_has_been_seen():
    estimates = Estimates({}, 3)
    assert estimates.variance == estimates.squared_gradient == estimates.smoothness == 0
    assert estimates.seconds.tolist() == [0, 0, 0]


def test_times_do_not_decrease_in_the_number_of_gradients():
    estimates = Estimates({}, 3)
    nothing = np.zeros(3, np.float32)
    estimates.learn(0.1, 3, nothing, [1.0, 2.0, 3.0])
    assert estimates.seconds.tolist() == [1, 2, 3]
    for _ in range(200):
        estimates.learn(0.1, 2, nothing, [4.0, 5.0])
    assert estimates.seconds == pytest.approx([4, 5, 5], rel=1e-3)


def test_recent_times_count_most():
    estimates = Estimates({}, 1)
    nothing = np.zeros(3, np.float32)
    for seconds in (1.0, 2.0, 4.0):
        estimates.learn(0.1, 1, nothing, [seconds])
    weights = np.array([0.95**2, 0.95, 1])
    assert estimates.seconds == pytest.approx([weights @ [1, 2, 4] / weights.sum()])


# dbw: runs


@pytest.mark.parametrize("servers", [1, 2])
def test_it_waits_for_everybody_to_begin_with_and_then_now_and_then(servers):
    """Without noise the cheapest n is one, but for iterations that look at the others."""
    problem = Quadratic(np.zeros((1, 8)), lam=1.0, sigma=0.0, seed=5)
    done = serve(
        "dbw", 4, "exponential:mean=1", 120, servers, problem=problem, eta=0.01, policy="drop"
    )
    expected = [4 if k < WARM_UP or k % FULL_WAIT_EVERY == 0 else 1 for k in range(120)]
    assert done.recorder.used.tolist() == expected


def test_it_learns_that_one_worker_is_not_worth_waiting_for():
    problem = Quadratic(np.zeros((1, 50)), lam=1.0, sigma=3.0, seed=5)
    law = lambda j, k: 20.0 if j == 1 else 1.0 + 0.001 * j  # noqa: E731
    done = serve("dbw", 5, law, 120, problem=problem, eta=0.05, policy="drop")
    used = done.recorder.used
    assert used[:WARM_UP].tolist() == [5] * WARM_UP
    assert np.median(used[WARM_UP:]) == 4


@pytest.mark.parametrize("servers", [1, 3])
def test_in_a_run_it_chooses_what_its_estimates_say(servers):
    """The estimates are made again from the gradients at the models that the run recorded."""
    n, eta = 4, 0.2
    problem = Quadratic(np.eye(4, 12), lam=1.0, sigma=0.3, seed=5)
    recorder = Recorder(80, eval_every=1)
    law = delays.parse("exponential:mean=1", n, 3)
    done = serve(
        "dbw", n, law, 80, servers, problem=problem, eta=eta, policy="drop", recorder=recorder
    )
    w, estimates = problem.initial(keyed_rng(0, "init", 0, 0)), Estimates({}, n)
    for k in range(80):
        size = estimates.choose(k, eta)
        assert done.recorder.used[k] == size
        order = sorted(range(n), key=lambda j: law(j, k))[:size]
        gradients = [problem.gradient(w, problem.batch(j, k)) for j in sorted(order)]
        mean = np.mean(gradients, axis=0)
        estimates.learn(eta, size, estimates.squares(gradients, mean), [law(j, k) for j in order])
        w = np.concatenate([recorder.copies[k + 1][rank] for rank in range(n, n + servers)])


def test_the_noisier_the_gradients_the_more_are_waited_for():
    means = []
    for sigma in (0.0, 0.5, 8.0):
        problem = Quadratic(np.zeros((1, 50)), lam=1.0, sigma=sigma, seed=5)
        done = serve("dbw", 6, "exponential:mean=1", 200, problem=problem, policy="drop")
        means.append(done.recorder.used.mean())
    assert means[0] < means[1] < means[2]


def test_where_nothing_is_learnt_nothing_is_gained_and_everybody_is_waited_for():
    done = serve("dbw", 4, "exponential:mean=1", 60, 2)
    assert done.recorder.used.tolist() == [4] * 60
