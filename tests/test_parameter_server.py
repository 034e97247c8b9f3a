"""BSP, ASP and SSP: their times, their arithmetic, their ends, and hundreds of random runs."""

import os
import subprocess
import sys

import numpy as np
import pytest

from cbdybw import theory
from cbdybw.clusters import delays
from cbdybw.clusters.network import HEADER, Network
from cbdybw.clusters.worker import keyed_rng
from cbdybw.learning.quadratic import Quadratic
from cbdybw.problem import Timing
from cbdybw.topology import build
from tests import simulation_server
from tests.drawn import check_resumed, shown
from tests.simulation_server import NAMES, check, draw
from tests.timing import run as timed_run


def serve(algorithm, workers, delay, iterations, servers=1, **kwargs):
    graph = build("path", workers, 0)
    return timed_run(algorithm, graph, delay, iterations, servers=servers, **kwargs)


def model(done):
    """The servers' shards, joined."""
    workers = done.plan.workers
    return np.concatenate([done.states[rank].w for rank in sorted(done.states) if rank >= workers])


def first_model(problem):
    return problem.initial(keyed_rng(0, "init", 0, 0)).astype(float)


# Many random runs


@pytest.mark.parametrize("seed", range(400))
def test_every_shard_has_every_gradient_when_and_as_often_as_the_algorithm_says(seed):
    scenario = draw(seed)
    with shown(scenario):
        check(scenario, simulation_server.run(scenario))


@pytest.mark.parametrize("seed", range(1000, 1150))
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(seed):
    scenario = draw(seed)
    with shown(scenario):
        check_resumed(simulation_server.run, scenario, simulation_server.run(scenario))


@pytest.mark.parametrize("seed", range(2000, 2040))
def test_that_nobody_saves_at_cuts_changes_nothing(seed):
    scenario = draw(seed)
    with shown(scenario):
        kept, lost = (simulation_server.run(scenario, save=save) for save in (True, False))
        assert np.array_equal(kept.trace.events, lost.trace.events)
        assert np.array_equal(kept.trace.spans, lost.trace.spans)


def test_the_seeds_reach_everything_that_can_be_drawn():
    scenarios = [draw(seed) for seed in range(400)]
    assert len({(s.algorithm, s.plan.policy, s.servers) for s in scenarios}) == 5 * 2 * 3
    assert len({(s.algorithm, s.law) for s in scenarios}) == 5 * 9
    assert len({(s.algorithm, bool(s.network)) for s in scenarios}) == 5 * 2
    assert {s.workers for s in scenarios} == set(range(1, 8))
    assert {s.plan.max_time < np.inf for s in scenarios if s.plan.checkpoint_every} == {True, False}


def test_a_seed_alone_is_run_by_one_command():
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation_server", "--seed=7"],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = simulation_server.run(draw(7)).sha256()
    assert done.stdout.splitlines()[-1] == f"fine: trace_sha256 {here}"


def test_a_cut_can_be_gone_on_from_more_than_once():
    scenario = draw(41)
    assert (scenario.algorithm, scenario.plan.checkpoint_every) == ("ssp", 7)
    cut = simulation_server.run(scenario).cuts[7]
    one, other = (simulation_server.run(scenario, cut).states for _ in range(2))
    for rank, state in one.items():
        assert state.w.tobytes() == other[rank].w.tobytes()


# Arithmetic


def test_bsp_is_sgd_on_the_mean_gradient():
    problem = Quadratic(np.eye(4, 9), lam=1.0, sigma=1.0, seed=5)
    done = serve("bsp", 4, "exponential:mean=1", 20, problem=problem, eta=0.3)
    w = first_model(problem)
    for k in range(20):
        w = w - 0.3 * np.mean([problem.gradient(w, problem.batch(j, k)) for j in range(4)], axis=0)
    np.testing.assert_allclose(model(done), w, atol=1e-6)


