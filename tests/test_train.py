"""experiments.train: one run from its flags to its last line."""

import json
import math
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest

from cbdybw import topology
from cbdybw.clusters.trace import Span, decode, load
from cbdybw.storage.run_directory import RunDirectory
from experiments import train
from experiments.settings import Settings
from tests.runs import NOT_REPEATABLE, ROOT, binary, on_ranks, result, run

FIELDS = {
    "algorithm", "cluster", "workers", "seed", "iterations", "clock_seconds", "wall_seconds",
    "mean_iteration_seconds", "train_loss", "test_error", "consensus_distance", "gradients_used",
    "mean_backup_workers", "time_to_target", "trace_sha256", "status", "run_dir",
}  # fmt: skip

STRAGGLING = {"workload": "quadratic", "delay": "exponential:mean=1", "iterations": 60}
DIGITS = {
    "dataset": "digits",
    "pca": 16,
    "workers": 3,
    "batch_size": 128,
    "iterations": 30,
    "delay": "exponential:mean=1",
}


def repeatable(result: dict) -> dict:
    return {name: value for name, value in result.items() if name not in NOT_REPEATABLE}


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_last_line_on_stdout_is_one_json_object_with_every_field(tmp_path):
    process = binary(cwd=tmp_path, **STRAGGLING)
    (line,) = process.stdout.splitlines()
    summed_up = json.loads(line)
    assert summed_up.keys() >= FIELDS
    assert summed_up["status"] == "finished"
    assert summed_up["time_to_target"] is None
    assert summed_up["run_dir"] is None
    assert summed_up["iterations"] == 60
    assert summed_up["clock_seconds"] == pytest.approx(60 * summed_up["mean_iteration_seconds"])
    assert process.stderr == "--graph=ring: DTUR's connecting edges are a Hamiltonian path\n"
    assert process.returncode == 0


@pytest.mark.parametrize(("graph", "words"), [("star", "minimum spanning tree"), ("path", "path")])
def test_the_log_says_what_connects_the_workers(graph, words):
    lines = []
    train.run(Settings(workload="timing", graph=graph, iterations=3), log=lines.append)
    (line,) = lines
    assert line.endswith(words)


def test_without_a_run_folder_nothing_is_written(tmp_path):
    assert binary(cwd=tmp_path, **STRAGGLING, eval_every=1).returncode == 0
    assert tree(tmp_path) == []


def test_learning_from_data_writes_only_the_data_where_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(workload="lrm", **DIGITS, data_dir="prepared")
    first = tree(tmp_path)
    assert {name.split("/")[0] for name in first} == {"prepared"}
    run(workload="lrm", **DIGITS, data_dir="prepared")
    assert tree(tmp_path) == first


