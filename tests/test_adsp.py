"""ADSP: its timers, its pace, its arithmetic, and hundreds of random runs."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from cbdybw import commit_theory
from cbdybw.algorithms.adsp import Timer
from cbdybw.algorithms.commits import TARGET
from cbdybw.algorithms.plan import Pace
from cbdybw.algorithms.rooms import MODEL
from cbdybw.clusters.network import HEADER, Network
from cbdybw.clusters.worker import Message
from cbdybw.learning.quadratic import Quadratic
from cbdybw.problem import Timing
from cbdybw.topology import build
from tests import simulation_adsp
from tests.drawn import check_resumed, shown
from tests.runs import run
from tests.simulation_adsp import check, draw
from tests.timing import run as timed_run

FAMILY = ("adsp", "adsp_plus", "adsp_plus_plus", "adacomm", "fixed_adacomm")


# Many random runs


@pytest.mark.parametrize("seed", range(300))
def test_every_commit_is_used_once_and_what_the_server_has_is_what_they_come_to(seed):
    scenario = draw(seed)
    with shown(scenario):
        check(scenario, simulation_adsp.run(scenario))


@pytest.mark.parametrize("seed", range(1000, 1150))
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(seed):
    scenario = draw(seed)
    with shown(scenario):
        check_resumed(simulation_adsp.run, scenario, simulation_adsp.run(scenario))


def test_the_seeds_reach_everything_that_can_be_drawn():
    scenarios = [draw(seed) for seed in range(300)]
    assert len({(s.algorithm, s.law) for s in scenarios}) == 6 * 8
    assert len({(s.algorithm, s.plan.checkpoint_every) for s in scenarios}) == 6 * 4
    assert len({(s.algorithm, s.plan.max_time) for s in scenarios}) == 6 * 4
    assert {s.workers for s in scenarios} == set(range(1, 8))
    adsp = [s.plan.pace for s in scenarios if s.algorithm == "adsp"]
    assert len({(p.restarts, p.rate) for p in adsp}) == 2 * 5
    assert len({(p.restarts, p.momentum > 0) for p in adsp}) == 2 * 2
    fixed = [s for s in scenarios if s.algorithm == "fixed_adacomm"]
    assert len({(s.servers, s.plan.pace.batch_size > 0) for s in fixed}) == 3 * 2


def test_a_seed_alone_is_run_by_one_command():
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation_adsp", "--seed=7"],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = simulation_adsp.run(draw(7)).sha256()
    assert done.stdout.splitlines()[-1] == f"fine: trace_sha256 {here}"


# Timers


def target(c_target, begin, span, divisor=1):
    return Message(TARGET, 0, 9, (c_target, round(1e6 * begin), round(1e6 * span), divisor))


ANSWER = Message(MODEL, 0, 9)


def test_commits_have_due_times_from_the_check_point_on_that_a_late_one_does_not_shift():
    timer = Timer(Pace(), None)
    assert not timer.is_over(1e9, 1)  # nobody has said anything yet
    timer.hear(target(4, begin=100, span=60), 101.0, commits=0)
    assert (timer.rate, timer.due) == (4, 115)
    assert not timer.is_over(114.9, 3)
    assert timer.is_over(115.0, 3)
    timer.commit(118.0)  # its step has taken until then
    timer.hear(ANSWER, 120.0, commits=1)
    assert (timer.overhead, timer.due) == (2, 128)  # 130 - O
    timer.commit(129.0)
    timer.hear(ANSWER, 130.0, commits=2)
    assert timer.due == 144  # 145 - O, whenever the others were made


def test_who_is_behind_commits_more_often_and_who_is_ahead_once():
    timer = Timer(Pace(), None)
    timer.hear(target(10, begin=60, span=60), 60.0, commits=4)
    assert (timer.rate, timer.due) == (6, 70)
    timer.hear(target(12, begin=120, span=60), 120.0, commits=14)
    assert (timer.rate, timer.due) == (1, 180)


def test_a_restarting_timer_runs_anew_from_each_answer_and_is_never_shorter_than_a_limit():
    timer = Timer(Pace(restarts=True, shortest=10), None)
    timer.hear(target(4, begin=100, span=60), 101.0, commits=0)
    timer.commit(110.0)
    timer.hear(ANSWER, 112.0, commits=1)
    assert timer.due == 112 + 15 - 2
    timer.hear(target(21, begin=160, span=60), 160.0, commits=1)
    assert timer.due == 112 + 10


def test_an_overhead_longer_than_the_time_between_two_commits_makes_each_step_a_commit():
    for restarts in (False, True):
        timer = Timer(Pace(restarts=restarts, shortest=0), None)
        timer.hear(target(60, begin=0, span=60), 0.0, commits=0)
        timer.commit(1.0)
        timer.hear(ANSWER, 9.0, commits=1)
        assert timer.overhead == 8
        assert timer.is_over(9.0, 1)


def test_a_model_that_nobody_asked_for_and_one_at_a_cut_say_nothing_of_the_overhead():
    timer = Timer(Pace(), None)
    timer.commit(1.0)
    timer.hear(ANSWER, 1.5, commits=1)
    timer.hear(ANSWER, 30.0, commits=1)
    assert timer.overhead == 0.5
    timer.commit(40.0)
    timer.rest()
    timer.hear(ANSWER, 90.0, commits=2)
    assert timer.overhead == 0.5


def test_a_timer_comes_back_from_its_memory():
    timer = Timer(Pace(), None)
    timer.hear(target(4, begin=100, span=60, divisor=10), 101.0, commits=0)
    timer.commit(118.0)
    timer.hear(ANSWER, 120.25, commits=1)
    again = Timer(Pace(), timer.memory()["timer"])
    assert vars(again) | {"anew": False} == vars(timer)


# The pace


def serve(algorithm, workers, delay, iterations, **kwargs):
    graph = build("path", workers, 0)
    return timed_run(algorithm, graph, delay, iterations, servers=1, **kwargs)


def spread(seed, restarts):
    """How far the commits of workers lie apart at a check point, at most: random speeds and
    latencies with step + O ≤ Γ/(2ΔC), at ΔC = 6."""
    rng = np.random.default_rng((seed, 6))
    n, gamma, rate = int(rng.integers(2, 9)), 60.0, 6
    latency, jitter = rng.choice([0.0, 0.1, 0.5]), rng.choice([0.0, 0.1])
    longest = gamma / (2 * rate) - 2 * latency
    steps = rng.uniform(0.2, longest / 1.1, n)
    assert all(commit_theory.equalises(1.1 * step, 2 * latency, gamma, rate) for step in steps)
    law = steps[:, None] * rng.uniform(1, 1 + jitter, (n, 97))
    done = serve(
        "adsp",
        n,
        lambda j, c: law[j, c % 97],
        10_000,
        network=Network(latency=latency),
        max_time=6 * gamma + 1,
        pace=Pace(rate=rate, period=gamma, restarts=restarts, shortest=0.0),
    )
    checks = done.states[n].memory["checks"]
    assert checks[:, :2].tolist() == [[gamma * k, rate * k] for k in range(7)]
    return int((checks[:, 3] - checks[:, 2]).max())


def test_with_due_times_commits_differ_by_one_at_most_at_every_check_point():
    spreads = [spread(seed, restarts=False) for seed in range(300)]
    assert set(spreads) == {0, 1}


def test_with_timers_that_restart_most_settings_spread_by_two_and_more():
    """Such a timer loses up to a step a commit."""
    spreads = np.array([spread(seed, restarts=True) for seed in range(300)])
    assert (spreads >= 2).sum() > 200
    assert spreads.max() <= 5


def random_speeds(seed):
    return np.random.default_rng((seed, 7)).uniform(0.5, 4.0, 2 + seed % 5)


def steps_per_second(algorithm, speeds, seconds, **kwargs):
    n = len(speeds)
    done = serve(algorithm, n, lambda j, c: 1 / speeds[j], 10_000, max_time=seconds, **kwargs)
    return sum(int(done.states[j].memory["counts"][0]) for j in range(n)) / seconds


@pytest.mark.parametrize("seed", range(10))
def test_nobody_waits_so_that_steps_go_as_fast_as_all_speeds_together(seed):
    speeds = random_speeds(seed)
    adsp = steps_per_second("adsp", speeds, 1200.0, pace=Pace(rate=4))
    assert adsp == pytest.approx(commit_theory.adsp_steps(speeds), rel=0.02)
    assert adsp == pytest.approx(sum(speeds), rel=0.02)
    bsp = len(speeds) / serve("bsp", len(speeds), lambda j, c: 1 / speeds[j], 500).mean
    assert bsp == pytest.approx(len(speeds) * min(speeds))
    assert adsp / bsp == pytest.approx(commit_theory.heterogeneity(speeds), rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_a_commit_costs_its_worker_the_way_to_the_server_and_back(seed):
    speeds = random_speeds(seed)
    pace, network = Pace(rate=6), Network(latency=0.5)
    found = steps_per_second("adsp", speeds, 1200.0, pace=pace, network=network)
    expected = commit_theory.adsp_steps(speeds, rates=6, gamma=60, overhead=1.0)
    assert found == pytest.approx(expected, rel=0.02)
    assert found < 0.95 * sum(speeds)


def test_the_published_three_workers():
    """Step times 1:1:3, as in the paper's motivation; the heterogeneity is 7/3."""
    speeds = [1.0, 1.0, 1 / 3]
    adsp = steps_per_second("adsp", speeds, 6000.0, pace=Pace(rate=2))
    assert adsp / (3 * min(speeds)) == pytest.approx(7 / 3, rel=0.02)