def test_bsp_with_local_steps_is_at_the_mean_of_where_the_workers_have_arrived():
    problem = Quadratic(np.eye(3, 5), lam=1.0, sigma=1.0, seed=5)
    done = serve("bsp", 3, "constant:mean=1", 10, problem=problem, eta=0.3, local_steps=4)
    w = first_model(problem)
    for k in range(10):
        arrived = []
        for j in range(3):
            local = w
            for s in range(4):
                local = local - 0.3 * problem.gradient(local, problem.batch(j, 4 * k + s))
            arrived.append(local)
        w = np.mean(arrived, axis=0)
    np.testing.assert_allclose(model(done), w, atol=1e-6)
    assert done.mean == 4  # minibatches of one second


@pytest.mark.parametrize("servers", [2, 3, 9])
def test_bsp_has_the_same_bits_however_many_servers_share_the_model(servers):
    problem = Quadratic(np.eye(4, 9), lam=1.0, sigma=1.0, seed=5)
    one, more = (
        serve(
            "bsp",
            4,
            "exponential:mean=1",
            30,
            number,
            problem=problem,
            network=Network(latency=0.3, bandwidth=90.0, jitter=0.2, seed=1),
        )
        for number in (1, servers)
    )
    assert model(more).tobytes() == model(one).tobytes()


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("policy", ["carry", "drop"])
def test_without_latency_shards_hold_what_one_server_would(algorithm, policy):
    problem = Quadratic(np.eye(5, 12), lam=1.0, sigma=0.5, seed=5)
    options = {"problem": problem, "policy": policy, "backup_workers": 2, "staleness": 1}
    one = serve(algorithm, 5, "exponential:mean=1", 60, **options)
    more = serve(algorithm, 5, "exponential:mean=1", 60, 3, **options)
    assert model(more).tobytes() == model(one).tobytes()
    assert more.recorder.last_close.tolist() == one.recorder.last_close.tolist()


def test_asp_steps_along_each_gradient_as_it_arrives_by_one_nth():
    problem = Quadratic(np.eye(2, 3), lam=1.0, sigma=1.0, seed=5)
    speeds = {0: 1.0, 1: 2.5}  # seconds a step
    done = serve("asp", 2, lambda rank, index: speeds[rank], 6, problem=problem, eta=0.4)
    w = first_model(problem)
    computed_at = {0: w, 1: w}
    # Arrivals at 1, 2, 2.5, 3, 4, 5, 5 (worker 1 began first), 6, 7, 7.5, 8, 9.
    for j, c in [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (1, 1), (0, 4), (0, 5), (0, 6), (1, 2),
                 (0, 7), (0, 8)]:  # fmt: skip
        w = w - 0.4 / 2 * problem.gradient(computed_at[j], problem.batch(j, c))
        computed_at[j] = w
    np.testing.assert_allclose(model(done), w, atol=1e-6)
    assert done.recorder.last_close.tolist() == [2, 3, 5, 6, 7.5, 9]
    assert done.recorder.used.tolist() == [2] * 6


def test_ssp_without_any_staleness_is_bsp():
    problem = Quadratic(np.eye(4, 9), lam=1.0, sigma=1.0, seed=5)
    bsp, ssp = (
        serve(
            algorithm,
            4,
            "exponential:mean=1",
            50,
            2,
            problem=problem,
            network=Network(latency=0.1),
            staleness=0,
        )
        for algorithm in ("bsp", "ssp")
    )
    np.testing.assert_allclose(model(ssp), model(bsp), atol=1e-5)
    assert ssp.recorder.last_close.tolist() == bsp.recorder.last_close.tolist()


def test_ssp_of_unlimited_staleness_is_asp():
    problem = Quadratic(np.eye(4, 9), lam=1.0, sigma=1.0, seed=5)
    asp = serve("asp", 4, "exponential:mean=1", 50, problem=problem)
    ssp = serve("ssp", 4, "exponential:mean=1", 50, problem=problem, staleness=10**9)
    assert model(ssp).tobytes() == model(asp).tobytes()


# Times


