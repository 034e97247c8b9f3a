"""allreduce: synchronous SGD on the mean gradient, and what an iteration of it costs."""

import math
import pickle
import shutil
from importlib.util import find_spec

import numpy as np
import pytest

from cbdybw.clusters import delays
from cbdybw.clusters.network import Network
from cbdybw.clusters.worker import keyed_rng
from cbdybw.learning.quadratic import Quadratic
from cbdybw.problem import Timing
from cbdybw.storage.run_directory import RunDirectory
from cbdybw.topology import build
from tests.mpirun import start
from tests.runs import on_ranks, result, run
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


# On real ranks

INSTALLED = pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed")
BOTH = [
    pytest.param("mpi4py", marks=pytest.mark.mpi),
    pytest.param("horovod", marks=[pytest.mark.mpi, INSTALLED]),
]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("by", BOTH)
def test_real_ranks_learn_what_virtual_ones_do(by, ranks, tmp_path):
    """Two runs in the same processes: a whole one, and one that ends when its time is over."""
    done = start(ranks, "allreduce.py", by, str(tmp_path / "found"), seconds=200)
    assert (done.returncode, done.stderr) == (0, "")
    (whole, whole_by), (limited, limited_by) = pickle.loads((tmp_path / "found").read_bytes())
    assert whole_by == limited_by
    assert whole_by.startswith(by)
    problem = Quadratic(np.eye(ranks, 1000), 1.0, 1.0, seed=7)
    w = np.ones(1000, np.float32)
    for k in range(30):
        gradients = [problem.gradient(w, problem.batch(j, k)) for j in range(ranks)]
        w = w - np.float32(0.1) * np.mean(gradients, axis=0, dtype=np.float32)
    for rank, states in enumerate(whole):
        assert (states[rank].k, states[rank].stop) == (30, None)
        np.testing.assert_allclose(states[rank].w, w, rtol=1e-4, atol=1e-5)
        assert states[rank].w.tobytes() == whole[0][0].w.tobytes()
    (end,) = {(states[rank].k, states[rank].stop) for rank, states in enumerate(limited)}
    assert end[0] == end[1] < 30


@pytest.mark.parametrize("by", BOTH)
def test_a_rank_that_is_killed_ends_the_others_with_one_line(by):
    done = start(4 if by == "mpi4py" else 2, "allreduce.py", by, "killed", seconds=200)
    assert done.stderr.splitlines() == ["rank 1 was lost in iteration 5; the run ends"]
    assert done.returncode == 1
    assert not done.process_left


@pytest.mark.mpi
@INSTALLED
def test_a_sum_that_somebody_does_not_join_is_reported_though_horovod_blocks():
    done = start(2, "allreduce.py", "horovod", "late", seconds=200)
    lines = done.stderr.splitlines()
    assert lines[0].startswith("rank 0: Stalled: nothing has happened for 3 s: rank 0 waits for ")
    assert lines[0].endswith("the others: allreduce")
    assert done.returncode == 1


@pytest.fixture
def without_horovod(tmp_path):
    """A folder in which Python finds another horovod first, which is broken."""
    (tmp_path / "horovod.py").write_text("raise ImportError('not built')")
    return tmp_path


SMALL = {
    "algorithm": "allreduce",
    "workload": "quadratic",
    "delay": "exponential:mean=0.005",
    "iterations": 25,
    "eval_every": 5,
}


@pytest.mark.mpi
def test_without_horovod_the_run_says_so_and_is_replayed_bit_for_bit(without_horovod):
    measured = result(on_ranks(4, cwd=without_horovod, **SMALL, run_dir="run"))
    assert measured["allreduce"].startswith("mpi4py ")
    assert measured["gradients_used"] == 4 * 25
    assert measured["mean_backup_workers"] == 0.0
    assert measured["consensus_distance"] == 0.0
    replayed = run(replay=str(without_horovod / "run"))
    assert (replayed["replay_identical"], replayed["replay_tolerance"]) == (True, 0.0)
    assert replayed["parameters_sha256"] == measured["parameters_sha256"]
    virtual = run(**SMALL, workers=4)
    assert virtual["allreduce"] == "ring model"
    assert virtual["parameters_sha256"] == measured["parameters_sha256"]


@pytest.mark.mpi
@INSTALLED
def test_horovods_run_is_replayed_within_the_tolerance_that_is_stated(tmp_path):
    learning = {"workload": "2nn:width=16", "dataset": "digits", "pca": 16, "batch_size": 128}
    flags = SMALL | learning | {"eta0": 0.5}
    measured = result(on_ranks(3, cwd=tmp_path, **flags, run_dir="run"))
    assert measured["allreduce"].startswith("horovod ")
    replayed = run(replay=str(tmp_path / "run"), data_dir=_data(tmp_path))
    assert (replayed["replay_identical"], replayed["replay_tolerance"]) == (True, 1e-3)
    assert replayed["train_loss"] == pytest.approx(measured["train_loss"], rel=1e-4)


def _data(folder) -> str:
    (prepared,) = (folder / "data").iterdir()
    return str(prepared)


def test_other_parameters_than_rounding_explains_are_no_replay_of_horovods(tmp_path):
    """A virtual run that is said to be Horovod's, with other parameters."""
    folder = tmp_path / "run"
    run(**SMALL, workers=4, run_dir=str(folder))
    directory = RunDirectory(folder)
    facts = directory.manifest()["result"] | {"allreduce": "horovod", "parameters_sha256": ""}
    directory.update_manifest(result=facts)
    arrays = directory.read_result()
    for factor, same in ((1.0, True), (1 + 9e-4, True), (1 + 2e-3, False)):
        directory.write_result(arrays | {"estimates": factor * arrays["estimates"]})
        assert run(replay=str(folder))["replay_identical"] is same


@pytest.mark.mpi
@pytest.mark.parametrize("algorithm", ["allreduce", "bsp"])
def test_what_is_synchronous_goes_on_from_a_cut_bit_for_bit(algorithm, without_horovod):
    """Led back to the cut before 10 of a run that has ended; `cb_full` is in test_resume.py."""
    flags = SMALL | {"algorithm": algorithm, "checkpoint_every": 10, "workers": 3}
    ranks = 4 if algorithm == "bsp" else 3  # a server beside the workers
    whole = result(on_ranks(ranks, cwd=without_horovod, **flags, run_dir="run"))
    directory = RunDirectory(without_horovod / "run")
    shutil.rmtree(sorted((directory.path / "checkpoints").glob("*"))[-1])
    directory.update_manifest(status="running")
    resumed = result(on_ranks(ranks, "--resume", cwd=without_horovod, **flags, run_dir="run"))
    assert directory.manifest()["resumed_from"] == 10
    for name in ("parameters_sha256", "gradients_used", "train_loss", "iterations"):
        assert resumed[name] == whole[name], name
