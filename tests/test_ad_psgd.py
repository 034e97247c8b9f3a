"""AD-PSGD: averages in pairs, nobody waits, the run ends with K·N gradients."""

import os
import pickle
import random
import shutil
import subprocess
import sys
from collections import defaultdict

import networkx as nx
import numpy as np
import pytest

from cbdybw import topology
from cbdybw.algorithms.ad_psgd import ad_psgd
from cbdybw.algorithms.plan import Plan, State
from cbdybw.clusters.network import Network
from cbdybw.clusters.trace import Trace
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.clusters.worker import keyed_rng
from cbdybw.learning.quadratic import Quadratic
from cbdybw.recorder import Recorder
from cbdybw.storage.run_directory import RunDirectory
from cbdybw.topology import build
from tests.drawn import check_resumed, shown
from tests.mpirun import start
from tests.runs import on_ranks, result
from tests.runs import run as trained
from tests.simulation_gossip import check, draw, run
from tests.timing import run as timed_run

# Whole runs, drawn from a seed


@pytest.mark.parametrize("seed", range(300))
def test_every_exchange_averages_two_ends_and_no_gradient_is_lost(seed):
    scenario = draw(seed)
    with shown(scenario):
        check(scenario, run(scenario))


@pytest.mark.parametrize("seed", range(1000, 1100))
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(seed):
    scenario = draw(seed)
    with shown(scenario):
        check_resumed(run, scenario, run(scenario))


def test_the_seeds_reach_everything_that_can_be_drawn():
    scenarios = [draw(seed) for seed in range(300)]
    assert {s.workers for s in scenarios} == set(range(2, 10))
    assert len({(s.law, s.instant) for s in scenarios}) == 9 * 2
    colours = [max(topology.colouring(s.workers, s.plan.edges).values()) for s in scenarios]
    assert set(range(1, 7)) <= set(colours)