def test_a_commit_is_one_push_and_one_model_on_the_wire():
    done = serve(
        "adsp",
        1,
        "constant:mean=1",
        10,
        problem=Timing(parameters=100),
        pace=Pace(rate=1, period=60),
        network=Network(bandwidth=1000),
    )
    push, model = HEADER + 16 + 400, HEADER + 400
    assert done.states[0].memory["timer"][3] == pytest.approx((push + model) / 1000)


# Arithmetic


class Constant:
    """Every gradient is the same."""

    dim = 4
    g = np.array([1.0, -2.0, 0.5, 4.0], np.float32)

    def initial(self, rng):
        return np.array([1.0, 2.0, 3.0, 4.0], np.float32)

    def batch(self, rank, index, size=None):
        return None

    def gradient(self, w, batch):
        return self.g

    def held_out_loss(self, w):
        return float(np.abs(w).sum())


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_one_commit_each_of_the_same_update_moves_w_by_exactly_that(workers):
    problem = Constant()
    done = serve(
        "adsp",
        workers,
        "constant:mean=1",
        1,
        problem=problem,
        eta=0.25,
        pace=Pace(rate=1, period=8),
    )
    moved = problem.initial(None) - done.states[workers].w
    np.testing.assert_array_equal(moved, 8 * 0.25 * problem.g)  # U of eight steps
    assert done.recorder.used.tolist() == [8 * workers]
    assert done.recorder.finishers.tolist() == [workers]