def test_a_timing_only_run_imports_no_tensorflow_and_no_mpi(tmp_path):
    program = (
        "import sys; from experiments import train; from experiments.settings import Settings\n"
        "train.run(Settings(workload='timing', run_dir='a', iterations=9), print)\n"
        "print(sorted({'tensorflow', 'keras', 'mpi4py', 'sklearn'} & sys.modules.keys()))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert process.stdout.splitlines()[-1] == "[]", process.stderr


@pytest.mark.parametrize("workload", ["lrm", "quadratic", "timing"])
def test_the_same_flags_and_seed_give_the_same_run_again_and_in_another_process(tmp_path, workload):
    flags = DIGITS | {"workload": workload, "network": "latency=0.01,jitter=0.05"}
    flags |= {"data_dir": str(tmp_path / "data"), "eval_every": 10}
    folders = [tmp_path / name for name in "abc"]
    first, second = (run(**flags, run_dir=str(folder)) for folder in folders[:2])
    third = result(binary(cwd=tmp_path, **flags, run_dir=folders[2]))
    assert repeatable(first) == repeatable(second) == repeatable(third)
    metrics = [RunDirectory(folder).metrics() for folder in folders]
    assert metrics[0] == metrics[1] == metrics[2]
    assert len(metrics[0]) == (0 if workload == "timing" else 4)
    assert run(**flags | {"seed": 1})["trace_sha256"] != first["trace_sha256"]


POLICIES = {
    "carry": {},
    "drop": {"straggler_policy": "drop"},
    "late": {"straggler_policy": "late"},
    "paper": {"clock": "paper"},
    "cb_full": {"algorithm": "cb_full"},
}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_counts_are_those_of_the_active_edges(tmp_path, policy):
    graph = "erdos_renyi:p=0.6"
    flags = STRAGGLING | POLICIES[policy] | {"graph": graph, "seed": 4}
    ended = run(**flags, run_dir=str(tmp_path / "a"))
    arrays = RunDirectory(tmp_path / "a").read_result()
    edges = arrays["edges"]
    degrees = dict(topology.build(graph, 6, 4).degree)
    backup = [
        degrees[j] - int(((edges[:, 0] == k) & (edges[:, 1:] == j).any(axis=1)).sum())
        for k in range(60)
        for j in range(6)
    ]
    assert ended["mean_backup_workers"] == pytest.approx(np.mean(backup), rel=1e-12)
    spans, _ = load(tmp_path / "a" / "trace")
    _, kind, _, _ = decode(spans["code"])
    averages = int((kind == Span.AVERAGE).sum())
    every_gradient = policy in ("late", "paper", "cb_full")
    assert ended["gradients_used"] == (360 if every_gradient else averages)
    assert averages == arrays["finishers"].sum()
    assert (averages == 360) == (policy == "cb_full")
    assert ended["gradients_used"] == arrays["used"].sum()
    connecting = nx.Graph(arrays["connecting"].tolist())
    assert nx.is_connected(connecting)
    assert len(connecting) == 6


def test_time_at_checkpoints_is_no_part_of_an_iteration(tmp_path):
    flags = STRAGGLING | {"network": "latency=0.3", "checkpoint_every": 7}
    ended = run(**flags, run_dir=str(tmp_path / "a"))
    spans, _ = load(tmp_path / "a" / "trace")
    _, kind, iteration, _ = decode(spans["code"])
    cuts = np.unique(spans["end"][kind == Span.CHECKPOINT])
    assert len(cuts) == 8
    closes = [
        spans["end"][(kind == Span.AVERAGE) & (iteration == k)].max(initial=0) for k in range(60)
    ]
    at_cuts = sum(cut - closes[7 * (n + 1) - 1] for n, cut in enumerate(cuts))
    assert at_cuts > 8 * 0.3
    assert ended["clock_seconds"] == pytest.approx(closes[-1] - at_cuts, rel=1e-9)


def test_metrics_are_those_of_the_mean_model_and_of_every_worker(tmp_path):
    run(**STRAGGLING, run_dir=str(tmp_path / "a"), eval_every=25)
    directory = RunDirectory(tmp_path / "a")
    rows = directory.metrics()
    assert [row["iteration"] for row in rows] == [0, 25, 50, 60]
    w = directory.read_result()["estimates"].astype(np.float64)
    last = rows[-1]
    assert last["train_loss"] == pytest.approx(0.5 * (w.mean(axis=0) ** 2).sum(), rel=1e-5)
    assert last["worker_loss"] == pytest.approx(0.5 * (w**2).sum(axis=1), rel=1e-5)
    distance = math.sqrt(((w - w.mean(axis=0)) ** 2).sum(axis=1).mean())
    assert last["consensus_distance"] == pytest.approx(distance, rel=1e-9)
    assert rows[0]["consensus_distance"] == rows[0]["clock_seconds"] == 0
    assert [row["clock_seconds"] for row in rows[1:]] == [
        pytest.approx(directory.read_result()["last_close"][: row["iteration"]].max())
        for row in rows[1:]
    ]


def test_evaluating_costs_no_time_on_the_virtual_clock():
    often, never = (run(**STRAGGLING, eval_every=n) for n in (1, 0))
    assert often["trace_sha256"] == never["trace_sha256"]
    assert often["train_loss"] == never["train_loss"]


def test_the_time_to_a_target_is_reported_and_does_not_end_the_run(tmp_path):
    plain = run(**STRAGGLING, eval_every=5, run_dir=str(tmp_path / "a"))
    rows = RunDirectory(tmp_path / "a").metrics()
    target = rows[4]["train_loss"]
    first = next(row for row in rows if row["train_loss"] <= target)
    aimed = run(**STRAGGLING, eval_every=5, target_loss=target)
    assert aimed["time_to_target"] == first["clock_seconds"] > 0
    assert aimed["iterations_to_target"] == first["iteration"]
    never = {"time_to_target": None, "iterations_to_target": None}
    assert repeatable(aimed) | never == repeatable(plain)


def test_a_run_ends_soon_after_its_time_is_over():
    for algorithm in ("cb_dybw", "cb_full"):
        ended = run(**STRAGGLING | {"iterations": 10_000}, algorithm=algorithm, max_time=50.0)
        assert 50 < ended["clock_seconds"] < 70
        assert ended["status"] == "finished"


@pytest.mark.parametrize("algorithm", ["cb_full", "cb_dybw"])
def test_one_worker_alone_descends_the_gradient(tmp_path, algorithm):
    flags = {"workload": "quadratic:sigma=0", "eta0": 0.5, "eta_decay": 1.0, "iterations": 4}
    ended = run(**flags, algorithm=algorithm, workers=1, eval_every=1, run_dir=str(tmp_path / "a"))
    losses = [row["train_loss"] for row in RunDirectory(tmp_path / "a").metrics()]
    assert losses == pytest.approx([losses[0] / 4**n for n in range(5)], rel=1e-6)
    assert (ended["gradients_used"], ended["mean_backup_workers"]) == (4, 0)


@pytest.mark.parametrize("algorithm", ["cb_full", "cb_dybw"])
def test_a_diverged_run_ends_with_its_status_and_exit_code_3(tmp_path, algorithm):
    flags = STRAGGLING | {"algorithm": algorithm, "eta0": 1e6, "eta_decay": 1.0}
    process = binary(cwd=tmp_path, **flags, run_dir="a")
    ended = result(process)
    assert process.returncode == 3
    assert ended["status"] == "diverged"
    assert ended["train_loss"] is None
    assert ended["time_to_target"] is None
    assert ended["iterations"] == 60
    assert "Warning" not in process.stderr
    assert RunDirectory(tmp_path / "a").manifest()["status"] == "diverged"
    replayed = run(replay=str(tmp_path / "a"))
    assert (replayed["replay_identical"], replayed["status"]) == (True, "diverged")


def test_a_diverged_model_is_evaluated_without_an_accident(tmp_path):
    flags = DIGITS | {"workload": "2nn:width=8", "data_dir": str(tmp_path), "eta0": 1e30}
    ended = run(**flags)
    assert (ended["status"], ended["train_loss"]) == ("diverged", None)
    json.dumps(ended, allow_nan=False)


@pytest.mark.mpi
def test_a_diverged_run_on_mpi_prints_its_line_and_leaves_with_3(tmp_path):
    process = on_ranks(2, cwd=tmp_path, workload="quadratic", graph="path", eta0=1e6, eta_decay=1.0)
    ended = json.loads(process.stdout)
    assert process.returncode == 3, process.stderr
    assert (ended["status"], ended["train_loss"], ended["cluster"]) == ("diverged", None, "mpi")
    assert tree(tmp_path) == []