def test_a_seed_gives_the_same_run_in_another_process():
    command = [sys.executable, "-m", "tests.simulation_gossip", "--seed=41"]
    said = [
        subprocess.run(
            command,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
        for seed in ("1", "2")
    ]
    assert said[0] == said[1] == f"fine: trace_sha256 {run(draw(41)).sha256()}"


# By hand


def test_two_workers_in_turns_follow_the_recursion():
    """Worker 0 (which asks) finishes at 2, 4, 6 … s, worker 1 at 1, 3, 5 … s: with every gradient
    of worker 0 comes an average, and every gradient is older than the step before it."""
    problem = Quadratic(np.array([[1.0, 0.0], [0.0, 3.0]]), lam=1.0, sigma=1.0, seed=4)

    def law(rank, index):
        return 1.0 if (rank, index) == (1, 0) else 2.0

    eta = 0.25
    done = timed_run("ad_psgd", build("path", 2, 0), law, 10, problem=problem, eta=eta)
    w = [problem.initial(keyed_rng(0, "init", 0, 0)).astype(float)] * 2
    read = list(w)  # where each is computing its gradient
    for n in range(20):
        j, index = (n + 1) % 2, n // 2
        if j == 0:
            w = [(w[0] + w[1]) / 2] * 2
        w[j] = w[j] - eta * problem.gradient(read[j], problem.batch(j, index))
        read[j] = w[j]
    for rank in (0, 1):
        np.testing.assert_allclose(done.states[rank].w, w[rank], atol=1e-6)
        assert done.states[rank].memory["steps"] == 10
    assert done.recorder.last_close.tolist() == [2.0 * (k + 1) for k in range(10)]


def test_the_learning_rate_is_that_of_the_iteration_not_of_the_workers_own_step():
    """Worker 1 takes three steps while worker 0 takes one, which is four gradients: two iterations.

    Nobody averages before worker 0 has finished.
    """
    problem = Quadratic(np.ones((2, 3)), lam=1.0, sigma=0.0, seed=0)
    rates = [0.5, 0.25]
    plan = Plan([(1,), (0,)], [], 1, rates.__getitem__, iterations=2)
    cluster = VirtualCluster(
        2,
        delay=lambda rank, index: 1.0 if rank else 3.5,
        network=Network(),
        seed=0,
        trace=Trace(),
        recorder=Recorder(2, holders=2),
    )
    first = problem.initial(keyed_rng(0, "init", 0, 0))
    states = cluster.run(lambda worker: ad_psgd(worker, problem, plan, State(0, first)))
    start = first.astype(float) - 1
    alone = start * 0.5 * 0.5 * 0.75
    mean = (start + alone) / 2
    np.testing.assert_allclose(states[1].w - 1, mean, atol=1e-6)
    np.testing.assert_allclose(states[0].w - 1, mean - 0.25 * start, atol=1e-6)


def test_a_worker_alone_does_sgd():
    problem = Quadratic(np.zeros((1, 4)), lam=1.0, sigma=1.0, seed=2)
    done = timed_run("ad_psgd", build("path", 1, 0), "constant:mean=1", 12, problem=problem)
    w = problem.initial(keyed_rng(0, "init", 0, 0)).astype(float)
    for k in range(12):
        w = w - 0.1 * problem.gradient(w, problem.batch(0, k))
    np.testing.assert_allclose(done.states[0].w, w, atol=1e-6)
    assert done.mean == 1.0


# Time


def test_nobody_waits_so_an_iteration_takes_n_over_the_sum_of_the_speeds():
    """After 60 s worker j has used 60·v_j gradients, to the last one."""
    seconds = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    speed = sum(1 / s for s in seconds)
    iterations = round(60 * speed / 6 * 4)  # 240 s, after which all finish together
    done = timed_run("ad_psgd", build("ring", 6, 0), lambda rank, index: seconds[rank], iterations)
    assert done.mean == pytest.approx(6 / speed, rel=1e-12)
    steps = [int(done.states[rank].memory["steps"]) for rank in range(6)]
    assert steps == [240 / s for s in seconds]


def test_a_persistent_straggler_costs_no_more_than_its_own_gradients():
    law = "persistent:ranks=0,slowdown=10"
    done = timed_run("ad_psgd", build("ring", 6, 0), law, 600)
    assert done.mean == pytest.approx(6 / (5 + 1 / 10), rel=0.01)
    assert timed_run("allreduce", build("ring", 6, 0), law, 20).mean == 10.0


def test_an_exchange_takes_a_round_trip_in_which_the_asking_worker_waits():
    """Of two workers the one that asks loses 2·0.25 s a step, the other one nothing."""
    done = timed_run("ad_psgd", build("path", 2, 0), "constant:mean=1", 400, network=Network(0.25))
    assert done.mean == pytest.approx(2 / (1 + 1 / 1.5), rel=0.01)


def test_an_iteration_is_over_for_all_at_the_instant_of_its_last_gradient():
    class Closes(Recorder):
        def record(self, rank, time, event, fields):
            super().record(rank, time, event, fields)
            times.setdefault(fields["k"], set()).add(time)

    times = {}
    done = timed_run(
        "ad_psgd", build("ring", 5, 0), "exponential:mean=1", 40, recorder=Closes(40, holders=5)
    )
    assert [len(times[k]) for k in range(40)] == [1] * 40
    assert done.recorder.used.tolist() == [5] * 40
    assert done.recorder.finishers.tolist() == [5] * 40


@pytest.mark.parametrize("checkpoint_every", [0, 8])
def test_max_time_ends_the_run_with_the_iteration_or_the_part_under_way(checkpoint_every):
    done = timed_run(
        "ad_psgd",
        build("ring", 6, 0),
        "exponential:mean=1",
        1000,
        max_time=30.0,
        checkpoint_every=checkpoint_every,
    )
    (end,) = {(state.k, state.stop) for state in done.states.values()}
    closes = done.recorder.last_close
    assert end[0] == end[1] == done.recorder.iterations
    over = int(np.searchsorted(closes[: end[0]], 30.0)) + 1  # iterations until the time was over
    assert end[0] == (-(-over // 8) * 8 if checkpoint_every else over)
    assert done.recorder.used.sum() == 6 * end[0]


# Who asks whom


@pytest.mark.parametrize(
    "spec", ["ring", "path", "star", "grid", "hypercube", "complete", "erdos_renyi:p=0.4"]
)
def test_requests_go_along_every_edge_once_and_never_in_a_circle(spec):
    graph = build(spec, 8, 3)
    plan = Plan(topology.neighbours(graph), [], 1, lambda k: 0.1, 1)
    asks = nx.DiGraph((j, i) for j, asked in enumerate(plan.asked) for i in asked)
    assert nx.is_directed_acyclic_graph(asks)
    assert sorted(tuple(sorted(edge)) for edge in asks.edges) == list(plan.edges)
    if nx.is_bipartite(graph):  # the paper's rule: each worker asks, or is asked
        assert all(asks.in_degree(j) == 0 or asks.out_degree(j) == 0 for j in graph)


def test_all_neighbours_that_may_be_asked_are_asked_about_equally_often():
    recorder = Recorder(3000, holders=5, keep_edges=True)
    timed_run("ad_psgd", build("star", 5, 0), "constant:mean=1", 3000, recorder=recorder)
    _, numbers = np.unique(recorder.edges[:, 1:], axis=0, return_counts=True)
    assert len(numbers) == 4
    assert numbers.sum() == pytest.approx(3000, rel=0.01)
    assert numbers.max() < 1.15 * numbers.min()


def test_the_network_agrees_while_all_learn_the_same():
    """Without noise all workers come to the one optimum, though nobody ever sees all others."""
    problem = Quadratic(np.eye(6, 20), lam=1.0, sigma=0.0, seed=0)
    done = timed_run(
        "ad_psgd", build("ring", 6, 0), "exponential:mean=1", 2000, problem=problem, eta=0.01
    )
    for state in done.states.values():
        np.testing.assert_allclose(state.w, problem.optimum, atol=0.06)


# On real ranks


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 4])
def test_on_real_ranks_every_exchange_is_atomic_and_every_gradient_counted(ranks, tmp_path):
    seed, out = random.randrange(2**20), tmp_path / "found"
    done = start(ranks, "ad_psgd.py", str(seed), str(out))
    print(f"ad_psgd.py {seed} on {ranks} ranks")  # shown when the test fails
    assert (done.returncode, done.stderr) == (0, "")
    parts = pickle.loads(out.read_bytes())
    links = defaultdict(list)  # (kind, from, to) → the vectors, in their order
    for rank, (_, sent, *_) in enumerate(parts):
        for kind, dest, _, vector in sent:
            links[kind, rank, dest].append(vector)
    came = {link: iter(vectors) for link, vectors in links.items()}
    for rank, (w, sent, used, state, *_) in enumerate(parts):
        told = 0
        for kind, dest, number, vector in sent:
            if kind == "ASK" and dest != rank:
                assert vector.tobytes() == w.tobytes()
                w = next(came["ANSWER", dest, rank])  # nothing has come between
            elif kind == "ANSWER":
                w = (w + next(came["ASK", dest, rank])) / np.float32(2)
                assert vector.tobytes() == w.tobytes()
            elif kind == "STEP" and number > told:  # the first of those that are told of it
                assert number == told + 1
                w, told = w - 0.1 * used[told], number
        assert w.tobytes() == state.w.tobytes()
        assert told == len(used) == state.memory["steps"]
    assert sum(len(links["ANSWER", j, i]) for j in range(ranks) for i in range(ranks)) >= 10
    _check_counts(ranks, parts)


def _check_counts(ranks, parts):
    total = sum(len(used) for _, _, used, *_ in parts)
    assert total >= 40 * ranks
    assert {int(state.memory["total"]) for _, _, _, state, *_ in parts} == {total}
    recorded = [average for *_, averages, _ in parts for average in averages]
    assert sorted(k for k, _, _ in recorded) == sorted(list(range(40)) * ranks)
    assert sum(gradients for *_, gradients in recorded) == total
    for k in (15, 30):
        cut = [cuts[k] for *_, cuts in parts]
        used = sum(int(state.memory["steps"]) for state in cut)
        assert {int(state.memory["total"]) for state in cut} == {used}
        assert used >= k * ranks


@pytest.mark.mpi
@pytest.mark.parametrize("max_time", [float("inf"), 0.2])
def test_what_ran_on_mpi_is_replayed_identically_and_goes_on_from_a_cut(max_time, tmp_path):
    flags = {
        "algorithm": "ad_psgd",
        "workload": "quadratic",
        "delay": "exponential:mean=0.01",
        "iterations": 45,
        "checkpoint_every": 10,
        "max_time": max_time,
        "run_dir": "run",
    }
    measured = result(on_ranks(4, cwd=tmp_path, **flags))
    if max_time < float("inf"):
        assert measured["iterations"] in (10, 20, 30, 40)
    else:
        assert measured["iterations"] == 45
    assert measured["mean_backup_workers"] is None
    replayed = trained(replay=str(tmp_path / "run"))
    assert replayed["replay_identical"] is True
    assert replayed["gradients_used"] == measured["gradients_used"] >= 4 * measured["iterations"]
    if max_time < float("inf"):
        return
    directory = RunDirectory(tmp_path / "run")
    shutil.rmtree(sorted((directory.path / "checkpoints").glob("*"))[-1])
    directory.update_manifest(status="running")
    resumed = result(on_ranks(4, "--resume", cwd=tmp_path, **flags))
    assert directory.manifest()["resumed_from"] == 30
    assert resumed["iterations"] == 45
    assert resumed["gradients_used"] >= 4 * 45