def test_one_worker_that_commits_every_step_is_plain_sgd_and_with_momentum_the_heavy_ball():
    problem = Quadratic(np.ones((1, 5)), lam=1.0, sigma=1.0, seed=3)
    for momentum in (0.0, 0.6):
        first = []
        pace = Pace(rate=1000, period=1, momentum=momentum)
        done = timed_run(
            "adsp",
            build("path", 1, 0),
            "constant:mean=1",
            30,
            servers=1,
            problem=problem,
            eta=0.2,
            pace=pace,
            meet=lambda worker, first=first: first.append(worker),
        )
        w = problem.initial(np.random.default_rng(0)) * 0 + done.states[1].memory["first"]
        v = np.zeros(5)
        for c in range(30):
            v = momentum * v + 0.2 * problem.gradient(w, problem.batch(0, c))
            w = w - v
        np.testing.assert_allclose(done.states[1].w, w, atol=1e-5)


def test_adsp_plus_plus_trains_with_what_its_search_has_found():
    flags = {"workload": "quadratic:dim=4", "algorithm": "adsp_plus_plus", "workers": 3}
    flags |= {"delay": "constant:mean=0.2", "check_period": 4.0, "probe_window": 4.0}
    result = run(**flags, iterations=2000, max_time=260.0)
    rate, _, momentum, _, reward, _, before, time, after = np.array(result["probes"]).T
    best = momentum[reward[:32].argmax()]
    assert len(rate) == 32 + 16 * (best == 0)
    assert result["search_seconds"] == time[-1] == 4 * len(rate)
    assert len(set(before)) == 1  # all from the same model
    np.testing.assert_allclose(reward, before - after)
    grown = np.diff([target for _, target, _, _ in result["check_points"]])
    assert set(grown[-10:]) == {rate[reward.argmax()]}