@pytest.mark.parametrize("workers", [1, 6])
def test_an_iteration_of_bsp_lasts_as_long_as_its_slowest_worker(workers):
    law, iterations = delays.parse("exponential:mean=1", workers, 3), 30_000 // workers
    done = serve("bsp", workers, law, iterations)
    slowest = [max(law(j, k) for j in range(workers)) for k in range(iterations)]
    np.testing.assert_allclose(np.diff(done.recorder.last_close, prepend=0), slowest, atol=1e-8)
    assert done.mean == pytest.approx(float(theory.harmonic(workers)), rel=0.02)


def test_asp_uses_gradients_as_fast_as_all_workers_together_make_them():
    seconds = [1.0, 1.0, 3.0, 0.5]
    done = serve("asp", 4, lambda rank, index: seconds[rank], 600)
    throughput = 4 / done.mean
    assert throughput == pytest.approx(sum(1 / s for s in seconds), rel=0.002)


@pytest.mark.parametrize("staleness", [0, 1, 5])
def test_with_ssp_a_slow_worker_sets_the_pace_once_the_others_have_used_up_their_lead(staleness):
    """The others make s + 1 steps while the slow one makes its first, then one for each of its."""
    done = serve("ssp", 3, lambda rank, index: 10.0 if rank == 2 else 1.0, 40, staleness=staleness)
    closes = done.recorder.last_close
    assert (np.diff(closes)[staleness + 2 :] == 10).all()
    slow = [10.0 * (c + 1) for c in range(50)]
    lead = [c + 1.0 for c in range(staleness + 1)]
    other = lead + [t + 1.0 for t in slow]  # it begins step s + c + 1 when the slow one ends step c
    pushes = sorted(slow + 2 * other)
    assert closes.tolist() == pushes[2 : 3 * 40 : 3]


def test_the_card_of_a_server_sends_one_model_after_the_other():
    """Computing 1 s, latency 0.1 s; a vector of 96 bytes and its header take 1 s on the wire."""
    network = Network(latency=0.1, bandwidth=float(HEADER + 96))
    done = serve("bsp", 4, "constant:mean=1", 5, problem=Timing(24), network=network)
    first = 1 + 1 + 0.1  # computed, pushed
    further = 4 + 0.1 + first  # the last worker gets its model after three others
    assert done.recorder.last_close.tolist() == pytest.approx(
        [first + k * further for k in range(5)]
    )


def test_two_servers_share_the_load_of_the_card():
    network = Network(latency=0.1, bandwidth=float(HEADER + 48))
    done = serve("bsp", 4, "constant:mean=1", 5, 2, problem=Timing(24), network=network)
    first = 1 + 2 + 0.1  # two slices of 1 s each
    further = 4 + 0.1 + first  # both cards send at the same time
    assert done.recorder.last_close.tolist() == pytest.approx(
        [first + k * further for k in range(5)]
    )


# Ends


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("servers", [1, 3])
def test_max_time_ends_all_ranks_before_the_same_iteration(algorithm, servers):
    network = Network(latency=0.2, jitter=0.1)
    done = serve(
        algorithm, 4, "exponential:mean=1", 10_000, servers, network=network, max_time=30.0
    )
    (end,) = {state.k for state in done.states.values()}
    closes = done.recorder.last_close[:end]
    assert done.recorder.iterations == end
    assert closes[-2] < 30.0 <= closes[-1]


def test_nobody_finishes_a_computation_that_is_of_no_use_any_more():
    """Worker 1 would compute until 100 s."""
    ranks = []
    serve("asp", 2, lambda rank, index: 100.0 if rank else 1.0, 3, meet=ranks.append)
    assert {rank.now() for rank in ranks} == {6.0}


def test_timing_alone_takes_as_long_as_learning():
    problem = Quadratic(np.eye(4, 30), lam=1.0, sigma=1.0, seed=5)
    for algorithm in ("bsp", "asp", "ssp", "ps_backup"):
        learnt, timed = (
            serve(algorithm, 4, "exponential:mean=1", 30, 3, problem=p, network=Network(0.1, 200.0))
            for p in (problem, Timing(30))
        )
        assert timed.recorder.last_close.tolist() == learnt.recorder.last_close.tolist()
        assert timed.recorder.used.tolist() == learnt.recorder.used.tolist()