@pytest.mark.parametrize("algorithm", ["adsp_plus", "adsp_plus_plus", "adacomm"])
def test_each_probe_begins_with_the_first_learning_rate(algorithm):
    """Without noise equal orders come to equal losses, whatever the rate has decayed to before."""
    flags = {"workload": "quadratic:dim=4,sigma=0", "algorithm": algorithm, "workers": 3}
    flags |= {"delay": "constant:mean=0.5", "eta0": 0.01, "eta_decay": 0.95, "iterations": 10**5}
    done = run(**flags, max_time=5000.0)
    again = run(**flags | {"eta_decay": 1.0}, max_time=5000.0)
    first, last = done["probes"][0], done["probes"][-1]
    assert first[:4] != last[:4]
    falls = {tuple(p[:4]): p[4] for p in done["probes"]}
    alike = {tuple(p[:4]): p[4] for p in again["probes"]}
    # Over one window of a hundred and twenty steps δ^s takes a part off; over a whole search, all.
    assert falls[tuple(last[:4])] > 0.2 * alike[tuple(last[:4])]
    assert done["train_loss"] < 0.8 * first[6]


@pytest.mark.parametrize("algorithm", FAMILY)
def test_a_run_with_many_cuts_is_replayed_identically(tmp_path, algorithm):
    """Where W - (W - W_i) is not W_i bit for bit."""
    flags = {"workload": "quadratic:dim=200", "algorithm": algorithm, "workers": 4, "eta0": 0.1}
    flags |= {"delay": "exponential:mean=1", "check_period": 20.0, "probe_window": 20.0, "tau": 3}
    folder = str(tmp_path / "run")
    run(**flags, iterations=20, checkpoint_every=3, run_dir=folder)
    assert run(replay=folder)["replay_identical"]


# Runs


@pytest.mark.parametrize("algorithm", FAMILY)
def test_a_run_is_the_same_every_time_and_is_replayed_identically(tmp_path, algorithm):
    flags = {
        "workload": "quadratic:dim=4",
        "algorithm": algorithm,
        "workers": 4,
        "delay": "exponential:mean=1",
        "network": "latency=0.01,jitter=0.1",
        "check_period": 6.0,
        "probe_window": 3.0,
        "search_epoch": 30.0,
        "tau": 3,
        "iterations": 60,
        "checkpoint_every": 20,
    }
    first = run(**flags, run_dir=str(tmp_path / "a"))
    again = run(**flags, run_dir=str(tmp_path / "b"))
    assert first["trace_sha256"] == again["trace_sha256"]
    replayed = run(replay=str(tmp_path / "a"))
    assert replayed["replay_identical"]
    for name in ("commits", "steps", "probes", "check_points", "search_seconds"):
        assert replayed[name] == first[name]
    other = run(**flags | {"seed": 1}, run_dir=str(tmp_path / "c"))
    assert other["trace_sha256"] != first["trace_sha256"]


def test_a_run_that_ends_before_its_first_iteration_has_no_mean():
    flags = {"workload": "quadratic:dim=4", "algorithm": "adsp", "workers": 2, "commit_rate": 1}
    result = run(**flags, delay="constant:mean=1", max_time=3.5)
    assert (result["iterations"], result["mean_iteration_seconds"]) == (0, None)
    assert result["steps"] == [4, 4]
    assert result["commits"] == [0, 0]
    json.dumps(result, allow_nan=False)


def test_what_is_under_way_when_time_is_over_is_still_used():
    """Commits leave at 9 and take 2 s; the run ends at 10."""
    done = serve(
        "adsp",
        2,
        "constant:mean=1",
        100,
        problem=Constant(),
        eta=0.25,
        network=Network(latency=2.0),
        max_time=10.0,
        pace=Pace(rate=1, period=6),
    )
    server = done.states[2]
    assert server.memory["commits"].sum() == sum(
        int(done.states[j].memory["counts"][2]) for j in range(2)
    )
    u = sum(int(done.states[j].memory["counts"][1]) for j in range(2))
    assert server.memory["used"] == server.memory["commits"].sum() > 0
    assert u > 0
